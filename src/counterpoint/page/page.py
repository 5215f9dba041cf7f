"""Render the page of a run as one HTML file without network access or scripts."""

import re

from counterpoint.page import figures
from counterpoint.page.gather import Page
from counterpoint.page.summary import value_text


def render(page: Page) -> str:
    """Render a page as HTML; all texts from tables and recipes are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("counterpoint.page")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.get_template("page.html.j2")
    returned = "" if page.returns is None else value_text(page.returns)
    text = template.render(page=page, figures=_figures(page), returned=returned)
    return re.sub(r"\n\s*\n+", "\n", text)


def _figures(page: Page) -> dict[str, str]:
    """Draw the figures whose data the page has; return data URLs by name."""
    drawn = {"lengths": figures.lengths(page.cohort.lengths)}
    if page.check is not None:
        drawn["checks"] = figures.checks(page.check)
    if page.imagined is not None:
        drawn["surface"] = figures.effects(page.imagined.surface)
    evaluation = page.evaluation
    if evaluation is not None:
        drawn["estimates"] = figures.estimates(evaluation)
        if evaluation.behaviour is not None:
            drawn["behaviour"] = figures.behaviour(evaluation)
        if evaluation.sensitivity is not None:
            drawn["unmeasured"] = figures.unmeasured(evaluation)
    return drawn
