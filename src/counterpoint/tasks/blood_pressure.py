"""High blood pressure after surgery, lowered by repeated doses of a drug that acts for hours: known truth for dosing.

    b' = κ·(b + dose),   κ = 0.5^(1/4)                        the dose on board, with a half-life of an hour
    z' = 0.8·z + 2·max(u₂ − 0.8, 0)                             pain, which no dose changes
    p' = p + 0.3·(P + 3·z' − e·b'·70/W − p) + 3·u₁            mean arterial pressure in mmHg

Subjects differ in their weight W, which is a column, and in P (pressure without the drug and without pain) and e
(effect of a milligram on board), which are not. A step takes 15 minutes. The reward of a step is −|p' − 90|/10, and
−2 more below 65 mmHg. The equations are our own; the drug is none in particular.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.seeding import generator as seeded
from counterpoint.core.settings import Positive, Share, check_settings
from counterpoint.data.knowledge import Knowledge, Recursion
from counterpoint.data.schema import Column, Schema
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import Box
from counterpoint.tasks.base import KnownSCM

TARGET, LOW = 90.0, 65.0
"""Pressure that is aimed at, and pressure below which organs are in danger, in mmHg."""
LARGEST_DOSE = 4.0
"""Largest dose of a step, in mg."""
KEPT = 0.5**0.25
"""κ: share of the dose on board that is left after a step."""


class PressureResponse(NamedTuple):
    """A patient's parameters: scalars for one patient, one value for each row for several."""

    untreated: Float[Tensor, "*n"] = torch.tensor(112.0)
    """P, the pressure without the drug and without pain."""
    effect: Float[Tensor, "*n"] = torch.tensor(7.0)
    """e, the fall of the pressure per mg on board, at 70 kg."""


def population(count: int, seed: int) -> PressureResponse:
    """Draw the parameters of `count` patients: P is normal, e log-normal."""
    untreated, effect = torch.randn(2, count, generator=seeded(seed, "response"))
    return PressureResponse(112 + 6 * untreated, 7 * (0.35 * effect).exp())


@dataclass(frozen=True, eq=False)
class BloodPressure(KnownSCM):
    """Blood pressure under a drug of delayed effect; state: pressure, pain, weight and dose on board."""

    response: PressureResponse = field(default_factory=PressureResponse)
    """One patient, or a population: row i then belongs to patient i (see `of_subjects`)."""
    horizon: Positive = 24
    """Steps of 15 minutes."""
    discount: Share = 0.99

    def __post_init__(self) -> None:
        check_settings(self)

    actions = Box((0.0,), (LARGEST_DOSE,))
    state_names = ("pressure", "pain", "weight", "dose_on_board")
    noise_width = 2

    @property
    def schema(self) -> Schema:
        knowledge = Knowledge(
            exogenous=("pain",),
            recursions=(Recursion("dose_on_board", (("dose_on_board", KEPT), ("dose", KEPT))),),
            signs=(("dose", "pressure", -1),),
            per=(("dose", "weight"),),
        )
        states = tuple(Column(name, static=name == "weight") for name in self.state_names)
        return Schema(states, self.actions, ("dose",), knowledge=knowledge)

    def of_subjects(self, subject: Int[Tensor, " n"]) -> "BloodPressure":
        """Return the task with these patients' parameters, row by row; subject numbers wrap around the population."""
        if self.response.effect.ndim == 0:
            return self
        rows = subject.cpu() % len(self.response.effect)
        return replace(self, response=PressureResponse(*(value[rows].to(subject.device) for value in self.response)))

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """Return minus the distance from the target in 10 mmHg, and minus 2 in danger."""
        pressure = next_state[..., 0]
        return -(pressure - TARGET).abs() / 10 - 2 * (pressure < LOW)

    def terminated(self, next_state: State) -> Flag:
        """Return False for every row: all records have the same length."""
        return torch.zeros_like(next_state[..., 0], dtype=torch.bool)

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 4"]:
        pressure, pain, weight = torch.randn(3, count, generator=generator)
        return torch.stack([115 + 8 * pressure, 2 * pain.abs(), 75 * (0.18 * weight).exp(), torch.zeros(count)], 1)

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 2"]:
        return torch.randn(count, 2, generator=generator)

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        pressure, pain, weight, on_board = state.unbind(-1)
        on_board = KEPT * (on_board + action[..., 0])
        pain = 0.8 * pain + 2 * (noise[..., 1] - 0.8).clamp_min(0)
        reached = self.response.untreated + 3 * pain - self.response.effect * on_board * 70 / weight
        pressure = pressure + 0.3 * (reached - pressure) + 3 * noise[..., 0]
        return torch.stack([pressure, pain, weight, on_board], -1)


def clinicians(state: State, random: torch.Generator) -> Action:
    """Act as the behaviour policy: a dose by the present pressure alone; a quarter of the doses is left out.

    Weight, pain and the dose on board play no part, so that heavy patients and those in pain stay above the target.
    """
    above = (state[:, 0] - TARGET).clamp_min(0)
    dose = 0.1 * above * (0.7 * torch.randn(len(state), generator=random)).exp()
    given = torch.rand(len(state), generator=random) > 0.25
    return (dose * given).clamp(max=LARGEST_DOSE)[:, None]
