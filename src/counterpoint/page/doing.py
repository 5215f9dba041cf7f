"""What a policy does: how often it takes each action beside who was logged, by severity, and in words where it can."""

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
from counterpoint.models.base import Model
from counterpoint.page.cells import Heat, PageTable, hidden, share, shares_in, subjects_in
from counterpoint.page.choices import Choices, choices_of, nearest
from counterpoint.page.cohort import MOST_ACTIONS, dose_quantiles
from counterpoint.page.severity import Severity, medians
from counterpoint.policies.base import Policy
from counterpoint.policies.personal import PersonalPolicy

ASKED, PLANNED = 20_000, 200
"""Logged states in which a policy is asked at most; fewer where every answer is planned."""
SHADES = 9
NOT_SHOWN = "·"


@dataclass(frozen=True)
class Doing:
    """What a policy does in the logged states."""

    asked: str
    """In which states it was asked, in words."""
    agreement: float | None
    """Share of those states in which it does what was done; none for continuous doses."""
    commonest: str
    """What it does most often; empty for continuous doses."""
    heats: tuple[Heat, ...]
    """What was done and what it does, where actions are pairs of two doses."""
    table: PageTable
    by_severity: PageTable | None
    wanted: tuple[int | None, ...]
    """The action that it takes in the median state of each severity group, among the page's choices."""


@dataclass(frozen=True)
class Answers:
    """What was done and what the policy does in the same states."""

    rows: Transitions
    index: Int[Tensor, " n"]
    choices: Choices

    @property
    def both(self) -> dict[str, Int[Tensor, " n"]]:
        return {"logged": self.rows.action_index, "policy": self.index}

    def shares(self, index: Int[Tensor, " n"]) -> list[float | None]:
        """How often each action stands there; none where it does for a few subjects only."""
        count = len(self.choices)
        few = hidden(subjects_in(self.rows, index, count))
        return [None if rare else part for part, rare in zip(shares_in(index, count), few, strict=True)]


def doing(rows: Transitions, policy: Policy, model: Model | None, severity: Severity | None) -> Doing:
    """Ask a policy in the logged states, or many of them."""
    theta = _factors(rows, policy, model)
    most = PLANNED if isinstance(policy, PETSPolicy) else ASKED
    picked = torch.randperm(len(rows), generator=generator(0, "asked"))[:most].sort().values
    some, chosen = rows[picked], policy.act(rows.state[picked], theta[picked] if theta.shape[1] else NO_THETA)
    known = " and told what the subject’s whole record says of it" if theta.shape[1] else ""
    told = f"Asked in {len(some):,} of {len(rows):,} logged states{known}."
    choices, wanted = choices_of(rows), _wanted(rows, policy, severity)
    if choices is None or not isinstance(rows.actions, Discrete):
        table = dose_quantiles(
            "Doses logged and chosen", {"logged": some.action, "policy": chosen}, some, len(some.subject.unique())
        )
        return Doing(told, None, "", (), table, None, wanted)
    answers = Answers(some, rows.actions.index(chosen), choices)
    by_severity = None if severity is None else _by_severity(answers, severity.labels, severity.group[picked])
    agreement = float((answers.index == some.action_index).float().mean())
    return Doing(told, agreement, _commonest(answers), _heats(answers), _table(answers), by_severity, wanted)


def _factors(rows: Transitions, policy: Policy, model: Model | None) -> Theta:
    """What the records say of their subjects, where the policy can be told."""
    own = policy.model if isinstance(policy, PersonalPolicy) else model
    wants = isinstance(policy, PersonalPolicy) or policy.factor_width
    return own.subjects(rows) if wants and own is not None and own.theta_width else NO_THETA


def _wanted(rows: Transitions, policy: Policy, severity: Severity | None) -> tuple[int | None, ...]:
    """What it does for an average subject in each group's median state."""
    choices = choices_of(rows)
    if severity is None or choices is None:
        return ()
    state = medians(rows, severity)
    theta = torch.zeros(len(state), policy.factor_width) if policy.factor_width else NO_THETA
    chosen = policy.act(state, theta)
    exact = isinstance(rows.actions, Discrete)
    return tuple(nearest(choices, chosen).tolist()) if exact else (None,) * len(state)


def _commonest(answers: Answers) -> str:
    shares = shares_in(answers.index, len(answers.choices))
    place = max(range(len(shares)), key=shares.__getitem__)
    return f"{answers.choices.labels[place]} ({share(shares[place])} of decisions)"


def _table(answers: Answers) -> PageTable:
    """Every action, the policy's commonest first."""
    logged, policy = (answers.shares(index) for index in answers.both.values())
    order = sorted(range(len(policy)), key=lambda i: -(policy[i] or 0.0))[:MOST_ACTIONS]
    lines = tuple((answers.choices.labels[i], _share(logged[i]), _share(policy[i])) for i in order)
    note = "Shares of fewer than ten subjects are not shown."
    return PageTable(
        "Actions logged and chosen, the policy’s commonest first", ("Action", "Logged", "Policy"), lines, note=note
    )


def _heats(answers: Answers) -> tuple[Heat, ...]:
    """One table of shares for what was done and one for what the policy does."""
    grid = answers.choices.grid
    if grid is None:
        return ()
    captions = {"logged": "What was done: share of decisions", "policy": "What the policy does: share of decisions"}
    shares = {name: answers.shares(index) for name, index in answers.both.items()}
    darkest = max(part or 0.0 for own in shares.values() for part in own) or 1.0
    wide = len(grid.columns)
    return tuple(
        Heat(
            captions[name], grid.across, grid.down, grid.columns, grid.rows,
            tuple(tuple(_shaded(part, darkest) for part in own[i : i + wide]) for i in range(0, len(own), wide)),
        )
        for name, own in shares.items()
    )  # fmt: skip


def _shaded(part: float | None, darkest: float) -> tuple[str, int | None]:
    return (NOT_SHOWN, None) if part is None else (share(part), round(SHADES * part / darkest))


def _by_severity(answers: Answers, labels: Sequence[str], group: Int[Tensor, " n"]) -> PageTable:
    """What is commonest in each group, and how often the policy agrees there."""
    lines = []
    for g, label in enumerate(labels):
        own = Answers(answers.rows[group == g], answers.index[group == g], answers.choices)
        same = float((own.index == own.rows.action_index).float().mean()) if len(own.rows) else 0.0
        lines.append((label, *(_most(own, index) for index in own.both.values()), share(same)))
    head = ("Severity, mildest first", "Most often logged", "Most often the policy’s", "Same action")
    return PageTable("By severity", head, tuple(lines), (0, 1, 2))


def _most(own: Answers, index: Int[Tensor, " n"]) -> str:
    shares = own.shares(index)
    place = max(range(len(shares)), key=lambda i: shares[i] or 0.0)
    return f"{own.choices.labels[place]} ({_share(shares[place])})" if shares[place] else "not shown"


def _share(part: float | None) -> str:
    return "not shown" if part is None else share(part)
