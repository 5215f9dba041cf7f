"""What `test_judge.py` shares with other test modules."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.schema import Schema
from counterpoint.ope.diagnostics import VerdictEvidence
from counterpoint.ope.evaluation import OPESettings
from counterpoint.ope.intervals import Confounding
from counterpoint.ope.problem import Episodes
from counterpoint.ope.result import Diagnostics, Estimate

WARD, DOSES = cp.Ward(), cp.Discrete.of([0.0, 0.5, 1.0])

STEPS = 4

CHANCES = torch.tensor([0.5, 0.3, 0.2])

QUICK = OPESettings(
    baselines=False, alternative_behaviours=(), critic_draws=20, draws=100, confounding=Confounding((1.0, 2.0))
)


def drawn(chances: Tensor) -> Any:
    """Doses by lot, whatever the state."""
    return lambda state, random: DOSES.table()[chances.multinomial(len(state), True, generator=random)]


LOGGED = cp.simulate(WARD, drawn(CHANCES), trials=500, steps=STEPS, seed=0)


@dataclass(frozen=True)
class Lottery:
    """The same chances in every state."""

    chances: tuple[float, ...]
    schema: Schema = LOGGED.schema

    def probabilities(self, state: Tensor) -> Tensor:
        return torch.tensor(self.chances).expand(len(state), -1)

    def worth(self) -> float:
        """The true mean return of as many steps as the log has."""
        policy = drawn(torch.tensor(self.chances))
        return float(Episodes.of(cp.simulate(WARD, policy, 20_000, STEPS, seed=9)).returns(1.0).mean())


GENTLE = Lottery((0.7, 0.2, 0.1))

GOOD = VerdictEvidence(
    Estimate("one-step DR", 1.0, 0.9, 1.1),
    Estimate("FQE", 1.05, 0.95, 1.2),
    (Estimate("Logistic", 1.02, 0.9, 1.15),),
    Diagnostics(500, 500, 2000, 300.0, 50.0, 0.01, 0.0, 0.0, 0.6),
    0.01,
    2.0,
    True,
    (),
)
