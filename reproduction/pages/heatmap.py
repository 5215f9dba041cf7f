"""The heat map of counterfactual errors: how far each model is from each known SCM."""

import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.core.results import Row, require_columns
from counterpoint.page.style import GREY, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CROWDED = 6
"""More SCMs than this leave room for two digits of an error and for slanted names alone."""


def counterfactual_errors(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str = "Counterfactual error of each model on each known SCM",
    quantity: str = "error (lower is better)",
) -> None:
    """A heat map with its numbers: columns scm, method, error; repeated cells (seeds) are averaged.

    Dark is a small error, on a logarithmic scale; the smallest of each SCM is bold.
    """
    from matplotlib.colors import LogNorm

    require_columns(rows, ("scm", "method", "error"), "counterfactual errors")
    methods, scms = (list(dict.fromkeys(row[name] for row in rows)) for name in ("method", "scm"))
    errors = _error_grid(rows, methods, scms)
    with canvas(path, 1.7 + 0.5 * len(methods), title) as figure:
        axes = figure.subplots()
        image = axes.imshow(_clipped(errors), cmap="viridis", aspect="auto", norm=LogNorm(*_colour_range(errors)))
        for line, column in np.ndindex(*errors.shape):
            _error_cell(axes, line, column, errors, image)
        crowded = len(scms) > CROWDED
        axes.set_xticks(range(len(scms)), [_wrapped(scm, 65 // len(scms)) for scm in scms], rotation=40 * crowded)
        axes.set_yticks(range(len(methods)), methods)
        axes.set_xlabel("known SCM")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=axes, label=quantity, pad=0.02)
        bar.outline.set_visible(False)  # pyright: ignore
        bar.ax.minorticks_off()


def _error_grid(rows: Sequence[Row], methods: list[str], scms: list[str]) -> np.ndarray:
    """Mean error of each method (line) on each SCM (column); nan where there is no row."""
    cells: dict[tuple[str, str], list[float]] = {}
    for number, row in enumerate(rows):
        error = float(row["error"])
        if not 0 <= error < np.inf:
            raise CounterpointError(f"counterfactual errors row {number} has error {error}; give finite errors >= 0")
        cells.setdefault((row["method"], row["scm"]), []).append(error)
    return np.array([[np.mean(cells.get((method, scm), [np.nan])) for scm in scms] for method in methods])


def _colour_range(errors: np.ndarray) -> tuple[float, float]:
    """At most four decades below the largest error, so that an exact model does not take all of the colours."""
    largest = float(np.nanmax(errors)) or 1.0
    smallest = max(float(np.nanmin(errors)), largest * 1e-4)
    return (smallest, largest) if smallest < largest else (largest / 2, largest * 2)


def _clipped(errors: np.ndarray) -> np.ndarray:
    return np.ma.masked_invalid(np.maximum(errors, _colour_range(errors)[0]))


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, max(width, 8), break_long_words=False)


def _error_cell(axes: "Axes", line: int, column: int, errors: np.ndarray, image: Any) -> None:
    error = errors[line, column]
    if np.isnan(error):
        axes.text(column, line, "–", ha="center", va="center", color=GREY)
        return
    best = error == np.nanmin(errors[:, column])
    dark = image.norm(max(error, image.norm.vmin)) < 0.6
    weight = "bold" if best else "normal"
    number = f"{error:.2g}".removeprefix("0") if errors.shape[1] > CROWDED else f"{error:.3g}"
    axes.text(
        column, line, number or "0", ha="center", va="center", color="white" if dark else "black", fontweight=weight
    )
