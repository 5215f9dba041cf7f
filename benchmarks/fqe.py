"""Fitted Q evaluation, how fast and how right: `python benchmarks/fqe.py [--device cuda] [--accuracy 3]`.

The bar is 200 resamples of 10,000 episodes of 20 steps, 46 columns and 25 actions in 180 s of one core, 20 s of a GPU.
With `--accuracy`, single critics of logs by policies of known value follow, beside those of a Q-network of the usual
kind, trained by stochastic gradients with the step as an input; an interval of 200 resamples takes 200 of its
kind. The last line is JSON.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.data.jobs import Job, Origin
from counterpoint.learners.d3qn import (
    QLearner,
    QObjective,
    table,
)
from counterpoint.learners.search import SearchedPolicy
from counterpoint.nets.stacked import initialise
from counterpoint.nets.training import Monitor, Schedule, train
from counterpoint.ope.fqe import FQE, fitted_q_evaluation
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
    resampled,
)
from counterpoint.tasks.base import KnownSCM
from reproduction.tasks.sepsis import (
    SyntheticSepsis,
    physician,
    protocol,
)

STEPS, COLUMNS, ACTIONS = 20, 46, 25
FORMATTED = ("truth", "logged", "mean error", "mean |error|", "processor s")


def wandering(episodes: int) -> OPEData:
    """A log of the bar's size; half of its episodes end, half are cut."""
    random = torch.Generator().manual_seed(0)
    states = [torch.randn(episodes, COLUMNS, generator=random)]
    for _ in range(STEPS):
        states.append(0.9 * states[-1] + 0.4 * torch.randn(episodes, COLUMNS, generator=random))
    path, actions = torch.stack(states, 1), cp.Discrete.one_hot(ACTIONS)
    last = torch.arange(STEPS).repeat(episodes) == STEPS - 1
    subject = torch.arange(episodes).repeat_interleave(STEPS)
    rows = cp.Transitions.logged(
        state=path[:, :-1].flatten(0, 1),
        action=actions.table()[torch.randint(ACTIONS, (len(last),), generator=random)],
        reward=path[:, 1:, 0].flatten(),
        next_state=path[:, 1:].flatten(0, 1),
        terminated=last & (subject % 2 == 0),
        truncated=last & (subject % 2 == 1),
        subject=subject,
        step=torch.arange(STEPS).repeat(episodes),
        actions=actions,
    )
    uniform = torch.full((len(rows), ACTIONS), 1 / ACTIONS)
    return OPEData(Episodes.of(rows), uniform, uniform, uniform)


def speed(episodes: int, members: int, device: str) -> dict[str, Any]:
    """Processor seconds, and those of the clock, of a critic for every resample and its value."""
    question = wandering(episodes)
    counts = resampled(question.episodes.subjects, members, 0)
    if device != "cpu":
        torch.zeros(1, device=device)
    processor, clock = time.process_time(), time.perf_counter()
    values = fitted_q_evaluation(question, FQE().fit(question, counts, device=device))
    seconds = {"processor_seconds": time.process_time() - processor, "seconds": time.perf_counter() - clock}
    return {"rows": len(question.rows), "members": members, "ran_on": device, **seconds, "spread": float(values.std())}


class GradientFQE(QLearner):
    """r + γ·Σ_a π(a|s')·Q(s', a) by a Q-network, π looked up row by row."""

    after: Tensor
    discount: float

    def _batch(self, draw: dict[str, Tensor]) -> list[Tensor]:
        self.asked = self.after[draw["rows"]]
        return super()._batch(draw)

    def __call__(self, networks: QLearner, reward: Tensor, next_state: Tensor, not_terminated: Tensor) -> Tensor:
        with torch.no_grad():
            value = (self.asked * self.target.values(next_state)).sum(-1)
        return reward + self.discount * not_terminated * value


def by_gradients(question: OPEData, steps: int = 6000) -> float:
    """The value by one network of two layers of 64 that sees how many steps are over."""
    rows, episodes = question.rows, question.episodes
    over = torch.zeros(len(rows))
    over[episodes.places[episodes.present]] = (
        torch.arange(episodes.places.shape[1]).expand(episodes.places.shape)[episodes.present].float()
    )
    columns, horizon = table(Job(rows)), episodes.places.shape[1]
    columns["state"] = torch.cat([columns["state"], over[:, None]], 1)
    columns["next_state"] = torch.cat([columns["next_state"], over[:, None] + 1], 1)
    columns["not_terminated"] *= over < horizon - 1
    how = cp.D3QN((64, 64), Schedule(steps=steps, rate="linear"), 512, 1e-3, tau=0.01, huber=1e3)
    network = how.build(columns["state"].shape[1], rows.actions.count, 1)  # pyright: ignore[reportAttributeAccessIssue]
    initialise(network, [0])
    objective = QObjective(rows.actions, lambda *given: learner(*given))  # pyright: ignore[reportArgumentType]
    learner = GradientFQE(network, how.build, [columns], how, objective, None)
    learner.after, learner.discount = question.policy_after, question.discount
    train(learner, how.schedule, [0], "", Monitor())
    first = episodes.places[:, 0]
    with torch.no_grad():
        values = learner.target.values(columns["state"][first][None])[0]
    return float((question.policy[first] * values).sum(1).mean())


Act = Callable[[Tensor, torch.Generator], Tensor]


def asked(task: KnownSCM, behaviour: Act, policy: Act, episodes: int, steps: int, seed: int) -> OPEData:
    """What a deterministic policy is worth, from a log of another."""
    rows = cp.simulate(task, behaviour, episodes, steps, seed, stop_at_failure=True)  # pyright: ignore[reportArgumentType]
    random = torch.Generator()

    def chosen(state: Tensor) -> Tensor:
        numbers = task.actions.index(policy(state.nan_to_num(), random))
        return torch.nn.functional.one_hot(numbers, task.actions.count).float()  # pyright: ignore[reportAttributeAccessIssue]

    now, after = chosen(rows.state), chosen(rows.next_state)
    return OPEData(Episodes.of(rows), now, after * rows.has_next[:, None], now, task.discount)


def rule(task: KnownSCM, numbers: list[float]) -> SearchedPolicy:
    width = len(task.state_names)
    weights = {"numbers": torch.tensor(numbers), "returns": torch.zeros(1)}
    weights |= {"mean": torch.zeros(1, width), "spread": torch.ones(1, width)}
    return SearchedPolicy(cp.Search(), weights, task.schema, Origin(0, "", ""))


def accuracy(logs: int) -> list[dict[str, Any]]:
    """Error and processor seconds of one critic, a mean over logs."""
    cart, ward, sepsis = cp.CartPole(), cp.Ward(), SyntheticSepsis()
    cases: list[tuple[str, KnownSCM, Act, Act, int, int]] = [
        ("CartPole", cart, cp.random_policy(cart), rule(cart, [0.5, 1.0, 12.0, 2.0, 0.0]), 1000, 40),
        ("ward", ward, cp.random_policy(ward), rule(ward, [0.8, -0.4, -0.6]), 1000, 20),
        ("sepsis", sepsis, physician(sepsis), protocol, 5000, 20),
    ]
    methods = {"fitted, random features": in_features, "fitted, gradients": by_gradients}
    results = []
    for name, task, behaviour, policy, episodes, steps in cases:
        many = cp.simulate(task, policy, 8000, steps, 99, stop_at_failure=True)  # pyright: ignore[reportArgumentType]
        truth = float(Episodes.of(many).returns(task.discount).mean())
        questions = [asked(task, behaviour, policy, episodes, steps, seed) for seed in range(logs)]
        logged = sum(float(q.episodes.returns(q.discount).mean()) for q in questions) / logs
        for method, value in methods.items():
            start_time = time.process_time()
            errors = torch.tensor([value(question) - truth for question in questions])
            row = {"task": name, "method": method, "episodes": episodes, "truth": truth, "logged": logged}
            row |= {"mean error": float(errors.mean()), "mean |error|": float(errors.abs().mean())}
            results.append(row | {"processor s": (time.process_time() - start_time) / logs})
    return results


def in_features(question: OPEData) -> float:
    return float(fitted_q_evaluation(question, FQE().fit(question, torch.ones(1, question.episodes.subjects))))


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--accuracy", type=int, default=0, help="logs on which values are compared with the truth")
    options = parser.parse_args()
    figures = speed(options.episodes, options.members, options.device)
    print(markdown_table([figures], formats={"processor_seconds": ".1f", "seconds": ".1f", "spread": ".3f"}))
    values = accuracy(options.accuracy) if options.accuracy else []
    if values:
        print(markdown_table(values, formats=dict.fromkeys(FORMATTED, ".2f")))
    print(json.dumps({**figures, "accuracy": values, **provenance()}))


if __name__ == "__main__":
    main()
