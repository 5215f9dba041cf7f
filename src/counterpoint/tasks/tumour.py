"""Growth of a lung tumour under chemotherapy and radiotherapy, with a known response of each patient.

    ln V' = ln V + ρ ln(K/V) − β_c C' − (α d + β d²) + e,    C' = C/2 + chemo dose,    e ~ N(0, 0.01²)

Geng, Paganetti, Grassberger, "Prediction of treatment response for combined chemo- and radiation therapy for non-small
cell lung cancer patients using a bio-mathematical model", Scientific Reports 7, 2017, with the constants of Bica et
al., "Counterfactual recurrent networks", ICLR 2020. Those write V' = V(1 + …), the first order of the exponential here.
In ln V the volume stays positive and is strictly increasing in e however strong the dose.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.seeding import generator as seeded
from counterpoint.core.settings import Finite, Positive, Share, Weight, check_settings
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import Discrete
from counterpoint.tasks.base import KnownSCM

CHEMO_DOSE = 5.0
RADIO_DOSE = 2.0


def log_ball(diameter: float) -> float:
    """Return the log volume in cm³ of a ball of `diameter` cm."""
    return math.log(math.pi / 6 * diameter**3)


LOG_CAPACITY = log_ball(30)
LOG_DEATH = log_ball(13)


class TumourResponse(NamedTuple):
    """A patient's response parameters: scalars for one patient, one value for each row for several.

    The defaults are near the mean of the population.
    """

    radio: Float[Tensor, "*n"] = torch.tensor(0.175)
    """α, the linear response to radiotherapy; the quadratic one is β = α/10."""
    growth: Float[Tensor, "*n"] = torch.tensor(0.0062)
    """ρ, the rate of growth towards the capacity."""
    chemo: Float[Tensor, "*n"] = torch.tensor(0.028)
    """β_c, the response to the concentration of the drug."""


def population(count: int, seed: int, chemo_spread: float = 0.0007) -> TumourResponse:
    """Draw the responses of `count` patients: (α, ρ) jointly normal with correlation 0.87, both positive; β_c normal.

    The published β_c barely varies; widen `chemo_spread` for patients who differ in which treatment suits them.
    """
    draw = seeded(seed, "response")
    accepted: list[Tensor] = []
    while sum(map(len, accepted)) < count:
        first, second = torch.randn(2, 64 + 3 * count, generator=draw)
        radio = 0.0398 + 0.168 * first
        growth = 7e-5 + 7.23e-3 * (0.87 * first + math.sqrt(1 - 0.87**2) * second)
        accepted.append(torch.stack([radio, growth], 1)[(radio > 0) & (growth > 0)])
    radio, growth = torch.cat(accepted)[:count].T
    chemo = (0.028 + chemo_spread * torch.randn(count, generator=draw)).clamp_min(0)
    return TumourResponse(radio, growth, chemo)


@dataclass(frozen=True, eq=False)
class Tumour(KnownSCM):
    """Tumour growth; state: log volume and drug concentration; actions: none, chemotherapy, radiotherapy, both.

    The concentration has no noise: its next value is a function of state and action.
    """

    response: TumourResponse = field(default_factory=TumourResponse)
    """One patient, or a population: row i then belongs to patient i (see `of_subjects`)."""
    radio_cost: Finite = 0.35
    """Cost of a fraction of radiotherapy, in units of log volume; with it the best action differs between patients."""
    chemo_cost: Finite = 0.0
    """Cost of a dose of chemotherapy."""
    death_cost: Finite = 10.0
    """Cost of death, so that an early end never saves costs."""
    noise_size: Weight = 0.01
    """Standard deviation of e."""
    horizon: Positive = 60
    """Days of treatment."""
    discount: Share = 0.99

    def __post_init__(self) -> None:
        check_settings(self)

    actions = Discrete(((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)))
    state_names = ("log_volume", "concentration")
    noise_width = 1

    def of_subjects(self, subject: Int[Tensor, " n"]) -> "Tumour":
        """Return the task with these patients' parameters, row by row; subject numbers wrap around the population."""
        if self.response.radio.ndim == 0:
            return self
        rows = subject.cpu() % len(self.response.radio)
        return replace(self, response=TumourResponse(*(value[rows].to(subject.device) for value in self.response)))

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """Return the fall of the log volume, less the cost of treatment and of death."""
        cost = self.chemo_cost * action[..., 0] + self.radio_cost * action[..., 1]
        return state[..., 0] - next_state[..., 0] - cost - self.death_cost * self.terminated(next_state)

    def terminated(self, next_state: State) -> Flag:
        return next_state[..., 0] > LOG_DEATH

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 2"]:
        """Draw diameters log-uniform between 1 and 10 cm, no drug."""
        share = torch.rand(count, generator=generator)
        log_volume = log_ball(1) + share * (log_ball(10) - log_ball(1))
        return torch.stack([log_volume, torch.zeros(count)], 1)

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 1"]:
        return torch.randn(count, 1, generator=generator)

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        log_volume, concentration = state[..., 0], state[..., 1] / 2 + CHEMO_DOSE * action[..., 0]
        growth = self.response.growth * (LOG_CAPACITY - log_volume)
        radio = self.response.radio * (RADIO_DOSE + RADIO_DOSE**2 / 10) * action[..., 1]
        change = growth - self.response.chemo * concentration - radio + self.noise_size * noise[..., 0]
        return torch.stack([log_volume + change, concentration], -1)
