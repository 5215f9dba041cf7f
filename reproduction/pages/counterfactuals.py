"""Page and figures of the counterfactual benchmark: error of every estimator on every SCM with known truth."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.core.tables import Row, markdown_table, require_columns
from counterpoint.page.style import GREY, canvas
from reproduction.pages.tables import group_by, markdown_page, select, unique

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("scm", "n", "seed", "method", "error", "fresh_error", "round_trip", "recipe", "commit")
NEAR = 1.1
"""An error of at most this many times the smallest counts as near the best."""
CROWDED = 6
"""With more SCMs than this, the heat map shows two digits of each error and slants the names."""
PREFACE = (
    "The error of (s, a, s') problems is normalised: 0 is the truth and 1 is as good as copying the factual outcome."
    " That of the causal sets (triangle-nlin, simpson-symprod) is the mean distance between answer and truth under"
    " do(x_i = v), v the 25th, 50th and 75th percentile. Means over seeds."
)


@dataclass(frozen=True)
class Expected:
    """The cells of a complete table."""

    problems: tuple[tuple[str, int], ...]
    """(scm, rows)."""
    methods: tuple[str, ...]
    seeds: int
    gaps: Mapping[tuple[str, str], str]
    """(method, scm) that the method does not support, and why."""
    choosing: Mapping[str, tuple[str, ...]]
    """Methods that choose among candidates, and the names of the candidates."""
    compared: tuple[str, ...]
    """The SCMs over which the choice is compared with the best candidate."""


def counterfactuals_page(rows: Sequence[Row], expected: Expected, command: str) -> str:
    """Return the Markdown page: coverage, then three tables and the choices of `auto` for each number of rows."""
    require_columns(rows, COLUMNS, "counterfactual rows")
    blocks = ["# Counterfactual error against the truth", f"{PREFACE} By `{command}`.", *_coverage(rows, expected)]
    for n in sorted(unique(rows, "n")):
        part = select(rows, n=n)
        blocks += [
            f"## {n} rows",
            _table(part, expected, "error"),
            *_choices(part, expected),
            "The same models with fresh noise; the difference is the benefit of abduction:",
            _table(part, expected, "fresh_error"),
            "Processor seconds per fit, the mean over its stack:",
            _table(part, expected, "seconds"),
        ]
    return markdown_page(*blocks)


def coverage(rows: Sequence[Row], expected: Expected) -> tuple[int, int]:
    """Count the cells (scm, rows, method, seed) with a finite error, and those of a complete table."""
    problems = {
        (scm, n, method)
        for (scm, n), method in product(expected.problems, expected.methods)
        if (method, scm) not in expected.gaps
    }
    filled = {(row["scm"], row["n"], row["method"], row["seed"]) for row in rows if not isnan(row["error"])}
    return len([cell for cell in filled if cell[:3] in problems]), len(problems) * expected.seeds


def near_the_best(rows: Sequence[Row], method: str, candidates: Sequence[str], scms: Sequence[str]) -> dict[str, float]:
    """Return the ratio of the method's mean error to its best candidate's, for each SCM where all have errors."""
    means = _means(rows, "error")
    ratios = {}
    for scm in scms:
        errors = [means.get((scm, name)) for name in candidates]
        error = means.get((scm, method))
        if error is not None and errors and None not in errors:
            ratios[scm] = error / min(value for value in errors if value is not None)
    return ratios


def _coverage(rows: Sequence[Row], expected: Expected) -> list[str]:
    filled, cells = coverage(rows, expected)
    blocks = [f"{filled} of {cells} cells (scm × rows × method × seed) are filled, {100 * filled / cells:.4g}%."]
    for reason in dict.fromkeys(expected.gaps.values()):
        places = [place for place, why in expected.gaps.items() if why == reason]
        methods = "; ".join(dict.fromkeys(method for method, _ in places))
        scms = ", ".join(dict.fromkeys(scm for _, scm in places))
        blocks.append(f"Not run on {scms}, because {reason}: {methods}.")
    return blocks


def _choices(rows: Sequence[Row], expected: Expected) -> list[str]:
    lines = []
    for method, candidates in expected.choosing.items():
        ratios = near_the_best(rows, method, candidates, expected.compared)
        if not ratios:
            continue
        far = [f"{scm} ({ratio:.2f} times)" for scm, ratio in ratios.items() if ratio > NEAR]
        exceptions = f"; not on {', '.join(far)}" if far else ""
        lines.append(
            f"`{method}` is within 10% of the best of its candidates ({'; '.join(candidates)}) on"
            f" {len(ratios) - len(far)} of {len(ratios)}{exceptions}."
        )
    return lines


def _means(rows: Sequence[Row], quantity: str) -> dict[tuple[str, str], float | None]:
    """Average over seeds, by SCM and method; None where a value is nan."""
    means = {key: fmean(float(row[quantity]) for row in part) for key, part in group_by(rows, "scm", "method").items()}
    return {(scm, method): None if isnan(value) else value for (scm, method), value in means.items()}


def _table(rows: Sequence[Row], expected: Expected, quantity: str) -> str:
    means = _means(rows, quantity)
    present = {scm for scm, _ in means}
    lines = []
    for method in expected.methods:
        if any(method == name for _, name in means):
            values = {scm: means.get((scm, method)) for scm in dict(expected.problems) if scm in present}
            shown = {scm: None if value is None else f"{value:.3g}" for scm, value in values.items()}
            lines.append({"method": method, **shown})
    return markdown_table(lines)


def counterfactual_errors(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str = "Counterfactual error of each model on each known SCM",
    quantity: str = "error (lower is better)",
) -> None:
    """Draw a heat map with its numbers: columns scm, method, error; repeated cells (seeds) are averaged.

    Dark is a small error, on a logarithmic scale; the smallest of each SCM is bold.
    """
    from matplotlib.colors import LogNorm

    require_columns(rows, ("scm", "method", "error"), "counterfactual errors")
    methods, scms = unique(rows, "method"), unique(rows, "scm")
    errors = _error_grid(rows, methods, scms)
    smallest, largest = _colour_range(errors)
    with canvas(path, 1.7 + 0.5 * len(methods), title) as figure:
        axes = figure.subplots()
        drawn = np.ma.masked_invalid(np.maximum(errors, smallest))
        image = axes.imshow(drawn, cmap="viridis", aspect="auto", norm=LogNorm(smallest, largest))
        for line, column in np.ndindex(*errors.shape):
            _error_cell(axes, line, column, errors, image)
        names = [textwrap.fill(scm, max(65 // len(scms), 8), break_long_words=False) for scm in scms]
        axes.set_xticks(range(len(scms)), names, rotation=40 * (len(scms) > CROWDED))
        axes.set_yticks(range(len(methods)), methods)
        axes.set_xlabel("known SCM")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=axes, label=quantity, pad=0.02)
        bar.outline.set_visible(False)  # pyright: ignore
        bar.ax.minorticks_off()


def _error_grid(rows: Sequence[Row], methods: list[str], scms: list[str]) -> np.ndarray:
    """Mean error of each method (line) on each SCM (column); nan where there is no row."""
    for number, row in enumerate(rows):
        error = float(row["error"])
        if not 0 <= error < np.inf:
            raise CounterpointError(f"counterfactual errors row {number} has error {error}; give finite errors >= 0")
    cells = {key: [float(row["error"]) for row in part] for key, part in group_by(rows, "method", "scm").items()}
    return np.array([[np.mean(cells.get((method, scm), [np.nan])) for scm in scms] for method in methods])


def _colour_range(errors: np.ndarray) -> tuple[float, float]:
    """At most four decades below the largest error, so that an exact model does not take all of the colours."""
    largest = float(np.nanmax(errors)) or 1.0
    smallest = max(float(np.nanmin(errors)), largest * 1e-4)
    return (smallest, largest) if smallest < largest else (largest / 2, largest * 2)


def _error_cell(axes: "Axes", line: int, column: int, errors: np.ndarray, image: Any) -> None:
    error = errors[line, column]
    if np.isnan(error):
        axes.text(column, line, "–", ha="center", va="center", color=GREY)
        return
    best = error == np.nanmin(errors[:, column])
    dark = image.norm(max(error, image.norm.vmin)) < 0.6
    number = f"{error:.2g}".removeprefix("0") if errors.shape[1] > CROWDED else f"{error:.3g}"
    colour, weight = "white" if dark else "black", "bold" if best else "normal"
    axes.text(column, line, number or "0", ha="center", va="center", color=colour, fontweight=weight)
