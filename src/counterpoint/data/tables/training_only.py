"""What only held-out subjects have: levels are refused, because nothing is learned of them, and doses are named."""

import numpy as np
import torch

from counterpoint.core.errors import require
from counterpoint.data.spaces import Discrete
from counterpoint.data.tables.columns import CheckedColumns
from counterpoint.data.transitions import Transitions


def learned_from(order: np.ndarray, subject: np.ndarray, kept: np.ndarray, training: np.ndarray) -> np.ndarray:
    """All rows of subjects that are not held out, in the table's own order: dropped rows lend their state as the next.

    `order` sorts the table and `subject` is in sorted order; `kept` rows that are not `training` are held out.
    """
    whose = np.empty_like(subject)
    whose[order] = subject
    return ~np.isin(whose, whose[kept & ~training])


def training_levels(columns: CheckedColumns, name: str, needed: np.ndarray, training: np.ndarray) -> list[str]:
    """The levels of a column in the training subjects' rows; a level that only the others have is refused."""
    levels = columns.codes(name, needed & training)[1]
    check_levels(name, set(columns.codes(name, needed)[1]) - set(levels))
    return levels


def check_levels(name: str, others: set[str]) -> None:
    """Refuse levels that only held-out subjects have; which they are is not shown, for they are patients' cells."""
    count = len(others)
    require(
        not others,
        f"column '{name}' has {count} level{'s' if count > 1 else ''} that only held-out subjects have, of which"
        f" nothing can be learned; join levels, choose another seed, or declare them with"
        f" --categorical {name}=LEVEL,LEVEL",
    )


def held_out_doses(rows: Transitions, aside: torch.Tensor) -> list[str]:
    """A note where held-out subjects, by their rows `aside`, were given doses that no training subject was."""
    if not bool(aside.any()) or bool(aside.all()):
        return []
    own, others = rows.action[~aside], rows.action[aside]
    if isinstance(rows.actions, Discrete):
        beyond = ~torch.isin(rows.action_index[aside], rows.action_index[~aside])
    else:
        beyond = ((others < own.amin(0)) | (others > own.amax(0))).any(1)
    if not bool(beyond.any()):
        return []
    return [
        f"{int(beyond.sum())} rows of held-out subjects have doses that no training subject was given; nothing is"
        " learned of such doses and recommend withholds them"
    ]
