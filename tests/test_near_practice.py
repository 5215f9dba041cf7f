"""Policies near practice by hand, and how far the search goes from practice where it pays and where it does not."""

from dataclasses import dataclass, replace
from math import exp
from pathlib import Path

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Job, Origin
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.evolution import CrossEntropy
from counterpoint.learners.near_practice import NearPractice
from counterpoint.learners.practice import Practice
from counterpoint.models.effects.orthogonal import EffectSettings
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.effects.mechanism import EffectsMechanism
from counterpoint.models.scm.partially_linear import PartiallyLinearSCM
from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.ope.model_based import true_return
from counterpoint.policies.near_practice import DOSE_TILT, MIN_PROBABILITY, NearPracticePolicy, action_features
from counterpoint.policies.practice import PracticePolicy
from counterpoint.registry import load

PRACTICE = Practice(trees=5, folds=2, personal=False)
LAW = RandomEffects(factors=0, changes=("difference",), ensemble=3, hidden=())
MODEL = PartiallyLinearSCM(LAW, EffectSettings(boosted=False), (1, 2, 4))
SEARCH = NearPractice(
    MODEL,
    PRACTICE,
    CrossEntropy(candidates=16, elites=4, spread=0.4, extra=0.1),
    rounds=6,
    starts=4,
    choosing_starts=16,
)


@dataclass(frozen=True)
class Level(cp.KnownSCM):
    """s' = .7·s + 1 − effect·dose + .3·u, paid −s'²: with the clinicians' doses the level stays too high."""

    effect: float = 0.5
    actions = cp.Box((0.0,), (4.0,))
    state_names = ("level",)
    noise_width = 1
    discount, horizon = 0.99, 20

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -next_state.square().sum(-1)

    def terminated(self, next_state: Tensor) -> Tensor:
        return torch.zeros_like(next_state[..., 0]).bool()

    def initial(self, count: int, generator: torch.Generator) -> Tensor:
        return 1 + 0.5 * torch.randn(count, 1, generator=generator)

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, 1, generator=generator)

    def transition(self, state: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        return 0.7 * state + 1 - self.effect * action + 0.3 * noise


def clinicians(state: Tensor, random: torch.Generator) -> Tensor:
    """Doses that follow the level and vary; more than half the time they are below what the level needs."""
    return (0.8 + 0.4 * state + 0.4 * torch.randn(len(state), 1, generator=random)).clamp(0, 4)


def log(effect: float = 0.5, subjects: int = 24, seed: int = 1) -> Transitions:
    return cp.simulate(Level(effect), clinicians, subjects, 20, seed=seed)


def listed_log() -> Transitions:
    """Three treatments with shares of 60%, 39% and 1%, whatever the state."""
    random = torch.Generator().manual_seed(0)
    uniform = torch.rand(1500, generator=random)
    action = (uniform > 0.6).float() + (uniform > 0.99).float()
    state = torch.randn(1500, 2, generator=random)
    none = torch.zeros(1500, dtype=torch.bool)
    subject = torch.arange(30).repeat_interleave(50)
    return Transitions.logged(
        state=state,
        action=action[:, None],
        reward=state[:, 0],
        next_state=state,
        terminated=none,
        truncated=none,
        subject=subject,
        step=torch.arange(50).repeat(30),
        actions=Discrete.of([0.0, 1.0, 2.0]),
    )


def policy_of(
    practice: PracticePolicy, numbers: list[float], share: float = 1.0, offset: float = 0.0, drawn: float = 0.0
) -> NearPracticePolicy:
    """Columns are not standardised, so that the numbers are slopes and a level."""
    width = practice.schema.spread_width
    weights = {"numbers": torch.tensor(numbers), "share": torch.tensor(share), "drawn": torch.tensor(drawn)}
    weights |= {"mean": torch.zeros(width), "spread": torch.ones(width)}
    weights["offset"] = torch.full((practice.schema.actions.width,), offset)
    return NearPracticePolicy(SEARCH, practice, weights, practice.schema, Origin(0, "", ""))


@pytest.fixture(scope="module")
def doses() -> PracticePolicy:
    return PRACTICE.learned(Job(log()))


@pytest.fixture(scope="module")
def treatments() -> PracticePolicy:
    return PRACTICE.learned(Job(listed_log()))


LEVELS = torch.linspace(-1, 2.5, 20)[:, None]


class TestDoses:
    def test_without_a_tilt_it_is_practice_however_large_its_numbers(self, doses: PracticePolicy) -> None:
        for policy in (policy_of(doses, [3.0, -2.0], share=0.0, offset=0.2), policy_of(doses, [0.0, 0.0])):
            torch.testing.assert_close(policy.decide(LEVELS), doses.dose(LEVELS), rtol=0, atol=1e-6)

    def test_by_hand(self, doses: PracticePolicy) -> None:
        """Small numbers, so that nothing is clipped."""
        policy = policy_of(doses, [0.1, -0.4], share=0.5, offset=0.3)
        expected = (doses.dose(LEVELS) + 0.3) * (0.5 * (0.1 * LEVELS - 0.4)).exp() - 0.3
        torch.testing.assert_close(policy.decide(LEVELS), expected.clamp(*doses.range), rtol=0, atol=1e-5)
        assert bool((policy.decide(LEVELS) < doses.dose(LEVELS)).all())

    def test_the_tilt_is_bounded_and_doses_stay_within_the_logged_range(self, doses: PracticePolicy) -> None:
        usual = doses.dose(LEVELS)
        low, high = doses.range
        for numbers, bound in (([0.0, 50.0], DOSE_TILT[1]), ([0.0, -50.0], DOSE_TILT[0])):
            expected = (usual * exp(bound)).clamp(low, high)
            torch.testing.assert_close(policy_of(doses, numbers).decide(LEVELS), expected, rtol=0, atol=1e-5)
        raised = policy_of(doses, [0.0, 50.0]).decide(LEVELS)
        assert float(raised.max()) == pytest.approx(float(high))
        assert float(usual.max()) * exp(DOSE_TILT[1]) > float(high)

    def test_columns_are_clipped_so_that_no_line_leaves_the_log(self, doses: PracticePolicy) -> None:
        policy = policy_of(doses, [-0.2, 0.0])
        far, edge = torch.tensor([[100.0]]), torch.tensor([[3.0]])
        ratio = [float(policy.decide(state) / doses.dose(state)) for state in (far, edge)]
        assert ratio == pytest.approx([exp(-0.6)] * 2, rel=1e-4)

    def test_the_words_name_percentages_and_columns(self, doses: PracticePolicy) -> None:
        words = policy_of(doses, [0.1, -0.2]).explain()
        assert "11% more per 1 of level" in words
        assert "practice's median × exp(z)" in words
        assert policy_of(doses, [0.1, -0.2], share=0.0).explain().startswith("practice itself")


class TestListedActions:
    state = torch.tensor([[0.5, -1.0], [0.0, 2.0]])

    def test_without_a_tilt_probabilities_are_those_of_practice(self, treatments: PracticePolicy) -> None:
        policy = policy_of(treatments, [1.0, 2.0, 3.0], share=0.0, drawn=1.0)
        torch.testing.assert_close(policy.probabilities(self.state), treatments.probabilities(self.state))

    def test_by_hand(self, treatments: PracticePolicy) -> None:
        """Features are −½, 0 and ½; the third treatment is rare, so that its weight is at most 1."""
        assert action_features(treatments.schema)[:, 0].tolist() == [-0.5, 0.0, 0.5]
        usual = treatments.probabilities(self.state)
        assert bool((usual[:, 2] < MIN_PROBABILITY).all())
        for share, sign in ((1.0, 1), (0.5, 1), (0.5, -1)):
            policy = policy_of(treatments, [0.4 * sign, 0.2 * sign, 0.6 * sign], share, drawn=1.0)
            tilt = share * sign * (0.4 * self.state[:, 0] + 0.2 * self.state[:, 1] + 0.6)
            weights = torch.stack([(-tilt / 2).exp(), torch.ones(2), (tilt / 2).exp().clamp(max=1.0)], 1)
            expected = usual * weights / (usual * weights).sum(1, keepdim=True)
            torch.testing.assert_close(policy.probabilities(self.state), expected)
            chosen = policy_of(treatments, [0.4 * sign, 0.2 * sign, 0.6 * sign], share).probabilities(self.state)
            assert torch.equal(chosen, torch.nn.functional.one_hot(expected.argmax(1), 3).float())

    def test_draws_have_the_probabilities(self, treatments: PracticePolicy) -> None:
        policy = policy_of(treatments, [0.0, 0.0, 2.0], drawn=1.0)
        state = self.state[:1].expand(4000, -1)
        shares = policy(state, torch.Generator().manual_seed(0)).squeeze(1).long().bincount(minlength=3) / 4000
        torch.testing.assert_close(shares, policy.probabilities(self.state[:1])[0], rtol=0, atol=0.03)
        assert float(shares[1]) > 0.5


@pytest.fixture(scope="module")
def learned() -> NearPracticePolicy:
    return SEARCH.fit(log(), Level())


def mean_return(policy: cp.Policy) -> float:
    return float(true_return(policy, Level(), 200, seed=5).mean())


class TestTheSearch:
    def test_it_is_better_than_practice_where_more_of_the_dose_is_better(self, learned: NearPracticePolicy) -> None:
        assert float(learned.share) > 0
        assert mean_return(learned) > 0.8 * mean_return(learned.practice)
        state = log().state
        assert float(learned.decide(state).mean()) > 1.2 * float(learned.practice.dose(state).mean())
        assert "of the tilt is taken" in learned.explain()
        assert " per " in learned.explain()

    @pytest.mark.parametrize("seed", [1, 2])
    def test_it_is_practice_itself_where_the_dose_does_nothing(self, seed: int) -> None:
        policy = SEARCH.fit(log(0.0, seed=seed), Level(0.0))
        assert float(policy.share) == 0
        torch.testing.assert_close(policy.decide(LEVELS), policy.practice.dose(LEVELS), rtol=0, atol=1e-6)
        assert policy.explain().startswith("practice itself")

    def test_no_share_above_the_largest_is_taken(self, learned: NearPracticePolicy) -> None:
        assert float(replace(SEARCH, most_share=0.25).fit(log(), Level()).share) <= 0.25 < float(learned.share)

    def test_fewer_than_eight_subjects_are_not_split(self) -> None:
        policy = SEARCH.fit(log(subjects=7), Level())
        assert float(policy.share) == 0
        assert any("7 subjects are too few" in note for note in policy.notes)

    def test_in_a_model_that_diverges_it_is_practice_itself(self) -> None:
        rows = log(subjects=10)
        model = LAW.fit(rows)
        assert isinstance(model.mechanism, EffectsMechanism)
        with torch.no_grad():
            model.mechanism.law.mean.mul_(1e30)
        assert isinstance(model, StructuralCausalModel)
        policy = SEARCH.with_models([Job(rows)], [model], Level())[0].selected
        assert float(policy.share) == 0
        assert any("no finite return" in note for note in policy.notes)

    def test_a_saved_policy_decides_alike(self, learned: NearPracticePolicy, tmp_path: Path) -> None:
        learned.save(tmp_path)
        loaded = load(tmp_path)
        assert isinstance(loaded, NearPracticePolicy)
        assert torch.equal(loaded.decide(LEVELS), learned.decide(LEVELS))
        assert loaded.explain() == learned.explain()
        assert loaded.recipe == SEARCH
