"""The page of the sepsis experiment: what policies are truly worth, what records say of them, and they themselves."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from counterpoint.core.results import Row, markdown_table
from counterpoint.core.statistics import interval, paired_difference
from counterpoint.page.cells import SMALLEST
from reproduction.pages.evaluation_bench import REFUSED, covers

COLUMNS = (
    "seed", "policy", "estimator", "value", "low", "high", "truth", "verdict", "recommended", "effective",
    "unsupported", "agreement", "reason",
)  # fmt: skip
ORDER = ("physician", "D3QN", "CTRL_g", "CTRL_p")
"""What each of the paper's policies should be worth no less than."""
SPECS = {
    **dict.fromkeys(("value", "low", "high", "truth", "width", "mean Q", "of clinicians' actions", "error"), ".2f"),
    **dict.fromkeys(("gain", "fluid given", "fluid recommended", "logged"), ".2f"),
    **dict.fromkeys(("unsupported", "agreement", "covers", "verdict right", "died", "died, share"), ".2f"),
    **dict.fromkeys(("vasopressor given", "vasopressor recommended"), ".3f"),
    **dict.fromkeys(("effective", "patients", "decisions", "transitions", "windows of five", "died"), ".0f"),
}


def sepsis_page(cells: Sequence[Row], command: str, name: str) -> str:
    """Tables with what each of them means; where all patients ended alike, that and no policy."""
    found = [cell for cell in cells if not cell["ending"]]
    known = any(row["truth"] is not None for cell in found for row in cell["judged"])
    title = "# Septic patients: the paper's Figure 3, and what can be believed"
    parts = [title, f"`{command}`", nothing_judged(cells), _cohort(cells)]
    if found:
        parts += [f"![Figure]({name}.png)", *([_truths(found)] if known else []), _judged(found, known)]
        parts += [_self_graded(found), _models(found, known), _groups(found)]
    parts.append(f"{fmean(cell['seconds'] for cell in cells):.0f} s a seed.")
    return "\n\n".join(part for part in parts if part) + "\n"


def nothing_judged(cells: Sequence[Row]) -> str:
    """Why no policy can be judged from the cohort, in one line; empty where one can."""
    endings = [cell["ending"] for cell in cells if cell["ending"]]
    rows = [row for cell in cells for row in cell["judged"] if row["recommended"] and row["policy"] != ORDER[0]]
    if endings or any(row["verdict"] != REFUSED for row in rows):
        return next(iter(endings), "")
    reason, count = Counter(row["reason"] for row in rows).most_common(1)[0]
    return f"No policy can be judged from this cohort, in {count} of {len(rows)} cases first of all because: {reason}"


def policies_of(cells: Iterable[Row]) -> list[str]:
    """Every policy in its order."""
    return list(dict.fromkeys(row["policy"] for cell in cells for row in cell["judged"]))


def recommended(cells: Iterable[Row], policy: str) -> list[Mapping[str, Any]]:
    """The estimate to go by, seed by seed."""
    return [row for cell in cells for row in cell["judged"] if row["policy"] == policy and row["recommended"]]


def truths(cells: Iterable[Row], policy: str) -> list[float]:
    """True values, seed by seed; none where they are not known."""
    return [row["truth"] for row in recommended(cells, policy) if row["truth"] is not None]


def policy_lines(cells: Iterable[Row]) -> list[dict[str, Any]]:
    """A short line for each policy: what records say of it, and what it is truly worth where that is known."""
    found = [cell for cell in cells if not cell["ending"]]
    lines = []
    for policy in policies_of(found):
        rows, known = recommended(found, policy), truths(found, policy)
        said, mean = Counter(row["verdict"] for row in rows), _mean(row["value"] for row in rows)
        line = {"policy": policy, "from records": "?" if mean is None else f"{mean:.2f}"}
        line["verdicts"] = ", ".join(f"{verdict} {count}" for verdict, count in said.most_common())
        lines.append({**line, "truth": f"{fmean(known):.2f}" if known else "not known"})
    return lines


def right(row: Row) -> bool:
    """Whether the verdict was right: the interval it lets pass covers the truth, or it lets none pass."""
    return row["verdict"] == REFUSED or covers(row)


def _cohort(cells: Sequence[Row]) -> str:
    lines = []
    for number, part in enumerate(("training", "validation", "test")):
        own = [cell["sizes"][number] for cell in cells]
        mean = {name: fmean(each[name] for each in own) for name in own[0] if name != "part"}
        lines.append({"part": part, **{k.replace("windows", "windows of five"): v for k, v in mean.items()}})
    said = (
        f"Split 80/10/10 by patient, {len(cells)} seed{'s' * (len(cells) > 1)}; means. The paper: 120,000, 15,000 and"
        " 15,000 transitions, 80,000, 10,000 and 10,000 windows of five states."
    )
    return f"## The cohort\n\n{said}\n\n{markdown_table(lines, formats=SPECS)}"


def _truths(cells: Sequence[Row]) -> str:
    """What policies are worth, and whether the order is the expected one."""
    values = {policy: truths(cells, policy) for policy in policies_of(cells)}
    lines = [{"policy": policy, "true value": _with_interval(own), "lowest": f"{min(own):.2f}",
              "highest": f"{max(own):.2f}"} for policy, own in values.items()]  # fmt: skip
    steps = [pair for pair in pairwise(ORDER) if set(pair) <= values.keys()]
    steps += [(base, f"{base} + search") for base in ORDER if f"{base} + search" in values]
    gains = [_gain(low, high, values) for low, high in steps]
    said = (
        "Mean return of unseen patients, the same for every policy and seed, with the same noise; learners saw the"
        " table alone. Intervals are 95%, over seeds."
    )
    tables = f"{markdown_table(lines)}\n\nPaired by seed:\n\n{markdown_table(gains)}"
    why = "\n".join(_why(cells, *pair) for pair, gain in zip(steps, gains, strict=True) if gain["gain"].startswith("-"))
    return f"## What the policies are truly worth\n\n{said}\n\n{tables}" + (f"\n\n{why}" if why else "")


def _with_interval(own: Sequence[float]) -> str:
    if len(own) < 2:
        return f"{own[0]:.2f}"
    found = interval(np.array(own), np.mean)
    return f"{found.estimate:.2f} ({found.low:.2f} to {found.high:.2f})"


def _gain(low: str, high: str, values: Mapping[str, Sequence[float]]) -> dict[str, str]:
    one, two = values[high], values[low]
    gain = fmean(a - b for a, b in zip(one, two, strict=True))
    if len(one) < 2:
        return {"difference": f"{high} − {low}", "gain": f"{gain:.2f}", "so": "one seed"}
    found = paired_difference(one, two, np.mean)
    so = "more" if found.low > 0 else "less" if found.high < 0 else "not told apart"
    return {"difference": f"{high} − {low}", "gain": f"{found.estimate:.2f} ({found.low:.2f} to {found.high:.2f})",
            "so": so}  # fmt: skip


def _why(cells: Sequence[Row], low: str, high: str) -> str:
    """What is known of a policy that is worth less than it should be."""
    alone = _mean(row["unsupported"] for row in recommended(cells, high))
    graded = _mean(row["own"] for cell in cells for row in cell["mean_q"] if row["policy"] == high)
    said = f"- {high} is worth less than {low}: {alone or 0:.0%} of its actions were given to nobody in a similar state"
    if graded is not None:
        before = _mean(row["own"] for cell in cells for row in cell["mean_q"] if row["policy"] == low) or 0.0
        said += f", while its own Q says {graded:.2f} where that of {low} says {before:.2f}"
    return f"{said}."


def _judged(cells: Sequence[Row], known: bool) -> str:
    lines = [_judged_line(policy, recommended(cells, policy), known) for policy in policies_of(cells)]
    said = (
        "From the records of validation and test patients, whom nothing was learned from; the physician's is what was"
        " logged. `effective` patients' worth of decisions speak of a policy; `unsupported` is the share of its actions"
        " that no other patient was given in a similar state; `agreement` that of clinicians' decisions that are its"
        " own."
    )
    if known:
        rows = [row for policy in policies_of(cells)[1:] for row in recommended(cells, policy)]
        share = fmean(map(right, rows))
        said += (
            f' A verdict is right where the interval it lets pass covers the truth, and where it says "{REFUSED}":'
            f" {share:.0%} of {len(rows)}."
        )
    return f"## What the records say\n\n{said}\n\n{markdown_table(lines, formats=SPECS)}"


def _judged_line(policy: str, rows: Sequence[Row], known: bool) -> dict[str, Any]:
    mean = lambda name: _mean(row[name] for row in rows)
    widths = [row["high"] - row["low"] for row in rows if row["low"] is not None and row["high"] is not None]
    verdicts = Counter(row["verdict"] for row in rows)
    line: dict[str, Any] = {"policy": policy, "by": rows[0]["estimator"], "value": mean("value")}
    line["width"] = _mean(widths)
    if known:
        line |= {"truth": mean("truth"), "covers": fmean(map(covers, rows)), "verdict right": fmean(map(right, rows))}
    line |= {name: mean(name) for name in ("effective", "unsupported", "agreement")}
    return {**line, "verdicts": ", ".join(f"{said} {count}" for said, count in verdicts.most_common())}


def _mean(numbers: Iterable[float | None]) -> float | None:
    there = [number for number in numbers if number is not None]
    return fmean(there) if there else None


def _self_graded(cells: Sequence[Row]) -> str:
    lines = []
    for policy in dict.fromkeys(row["policy"] for cell in cells for row in cell["mean_q"]):
        own = [row for cell in cells for row in cell["mean_q"] if row["policy"] == policy]
        known = truths(cells, policy)
        lines.append({"policy": policy, "mean Q": fmean(row["own"] for row in own),
                      "of clinicians' actions": _mean(row["clinicians"] for row in own),
                      "truth": _mean(known)})  # fmt: skip
    said = (
        "Self-graded: each policy by its own Q, on the test patients' states. This is the paper's comparison; a network"
        " that overrates itself wins it. The physician's is the discounted return that followed each row. `truth` is"
        " the value from the first state on, not discounted."
    )
    return f"## The paper's comparison: mean Q\n\n{said}\n\n{markdown_table(lines, formats=SPECS)}"


def _models(cells: Sequence[Row], known: bool) -> str:
    lines = []
    for number, first in enumerate(cells[0]["models"]):
        own = [cell["models"][number] for cell in cells]
        failed = Counter(name for each in own for name in each["failed"])
        line = {"model of": first["model"], "recipe": first["recipe"]}
        line["factors"] = ", ".join(map(str, sorted({each["factors"] for each in own})))
        line |= {"error": _mean(each["error"] for each in own)} if known else {}
        line["known of patients"] = _known(own)
        line["trust"] = ", ".join(f"{said} {count}" for said, count in Counter(x["trust"] for x in own).most_common())
        lines.append({**line, "failed checks": ", ".join(f"{name} {count}" for name, count in failed.most_common())})
    said = "Checked on held-out patients."
    if known:
        said += (
            " `error` is that of one-step counterfactuals of held-out patients, 1 for copying what happened; `known of"
            " patients` is the share of the variance of their true responses that their factors explain: no policy can"
            " be personal by more than that."
        )
    return f"## The models\n\n{said}\n\n{markdown_table(lines, formats=SPECS)}"


def _known(models: Sequence[Row]) -> str:
    """How much of the patients' true responses their factors tell."""
    names = models[0]["known"]
    return ", ".join(f"{name} {fmean(each['known'][name] for each in models):.0%}" for name in names)


def _groups(cells: Sequence[Row]) -> str:
    lines = [{"policy": row["policy"], "group": row["group"], "patients": row["patients"], "died, share": row["died"],
              "fluid given": row["fluid_given"], "fluid recommended": row["fluid_recommended"],
              "vasopressor given": row["vasopressor_given"], "vasopressor recommended": row["vasopressor_recommended"],
              "logged": row["logged"], "value": row["value"], "low": row["low"], "high": row["high"]}
             for row in cells[0]["groups"] if row["patients"] >= SMALLEST]  # fmt: skip
    if not lines:
        return ""
    said = (
        f"Of seed {cells[0]['seed']}'s held-out patients: mean doses in mL and µg/kg/min, what was earned"
        " and what the group's policy is judged to earn (groups of 20 and more)."
        f" Groups of fewer than {SMALLEST} are not shown."
    )
    return f"## Groups\n\n{said}\n\n{markdown_table(lines, formats=SPECS)}"
