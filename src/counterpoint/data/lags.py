"""Add earlier actions to the state, for treatments that act for several steps."""

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
    """Add the actions of the last `lags` steps as state columns, with zeros before the start of an episode.

    They follow the other state columns, newest first: chemo_1_ago, radio_1_ago, chemo_2_ago, … Models do not predict
    them: in imagined rows they are shifted by one step. New subjects' tables get the same columns.
    """
    require(not bool(rows.imagined.any()), "lags are of logged rows; add them before rows are imagined")
    past = _earlier(rows, lags)
    later = torch.where(rows.has_next[:, None], shifted(past, rows.action), torch.nan)
    names = [[f"{name}_{k}_ago" if k else name for name in rows.action_names] for k in range(lags + 1)]
    lagged = tuple(Column(name) for older in names[1:] for name in older)
    carried = tuple(pair for newer, older in pairwise(names) for pair in zip(older, newer, strict=True))
    knowledge = replace(rows.schema.knowledge, carried=(*rows.schema.knowledge.carried, *carried))
    return replace(
        rows,
        state=torch.cat([rows.state, past], 1),
        next_state=torch.cat([rows.next_state, later], 1),
        schema=replace(rows.schema, states=(*rows.schema.states, *lagged), knowledge=knowledge),
        layout=rows.layout and replace(rows.layout, lags=lags),
    )


def without_lags(schema: Schema, lags: int) -> Schema:
    """Return the schema before `with_lags`."""
    if not lags:
        return schema
    states = schema.states[: len(schema.states) - lags * schema.actions.width]
    names = {column.name for column in states}
    carried = tuple(pair for pair in schema.knowledge.carried if pair[0] in names)
    return replace(schema, states=states, knowledge=replace(schema.knowledge, carried=carried))


def shifted(past: State, action: Action) -> State:
    """Return the lagged columns one step later: the action is added, the oldest one dropped."""
    return torch.cat([action, past], -1)[..., : past.shape[-1]]


def _earlier(rows: Transitions, lags: int) -> Float[Tensor, "n l"]:
    """Return each row's earlier actions; zero for a step that the table lacks."""
    order = rows.in_order()
    earlier = rows.action.new_zeros(len(rows), lags, rows.action.shape[1])
    for distance in range(1, lags + 1):
        now = order[distance:]
        before = order[:-distance]
        ago = rows.step[now] - rows.step[before]
        same = (rows.subject[now] == rows.subject[before]) & (rows.episode[now] == rows.episode[before])
        same &= (ago > 0) & (ago <= lags)
        earlier[now[same], ago[same] - 1] = rows.action[before[same]]
    return earlier.flatten(1)
