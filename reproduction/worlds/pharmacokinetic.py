r"""A drug that is absorbed slowly and lowers a marker over hours, against an input that raises it: a world of our own.

With doses d, feeds m, absorption times τ, τ_m, weight W and a sensitivity S that changes with the hour h:

    ẋ₁ = d − x₁/τ,   ẋ₂ = (x₁ − x₂)/τ,   ẋ₃ = (x₂ − x₃)/τ                       drug: effect peaks after 2τ, 1.5 to 2 h
    ġ₁ = m − g₁/τ_m,   ġ₂ = (g₁ − g₂)/τ_m                                       feed
    Ġ = κ(B − G) − (70/W)·S(h)·(x₃/τ)·ψ(G) + (70/W)·F·g₂/τ_m + w                marker
    S(h) = S·(1 + A·cos(2π(h − φ)/24)),   ψ(G) = 1.25·G/(G + 30),   w autoregressive

Compartment models of this kind are in every pharmacology textbook; none is copied. The parameters of the subjects
differ by about 30%. The log has the marker with sensor noise, its slope, the feed that is announced now, decayed sums
of feeds and doses, the weight and the hour. The behaviour policy is basal dose + bolus for the feed + correction of a
high marker, each with a habit of its subject, no regard for what is on board, and log-normal noise.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from counterpoint.data.knowledge import Knowledge
from counterpoint.data.spaces import ActionSpace, Box
from reproduction.worlds.base import Actions, Change, Columns, Hidden, Numbers, World, clock, decayed_sum

STEPS_A_DAY, SUBSTEPS, MINUTES = 48, 6, 5.0
SENSOR = 4.0
"""Standard deviation of the sensor's noise."""
TARGET, LOW, HIGH = 115.0, 70.0, 180.0
"""Best value of the marker, and where danger and too much begin."""
RISK = 2.8
"""Price of a step at 200 or 1.8 times below the target squared on the logarithmic scale; see `risk`."""
FEED_HALF_LIFE, DOSE_HALF_LIFE = 2.0, 2.5
"""Steps after which half of a decayed sum is left."""
LARGEST_DOSE = 25.0
MEALS = ((7.5, 40.0), (12.5, 60.0), (19.0, 65.0))
"""Hour and mean size of the feeds of every day; up to two snacks follow no hour."""
SNACK = 20.0


@dataclass(frozen=True)
class Pharmacokinetic(World):
    """Half-hour decisions about one continuous dose."""

    days: int = 3
    """Length of an episode."""
    spread: float = 0.25
    """Standard deviation of the logarithm of the behaviour policy's noise: more is more overlap."""

    name: ClassVar[str] = "pharmacokinetic"
    state: ClassVar[tuple[str, ...]] = ("marker", "slope", "feed", "feed_recent", "on_board", "weight", "hour")
    action: ClassVar[tuple[str, ...]] = ("dose",)
    marker: ClassVar[str] = "marker"
    noise_size: ClassVar[float] = SENSOR

    @property
    def steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.days * STEPS_A_DAY

    def begin(self, subjects: int, random: np.random.Generator) -> Hidden:
        def about(mean: float, spread: float) -> Numbers:
            return mean * np.exp(spread * random.standard_normal(subjects).clip(-2, 2))

        weight = np.round(about(72.0, 0.18), 1)
        hidden: Hidden = {
            "weight": weight,
            "sensitivity": about(25.0, 0.25),
            "feed_effect": about(2.0, 0.2),
            "absorption": about(48.0, 0.15),
            "digestion": about(40.0, 0.2),
            "level": 125.0 + about(125.0, 0.2),
            "swing": about(0.2, 0.3),
            "phase": random.normal(4.0, 1.5, subjects),
            "basal_habit": about(0.42, 0.3),
            "bolus_habit": about(0.07, 0.4),
            "correction_habit": about(1 / 12.0, 0.35),
            "feeds": self._feeds(subjects, random),
            "step": np.zeros(subjects, dtype=int),
        }
        marker = random.normal(135.0, 20.0, subjects).clip(90, 200)
        empty = {name: np.zeros(subjects) for name in ("gut1", "gut2", "on_board", "feed_recent", "stress", "slope")}
        # Subjects come in with their basal dose on board.
        basal = hidden["basal_habit"] * weight / 70.0
        store = basal * hidden["absorption"] / (SUBSTEPS * MINUTES)
        kept = 0.5 ** (1 / DOSE_HALF_LIFE)
        hidden |= {**empty, "drug1": store, "drug2": store, "drug3": store, "marker": marker}
        hidden["on_board"] = basal * kept / (1 - kept)
        hidden["reading"] = marker + SENSOR * random.standard_normal(subjects)
        return hidden

    def _feeds(self, subjects: int, random: np.random.Generator) -> Float[np.ndarray, "n t"]:
        """Draw all feeds of the episode: three meals about their hours, and up to two snacks a day."""
        feeds = np.zeros((subjects, (self.days + 1) * STEPS_A_DAY))
        rows = np.arange(subjects)
        for day in range(self.days + 1):
            plans = [(random.normal(hour, 0.7, subjects), size, 1.0) for hour, size in MEALS]
            plans += [(random.uniform(9.5, 23.0, subjects), SNACK, 0.5) for _ in range(2)]
            for hour, size, chance in plans:
                place = (day * STEPS_A_DAY + np.round(2 * hour)).astype(int).clip(0, feeds.shape[1] - 1)
                amount = size * np.exp(0.3 * random.standard_normal(subjects))
                feeds[rows, place] += np.round(amount * (random.random(subjects) < chance))
        return feeds

    def observe(self, hidden: Hidden) -> Columns:
        step = hidden["step"]
        feed = hidden["feeds"][np.arange(len(step)), step]
        columns = {name: hidden[name] for name in ("slope", "feed_recent", "on_board", "weight")}
        columns |= {"marker": hidden["reading"], "feed": feed, "hour": step % STEPS_A_DAY * 24.0 / STEPS_A_DAY}
        return {name: columns[name] for name in self.state}

    def table(self, columns: Columns) -> Columns:
        angle = columns["hour"] * (2 * np.pi / 24.0)
        return {**columns, "hour_cos": np.cos(angle), "hour_sin": np.sin(angle)}

    def noise(self, subjects: int, random: np.random.Generator) -> Float[np.ndarray, "n u"]:
        return random.standard_normal((subjects, 2))

    def step(self, hidden: Hidden, action: Actions, noise: Float[np.ndarray, "n u"]) -> Change:
        dose = action[:, 0].clip(0.0, LARGEST_DOSE)
        step = hidden["step"]
        feed = hidden["feeds"][np.arange(len(step)), step]
        stress = 0.8 * hidden["stress"] + 0.05 * noise[:, 0]
        drug = [hidden["drug1"] + dose, hidden["drug2"], hidden["drug3"]]
        gut = [hidden["gut1"] + feed, hidden["gut2"]]
        marker, scale = hidden["marker"], 70.0 / hidden["weight"]
        for k in range(SUBSTEPS):
            hour = step * 24.0 / STEPS_A_DAY + k * MINUTES / 60.0
            daily = 1 + hidden["swing"] * np.cos(2 * np.pi * (hour - hidden["phase"]) / 24.0)
            acting, drug = flow(drug, hidden["absorption"])
            arriving, gut = flow(gut, hidden["digestion"])
            saturation = 1.25 * marker / (marker + 30.0)
            change = (hidden["level"] - marker) * (MINUTES / 300.0) + stress * MINUTES
            change -= scale * hidden["sensitivity"] * daily * acting * saturation
            change += scale * hidden["feed_effect"] * arriving
            marker = (marker + change).clip(20.0, 500.0)
        reading = (marker + SENSOR * noise[:, 1]).clip(20.0, 500.0)
        after = {
            **hidden, "drug1": drug[0], "drug2": drug[1], "drug3": drug[2], "gut1": gut[0], "gut2": gut[1],
            "stress": stress, "marker": marker, "reading": reading, "slope": reading - hidden["reading"],
            "on_board": (hidden["on_board"] + dose) * 0.5 ** (1 / DOSE_HALF_LIFE),
            "feed_recent": (hidden["feed_recent"] + feed) * 0.5 ** (1 / FEED_HALF_LIFE), "step": step + 1,
        }  # fmt: skip
        return Change(after, -risk(reading), np.zeros(len(step), dtype=bool), marker < LOW)

    def behave(self, hidden: Hidden, columns: Columns, random: np.random.Generator) -> Actions:
        scale = columns["weight"] / 70.0
        correction = (columns["marker"] - 140.0).clip(0) * hidden["correction_habit"] * scale * 0.5
        wanted = hidden["basal_habit"] * scale + columns["feed"] * hidden["bolus_habit"] + correction
        dose = wanted * np.exp(self.spread * random.standard_normal(len(wanted)))
        dose = np.where(columns["marker"] < 80.0, 0.0, dose)
        return np.round(dose, 2).clip(0, LARGEST_DOSE)[:, None]

    def textbook(self, columns: Columns) -> Actions:
        """Basal by weight, bolus by feed, correction of the expected marker less what is on board."""
        scale = columns["weight"] / 70.0
        expected = columns["marker"] + 1.5 * columns["slope"].clip(-30, 30) - 120.0
        usual = 0.5 * scale * 0.5 ** (1 / DOSE_HALF_LIFE) / (1 - 0.5 ** (1 / DOSE_HALF_LIFE))
        extra = (columns["on_board"] - usual) - 0.08 * columns["feed_recent"]
        dose = 0.5 * scale + 0.08 * columns["feed"] + 0.5 * (expected / 25.0 * scale - extra)
        return np.where(columns["marker"] < 80.0, 0.0, dose).clip(0, LARGEST_DOSE)[:, None]

    @property
    def space(self) -> ActionSpace:
        return Box((0.0,), (LARGEST_DOSE,))

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(name for name in self.state if name != "hour"), "hour_cos", "hour_sin")

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(
            circles=(("hour_cos", "hour_sin"),),
            reward_range=(-risk(np.array(20.0)).item(), 0.0),
            exogenous=("feed",),
            recursions=(
                decayed_sum("on_board", "dose", DOSE_HALF_LIFE),
                decayed_sum("feed_recent", "feed", FEED_HALF_LIFE),
                *clock("hour_cos", "hour_sin", STEPS_A_DAY),
            ),
            signs=(("dose", "marker", -1),),
            per=(("dose", "weight"),),
        )


def flow(stores: list[Numbers], time: Numbers) -> tuple[Numbers, list[Numbers]]:
    """Move amounts along a chain of compartments for one substep; return what leaves the last one, and what is left."""
    moved = [store * (MINUTES / time) for store in stores]
    left = [store - out for store, out in zip(stores, moved, strict=True)]
    return moved[-1], [left[0], *(store + came for store, came in zip(left[1:], moved, strict=False))]


def risk(marker: Numbers) -> Numbers:
    """Return the price of a marker: 0 at the target, the square of its logarithm above, four times that below."""
    distance = np.log(marker / TARGET)
    return RISK * np.where(distance < 0, 4.0, 1.0) * distance**2
