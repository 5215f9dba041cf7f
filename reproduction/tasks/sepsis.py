"""Synthetic septic patients: 46 columns, 25 pairs of doses, death and discharge, with known structural equations.

    z' = z + rate·(pulls − z) + treatment(z, a, subject) + noise·u          36 measured columns (`sepsis_columns`)
    ventilated' = 1[u < −2.1 + 3·ventilated − 0.5·z(PaO2/FiO2) − 0.3·z(GCS)]
    scores, ratios, the sum of urine                                        computed from the above
    P(died | s) = sigmoid(severity − 6.3)
    P(survived | s) = (1 − P(died))·sigmoid(−severity − 1.9 − 1.5·ventilated)

Fluid raises the pressure and the urine output; fluid that leaks out harms the lung, which heals slowly. A vasopressor
raises the pressure at once; where the vessels were not dilated it reduces perfusion, which raises the lactate. Patients
differ in their response, which no column shows: a patient whose pressure responds less is harmed more. A step is four
hours; doses and reward are those of Raghu et al., "Deep reinforcement learning for sepsis treatment", 2017. It is no
model of patients: it has a cohort's columns, ranges and difficulties, with known truth (reproduction/docs/sepsis.md
compares it with cohorts). A patient who is still on the ward at the horizon has neither outcome; a cohort records it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.seeding import generator as seeded
from counterpoint.core.settings import Finite, Positive, Share, check_settings
from counterpoint.data.doses import ActionColumn, product_space
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Column, Schema
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import constant
from counterpoint.data.transitions import GOES_ON
from counterpoint.sources.mimic.columns import CTRL46, PLACE
from counterpoint.sources.mimic.scores import raghu_reward, sirs, sofa
from counterpoint.tasks.base import KnownSCM, StepResult
from reproduction.tasks.sepsis_columns import (
    MOVING,
    STATIC,
    TABLE,
    constants,
    measured,
    standardised,
)

DOSES = (
    ActionColumn("input_4hourly", cuts=(50.0, 180.0, 530.0), zero=True, doses=(0.0, 30.0, 100.0, 330.0, 900.0)),
    ActionColumn("max_dose_vaso", cuts=(0.08, 0.225, 0.45), zero=True, doses=(0.0, 0.04, 0.15, 0.3, 0.8)),
)
"""Fluid in mL and norepinephrine equivalent in µg/kg/min, cut about where Raghu et al. cut theirs."""
ACTIONS = product_space(list(DOSES))
FLUID_HALF, VASO_HALF = 400.0, 0.25
"""Doses with half of the effect that no dose exceeds."""
TREATMENT = {
    # column: (fluid, vasopressor, vasopressor on vessels that were not slack), in standard deviations
    "output_4hourly": (0.9, 0.0, 0.0),  # Kidneys need water.
    "Arterial_lactate": (-0.25, 0.0, 0.35),  # Flow washes it out; clamped vessels make it.
    "HR": (-0.2, 0.25, 0.3),  # A filled heart is slower; catecholamines drive it.
    "Hb": (-0.12, 0.0, 0.0),  # Diluted.
    "Albumin": (-0.08, 0.0, 0.0),  # Diluted.
    "Chloride": (0.2, 0.0, 0.0),  # Saline.
    "Glucose": (0.0, 0.2, 0.2),  # Catecholamines.
    "SGOT": (0.0, 0.0, 0.25),  # A clamped gut and liver.
}
"""Immediate effects of the doses; `SyntheticSepsis.treatment` adds those on pressure and lung."""
FLUID_PRESSURE, VASO_PRESSURE, LEAK = 1.0, 1.6, 0.45
"""Effects of a very large dose on the pressure (in 13.5 mmHg), and of leaking fluid on the lung."""
COMPUTED = ("SOFA", "SIRS", "Shock_Index", "paO2", "output_total")
"""Columns that are computed from others."""
WARM_UP = 4
"""Untreated steps before the record begins, after which the columns are consistent."""


class SepsisResponse(NamedTuple):
    """A patient's response parameters: scalars for one patient, one value for each row for several."""

    fluid: Float[Tensor, "*n"] = torch.tensor(1.0)
    """Factor of the effect of fluid on the pressure, and divisor of the fluid that leaks into the lung."""
    vasopressor: Float[Tensor, "*n"] = torch.tensor(1.0)
    """Factor of the effect of the vasopressor on the pressure, and divisor of its harm to perfusion."""
    infection: Float[Tensor, "*n"] = torch.tensor(0.0)
    """Level to which the inflammation tends, in standard deviations: the severity of the infection."""


def population(count: int, seed: int, spread: float = 0.6) -> SepsisResponse:
    """Draw patients whose responses are 1 times exp(spread·N(0,1)) and whose infections are N(0, 1)."""
    fluid, vasopressor, infection = torch.randn(3, count, generator=seeded(seed, "response"))
    return SepsisResponse((spread * fluid).exp(), (spread * vasopressor).exp(), infection)


@dataclass(frozen=True, eq=False)
class SyntheticSepsis(KnownSCM):
    """Septic patients with the 46 columns `ctrl46`, five doses of fluid by five of a vasopressor, and two outcomes."""

    response: SepsisResponse = field(default_factory=SepsisResponse)
    """One patient, or a population: row i then belongs to patient i (see `of_subjects`)."""
    end_reward: Finite = 15.0
    """Reward of the step that ends in a discharge; a death has the opposite."""
    same_sofa: Finite = -0.025
    """Reward where the SOFA score stays and is not 0."""
    sofa_change: Finite = -0.125
    """Reward of every point of the SOFA score gained."""
    lactate_change: Finite = -2.0
    """Reward of tanh(rise of the lactate)."""
    horizon: Positive = 20
    """Steps of four hours after which a record is cut."""
    discount: Share = 0.99

    def __post_init__(self) -> None:
        check_settings(self)

    actions = ACTIONS
    state_names = CTRL46
    outcome_names = ("died", "survived")
    noise_width = len(TABLE) + 1

    @property
    def schema(self) -> Schema:
        return SCHEMA

    def of_subjects(self, subject: Int[Tensor, " n"]) -> "SyntheticSepsis":
        """Return the task with these patients' parameters, row by row; subject numbers wrap around the population."""
        if self.response.fluid.ndim == 0:
            return self
        rows = subject.cpu() % len(self.response.fluid)
        return replace(self, response=SepsisResponse(*(value[rows].to(subject.device) for value in self.response)))

    def severity(self, state: State) -> Float[Tensor, "*n"]:
        """Return the severity, about 1 ± 1, from pressure, lactate, lung, brain, kidney, age and other illness."""
        z = standardised(state)
        part = lambda name: z[..., MOVING[name]]
        organs = 0.6 * part("Arterial_lactate") - 0.6 * part("PaO2_FiO2") - 0.3 * part("GCS") + 0.3 * part("Creatinine")
        age, other = ((state[..., PLACE[n]] - STATIC[n].centre) / STATIC[n].spread for n in ("age", "elixhauser"))
        return 0.8 * hypotension(state) + organs + 0.25 * age + 0.15 * other

    def hazard(self, state: State) -> Float[Tensor, "*n 3"]:
        """Return P(died), P(survived: is discharged) and P(stays) in this step."""
        severity = self.severity(state)
        died = (severity - 6.3).sigmoid()
        home = (1 - died) * (-severity - 1.9 - 1.5 * state[..., PLACE["mechvent"]]).sigmoid()
        return torch.stack([died, home, 1 - died - home], -1)

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """Return the reward of a step after which the patient stays: a falling SOFA score and a falling lactate."""
        return raghu_reward(state, next_state, self.same_sofa, self.sofa_change, self.lactate_change)

    def terminated(self, next_state: State) -> Flag:
        """Return whether the row has no next state; for other rows `expected` gives the probability of an end."""
        return next_state.isnan().any(-1)

    def expected(self, state: State, action: Action, next_state: State) -> tuple[Tensor, Tensor]:
        died, home, stays = self.hazard(state).unbind(-1)
        return self.end_reward * (home - died) + stays * self.reward(state, action, next_state), stays

    def draw_result(self, state: State, action: Action, next_state: State, uniform: Reward) -> StepResult:
        drawn = (uniform[..., None] >= self.hazard(state).cumsum(-1)[..., :2]).sum(-1)
        outcome: Int[Tensor, "*n"] = torch.where(drawn == 2, GOES_ON, drawn)
        end = torch.where(drawn == 0, -self.end_reward, self.end_reward)
        reward = torch.where(outcome >= 0, end, self.reward(state, action, next_state))
        return StepResult(reward, outcome, next_state.masked_fill((outcome >= 0)[..., None], torch.nan))

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 46"]:
        """Draw patients with fever and an average response, after some untreated steps."""
        state = torch.zeros(count, len(CTRL46))
        for name, (_, centre, spread, limits) in STATIC.items():
            state[:, PLACE[name]] = (centre + spread * torch.randn(count, generator=generator)).clamp(*limits)
        state[:, PLACE["elixhauser"]] = state[:, PLACE["elixhauser"]].round()
        state[:, PLACE["gender"]] = (torch.rand(count, generator=generator) < 0.44).float()
        z = 1.2 * torch.randn(count, len(TABLE), generator=generator)
        z[:, [MOVING["WBC_count"], MOVING["Temp_C"]]] += 1.2
        state[:, constants(state.device).places] = measured(z)
        average = replace(self, response=SepsisResponse())
        untreated = torch.zeros(count, 2)
        for _ in range(WARM_UP):
            state = average.transition(state, untreated, self.noise(count, generator))
        state[:, PLACE["output_total"]] = state[:, PLACE["output_4hourly"]]
        return state

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n u"]:
        return torch.randn(count, self.noise_width, generator=generator)

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        c, z, ventilated = constants(state.device), standardised(state), state[..., PLACE["mechvent"]]
        drivers = torch.cat([z, torch.stack([inflammation(z), hypotension(state), ventilated], -1)], -1)
        target = drivers @ c.pulls
        target[..., MOVING["WBC_count"]] += self.response.infection
        after = z + c.rate * (target - z) + self.treatment(z, action) + c.noise * noise[..., :-1]
        need = -2.1 + 3 * ventilated - 0.5 * z[..., MOVING["PaO2_FiO2"]] - 0.3 * z[..., MOVING["GCS"]]
        next_state = state.clone()
        next_state[..., c.places] = measured(after)
        next_state[..., PLACE["mechvent"]] = (noise[..., -1] < need).to(state)
        return with_derived(next_state)

    def treatment(self, z: Float[Tensor, "*n moving"], action: Action) -> Float[Tensor, "*n moving"]:
        """Return the effect of the doses on every measured column in one step."""
        millilitres, micrograms = action.unbind(-1)
        fluid, vasopressor = millilitres / (millilitres + FLUID_HALF), micrograms / (micrograms + VASO_HALF)
        firm = (1 + 1.5 * z[..., MOVING["MeanBP"]]).sigmoid()  # Vessels that were not slack.
        clamped = 2 * firm * vasopressor / self.response.vasopressor
        effect = torch.zeros_like(z)
        for name, (water, drug, clamping) in TREATMENT.items():
            effect[..., MOVING[name]] = water * fluid + drug * vasopressor + clamping * clamped
        room = (1 - z[..., MOVING["MeanBP"]]).sigmoid()  # A full heart is not filled further (Frank and Starling).
        leak = (inflammation(z) - z[..., MOVING["Albumin"]] / 2).sigmoid()  # Inflamed vessels and thin blood lose it.
        filled = FLUID_PRESSURE * self.response.fluid * room * fluid
        effect[..., MOVING["MeanBP"]] = filled + VASO_PRESSURE * self.response.vasopressor * vasopressor
        effect[..., MOVING["PaO2_FiO2"]] = -LEAK * leak * fluid / self.response.fluid
        return effect


def inflammation(z: Float[Tensor, "*n moving"]) -> Float[Tensor, "*n"]:
    """Return the mean of white cells and temperature, in standard deviations."""
    return (z[..., MOVING["WBC_count"]] + z[..., MOVING["Temp_C"]]) / 2


def hypotension(state: State) -> Float[Tensor, "*n"]:
    """Return how far the mean pressure is below normal: 0.1 at 80 mmHg, 0.35 at 70, 1.1 at 60 and 2 at 50."""
    return torch.nn.functional.softplus((70 - state[..., PLACE["MeanBP"]]) / 5) / 2


def with_derived(state: State) -> State:
    """Return the state with the computed columns, as a new tensor so that gradients pass."""
    now = dict(zip(CTRL46, state.unbind(-1), strict=True))
    derived = {
        "paO2": now["PaO2_FiO2"] * now["FiO2_1"],
        "Shock_Index": now["HR"] / now["SysBP"],
        "output_total": now["output_total"] + now["output_4hourly"],
        "SOFA": sofa(state),
        "SIRS": sirs(state),
    }
    return torch.stack(list((now | derived).values()), -1)


def _columns() -> tuple[Column, ...]:
    units = {row.name: row.unit for row in TABLE} | {name: row.unit for name, row in STATIC.items()}
    units |= {"paO2": "mmHg", "output_total": "mL"}
    levels = {"gender": ("male", "female"), "mechvent": ("no", "yes")}
    fixed = {*STATIC, "gender"}
    return tuple(Column(name, levels.get(name, ()), units.get(name, ""), name in fixed) for name in CTRL46)


def _bounds() -> tuple[tuple[str, float, float], ...]:
    limits = {row.name: row.limits for row in TABLE} | {name: row.limits for name, row in STATIC.items()}
    derived = {"SOFA": (0, 21), "SIRS": (0, 4), "Shock_Index": (0.05, 7), "output_total": (0, 1e5), "paO2": (8, 800)}
    return tuple((name, float(low), float(high)) for name, (low, high) in (limits | derived).items())


SCHEMA = Schema(
    _columns(),
    ACTIONS,
    tuple(column.name for column in DOSES),
    doses=DOSES,
    knowledge=Knowledge(bounds=_bounds(), whole=("SOFA", "SIRS"), computed=COMPUTED),
)

FLUID_CUTS, VASO_CUTS = (-0.3, 0.25, 0.75, 1.4), (1.5, 1.75, 2.1, 2.7)
"""Thresholds of the physician's score between dose levels: about three in ten rows have no fluid and eight in ten no
vasopressor; the other levels are about equally frequent, as quartiles are."""
Behaviour = Callable[[Float[Tensor, "n s"], torch.Generator], Float[Tensor, "n a"]]


def physician(task: SyntheticSepsis) -> Behaviour:
    """Return the behaviour policy, whose doses rise with severity and have a random part.

    Fluid depends on weight and not on the lung; the vasopressor follows the lactate, so it comes late. Weight and
    lactate change slowly, and so do the doses. The policy depends on the state only.
    """

    def act(state: Float[Tensor, "n 46"], generator: torch.Generator) -> Float[Tensor, "n 2"]:
        low, lactate = hypotension(state), standardised(state)[..., MOVING["Arterial_lactate"]]
        weight = (state[..., PLACE["Weight_kg"]] - STATIC["Weight_kg"].centre) / STATIC["Weight_kg"].spread
        noise = torch.randn(len(state), 2, generator=generator).to(state)
        fluid = 0.2 * task.severity(state) + 0.3 * low + 0.8 * weight + 0.7 * noise[:, 0]
        vasopressor = 0.2 * task.severity(state) + 0.4 * low + 0.7 * lactate + 0.6 * noise[:, 1]
        return _doses(
            *(torch.bucketize(x, constant(c, x.device)) for x, c in ((fluid, FLUID_CUTS), (vasopressor, VASO_CUTS)))
        )

    return act


def protocol(state: Float[Tensor, "n 46"], generator: torch.Generator) -> Float[Tensor, "n 2"]:
    """Act by a deterministic rule: the vasopressor follows the pressure, fluid the pressure, lactate and lung."""
    low, z = hypotension(state), standardised(state)
    fluid = 0.8 + 0.8 * low + 0.3 * z[..., MOVING["Arterial_lactate"]] + 0.5 * z[..., MOVING["PaO2_FiO2"]]
    return _doses(*(score.floor().long().clamp(0, 4) for score in (fluid, 0.3 + 1.7 * low)))


def _doses(fluid: Int[Tensor, " n"], vasopressor: Int[Tensor, " n"]) -> Float[Tensor, "n 2"]:
    """Return the amounts of two dose levels from 0 to 4."""
    return ACTIONS.features(5 * fluid + vasopressor)
