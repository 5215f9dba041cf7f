"""D3QN updates a second: ours with K = 1, 4 and 16 members, d3rlpy's DoubleDQN, and the matrix products alone.

    python benchmarks/updates.py            # needs d3rlpy==2.8.1 beside counterpoint

One thread, one run, 2×256 networks, batch 32, the same table. Every figure is member-updates a second (K members that
make one update each count K). d3rlpy's DoubleDQN has no dueling head; ours has one. The matrix limit times only the
matrix products that one update needs (three forward passes, one backward), as bare calls.
"""

import json
import time
from collections.abc import Callable
from itertools import pairwise

import torch

from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.learners.d3qn import (
    D3QN,
    QLearner,
    double_q_objective,
    table,
)
from counterpoint.nets.learner import Stepper
from counterpoint.nets.optimizers import flushing_denormals
from counterpoint.nets.stacked import initialise
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.cartpole import CartPole

HIDDEN, BATCH, SECONDS, ROUNDS = (256, 256), 32, 2.0, 3


def rate(update: Callable[[], object], updates: int) -> float:
    """Updates a second of a call that makes `updates` of them, over about SECONDS."""
    update()
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        update()
        calls += 1
    return calls * updates / (time.perf_counter() - start)


def ours(data: Transitions, members: int) -> Callable[[], object]:
    """Fifty updates of every member, drawing the minibatches included."""
    task, how = CartPole(), D3QN(hidden=HIDDEN, batch=BATCH)
    network = how.build(4, 11, members)
    initialise(network, range(members))
    learner = QLearner(network, how.build, [table(Job(data))] * members, how, double_q_objective(task, Job(data)), None)
    stepper, randoms = Stepper(learner), [torch.Generator().manual_seed(k) for k in range(members)]

    def fifty() -> None:
        draws = [learner.draw(k, random, 50) for k, random in enumerate(randoms)]
        stepper.load({name: torch.stack([d[name] for d in draws], 1) for name in draws[0]})
        with flushing_denormals():  # as `train` does
            for _ in range(50):
                stepper.step()

    return fifty


def peer(data: Transitions) -> Callable[[], object]:
    """Fifty updates of d3rlpy's DoubleDQN on the same rows, drawing the minibatches included."""
    import d3rlpy
    import numpy as np

    ends = (data.terminated | data.truncated).numpy()
    mdp = d3rlpy.dataset.MDPDataset(
        observations=data.state.numpy(),
        actions=data.action_index.numpy()[:, None],
        rewards=data.reward.numpy()[:, None],
        terminals=data.terminated.numpy().astype(np.float32),
        timeouts=(ends & ~data.terminated.numpy()).astype(np.float32),
        action_space=d3rlpy.ActionSpace.DISCRETE,
        action_size=11,
    )
    config = d3rlpy.algos.DoubleDQNConfig(
        batch_size=BATCH, encoder_factory=d3rlpy.models.VectorEncoderFactory(list(HIDDEN)), target_update_interval=1000
    )
    algorithm = config.create(device="cpu:0")
    algorithm.build_with_dataset(mdp)

    def fifty() -> None:
        for _ in range(50):
            algorithm.update(mdp.sample_transition_batch(BATCH))

    return fifty


def products(members: int) -> Callable[[], object]:
    """The matrix products of fifty updates and nothing else."""
    widths = [4, *HIDDEN, 12]
    inputs = [torch.randn(members, BATCH, width) for width in widths]
    weights = [torch.randn(members, a, b) for a, b in pairwise(widths)]

    def fifty() -> None:
        for _ in range(50):
            for i, weight in enumerate(weights):
                for _ in range(3):
                    torch.bmm(inputs[i], weight)
                torch.bmm(inputs[i].transpose(1, 2), inputs[i + 1])
                if i:
                    torch.bmm(inputs[i + 1], weight.transpose(1, 2))

    return fifty


def main() -> None:
    torch.set_num_threads(1)
    task = CartPole()
    data = simulate(task, random_policy(task), 50, 20, seed=0)
    runs = {f"counterpoint K={k}": (ours(data, k), 50 * k) for k in (1, 4, 16)}
    runs |= {f"matrix products K={k}": (products(k), 50 * k) for k in (1, 4, 16)}
    runs["d3rlpy DoubleDQN"] = (peer(data), 50)
    best = dict.fromkeys(runs, 0.0)
    for _ in range(ROUNDS):  # interleaved, so that a busy moment of the machine hits all alike
        for name, (update, updates) in runs.items():
            best[name] = max(best[name], rate(update, updates))
    base = best["d3rlpy DoubleDQN"]
    print(f"{'member-updates a second':<28}{'rate':>10}{'against d3rlpy':>18}")
    for name, value in best.items():
        print(f"{name:<28}{value:>10.0f}{value / base:>17.2f}x")
    figures = {name: round(value, 1) for name, value in best.items()}
    print(json.dumps(figures | {"torch": torch.__version__, "batch": BATCH, "hidden": HIDDEN}))


if __name__ == "__main__":
    main()
