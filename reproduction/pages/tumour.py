"""Page and figure of the tumour benchmark: errors of our forecasters and of the published models.

The published numbers are those of Melnychuk et al., "Causal Transformer for estimating counterfactual outcomes", ICML
2022, in their repository's README (Valentyn1997/CausalTransformer), tables 9 and 10, updated after a correction of
their simulator: mean and standard deviation over five seeds, 10,000 training patients, random sequences.
"""

import os
from collections.abc import Sequence
from functools import cache
from importlib import resources
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from counterpoint.core.tables import Row, markdown_table, read_csv, require_columns
from counterpoint.page.style import GREY, PALETTE, canvas, legend_once
from reproduction.pages.tables import column_mean, formats, group_by, markdown_page, select, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("model", "patients", "gamma", "horizon", "seed", "nrmse")
FIT_SECONDS = "fit_seconds"
"""Processor seconds of a fit: a column of the cells that the table leaves out."""
PUBLISHED_PATIENTS = 10_000
PUBLISHED = "published models, 10,000 patients"


@cache
def published() -> tuple[Row, ...]:
    """Return the published numbers: model, horizon, gamma, nrmse, deviation."""
    with resources.as_file(resources.files("reproduction.pages") / "tumour_published.csv") as path:
        return tuple(read_csv(path))


def tumour_page(rows: Sequence[Row], command: str) -> str:
    """Return the Markdown page: a table per horizon, a line per model and number of patients, published ones first."""
    require_columns(rows, (*COLUMNS, FIT_SECONDS), "tumour rows")
    blocks = [
        "# Counterfactual tumour growth",
        "Root mean square error of the volume in percent of the volume of a ball of 13 cm; mean ± standard deviation"
        f" over seeds (ours: {len(unique(rows, 'seed'))}). Ours by `{command}`; the models above them as published by"
        " Melnychuk et al. (2022), README of Valentyn1997/CausalTransformer, tables 9 and 10.",
    ]
    for horizon in sorted(unique(rows, "horizon")):
        treatments = "all four treatments" if horizon == 1 else "random treatments"
        blocks += [f"## {_steps(horizon)}, {treatments}", _table(select(rows, horizon=horizon), horizon)]
    seconds = [
        {"model": model, "patients": patients, "seconds": column_mean(part, FIT_SECONDS)}
        for (model, patients), part in group_by(rows, "model", "patients").items()
    ]
    return markdown_page(*blocks, "## Seconds to fit", markdown_table(seconds, formats=formats(f2=["seconds"])))


def _steps(horizon: int) -> str:
    return "One step ahead" if horizon == 1 else f"{horizon} steps ahead"


def _table(rows: Sequence[Row], horizon: int) -> str:
    gammas = sorted(unique(rows, "gamma"))
    lines: dict[tuple[str, int], dict[str, str]] = {}
    for row in select(published(), horizon=horizon):
        if row["gamma"] in gammas:
            line = lines.setdefault((row["model"], PUBLISHED_PATIENTS), {})
            line[f"γ = {row['gamma']:g}"] = f"{row['nrmse']:.3f} ± {row['deviation']:.3f}"
    for (model, patients), part in group_by(rows, "model", "patients").items():
        lines[model, patients] = {f"γ = {gamma:g}": _spread(_errors(part, gamma=gamma)) for gamma in gammas}
    table = [{"model": model, "patients": patients, **errors} for (model, patients), errors in lines.items()]
    return markdown_table(table, ["model", "patients", *(f"γ = {gamma:g}" for gamma in gammas)])


def _errors(rows: Sequence[Row], **values: object) -> list[float]:
    return [row["nrmse"] for row in select(rows, **values)]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def tumour_figure(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Draw the error over γ for the shortest and the longest horizon, and over the number of patients."""
    require_columns(rows, COLUMNS, "tumour rows")
    horizons = sorted(unique(rows, "horizon"))
    with canvas(path, 4.6, "Counterfactual tumour growth: error in % of a 13 cm ball") as figure:
        panels = figure.subplots(1, 3)
        for panel, horizon in zip(panels, (horizons[0], horizons[-1]), strict=False):
            _gamma_panel(panel, select(rows, horizon=horizon), horizon)
        _sizes_panel(panels[2], select(rows, horizon=horizons[0]), horizons[0])
        legend_once(figure, list(panels))


def _gamma_panel(panel: "Axes", rows: Sequence[Row], horizon: int) -> None:
    """The error over γ with the most training patients; the published models in grey."""
    gammas = sorted(unique(rows, "gamma"))
    peers = select(published(), horizon=horizon)
    for model in unique(published(), "model"):
        points = [(gamma, *_errors(peers, model=model, gamma=gamma)) for gamma in gammas]
        points = [point for point in points if len(point) > 1]
        if points:
            panel.plot(*zip(*points, strict=True), color=GREY, linewidth=1, alpha=0.6, label=PUBLISHED)
    for colour, model in zip(PALETTE, unique(rows, "model"), strict=False):
        part = select(rows, model=model)
        part = select(part, patients=max(unique(part, "patients")))
        points = [(gamma, fmean(_errors(part, gamma=gamma))) for gamma in gammas if _errors(part, gamma=gamma)]
        panel.plot(*zip(*points, strict=True), "o-", color=colour, label=model)
    panel.set(xlabel="γ", ylim=(0, None))
    panel.set_title(_steps(horizon), loc="left", fontweight="bold")


def _sizes_panel(panel: "Axes", rows: Sequence[Row], horizon: int) -> None:
    """The mean error over all γ, and that of the published model with the smallest mean."""
    sizes = sorted(unique(rows, "patients"))
    for colour, ((model,), part) in zip(PALETTE, group_by(rows, "model").items(), strict=False):
        points = [(n, fmean(_errors(part, patients=n))) for n in sizes if _errors(part, patients=n)]
        panel.plot(*zip(*points, strict=True), "o-", color=colour, label=model)
    peers = [row for row in select(published(), horizon=horizon) if row["gamma"] in unique(rows, "gamma")]
    if peers:
        best = min(fmean(_errors(part)) for part in group_by(peers, "model").values())
        panel.plot(PUBLISHED_PATIENTS, best, "D", color=GREY, label="the best published model")
    panel.set(xscale="log", xlabel="training patients", ylim=(0, None))
    ticks = sorted({*sizes, PUBLISHED_PATIENTS})
    panel.set_xticks(ticks, [f"{n:,}" for n in ticks])
    panel.minorticks_off()
    panel.set_title(f"{_steps(horizon)}, mean over γ", loc="left", fontweight="bold")
