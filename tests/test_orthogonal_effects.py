"""Effects of doses by orthogonal moments: right under confounding and over several steps, none without overlap."""

import numpy as np
import pytest
import torch

import counterpoint as cp
from counterpoint.core.errors import CounterpointError
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Column, Schema
from counterpoint.models.effects.estimates import EffectEstimate, EffectEstimates
from counterpoint.models.effects.history import History
from counterpoint.models.effects.nuisance import CrossFit, folds_by_subject
from counterpoint.models.effects.orthogonal import EffectMoments, EffectSettings, estimate_effects
from helpers.dosing import OUTCOMES, dosing_log, log_of, true_effect

RIDGE = EffectSettings(boosted=False)


@pytest.fixture(scope="module")
def rows() -> cp.Transitions:
    return dosing_log()


@pytest.fixture(scope="module")
def effects(rows: cp.Transitions) -> EffectEstimates:
    return estimate_effects(rows, OUTCOMES, (1, 2, 4))


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive(rows: cp.Transitions, step: int) -> float:
    """Slope of the symptom's change on the dose `a` alone."""
    history = History.of(rows)
    known = history.ahead >= step
    return float(np.polyfit(history.dose[known, 0], history.outcome(0, step)[known], 1)[0])


def test_effects_over_several_steps_lie_in_their_intervals(effects: EffectEstimates) -> None:
    for one in effects:
        low, high = one.interval(0.99)
        assert low < true_effect(one.dose, one.outcome, one.step) < high


def test_effects_are_estimated_sharply_and_a_naive_regression_has_the_wrong_sign(
    rows: cp.Transitions, effects: EffectEstimates
) -> None:
    for step in (1, 2):
        one = effects.of("a", "symptom", step)
        assert one.excludes_none()
        assert one.value > 0
        assert naive(rows, step) < -0.1
    slow = effects.of("a", "compartment", 2)
    assert abs(slow.value - 0.15) < 0.02
    assert slow.standard_error < 0.02


def test_later_doses_are_held_as_given() -> None:
    """y' = y + a, and every dose is given again: after two steps one dose counts once, not twice."""
    dose = [numbers(0, 300, 1)]
    dose += [0.9 * dose[0] + 0.4 * numbers(1, 300, 1)]
    states = [numbers(2, 300, 1)]
    states += [states[0] + dose[0] + 0.1 * numbers(3, 300, 1)]
    states += [states[1] + dose[1] + 0.1 * numbers(4, 300, 1)]
    state, action, after = (torch.stack(part, 1).flatten(0, 1) for part in (states[:2], dose, states[1:]))
    rows = log_of(state, action, after, torch.arange(300).repeat_interleave(2))
    effect = estimate_effects(rows, steps=(2,), settings=RIDGE).of("action_0", "state_0", 2)
    assert effect.value == pytest.approx(1.0, abs=0.06)


def test_nuisances_never_see_the_subjects_they_predict() -> None:
    subject = np.repeat(np.arange(40), 5)
    fold = folds_by_subject(subject, 5, seed=0)
    assert all(len(np.unique(fold[subject == one])) == 1 for one in range(40))
    features = numbers(0, 200, 3).double().numpy()
    target = (features[:, 0] > 0) * 3.0 + numbers(1, 200).double().numpy() * 0.1
    crossfit = CrossFit(features, features, fold, subject, 10_000, seed=0)
    everywhere = np.ones(200, dtype=bool)

    changed = target + 5.0 * (subject == 7)
    before, after = (crossfit.predict(values[:, None], everywhere, [True])[:, 0] for values in (target, changed))
    same_fold = fold == fold[subject == 7][0]
    np.testing.assert_allclose(before[same_fold], after[same_fold])
    assert np.abs(before - after)[~same_fold].max() > 0.01


def test_right_where_only_the_dose_is_modelled() -> None:
    """The outcome's jumps are no polynomial of z; the dose residual has nothing to do with them."""
    z, noise = numbers(0, 4000, 1), numbers(1, 4000, 2)
    dose = z + z**2 + noise[:, :1]
    after = 5.0 * (z > 0.8) + 0.5 * dose + 0.3 * noise[:, 1:]
    rows = log_of(torch.cat([0 * z, z], 1), dose, torch.cat([after, z], 1), torch.arange(4000))
    effect = estimate_effects(rows, ("state_0",), (1,), settings=RIDGE).of("action_0", "state_0", 1)
    low, high = effect.interval(0.99)
    assert low < 0.5 < high
    assert high - low < 0.3


def test_trees_lower_the_error_where_a_ridge_cannot() -> None:
    features = numbers(0, 2000, 2).double().numpy()
    target = 2.0 * (features[:, 0] * features[:, 1] > 0.3)
    fold = folds_by_subject(np.arange(2000), 5, 0)
    crossfit = CrossFit(features, features, fold, np.arange(2000), 10_000, 0)
    errors = [
        float(((crossfit.predict(target[:, None], np.ones(2000, dtype=bool), [boosted])[:, 0] - target) ** 2).mean())
        for boosted in (True, False)
    ]
    assert errors[0] < 0.4 * errors[1]


def test_standard_errors_count_subjects_not_rows() -> None:
    """Every row twice as a second episode of its subject: the standard error stays."""
    state, noise, dose = numbers(0, 400, 1), numbers(1, 400, 1), numbers(2, 400, 1)
    tables, subject = (state, dose, state + dose + noise), torch.arange(400)
    first = torch.zeros(800, dtype=torch.long)
    doubled = log_of(*(torch.cat([x, x]) for x in tables), subject.repeat(2), episode=torch.arange(800), step=first)
    errors = [
        estimate_effects(rows, steps=(1,), settings=RIDGE).of("action_0", "state_0", 1).standard_error
        for rows in (log_of(*tables, subject), doubled)
    ]
    assert errors[1] == pytest.approx(errors[0], rel=0.1)


def test_a_dose_that_the_state_decides_has_no_estimate() -> None:
    state, noise = numbers(0, 600, 1), numbers(1, 600, 1)
    dose = state + 0.5
    rows = log_of(state, dose, state + dose + noise, torch.arange(600))
    one = estimate_effects(rows, steps=(1,), settings=RIDGE).of("action_0", "state_0", 1)
    assert not one.supported
    assert one.shrunk == 0
    assert one.interval() == (-float("inf"), float("inf"))
    assert not one.excludes_none()


def test_shrinkage() -> None:
    def estimate(value: float, error: float) -> EffectEstimate:
        return EffectEstimate("a", "y", 1, value, error, 50.0, 1.0, 1.0, 0.5, 100)

    assert estimate(2.0, 1.0).shrunk == pytest.approx(1.5)
    assert estimate(-0.5, 1.0).shrunk == 0
    assert estimate(1.0, 0.01).shrunk == pytest.approx(1.0, abs=1e-3)


def test_treatments_are_compared_with_the_commonest() -> None:
    random = torch.Generator().manual_seed(0)
    state = numbers(1, 3000, 1)
    chances = torch.stack([torch.full((3000,), 1.0), 0.2 + 0.5 * (state[:, 0] > 0), torch.full((3000,), 0.4)], 1)
    index = torch.multinomial(chances, 1, generator=random)[:, 0]
    action = torch.nn.functional.one_hot(index, 3).float()
    after = state + action @ torch.tensor([[0.0], [1.0], [-0.5]]) + 0.3 * numbers(2, 3000, 1)
    schema = Schema.of(("s",), cp.Discrete.one_hot(3), ("drug=none", "drug=x", "drug=y"))
    effects = estimate_effects(log_of(state, action, after, torch.arange(3000), schema=schema), steps=(1,))
    assert effects.doses == ("drug=x", "drug=y")
    for name, truth in (("drug=x", 1.0), ("drug=y", -0.5)):
        one = effects.of(name, "s", 1)
        assert one.reference == "none"
        assert one.contrast == 1.0
        assert one.value == pytest.approx(truth, abs=4 * one.standard_error)
        assert one.standard_error < 0.03


def test_doses_per_a_column_act_in_their_ratio() -> None:
    weight = 50 + 30 * torch.rand(2000, 1, generator=torch.Generator().manual_seed(0))
    dose, state = 10 * numbers(1, 2000, 1).abs(), numbers(2, 2000, 1)
    after = state + 4.0 * dose / weight + 0.1 * numbers(3, 2000, 1)
    columns = (Column("s"), Column("weight", static=True))
    schema = Schema(columns, cp.Box((0.0,), (99.0,)), ("dose",), knowledge=Knowledge(per=(("dose", "weight"),)))
    state, after = torch.cat([state, weight], 1), torch.cat([after, weight], 1)
    one = estimate_effects(log_of(state, dose, after, torch.arange(2000), schema=schema), steps=(1,)).of("dose", "s", 1)
    assert one.per == "weight"
    assert one.value == pytest.approx(4.0, abs=0.15)


def test_next_values_of_exogenous_columns_are_part_of_the_history() -> None:
    """A meal moves the state: who knows that it was eaten estimates the dose with less noise."""
    state, meal, dose = numbers(0, 1500, 1), numbers(1, 1500, 1), numbers(2, 1500, 1)
    after = torch.cat([state + 3.0 * meal + 0.2 * dose + 0.1 * numbers(3, 1500, 1), meal], 1)
    before = torch.cat([state, 0 * meal], 1)
    errors = []
    for known in (Knowledge(exogenous=("meal",)), Knowledge()):
        schema = Schema.of(("s", "meal"), cp.Box((-9.0,), (9.0,)), ("dose",), known)
        effects = estimate_effects(log_of(before, dose, after, torch.arange(1500), schema=schema), ("s",), (1,))
        errors.append(effects.of("dose", "s", 1).standard_error)
    assert errors[0] < 0.1 * errors[1]


def test_lags_remove_what_one_row_hides() -> None:
    """Dose and outcome both follow the state one step before."""
    subjects, steps = 400, 6
    state, dose = [numbers(0, subjects, 1)], [numbers(2, subjects, 1)]
    state.append(0.5 * dose[0] + 0.3 * numbers(1, subjects, 1))
    for step in range(1, steps):
        dose.append(state[step - 1] + 0.7 * numbers(10 + step, subjects, 1))
        state.append(0.5 * dose[step] - state[step - 1] + 0.3 * numbers(20 + step, subjects, 1))
    tables = [torch.stack(part, 1).flatten(0, 1) for part in (state[:-1], dose, state[1:])]
    rows = log_of(*tables, torch.arange(subjects).repeat_interleave(steps))
    effects = [
        estimate_effects(rows, steps=(1,), settings=EffectSettings(lags, boosted=False)).of("action_0", "state_0", 1)
        for lags in (0, 1)
    ]
    assert effects[0].interval(0.99)[1] < 0.3
    assert effects[1].value == pytest.approx(0.5, abs=0.08)


def test_placebo_sees_doses_that_follow_an_older_past_than_the_lags() -> None:
    subjects, steps = 300, 8
    state = numbers(0, subjects, steps + 1)
    dose = numbers(1, subjects, steps)
    dose[:, 4:] += 0.8 * state[:, : steps - 4]
    tables = [x.reshape(-1, 1) for x in (state[:, :-1], dose, state[:, 1:])]
    rows = log_of(*tables, torch.arange(subjects).repeat_interleave(steps))
    assert EffectMoments(rows, settings=EffectSettings(lags=2)).placebo().of("action_0", "state_0", -4).excludes_none()
    known = EffectMoments(rows, settings=EffectSettings(lags=4)).placebo()
    assert not known.of("action_0", "state_0", -6).excludes_none(0.99)


def test_refusals(rows: cp.Transitions) -> None:
    with pytest.raises(CounterpointError, match="'pulse' is no state column"):
        estimate_effects(rows, ("pulse",))
    with pytest.raises(CounterpointError, match="the log has one; give more subjects"):
        estimate_effects(rows[rows.subject == 0])
    with pytest.raises(CounterpointError, match="longest episode"):
        estimate_effects(rows, steps=(50,))
    with pytest.raises(CounterpointError, match="folds=1"):
        EffectSettings(folds=1)


def test_table_and_clearest(effects: EffectEstimates) -> None:
    table = effects.table(0.95)
    assert len(table) == len(effects) == 12
    assert {"low", "high", "shrunk", "value"} <= table[0].keys()
    assert effects.clearest(1) == ("compartment",)
