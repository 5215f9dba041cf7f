"""The figure of a model's checks: calibration, noise against the action, support, and how far answers are open."""

import os
import textwrap
from typing import TYPE_CHECKING

import numpy as np

from counterpoint.checks.ambiguity import turned_noise
from counterpoint.checks.assumptions import Progress, quantiles, report, silent
from counterpoint.checks.findings import CheckReport, Sample
from counterpoint.checks.support import support
from counterpoint.page.style import BLACK, BLUE, GREEN, GREY, ORANGE, PALETTE, VERMILLION, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"yes": GREEN, "with care": ORANGE, "no": VERMILLION}
SHOWN = 8
"""State columns that are drawn, at most."""


def check_figure(sample: Sample, path: str | os.PathLike[str], progress: Progress = silent) -> CheckReport:
    """Run the checks on `sample` (from `scm.findings.draw`), draw them into a PNG at `path`, and return the report."""
    result = report(sample, progress)
    with canvas(path, 9.6, f"Can this model's counterfactuals be trusted?  {result.trust.capitalize()}") as figure:
        (top, bottom) = figure.subplots(2, 2, gridspec_kw={"hspace": 0.08})
        _calibration(top[0], sample, result)
        _noise(top[1], sample, result)
        _support(bottom[0], sample, result)
        _agreement(bottom[1], sample, result)
        figure.supxlabel(_words(result), x=0.01, ha="left", fontsize=11, color=COLOURS[result.trust], linespacing=1.4)
    return result


def _calibration(axes: "Axes", sample: Sample, result: CheckReport) -> None:
    levels = np.linspace(0, 1, 101)
    table = quantiles(sample).cpu().numpy()
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.2)
    for column in range(min(table.shape[-1], SHOWN)):
        seen = np.searchsorted(np.sort(table[..., column].ravel()), levels) / table[..., column].size
        axes.plot(levels, seen, color=PALETTE[column % len(PALETTE)], linewidth=1.8, label=_name(sample, column))
    axes.set(xlabel="quantile the model foresaw", ylabel="share of outcomes below it")
    axes.legend(fontsize=9.5, loc="upper left", ncols=1 + (table.shape[-1] > 4))
    _title(axes, result, "calibration", "Foreseen and seen spread")


def _noise(axes: "Axes", sample: Sample, result: CheckReport) -> None:
    """The noise that goes most with the action's first column, in mean or in size."""
    action = sample.rows.action[:, 0].cpu().numpy()
    noise = sample.noise.mean(1).cpu().numpy()
    column = int(np.argmax([_moves(action, u) for u in noise.T]))
    axes.scatter(action, noise[:, column], s=7, color=BLUE, alpha=0.35, linewidths=0)
    for level in (0.1, 0.5, 0.9):
        centres, values = _running_quantile(action, noise[:, column], level)
        axes.plot(centres, values, color=BLACK, linewidth=1.8 if level == 0.5 else 1.1)
    axes.set(xlabel="action taken", ylabel=f"noise of {_name(sample, column)}")
    axes.set_ylim(noise[:, column].min() - 0.9, None)
    axes.annotate("lines: 10, 50 and 90% of the noise; level if independent", (0.02, 0.01), xycoords="axes fraction",
                  fontsize=9.5, color=GREY)  # fmt: skip
    _title(axes, result, "independent noise", "Noise and action")


def _support(axes: "Axes", sample: Sample, result: CheckReport) -> None:
    scores = support(sample.rows, sample.alternative, sample.logged)
    taken, alternative = scores.taken.cpu().numpy(), scores.alternative.cpu().numpy()
    edges = np.linspace(0, max(float(np.quantile(np.r_[taken, alternative], 0.995)), 1.5 * scores.limit, 1e-3), 41)
    for values, colour, label in ((taken, GREY, "actions taken"), (alternative, BLUE, "alternative actions")):
        weights = np.full(len(values), 1 / len(values))
        axes.hist(
            values.clip(max=edges[-1]),
            list(edges),
            weights=weights,
            histtype="step",
            color=colour,
            linewidth=1.8,
            label=label,
        )
    axes.axvline(scores.limit, color=VERMILLION, linestyle="--", linewidth=1.2, label="edge of the support")
    axes.set(xlabel="distance to the nearest action in similar states (sd)", ylabel="share of rows", yscale="log")
    axes.legend(fontsize=9.5, loc="upper right")
    _title(axes, result, "support", "Alternatives tried before")


def _agreement(axes: "Axes", sample: Sample, result: CheckReport) -> None:
    """How far members, and an SCM of the same law whose noises turn, are from the answer, in sds of the effect."""
    own = sample.member_counterfactuals()
    scale = sample.effect_scale(own.mean(0))
    members = ((own - own.mean(0)) / scale).square().mean((0, 2)).sqrt().cpu().numpy()
    parts = [(members, BLUE, "between members")]
    if own.shape[-1] > 1 and sample.noise.shape[-1] > 1:
        turned = sample.predict(sample.alternative, turned_noise(sample))
        apart = ((own - turned) / sample.effect_scale(turned.mean(0))).square().mean((0, 2)).sqrt()
        parts.append((apart.cpu().numpy(), ORANGE, "if noises changed places"))
    for values, colour, label in parts:
        ordered = np.sort(values)
        axes.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), color=colour, linewidth=2, label=label)
    axes.set(xlabel="difference of answers, in sds of the effect", ylabel="share of rows below", xlim=(0, None))
    if axes.get_xlim()[1] > 1:
        axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1.2, label="as large as the effect")
    axes.legend(fontsize=9.5, loc="lower right")
    _title(axes, result, "agreement", "Agreement of answers", ("agreement", "own noise"))


def _title(axes: "Axes", result: CheckReport, name: str, title: str, names: tuple[str, ...] = ()) -> None:
    passed = all(result[each].passed for each in names or (name,))
    axes.set_title(
        f"{title}: {'passed' if passed else 'failed'}", loc="left", pad=16, color=BLACK if passed else VERMILLION
    )


def _words(result: CheckReport) -> str:
    return "\n".join(textwrap.fill(line, 112, subsequent_indent="   ") for line in result.verdict().splitlines())


def _running_quantile(x: np.ndarray, y: np.ndarray, level: float, bins: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """The quantile of y in groups of equal size along x; each distinct x is a group where there are few."""
    distinct = np.unique(x)
    few = len(distinct) <= bins
    groups = [y[x == v] for v in distinct] if few else np.array_split(y[np.argsort(x)], bins)
    centres = distinct if few else np.array([g.mean() for g in np.array_split(np.sort(x), bins)])
    return centres, np.array([np.quantile(group, level) for group in groups])


def _moves(action: np.ndarray, noise: np.ndarray) -> float:
    if action.std() == 0:
        return 0.0
    return max(abs(np.corrcoef(action, y)[0, 1]) if y.std() > 0 else 0.0 for y in (noise, np.abs(noise)))


def _name(sample: Sample, column: int) -> str:
    return sample.model.state_names[sample.model.mechanism.noise_columns[column]]
