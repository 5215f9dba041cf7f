"""Augmenting a table that does not fit in memory: from file to file, piece by piece.

The rows are those of `Augmenter.augment` on the same table: a piece depends on the seed and on its place alone.
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
from counterpoint.simulation import augmentation as counterfactual
from counterpoint.simulation.augmentation import Augmenter, Imaginer, without_noise
from counterpoint.tasks.base import Task

Report = Callable[[str, int, int], None]
"""Called as report(stage, done, total)."""


@dataclass(frozen=True)
class StoredPieces:
    """The rows of a stored table that may be used, in pieces of `counterfactual.PIECE` rows."""

    path: Path
    edges: tuple[int, ...]
    """Where pieces begin among the rows of the file; the last edge is the file's end."""
    aside: Int[Tensor, " k"]
    """Subjects whose rows are left out."""

    @classmethod
    def of(cls, path: Path | str, aside: Sequence[int] = ()) -> "StoredPieces":
        """All rows but those of some subjects."""
        stored, left_out = storage.Stored(path), torch.tensor(aside, dtype=torch.long)
        used = (~torch.isin(stored.field("subject"), left_out)).nonzero()[:, 0]
        return cls(Path(path), (*used[:: counterfactual.PIECE].tolist(), len(stored)), left_out)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def piece(self, number: int, stored: storage.Stored | None = None) -> Transitions:
        """The rows of a piece; `stored` is the file where it is open already."""
        rows = (stored or storage.Stored(self.path))[self.edges[number] : self.edges[number + 1]]
        return rows[~torch.isin(rows.subject, self.aside)]

    def pieces(self) -> Iterator[Transitions]:
        stored = storage.Stored(self.path)
        for number in range(len(self)):
            yield self.piece(number, stored)


@dataclass(frozen=True)
class AugmentationWork:
    """All that is needed to imagine any piece of a table, anywhere."""

    source: StoredPieces
    augmenter: Augmenter
    model: Imaginer
    task: Task
    seed: int
    theta: Theta = NO_THETA

    def __call__(self, number: int) -> Transitions:
        rows = self.source.piece(number)
        start = number * counterfactual.PIECE
        theta = self.theta[start : start + len(rows)] if len(self.theta) > 1 else self.theta
        return self.augmenter.piece(rows, number, self.model, self.task, self.seed, theta)


class AugmentationExecutor(ABC):
    """Who imagines the pieces."""

    @abstractmethod
    def imagine(self, work: AugmentationWork) -> Iterator[Transitions]:
        """The imagined rows of every piece, in order."""


@dataclass(frozen=True)
class ThisProcess(AugmentationExecutor):
    """This process, one piece after the other."""

    def imagine(self, work: AugmentationWork) -> Iterator[Transitions]:
        return map(work, range(len(work.source)))


@dataclass(frozen=True)
class Written:
    """What an augmented file holds."""

    real: int
    imagined: int
    ends: int
    """Imagined rows that end their episode."""


def augment(
    work: AugmentationWork,
    out: Path | str,
    where: AugmentationExecutor = ThisProcess(),
    report: Report = lambda *_: None,
) -> Written:
    """Write the real rows of `work.source`, then the imagined ones."""
    total, real, imagined, ends = len(work.source), 0, 0, 0
    with storage.writing(out) as put:
        for rows in work.source.pieces():
            put(without_noise(rows))
            real += len(rows)
        for number, rows in enumerate(where.imagine(work), 1):
            put(rows)
            imagined, ends = imagined + len(rows), ends + int(rows.terminated.sum())
            report("augment", number, total)
    return Written(real, imagined, ends)
