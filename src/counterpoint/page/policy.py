"""Policy section of the page: kind, rule and groups of a policy, and how often it takes each action."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.shapes import Theta
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.learners.baselines.pets import PETSPolicy
from counterpoint.learners.search import SearchedPolicy
from counterpoint.models.base import Model
from counterpoint.page.cells import SMALLEST, Heat, PageTable, hidden, share, shares_in, subjects_in
from counterpoint.page.choices import Choices, choices_of, nearest
from counterpoint.page.cohort import MOST_ACTIONS, dose_quantiles, rare_levels
from counterpoint.page.severity import Severity, medians
from counterpoint.policies.base import Policy
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.policies.practice import ConstantPolicy, PracticePolicy
from counterpoint.policies.q import QPolicy

MAX_ROWS, MAX_PLANNED_ROWS = 20_000, 200
"""Logged states in which a policy, or one that plans every action, is evaluated at most."""
SHADES = 9
NOT_SHOWN = "·"
KINDS: dict[type, str] = {
    PersonalPolicy: "a policy for each group of subjects, chosen by how the subject’s record shows that it responds",
    SearchedPolicy: "a readable rule that was optimised inside the fitted model",
    PETSPolicy: "a planner, which tries sequences of actions inside a fitted model before every decision",
    QPolicy: "a network that values every action and takes the one it values highest",
    NearPracticePolicy: "a readable tilt of practice, of what the clinicians do in a state",
    PracticePolicy: "practice itself: what the clinicians do in a state",
    ConstantPolicy: "one action in every state",
}


@dataclass(frozen=True)
class PolicyGroup:
    """A group of subjects and the rule for it."""

    name: str
    size: str
    rule: tuple[str, ...]


@dataclass(frozen=True)
class PolicyActions:
    """Actions of a policy in the logged states."""

    sample: str
    """The states that were used, in words."""
    agreement: float | None
    """Share of these states in which the policy takes the logged action; None for continuous doses."""
    commonest: str
    """The policy's most frequent action; empty for continuous doses."""
    heats: tuple[Heat, ...]
    """Logged and chosen actions, where actions are pairs of two doses."""
    table: PageTable
    by_severity: PageTable | None
    in_medians: tuple[int | None, ...]
    """Number of the action that the policy takes in the median state of each severity group."""


@dataclass(frozen=True)
class ActionComparison:
    """Logged actions and the policy's actions in the same states."""

    rows: Transitions
    index: Int[Tensor, " n"]
    choices: Choices

    @property
    def indices(self) -> dict[str, Int[Tensor, " n"]]:
        """Numbers of the logged and of the policy's actions."""
        return {"logged": self.rows.action_index, "policy": self.index}

    @property
    def agreement(self) -> float:
        """Share of rows in which the policy takes the logged action."""
        return float((self.index == self.rows.action_index).float().mean()) if len(self.rows) else 0.0

    def shares(self, index: Int[Tensor, " n"]) -> list[float | None]:
        """Share of each action; None where it is hidden because of few subjects."""
        count = len(self.choices)
        few = hidden(subjects_in(self.rows, index, count))
        return [None if rare else part for part, rare in zip(shares_in(index, count), few, strict=True)]

    def most_frequent(self, index: Int[Tensor, " n"]) -> str:
        """The most frequent action that is not hidden, with its share."""
        shares = self.shares(index)
        place = max(range(len(shares)), key=lambda i: shares[i] or 0.0)
        return f"{self.choices.labels[place]} ({_share_text(shares[place])})" if shares[place] else "not shown"


def kind_of(policy: Policy) -> str:
    """Describe the class of a policy."""
    return next((text for kind, text in KINDS.items() if isinstance(policy, kind)), "a policy of another kind")


def rule_of(policy: Policy, rows: Transitions) -> tuple[str, ...]:
    """Lines of a readable rule, with rare levels of categories unnamed; empty for other policies."""
    if isinstance(policy, NearPracticePolicy):
        text = "\n".join(line for line in policy.explain().splitlines() if line not in policy.notes)
    elif isinstance(policy, SearchedPolicy | ConstantPolicy):
        text = policy.explain()
    else:
        return ()
    for place, _ in rows.schema.categories:
        column, few = rows.schema.states[place], rare_levels(rows, place)
        for i, level in enumerate(column.levels):
            if few[i]:
                text = text.replace(f"[{column.name} = {level}]", f"[{column.name} = level {i + 1}, not shown]")
    return tuple(text.splitlines())


def groups_of(policy: Policy, rows: Transitions) -> tuple[PolicyGroup, ...]:
    """Groups of a personal policy, and last its rule for subjects without a group; empty for other policies."""
    if not isinstance(policy, PersonalPolicy):
        return ()
    sizes, subjects = policy.sizes(rows), len(rows.subject.unique())
    names = [f"Group {i + 1}" for i in range(len(sizes))]
    texts = []
    for size, few in zip(sizes, hidden(sizes), strict=True):
        shown = f"{size:,} of {subjects:,} subjects"
        texts.append(f"fewer than {SMALLEST} subjects, or hidden because another is" if few else shown)
    names.append("Everybody else")
    texts.append("subjects whose group is not known well enough yet")
    rules = [rule_of(part, rows) for part in policy.policies if isinstance(part, Policy)]
    return tuple(PolicyGroup(*fields) for fields in zip(names, texts, rules, strict=True))


def policy_actions(rows: Transitions, policy: Policy, model: Model | None, severity: Severity | None) -> PolicyActions:
    """Compute the policy's actions in a sample of the logged states."""
    theta = _factors(rows, policy, model)
    limit = MAX_PLANNED_ROWS if isinstance(policy, PETSPolicy) else MAX_ROWS
    picked = torch.randperm(len(rows), generator=generator(0, "asked"))[:limit].sort().values
    sample = rows[picked]
    chosen = policy.act(sample.state, theta[picked] if theta.shape[1] else NO_THETA)
    factors = ", given the factors inferred from the subjects’ whole records" if theta.shape[1] else ""
    text = f"Its actions were computed in {len(sample):,} of {len(rows):,} logged states{factors}."
    choices = choices_of(rows)
    in_medians = _actions_in_medians(rows, policy, severity)
    if choices is None or not isinstance(rows.actions, Discrete):
        doses = {"logged": sample.action, "policy": chosen}
        table = dose_quantiles("Doses logged and chosen", doses, sample, len(sample.subject.unique()))
        return PolicyActions(text, None, "", (), table, None, in_medians)
    comparison = ActionComparison(sample, rows.actions.index(chosen), choices)
    by_severity = None
    if severity is not None:
        by_severity = _severity_table(comparison, severity.labels, severity.group[picked])
    heats, table = _heats(comparison), _table(comparison)
    return PolicyActions(text, comparison.agreement, _commonest(comparison), heats, table, by_severity, in_medians)


def _factors(rows: Transitions, policy: Policy, model: Model | None) -> Theta:
    """Inferred factors of the rows' subjects, for a policy that is conditioned on them."""
    conditioned = isinstance(policy, PersonalPolicy) or policy.factor_width
    factor_model = policy.model if isinstance(policy, PersonalPolicy) else model
    return (
        factor_model.subjects(rows)
        if conditioned and factor_model is not None and factor_model.theta_width
        else NO_THETA
    )


def _actions_in_medians(rows: Transitions, policy: Policy, severity: Severity | None) -> tuple[int | None, ...]:
    """The policy's action for an average subject in each severity group's median state."""
    choices = choices_of(rows)
    if severity is None or choices is None:
        return ()
    state = medians(rows, severity)
    if not isinstance(rows.actions, Discrete):
        return (None,) * len(state)
    theta = torch.zeros(len(state), policy.factor_width) if policy.factor_width else NO_THETA
    return tuple(nearest(choices, policy.act(state, theta)).tolist())


def _commonest(comparison: ActionComparison) -> str:
    shares = shares_in(comparison.index, len(comparison.choices))
    place = max(range(len(shares)), key=shares.__getitem__)
    return f"{comparison.choices.labels[place]} ({share(shares[place])} of decisions)"


def _table(comparison: ActionComparison) -> PageTable:
    """Shares of every action, the policy's most frequent first."""
    logged, policy = (comparison.shares(index) for index in comparison.indices.values())
    order = sorted(range(len(policy)), key=lambda i: -(policy[i] or 0.0))[:MOST_ACTIONS]
    labels = comparison.choices.labels
    lines = tuple((labels[i], _share_text(logged[i]), _share_text(policy[i])) for i in order)
    caption = "Actions logged and chosen, the policy’s commonest first"
    note = "Shares of fewer than ten subjects are not shown."
    return PageTable(caption, ("Action", "Logged", "Policy"), lines, note=note)


def _heats(comparison: ActionComparison) -> tuple[Heat, ...]:
    """Heat maps of the logged and the chosen actions; empty unless actions are pairs of doses."""
    grid = comparison.choices.grid
    if grid is None:
        return ()
    captions = {"logged": "Logged actions: share of decisions", "policy": "The policy’s actions: share of decisions"}
    shares = {name: comparison.shares(index) for name, index in comparison.indices.items()}
    darkest = max(part or 0.0 for parts in shares.values() for part in parts) or 1.0
    width = len(grid.columns)
    heats = []
    for name, parts in shares.items():
        cells = [_shaded(part, darkest) for part in parts]
        lines = tuple(tuple(cells[i : i + width]) for i in range(0, len(cells), width))
        heats.append(Heat(captions[name], grid.across, grid.down, grid.columns, grid.rows, lines))
    return tuple(heats)


def _shaded(part: float | None, darkest: float) -> tuple[str, int | None]:
    return (NOT_SHOWN, None) if part is None else (share(part), round(SHADES * part / darkest))


def _severity_table(comparison: ActionComparison, labels: Sequence[str], group: Int[Tensor, " n"]) -> PageTable:
    """Most frequent actions in each severity group, and how often policy and log agree."""
    lines = []
    for number, label in enumerate(labels):
        members = group == number
        inside = ActionComparison(comparison.rows[members], comparison.index[members], comparison.choices)
        frequent = (inside.most_frequent(index) for index in inside.indices.values())
        lines.append((label, *frequent, share(inside.agreement)))
    head = ("Severity, mildest first", "Most often logged", "Most often the policy’s", "Same action")
    return PageTable("By severity", head, tuple(lines), (0, 1, 2))


def _share_text(part: float | None) -> str:
    return "not shown" if part is None else share(part)
