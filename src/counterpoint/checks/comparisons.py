"""Effects of doses in a model beside those in the log."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EffectComparison:
    """Effects of one dose on one outcome in the model and in the log, for a typical contrast, step by step."""

    dose: str
    outcome: str
    contrast: float
    reference: str
    """The treatment that a treatment is compared with; "" for a dose."""
    steps: tuple[int, ...]
    model: tuple[float, ...]
    log: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    noise: tuple[float, ...]
    """Standard deviation of what the history leaves of the outcome's change."""
    worst: int
    """Place of the step at which model and log are furthest apart."""
    distance: float
    """Their distance there, in standard errors, relative to the quantile of the strict interval."""
    verdict: str
    """"agrees", "differs", "wrong", or "unknown" where the log cannot tell."""

    @property
    def sentence(self) -> str:
        """The comparison at its worst step, in words."""
        i = self.worst
        what = f"{self.dose} against {self.reference}" if self.reference else f"{self.contrast:.3g} more {self.dose}"
        after = f"on {self.outcome} after {self.steps[i]} step{'' if self.steps[i] == 1 else 's'}"
        if self.verdict == "unknown":
            return (
                f"The log cannot tell the effect of {what} {after}: the doses hardly differ among like histories;"
                f" the model's {self.model[i]:+.2g} is an extrapolation."
            )
        found = f"the log says {self.log[i]:+.2g} [{self.low[i]:+.2g}, {self.high[i]:+.2g}]"
        ending = {"agrees": ".", "differs": "; use with care.", "wrong": ": do not use."}[self.verdict]
        return f"The model's effect of {what} {after} is {self.model[i]:+.2g}, {found}{ending}"

    def table(self) -> list[dict[str, str]]:
        """One row for each step, as commands and pages show them."""
        what = f"{self.dose} against {self.reference}" if self.reference else f"{self.contrast:.3g} more {self.dose}"
        lines = zip(self.steps, self.model, self.log, self.low, self.high, self.noise, strict=True)
        return [
            {
                "dose": what,
                "outcome": self.outcome,
                "after steps": str(step),
                "model": f"{model:+.2g}",
                "log": f"{log:+.2g} [{low:+.2g}, {high:+.2g}]",
                "noise": f"{noise:.2g}",
            }
            for step, model, log, low, high, noise in lines
        ]

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "EffectComparison":
        """The comparison from plain numbers and words; another shape is a TypeError."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()
        }
        comparison = cls(**values)
        lengths = {len(getattr(comparison, name)) for name in ("steps", "model", "log", "low", "high", "noise")}
        if len(lengths) != 1 or not 0 <= comparison.worst < len(comparison.steps):
            raise TypeError("the curves of a comparison have different lengths")
        return comparison
