"""What is found of policies for septic patients: what they do, what they think of themselves, who died meanwhile."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.data.transitions import Transitions
from counterpoint.ope.problem import (
    factors_in_rows,
    target,
)
from counterpoint.ope.result import Evaluation
from counterpoint.policies.base import Policy
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.policies.q import QPolicy
from reproduction.sepsis_cohort import dead_later, died

BINS = 10
"""Parts of equal size that rows are sorted into by their expected return."""
Found = list[dict[str, Any]]


def taken(policy: Policy, rows: Transitions) -> Int[Tensor, " n"]:
    """The number of the policy's action in every row, as far as it could have known the patient there."""
    return target(policy, rows).now.argmax(1)


@torch.no_grad()
def q_values(policy: Policy, rows: Transitions) -> Float[Tensor, "n a"] | None:
    """A policy's own Q of every action in every row; none for one that has no Q."""
    if isinstance(policy, QPolicy):
        return policy.values(rows.state)
    if not isinstance(policy, PersonalPolicy) or not all(isinstance(own, QPolicy) for own in policy.policies):
        return None
    known = factors_in_rows(policy.model, rows)[0]
    every = torch.stack([own.values(rows.state) for own in policy.policies if isinstance(own, QPolicy)])
    return every[policy.deciding(known.factors, known.informed), torch.arange(len(rows))]


def self_graded(values: Float[Tensor, "n a"], action: Int[Tensor, " n"]) -> dict[str, float]:
    """Mean Q of the policy's own actions, and of those that clinicians took, both by the policy's own Q."""
    theirs = values.gather(1, action[:, None])
    return {"own": float(values.max(1).values.mean()), "clinicians": float(theirs.mean())}


def discounted(rows: Transitions, discount: float) -> Float[Tensor, " n"]:
    """The discounted return that followed every row: Q of whoever logged needs no network."""
    total = torch.zeros(len(rows), dtype=torch.double)
    order = rows.in_order()
    later, episode = 0.0, -1
    for place in reversed(order.tolist()):
        own = int(rows.episode[place])
        later = float(rows.reward[place]) + (discount * later if own == episode else 0.0)
        episode, total[place] = own, later
    return total


def action_counts(action: Int[Tensor, " n"], doses: tuple[int, int]) -> list[list[int]]:
    """How often each pair of doses is given: a line for each dose of fluid, a column for each of the vasopressor."""
    return torch.bincount(action, minlength=doses[0] * doses[1]).view(doses).tolist()


def dose_levels(rows: Transitions) -> tuple[int, int]:
    """How many doses of fluid and of vasopressor there are."""
    first, second = (column.count for column in rows.schema.doses)
    return first, second


def mortality_by_return(values: Float[Tensor, "n a"], rows: Transitions) -> Found:
    """Rows in parts of equal size by the Q of what clinicians did: mean Q, and the share whose patient died."""
    expected, dead = values.gather(1, rows.action_index[:, None])[:, 0], dead_later(rows)
    parts = expected.argsort().tensor_split(BINS)
    return [
        {"bin": number, "expected": float(expected[own].mean()), "died": float(dead[own].float().mean())}
        for number, own in enumerate(parts)
        if len(own)
    ]


def dose_differences(action: Int[Tensor, " n"], rows: Transitions) -> Found:
    """For either drug, by how many levels the policy's dose exceeds what was given: rows, and those who died."""
    fluid, vasopressor = dose_levels(rows)
    dead, found = dead_later(rows), []
    for name, each, levels in (
        ("fluid", lambda index: index // vasopressor, fluid),
        ("vasopressor", lambda index: index % vasopressor, vasopressor),
    ):
        apart = each(action) - each(rows.action_index)
        for difference in range(1 - levels, levels):
            own = apart == difference
            counts = {"rows": int(own.sum()), "died": int(dead[own].sum())}
            found.append({"drug": name, "difference": difference, **counts})
    return found


def groups_of(policy: PersonalPolicy, rows: Transitions, action: Int[Tensor, " n"], judged: Evaluation) -> Found:
    """A line for each group of patients: how many, deaths, mean doses given and recommended, and values."""
    own = policy.likeliest(rows)[rows.subject.cpu()]
    table, values = rows.actions.table(), {part.name: part for part in judged.groups}  # pyright: ignore[reportAttributeAccessIssue]
    found = []
    for group in sorted(set(own.tolist())):
        there: Bool[Tensor, " n"] = own == group
        patients, part = len(rows.subject[there].unique()), values.get(f"group {group + 1}")
        given, wanted = rows.action[there].mean(0).tolist(), table[action[there]].mean(0).tolist()
        found.append(
            {"group": group + 1, "patients": patients,
             "died": len(rows.subject[there & died(rows)].unique()) / patients,
             "fluid_given": given[0], "fluid_recommended": wanted[0],
             "vasopressor_given": given[1], "vasopressor_recommended": wanted[1],
             "logged": part and part.logged.value, "value": part and part.policy.value,
             "low": part and part.policy.low, "high": part and part.policy.high}
        )  # fmt: skip
    return found


def estimates_of(judged: Evaluation, seed: int, truth: float | None) -> Found:
    """A row for every estimate of one policy."""
    told = judged.diagnostics
    shares = {name: told and getattr(told, name) for name in ("effective", "unsupported", "agreement")}
    return [
        {"seed": seed, "policy": judged.policy, "estimator": each.name, "value": each.value, "low": each.low,
         "high": each.high, "truth": truth, "verdict": judged.verdict,
         "recommended": each.name == judged.recommended, **shares, "reason": next(iter(judged.reasons), "")}
        for each in judged.estimates
    ]  # fmt: skip


def logged_row(judged: Evaluation, seed: int, policy: str, truth: float | None) -> dict[str, Any]:
    """What whoever logged earned, which nobody need estimate."""
    each = judged.logged
    return {"seed": seed, "policy": policy, "estimator": "mean return", "value": each.value, "low": each.low,
            "high": each.high, "truth": truth, "verdict": "as logged", "recommended": True,
            "effective": judged.diagnostics and float(judged.diagnostics.subjects), "unsupported": 0.0,
            "agreement": 1.0, "reason": ""}  # fmt: skip
