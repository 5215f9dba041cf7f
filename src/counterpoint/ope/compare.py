"""Policies side by side on one log: each judged, and every pair compared in the same resampled subjects."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from counterpoint.core.artifacts import encode
from counterpoint.core.errors import require
from counterpoint.core.settings import check_settings, checked
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.nets.training import Monitor
from counterpoint.ope.evaluation import (
    Asked,
    OPEProblem,
    OPESettings,
    conclude,
    estimate_behaviours,
    lay_beside,
    whole_log,
)
from counterpoint.ope.model_based import Inside
from counterpoint.ope.problem import Stochastic
from counterpoint.ope.result import KNOWN, Estimate, Evaluation, hold_difference, read_back
from counterpoint.policies.base import Policy

FORMAT = "counterpoint-comparison/1"


@dataclass(frozen=True)
class Pair:
    """How much more one policy is worth than another."""

    one: str
    other: str
    difference: Estimate

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class PolicyComparison:
    """What a log says of several policies."""

    evaluations: tuple[Evaluation, ...]
    pairs: tuple[Pair, ...]
    """Every two of them, in their order."""

    def __post_init__(self) -> None:
        check_settings(self)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **encode(self)}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> "PolicyComparison":
        """What `to_json` gave; anything else is one line, and nothing in it is run."""
        return read_back(said, cls, FORMAT, {**KNOWN, "PolicyComparison": PolicyComparison, "Pair": Pair})

    def rows(self) -> list[dict[str, Any]]:
        """The table: whoever logged first, then each policy with its difference from that."""
        logged = self.evaluations[0].logged
        first = {"policy": logged.name, "value": logged.value, "low": logged.low, "high": logged.high}
        return [{**first, **_less(None), "effective": None, "verdict": None}, *map(_row, self.evaluations)]

    def pair_rows(self) -> list[dict[str, Any]]:
        """Every difference between two policies."""
        return [{"policy": pair.one, "less": pair.other, **_less(pair.difference)} for pair in self.pairs]


def _row(each: Evaluation) -> dict[str, Any]:
    found, told = each.value, each.diagnostics
    said = {"policy": each.policy, "value": found.value, "low": found.low, "high": found.high, **_less(each.difference)}
    return {**said, "effective": told and told.effective, "verdict": each.verdict}


def _less(each: Estimate | None) -> dict[str, float | None]:
    ends = (None, None, None) if each is None else (each.value, each.low, each.high)
    return dict(zip(("difference", "difference_low", "difference_high"), ends, strict=True))


@checked
def compare(
    rows: Transitions,
    policies: Mapping[str, Policy | Stochastic],
    how: OPESettings = OPESettings(),
    *,
    others: Transitions | None = None,
    held_out: bool = False,
    models: Mapping[str, Model] | None = None,
    seed: int = 0,
    monitor: Monitor = Monitor(),
) -> PolicyComparison:
    """Judge every policy (by its name) on the same rows; `models` find factors for those that are to be told them."""
    require(len(policies) > 0, "there is no policy to compare; give at least one")
    behaviours = estimate_behaviours(how, whole_log(rows, others), seed, monitor)
    cases: dict[str, OPEProblem] = {}
    found: list[Evaluation] = []
    for name, policy in policies.items():
        watch, model = monitor.stage(name), (models or {}).get(name)
        cases[name] = lay_beside(rows, policy, how, others, model, seed, watch, behaviours)
        found.append(conclude(cases[name], Asked(policy, how, held_out, name, seed), Inside(), watch))
    evaluations = {each.policy: each for each in found}
    pairs = [_pair(cases, evaluations, *names, how, seed) for names in combinations(cases, 2)]
    return PolicyComparison(tuple(found), tuple(pairs))


def _pair(
    cases: Mapping[str, OPEProblem], found: Mapping[str, Evaluation], one: str, other: str, how: OPESettings, seed: int
) -> Pair:
    difference = Estimate.of(f"{one} less {other}", cases[one].gain_over(cases[other], how, seed))
    possible = found[one].possible
    if possible is not None:
        difference = hold_difference(difference, found[one].value, found[other].value, possible)
    return Pair(one, other, difference)
