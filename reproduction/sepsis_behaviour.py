"""What policies for septic patients do: doses, their own Q, deaths by agreement, and their estimates as rows."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.data.transitions import Transitions
from counterpoint.ope.problem import factors_in_rows, target
from counterpoint.ope.result import Evaluation
from counterpoint.policies.base import Policy
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.policies.q import QPolicy
from reproduction.experiment import Rows
from reproduction.sepsis_arms import PHYSICIAN, Fitted, rows_for
from reproduction.sepsis_cohort import Split, dead_later, died

BINS = 10
"""Parts of equal size that rows are sorted into by their expected return."""


def describe_policies(split: Split, fitted: Fitted, evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Return actions and mean Q on the test patients, and deaths and groups among all held-out patients."""
    test, levels = split.test, dose_levels(split.test)
    counts = {PHYSICIAN: action_counts(test.action_index, levels)}
    logged = float(discounted(test, fitted.task.discount).mean())
    mean_q: Rows = [{"policy": PHYSICIAN, "own": logged, "clinicians": None}]
    mortality, doses, groups = [], [], []
    for name, policy in fitted.policies.items():
        parts = rows_for(name, split)
        tested, rows = parts.test, parts.held_out
        action = chosen(policy, rows)
        counts[name] = action_counts(chosen(policy, tested), levels)
        doses += [{"policy": name, **line} for line in dose_differences(action, rows)]
        values = q_values(policy, tested)
        held_out_values = q_values(policy, rows)
        if values is not None and held_out_values is not None:
            mean_q.append({"policy": name, **mean_values(values, test.action_index)})
            mortality += [{"policy": name, **line} for line in mortality_by_return(held_out_values, rows)]
        if isinstance(policy, PersonalPolicy) and policy.groups is not None:
            groups += [{"policy": name, **line} for line in groups_of(policy, rows, action, evaluations[name])]
    return {"mean_q": mean_q, "counts": counts, "mortality": mortality, "doses": doses, "groups": groups}


def chosen(policy: Policy, rows: Transitions) -> Int[Tensor, " n"]:
    """Return the index of the policy's action in every row, given the patient's record until then."""
    return target(policy, rows).now.argmax(1)


@torch.no_grad()
def q_values(policy: Policy, rows: Transitions) -> Float[Tensor, "n a"] | None:
    """Return a policy's own Q of every action in every row; None for a policy without Q."""
    if isinstance(policy, QPolicy):
        return policy.values(rows.state)
    if not isinstance(policy, PersonalPolicy):
        return None
    values = [group.values(rows.state) for group in policy.policies if isinstance(group, QPolicy)]
    if len(values) < len(policy.policies):
        return None
    known = factors_in_rows(policy.model, rows)[0]
    return torch.stack(values)[policy.policy_index(known.factors, known.informed), torch.arange(len(rows))]


def mean_values(values: Float[Tensor, "n a"], action: Int[Tensor, " n"]) -> dict[str, float]:
    """Return the mean Q of the policy's actions (`own`) and of the clinicians', both by the policy's own Q."""
    clinicians = values.gather(1, action[:, None])
    return {"own": float(values.max(1).values.mean()), "clinicians": float(clinicians.mean())}


def discounted(rows: Transitions, discount: float) -> Float[Tensor, " n"]:
    """Return the discounted return that followed every row: an estimate of the clinicians' Q."""
    total = torch.zeros(len(rows), dtype=torch.double)
    later, episode = 0.0, -1
    for row in reversed(rows.in_order().tolist()):
        if int(rows.episode[row]) != episode:
            later, episode = 0.0, int(rows.episode[row])
        later = float(rows.reward[row]) + discount * later
        total[row] = later
    return total


def action_counts(action: Int[Tensor, " n"], doses: tuple[int, int]) -> list[list[int]]:
    """Count each pair of doses: a line for each dose of fluid, a column for each of the vasopressor."""
    return torch.bincount(action, minlength=doses[0] * doses[1]).view(doses).tolist()


def dose_levels(rows: Transitions) -> tuple[int, int]:
    """Return the numbers of doses of fluid and of vasopressor."""
    first, second = (column.count for column in rows.schema.doses)
    return first, second


def mortality_by_return(values: Float[Tensor, "n a"], rows: Transitions) -> Rows:
    """Sort rows into tenths by the Q of the logged action: mean Q, and the share whose patient died."""
    expected, dead = values.gather(1, rows.action_index[:, None])[:, 0], dead_later(rows)
    return [
        {"bin": number, "expected": float(expected[part].mean()), "died": float(dead[part].float().mean())}
        for number, part in enumerate(expected.argsort().tensor_split(BINS))
        if len(part)
    ]


def dose_differences(action: Int[Tensor, " n"], rows: Transitions) -> Rows:
    """Count rows, and rows of patients who died, by drug and levels of dose recommended minus given."""
    fluid, vasopressor = dose_levels(rows)
    dead = dead_later(rows)
    differences = {
        "fluid": (action // vasopressor - rows.action_index // vasopressor, fluid),
        "vasopressor": (action % vasopressor - rows.action_index % vasopressor, vasopressor),
    }
    lines = []
    for drug, (apart, levels) in differences.items():
        for difference in range(1 - levels, levels):
            part = apart == difference
            counts = {"rows": int(part.sum()), "died": int(dead[part].sum())}
            lines.append({"drug": drug, "difference": difference, **counts})
    return lines


def groups_of(policy: PersonalPolicy, rows: Transitions, action: Int[Tensor, " n"], evaluation: Evaluation) -> Rows:
    """Return a line for each group of patients: size, deaths, mean doses given and recommended, and values."""
    group_of_row = policy.likeliest(rows)[rows.subject.cpu()]
    table = rows.actions.table()  # pyright: ignore[reportAttributeAccessIssue]
    values = {part.name: part for part in evaluation.groups}
    lines = []
    for group in sorted(set(group_of_row.tolist())):
        members = group_of_row == group
        patients = len(rows.subject[members].unique())
        value = values.get(f"group {group + 1}")
        given, recommended = rows.action[members].mean(0).tolist(), table[action[members]].mean(0).tolist()
        lines.append(
            {"group": group + 1, "patients": patients,
             "died": len(rows.subject[members & died(rows)].unique()) / patients,
             "fluid_given": given[0], "fluid_recommended": recommended[0],
             "vasopressor_given": given[1], "vasopressor_recommended": recommended[1],
             "logged": value and value.logged.value, "value": value and value.policy.value,
             "low": value and value.policy.low, "high": value and value.policy.high}
        )  # fmt: skip
    return lines


def estimate_rows(evaluations: Mapping[str, Evaluation], seed: int, truth: Mapping[str, float]) -> Rows:
    """Return a row for the clinicians' mean return, and for every estimate of every policy."""
    rows = [_logged_row(next(iter(evaluations.values())), seed, truth.get(PHYSICIAN))]
    for name, evaluation in evaluations.items():
        diagnostics = evaluation.diagnostics
        shares = {key: diagnostics and getattr(diagnostics, key) for key in ("effective", "unsupported", "agreement")}
        for estimate in evaluation.estimates:
            rows.append(
                {"seed": seed, "policy": evaluation.policy, "estimator": estimate.name, "value": estimate.value,
                 "low": estimate.low, "high": estimate.high, "truth": truth.get(name), "verdict": evaluation.verdict,
                 "recommended": estimate.name == evaluation.recommended, **shares,
                 "reason": next(iter(evaluation.reasons), "")}
            )  # fmt: skip
    return rows


def _logged_row(evaluation: Evaluation, seed: int, truth: float | None) -> dict[str, Any]:
    """The clinicians' mean return, which is observed."""
    logged, diagnostics = evaluation.logged, evaluation.diagnostics
    return {"seed": seed, "policy": PHYSICIAN, "estimator": "mean return", "value": logged.value, "low": logged.low,
            "high": logged.high, "truth": truth, "verdict": "as logged", "recommended": True,
            "effective": diagnostics and float(diagnostics.subjects), "unsupported": 0.0, "agreement": 1.0,
            "reason": ""}  # fmt: skip
