"""Options of off-policy evaluation."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from counterpoint.cli.mirror import commands, value

BEHAVIOURS = commands("ope")
"""Module, class and description of the estimators of the behaviour policy, by their name on the command line."""

if TYPE_CHECKING:
    from counterpoint.ope.evaluation import OPESettings

    Name = str
else:
    Name = Literal[tuple(BEHAVIOURS)]


@dataclass(frozen=True)
class OPEFlags:
    """How a policy is evaluated from logged rows."""

    behaviour: Name | None = None
    """How the probabilities of the behaviour policy are estimated. Where none is named: by counts if all state columns
    are categories, else by whichever of the others predicts held-out subjects best. All others are reported as a
    sensitivity analysis."""
    soften: float = value("counterpoint.ope.problem", "EpsilonMixture")().share
    """Weight ε of the ε-mixture that is evaluated in place of a deterministic policy; 0 for the policy itself."""
    soften_towards: Literal["behaviour", "uniform"] = "behaviour"
    """The other part of the mixture: the behaviour policy, or a uniform draw of the actions."""
    dose_spread: float = 0.5
    """Standard deviation of the doses that are evaluated around those of a policy of continuous doses, in those of the
    clinicians' doses in the same state."""
    discount: float = 1.0
    """Discount factor per step; 1 for the undiscounted sum of rewards."""
    severity: str = ""
    """State column whose first value measures severity; where none is named, the return predicted from the first
    state."""
    confounding: Literal["record", "step"] = "record"
    """Unit of the strength of unmeasured confounding: the odds of all decisions of a record together, or of each
    decision."""
    baselines: bool = True
    """Whether practice and naive policies are evaluated beside the policy: nothing, and the commonest action."""
    draws: int = 1000
    """Bootstrap resamples of the subjects; critics are fitted on a fifth as many."""

    def settings(self) -> "OPESettings":
        """Return the same choices as settings of `counterpoint.evaluate`."""
        from counterpoint import ope
        from counterpoint.ope.intervals import Confounding

        return ope.OPESettings(
            behaviour=None if self.behaviour is None else getattr(ope, BEHAVIOURS[self.behaviour][1])(),
            dose_spread=ope.DoseSpread(self.dose_spread),
            mixture=ope.EpsilonMixture(self.soften, self.soften_towards),
            confounding=Confounding(per=self.confounding),
            severity=self.severity,
            discount=self.discount,
            draws=self.draws,
            baselines=self.baselines,
            critic_draws=max(1, self.draws // 5),
        )
