"""How much the noise of the paper's BiCoGAN moves s', before and after training: `python benchmarks/bicogan_noise.py`.

The deviation of s' over draws of the noise, the state and the action held fixed, in standard deviations of s' in the
table (CartPole, random trials of 20 steps, `scaled` noise), mean over rows and columns; and that of the simulator. The
last line is JSON.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
import tyro
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.bicogan import BiCoGAN
from counterpoint.nets.training import Schedule
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.cartpole import CartPole

DRAWS = 100
"""Draws of the noise for each row."""


@dataclass(frozen=True)
class Measure:
    """Fit the paper's BiCoGAN and compare the spread that its noise makes with the simulator's."""

    trials: int = 50
    """Logged trials."""
    seeds: int = 2
    """Tables and fits, from seed 100 on."""
    updates: int = 3000
    """Updates of the trained generator."""
    device: str = "cpu"
    """Where to fit."""

    @torch.no_grad()
    def execute(self) -> None:
        task = CartPole()
        seeds = range(100, 100 + self.seeds)
        jobs = [Job(simulate(task, random_policy(task), self.trials, 20, seed).with_next(), seed) for seed in seeds]
        results = {
            "simulator": [spread(job.data, lambda s, a, u: task.transition(s, a, u), task.noise) for job in jobs]
        }
        for name, updates in (("untrained", 1), ("trained", self.updates)):
            recipe = replace(BiCoGAN(), training=replace(BiCoGAN().training, schedule=Schedule(steps=updates)))
            with torch.enable_grad():
                models = recipe.fit_many(jobs, device=self.device)
            results[name] = [
                spread(job.data, model.to("cpu").predict, model.prior) for job, model in zip(jobs, models, strict=True)
            ]
        means = {name: round(sum(each) / len(each), 4) for name, each in results.items()}
        print(json.dumps({**asdict(self), "spread": means}))


def spread(
    rows: Transitions,
    predict: Callable[[Tensor, Tensor, Tensor], Tensor],
    prior: Callable[[int, torch.Generator], Tensor],
) -> float:
    """The deviation of s' over draws of the noise alone, in standard deviations of s' in the rows."""
    random = generator(0)
    drawn = torch.stack([predict(rows.state, rows.action, prior(len(rows), random)) for _ in range(DRAWS)])
    return float((drawn.std(0) / rows.next_state.std(0)).mean())


if __name__ == "__main__":
    tyro.cli(Measure).execute()
