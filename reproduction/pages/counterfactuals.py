"""The page of the benchmark of counterfactuals: errors, what abduction buys, how `auto` chooses, what is not asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isnan
from statistics import fmean

from counterpoint.core.results import Row, markdown_table, require_columns

COLUMNS = ("scm", "n", "seed", "method", "error", "fresh_error", "round_trip", "recipe", "commit")
NEAR = 1.1
"""An error of no more than this many times the best counts as near it."""
PREFACE = (
    "The error of (s, a, s') problems is normalised: 0 is the truth and 1 is as good as copying the factual outcome."
    " That of the causal sets (triangle-nlin, simpson-symprod) is the mean distance between answer and truth under"
    " do(x_i = v), v the 25th, 50th and 75th percentile. Means over seeds."
)


@dataclass(frozen=True)
class Expected:
    """What a whole table holds."""

    problems: tuple[tuple[str, int], ...]
    """(scm, rows)."""
    methods: tuple[str, ...]
    seeds: int
    gaps: Mapping[tuple[str, str], str]
    """(method, scm) that cannot be asked, and why."""
    choosing: Mapping[str, tuple[str, ...]]
    """Methods that choose among others, and these."""
    compared: tuple[str, ...]
    """The SCMs over which the choice is judged."""


def counterfactuals_page(rows: Sequence[Row], expected: Expected, command: str) -> str:
    """Tables for each number of rows, the choice of `auto`, and the coverage."""
    require_columns(rows, COLUMNS, "counterfactual rows")
    text = ["# Counterfactual error against the truth\n", f"{PREFACE} By `{command}`.\n", *_coverage(rows, expected)]
    for n in sorted({row["n"] for row in rows}):
        some = [row for row in rows if row["n"] == n]
        text += [f"\n## {n} rows\n", _table(some, expected), *_choices(some, expected)]
        text += ["\nFresh noise on the same models; the difference is what abduction buys:\n"]
        text += [_table(some, expected, "fresh_error")]
        text += ["\nProcessor seconds of a fit, the mean over the stack it was learned in:\n"]
        text += [_table(some, expected, "seconds")]
    return "\n".join(text) + "\n"


def coverage(rows: Sequence[Row], expected: Expected) -> tuple[int, int]:
    """Cells (scm, rows, method, seed) that have a finite error, and those that a whole table has."""
    asked = {(s, n, m) for (s, n), m in product(expected.problems, expected.methods) if (m, s) not in expected.gaps}
    filled = {(row["scm"], row["n"], row["method"], row["seed"]) for row in rows if not isnan(row["error"])}
    return len([cell for cell in filled if cell[:3] in asked]), len(asked) * expected.seeds


def near_the_best(rows: Sequence[Row], method: str, candidates: Sequence[str], scms: Sequence[str]) -> dict[str, float]:
    """On each SCM that all were asked about, the method's mean error over the smallest of its candidates'."""
    found = {}
    for scm in scms:
        errors = {m: _mean(rows, scm, m, "error") for m in (method, *candidates)}
        known = {m: error for m, error in errors.items() if error is not None}
        if known.keys() == errors.keys() and candidates:
            found[scm] = known[method] / min(known[m] for m in candidates)
    return found


def _coverage(rows: Sequence[Row], expected: Expected) -> list[str]:
    filled, cells = coverage(rows, expected)
    text = [f"{filled} of {cells} cells (scm × rows × method × seed) are filled, {100 * filled / cells:.4g}%."]
    for why in dict.fromkeys(expected.gaps.values()):
        places = [place for place, reason in expected.gaps.items() if reason == why]
        methods, scms = (tuple(dict.fromkeys(names)) for names in zip(*places, strict=True))
        text.append(f"\nNot asked about {', '.join(scms)}, because {why}: {'; '.join(methods)}.")
    return text


def _choices(rows: Sequence[Row], expected: Expected) -> list[str]:
    text = []
    for method, candidates in expected.choosing.items():
        ratios = near_the_best(rows, method, candidates, expected.compared)
        if ratios:
            near = [scm for scm, ratio in ratios.items() if ratio <= NEAR]
            far = [f"{scm} ({ratio:.2f} times)" for scm, ratio in ratios.items() if ratio > NEAR]
            text.append(
                f"\n`{method}` is within 10% of the best of its candidates ({'; '.join(candidates)}) on {len(near)} of"
                f" {len(ratios)}" + (f"; not on {', '.join(far)}." if far else ".")
            )
    return text


def _mean(rows: Sequence[Row], scm: str, method: str, quantity: str) -> float | None:
    """Over the seeds; none where nothing is known."""
    values = [float(row[quantity]) for row in rows if row["scm"] == scm and row["method"] == method]
    mean = fmean(values) if values else float("nan")
    return None if isnan(mean) else mean


def _table(rows: Sequence[Row], expected: Expected, quantity: str = "error") -> str:
    known = {(row["scm"], row["method"]): _mean(rows, row["scm"], row["method"], quantity) for row in rows}
    scms = [scm for scm in dict(expected.problems) if any(scm == own for own, _ in known)]
    lines = [
        {"method": method, **{scm: _shown(known.get((scm, method))) for scm in scms}}
        for method in expected.methods
        if any(method == own for _, own in known)
    ]
    return markdown_table(lines)


def _shown(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"
