"""How a command is told the way in which a rule is searched inside a model."""

from dataclasses import dataclass, replace
from typing import Literal

from counterpoint.core.settings import Count, Positive, Weight, check_settings
from counterpoint.data.returns import return_deviation
from counterpoint.data.transitions import Transitions
from counterpoint.learners.search import Search
from counterpoint.simulation.objectives import LowerBound, MeanReturn, WorstShare
from counterpoint.tasks.base import Task

Objective = Literal["mean", "lower-bound", "worst-share"]
OBJECTIVES: dict[Objective, MeanReturn | LowerBound | WorstShare] = {
    "mean": MeanReturn(),
    "lower-bound": LowerBound(),
    "worst-share": WorstShare(),
}


@dataclass(frozen=True)
class SearchFlags:
    """The search of a rule inside the model, for the methods search, ctrl-p and pilco."""

    support_price: Weight | None = None
    """Price, in units of the reward, of every step whose state and action are unlike all of the log; 0 for none, None
    for one standard deviation of the logged returns."""
    objective: Objective = "mean"
    """What is made as large as possible: the mean return over the members of the model, that mean less one standard
    deviation between the members, or the mean of the worst quarter of them."""
    rounds: Positive = Search().schedule.steps
    """Rounds of candidate rules at most."""
    restarts: Positive = Search().restarts
    """Searches side by side from different first rules; the first one starts at the logged median dose."""
    horizon: Count = Search().horizon
    """Steps an episode inside the model; 0 for the task's own."""

    def __post_init__(self) -> None:
        check_settings(self)

    def applied(self, search: Search, rows: Transitions, task: Task) -> Search:
        """The search with these settings, for a policy learned from these rows."""
        horizon = self.horizon or search.horizon
        price = self.support_price
        if price is None:
            price = return_deviation(rows, horizon or task.horizon)
        changed = replace(
            search,
            support_price=price,
            objective=OBJECTIVES[self.objective],
            schedule=replace(search.schedule, steps=self.rounds),
            horizon=horizon,
        )
        return changed if self.restarts == SearchFlags().restarts else replace(changed, restarts=self.restarts)
