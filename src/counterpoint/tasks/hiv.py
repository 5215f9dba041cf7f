"""HIV under structured treatment: six populations of cells and virus, two drugs on or off for five days at a time.

    x' = flow₅(x, a)·exp(size·u),    state = ln x,    u ~ N(0, I)

with x = (T₁, T₂, T₁*, T₂*, V, E), drug efficacies ε₁ (reverse transcriptase inhibitor) and ε₂ (protease inhibitor), and

    dT₁  = λ₁ − d₁T₁ − (1−ε₁)k₁VT₁                    dT₂  = λ₂ − d₂T₂ − (1−fε₁)k₂VT₂
    dT₁* = (1−ε₁)k₁VT₁ − δT₁* − m₁ET₁*                dT₂* = (1−fε₁)k₂VT₂ − δT₂* − m₂ET₂*
    dV   = (1−ε₂)N_Tδ(T₁*+T₂*) − cV − [(1−ε₁)ρ₁k₁T₁ + (1−fε₁)ρ₂k₂T₂]V
    dE   = λ_E + b_E·T*/(T*+K_b)·E − d_E·T*/(T*+K_d)·E − δ_E·E,    T* = T₁*+T₂*

Adams, Banks, Kwon, Tran, "Dynamic multidrug therapies for HIV: optimal and STI control approaches", Mathematical
Biosciences and Engineering 1(2), 2004; reward and starting state of Ernst, Stan, Gonçalves, Wehenkel, "Clinical data
based optimal STI strategies for HIV", CDC 2006. The noise is added by this package: without it,
counterfactuals are trivial.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.seeding import generator as seeded
from counterpoint.core.settings import Amount, Positive, Share, Weight, check_settings
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Schema
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import Discrete
from counterpoint.tasks.base import KnownSCM

UNHEALTHY = (163573.0, 5.0, 11945.0, 46.0, 63919.0, 24.0)
"""The locally stable infected state (T₁, T₂, T₁*, T₂*, V, E) with a high viral load, where treatment starts."""
HEALTHY = (967839.0, 621.0, 76.0, 6.0, 415.0, 353108.0)
"""The locally stable infected state with a low viral load, to which good treatment leads."""

DAYS_PER_STEP = 5
SUBSTEPS = 50
"""Integration steps in one step of treatment; the refinement takes twice as many."""

T1_SOURCE, T1_DEATH = 1e4, 0.01
T2_SOURCE, T2_DEATH = 31.98, 0.01
T2_EFFICACY = 0.34
INFECTED_DEATH, IMMUNE_CLEARANCE = 0.7, 1e-5
VIRIONS_PER_CELL, VIRUS_CLEARANCE, VIRIONS_PER_INFECTION = 100.0, 13.0, 1.0
IMMUNE_SOURCE, IMMUNE_BIRTH, IMMUNE_BIRTH_HALF = 1.0, 0.3, 100.0
IMMUNE_IMPAIRMENT, IMMUNE_IMPAIRMENT_HALF, IMMUNE_DEATH = 0.25, 500.0, 0.1
BOUNDS = (("log_T1", 0.0, 16.0), ("log_T2", -10.0, 11.0), ("log_T1_infected", -40.0, 16.0),
          ("log_T2_infected", -40.0, 11.0), ("log_virus", -40.0, 18.0), ("log_immune", -2.0, 15.0))  # fmt: skip
"""Physiological bounds of each log state in a millilitre of blood. They keep a fitted model from predicting unbounded
immunity far from its log."""


class HIVResponse(NamedTuple):
    """A patient's parameters: scalars for one patient, one value for each row for several. Defaults of Adams et al."""

    infection_1: Float[Tensor, "*n"] = torch.tensor(8e-7)
    """k₁, infection rate of T cells."""
    infection_2: Float[Tensor, "*n"] = torch.tensor(1e-4)
    """k₂, infection rate of macrophages."""
    transcriptase: Float[Tensor, "*n"] = torch.tensor(0.7)
    """ε₁ while the reverse transcriptase inhibitor is taken."""
    protease: Float[Tensor, "*n"] = torch.tensor(0.3)
    """ε₂ while the protease inhibitor is taken."""


def population(count: int, seed: int, spread: float = 0.1) -> HIVResponse:
    """Draw patients whose infection rates and drug efficacies are the published ones times exp(spread·N(0,1))."""
    factor = (spread * torch.randn(3, count, generator=seeded(seed, "response"))).exp()
    mean = HIVResponse()
    return HIVResponse(
        infection_1=mean.infection_1 * factor[0],
        infection_2=mean.infection_2 * factor[0],
        transcriptase=(mean.transcriptase * factor[1]).clamp_max(0.95),
        protease=(mean.protease * factor[2]).clamp_max(0.95),
    )


@dataclass(frozen=True, eq=False)
class HIV(KnownSCM):
    """HIV infection with six log states; actions: no drug, either inhibitor, or both."""

    response: HIVResponse = field(default_factory=HIVResponse)
    """One patient, or a population: row i then belongs to patient i (see `of_subjects`)."""
    noise_size: Weight = 0.05
    """Standard deviation of the noise on each log state."""
    initial_spread: Weight = 0.1
    """Standard deviation of each log state around `UNHEALTHY` at the start."""
    reward_unit: Amount = 1e5
    """Divisor of the reward of Ernst et al., which brings it near one at the start."""
    horizon: Positive = 200
    """Steps of five days."""
    discount: Share = 0.98
    compiled: bool = False
    """Whether an integration step is compiled by `torch.compile`, into one GPU kernel instead of ninety."""

    def __post_init__(self) -> None:
        check_settings(self)

    actions = Discrete(((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)))
    state_names = ("log_T1", "log_T2", "log_T1_infected", "log_T2_infected", "log_virus", "log_immune")
    noise_width = 6

    @property
    def schema(self) -> Schema:
        return Schema.of(self.state_names, self.actions, knowledge=Knowledge(bounds=BOUNDS))

    def of_subjects(self, subject: Int[Tensor, " n"]) -> "HIV":
        """Return the task with these patients' parameters, row by row; subject numbers wrap around the population."""
        if self.response.infection_1.ndim == 0:
            return self
        rows = subject.cpu() % len(self.response.infection_1)
        return replace(self, response=HIVResponse(*(value[rows].to(subject.device) for value in self.response)))

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """Return 1000 E − 0.1 V − 20000 ε₁² − 2000 ε₂² of the next state, with the published efficacies."""
        virus, immune = next_state[..., 4].exp(), next_state[..., 5].exp()
        drugs = 20000 * 0.7**2 * action[..., 0] + 2000 * 0.3**2 * action[..., 1]
        return (1000 * immune - 0.1 * virus - drugs) / self.reward_unit

    def terminated(self, next_state: State) -> Flag:
        """Return False for every row: the disease is chronic."""
        return torch.zeros_like(next_state[..., 0], dtype=torch.bool)

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 6"]:
        start = torch.tensor([math.log(value) for value in UNHEALTHY])
        return start + self.initial_spread * torch.randn(count, 6, generator=generator)

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 6"]:
        return torch.randn(count, 6, generator=generator)

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        # Six decades between the states: double precision inside, the caller's outside.
        return self.flow(state.double(), action.double()).to(state.dtype) + self.noise_size * noise

    def flow(self, state: State, action: Action) -> State:
        """Return the state after five days of the noise-free equations, by the exponential midpoint rule.

        The rule is applied with two step sizes and extrapolated once (Richardson). Each equation reads
        dx = production − loss·x, solved exactly with both held at their value at the midpoint. That keeps x positive at
        any step size; the classical Runge–Kutta method does not, because a viral peak infects macrophages at more than
        a hundred a day. In log states the error is about 0.0005, and 0.02 at viral peaks.
        """
        coarse = self._midpoint_rule(state, action, SUBSTEPS)
        fine = self._midpoint_rule(state, action, 2 * SUBSTEPS)
        return (4 * fine - coarse) / 3

    def _midpoint_rule(self, state: State, action: Action, steps: int) -> State:
        x, days = state.exp(), DAYS_PER_STEP / steps
        step = _compiled_step() if self.compiled else _step
        for _ in range(steps):
            x = step(x, action, self.response, days)
        return x.log()


def _step(x: Float[Tensor, "*n 6"], action: Action, response: HIVResponse, days: float) -> Float[Tensor, "*n 6"]:
    """Return the populations after one step of the exponential midpoint rule."""
    midpoint = _relax(x, *balance(x, action, response), days / 2)
    return _relax(x, *balance(midpoint, action, response), days)


@cache
def _compiled_step() -> Callable[..., Float[Tensor, "*n 6"]]:
    return torch.compile(_step)


def balance(
    x: Float[Tensor, "*n 6"], action: Action, response: HIVResponse
) -> tuple[Float[Tensor, "*n 6"], Float[Tensor, "*n 6"]]:
    """Return production and rate of loss of (T₁, T₂, T₁*, T₂*, V, E), per day."""
    t1, t2, infected_1, infected_2, virus, immune = x.unbind(-1)
    transcriptase = response.transcriptase * action[..., 0]
    rate_1 = (1 - transcriptase) * response.infection_1
    rate_2 = (1 - T2_EFFICACY * transcriptase) * response.infection_2
    infected, constant = infected_1 + infected_2, torch.ones_like(virus)
    virions = (1 - response.protease * action[..., 1]) * VIRIONS_PER_CELL * INFECTED_DEATH
    birth = IMMUNE_BIRTH * infected / (infected + IMMUNE_BIRTH_HALF)
    impairment = IMMUNE_IMPAIRMENT * infected / (infected + IMMUNE_IMPAIRMENT_HALF)
    production = [
        T1_SOURCE * constant,
        T2_SOURCE * constant,
        rate_1 * virus * t1,
        rate_2 * virus * t2,
        virions * infected,
        IMMUNE_SOURCE + birth * immune,
    ]
    killed = INFECTED_DEATH + IMMUNE_CLEARANCE * immune
    entering = VIRIONS_PER_INFECTION * (rate_1 * t1 + rate_2 * t2)
    loss = [
        T1_DEATH + rate_1 * virus,
        T2_DEATH + rate_2 * virus,
        killed,
        killed,
        VIRUS_CLEARANCE + entering,
        IMMUNE_DEATH + impairment,
    ]
    return torch.stack(production, -1), torch.stack(loss, -1)


def _relax(
    x: Float[Tensor, "*n 6"], production: Float[Tensor, "*n 6"], loss: Float[Tensor, "*n 6"], days: float
) -> State:
    """Return the solution after `days` of dx = production − loss·x with both constant."""
    return x + (production / loss - x) * -torch.expm1(-days * loss)
