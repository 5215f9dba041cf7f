"""The page of a run: one HTML file that needs nothing beside it, neither network nor scripts."""

import re

from jinja2 import Environment, PackageLoader, StrictUndefined

from counterpoint.page import figures
from counterpoint.page.gather import Page
from counterpoint.page.summary import value_of


def render(page: Page) -> str:
    """A page as HTML; whatever comes from a table or a recipe is escaped."""
    loader = PackageLoader("counterpoint.page")
    surroundings = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = surroundings.get_template("page.html.j2")
    returned = "" if page.returns is None else value_of(page.returns)
    text = template.render(page=page, figures=_figures(page), returned=returned)
    return re.sub(r"\n\s*\n+", "\n", text)


def _figures(page: Page) -> dict[str, str]:
    """Addresses of the figures that there is something to draw for."""
    drawn = {"lengths": figures.lengths(page.cohort.lengths)}
    if page.check is not None:
        drawn["checks"] = figures.checks(page.check)
    if page.imagined is not None:
        drawn["surface"] = figures.surface(page.imagined.surface)
    found = page.evaluation
    if found is not None:
        drawn["estimates"] = figures.estimates(found)
    if found is not None and found.behaviour is not None:
        drawn["behaviour"] = figures.behaviour(found)
    if found is not None and found.sensitivity is not None:
        drawn["unmeasured"] = figures.unmeasured(found)
    return drawn
