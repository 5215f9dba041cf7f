r"""A drug that acts within minutes and has a large effect, against an outside stimulus: a world of our own.

With a dose rate d a minute, weight W, age g, a central and an effect compartment and a stimulus z:

    ċ = d·(70/W)/V − k·c,   ė = k_e·(c − e)
    M = M₀·(1 − e^γ/(e^γ + C^γ)) + b·z,    C = C₀·(1 − 0.006·(g − 50))

A two-compartment model with a sigmoid effect is in every pharmacology textbook; none is copied. The reward of a step is
−|M − 50|/20, and −1 more in danger (below 30 or above 80). The parameters of the subjects differ by about a quarter.
The behaviour policy is a rate by weight times a habit, with a late and partial correction and log-normal noise.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from counterpoint.data.knowledge import Knowledge, Recursion
from counterpoint.data.spaces import ActionSpace, Box
from reproduction.worlds.base import Actions, Change, Columns, Hidden, Numbers, World, decayed_sum

TARGET, LOW, HIGH = 50.0, 30.0, 80.0
SENSOR = 3.0
"""Standard deviation of the sensor's noise."""
LARGEST_DOSE = 4.0
SUBSTEPS = 4
"""Parts of a minute that are integrated one by one."""
HALF_LIFE = 4.0
"""Steps after which half of the decayed sum of doses is left."""
KEPT = 0.6
"""Share of the decayed sum of stimuli that is left after a step."""


@dataclass(frozen=True)
class Infusion(World):
    """One-minute decisions about the rate of an infusion."""

    steps: int = 90
    spread: float = 0.3
    """Standard deviation of the logarithm of the behaviour policy's noise: more is more overlap."""

    name: ClassVar[str] = "infusion"
    state: ClassVar[tuple[str, ...]] = (
        "marker", "slope", "stimulus", "stimulus_recent", "on_board", "age", "weight", "elapsed",
    )  # fmt: skip
    action: ClassVar[tuple[str, ...]] = ("dose",)
    marker: ClassVar[str] = "marker"
    noise_size: ClassVar[float] = SENSOR

    def begin(self, subjects: int, random: np.random.Generator) -> Hidden:
        def about(mean: float, spread: float) -> Numbers:
            return mean * np.exp(spread * random.standard_normal(subjects).clip(-2, 2))

        age = random.uniform(20, 80, subjects).round()
        hidden: Hidden = {
            "age": age,
            "weight": about(75.0, 0.18).round(1),
            "undosed": about(93.0, 0.03),
            "half_effect": about(2.6, 0.25) * (1 - 0.006 * (age - 50.0)),
            "steepness": about(2.0, 0.15),
            "clearance": about(0.25, 0.25),
            "delay": about(0.35, 0.2),
            "response": about(1.0, 0.25),
            "habit": about(0.85, 0.3),
            "correction_habit": about(0.5, 0.4),
            "stimuli": self._stimuli(subjects, random),
            "step": np.zeros(subjects, dtype=int),
        }
        empty = ("central", "effect", "on_board", "stimulus_recent", "slope", "drift")
        hidden |= {name: np.zeros(subjects) for name in empty}
        hidden["marker"] = hidden["undosed"]
        hidden["reading"] = (hidden["marker"] + SENSOR * random.standard_normal(subjects)).clip(0, 100)
        return hidden

    def _stimuli(self, subjects: int, random: np.random.Generator) -> Float[np.ndarray, "n t"]:
        """Draw the stimulus of every minute: stretches of several minutes at three strengths, mostly none."""
        stimuli = np.zeros((subjects, self.steps + 10))
        level = np.zeros(subjects)
        for t in range(stimuli.shape[1]):
            changes = random.random(subjects) < np.where(level > 0, 0.15, 0.06)
            drawn = random.choice([10.0, 20.0, 30.0], subjects) * (level == 0)
            level = np.where(changes, drawn, level)
            stimuli[:, t] = level
        return stimuli

    def observe(self, hidden: Hidden) -> Columns:
        step = hidden["step"]
        columns = {name: hidden[name] for name in ("slope", "stimulus_recent", "on_board", "age", "weight")}
        columns |= {"marker": hidden["reading"], "elapsed": step.astype(float)}
        columns["stimulus"] = hidden["stimuli"][np.arange(len(step)), step]
        return {name: columns[name] for name in self.state}

    def noise(self, subjects: int, random: np.random.Generator) -> Float[np.ndarray, "n u"]:
        return random.standard_normal((subjects, 2))

    def step(self, hidden: Hidden, action: Actions, noise: Float[np.ndarray, "n u"]) -> Change:
        dose = action[:, 0].clip(0.0, LARGEST_DOSE)
        step = hidden["step"]
        central, effect = hidden["central"], hidden["effect"]
        for _ in range(SUBSTEPS):
            inflow = dose * 70.0 / hidden["weight"]
            central = central + (inflow - hidden["clearance"] * central) / SUBSTEPS
            effect = effect + hidden["delay"] * (central - effect) / SUBSTEPS
        strength = effect ** hidden["steepness"]
        asleep = strength / (strength + hidden["half_effect"] ** hidden["steepness"])
        stimulus = hidden["stimuli"][np.arange(len(step)), step]
        recent = KEPT * (hidden["stimulus_recent"] + stimulus)
        drift = 0.9 * hidden["drift"] + 0.8 * noise[:, 0]
        marker = hidden["undosed"] * (1 - asleep) + 0.5 * hidden["response"] * (recent / 1.5) + drift
        marker = marker.clip(1.0, 100.0)
        reading = (marker + SENSOR * noise[:, 1]).clip(0.0, 100.0)
        after = {
            **hidden, "central": central, "effect": effect, "drift": drift, "marker": marker, "reading": reading,
            "slope": reading - hidden["reading"], "stimulus_recent": recent, "step": step + 1,
            "on_board": (hidden["on_board"] + dose) * 0.5 ** (1 / HALF_LIFE),
        }  # fmt: skip
        danger = (marker < LOW) | (marker > HIGH)
        outside = (reading < LOW) | (reading > HIGH)
        return Change(after, -np.abs(reading - TARGET) / 20.0 - outside, np.zeros(len(step), dtype=bool), danger)

    def behave(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        usual = 0.55 * hidden["habit"] * columns["weight"] / 70.0
        distance = (columns["marker"] - columns["slope"] - TARGET) / 20.0
        wanted = usual * np.exp(hidden["correction_habit"] * distance.clip(-1.5, 2.0))
        dose = wanted * np.exp(self.spread * random.standard_normal(len(wanted)))
        return np.round(dose, 3).clip(0, LARGEST_DOSE)[:, None]

    def textbook(self, columns: Columns) -> Actions:
        """A rate by weight and age, corrected by the marker, raised in advance of a stimulus."""
        usual = 0.65 * columns["weight"] / 70.0 * (1 - 0.006 * (columns["age"] - 50.0))
        distance = (columns["marker"] - TARGET) / 20.0
        dose = usual * (1 + distance.clip(-1, 2.5) + 0.01 * columns["stimulus"])
        return dose.clip(0, LARGEST_DOSE)[:, None]

    @property
    def space(self) -> ActionSpace:
        return Box((0.0,), (LARGEST_DOSE,))

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(
            bounds=(("marker", 0.0, 100.0),),
            reward_range=(-1.0 - TARGET / 20.0, 0.0),
            exogenous=("stimulus",),
            recursions=(
                decayed_sum("on_board", "dose", HALF_LIFE),
                Recursion("stimulus_recent", (("stimulus_recent", KEPT), ("stimulus", KEPT))),
                Recursion("elapsed", (("elapsed", 1.0),), 1.0),
            ),
            signs=(("dose", "marker", -1),),
            per=(("dose", "weight"),),
        )
