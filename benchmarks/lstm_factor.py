"""Does the paper's subject factor know gravity? `python benchmarks/lstm_factor.py`: k-means on θ of the data set HD.

Five planets, 50 trials of 20 steps each, `scaled` noise. A subject is one trial (`--trials-per-subject 1`) or several.
Prints the share of subjects whose planet is named right under the best matching of five groups to five planets. The
true physics with its likelihood has 0.53 for one trial a subject and 0.76 for four; the matching lifts k-means on pure
noise above 0.2: to 0.24 … 0.29 for one trial a subject, and to 0.28 … 0.45 for four, where subjects are fewer.
`--full` takes the paper's widths and the recipes' own lengths instead of a quarter of the widths and 750 updates.
"""

import json
import time
from dataclasses import asdict, dataclass, replace

import torch
import tyro
from jaxtyping import Int
from sklearn.cluster import KMeans
from torch import Tensor

from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.models.scm.lstm_factor import LSTMFactor
from counterpoint.nets.training import Schedule
from counterpoint.simulation.trials import random_policy, simulate_population
from counterpoint.tasks.cartpole import PLANETS, CartPole
from reproduction.groups import matched_accuracy

TRIALS, STEPS = 50, 20


@dataclass(frozen=True)
class Measure:
    """Fit the factor on HD and look for the planets in it."""

    trials_per_subject: int = 1
    """Trials of one planet that are one subject."""
    factors: int = 2
    """Columns of θ."""
    seed: int = 0
    """Seed of data and fit."""
    full: bool = False
    """The paper's widths, and the recipes' own lengths."""

    def execute(self) -> None:
        rows = simulate_population(
            [CartPole(gravity=g) for g in PLANETS.values()], random_policy, TRIALS, STEPS, self.seed
        )
        trials = TRIALS - TRIALS % self.trials_per_subject
        rows = rows[rows.subject % TRIALS < trials]
        planet, trial = rows.subject // TRIALS, rows.subject % TRIALS
        rows = replace(rows, subject=(planet * trials + trial) // self.trials_per_subject)
        results: dict[str, float] = {}
        for name, recipe in self.recipes().items():
            began = time.perf_counter()
            theta = recipe.fit(rows, self.seed).subjects(rows)
            seconds = time.perf_counter() - began
            results[name] = accuracy(rows, planet, theta)
            print(f"{name:28s} accuracy {results[name]:.3f}   {seconds:.0f} s", flush=True)
        print(json.dumps({**asdict(self), "accuracy": results}))

    def recipes(self) -> dict[str, BiCoGAN | ConditionalBiCoGAN]:
        factor = LSTMFactor(factors=self.factors) if self.full else LSTMFactor(width=50, factors=self.factors)
        paper, conditional = BiCoGAN(factor=factor), ConditionalBiCoGAN(factor=factor)
        if not self.full:
            paper = replace(paper, generator_hidden=(50, 100, 150, 150), encoder_hidden=(150, 150, 100, 50))
            paper = shorter(replace(paper, discriminator_hidden=(150, 150, 100, 50)), 750)
            conditional = shorter(replace(conditional, training=replace(conditional.training, batch=64)), 750)
        alone = replace(factor, agreement=0.0)
        return {
            "untrained": shorter(paper, 1),
            "paper": paper,
            "paper, no agreement": replace(paper, factor=alone),
            "conditional": conditional,
            "conditional, no agreement": replace(conditional, factor=alone),
        }


def shorter(recipe: BiCoGAN | ConditionalBiCoGAN, steps: int) -> BiCoGAN | ConditionalBiCoGAN:
    schedule = Schedule(steps, rate=recipe.training.schedule.rate)
    return replace(recipe, training=replace(recipe.training, schedule=schedule))


def accuracy(rows: Transitions, planet: Int[Tensor, " n"], theta: Tensor) -> float:
    """The share of subjects in the group that stands for their planet."""
    first = torch.stack([(rows.subject == subject).nonzero()[0, 0] for subject in rows.subject.unique()])
    groups = KMeans(len(PLANETS), n_init=10, random_state=0)  # pyright: ignore[reportArgumentType]
    group = torch.from_numpy(groups.fit_predict(theta[first].numpy()))
    return matched_accuracy(group.long(), planet[first])


if __name__ == "__main__":
    torch.set_num_threads(1)
    tyro.cli(Measure).execute()
