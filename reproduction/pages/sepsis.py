"""Page of the sepsis experiment: true values of policies, their off-policy evaluations, and what the policies do.

A cell is the result of one seed: `ending` (why no policy can be evaluated, or empty), `sizes` of the split, `estimates`
(the rows of the table), `mean_q`, `counts`, `mortality`, `doses`, `groups`, `models` and `seconds`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from counterpoint.core.statistics import interval
from counterpoint.core.tables import Row, markdown_table
from counterpoint.page.cells import SMALLEST
from reproduction.pages.evaluation import REFUSED, covers
from reproduction.pages.tables import column_mean, formats, from_to, markdown_page, mean, select, unique
from reproduction.statistics import paired_difference

COLUMNS = (
    "seed", "policy", "estimator", "value", "low", "high", "truth", "verdict", "recommended", "effective",
    "unsupported", "agreement", "reason",
)  # fmt: skip
ORDER = ("physician", "D3QN", "CTRL_g", "CTRL_p")
"""The paper's policies; each should have a mean return no lower than the one before."""
FORMATS = {
    **formats(f2=("value", "low", "high", "truth", "width", "mean Q", "of clinicians' actions", "error", "logged")),
    **formats(f2=("gain", "fluid given", "fluid recommended", "unsupported", "agreement", "covers", "verdict right")),
    **formats(f2=["died, share"], f3=("vasopressor given", "vasopressor recommended")),
    **formats(f0=("effective", "patients", "decisions", "transitions", "windows of five", "died")),
}


def sepsis_page(cells: Sequence[Row], command: str, name: str) -> str:
    """Return the Markdown page; if all patients ended alike, only the reason and the cohort."""
    evaluated = [cell for cell in cells if not cell["ending"]]
    blocks = [
        "# Septic patients: the paper's Figure 3, true values and off-policy evaluation",
        f"`{command}`",
        why_none_is_evaluated(cells),
        _cohort(cells),
    ]
    if evaluated:
        has_truth = any(row["truth"] is not None for row in rows_of(evaluated, "estimates"))
        blocks += [
            f"![Figure]({name}.png)",
            _true_values(evaluated) if has_truth else "",
            _evaluations(evaluated, has_truth),
            _mean_q(evaluated),
            _models(evaluated, has_truth),
            _groups(evaluated[0]),
        ]
    return markdown_page(*blocks, f"{fmean(cell['seconds'] for cell in cells):.0f} s a seed.")


def why_none_is_evaluated(cells: Sequence[Row]) -> str:
    """Return one line saying why no policy can be evaluated from the cohort; empty if one can."""
    endings = [cell["ending"] for cell in cells if cell["ending"]]
    rows = [row for row in rows_of(cells, "estimates") if row["recommended"] and row["policy"] != ORDER[0]]
    if endings or any(row["verdict"] != REFUSED for row in rows):
        return next(iter(endings), "")
    reason, count = Counter(row["reason"] for row in rows).most_common(1)[0]
    return f"No policy can be evaluated from this cohort. The first reason in {count} of {len(rows)} cases: {reason}"


def rows_of(cells: Iterable[Row], part: str) -> list[Row]:
    """Return one part (`estimates`, `mean_q`, `doses`, …) of all cells."""
    return [row for cell in cells for row in cell[part]]


def policies_of(cells: Iterable[Row]) -> list[str]:
    """Return the names of the policies in their order."""
    return unique(rows_of(cells, "estimates"), "policy")


def recommended(cells: Iterable[Row], policy: str) -> list[Row]:
    """Return the recommended estimate of a policy, seed by seed."""
    return select(rows_of(cells, "estimates"), policy=policy, recommended=True)


def true_values(cells: Iterable[Row], policy: str) -> list[float]:
    """Return the true values of a policy, seed by seed; empty where they are unknown."""
    return [row["truth"] for row in recommended(cells, policy) if row["truth"] is not None]


def policy_lines(cells: Iterable[Row]) -> list[dict[str, Any]]:
    """Return a short line for each policy: its estimated value, verdicts and true value."""
    evaluated = [cell for cell in cells if not cell["ending"]]
    lines = []
    for policy in policies_of(evaluated):
        rows = recommended(evaluated, policy)
        value, truth = column_mean(rows, "value"), column_mean(rows, "truth")
        line = {"policy": policy, "estimate": "?" if value is None else f"{value:.2f}"}
        line["verdicts"] = counted(row["verdict"] for row in rows)
        lines.append({**line, "truth": "unknown" if truth is None else f"{truth:.2f}"})
    return lines


def counted(names: Iterable[str]) -> str:
    """List names with their numbers of occurrences, the most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in Counter(names).most_common())


def right(row: Row) -> bool:
    """Return whether the verdict refuses, or accepts an interval that covers the truth."""
    return row["verdict"] == REFUSED or covers(row)


def _cohort(cells: Sequence[Row]) -> str:
    lines = []
    for number, part in enumerate(("training", "validation", "test")):
        sizes = [cell["sizes"][number] for cell in cells]
        means = {name: column_mean(sizes, name) for name in sizes[0] if name != "part"}
        lines.append({"part": part, **{name.replace("windows", "windows of five"): n for name, n in means.items()}})
    text = (
        f"Split 80/10/10 by patient, {len(cells)} seed{'s' * (len(cells) > 1)}; means. The paper: 120,000, 15,000 and"
        " 15,000 transitions, 80,000, 10,000 and 10,000 windows of five states."
    )
    return _section("The cohort", text, lines)


def _section(title: str, text: str, lines: Sequence[Row]) -> str:
    return f"## {title}\n\n{text}\n\n{markdown_table(lines, formats=FORMATS)}"


def _true_values(cells: Sequence[Row]) -> str:
    """True values of the policies, and whether their order is the expected one."""
    values = {policy: true_values(cells, policy) for policy in policies_of(cells)}
    lines = [
        {"policy": policy, "true value": _with_interval(truth), "lowest": f"{min(truth):.2f}",
         "highest": f"{max(truth):.2f}"}
        for policy, truth in values.items()
    ]  # fmt: skip
    steps = [pair for pair in pairwise(ORDER) if set(pair) <= values.keys()]
    steps += [(base, f"{base} + search") for base in ORDER if f"{base} + search" in values]
    gains = [_gain(low, high, values) for low, high in steps]
    losses = [pair for pair, gain in zip(steps, gains, strict=True) if gain["gain"].startswith("-")]
    text = (
        "Mean return of unseen patients, the same for every policy and seed, with the same noise; learners saw only"
        " the table. Intervals are 95%, over seeds."
    )
    reasons = "\n".join(_reason_of_loss(cells, *pair) for pair in losses)
    paired = f"Paired by seed:\n\n{markdown_table(gains)}"
    blocks = [_section("True values of the policies", text, lines), paired, reasons]
    return "\n\n".join(block for block in blocks if block)


def _with_interval(values: Sequence[float]) -> str:
    return from_to(interval(np.array(values), np.mean)) if len(values) > 1 else f"{values[0]:.2f}"


def _gain(low: str, high: str, values: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """The paired difference of the policy `high` from the policy `low`."""
    name = f"{high} − {low}"
    if len(values[high]) < 2:
        return {"difference": name, "gain": f"{values[high][0] - values[low][0]:.2f}", "conclusion": "one seed"}
    gain = paired_difference(values[high], values[low], np.mean)
    conclusion = "more" if gain.low > 0 else "less" if gain.high < 0 else "no clear difference"
    return {"difference": name, "gain": from_to(gain), "conclusion": conclusion}


def _reason_of_loss(cells: Sequence[Row], low: str, high: str) -> str:
    """Support and self-assessment of a policy whose mean return is lower than it should be."""
    graded = {name: column_mean(select(rows_of(cells, "mean_q"), policy=name), "own") for name in (low, high)}
    unsupported = column_mean(recommended(cells, high), "unsupported") or 0
    text = f"- {high} has a lower mean return than {low}: {unsupported:.0%} of its actions have no similar record"
    if graded[high] is not None:
        text += f", while its own mean Q is {graded[high]:.2f} and that of {low} is {graded[low] or 0.0:.2f}"
    return f"{text}."


def _evaluations(cells: Sequence[Row], has_truth: bool) -> str:
    lines = [_evaluation(policy, recommended(cells, policy), has_truth) for policy in policies_of(cells)]
    text = (
        "From the records of validation and test patients, which no learner saw; the physician's value is the mean"
        " logged return. `effective` is the number of patients whose decisions carry weight for a policy;"
        " `unsupported` is the share of its actions that no other patient was given in a similar state; `agreement`"
        " is the share of clinicians' decisions that equal its own."
    )
    if has_truth:
        rows = [row for policy in policies_of(cells)[1:] for row in recommended(cells, policy)]
        text += (
            f' A verdict is right if it accepts an interval that covers the truth, or is "{REFUSED}":'
            f" {fmean(map(right, rows)):.0%} of {len(rows)}."
        )
    return _section("Off-policy evaluation", text, lines)


def _evaluation(policy: str, rows: Sequence[Row], has_truth: bool) -> dict[str, Any]:
    widths = [row["high"] - row["low"] for row in rows if row["low"] is not None and row["high"] is not None]
    line = {"policy": policy, "estimator": rows[0]["estimator"], "value": column_mean(rows, "value")}
    line["width"] = mean(widths)
    if has_truth:
        line["truth"] = column_mean(rows, "truth")
        line["covers"] = fmean(map(covers, rows))
        line["verdict right"] = fmean(map(right, rows))
    line |= {name: column_mean(rows, name) for name in ("effective", "unsupported", "agreement")}
    verdicts = Counter(row["verdict"] for row in rows)
    return {**line, "verdicts": ", ".join(f"{verdict} {count}" for verdict, count in verdicts.items())}


def _mean_q(cells: Sequence[Row]) -> str:
    rows = rows_of(cells, "mean_q")
    lines = []
    for policy in unique(rows, "policy"):
        part = select(rows, policy=policy)
        clinicians = column_mean(part, "clinicians")
        truth = mean(true_values(cells, policy))
        lines.append({"policy": policy, "mean Q": column_mean(part, "own"), "of clinicians' actions": clinicians,
                      "truth": truth})  # fmt: skip
    text = (
        "Each policy by its own Q, on the test patients' states. This is the paper's comparison; a network that"
        " overestimates its own values wins it. The physician's is the discounted return that followed each row."
        " `truth` is the undiscounted value from the first state on."
    )
    return _section("The paper's comparison: mean Q", text, lines)


def _models(cells: Sequence[Row], has_truth: bool) -> str:
    lines = []
    for number, first in enumerate(cells[0]["models"]):
        models = [cell["models"][number] for cell in cells]
        line = {"model of": first["model"], "recipe": first["recipe"]}
        line["factors"] = ", ".join(map(str, sorted(set(unique(models, "factors")))))
        if has_truth:
            line["error"] = column_mean(models, "error")
        explained = {name: fmean(model["explained"][name] for model in models) for name in first["explained"]}
        line["explained variance"] = ", ".join(f"{name} {share:.0%}" for name, share in explained.items())
        line["trust"] = counted(model["trust"] for model in models)
        line["failed checks"] = counted(check for model in models for check in model["failed"])
        lines.append(line)
    text = "Checked on held-out patients."
    if has_truth:
        text += (
            " `error` is that of one-step counterfactuals of held-out patients, 1 for copying what happened;"
            " `explained variance` is the share of the variance of their true responses that their factors explain:"
            " an upper bound on how far a policy can be personalised."
        )
    return _section("The models", text, lines)


def _groups(cell: Row) -> str:
    lines = [
        {"policy": row["policy"], "group": row["group"], "patients": row["patients"], "died, share": row["died"],
         "fluid given": row["fluid_given"], "fluid recommended": row["fluid_recommended"],
         "vasopressor given": row["vasopressor_given"], "vasopressor recommended": row["vasopressor_recommended"],
         "logged": row["logged"], "value": row["value"], "low": row["low"], "high": row["high"]}
        for row in cell["groups"] if row["patients"] >= SMALLEST
    ]  # fmt: skip
    text = (
        f"Held-out patients of seed {cell['seed']}: mean doses in mL and µg/kg/min, the mean logged return and the"
        " estimated value of the group's policy (groups of 20 and more)."
        f" Groups of fewer than {SMALLEST} are not shown."
    )
    return _section("Groups", text, lines) if lines else ""
