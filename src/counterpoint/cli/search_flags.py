"""Options of the search of a decision rule inside a fitted model."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from counterpoint.cli.mirror import value
from counterpoint.core.settings import Count, Positive, Weight, Widths, check_settings

if TYPE_CHECKING:
    from counterpoint.data.transitions import Transitions
    from counterpoint.learners.search import Search
    from counterpoint.tasks.base import Task

SEARCH = value("counterpoint.learners.search", "Search")()
"""The search with its defaults."""


@dataclass(frozen=True)
class SearchFlags:
    """Search of a decision rule inside the model, for the methods search, ctrl-p and pilco."""

    rule: Literal["dose", "scores"] | None = None
    """The class of rules: a dose that rises or falls with a score of the state, or a score for every action. Where none
    is named, a dose if the actions are ordered, else scores."""
    rule_hidden: Widths = ()
    """Widths of tanh layers in the rule; none for a linear rule, which is printed as a formula."""
    objective: Literal["mean", "lower-bound", "worst-share"] = "mean"
    """What is maximised: the mean return over the members of the model, that mean less one standard deviation between
    the members, or the mean of the worst quarter of them."""
    support_price: Weight | None = None
    """Price, in units of the reward, of every step whose state and action are unlike all of the log; 0 for none, None
    for one standard deviation of the logged returns."""
    rounds: Positive = SEARCH.schedule.steps
    """Largest number of rounds of candidate rules."""
    restarts: Positive = SEARCH.restarts
    """Parallel searches from different first rules; the first one starts at the logged median dose."""
    starts: Positive = SEARCH.starts
    """Episodes of every candidate in every member, from first states of the table."""
    horizon: Count = 0
    """Steps of an episode inside the model; 0 for the task's own."""

    def __post_init__(self) -> None:
        check_settings(self)

    def applied(self, search: "Search", rows: "Transitions", task: "Task") -> "Search":
        """Return the search with these settings, for a policy learned from `rows`."""
        from counterpoint.data.returns import return_deviation
        from counterpoint.policies.rule import OrderedDose, ScoredActions
        from counterpoint.simulation.objectives import LowerBound, MeanReturn, WorstShare

        horizon = self.horizon or search.horizon
        price = self.support_price
        if price is None:
            price = return_deviation(rows, horizon or task.horizon)
        rules = {"dose": OrderedDose, "scores": ScoredActions}
        objectives = {"mean": MeanReturn, "lower-bound": LowerBound, "worst-share": WorstShare}
        defaults = SearchFlags()
        changed = replace(
            search,
            support_price=price,
            objective=objectives[self.objective](),
            schedule=replace(search.schedule, steps=self.rounds),
            horizon=horizon,
        )
        if self.rule is not None:
            changed = replace(changed, rule=rules[self.rule](self.rule_hidden))
        elif self.rule_hidden:
            changed = replace(changed, rule=replace(changed.rule_for(task.actions), hidden=self.rule_hidden))
        if self.restarts != defaults.restarts:
            changed = replace(changed, restarts=self.restarts)
        return changed if self.starts == defaults.starts else replace(changed, starts=self.starts)
