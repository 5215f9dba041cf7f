"""The tumour benchmark beside what was published on it.

The published numbers are those of Melnychuk et al., "Causal Transformer for estimating counterfactual outcomes", ICML
2022, in their repository's README (Valentyn1997/CausalTransformer), tables 9 and 10 as updated after a mistake in their
simulator was mended: mean and standard deviation over five seeds, 10,000 training patients, random sequences.
"""

import os
from collections.abc import Sequence
from functools import cache
from importlib import resources
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from counterpoint.core.results import Row, markdown_table, read_csv, require_columns
from counterpoint.page.style import GREY, PALETTE, canvas, legend_once

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("model", "patients", "gamma", "horizon", "seed", "nrmse")
FIT_SECONDS = "fit_seconds"
"""Processor seconds of a fit, which rows have beside the columns of the table."""
PUBLISHED_PATIENTS = 10_000
PUBLISHED = "published models, 10,000 patients"


@cache
def published() -> tuple[Row, ...]:
    """Every published number: model, horizon, gamma, nrmse, deviation."""
    with resources.as_file(resources.files("reproduction.pages") / "tumour_published.csv") as path:
        return tuple(read_csv(path))


def tumour_page(rows: Sequence[Row], command: str) -> str:
    """A table for each horizon, a line for each model and number of patients, the published models first."""
    require_columns(rows, (*COLUMNS, FIT_SECONDS), "tumour rows")
    seeds = len({row["seed"] for row in rows})
    text = [
        "# Counterfactual tumour growth\n",
        "Root mean square error of the volume in percent of the volume of a ball of 13 cm; mean ± standard deviation"
        f" over seeds (ours: {seeds}). Ours by `{command}`; the models above them as published by Melnychuk et al."
        " (2022), README of Valentyn1997/CausalTransformer, tables 9 and 10.\n",
    ]
    for horizon in sorted({row["horizon"] for row in rows}):
        asked = "all four treatments" if horizon == 1 else "random treatments"
        text += [f"## {_steps(horizon)}, {asked}\n", _table([r for r in rows if r["horizon"] == horizon]), ""]
    text += ["## Seconds to fit\n", _seconds(rows), ""]
    return "\n".join(text)


def _steps(horizon: int) -> str:
    return "One step ahead" if horizon == 1 else f"{horizon} steps ahead"


def _table(rows: Sequence[Row]) -> str:
    gammas = sorted({row["gamma"] for row in rows})
    lines: dict[tuple[str, int], dict[str, str]] = {}
    for row in (r for r in published() if r["horizon"] == rows[0]["horizon"] and r["gamma"] in gammas):
        line = lines.setdefault((row["model"], PUBLISHED_PATIENTS), {})
        line[f"γ = {row['gamma']:g}"] = f"{row['nrmse']:.3f} ± {row['deviation']:.3f}"
    for model, patients in _ours(rows):
        some = {g: _values(rows, model=model, patients=patients, gamma=g) for g in gammas}
        lines[model, patients] = {f"γ = {g:g}": _spread(values) for g, values in some.items()}
    named = [{"model": model, "patients": patients, **cells} for (model, patients), cells in lines.items()]
    return markdown_table(named, ["model", "patients", *(f"γ = {g:g}" for g in gammas)])


def _seconds(rows: Sequence[Row]) -> str:
    lines = [
        {"model": m, "patients": p, "seconds": fmean(_values(rows, FIT_SECONDS, model=m, patients=p))}
        for m, p in _ours(rows)
    ]
    return markdown_table(lines, formats={"seconds": ".2f"})


def _ours(rows: Sequence[Row]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((row["model"], row["patients"]) for row in rows))


def _values(rows: Sequence[Row], quantity: str = "nrmse", **wanted: object) -> list[float]:
    return [row[quantity] for row in rows if all(row[name] == value for name, value in wanted.items())]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def tumour_figure(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Error against γ for the shortest and the longest horizon, and against the number of patients."""
    require_columns(rows, COLUMNS, "tumour rows")
    horizons = sorted({row["horizon"] for row in rows})
    with canvas(path, 4.6, "Counterfactual tumour growth: error in % of a 13 cm ball") as figure:
        first, last, sizes = figure.subplots(1, 3)
        for panel, horizon in ((first, horizons[0]), (last, horizons[-1])):
            _gamma_panel(panel, [row for row in rows if row["horizon"] == horizon], horizon)
        _sizes_panel(sizes, [row for row in rows if row["horizon"] == horizons[0]], horizons[0])
        legend_once(figure, [first, last, sizes])


def _gamma_panel(panel: "Axes", rows: Sequence[Row], horizon: int) -> None:
    """The largest training sets, with the published models in grey."""
    gammas = sorted({row["gamma"] for row in rows})
    for model in dict.fromkeys(row["model"] for row in published()):
        found = [_values(published(), model=model, horizon=horizon, gamma=g) for g in gammas]
        points = [(g, *values) for g, values in zip(gammas, found, strict=True) if values]
        if points:
            panel.plot(*zip(*points, strict=True), color=GREY, linewidth=1, alpha=0.6, label=PUBLISHED)
    for colour, model in zip(PALETTE, dict.fromkeys(row["model"] for row in rows), strict=False):
        most = max(row["patients"] for row in rows if row["model"] == model)
        values = [_values(rows, model=model, patients=most, gamma=g) for g in gammas]
        points = [(g, fmean(v)) for g, v in zip(gammas, values, strict=True) if v]
        panel.plot(*zip(*points, strict=True), "o-", color=colour, label=model)
    panel.set(xlabel="γ", ylim=(0, None))
    panel.set_title(_steps(horizon), loc="left", fontweight="bold")


def _sizes_panel(panel: "Axes", rows: Sequence[Row], horizon: int) -> None:
    """Means over all γ; the best published model is that of the smallest mean."""
    gammas = {row["gamma"] for row in rows}
    sizes = sorted({row["patients"] for row in rows})
    for colour, model in zip(PALETTE, dict.fromkeys(row["model"] for row in rows), strict=False):
        points = [(n, _values(rows, model=model, patients=n)) for n in sizes]
        drawn = [(n, fmean(values)) for n, values in points if values]
        panel.plot(*zip(*drawn, strict=True), "o-", color=colour, label=model)
    peers = [row for row in published() if row["horizon"] == horizon and row["gamma"] in gammas]
    means = [fmean(_values(peers, model=model)) for model in dict.fromkeys(row["model"] for row in peers)]
    if means:
        panel.plot(PUBLISHED_PATIENTS, min(means), "D", color=GREY, label="the best published model")
    panel.set(xscale="log", xlabel="training patients", ylim=(0, None))
    ticks = sorted({*sizes, PUBLISHED_PATIENTS})
    panel.set_xticks(ticks, [f"{n:,}" for n in ticks])
    panel.minorticks_off()
    panel.set_title(f"{_steps(horizon)}, mean over γ", loc="left", fontweight="bold")
