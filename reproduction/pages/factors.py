"""What is known of subjects: their factors coloured by the truth, and a new subject's posterior step by step."""

import os
from collections.abc import Sequence
from statistics import fmean

from jaxtyping import Int
from torch import Tensor

from counterpoint.core.results import Row, markdown_table, require_columns
from counterpoint.models.base import SubjectFactors
from counterpoint.page.style import PALETTE, canvas, legend_once


def groups_page(rows: Sequence[Row]) -> str:
    """Accuracy beside the bound for each noise, number of trials and way of grouping."""
    require_columns(rows, ("noise", "trials_per_subject", "groups", "accuracy", "bound"), "groups")
    keys = dict.fromkeys((row["noise"], row["trials_per_subject"], row["groups"]) for row in rows)
    lines = []
    for noise, trials, groups in keys:
        own = [r for r in rows if (r["noise"], r["trials_per_subject"], r["groups"]) == (noise, trials, groups)]
        accuracy, bound = fmean(r["accuracy"] for r in own), fmean(r["bound"] for r in own)
        line = {"noise": noise, "trials a subject": trials, "groups": groups, "seeds": len(own)}
        lines.append({**line, "accuracy": accuracy, "bound": bound, "share of the bound": accuracy / bound})
    formats: dict[str, str] = dict.fromkeys(("accuracy", "bound", "share of the bound"), ".3f")
    return "\n".join(
        [
            "# Gravity named by groups of subjects\n",
            "`counterpoint bench groups`; the bound names subjects by the true equations, chance names 0.2.\n",
            markdown_table(lines, formats=formats),
            "",
        ]
    )


def factors_figure(
    known: SubjectFactors,
    closing: SubjectFactors,
    subject: Int[Tensor, " n"],
    names: Sequence[str],
    path: str | os.PathLike[str],
) -> None:
    """Left the factors of a log's subjects, equally many of each name; right how new ones of each become known."""
    each = len(known.mean) // len(names)
    with canvas(path, 4.6, "The subjects' factor: who is who in a log, and a new subject becoming known") as figure:
        left, right = figure.subplots(1, 2)
        for place, name in enumerate(names):
            colour, own = PALETTE[place], slice(place * each, (place + 1) * each)
            mean, deviation = known.mean[own, 0], known.covariance[own, 0, 0].sqrt()
            height = place + 0.8 * (mean.argsort().argsort().float() / max(each - 1, 1) - 0.5)
            left.errorbar(mean, height, xerr=deviation, fmt="o", color=colour, markersize=3, linewidth=0.7, label=name)
            steps = (subject == place).nonzero()[:, 0]
            middle, wide = closing.mean[steps, 0], closing.covariance[steps, 0, 0].sqrt()
            right.plot(middle, color=colour, linewidth=2)
            right.fill_between(range(len(steps)), middle - wide, middle + wide, color=colour, alpha=0.15, linewidth=0)
        left.set_yticks(range(len(names)), names)
        left.set(xlabel="factor θ: posterior mean and standard deviation")
        right.set(xlabel="steps seen of a new subject", ylabel="factor θ")
        legend_once(figure, [left])
