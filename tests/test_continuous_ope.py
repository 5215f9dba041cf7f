"""Off-policy evaluation of continuous doses, in a linear task where every policy's mean return can be simulated."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.practice import Practice
from counterpoint.ope.continuous import DoseSpread, DoseTarget, ShiftedDoses, dose_target
from counterpoint.ope.diagnostics import VerdictLimits, is_supported
from counterpoint.ope.evaluation import OPESettings, compare, evaluate
from counterpoint.ope.fqe import FQE
from counterpoint.ope.model_based import returns
from counterpoint.ope.result import Estimate, Evaluation
from counterpoint.simulation.trials import simulate
from counterpoint.tasks.ward import Ward
from helpers.judge import GOOD
from reproduction.tasks.linear_dose import LinearDose, RulePolicy

STEPS = 5
NORMAL, POSITIVE = LinearDose(horizon=STEPS), LinearDose(horizon=STEPS, positive=True)
QUICK = OPESettings(
    baselines=False, draws=100, critic_draws=10, folds=3, critic=FQE(hidden=32), dose_spread=DoseSpread(draws=4)
)


@lru_cache
def log(task: LinearDose, subjects: int, seed: int = 0) -> Transitions:
    return simulate(task, task.clinicians, subjects, STEPS, seed)


def truth(task: LinearDose, rule: Callable[[Tensor], Tensor]) -> float:
    return float(returns(lambda state, theta: rule(state), task, 1, 20_000, 9).mean())


def rule(task: LinearDose, more: float = 0.0, shift: float = 0.0) -> RulePolicy:
    return RulePolicy(task.schema, lambda state: task.rule(state, more, shift))


def test_density_ratios_of_normal_doses_are_those_of_the_densities() -> None:
    """μ = N(m, .4²) and π = N(m + .2, (width·.4)²) have a ratio that is known."""
    rows = log(NORMAL, 600)
    doses = dose_target(rule(NORMAL, shift=0.2), rows, DoseSpread(0.5, 4), 3)
    assert next(iter(doses.ratios)) == "logistic regression"
    usual = NORMAL.rule(rows.state)
    clinicians = torch.distributions.Normal(usual, 0.4).log_prob(rows.action)
    policy = torch.distributions.Normal(usual + 0.2, 0.2).log_prob(rows.action)
    exact = (policy - clinicians).exp()[:, 0]
    estimated = doses.ratios["logistic regression"]
    assert float((estimated - exact).abs().mean()) < 0.1 * float(exact.mean())
    assert float(estimated.mean()) == pytest.approx(1.0, abs=1e-4)


def test_density_ratios_of_an_intervention_are_those_of_the_shifted_doses() -> None:
    rows = log(NORMAL, 600)
    doses = dose_target(ShiftedDoses(NORMAL.schema, lambda state, action: action + 0.2), rows, DoseSpread(), 3)
    clinicians = torch.distributions.Normal(NORMAL.rule(rows.state), 0.4)
    exact = (clinicians.log_prob(rows.action - 0.2) - clinicians.log_prob(rows.action)).exp()[:, 0]
    assert float((doses.ratios["logistic regression"] - exact).abs().mean()) < 0.15
    assert torch.allclose(doses.now[:, 0], rows.action + 0.2)
    following = rows.step < STEPS - 1
    after = doses.after[following, 0]
    assert torch.allclose(after, rows.action[1:][following[:-1]] + 0.2), "the next row's own dose is shifted"


def test_a_policy_that_gives_none_agrees_with_the_rows_in_which_none_was_given() -> None:
    rows = log(POSITIVE, 400)
    doses = dose_target(RulePolicy(POSITIVE.schema, lambda state: 0.0 * state[..., :1]), rows, DoseSpread(draws=4), 3)
    assert bool((doses.now == 0).all())
    ratio, given = next(iter(doses.ratios.values())), rows.action[:, 0] > 0
    assert float(ratio[given].mean()) < 0.02 * float(ratio[~given].mean())


def numbers(estimate: Estimate) -> float:
    assert estimate.value is not None
    return estimate.value


@lru_cache
def evaluated(task: LinearDose, subjects: int, more: float, shift: float = 0.0, seed: int = 0) -> Evaluation:
    return evaluate(log(task, subjects, seed), rule(task, more, shift), QUICK, held_out=True, seed=seed)


@pytest.mark.parametrize("task", [NORMAL, POSITIVE])
def test_the_interval_of_a_policy_near_practice_holds_its_mean_return(task: LinearDose) -> None:
    value = truth(task, lambda state: task.rule(state, 0.15))
    found = [evaluated(task, 150, 0.15, seed=seed) for seed in range(2 if task is NORMAL else 1)]
    assert not any(each.value.excludes(value) for each in found)
    errors = [abs(numbers(each.value) - value) for each in found]
    logged = [abs(numbers(each.logged) - value) for each in found]
    assert sum(errors) < 0.6 * sum(logged) or task is POSITIVE


def test_an_evaluation_of_doses_has_all_that_one_of_listed_actions_has() -> None:
    found = evaluated(NORMAL, 150, 0.15)
    assert found.recommended == "one-step DR"
    assert {"DR", "WDR", "WIS", "FQE"} <= {estimate.name for estimate in found.estimates}
    assert found.diagnostics is not None
    assert 50 < found.diagnostics.effective < 150
    assert found.diagnostics.unsupported < 0.05
    assert found.verdict == "with care"
    assert found.difference is not None
    assert found.sensitivity is not None
    assert [estimate.name for estimate in found.sensitivity.behaviour] == ["boosted trees"]
    assert "0.5 standard deviations of the clinicians" in found.notes[0]
    assert Evaluation.from_json(found.to_json()) == found


def test_doses_that_nobody_was_given_cannot_be_judged() -> None:
    found = evaluated(NORMAL, 150, 0.0, 4.0)
    assert found.verdict == "cannot be judged"
    assert found.diagnostics is not None
    assert found.diagnostics.unsupported > 0.9
    assert found.diagnostics.effective < 5, "ratios that are all near 0 are no agreement"
    assert found.possible is not None
    assert all(estimate.value is None or found.possible.holds(estimate.value) for estimate in found.estimates)


def test_an_intervention_is_evaluated_as_itself() -> None:
    change = lambda state, action: action + 0.1 * state[..., :1]
    found = evaluate(log(NORMAL, 150), ShiftedDoses(NORMAL.schema, change), QUICK, held_out=True)
    random = generator(0, "clinicians")
    value = truth(NORMAL, lambda state: change(state, NORMAL.clinicians(state, random)))
    assert not found.value.excludes(value)
    same = evaluate(log(NORMAL, 150), ShiftedDoses(NORMAL.schema, lambda state, action: action), QUICK)
    assert same.difference is not None
    assert not same.difference.excludes(0.0)
    assert same.value.value == pytest.approx(same.logged.value, rel=0.05), "nothing is changed"


def test_policies_of_doses_are_compared_in_pairs() -> None:
    found = compare(log(NORMAL, 150), {"more": rule(NORMAL, 0.15), "usual": rule(NORMAL)}, QUICK, held_out=True)
    (pair,) = found.pairs
    assert pair.difference.low is not None
    assert pair.difference.low > 0


def test_practice_of_a_list_is_evaluated_by_its_actions_or_by_its_probabilities() -> None:
    ward = Ward()
    from counterpoint.simulation.trials import random_policy

    rows = simulate(ward, random_policy(ward), 100, 4, 0)
    settings = OPESettings(baselines=False, draws=50, critic_draws=5)
    assert isinstance(rows.actions, Discrete)
    practice = Practice(trees=5, folds=2).fit(rows, ward)
    by_action, by_chance = (evaluate(rows, policy, settings) for policy in (practice, practice.drawn()))
    assert by_action.mixture is not None
    assert by_chance.mixture is None
    assert not by_chance.held_out
    assert by_chance.diagnostics is not None
    assert by_action.diagnostics is not None
    assert by_chance.diagnostics.effective > 0.8 * 100 > by_action.diagnostics.effective
    with pytest.raises(CounterpointError, match="list"):
        evaluate(rows, ShiftedDoses(rows.schema, lambda state, action: action), settings)


def test_ratios_depend_on_the_seed_of_the_folds_alone() -> None:
    rows = log(NORMAL, 60)
    one, same, other = (dose_target(rule(NORMAL, 0.1), rows, DoseSpread(draws=2), 3, seed=seed) for seed in (0, 0, 1))
    first: Callable[[DoseTarget], Tensor] = lambda doses: next(iter(doses.ratios.values()))
    assert torch.equal(first(one), first(same))
    assert not torch.equal(first(one), first(other))


def test_practice_and_naive_policies_stand_beside_every_policy_without_being_asked_for() -> None:
    rows, others = log(NORMAL, 80), log(NORMAL, 80, 5)
    names = tuple(str(number) for number in range(160))
    rows = replace(rows, subject_names=names)
    others = replace(others, subject=others.subject + 80, episode=others.episode + 80, subject_names=names)
    settings = replace(QUICK, baselines=True)
    found = evaluate(rows, rule(NORMAL, 0.15), settings, others=others, held_out=True)
    practice, nothing, commonest = found.baselines
    assert practice.name == "practice (median dose)"
    assert not practice.excludes(truth(NORMAL, NORMAL.rule))
    assert nothing.name.startswith("nothing")
    assert not nothing.excludes(truth(NORMAL, lambda state: 0.0 * state[..., :1]))
    assert commonest.name.startswith("commonest action")
    assert {row["name"] for row in found.rows() if row["kind"] == "baseline"} == {each.name for each in found.baselines}
    assert Evaluation.from_json(found.to_json()) == found


def test_baselines_stand_in_the_table_of_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = Estimate("practice", -1.0, -2.0, 0.0)
    monkeypatch.setattr("counterpoint.ope.evaluation.evaluate_baselines", lambda *_: (baseline,))
    found = compare(log(NORMAL, 40), {"more": rule(NORMAL, 0.15)}, QUICK, held_out=True)
    assert found.baselines == (baseline,)
    assert [row["policy"] for row in found.rows()] == ["behaviour policy", "practice", "more"]


def test_a_policy_whose_actions_the_log_lacks_is_marked() -> None:
    assert is_supported(GOOD.diagnostics, VerdictLimits())
    for change in ({"unsupported": 0.3}, {"off_support": 0.6}, {"effective": 9.0}):
        assert not is_supported(replace(GOOD.diagnostics, **change), VerdictLimits())
