"""Page and figure of the group benchmark: accuracy of naming gravities by groups of subject factors."""

import os
from collections.abc import Sequence
from statistics import fmean

from jaxtyping import Int
from torch import Tensor

from counterpoint.core.tables import Row, markdown_table, require_columns
from counterpoint.models.base import SubjectFactors
from counterpoint.page.style import PALETTE, canvas, legend_once
from reproduction.pages.tables import formats, group_by, markdown_page


def groups_page(rows: Sequence[Row], command: str) -> str:
    """Return the Markdown page: accuracy and its bound by noise, number of trials and method of grouping."""
    require_columns(rows, ("noise", "trials_per_subject", "groups", "accuracy", "bound"), "groups")
    lines = []
    for (noise, trials, groups), part in group_by(rows, "noise", "trials_per_subject", "groups").items():
        accuracy, bound = fmean(row["accuracy"] for row in part), fmean(row["bound"] for row in part)
        line = {"noise": noise, "trials a subject": trials, "groups": groups, "seeds": len(part)}
        lines.append({**line, "accuracy": accuracy, "bound": bound, "share of the bound": accuracy / bound})
    return markdown_page(
        "# Gravity named by groups of subjects",
        f"`{command}`; the bound names subjects by maximum likelihood under the true equations; chance is 0.2.",
        markdown_table(lines, formats=formats(f3=("accuracy", "bound", "share of the bound"))),
    )


def factors_figure(
    logged: SubjectFactors,
    online: SubjectFactors,
    subject: Int[Tensor, " n"],
    names: Sequence[str],
    path: str | os.PathLike[str],
) -> None:
    """Draw the factors of the logged subjects (left) and the posterior of new subjects step by step (right).

    Args:
        logged: factors of the log's subjects, equally many of each name, in the order of `names`.
        online: posterior of one new subject of each name before every step.
        subject: the new subject of every step.
    """
    count = len(logged.mean) // len(names)
    with canvas(path, 4.6, "Subject factors: the log's subjects, and new subjects step by step") as figure:
        left, right = figure.subplots(1, 2)
        for place, name in enumerate(names):
            colour = PALETTE[place]
            part = slice(place * count, (place + 1) * count)
            mean, deviation = logged.mean[part, 0], logged.covariance[part, 0, 0].sqrt()
            height = place + 0.8 * (mean.argsort().argsort().float() / max(count - 1, 1) - 0.5)
            left.errorbar(mean, height, xerr=deviation, fmt="o", color=colour, markersize=3, linewidth=0.7, label=name)
            steps = (subject == place).nonzero()[:, 0]
            middle, width = online.mean[steps, 0], online.covariance[steps, 0, 0].sqrt()
            right.plot(middle, color=colour, linewidth=2)
            right.fill_between(range(len(steps)), middle - width, middle + width, color=colour, alpha=0.15, linewidth=0)
        left.set_yticks(range(len(names)), names)
        left.set(xlabel="factor θ: posterior mean and standard deviation")
        right.set(xlabel="steps seen of a new subject", ylabel="factor θ")
        legend_once(figure, [left])
