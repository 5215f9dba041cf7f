"""Search: rules by hand, objectives by hand, optimisers on known optima, and policies found inside a fitted model."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Job
from counterpoint.data.schema import Column, Schema
from counterpoint.data.transitions import concatenate
from counterpoint.learners.evolution import SearchDistribution
from counterpoint.learners.search import SearchLearner
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.nets.learner import Stepper
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.base import Policy
from counterpoint.policies.rule import is_ordered, middle_doses
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout
from helpers.search import DRIFT, LOG, MODEL_RECIPE, SEARCH, Drift, policy

SHAPES = False


@pytest.fixture(scope="module")
def model() -> StructuralCausalModel:
    return MODEL_RECIPE.fit(LOG)


def test_an_ordered_dose_is_the_nearest_to_a_squashed_line() -> None:
    schema = Schema.of(["x", "y"], cp.Discrete.of([0.0, 1.0, 3.0]))
    found = policy([0.5, -1.0, 0.25], schema, cp.policies.OrderedDose(), [1.0, 0.0], [2.0, 4.0])
    for x, y in [(1.0, 0.0), (5.0, -8.0), (-3.0, 8.0), (0.0, 1.0)]:
        dose = 1.5 + 1.5 * math.tanh(0.5 * (x - 1) / 2 - y / 4 + 0.25)
        nearest = min([0.0, 1.0, 3.0], key=lambda d: abs(d - dose))
        assert found.act([x, y]) == [nearest]


def test_scored_actions_take_the_highest_score() -> None:
    schema = Schema.of(["x"], cp.Discrete.one_hot(3))
    found = policy([1.0, -1.0, 0.0, 0.0, 0.0, 0.5], schema, cp.policies.ScoredActions(), [0.0], [1.0])
    assert [found.actions.index(found.act(torch.tensor([[x]]))).item() for x in (2.0, -2.0, 0.1)] == [0, 1, 2]


def test_a_network_is_layers_of_tanh() -> None:
    actions, rule = cp.Box((-2.0,), (2.0,)), cp.policies.OrderedDose(hidden=(3,))
    numbers = torch.linspace(-1, 1, rule.width(2, actions))
    x = torch.tensor([[0.3, -0.7]])
    hidden = torch.tanh(x @ numbers[:6].view(2, 3) + numbers[6:9])
    by_hand = 2 * torch.tanh(hidden @ numbers[9:12].view(3, 1) + numbers[12:])
    assert rule.width(2, actions) == 13
    doses = middle_doses(actions)[None]
    torch.testing.assert_close(rule.choose(rule.scores(numbers[None], x[None], actions), actions, doses)[0], by_hand)


def test_what_is_ordered_is_told_from_the_space() -> None:
    assert is_ordered(cp.Box((0.0,), (1.0,)))
    assert is_ordered(cp.Discrete.of([0, 1]))
    assert is_ordered(cp.Discrete(((0.0, 0.0), (0.0, 1.0), (1.0, 0.0))))
    assert not is_ordered(cp.Discrete.one_hot(3))
    assert isinstance(cp.Search().rule_for(cp.Discrete.one_hot(3)), cp.policies.ScoredActions)
    assert isinstance(cp.Search().rule_for(cp.Discrete.of([0, 1])), cp.policies.OrderedDose)


def test_a_rule_is_said_in_the_units_of_the_columns() -> None:
    states = (Column("lactate", unit="mmol/L"), Column("sex", levels=("f", "m")))
    schema = Schema(states, cp.Box((0.0,), (4.0,)), ("dose",))
    found = policy([1.0, 0.5, -0.5, 0.25], schema, cp.policies.OrderedDose(), [2.0, 0.0, 0.0], [0.5, 1.0, 1.0])
    said = "dose = 2 + 2 · tanh(−3.75 + 2·lactate (mmol/L) + 0.5·[sex = f] − 0.5·[sex = m])"
    assert found.explain() == said
    dose = 2 + 2 * math.tanh(-3.75 + 2 * 2.5 - 0.5)
    torch.testing.assert_close(found.act(torch.tensor([[2.5, 1.0]])), torch.tensor([[dose]]))
    network = policy(
        [0.0] * 13, Schema.of(["x", "y"], cp.Box((0.0,), (4.0,))), cp.policies.OrderedDose((3,)), [0.0] * 2, [1.0] * 2
    )
    assert "cannot be said in words" in network.explain()


def test_scores_are_said_action_by_action() -> None:
    schema = Schema.of(["x"], cp.Discrete.one_hot(2))
    found = policy([1.0, -2.0, 0.0, 0.5], schema, cp.policies.ScoredActions(), [0.0], [1.0])
    assert found.explain().splitlines()[1].endswith("= 0 + 1·x")
    assert found.explain().splitlines()[2].endswith("= 0.5 − 2·x")


def test_objectives_by_hand() -> None:
    returns = torch.tensor([[[[1.0, 3.0]], [[4.0, 4.0]], [[6.0, 6.0]], [[10.0, 10.0]]]])  # Four members, one candidate.
    assert cp.simulation.MeanReturn()(returns).item() == 5.5
    assert cp.simulation.LowerBound(2.0)(returns).item() == pytest.approx(
        5.5 - 2 * torch.tensor([2.0, 4, 6, 10]).std(correction=0)
    )
    assert cp.simulation.WorstShare(0.25)(returns).item() == 2.0
    assert cp.simulation.WorstShare(0.5)(returns).item() == 3.0
    assert cp.simulation.WorstShare(0.01)(returns).item() == 2.0
    assert cp.simulation.WorstShare(0.3)(returns).item() == 3.0


@pytest.mark.parametrize(
    "how", [cp.learners.CrossEntropy(candidates=40, elites=8), cp.learners.EvolutionStrategy(candidates=40)]
)
def test_optimisers_find_each_problem_s_own_optimum(
    how: cp.learners.CrossEntropy | cp.learners.EvolutionStrategy,
) -> None:
    goal, random = torch.tensor([[0.7, -1.2, 0.4], [-0.5, 0.3, 1.5]]), torch.Generator().manual_seed(0)
    found = how.start(torch.randn(2, 3, 3, generator=random), torch.ones(3))
    rounds = 60
    for i in range(rounds):
        half = torch.randn(2, 3, 20, 3, generator=random)
        draw = torch.cat([half, -half], 2)
        score = -(found.candidates(draw) - goal[:, None, None]).square().sum(-1)
        how.learn(found, draw, score, torch.tensor(i / rounds))
    assert (found.mean - goal[:, None]).abs().max() < 0.1


def test_cross_entropy_fits_the_best_and_adds_a_deviation_that_falls_with_the_rounds() -> None:
    """The best two of 5, 1, −1, −5 have mean 3 and variance 4. Half of the extra deviation of 3 gives √(4 + 1.5²) = 2.5
    and none of it 2. A step of 0.5 goes half of the way there from mean 0 and deviation 1."""
    how = cp.learners.CrossEntropy(candidates=4, elites=2, extra=3.0, step=0.5)
    draw = torch.tensor([5.0, 1.0, -1.0, -5.0]).view(1, 1, 4, 1)
    for done, deviation in ((0.5, 1.75), (1.0, 1.5)):
        found = how.start(torch.zeros(1, 1, 1), torch.ones(1))
        how.learn(found, draw, draw[..., 0], torch.tensor(done))
        assert found.mean.item() == pytest.approx(1.5)
        assert found.deviation.item() == pytest.approx(deviation)


def test_every_round_of_a_search_knows_the_share_of_rounds_that_are_done(model: StructuralCausalModel) -> None:
    shares: list[float] = []

    class Watched(cp.learners.CrossEntropy):
        def learn(self, found: SearchDistribution, draw: Tensor, score: Tensor, share: Tensor) -> None:
            shares.append(float(share))

    four = Schedule(steps=4, check_every=2, log_every=2)
    learner = learner_of(model, optimizer=Watched(candidates=4, elites=2), schedule=four)
    for _ in range(4):
        drawn = learner.draw(0, torch.Generator().manual_seed(0), 1)
        learner.update({name: tensor[:1] for name, tensor in drawn.items()})
    assert shares == [0, 0.25, 0.5, 0.75]


def test_the_rule_found_is_the_best_one() -> None:
    """a = −s: inside ±½ the squashed line is nearly straight, and its slope in each column is the other's to leave."""
    found = SEARCH.fit(LOG, DRIFT)
    states = torch.tensor([[0.4, 0.0], [0.0, 0.4], [-0.3, 0.2]])
    torch.testing.assert_close(found.act(states), -states, atol=0.2, rtol=0)
    assert cp.true_return(found, DRIFT, 50).mean() > -1.0 > cp.true_return(_still(), DRIFT, 50).mean()
    assert found.return_in_model == pytest.approx(float(cp.true_return(found, DRIFT, 200).mean()), abs=0.3)


def _still() -> Policy:
    return policy([0.0] * 6, LOG.schema, cp.policies.OrderedDose(), [0.0, 0.0], [1.0, 1.0])


def learner_of(model: StructuralCausalModel, **changes: object) -> SearchLearner:
    how = replace(SEARCH, draws=None, **changes)  # pyright: ignore[reportArgumentType]
    return SearchLearner(how, ModelSimulator([model]), [Job(LOG)], DRIFT, [5])


def test_candidates_are_tried_in_every_member_under_the_same_chance(model: StructuralCausalModel) -> None:
    learner = learner_of(model)
    random = torch.Generator().manual_seed(0)
    drawn = {name: tensor[0][None] for name, tensor in learner.draw(0, random, 1).items()}
    numbers = torch.randn(1, 3, learner.width, generator=random)
    numbers[:, 2] = numbers[:, 0]
    returns = learner.returns(numbers, drawn["start"], drawn["noise"], priced=False)
    assert torch.equal(returns[:, :, 0], returns[:, :, 2])
    assert not torch.equal(returns[:, :, 0], returns[:, :, 1])
    own = learner.policies({"numbers": numbers[:, 1], "returns": torch.zeros(1, 2)})[0]
    start = learner.state[0][drawn["start"][0]].flatten(0, 1)[None]
    alone = Rollout(learner.simulator, DRIFT, own.actor())
    stream = lambda t: (drawn["noise"][:, t].flatten(1, 2),)
    torch.testing.assert_close(alone.returns(start, stream, 8).view(2, -1), returns[0, :, 1])


@pytest.mark.parametrize("allowed", [True, False])
def test_factors_are_rounded_where_candidates_are_tried_and_not_where_one_is_chosen(
    model: StructuralCausalModel, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    learner, precisions = learner_of(model, allow_tf32=allowed, support_price=0.0), []
    plain = learner.returns

    def returns(*given: Tensor, **named: Tensor) -> Tensor:
        precisions.append(torch.backends.cuda.matmul.fp32_precision)
        return plain(*given, **named)

    monkeypatch.setattr(learner, "returns", returns)
    before, stepper = torch.backends.cuda.matmul.fp32_precision, Stepper(learner)
    draws = learner.draw(0, torch.Generator().manual_seed(0), 1)
    stepper.load({name: tensor[:, None] for name, tensor in draws.items()})
    stepper.step()
    learner.score()
    assert precisions == ["tf32" if allowed else before, before]
    assert before != "tf32"


def test_a_pool_s_noise_belongs_to_its_member(model: StructuralCausalModel) -> None:
    pool = model.abduct(LOG).unflatten(1, (2, -1))
    drawn = cp.simulation.NoisePool().sampler(model, Job(LOG))(3, 2, 4, torch.Generator().manual_seed(0))
    for member in range(2):
        known = {tuple(row) for row in pool[:, member].tolist()}
        assert all(tuple(row) in known for row in drawn[:, member].flatten(0, 1).tolist())


def test_a_search_does_not_depend_on_the_jobs_beside_it() -> None:
    other = cp.simulate(DRIFT, cp.random_policy(DRIFT), 20, 8, seed=9)
    brief = replace(SEARCH, schedule=Schedule(steps=4, check_every=2, log_every=2))
    alone = brief.fit_many([Job(LOG, 3)], DRIFT)[0].selected
    beside = brief.fit_many([Job(other, 4), Job(LOG, 3)], DRIFT)[1].selected
    torch.testing.assert_close(alone.weights()["numbers"], beside.weights()["numbers"], rtol=1e-4, atol=1e-5)


def test_the_best_of_all_checks_and_restarts_is_kept(model: StructuralCausalModel) -> None:
    learner = learner_of(model, restarts=3)
    learner.distribution.mean.copy_(torch.zeros_like(learner.distribution.mean))
    learner.distribution.mean[0, 1, [0, 3]] = -0.8  # About a = −s: x on the first dose, y on the second.
    assert learner.score().shape == (1,)
    assert torch.equal(learner.incumbents.numbers[0], learner.distribution.mean[0, 1])
    returns = learner.returns(learner.distribution.mean, **learner.choosing, priced=False)
    torch.testing.assert_close(learner.incumbents.returns[0], returns[0, :, 1].mean(-1))


def test_a_saved_policy_answers_alike(tmp_path: Path) -> None:
    found = replace(SEARCH, schedule=Schedule(steps=2, check_every=1, log_every=1)).fit(LOG, DRIFT)
    found.save(tmp_path / "policy")
    again = cp.load(tmp_path / "policy", cp.Policy, [Drift])
    assert torch.equal(again.act(LOG.state), found.act(LOG.state))
    assert again.return_in_model == found.return_in_model
    frame = again.act(_frame(LOG.state[:3]))
    assert list(frame.columns) == ["action_0", "action_1"]


def _frame(state: Tensor) -> object:
    import pandas as pd

    return pd.DataFrame(state.numpy(), columns=["x", "y"])


def test_a_stopped_search_goes_on_to_the_same_policy(tmp_path: Path) -> None:
    whole = SEARCH.fit(LOG, DRIFT)

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "search" and done >= 8:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        SEARCH.fit(LOG, DRIFT, monitor=Monitor(tmp_path, report=stop, save_seconds=0))
    resumed = SEARCH.fit(LOG, DRIFT, monitor=Monitor(tmp_path, resume=True))
    assert torch.equal(resumed.weights()["numbers"], whole.weights()["numbers"])


@dataclass(frozen=True)
class Endless(Drift):
    horizon = 0


def test_what_cannot_be_searched_is_refused_in_one_line(model: StructuralCausalModel) -> None:
    with pytest.raises(cp.CounterpointError, match="has no horizon"):
        SEARCH.fit(LOG, Endless())
    with pytest.raises(cp.CounterpointError, match="the doses are continuous; use OrderedDose"):
        replace(SEARCH, rule=cp.policies.ScoredActions()).fit(LOG, DRIFT)
    broken = MODEL_RECIPE.fit(LOG)
    with torch.no_grad():
        broken.mechanism.law.slope.fill_(torch.nan)
    with pytest.raises(
        cp.CounterpointError, match="no policy has a finite return inside the fitted model; check the model"
    ):
        replace(SEARCH, draws=None).with_models([Job(LOG)], [broken], DRIFT)
    with pytest.raises(cp.CounterpointError, match="task"):
        SEARCH.fit(LOG, cp.CartPole())


def test_an_evolution_strategy_wants_pairs() -> None:
    with pytest.raises(cp.CounterpointError, match="mirrored pairs"):
        cp.learners.EvolutionStrategy(candidates=7)
    with pytest.raises(cp.CounterpointError, match="use fewer"):
        cp.learners.CrossEntropy(candidates=4, elites=5)
    with pytest.raises(cp.CounterpointError, match="1 candidates are no mirrored pairs"):
        cp.learners.CrossEntropy(candidates=1, elites=1)


def test_a_search_that_never_looks_keeps_nothing_and_is_refused() -> None:
    with pytest.raises(cp.CounterpointError, match=r"set schedule\.check_every to 1 or more"):
        cp.Search(schedule=Schedule(steps=5))


def test_leaving_the_log_has_its_price(model: StructuralCausalModel) -> None:
    free, priced = learner_of(model, support_price=0.0), learner_of(model, support_price=100.0)
    drawn = {name: tensor[:1] for name, tensor in free.draw(0, torch.Generator().manual_seed(0), 1).items()}
    numbers = torch.zeros(1, 2, free.width)
    numbers[:, 1, 4:] = 5.0  # Always the largest dose: far from everything within a few steps.
    before, after = (each.returns(numbers, drawn["start"], drawn["noise"]) for each in (free, priced))
    assert (before - after)[:, :, 0].max() <= 100
    assert (before - after)[:, :, 1].min() >= 300


def test_near_the_log_is_where_logged_pairs_are() -> None:
    from counterpoint.checks.support import NearLog

    near = NearLog([LOG, LOG[:50]], [0, 1])
    state, action = LOG.state.expand(2, -1, -1), LOG.action.expand(2, -1, -1)
    assert near.outside(state, action)[0].float().mean() < 0.03
    assert bool(near.outside(state + 20, action).all())
    assert bool(near.outside(state, action + 20).all())


def test_imagined_rows_do_not_bring_a_step_near_the_log() -> None:
    from counterpoint.checks.support import NearLog

    imagined = replace(LOG, state=LOG.state + 20, imagined=torch.ones(len(LOG), dtype=torch.bool))
    near = NearLog([concatenate([LOG, imagined])], [0], most=2 * len(LOG))
    assert bool(near.outside(LOG.state[None] + 20, LOG.action[None]).all())
