"""Augment a table that does not fit in memory: from file to file, piece by piece.

The rows equal those of `Augmenter.augment` on the same table: a piece depends only on the seed and on its number.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from counterpoint.data import storage
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.shapes import Theta
from counterpoint.data.transitions import Transitions
from counterpoint.simulation import augmentation
from counterpoint.simulation.augmentation import Augmenter, Imaginer, without_noise
from counterpoint.tasks.base import Task

Report = Callable[[str, int, int], None]
"""Called as report(stage, done, total)."""


@dataclass(frozen=True)
class StoredPieces:
    """The usable rows of a stored table, in pieces of `PIECE` rows."""

    path: Path
    edges: tuple[int, ...]
    """Row of the file at which each piece begins; the last edge is the file's end."""
    aside: Int[Tensor, " k"]
    """Subjects whose rows are left out."""

    @classmethod
    def of(cls, path: Path | str, aside: Sequence[int] = ()) -> "StoredPieces":
        """Divide all rows but those of the subjects `aside` into pieces."""
        stored = storage.Stored(path)
        left_out = torch.tensor(aside, dtype=torch.long)
        used = (~torch.isin(stored.field("subject"), left_out)).nonzero()[:, 0]
        return cls(Path(path), (*used[:: augmentation.PIECE].tolist(), len(stored)), left_out)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def piece(self, number: int, stored: storage.Stored | None = None) -> Transitions:
        """Return the rows of a piece; `stored` is the file where it is open already."""
        rows = (stored or storage.Stored(self.path))[self.edges[number] : self.edges[number + 1]]
        return rows[~torch.isin(rows.subject, self.aside)]

    def pieces(self) -> Iterator[Transitions]:
        """Yield the rows of every piece, with the file opened once."""
        stored = storage.Stored(self.path)
        for number in range(len(self)):
            yield self.piece(number, stored)


@dataclass(frozen=True)
class AugmentationWork:
    """The arguments of an augmentation, from which any worker computes any piece: `work(number)`."""

    source: StoredPieces
    augmenter: Augmenter
    model: Imaginer
    task: Task
    seed: int
    theta: Theta = NO_THETA

    def __call__(self, number: int) -> Transitions:
        rows = self.source.piece(number)
        start = number * augmentation.PIECE
        theta = self.theta[start : start + len(rows)] if len(self.theta) > 1 else self.theta
        return self.augmenter.piece(rows, number, self.model, self.task, self.seed, theta)


class AugmentationExecutor(ABC):
    """Base class of executors, which compute the pieces of an augmentation."""

    @abstractmethod
    def imagine(self, work: AugmentationWork) -> Iterator[Transitions]:
        """Yield the imagined rows of every piece, in order."""


@dataclass(frozen=True)
class ThisProcess(AugmentationExecutor):
    """Executor in this process, one piece after the other."""

    def imagine(self, work: AugmentationWork) -> Iterator[Transitions]:
        return map(work, range(len(work.source)))


@dataclass(frozen=True)
class AugmentedCounts:
    """Number of rows in an augmented file."""

    real: int
    imagined: int
    ends: int
    """Imagined rows that end their episode."""


def augment(
    work: AugmentationWork,
    out: Path | str,
    executor: AugmentationExecutor = ThisProcess(),
    report: Report = lambda *_: None,
) -> AugmentedCounts:
    """Write the real rows of `work.source`, then the imagined ones, to the file `out`; return the counts of rows."""
    real = 0
    imagined = 0
    ends = 0
    with storage.writing(out) as write:
        for rows in work.source.pieces():
            write(without_noise(rows))
            real += len(rows)
        for number, rows in enumerate(executor.imagine(work), 1):
            write(rows)
            imagined += len(rows)
            ends += int(rows.terminated.sum())
            report("augment", number, len(work.source))
    return AugmentedCounts(real, imagined, ends)
