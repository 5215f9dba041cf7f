"""Estimated effects of doses, with intervals."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from counterpoint.core.errors import CounterpointError
from counterpoint.core.settings import Fraction, checked


@dataclass(frozen=True)
class EffectEstimate:
    """Effect of one unit of a dose at t on a state column at t + step, later doses held as they were given."""

    dose: str
    """The action column, or `column=label` of a treatment."""
    outcome: str
    """The state column."""
    step: int
    value: float
    """Change of the outcome for one more unit; 0 where the log cannot tell."""
    standard_error: float
    """Over subjects; infinite where the log cannot tell."""
    freedom: float
    """Degrees of freedom of the t-distribution: the effective number of subjects less one."""
    contrast: float
    """A typical difference between doses: their interquartile range, or the median dose where that is 0."""
    noise: float
    """Standard deviation of what the history leaves of the outcome's change over these steps."""
    overlap: float
    """Share of the dose's variance that the history does not explain; near 0, the log cannot tell."""
    rows: int
    reference: str = ""
    """The treatment that a treatment is compared with; "" for a dose."""
    per: str = ""
    """The state column that the dose is divided by, so that a unit is one dose per unit of it; "" for none."""

    @property
    def supported(self) -> bool:
        """Whether the log can tell at all."""
        return self.standard_error < float("inf")

    @property
    def shrunk(self) -> float:
        """The value times max(0, 1 − (standard error / value)²): 0 where it is smaller than its standard error."""
        if self.value == 0 or not self.supported:
            return 0.0
        return self.value * max(0.0, 1 - (self.standard_error / self.value) ** 2)

    @checked
    def interval(self, level: Fraction = 0.9) -> tuple[float, float]:
        """Confidence interval of the value."""
        from scipy.stats import t

        if not self.supported:
            return -float("inf"), float("inf")
        half = self.standard_error * float(t.ppf((1 + level) / 2, self.freedom))
        return self.value - half, self.value + half

    @checked
    def excludes_none(self, level: Fraction = 0.9) -> bool:
        """Whether the interval excludes 0, so that the log shows the effect's sign."""
        low, high = self.interval(level)
        return low > 0 or high < 0


@dataclass(frozen=True)
class EffectEstimates:
    """Estimates of every dose, outcome and step that was asked for."""

    estimates: tuple[EffectEstimate, ...]

    def __iter__(self) -> Iterator[EffectEstimate]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    @property
    def doses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.dose for one in self.estimates))

    @property
    def outcomes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.outcome for one in self.estimates))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(one.step for one in self.estimates))

    def of(self, dose: str, outcome: str, step: int) -> EffectEstimate:
        """The estimate for a dose, an outcome and a step."""
        for one in self.estimates:
            if (one.dose, one.outcome, one.step) == (dose, outcome, step):
                return one
        raise CounterpointError(
            f"no effect of '{dose}' on '{outcome}' after {step} steps was estimated; there are the doses"
            f" {', '.join(self.doses)}, the outcomes {', '.join(self.outcomes)} and the steps {self.steps}"
        )

    def curve(self, dose: str, outcome: str) -> tuple[EffectEstimate, ...]:
        """The estimates for a dose and an outcome, step by step."""
        return tuple(one for one in self.estimates if (one.dose, one.outcome) == (dose, outcome))

    def clearest(self, count: int) -> tuple[str, ...]:
        """The outcomes whose effects are largest in standard errors, the clearest first."""
        size = dict.fromkeys(self.outcomes, 0.0)
        for one in self.estimates:
            if one.supported and one.standard_error > 0:
                size[one.outcome] = max(size[one.outcome], abs(one.value) / one.standard_error)
        return tuple(sorted(size, key=lambda name: -size[name])[:count])

    @checked
    def table(self, level: Fraction = 0.9) -> list[dict[str, str | float]]:
        """One row for each estimate, as for a DataFrame."""
        rows = []
        for one in self.estimates:
            low, high = one.interval(level)
            values = {field.name: getattr(one, field.name) for field in fields(one)}
            rows.append({**values, "low": low, "high": high, "shrunk": one.shrunk})
        return rows
