"""How much of a log speaks of a policy, and for whom: weights, support, agreement, groups and severity."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.checks.support import Similar
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.data.jobs import spread_levels
from counterpoint.data.schema import Schema
from counterpoint.data.transitions import Transitions
from counterpoint.ope.estimators import (
    by_subject,
    effective_sample_size,
    one_step_effective_sample_size,
    one_step_largest_share,
    rewards,
)
from counterpoint.ope.problem import Episodes, Probabilities, Question, subject_folds
from counterpoint.ope.result import Diagnostics
from counterpoint.ope.tabular import all_categories
from counterpoint.policies.personal import PersonalPolicy

ASKED = 5000
"""Rows whose similar states are looked up, at most."""
FEWEST = 20
"""Subjects below which a part of them is not judged apart."""
THIRDS = ("lowest third", "middle third", "highest third")
FOLDS = 5
RIDGE = 10.0
"""Penalty, in rows, of the regression that foresees returns from first states."""


def diagnose(question: Question, policy: Probabilities, log: Transitions, seed: int = 0) -> Diagnostics:
    """How much of the log speaks of the policy, whose probabilities `policy` are before any softening."""
    rows, episodes = question.rows, question.episodes
    agreement = policy.gather(1, rows.action_index[:, None]).mean()
    picked = _some_records(episodes, seed)
    never = never_given(rows[picked], log, policy.shape[1], seed)
    return Diagnostics(
        subjects=episodes.subjects,
        episodes=len(episodes),
        rows=len(rows),
        effective=one_step_effective_sample_size(question),
        effective_records=effective_sample_size(question),
        largest=one_step_largest_share(question),
        unsupported=min(float((policy[picked] * never).sum(1).mean()), 1.0),
        strayed=strayed(Episodes.of(rows[picked]), policy[picked], never, question.discount),
        agreement=min(float(agreement), 1.0),
    )


def _some_records(episodes: Episodes, seed: int) -> Int[Tensor, " n"]:
    """The rows of so many whole episodes, drawn at random, that `ASKED` rows are looked up; of one at least."""
    order = torch.randperm(len(episodes), generator=generator(seed, "asked"))
    fits = episodes.length[order].cumsum(0) <= ASKED
    fits[0] = True
    places = episodes.places[order[fits]]
    return places[places >= 0]


def strayed(episodes: Episodes, policy: Probabilities, never: Bool[Tensor, "n a"], discount: float = 1.0) -> float:
    """Share of the steps that follow whoever logged with support, but not the policy.

    A step has support where neither its action nor one before it in the record was `never` given to others in a
    similar state: what comes later is not in the log. With u the probability of such an action, the share of steps
    that have support is Σ γ^t·Π_{k ≤ t}(1 − u_k) / Σ γ^t, and that of the logged actions says how much a log of this
    size can support at all.
    """
    logged = never.gather(1, episodes.rows.action_index[:, None])[:, 0]
    weight = discount ** torch.arange(episodes.places.shape[1]) * episodes.present
    followed, possible = (
        float(((1 - episodes.table(share.double())).cumprod(1) * weight).sum() / weight.sum())
        for share in ((policy * never).sum(1), logged)
    )
    return 1 - min(followed / possible, 1.0) if possible > 0 else 1.0


def never_given(rows: Transitions, log: Transitions, actions: int, seed: int = 0) -> Bool[Tensor, "n a"]:
    """Which actions no other subject of the log was given in a state similar to each row's.

    Where all state columns are categories only equal states are similar: of others, all are equally far.
    """
    find = _taken_in_same_state if all_categories(rows.schema) else _taken_in_similar_states
    return ~find(rows, log, actions, seed)


def _taken_in_similar_states(rows: Transitions, log: Transitions, actions: int, seed: int) -> Bool[Tensor, "n a"]:
    """Which actions other subjects were given in the states most like each row's."""
    similar = Similar(log, seed=seed)
    found, _ = similar.nearest(rows.state)
    other = similar.logged.subject[found] != rows.subject[:, None]
    action = torch.where(other, similar.logged.action_index[found], actions)
    return torch.zeros(len(rows), actions + 1, dtype=torch.bool).scatter_(1, action, True)[:, :-1]


def _taken_in_same_state(rows: Transitions, log: Transitions, actions: int, seed: int) -> Bool[Tensor, "n a"]:
    """Which actions other subjects were given in each row's very state."""
    cells = torch.cat([rows.state, log.state]).unique(dim=0, return_inverse=True)[1]
    asked, seen = cells[: len(rows)], cells[len(rows) :]
    pair = seen * actions + log.action_index
    lowest, highest = (
        torch.full(((int(cells.max()) + 1) * actions,), -1).scatter_reduce_(
            0, pair, log.subject, how, include_self=False
        )
        for how in ("amin", "amax")
    )
    wanted = asked[:, None] * actions + torch.arange(actions)
    whose = rows.subject[:, None]
    return (highest[wanted] >= 0) & ((lowest[wanted] != whose) | (highest[wanted] != whose))


@dataclass(frozen=True, eq=False)
class Partition:
    """Subjects of a table sorted into named parts; −1 for those in none."""

    by: str
    names: tuple[str, ...]
    part: Int[Tensor, " subjects"]

    def large(self) -> Iterator[tuple[str, Bool[Tensor, " subjects"]]]:
        """The parts that have enough subjects to be judged apart, and who they are."""
        for number, name in enumerate(self.names):
            own = self.part == number
            if int(own.sum()) >= FEWEST:
                yield name, own


def by_group(policy: object, episodes: Episodes) -> Partition:
    """By the groups that a personal policy knows; no parts for another. A subject's whole record says its group."""
    if not isinstance(policy, PersonalPolicy) or policy.groups is None:
        return Partition("group", (), torch.full((episodes.subjects,), -1))
    present = episodes.rows.subject.unique()
    names = tuple(f"group {g + 1}" for g in range(policy.groups.count))
    return Partition("group", names, policy.likeliest(episodes.rows)[present])


def check_severity(column: str, schema: Schema) -> None:
    """Raise one line where subjects cannot be told apart by the column; an empty name stands for none."""
    require(not column or column in schema.state_names, f"severity='{column}' is no state column; name one of them")


def by_severity(question: Question, column: str = "", seed: int = 0) -> Partition:
    """Thirds of the subjects by a column of their first state, or levels where it is a category.

    Without a column, by the return that a ridge regression on other subjects foresees for their first state in the
    hands of whoever logged: the lowest third are the most severe.
    """
    first = _first_states(question.episodes)
    schema = question.rows.schema
    if not column:
        foreseen = _foreseen(question, first, seed)
        return Partition("return foreseen from the first state", THIRDS, _thirds(foreseen))
    check_severity(column, schema)
    place = schema.state_names.index(column)
    levels = schema.states[place].levels
    if levels:
        return Partition(column, levels, first[:, place].long())
    return Partition(column, THIRDS, _thirds(first[:, place]))


def _first_states(episodes: Episodes) -> Float[Tensor, "subjects s"]:
    """The first state of every subject's first episode."""
    opens = episodes.places[:, 0]
    first = torch.full((episodes.subjects,), len(episodes)).scatter_reduce_(
        0, episodes.subject, torch.arange(len(episodes)), "amin"
    )
    return episodes.rows.state[opens[first]]


def _foreseen(question: Question, first: Float[Tensor, "subjects s"], seed: int) -> Float[Tensor, " subjects"]:
    """What each subject is foreseen to earn, by a regression on the subjects of other folds."""
    episodes, gained = question.episodes, rewards(question).sum(1)
    earned = by_subject(episodes, gained) / by_subject(episodes, torch.ones_like(gained))
    columns = spread_levels(first, question.rows.schema.categories).double()
    scaled = (columns - columns.mean(0)) / columns.std(0).clamp(min=1e-8)
    told = torch.cat([torch.ones_like(scaled[:, :1]), scaled], 1)
    folds = subject_folds(len(told), min(FOLDS, len(told)), derive(seed, "severity"))
    penalty = RIDGE * torch.eye(told.shape[1], dtype=torch.double)
    penalty[0, 0] = 0.0
    found = torch.zeros(len(told), dtype=torch.double)
    for fold in folds.unique():
        seen, asked = told[folds != fold], folds == fold
        found[asked] = (
            told[asked] @ torch.linalg.lstsq(seen.T @ seen + penalty, seen.T @ earned[folds != fold]).solution
        )
    return found


def _thirds(values: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Which third of the values each lies in; equal values in one."""
    cuts = values.double().quantile(torch.tensor([1 / 3, 2 / 3], dtype=torch.double))
    return torch.searchsorted(cuts, values.double().contiguous())
