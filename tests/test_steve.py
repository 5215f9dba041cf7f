"""STEVE's weights and targets against cases worked by hand, and MVE against what it reduces to."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import counterpoint
from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Job, Origin
from counterpoint.learners.baselines.steve import (
    MVE,
    STEVE,
    ExpansionTarget,
    ValueExpansion,
    inverse_variance,
    last_horizon,
)
from counterpoint.learners.d3qn import (
    D3QN,
    QLearner,
    QObjective,
    table,
)
from counterpoint.models.base import Model
from counterpoint.models.dynamics.base import (
    DynamicsModel,
    LawNetwork,
)
from counterpoint.models.dynamics.deterministic import (
    Deterministic,
    PointLaw,
)
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.policies.base import joint_actor
from counterpoint.simulation.rollout import Actor
from counterpoint.simulation.selection import (
    CheckpointSelection,
    CheckpointSelector,
)
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.base import Task
from counterpoint.tasks.cartpole import CartPole
from helpers.selectors import FunctionSelector

SMALL = D3QN(hidden=(16,), schedule=Schedule(steps=40), batch=32)
MODEL = Deterministic(hidden=(8,), batch_norm=False, likelihood=Likelihood(schedule=Schedule(steps=20)))
ONE, TWO = replace(MODEL, ensemble=1), replace(MODEL, ensemble=2)


def logged(trials: int = 20, seed: int = 0):
    task = CartPole()
    return simulate(task, random_policy(task), trials, 20, seed)


def by_hand(recipe: ValueExpansion) -> tuple[ExpansionTarget, QLearner]:
    """CartPole's states with constant models: transition model d moves the cart by 0.5 + d, reward model m says 1 + m,
    Q-function l says 10 + l for action 0 and less for the others; the target network says 100 times as much."""
    task, data = CartPole(), logged(5)
    models, members = recipe.model, recipe.model.ensemble
    mechanism = models.build(4, 5, members)
    mechanism.network.y.mean[:, 0, 0] = 0.5 + torch.arange(members)
    origin = Origin(0, "", "")
    model = DynamicsModel(models, mechanism, task.schema, origin, torch.zeros(0).long())
    reward = None
    if recipe.rewards:
        reward = LawNetwork(recipe.rewards, 9, 1, PointLaw(), (), batch_norm=False)
        reward.y.mean[:, 0, 0] = 1.0 + torch.arange(recipe.rewards)
    expansion = ExpansionTarget(recipe, [model], reward, task)
    online, objective = recipe.build(4, 11, recipe.q_functions), QObjective(task.actions, expansion)
    learner = QLearner(online, recipe.build, [table(Job(data))] * recipe.q_functions, recipe.learner, objective, None)
    for network, scale in ((learner.online, 1.0), (learner.target, 100.0)):
        # value + advantage − mean advantage with advantages (11, 0, …, 0): Q of action 0 is value + 10
        network.net.layers[-1].bias.data[:, 0, 0] = scale * torch.arange(recipe.q_functions)
        network.net.layers[-1].bias.data[:, 0, 1] = scale * 11.0
    return expansion, learner


def test_weights_of_a_case_worked_by_hand() -> None:
    variance = torch.tensor([1.0, 0.5, 4.0])[:, None, None]
    # 1/1 : 1/0.5 : 1/4 = 4 : 8 : 1
    torch.testing.assert_close(inverse_variance(variance).flatten(), torch.tensor([4.0, 8.0, 1.0]) / 13)
    equal = inverse_variance(torch.zeros(4, 1, 1)).flatten()
    torch.testing.assert_close(equal, torch.full((4,), 0.25))
    assert last_horizon(variance).flatten().tolist() == [0.0, 0.0, 1.0]


def test_target_mixes_the_horizons_by_their_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horizon 0: candidates 1 and 3, mean 2, variance 1. Horizon 1: 6 and 10, mean 8, variance 4. Mix: (4·2 + 8)/5."""
    expansion, learner = by_hand(STEVE(horizon=1, rewards=1, q_functions=2, model=ONE, learner=SMALL))
    candidates = torch.tensor([[1.0, 3.0], [6.0, 10.0]]).view(2, 1, 1, 1, 2, 1)
    monkeypatch.setattr(expansion, "candidates", lambda *rows: candidates)
    rows = torch.zeros(2, 1), torch.zeros(2, 1, 4), torch.ones(2, 1)
    torch.testing.assert_close(expansion(learner, *rows), torch.full((2, 1), 16 / 5))


def test_candidates_of_a_case_worked_by_hand() -> None:
    """Two rows in the middle of the track, the second ended. The models move by 0.5 or 1.5; the track ends at 2.4."""
    expansion, learner = by_hand(STEVE(horizon=3, rewards=2, q_functions=2, model=TWO, learner=SMALL))
    gamma, reward = 0.99, torch.tensor([[0.3, 0.7]])
    state = torch.zeros(1, 2, 4)
    found = expansion.candidates(learner, reward, state, torch.tensor([[1.0, 0.0]]))
    assert found.shape == (4, 1, 2, 2, 2, 2)
    for r in range(2):
        for d in range(2):
            for q in range(2):
                value = 100.0 * (q + 10)
                # the second model leaves the track at 1.5 + 1.5 > 2.4: that step still earns, no value follows
                not_terminated = [1.0, 1.0, 1.0 if d == 0 else 0.0, 1.0 if d == 0 else 0.0]
                total, expected = 0.3, []
                for i in range(4):
                    expected.append(total + gamma ** (i + 1) * not_terminated[i] * value)
                    total += gamma ** (i + 1) * not_terminated[i] * (1.0 + r)
                torch.testing.assert_close(found[:, 0, r, d, q, 0], torch.tensor(expected), rtol=1e-5, atol=1e-4)
    # the second row has ended: its reward is all there is
    torch.testing.assert_close(found[..., 1], torch.full_like(found[..., 1], 0.7))


def test_tasks_own_reward_takes_the_place_of_reward_models() -> None:
    expansion, learner = by_hand(STEVE(horizon=1, rewards=None, q_functions=1, model=ONE, learner=SMALL))
    found = expansion.candidates(learner, torch.zeros(1, 1), torch.zeros(1, 1, 4), torch.ones(1, 1)).flatten()
    torch.testing.assert_close(found, torch.tensor([990.0, 0.99 + 0.99**2 * 1000]))


def test_mve_takes_the_longest_horizon_alone() -> None:
    expansion, learner = by_hand(MVE(horizon=2, model=ONE, learner=SMALL))
    rows = torch.zeros(1, 1), torch.zeros(1, 1, 4), torch.ones(1, 1)
    expected = 0.99 + 0.99**2 + 0.99**3 * 1000
    torch.testing.assert_close(expansion(learner, *rows), torch.tensor([[expected]]))


def test_mve_of_horizon_zero_is_d3qn_bit_for_bit() -> None:
    data, task = logged(), CartPole()
    ours = MVE(horizon=0, model=ONE, learner=SMALL).fit(data, task, seed=5)
    theirs = SMALL.fit(data, task, seed=5)
    for name, tensor in theirs.weights().items():
        assert torch.equal(ours.weights()[name], tensor), name
    longer = MVE(horizon=1, model=ONE, learner=SMALL).fit(data, task, seed=5)
    assert not torch.equal(longer.weights()["net.layers.0.weight"], theirs.weights()["net.layers.0.weight"])


def test_q_functions_differ_and_vote_by_their_mean() -> None:
    data, task = logged(), CartPole()
    policy = STEVE(horizon=1, rewards=1, q_functions=3, model=TWO, learner=SMALL).fit(data, task)
    values = policy.network(data.state[:30].expand(3, -1, -1))
    assert (values[0] - values[1]).abs().max() > 1e-3
    assert torch.equal(policy.index(data.state[:30]), values.mean(0).argmax(-1))


def test_jobs_learn_the_same_alone_and_together_and_act_the_same(tmp_path: Path) -> None:
    task, recipe = (
        CartPole(),
        STEVE(horizon=2, rewards=2, q_functions=2, model=TWO, learner=SMALL),
    )
    jobs = [Job(logged(10, seed=1), 3), Job(logged(20, seed=2), 4)]
    learned = recipe.fit_many(jobs, task)
    alone = recipe.fit_many(jobs[1:], task)[0]
    for name, tensor in alone.selected.weights().items():
        torch.testing.assert_close(learned[1].selected.weights()[name], tensor, atol=1e-4, rtol=1e-3)
    policies = [each.last for each in learned]
    state = torch.stack([job.data.state[:50] for job in jobs])
    acted = joint_actor(policies)(state, state[..., :0])
    for k, policy in enumerate(policies):
        assert torch.equal(acted[k], policy.act(state[k]))
    policies[0].save(tmp_path)
    back = counterpoint.load(tmp_path)
    assert back.recipe == recipe
    assert torch.equal(back.act(state[0]), acted[0])


@dataclass(frozen=True)
class Centred(CartPole):
    """CartPole whose reward falls with the distance from the middle."""

    slope: float = 0.1

    def reward(self, state, action, next_state):
        return 1 - self.slope * next_state[..., 0].abs()


EAGER = replace(SMALL, learning_rate=2e-2, tau=0.3)
CHECKING = STEVE(
    horizon=1,
    rewards=1,
    q_functions=2,
    model=TWO,
    learner=replace(EAGER, schedule=Schedule(steps=50, check_every=10)),
)


def after(steps: int, task: Task, seed: int) -> dict[str, Tensor]:
    """The weights of the same training, stopped early."""
    brief = replace(CHECKING, learner=replace(EAGER, schedule=Schedule(steps=steps)))
    return brief.fit_many([Job(logged(), seed)], task)[0].last.weights()


def test_checkpoint_is_chosen_by_the_selector_of_its_own_models() -> None:
    """A selector that likes the first check best; the last weights are still those of the end."""
    data, seen = logged(), []

    class First(CheckpointSelection):
        def selector(self, models: Sequence[Model], jobs: Sequence[Job], task: Task) -> CheckpointSelector:
            assert [model.mechanism.members for model in models] == [2]
            assert [len(job.data) for job in jobs] == [len(data)]

            def select(actor: Actor) -> Tensor:
                state = data.state[None, :4]
                seen.append(actor(state, state[..., :0]).shape)
                return torch.tensor([float(len(seen))])

            return FunctionSelector(select)  # pyright: ignore[reportReturnType]

    learned = replace(CHECKING, selection=First()).fit_many([Job(data, 7)], CartPole())[0]
    early = after(10, CartPole(), seed=7)
    assert seen == [(1, 4, 1)] * 5
    torch.testing.assert_close(learned.selected.weights(), early)
    assert not torch.equal(learned.last.weights()["net.layers.0.weight"], early["net.layers.0.weight"])


def test_checkpoint_has_the_best_return_of_rollouts_in_its_own_transition_models() -> None:
    scores: list[Tensor] = []

    class Watched(CheckpointSelection):
        def selector(self, models: Sequence[Model], jobs: Sequence[Job], task: Task) -> CheckpointSelector:
            select = super().selector(models, jobs, task)

            def watch(actor: Actor) -> Tensor:
                scores.append(select(actor))
                return scores[-1]

            return FunctionSelector(watch)  # pyright: ignore[reportReturnType]

    task = Centred(slope=-1.0)
    plain = replace(CHECKING, selection=CheckpointSelection(starts=4, horizon=30)).fit_many([Job(logged())], task)[0]
    replace(CHECKING, selection=Watched(4, 30)).fit_many([Job(logged())], task)
    assert len(scores) == 5
    best = int(torch.cat(scores).argmin())
    assert 0 < best < 4, scores
    torch.testing.assert_close(plain.selected.weights(), after(10 * (best + 1), task, seed=0))


def learned_task(target: float) -> Task:
    """A reward learned from the log: position times a number."""
    data = logged(5)
    rows = replace(data, reward=target * data.next_state[:, 0])
    return Outcome(hidden=(4,), likelihood=Likelihood(Schedule(steps=5))).fit(rows)


@pytest.mark.parametrize(
    "tasks",
    [
        lambda: (CartPole(), Centred()),
        lambda: (Centred(), Centred(slope=0.2)),
        lambda: (CartPole(), CartPole(discount=0.9)),
        lambda: (learned_task(1.0), learned_task(2.0)),
    ],
    ids=["another class", "another field", "another discount", "another learned reward"],
)
@pytest.mark.parametrize("rewards", [None, 1])
def test_a_checkpoint_of_another_tasks_policy_is_not_taken_up(
    tasks: Callable[[], tuple[Task, Task]], rewards: int | None, tmp_path: Path
) -> None:
    """Models and reward models are learned from the log and know no task; the targets look ahead by the task's word."""
    task, other = tasks()
    recipe = replace(CHECKING, rewards=rewards, learner=replace(SMALL, schedule=Schedule(steps=5)))
    whole = recipe.fit(logged(5), task, monitor=Monitor(tmp_path / "whole"))
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "whole" / "policy.checkpoint.safetensors", tmp_path / "alone")
    resumed = recipe.fit(logged(5), task, monitor=Monitor(tmp_path / "alone", resume=True))
    torch.testing.assert_close(resumed.weights(), whole.weights(), rtol=0, atol=0)
    with pytest.raises(CounterpointError, match=r"^checkpoint 'policy[^\n]*belongs to another recipe, seed or table"):
        recipe.fit(logged(5), other, monitor=Monitor(tmp_path / "alone", resume=True))
