"""Scores of models over several steps by hand, and the choice of a model by paths and by effects of doses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import counterpoint as cp
from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Column, Schema
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Recipe
from counterpoint.models.effects.estimates import EffectEstimate, EffectEstimates
from counterpoint.models.scm.auto import AutoSCM, HeldOutScores, _agreeing, _selection
from counterpoint.models.scm.base import StructuralCausalModel, StructuralMechanism
from counterpoint.models.scm.density import DensitySCM
from counterpoint.models.scm.partially_linear import PartiallyLinearSCM
from counterpoint.models.scm.path_scores import FEWEST_PATHS, STEPS, Reaction, effect_misfit, path_scores
from counterpoint.nets.training import Monitor
from helpers.dosing import log_of

MEALS = Schema(
    (Column("level"), Column("meal")), cp.Box((-20.0,), (20.0,)), ("dose",), knowledge=Knowledge(exogenous=("meal",))
)


def walks(lengths: Sequence[int]) -> Transitions:
    """Random walks of a level with meals that move it, one subject for each length."""
    random = torch.Generator().manual_seed(0)
    subject = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    meal, after = torch.randn(2, len(subject), generator=random)
    same = torch.cat([subject[1:] == subject[:-1], torch.tensor([False])])
    after = torch.where(same, meal.roll(-1), after)
    level = torch.zeros(len(subject))
    for row in range(1, len(level)):
        level[row] = level[row - 1] + meal[row - 1] if bool(same[row - 1]) else 0.0
    state = torch.stack([level, meal], 1)
    return log_of(state, torch.zeros(len(state), 1), torch.stack([level + meal, after], 1), subject, schema=MEALS)


def simulated_by(sample: Callable[[Tensor], Tensor]) -> Any:
    """A model whose next states are a function of the state."""
    return SimpleNamespace(sample=lambda state, *_: sample(state), theta_width=0, schema=MEALS)


def lasting(size: float) -> Callable[[Tensor], Tensor]:
    """The true next state, with `size` added to the level in one call and taken off in the next."""
    sign = cycle((1, -1))

    def sample(state: Tensor) -> Tensor:
        shift = size * next(sign)
        return torch.stack([state[:, 0] + state[:, 1] + shift, torch.full((len(state),), 1e6)], 1)

    return sample


class TestPathScore:
    rows = walks([40, 25])

    def score(self, sample: Callable[[Tensor], Tensor]) -> Tensor:
        scores = path_scores(simulated_by(sample), Job(self.rows), 0)
        assert scores is not None
        return scores

    def test_a_model_without_noise_by_hand(self) -> None:
        """Predicted to stay, a level is off by its own change; a unit is that change's standard deviation."""
        changes = []
        for step in range(1, STEPS + 1):
            by_subject = [
                torch.cat([self.rows.state[start:end, 0], self.rows.next_state[end - 1 : end, 0]])
                for start, end in ((0, 40), (40, 65))
            ]
            changes.append([own[step : len(own) - STEPS + step] - own[:-STEPS] for own in by_subject])
        expected = [
            torch.stack([one[subject].abs() / torch.cat(one).std() for one in changes]).mean() for subject in (0, 1)
        ]
        torch.testing.assert_close(self.score(lambda state: state), torch.stack(expected))

    def test_exogenous_columns_are_those_of_the_record_and_are_not_scored(self) -> None:
        """The law of meals predicts nonsense, and the level follows the logged ones."""
        torch.testing.assert_close(self.score(lasting(0.0)), torch.zeros(2), rtol=0, atol=1e-5)

    def test_draws_on_both_sides_are_as_far_from_the_truth_as_half_their_distance(self) -> None:
        torch.testing.assert_close(self.score(lasting(0.7)), torch.zeros(2), rtol=0, atol=1e-5)

    def test_records_of_single_steps_have_no_paths(self) -> None:
        still = simulated_by(lambda state: state)
        assert path_scores(still, Job(walks([1] * 200)), 0) is None
        assert path_scores(still, Job(walks([STEPS] * (FEWEST_PATHS - 1))), 0) is None
        assert path_scores(still, Job(walks([STEPS] * FEWEST_PATHS)), 0) is not None


class TestReaction:
    def test_doses_move_with_the_predicted_state_as_the_clinicians_would(self) -> None:
        rows = confounded(100)
        reaction = Reaction(rows)
        seen, predicted = rows.state[:500], rows.state[500:1000]
        moved = reaction.action(rows.action[:500], seen, predicted)
        torch.testing.assert_close(moved - rows.action[:500], seen - predicted, rtol=0, atol=0.2)
        assert torch.equal(reaction.action(rows.action, rows.state, rows.state), rows.action)

    def test_the_actions_exist_and_a_model_that_diverges_changes_none(self) -> None:
        rows = confounded(100)
        listed = replace(
            rows,
            action=(rows.action > 0).float(),
            schema=Schema((Column("y"),), cp.Discrete.of([0.0, 1.0]), ("dose",)),
        )
        moved = Reaction(listed).action(listed.action, listed.state, -listed.state)
        assert sorted(moved.unique().tolist()) == [0.0, 1.0]
        assert float((moved != listed.action).float().mean()) > 0.5
        narrow = replace(rows, schema=Schema((Column("y"),), cp.Box((-1.0,), (1.0,)), ("dose",)))
        far = Reaction(narrow).action(rows.action.clamp(-1, 1), rows.state, torch.full_like(rows.state, 1e9))
        assert float(far.min()) == float(far.max()) == -1
        nowhere = torch.full_like(rows.state, torch.nan)
        assert torch.equal(Reaction(rows).action(rows.action, rows.state, nowhere), rows.action)


class Dosed(StructuralMechanism):
    """y' = decay·y + effect·dose + u."""

    def __init__(self, decay: float, effect: float) -> None:
        super().__init__()
        self.members, self.noise_width, self.context_width = 1, 1, 2
        self.decay, self.effect = nn.Parameter(torch.tensor(decay)), nn.Parameter(torch.tensor(effect))

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return self.decay * state + self.effect * context[..., 1:2] + noise

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return next_state - self.predict(context, state, torch.zeros_like(state))


@dataclass(frozen=True)
class Fixed(Recipe[StructuralCausalModel]):
    """Returns the same mechanism for every log."""

    decay: float
    effect: float

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        return [model_of(job.data, self.decay, self.effect) for job in jobs]


@dataclass(frozen=True)
class Refusing(Recipe[StructuralCausalModel]):
    """Is not for these columns."""

    reason: str = "no such columns"

    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        raise CounterpointError(self.reason)


def model_of(rows: Transitions, decay: float, effect: float) -> StructuralCausalModel:
    return StructuralCausalModel(DensitySCM(), Dosed(decay, effect), rows.schema, Origin.of(Job(rows)), rows.row_hashes)


def confounded(subjects: int = 60, steps: int = 12) -> Transitions:
    """y' = .5·y + .4·dose + u with a dose that almost follows from y: dose = −y + .3·e."""
    random = torch.Generator().manual_seed(0)
    level, states, doses, after = torch.randn(subjects, generator=random), [], [], []
    for _ in range(steps):
        dose = -level + 0.3 * torch.randn(subjects, generator=random)
        states.append(level)
        doses.append(dose)
        level = 0.5 * level + 0.4 * dose + torch.randn(subjects, generator=random)
        after.append(level)
    state, action, following = (torch.stack(table, 1).reshape(-1, 1) for table in (states, doses, after))
    subject = torch.arange(subjects).repeat_interleave(steps)
    return log_of(state, action, following, subject, state_names=("y",), action_names=("dose",))


RIGHT, WRONG = Fixed(0.5, 0.4), Fixed(0.1, -0.05)
"""Both predict logged doses alike; the second has almost no effect of the dose, of the wrong sign."""


def estimate(step: int, value: float, error: float) -> EffectEstimate:
    return EffectEstimate("dose", "y", step, value, error, 50.0, 1.0, 1.0, 0.5, 100)


class TestEffectMisfit:
    def test_by_hand(self) -> None:
        """Effects of the model are .4 and .5·.4; what the log cannot tell does not count."""
        estimates = EffectEstimates((estimate(1, 0.6, 0.1), estimate(2, -0.1, 0.2), estimate(3, 0.0, float("inf"))))
        rows = confounded(10)
        first, second = (0.4 - 0.6) ** 2 / (0.1**2 + 0.12**2), (0.2 + 0.1) ** 2 / (0.2**2 + 0.02**2)
        assert effect_misfit(model_of(rows, 0.5, 0.4), rows, estimates, 0) == pytest.approx(
            (first + second) / 2, rel=1e-4
        )

    def test_none_where_the_log_supports_no_effect(self) -> None:
        rows = confounded(10)
        nothing = EffectEstimates((estimate(1, 0.0, float("inf")),))
        assert effect_misfit(model_of(rows, 0.5, 0.4), rows, nothing, 0) is None


def test_a_model_of_wrong_effects_is_passed_over_although_it_predicts_as_well() -> None:
    """Paths under the logged doses would favour it: later doses follow later levels, and tell of them."""
    rows = confounded(200)
    chosen = AutoSCM((Refusing(), WRONG, RIGHT)).select([Job(rows)])[0]
    wrong, right = chosen.candidates
    assert wrong.path_score == pytest.approx(right.path_score, rel=0.05)
    assert wrong.effect_misfit is not None
    assert right.effect_misfit is not None
    assert wrong.effect_misfit > 4 > right.effect_misfit
    assert chosen.recipe is RIGHT
    assert chosen.why.endswith("The dose effects of Fixed contradict the log's own.")


class TestTheChoice:
    recipes = (RIGHT, WRONG)

    def test_by_paths_where_records_are_long_whatever_the_likelihood(self) -> None:
        scores = [
            HeldOutScores(torch.zeros(3), torch.zeros(3), torch.tensor(path)) for path in ([0.0, 0.0], [1.0, 1.1])
        ]
        likely = replace(scores[0], log_likelihood=torch.tensor([9.0, 9.1, 9.0]))
        choice = _selection(self.recipes, [likely, scores[1]])
        assert choice.recipe is WRONG
        assert "the courses of 2 held-out subjects" in choice.why
        without = [replace(one, negative_path=None) for one in (likely, scores[1])]
        assert _selection(self.recipes, without).recipe is RIGHT

    def test_where_all_contradict_the_log_the_nearest_stay(self) -> None:
        scores = [HeldOutScores(None, torch.zeros(3), effect_misfit=misfit) for misfit in (50.0, 9.0, 17.0, 19.0)]
        assert _agreeing(scores) == [1, 2]
        assert _agreeing([replace(scores[0], effect_misfit=misfit) for misfit in (3.9, 4.1, None)]) == [0, 2]

    def test_tables_of_single_steps_are_compared_by_rows(self) -> None:
        rows = confounded(300, 1)
        choice = AutoSCM((WRONG, Fixed(0.5, 2.0))).select([Job(rows)])[0]
        assert all(candidate.path_score is None for candidate in choice.candidates)
        assert "held-out rows" in choice.why

    def test_a_table_that_no_candidate_is_for_is_refused_with_the_first_reason(self) -> None:
        with pytest.raises(CounterpointError, match="no such columns"):
            AutoSCM((Refusing(), Refusing("another"))).select([Job(confounded(10))])

    def test_candidates_are_compared_with_few_members(self) -> None:
        recipe = AutoSCM()
        linear, density = (recipe._brief(candidate) for candidate in (PartiallyLinearSCM(), DensitySCM()))
        assert isinstance(linear, PartiallyLinearSCM)
        assert isinstance(density, DensitySCM)
        assert linear.law.ensemble == density.ensemble == recipe.members
        assert recipe._brief(RIGHT) is RIGHT
