"""How a command is told the way in which policies are judged."""

from dataclasses import dataclass
from typing import Literal

from counterpoint.ope.behaviour import BoostedTrees, Logistic, NearestNeighbours
from counterpoint.ope.confounding import Confounding
from counterpoint.ope.evaluation import OPESettings
from counterpoint.ope.problem import EpsilonMixture

Name = Literal["logistic", "trees", "neighbours"]
RECIPES: dict[Name, Logistic | BoostedTrees | NearestNeighbours] = {
    "logistic": Logistic(),
    "neighbours": NearestNeighbours(),
    "trees": BoostedTrees(),
}


@dataclass(frozen=True)
class OPEFlags:
    """How a policy is judged from logged rows."""

    behaviour: Name | None = None
    """How the probabilities of whoever logged are estimated: counted where all state columns are categories, else the
    way of the three that foresees other subjects best, unless one is named; others show how much depends on it."""
    soften: float = EpsilonMixture().share
    """A policy that always takes one action is judged as one that does something else in this share of the steps; 0 for
    not."""
    soften_towards: Literal["behaviour", "uniform"] = "behaviour"
    """What else: as whoever logged, or any action alike."""
    discount: float = 1.0
    """Of a reward one step later; 1 counts all steps of a record alike."""
    severity: str = ""
    """State column whose first value says how ill a subject is; else the return foreseen from the first state."""
    confounding: Literal["record", "step"] = "record"
    """What strengths of unmeasured confounding bound: the odds of a record's decisions together, or of each."""
    draws: int = 1000
    """Resamples of the subjects; critics are fitted on a fifth as many."""

    def judging(self) -> OPESettings:
        return OPESettings(
            behaviour=None if self.behaviour is None else RECIPES[self.behaviour],
            mixture=EpsilonMixture(self.soften, self.soften_towards),
            confounding=Confounding(per=self.confounding),
            severity=self.severity,
            discount=self.discount,
            draws=self.draws,
            critic_draws=max(1, self.draws // 5),
        )
