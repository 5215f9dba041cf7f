"""Figure of a model's checks: calibration, noise against the action, support, and agreement of counterfactuals."""

import os
import textwrap
from typing import TYPE_CHECKING

import numpy as np

from counterpoint.checks.figure_data import CheckFigureData
from counterpoint.checks.findings import CheckReport
from counterpoint.page.style import BLACK, BLUE, GREEN, GREY, ORANGE, PALETTE, VERMILLION, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"yes": GREEN, "with care": ORANGE, "no": VERMILLION}
MAX_COLUMNS = 8
"""State columns in the calibration panel, at most."""


def check_figure(report: CheckReport, data: CheckFigureData, path: str | os.PathLike[str]) -> None:
    """Draw a check report as a PNG at `path`."""
    with canvas(path, 9.6, f"Can this model's counterfactuals be trusted?  {report.trust.capitalize()}") as figure:
        (top, bottom) = figure.subplots(2, 2, gridspec_kw={"hspace": 0.08})
        _calibration(top[0], data)
        _title(top[0], report, "Predicted and observed spread", "calibration")
        _noise(top[1], data)
        _title(top[1], report, "Noise and action", "independent noise")
        _support(bottom[0], data)
        _title(bottom[0], report, "Support of alternative actions", "support")
        _agreement(bottom[1], data)
        _title(bottom[1], report, "Agreement of counterfactuals", "agreement", "own noise")
        lines = report.verdict().splitlines()
        text = "\n".join(textwrap.fill(line, 112, subsequent_indent="   ") for line in lines)
        figure.supxlabel(text, x=0.01, ha="left", fontsize=11, color=COLOURS[report.trust], linespacing=1.4)


def _calibration(axes: "Axes", data: CheckFigureData) -> None:
    levels = np.linspace(0, 1, 101)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.2)
    for column, name in enumerate(data.noise_names[:MAX_COLUMNS]):
        quantiles = np.sort(data.quantiles[..., column].numpy().ravel())
        observed = np.searchsorted(quantiles, levels) / len(quantiles)
        axes.plot(levels, observed, color=PALETTE[column % len(PALETTE)], linewidth=1.8, label=name)
    axes.set(xlabel="predicted quantile", ylabel="share of outcomes below it")
    axes.legend(fontsize=9.5, loc="upper left", ncols=1 + (len(data.noise_names) > 4))


def _noise(axes: "Axes", data: CheckFigureData) -> None:
    """Plot the noise whose mean or size is most correlated with the first action column."""
    action, noises = data.action.numpy(), data.noise.numpy()
    column = int(np.argmax([_largest_correlation(action, noise) for noise in noises.T]))
    noise = noises[:, column]
    axes.scatter(action, noise, s=7, color=BLUE, alpha=0.35, linewidths=0)
    for level in (0.1, 0.5, 0.9):
        centres, values = _running_quantile(action, noise, level)
        axes.plot(centres, values, color=BLACK, linewidth=1.8 if level == 0.5 else 1.1)
    axes.set(xlabel="action taken", ylabel=f"noise of {data.noise_names[column]}")
    axes.set_ylim(noise.min() - 0.9, None)
    note = "lines: 10, 50 and 90% of the noise; level if independent"
    axes.annotate(note, (0.02, 0.01), xycoords="axes fraction", fontsize=9.5, color=GREY)


def _support(axes: "Axes", data: CheckFigureData) -> None:
    taken, alternative = data.distance_taken.numpy(), data.distance_alternative.numpy()
    longest = float(np.quantile(np.r_[taken, alternative], 0.995))
    edges = np.linspace(0, max(longest, 1.5 * data.support_limit, 1e-3), 41)
    for values, colour, label in ((taken, GREY, "actions taken"), (alternative, BLUE, "alternative actions")):
        axes.hist(
            values.clip(max=edges[-1]),
            list(edges),
            weights=np.full(len(values), 1 / len(values)),
            histtype="step",
            color=colour,
            linewidth=1.8,
            label=label,
        )
    axes.axvline(data.support_limit, color=VERMILLION, linestyle="--", linewidth=1.2, label="edge of the support")
    axes.set(xlabel="distance to the nearest action in similar states (sd)", ylabel="share of rows", yscale="log")
    axes.legend(fontsize=9.5, loc="upper right")


def _agreement(axes: "Axes", data: CheckFigureData) -> None:
    """Plot the distribution of differences between members, and to a model with rotated noises."""
    curves = [(data.member_difference, BLUE, "between members")]
    if data.rotation_difference is not None:
        curves.append((data.rotation_difference, ORANGE, "with rotated noises"))
    for differences, colour, label in curves:
        ordered = np.sort(differences.numpy())
        axes.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), color=colour, linewidth=2, label=label)
    axes.set(xlabel="difference of counterfactuals, in sds of the effect", ylabel="share of rows below", xlim=(0, None))
    if axes.get_xlim()[1] > 1:
        axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1.2, label="as large as the effect")
    axes.legend(fontsize=9.5, loc="lower right")


def _title(axes: "Axes", report: CheckReport, title: str, *checks: str) -> None:
    passed = all(report[name].passed for name in checks)
    colour = BLACK if passed else VERMILLION
    axes.set_title(f"{title}: {'passed' if passed else 'failed'}", loc="left", pad=16, color=colour)


def _running_quantile(x: np.ndarray, y: np.ndarray, level: float, bins: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Quantile of y in groups of equal size along x, or for each distinct x where there are few."""
    distinct = np.unique(x)
    if len(distinct) <= bins:
        centres, groups = distinct, [y[x == value] for value in distinct]
    else:
        centres = np.array([group.mean() for group in np.array_split(np.sort(x), bins)])
        groups = np.array_split(y[np.argsort(x)], bins)
    return centres, np.array([np.quantile(group, level) for group in groups])


def _largest_correlation(action: np.ndarray, noise: np.ndarray) -> float:
    """Largest absolute correlation of the action with the noise or its absolute value."""
    if action.std() == 0:
        return 0.0
    return max(abs(np.corrcoef(action, y)[0, 1]) if y.std() > 0 else 0.0 for y in (noise, np.abs(noise)))
