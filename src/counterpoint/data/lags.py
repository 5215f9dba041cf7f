"""Earlier actions as columns of the state: what a drug given yesterday still does today is then a matter of state."""

from dataclasses import replace
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import Positive, checked
from counterpoint.data.schema import Column, Schema
from counterpoint.data.shapes import Action, State
from counterpoint.data.transitions import Transitions


@checked
def with_lags(rows: Transitions, lags: Positive) -> Transitions:
    """The table with the actions of the last `lags` steps as further state columns; zero before an episode's start.

    They follow the state's own columns, newest first: chemo_1_ago, radio_1_ago, chemo_2_ago, … A model fitted on them
    need not foretell them: in every imagined row they move on by themselves. New subjects' tables are given them alike.
    """
    require(not bool(rows.imagined.any()), "lags are of logged rows; add them before rows are imagined")
    past = _earlier(rows, lags)
    later = torch.where(rows.has_next[:, None], shifted(past, rows.action), torch.nan)
    names = [[f"{name}_{k}_ago" if k else name for name in rows.action_names] for k in range(lags + 1)]
    named = tuple(Column(name) for older in names[1:] for name in older)
    carried = tuple((own, source) for new, old in pairwise(names) for own, source in zip(old, new, strict=True))
    knowledge = replace(rows.schema.knowledge, carried=(*rows.schema.knowledge.carried, *carried))
    reader = rows.schema.reader and replace(rows.schema.reader, lags=lags)
    return replace(
        rows,
        state=torch.cat([rows.state, past], 1),
        next_state=torch.cat([rows.next_state, later], 1),
        schema=replace(rows.schema, states=(*rows.schema.states, *named), knowledge=knowledge, reader=reader),
    )


def without_lags(schema: Schema, lags: int) -> Schema:
    """The schema of the table before `with_lags`."""
    if not lags:
        return schema
    own = schema.states[: len(schema.states) - lags * schema.actions.width]
    named = {column.name for column in own}
    carried = tuple(pair for pair in schema.knowledge.carried if pair[0] in named)
    return replace(schema, states=own, knowledge=replace(schema.knowledge, carried=carried))


def shifted(past: State, action: Action) -> State:
    """The lagged columns one step later: the action comes in, the oldest goes."""
    return torch.cat([action, past], -1)[..., : past.shape[-1]]


def _earlier(rows: Transitions, lags: int) -> Float[Tensor, "n l"]:
    """Each row's earlier actions side by side; zero for a step that the table lacks."""
    order = rows.in_order()
    found = rows.action.new_zeros(len(rows), lags, rows.action.shape[1])
    for distance in range(1, lags + 1):
        now, before = order[distance:], order[:-distance]
        ago = rows.step[now] - rows.step[before]
        same = (rows.subject[now] == rows.subject[before]) & (rows.episode[now] == rows.episode[before])
        same &= (ago > 0) & (ago <= lags)
        found[now[same], ago[same] - 1] = rows.action[before[same]]
    return found.flatten(1)
