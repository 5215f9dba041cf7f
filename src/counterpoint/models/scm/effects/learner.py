"""The network's part of the law, learned by the marginal likelihood of whole subjects.

The linear model's own numbers stay as they are: moved along, they come to fit what a few subjects have in common.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from counterpoint.core.seeding import generator
from counterpoint.models.scm.effects.law import EffectsLaw, marginal
from counterpoint.nets.learner import StackTraining
from counterpoint.nets.optimizers import adam, clip_members

DECAY = 1e-4
"""Decoupled weight decay."""
CLIP = 5.0
"""Largest norm of a member's gradient."""
AT_ONCE = 128
"""Held-out subjects scored at once."""


@dataclass(frozen=True)
class SubjectRows:
    """One job's rows, and the subjects among them, each as the numbers of its rows."""

    inputs: Float[Tensor, "m c"]
    state: Float[Tensor, "m s"]
    y: Float[Tensor, "m d"]
    rows: Int[Tensor, "n t"]
    """Padded with −1."""
    learned: Int[Tensor, " a"]
    """Subjects to learn from."""
    held: Int[Tensor, " b"]
    """Subjects kept aside."""


def rows_of_subjects(subject: Int[Tensor, " m"]) -> Int[Tensor, "n t"]:
    """The numbers of every subject's rows, padded with −1; subjects without rows are left out."""
    order = subject.argsort(stable=True)
    counts = subject.bincount()
    parts = order.split(counts[counts > 0].tolist())
    return pad_sequence(list(parts), batch_first=True, padding_value=-1)


class EffectsTraining(StackTraining):
    """K members in training; member k learns from bootstrapped subjects of its own job."""

    eager_updates = sys.maxsize
    inputs: Tensor
    state: Tensor
    y: Tensor
    rows: Tensor
    held: Tensor

    def __init__(
        self, law: EffectsLaw, records: Sequence[SubjectRows], drawn: Sequence[Tensor], batch: int, learning_rate: float
    ) -> None:
        """`records[k]` is member k's; `drawn[k]` are the subjects that it learns from, some of them twice."""
        super().__init__()
        self.law, self.drawn, self.batch = law, list(drawn), batch
        different = {id(record): record for record in records}
        first, total = {}, 0
        for key, record in different.items():
            first[key] = total
            total += len(record.inputs)
        rows = [torch.where(r.rows >= 0, r.rows + first[id(r)], -1) for r in records]
        wide = max(table.shape[1] for table in rows)
        tables = [nn.functional.pad(table, (0, wide - table.shape[1]), value=-1) for table in rows]
        kept = {
            **{name: torch.cat([getattr(r, name) for r in different.values()]) for name in ("inputs", "state", "y")},
            "rows": pad_sequence(tables, batch_first=True, padding_value=-1),
            "held": pad_sequence([r.held for r in records], batch_first=True, padding_value=-1),
        }
        for name, tensor in kept.items():
            self.register_buffer(name, tensor.to(law.unit.device), persistent=False)
        self.optimizer = adam(law.net.parameters(), learning_rate, decay=DECAY)

    def draw(self, member: int, random: torch.Generator, steps: int) -> dict[str, Tensor]:
        subjects = self.drawn[member]
        return {"subjects": subjects[torch.randint(len(subjects), (steps, self.batch), generator=random)]}

    def update(self, draw: dict[str, Tensor]) -> dict[str, Tensor]:
        log_likelihood, rows = self._log_likelihood(draw["subjects"])
        loss = -log_likelihood.sum(1) / rows.sum(1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.sum().backward()
        clip_members(self.law.net.parameters(), CLIP)
        self.optimizer.step()
        return {"negative_log_likelihood": loss.detach()}

    def _log_likelihood(self, subjects: Int[Tensor, "k b"]) -> tuple[Float[Tensor, "k b"], Float[Tensor, "k b"]]:
        """The marginal log likelihood of whole subjects, and how many rows each has; −1 stands for no subject."""
        b = subjects.shape[1]
        table = self.rows.gather(1, subjects.clamp(min=0)[..., None].expand(-1, -1, self.rows.shape[-1]))
        there = ((table >= 0) & (subjects >= 0)[..., None]).float()
        numbers = table.clamp(min=0).flatten(1)
        step = self.law.step(self.inputs[numbers], self.state[numbers])
        evidence = self.law.evidence(step, self.y[numbers])
        information, precision, density = (part.unflatten(1, (b, -1)) for part in evidence)
        prior = torch.eye(self.law.factors, device=there.device)
        shared = marginal((information * there[..., None]).sum(2), (precision * there[..., None, None]).sum(2) + prior)
        return (density * there).sum(2) + shared * (subjects >= 0), there.sum(2)

    def optimizers(self) -> Sequence[Optimizer]:
        return (self.optimizer,)

    def network(self) -> nn.Module:
        return self.law

    @torch.no_grad()
    def score(self) -> Float[Tensor, " k"]:
        """Minus the mean log density of a held-out row, given the other rows of its subject; infinite without any."""
        parts = [self._log_likelihood(subjects) for subjects in self.held.split(AT_ONCE, 1)]
        density, rows = (torch.cat(column, 1).sum(1) for column in zip(*parts, strict=True))
        return torch.where(rows > 0, -density / rows, torch.inf)


def bootstrap(learned: Int[Tensor, " a"], member: int, seed: int) -> Int[Tensor, " a"]:
    """The subjects that a member learns from: the first has each once, the others draw with replacement."""
    if not member:
        return learned
    return learned[torch.randint(len(learned), (len(learned),), generator=generator(seed, "bootstrap", member))]
