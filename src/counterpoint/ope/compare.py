"""`compare`: several policies evaluated on one log, with paired differences."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from counterpoint.core.artifacts import encode
from counterpoint.core.errors import require
from counterpoint.core.settings import Checked, checked
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model
from counterpoint.nets.training import Monitor
from counterpoint.ope.evaluation import (
    EvaluationRequest,
    OPEProblem,
    OPESettings,
    estimate_behaviours,
    evaluate_problem,
    fit_problem,
    whole_log,
)
from counterpoint.ope.model_based import ModelEstimates
from counterpoint.ope.problem import StochasticPolicy
from counterpoint.ope.result import JSON_CLASSES, Estimate, Evaluation, clip_difference, decode_result
from counterpoint.policies.base import Policy

FORMAT = "counterpoint-comparison/2"


@dataclass(frozen=True)
class PairedDifference(Checked):
    """Difference of the mean returns of two policies, `one` minus `other`, on the same subjects."""

    one: str
    other: str
    difference: Estimate


@dataclass(frozen=True)
class PolicyComparison(Checked):
    """Evaluations of several policies on one log, and the difference of every two of them."""

    evaluations: tuple[Evaluation, ...]
    pairs: tuple[PairedDifference, ...]

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {"format": FORMAT, **encode(self)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "PolicyComparison":
        """Decode the object of `to_json`; refuse anything else in one line, without executing anything."""
        classes = {**JSON_CLASSES, "PolicyComparison": PolicyComparison, "PairedDifference": PairedDifference}
        return decode_result(content, cls, FORMAT, classes)

    def rows(self) -> list[dict[str, Any]]:
        """Table of the policies, the behaviour policy first, each with its difference from that one."""
        logged = self.evaluations[0].logged
        first = {"policy": logged.name, "value": logged.value, "low": logged.low, "high": logged.high}
        first |= {**_difference_columns(None), "effective": None, "verdict": None}
        return [first, *(_policy_row(evaluation) for evaluation in self.evaluations)]

    def pair_rows(self) -> list[dict[str, Any]]:
        """Table of the differences between every two policies."""
        return [{"policy": pair.one, "less": pair.other, **_difference_columns(pair.difference)} for pair in self.pairs]


def _policy_row(evaluation: Evaluation) -> dict[str, Any]:
    value, diagnostics = evaluation.value, evaluation.diagnostics
    return {
        "policy": evaluation.policy,
        "value": value.value,
        "low": value.low,
        "high": value.high,
        **_difference_columns(evaluation.difference),
        "effective": diagnostics and diagnostics.effective,
        "verdict": evaluation.verdict,
    }


def _difference_columns(difference: Estimate | None) -> dict[str, float | None]:
    if difference is None:
        return {"difference": None, "difference_low": None, "difference_high": None}
    return {"difference": difference.value, "difference_low": difference.low, "difference_high": difference.high}


@checked
def compare(
    rows: Transitions,
    policies: Mapping[str, Policy | StochasticPolicy],
    settings: OPESettings = OPESettings(),
    *,
    others: Transitions | None = None,
    held_out: bool = False,
    models: Mapping[str, Model] | None = None,
    seed: int = 0,
    monitor: Monitor = Monitor(),
) -> PolicyComparison:
    """Evaluate several policies, keyed by name, on the same rows.

    The arguments are those of `evaluate`; `models` infer subject factors for the policies that need them.
    """
    require(len(policies) > 0, "there is no policy to compare; give at least one")
    behaviours = estimate_behaviours(settings, whole_log(rows, others), seed, monitor)
    problems: dict[str, OPEProblem] = {}
    evaluations: dict[str, Evaluation] = {}
    for name, policy in policies.items():
        stage = monitor.stage(name)
        model = (models or {}).get(name)
        problem = fit_problem(rows, policy, settings, others, model, seed, stage, behaviours)
        request = EvaluationRequest(policy, settings, held_out, name, seed)
        evaluation = evaluate_problem(problem, request, ModelEstimates(), stage)
        problems[name] = problem
        evaluations[evaluation.policy] = evaluation
    pairs = [_paired(problems, evaluations, one, other, settings, seed) for one, other in combinations(problems, 2)]
    return PolicyComparison(tuple(evaluations.values()), tuple(pairs))


def _paired(
    problems: Mapping[str, OPEProblem],
    evaluations: Mapping[str, Evaluation],
    one: str,
    other: str,
    settings: OPESettings,
    seed: int,
) -> PairedDifference:
    difference = Estimate.of(f"{one} less {other}", problems[one].gain_over(problems[other], settings, seed))
    possible = evaluations[one].possible
    if possible is not None:
        difference = clip_difference(difference, evaluations[one].value, evaluations[other].value, possible)
    return PairedDifference(one, other, difference)
