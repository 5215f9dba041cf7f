"""BCQ against d3rlpy's numbers, its constraint, and what it reduces to without one."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import counterpoint
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job
from counterpoint.learners.baselines.bcq import (
    BCQ,
    BehaviourCloningLoss,
    ConstrainedQ,
    allowed,
)
from counterpoint.learners.d3qn import (
    D3QN,
    QLearner,
    double_q_objective,
    table,
)
from counterpoint.nets.stacked import initialise
from counterpoint.nets.training import Schedule
from counterpoint.policies.base import joint_actor
from counterpoint.simulation.trials import simulate
from counterpoint.tasks.cartpole import CartPole

SMALL = D3QN(hidden=(32, 32), schedule=Schedule(steps=200), batch=64, learning_rate=3e-3)


def parity() -> ModuleType:
    """The benchmark's batch and weights; the module asks for d3rlpy only when it is run."""
    path = Path(__file__).parents[1] / "benchmarks" / "parity_d3rlpy.py"
    spec = importlib.util.spec_from_file_location("parity_d3rlpy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def left_or_right(state, random):
    """A behaviour that only ever takes the outermost forces, away from where the pole leans."""
    return (state[:, 2:3] > 0).float()


def logged(trials: int = 40, seed: int = 0):
    task = CartPole()
    return simulate(task, left_or_right, trials, 20, seed)


def test_losses_and_greedy_actions_are_d3rlpys() -> None:
    """The numbers are d3rlpy 2.8.1's, printed by `benchmarks/parity_d3rlpy.py` on this batch and these weights."""
    benchmark = parity()
    ours, bare = benchmark.ours(), benchmark.ours(penalty=0.0)
    assert ours["value"] == pytest.approx(1.1412646770477295, abs=1e-6)
    assert bare["imitation"] == pytest.approx(2.2782862186431885, abs=1e-6)
    greedy = [0, 4, 1, 1, 1, 0, 0, 1, 4, 0, 4, 1, 1, 3, 1, 1, 1, 4, 3, 1, 1, 1, 1, 4, 1, 4, 2, 3, 4, 1, 0, 4]
    assert ours["greedy"] == greedy


def test_penalty_is_on_logits_as_they_are() -> None:
    network = ConstrainedQ(1, 2, (), 2, threshold=0.3)
    network.behaviour.layers[0].weight.data[0] = torch.eye(2)  # pyright: ignore[reportArgumentType]
    state, action = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([[0, 0]])
    assert torch.equal(network.logits(state), state)
    bare, full = (BehaviourCloningLoss(penalty)(network, state, action).detach() for penalty in (0.0, 0.1))
    # −log σ(2) and −log σ(−1), averaged; squares 4, 0, 0, 1
    assert float(bare) == pytest.approx((0.126928 + 1.313262) / 2, abs=1e-5)
    assert float(full - bare) == pytest.approx(0.1 * 5 / 4, abs=1e-6)


def test_allowed_is_relative_to_the_likeliest_action() -> None:
    probability = torch.tensor([0.5, 0.2, 0.16, 0.14])
    assert allowed(probability.log() + 3, 0.3).tolist() == [True, True, True, False]
    assert allowed(probability.log(), 0.0).all()


def test_target_is_the_best_allowed_action_of_the_online_network_priced_by_the_target_network() -> None:
    benchmark = parity()
    rows, learner = benchmark.batch(), benchmark.learner(discount=0.9)
    next_state = rows["next_state"][None]
    found = learner.objective.target(learner, rows["reward"][None], next_state, rows["not_terminated"][None])[0]
    q, value = learner.online.values(next_state)[0].detach(), learner.target.values(next_state)[0].detach()
    share = learner.online.logits(next_state)[0].softmax(-1)
    constrained = 0
    for row in range(len(found)):
        candidates = [a for a in range(6) if share[row, a] / share[row].max() > 0.3]
        best = max(candidates, key=lambda a: float(q[row, a]))
        constrained += best != int(q[row].argmax())
        expected = rows["reward"][row] + 0.9 * rows["not_terminated"][row] * value[row, best]
        assert float(found[row]) == pytest.approx(float(expected), abs=1e-5)
    assert constrained > 5


def test_without_a_threshold_the_target_is_d3qns() -> None:
    """The same Q-weights in a plain network; with a threshold the constraint bites on some of these rows."""
    job, task = Job(logged(10)), CartPole()
    free, held = (BCQ(threshold=threshold, learner=SMALL) for threshold in (0.0, 0.3))
    networks = [recipe.build(4, 11, 1) for recipe in (free, held, SMALL)]
    initialise(networks[0], [3])
    torch.nn.init.normal_(networks[0].behaviour.layers[-1].weight, generator=generator(4))  # pyright: ignore
    networks[1].load_state_dict(networks[0].state_dict())
    networks[2].load_state_dict(networks[0].state_dict(), strict=False)
    targets = []
    for network, recipe in zip(networks, (free, held, SMALL), strict=True):
        learner = QLearner(network, recipe.build, [table(job)], SMALL, double_q_objective(task, job), None)
        rows = (learner.reward, learner.next_state, learner.not_terminated)
        targets.append(learner.objective.target(learner, *rows))
    torch.testing.assert_close(targets[0], targets[2])
    assert not torch.allclose(targets[1], targets[2])


def test_the_averaged_values_act_under_the_behaviour_model_as_it_is() -> None:
    """Q's slow copy moves by τ; G has no slow copy."""
    benchmark = parity()
    learner = benchmark.learner()
    before = [p.clone() for p in learner.target.net.parameters()]
    learner.update({"rows": torch.arange(benchmark.ROWS)[None]})
    assert learner.target.behaviour is learner.online.behaviour
    tau, pairs = learner.recipe.tau, zip(learner.target.net.parameters(), learner.online.net.parameters(), strict=True)
    for old, (target, online) in zip(before, pairs, strict=True):
        torch.testing.assert_close(target, (1 - tau) * old + tau * online)


def test_policy_keeps_to_what_was_done() -> None:
    """The log only holds the outermost forces, chosen by the lean; without the threshold other forces are taken."""
    task, data = CartPole(), logged()
    held = BCQ(learner=SMALL).fit(data, task)
    free = BCQ(threshold=0.0, learner=SMALL).fit(data, task)
    state = data.state[data.state[:, 2].abs() > 0.05]
    taken = (state[:, 2:3] > 0).float()
    assert (held.act(state) == taken).float().mean() > 0.95
    assert (free.act(state) == taken).float().mean() < 0.9


def test_jobs_learn_the_same_alone_and_together_and_act_the_same(tmp_path: Path) -> None:
    task, recipe = CartPole(), BCQ(learner=SMALL)
    jobs = [Job(logged(20, seed=1), 3), Job(logged(30, seed=2), 4)]
    learned = recipe.fit_many(jobs, task)
    alone = recipe.fit_many(jobs[1:], task)[0]
    for name, tensor in alone.selected.weights().items():
        torch.testing.assert_close(learned[1].selected.weights()[name], tensor, atol=1e-5, rtol=1e-4)
    policies = [each.last for each in learned]
    state = torch.stack([job.data.state[:50] for job in jobs])
    acted = joint_actor(policies)(state, state[..., :0])
    for k, policy in enumerate(policies):
        assert torch.equal(acted[k], policy.act(state[k]))
    policies[0].save(tmp_path)
    back = counterpoint.load(tmp_path)
    assert back.recipe == recipe
    assert torch.equal(back.act(state[0]), acted[0])


def test_impossible_threshold_is_refused() -> None:
    with pytest.raises(CounterpointError, match="allows no action"):
        BCQ(threshold=1.0, learner=SMALL)
