"""Our off-policy estimators beside scope-rl's on the same episodes: `python benchmarks/parity_ope.py`.

Needs `pip install scope-rl==0.2.1` next to this package. Same actions, rewards, propensities and values go to both. The
first case has episodes of one length, all that scope-rl knows. In the second they end when they like; scope-rl is given
them filled up with steps that earn nothing, are worth nothing and are as likely under both policies, which is what
"keeps its last weight" means. scope-rl adds 1e-10 to the means that it divides by, and knows no records that merely
stop: all episodes here come to an end. It has no MAGIC either; ours stands beside its formula (Thomas and Brunskill,
2016), written here with loops. The last line is a JSON object of the figures.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.ope.estimators import (
    doubly_robust,
    importance_sampling,
    magic,
    per_decision_importance_sampling,
    per_decision_weighted_importance_sampling,
    weighted_doubly_robust,
    weighted_importance_sampling,
)
from counterpoint.ope.fqe import Critic, fitted_q_evaluation
from counterpoint.ope.problem import (
    Episodes,
    OPEData,
)

EPISODES, STEPS, ACTIONS, DISCOUNT = 200, 8, 3, 0.95
PEERS = {
    "importance sampling": "TrajectoryWiseImportanceSampling",
    "weighted importance sampling": "SelfNormalizedTIS",
    "per-decision importance sampling": "PerDecisionImportanceSampling",
    "per-decision weighted importance sampling": "SelfNormalizedPDIS",
    "the critic alone": "DirectMethod",
    "doubly robust": "DoublyRobust",
    "weighted doubly robust": "SelfNormalizedDR",
}
"""What scope-rl calls them."""


class Case:
    """Random episodes with known probabilities on both sides, and an arbitrary critic."""

    def __init__(self, lengths: Tensor, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)

        def normal(*width: int) -> Tensor:
            return torch.randn(EPISODES, STEPS, *width, generator=random, dtype=torch.double)

        self.lengths, self.present = lengths, torch.arange(STEPS) < lengths[:, None]
        self.behaviour, self.policy = torch.softmax(normal(ACTIONS), -1), torch.softmax(normal(ACTIONS), -1)
        self.action = torch.multinomial(self.behaviour.flatten(0, 1), 1, generator=random).view(EPISODES, STEPS)
        self.reward, self.q = normal(), 1 + normal(ACTIONS)

    def question(self) -> OPEData:
        """As this package asks it: rows that there are."""
        here, space = self.present, Discrete.one_hot(ACTIONS)
        episode, step = here.nonzero(as_tuple=True)
        rows = Transitions.logged(
            state=torch.zeros(len(step), 1),
            action=space.features(self.action[here]),
            reward=self.reward[here],
            next_state=torch.zeros(len(step), 1),
            terminated=step == self.lengths[episode] - 1,
            truncated=torch.zeros(len(step), dtype=torch.bool),
            subject=episode,
            step=step,
            actions=space,
        )
        return OPEData(Episodes.of(rows), self.policy[here], self.policy[here], self.behaviour[here], DISCOUNT)

    def critic(self) -> Critic:
        taken = self.q.gather(2, self.action[..., None])[..., 0][self.present][None]
        return Critic(taken, (self.policy * self.q).sum(2)[self.present][None], torch.zeros_like(taken))

    def arguments(self) -> dict[str, Any]:
        """Arguments of scope-rl: rectangular tables, padded after the ends."""
        here = self.present[..., None]
        even = torch.full_like(self.policy, 1 / ACTIONS)
        pscore = torch.where(here, self.behaviour, even).gather(2, self.action[..., None])
        return {
            "step_per_trajectory": STEPS,
            "action": self.action.flatten().numpy(),
            "reward": (self.reward * self.present).flatten().numpy(),
            "pscore": pscore.flatten().numpy(),
            "evaluation_policy_action_dist": torch.where(here, self.policy, even).flatten(0, 1).numpy(),
            "state_action_value_prediction": (self.q * here).flatten(0, 1).numpy(),
            "gamma": DISCOUNT,
        }


def ours(case: Case) -> dict[str, float]:
    """Every estimate of this package."""
    question, critic = case.question(), case.critic()
    counts = torch.ones(1, question.episodes.subjects, dtype=torch.double)
    estimators: dict[str, Callable[..., Tensor]] = {
        "importance sampling": importance_sampling,
        "weighted importance sampling": weighted_importance_sampling,
        "per-decision importance sampling": per_decision_importance_sampling,
        "per-decision weighted importance sampling": per_decision_weighted_importance_sampling,
        "the critic alone": lambda asked, _: fitted_q_evaluation(asked, critic),
        "doubly robust": partial(doubly_robust, critic=critic),
        "weighted doubly robust": partial(weighted_doubly_robust, critic=critic),
        "MAGIC": partial(magic, critic=critic),
    }
    return {name: float(estimator(question, counts)) for name, estimator in estimators.items()}


def theirs(case: Case) -> dict[str, float]:
    """The same from scope-rl, and MAGIC from its formula."""
    from scope_rl.ope import discrete

    arguments = case.arguments()
    results = {
        name: float(getattr(discrete, peer)().estimate_policy_value(**arguments)) for name, peer in PEERS.items()
    }
    return {**results, "MAGIC": formula_of_magic(case)}


def formula_of_magic(case: Case) -> float:
    """j-step returns, their covariance over episodes and their bias, and the mixture that SLSQP finds."""
    arguments = case.arguments()
    tables = arguments["evaluation_policy_action_dist"], arguments["state_action_value_prediction"]
    policy, q = (each.reshape(EPISODES, STEPS, -1) for each in tables)
    chosen = arguments["action"].reshape(EPISODES, STEPS, 1)
    pi, taken = (np.take_along_axis(each, chosen, 2)[..., 0] for each in (policy, q))
    weight = np.cumprod(pi / arguments["pscore"].reshape(EPISODES, STEPS), 1)
    weight = np.hstack([np.full((EPISODES, 1), 1 / EPISODES), weight / weight.sum(0)])
    state, reward = (policy * q).sum(2), arguments["reward"].reshape(EPISODES, STEPS)
    parts = np.zeros((EPISODES, STEPS + 1))
    for j in range(-1, STEPS):
        for t in range(j + 1):
            step = weight[:, t + 1] * (reward[:, t] - taken[:, t]) + weight[:, t] * state[:, t]
            parts[:, j + 1] += DISCOUNT**t * step
        if j + 1 < STEPS:
            parts[:, j + 1] += DISCOUNT ** (j + 1) * weight[:, j + 1] * state[:, j + 1]
    return mixed(parts)


def mixed(parts: np.ndarray) -> float:
    """The mixture of returns with the least squared bias and variance together."""
    returns, count = parts.sum(0), len(parts)
    spread = count / (count - 1) * (parts - returns / count).T @ (parts - returns / count)
    reach = 1.6448536269514722 * np.sqrt(spread[-1, -1])
    bias = returns - returns.clip(returns[-1] - reach, returns[-1] + reach)
    matrix = spread + np.outer(bias, bias)
    best = minimize(
        lambda x: x @ matrix @ x / np.trace(matrix),
        np.full(len(returns), 1 / len(returns)),
        jac=lambda x: 2 * matrix @ x / np.trace(matrix),
        bounds=[(0, 1)] * len(returns),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-16, "maxiter": 10_000},
    )
    return float(best.x @ returns)


def main() -> None:
    lengths = torch.randint(1, STEPS + 1, (EPISODES,), generator=torch.Generator().manual_seed(0))
    cases = {"one length": Case(torch.full((EPISODES,), STEPS), 1), "many lengths": Case(lengths, 2)}
    figures: dict[str, Any] = {}
    print("| episodes | estimator | ours | scope-rl | apart |\n| :-- | :-- | --: | --: | --: |")
    for name, case in cases.items():
        own, peer = ours(case), theirs(case)
        for estimator, value in own.items():
            print(
                f"| {name} | {estimator} | {value:.7f} | {peer[estimator]:.7f} | {abs(value - peer[estimator]):.1e} |"
            )
        figures[name] = {"ours": own, "scope_rl": peer}
    apart = [abs(each["ours"][k] - each["scope_rl"][k]) for each in figures.values() for k in PEERS]
    print(json.dumps({**figures, "largest_distance": max(apart)}))


if __name__ == "__main__":
    try:
        import scope_rl  # noqa: F401
    except ImportError:
        sys.exit("scope-rl is not here to be compared with; pip install scope-rl==0.2.1")
    main()
