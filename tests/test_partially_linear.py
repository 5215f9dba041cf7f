"""PartiallyLinearSCM: dose effects over several steps that agree with the truth, signs, and doses per weight."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.core.errors import CounterpointWarning
from counterpoint.core.seeding import derive
from counterpoint.data.jobs import Job, context
from counterpoint.data.knowledge import Knowledge, Recursion
from counterpoint.data.schema import Column, Schema
from counterpoint.data.transitions import Transitions
from counterpoint.models.effects.estimates import EffectEstimates
from counterpoint.models.effects.orthogonal import EffectSettings
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.effects import calibration
from counterpoint.models.scm.effects.calibration import DoseFeatures, calibrate
from counterpoint.models.scm.effects.doses import dose_columns
from counterpoint.models.scm.effects.mechanism import EffectsMechanism
from counterpoint.models.scm.effects.paths import EffectPaths
from counterpoint.models.scm.partially_linear import PartiallyLinearSCM
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.models.signs import sign_violations
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.stacked import with_weights
from counterpoint.nets.training import Schedule
from counterpoint.registry import load
from helpers.dose_effects import STATES, known_effects_log, true_effect, without_roles
from helpers.effects import responders

STEPS = (1, 2, 4)
LAW = RandomEffects(factors=1, changes=("difference",) * 4, ensemble=3, hidden=())
RECIPE = PartiallyLinearSCM(LAW, EffectSettings(boosted=False), STEPS)
WITHIN = 1.645
"""Standard errors of a 90% interval."""
LEVEL, BOARD, WEIGHT = (STATES.index(name) for name in ("level", "board", "weight"))


@dataclass(frozen=True)
class Fits:
    """The log, its estimates, the law of single steps and the calibrated model."""

    rows: Transitions
    estimates: EffectEstimates
    law: StructuralCausalModel
    model: StructuralCausalModel


@pytest.fixture(scope="module")
def fits() -> Iterator[Fits]:
    """Laws of meals are fitted briefly: effects do not depend on them."""
    rows = known_effects_log()
    brief = Likelihood(Schedule(steps=2))
    with patch("counterpoint.models.scm.exogenous.LIKELIHOOD", brief):
        with warnings.catch_warnings():  # Before it is calibrated, a law may violate declared signs.
            warnings.simplefilter("ignore", CounterpointWarning)
            law = LAW.fit(rows)
        estimates = RECIPE.estimates(rows, derive(0, "effects"))
        assert estimates is not None
        yield Fits(rows, estimates, law, RECIPE.fit(rows))


def mechanism_of(model: StructuralCausalModel) -> EffectsMechanism:
    assert isinstance(model.mechanism, EffectsMechanism)
    return model.mechanism


def effects(model: StructuralCausalModel, rows: Transitions) -> Tensor:
    """Every member's mean effect on the level of one unit of dose / weight, after each of `STEPS`."""
    paths = EffectPaths.of(model, rows, max(STEPS), 0)
    first = paths.state[paths.rows[:, 0]]
    unit = 0.01 * first[:, model.schema.state_names.index("weight")]
    after = paths.effects(model.mechanism, 0, unit)[..., LEVEL].mean(2) / 0.01
    return after[:, [step - 1 for step in STEPS]]


def deviations(fits: Fits, model: StructuralCausalModel, rows: Transitions) -> Tensor:
    """Distances of the model's effects from the true ones, in standard errors of the estimates."""
    truth = torch.tensor([true_effect(step) for step in STEPS])
    errors = torch.tensor([one.standard_error for one in fits.estimates.curve("dose", "level")])
    return (effects(model, rows).mean(0) - truth).abs() / errors


def test_effects_over_several_steps_agree_with_the_truth_and_those_of_a_law_of_single_steps_do_not(fits: Fits) -> None:
    assert bool((deviations(fits, fits.model, fits.rows) < WITHIN).all())
    assert float(deviations(fits, fits.law, fits.rows)[0]) > 2 * WITHIN
    bare = without_roles(fits.rows)
    undeclared = replace(LAW, changes=("difference",) * 3).fit(bare)
    assert bool((deviations(fits, undeclared, bare) > WITHIN).all())


def test_members_differ_as_much_as_the_log_leaves_open(fits: Fits) -> None:
    error = fits.estimates.of("dose", "level", 1).standard_error
    spread = effects(fits.model, fits.rows)[:, 0].std() / error
    assert 0.4 < float(spread) < 1.5


def raised(model: StructuralCausalModel, rows: Transitions, column: int, theta: float) -> Tensor:
    """Each member's change of the next level where a column of (state, action) is raised by 1, for a subject of θ."""
    mechanism = mechanism_of(model)
    state, inputs = rows.state.expand(mechanism.members, -1, -1), context(rows.state, rows.action)
    inputs = torch.cat([inputs, torch.full((len(rows), 1), theta)], 1).expand(mechanism.members, -1, -1)
    more = inputs.clone()
    more[..., column] += 1
    noise = torch.zeros(*state.shape[:2], mechanism.noise_width)
    with torch.no_grad():
        return (mechanism.predict(more, state, noise) - mechanism.predict(inputs, state, noise))[..., LEVEL]


class TestSigns:
    def test_the_dose_and_what_remembers_it_never_raise_the_level_of_a_subject_within_three_deviations(
        self, fits: Fits
    ) -> None:
        """A law whose subjects differ ten times as much; at three deviations the largest difference has effect 0."""
        weights = {name: tensor.clone() for name, tensor in fits.law.mechanism.state_dict().items()}
        weights["law.effect"] *= 10
        built = fits.law.structure.build(4, mechanism_of(fits.law).context_width, 3)
        wide = fits.law.with_mechanism(with_weights(built, weights).eval())
        held = calibrate(wide, fits.rows, fits.estimates, 0)
        for column in (BOARD, len(STATES)):
            before, least, beyond = (
                max(float(raised(model, fits.rows, column, sign * size).max()) for sign in (1, -1))
                for model, size in ((wide, 3), (held, 3), (held, 3.5))
            )
            assert before > 0.1
            assert least <= 1e-5
            assert beyond > 1e-3

    def test_a_law_of_the_other_sign_is_held_to_the_declared_one_with_and_without_estimates(self, fits: Fits) -> None:
        """The dose lowers the level, and it is declared to raise it."""
        assert not sign_violations(fits.model.mechanism, Job(fits.rows))
        knowledge = replace(fits.rows.schema.knowledge, signs=(("dose", "level", 1),))
        schema = replace(fits.rows.schema, knowledge=knowledge)
        rows = replace(fits.rows, schema=schema)
        of = fits.model
        model = StructuralCausalModel(of.structure, of.mechanism, schema, of.origin, rows.row_hashes)
        assert sign_violations(model.mechanism, Job(rows))
        for estimates in (fits.estimates, None):
            held = calibrate(model, rows, estimates, 0)
            assert not sign_violations(held.mechanism, Job(rows))
            assert float(raised(held, rows, len(STATES), 0.0).abs().max()) < 1e-4


def test_the_effect_of_a_dose_is_inverse_to_the_column_that_it_acts_per(fits: Fits) -> None:
    light, heavy = fits.rows.state.clone(), fits.rows.state.clone()
    light[:, WEIGHT], heavy[:, WEIGHT] = 50, 100
    for column in (BOARD, len(STATES)):
        effect = [raised(fits.model, replace(fits.rows, state=state), column, 0.5) for state in (light, heavy)]
        torch.testing.assert_close(effect[0], 2 * effect[1], rtol=1e-3, atol=1e-4)


def test_a_move_changes_predictions_only_by_what_the_other_features_do_not_explain(fits: Fits) -> None:
    law = mechanism_of(calibrate(fits.law, fits.rows, None, 0)).law
    (dose,) = dose_columns(fits.rows.schema)
    features = DoseFeatures.of(law, dose, fits.rows)
    inputs = context(fits.rows.state, fits.rows.action).expand(law.members, -1, -1)
    state = fits.rows.state.expand(law.members, -1, -1)
    x = law.x(law.layout.features(inputs))[0].double()
    line = torch.cat([torch.ones(len(x), 1), x], 1)
    with torch.no_grad():
        before = law.step(inputs, state).mean.clone()
        features.set(law, 0, law.mean[:, features.own, 0] + 1)
        moved = (law.step(inputs, state).mean - before)[0].double()
    assert float(moved[:, 0].std()) > 0.1
    shared = line[:, features.others].T @ moved[:, 0] / len(line)
    assert float(shared.abs().max()) < 1e-4
    assert float((line[:, features.own].T @ moved[:, 0]).abs().min()) > 1
    assert float(moved[:, 1:].abs().sum()) == 0


class TestDoseColumns:
    def test_lags_and_recursions_are_found_through_one_another(self) -> None:
        """The columns stand in an order in which one pass over them finds only the last."""
        names = ("slow", "lag_of_board", "board", "clock", "lag_of_level", "level", "lag")
        recursions = (
            Recursion("slow", (("slow", 0.9), ("lag_of_board", 0.1))),
            Recursion("board", (("board", 0.5), ("a", 0.5))),
            Recursion("clock", (("clock", 1.0),), 1.0),
        )
        carried = (("lag_of_board", "board"), ("lag_of_level", "level"), ("lag", "b"))
        schema = Schema(
            tuple(map(Column, names)),
            cp.Box((0.0, 0.0), (1.0, 1.0)),
            ("a", "b"),
            knowledge=Knowledge(carried=carried, recursions=recursions),
        )
        first, second = dose_columns(schema)
        assert (first.name, first.action, first.inputs) == ("a", 0, (0, 1, 2, 7))
        assert (second.name, second.action, second.inputs) == ("b", 1, (6, 8))


def one_dose(estimate: float, error: float, members: int = 1) -> tuple[Tensor, Tensor, float]:
    """Standardised coefficients of a dose before and after calibration to one estimate, and the unit of the effect."""
    rows = responders(torch.full((30,), 0.8), 10, 1)
    model = RandomEffects(factors=0, changes=("difference",), ensemble=members, hidden=()).fit(rows)
    estimates = PartiallyLinearSCM(steps=(1,), effects=EffectSettings(boosted=False)).estimates(rows, 0)
    assert estimates is not None
    (one,) = estimates
    changed = EffectEstimates((replace(one, value=estimate, standard_error=error),))
    law, calibrated = (mechanism_of(m).law for m in (model, calibrate(model, rows, changed, 0)))
    assert not law.layout.combined, "a noise that is proportional to the mean would be part of the effect"
    before, after = (fitted.mean[:, 2, 0].detach() for fitted in (law, calibrated))
    return before, after, float(law.unit[0, 0, 0] / law.x.scale[0, 0, 1])


class TestTheCompromise:
    @pytest.mark.parametrize(("estimate", "error"), [(0.9, 0.1), (0.6, 0.2)])
    def test_by_hand_where_one_coefficient_is_the_effect(self, estimate: float, error: float) -> None:
        """β = (ψ̂·s/se² + β̂/p²) / (s²/se² + 1/p²) with s the effect of a unit of the coefficient."""
        before, after, unit = one_dose(estimate, error)
        fitted = float(before[0])
        alone = estimate * (1 - (error / estimate) ** 2) / unit
        doubt = (calibration.DOUBTS[0] * max(abs(fitted), abs(alone))) ** 2 + calibration.LEAST_DOUBT**2
        expected = (estimate * unit / error**2 + fitted / doubt) / (unit**2 / error**2 + 1 / doubt)
        assert float(after[0]) == pytest.approx(expected, rel=1e-3)

    def test_a_fit_that_contradicts_the_log_gives_way(self) -> None:
        """The log is clear, and has the other sign."""
        _, after, unit = one_dose(-0.8, 0.05)
        assert float(after[0]) * unit == pytest.approx(-0.8, abs=0.05)

    def test_a_fit_stays_where_the_log_does_not_show_the_effect(self) -> None:
        before, after, _ = one_dose(-0.8, 1e3)
        assert float(after[0]) == pytest.approx(float(before[0]), rel=1e-3)

    def test_mean_coefficients_shrink_by_their_standard_errors_over_members(self) -> None:
        before, after, _ = one_dose(0.0, float("inf"), members=4)
        kept = 1 - before.var() / before.mean() ** 2
        assert float(kept) < 0.9999
        torch.testing.assert_close(after - before, (before.mean() * (kept - 1)).expand(4), rtol=1e-3, atol=1e-7)


def test_a_log_of_few_subjects_has_no_estimates(fits: Fits) -> None:
    few = fits.rows[fits.rows.subject < 3]
    assert RECIPE.estimates(few, 0) is None
    assert RECIPE.estimates(fits.rows[fits.rows.subject < 4], 0) is not None


def test_columns_that_no_dose_changes_are_no_outcomes(fits: Fits) -> None:
    assert fits.estimates.outcomes == ("level",)
    assert fits.estimates.steps == STEPS
    assert {one.per for one in fits.estimates} == {"weight"}


def test_a_saved_model_answers_alike(fits: Fits, tmp_path: Path) -> None:
    fits.model.save(tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, StructuralCausalModel)
    assert loaded.recipe == RECIPE
    rows = fits.rows[:50]
    other = torch.zeros_like(rows.action)
    answers = [model.counterfactual(rows, other) for model in (fits.model, loaded)]
    torch.testing.assert_close(answers[0], answers[1], rtol=0, atol=1e-6)
    given = rows.action[:, 0] > 0.5
    assert bool((answers[0][given, LEVEL] > rows.next_state[given, LEVEL]).all())
    torch.testing.assert_close(loaded.counterfactual(rows, rows.action), rows.next_state, rtol=0, atol=1e-4)
