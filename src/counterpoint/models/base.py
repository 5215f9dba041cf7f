"""What every fitted model of the dynamics is: M members of s' = f(s, a, θ, u), and the recipe that made them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from counterpoint.core.artifacts import Artifact, Saved
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.core.settings import checked
from counterpoint.data.conversion import (
    Converted,
    convert_actions,
    convert_states,
)
from counterpoint.data.jobs import NO_THETA, Job, Origin, check_factors
from counterpoint.data.schema import Schema, agree
from counterpoint.data.shapes import Theta
from counterpoint.data.transitions import Transitions
from counterpoint.nets.stacked import Weights, stack, unstack, with_weights
from counterpoint.nets.training import Monitor

CHUNK = 65_536
"""Rows handled at once: memory is bounded by this, not by the table."""
FITTED_ROWS = "fitted_rows"


@dataclass(frozen=True)
class SubjectFactors:
    """What is known of some subjects' factors: normal laws."""

    mean: Float[Tensor, "n t"]
    covariance: Float[Tensor, "n t t"]

    @classmethod
    def prior(cls, count: int, width: int, device: torch.device | str = "cpu") -> "SubjectFactors":
        """Of subjects without a record: N(0, I)."""
        one = torch.eye(width, device=device)
        return cls(one.new_zeros(count, width), one.expand(count, -1, -1))

    def __getitem__(self, subjects: slice | Tensor) -> "SubjectFactors":
        return SubjectFactors(self.mean[subjects], self.covariance[subjects])

    def draw(self, random: torch.Generator) -> Float[Tensor, "n t"]:
        """One factor of each, as likely as the data leave it."""
        root = torch.linalg.cholesky_ex(self.covariance.double())[0].to(self.mean)
        luck = torch.randn(self.mean.shape, generator=random)
        return self.mean + (root @ luck[..., None])[..., 0]


class Tracker(ABC):
    """What is known of n subjects while they are treated, step after step."""

    device: torch.device
    """Where it wants what it sees, and where its answers are."""

    @property
    @abstractmethod
    def knows(self) -> bool:
        """Whether anything has been learned yet."""

    @abstractmethod
    def see(self, state: Float[Tensor, "n s"], action: Float[Tensor, "n a"], after: Float[Tensor, "n s"]) -> None:
        """Take up one step of every subject."""

    @abstractmethod
    def factors(self, subjects: int) -> SubjectFactors:
        """What is known of so many subjects by now."""


class Mechanism(nn.Module, ABC):
    """f for M ensemble members; the context is (s, a, θ) side by side."""

    members: int
    context_width: int
    capturable: bool = True
    """Whether a step never waits for a GPU, so that it can be captured as a graph there."""

    @property
    def block(self) -> int:
        """Rows that a processor handles at once."""
        return CHUNK

    @abstractmethod
    def predict(
        self, context: Float[Tensor, "m n c"], state: Float[Tensor, "m n s"], noise: Float[Tensor, "m n u"]
    ) -> Float[Tensor, "m n s"]:
        """The next state that every member's noise leads to."""

    @abstractmethod
    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """Fresh noise, one draw a row, made where the generator lives."""

    def for_rollouts(self) -> "Mechanism":
        """What predicts the same as long as no weight changes, with all that no row has a part in worked out once."""
        return self

    def subjects(self, rows: Transitions) -> Float[Tensor, "n t"]:
        """The factor of every row's subject, inferred from all rows of that subject."""
        raise CounterpointError(
            "this model was fitted with subject factors that were given, and cannot infer a new subject's; pass theta"
        )

    def subject_factors(self, rows: Transitions) -> SubjectFactors:
        """The factor of every subject, in the order of `rows.subject_names`; a point unless the model knows better."""
        each = self.subjects(rows)
        mean = each.new_zeros(len(rows.subject_names), each.shape[1])
        mean[rows.subject] = each
        return SubjectFactors(mean, mean.new_zeros(*mean.shape, mean.shape[1]))

    def telling(self, rows: Transitions) -> Bool[Tensor, " n"]:
        """Which rows tell something of their subject's factor."""
        return ~rows.imagined & rows.has_next

    def factors_before(self, rows: Transitions) -> SubjectFactors:
        """For every row, the factor of its subject as far as the subject's earlier rows tell."""
        raise CounterpointError("this model cannot say what part of a record tells of a subject; use RandomEffects")

    def tracker(self) -> Tracker:
        """For subjects of whom nothing is known yet."""
        raise CounterpointError("this model cannot learn about a subject while it is treated; use RandomEffects")


class Model(nn.Module, Artifact, ABC):
    """A fitted model, which can imagine and sample next states."""

    fitted_rows: Tensor

    @abstractmethod
    def sample(self, state: Any, action: Any, random: torch.Generator, theta: Theta = NO_THETA) -> Any:
        """A next state with fresh noise: simulation, not a counterfactual; states in any form, answered in kind."""

    @abstractmethod
    def imagine(
        self,
        rows: Transitions,
        action: Float[Tensor, "n m a"],
        random: torch.Generator,
        theta: Theta = NO_THETA,
    ) -> Float[Tensor, "n m s"]:
        """Next states under several other actions for each row."""

    def __init__(
        self,
        recipe: Any,
        mechanism: Any,
        schema: Schema,
        origin: Origin,
        fitted_rows: Int[Tensor, " r"],
    ) -> None:
        super().__init__()
        self.recipe, self.mechanism, self.schema, self.origin = recipe, mechanism.eval(), schema, origin
        self.register_buffer(FITTED_ROWS, fitted_rows)

    @property
    def device(self) -> torch.device:
        return next(self.mechanism.parameters()).device

    @property
    def theta_width(self) -> int:
        """Columns of the subject factor; 0 where subjects are all alike to the model."""
        return self.mechanism.context_width - len(self.state_names) - self.actions.width

    def subjects(self, rows: Transitions) -> Float[Tensor, "n t"]:
        """The factor of every row's subject, inferred from the rows; zero-width where the model knows no subjects."""
        return self.mechanism.subjects(rows) if self.theta_width else rows.state[:, :0]

    @checked
    def subject_factors(self, rows: Transitions) -> SubjectFactors:
        """What the rows tell of every subject's factor, in the order of `rows.subject_names`: the prior for no rows."""
        agree(self.schema, rows.schema)
        if not self.theta_width:
            return SubjectFactors.prior(len(rows.subject_names), 0)
        return self.mechanism.subject_factors(rows)

    @checked
    def factors_before(self, rows: Transitions) -> SubjectFactors:
        """What, for every row, the earlier rows of its subject tell of its factor."""
        agree(self.schema, rows.schema)
        if not self.theta_width:
            return SubjectFactors.prior(len(rows), 0)
        return self.mechanism.factors_before(rows)

    def has_seen(self, rows: Transitions) -> bool:
        """Whether the model was fitted on any of these rows."""
        return bool(torch.isin(rows.row_hashes, self.fitted_rows.to(rows.state.device)).any())

    def weights(self) -> dict[str, Tensor]:
        return {**self.mechanism.state_dict(), FITTED_ROWS: self.fitted_rows}

    def extras(self) -> dict[str, Any]:
        return {"context": self.mechanism.context_width, "members": self.mechanism.members}

    def with_recipe(self, recipe: Any) -> Any:
        """The same model under another recipe's name."""
        return type(self)(recipe, self.mechanism, self.schema, self.origin, self.fitted_rows)

    def _held(self, after: Tensor, state: Tensor, action: Tensor) -> Tensor:
        """Next states as the user declared them to be."""
        return self.schema.held(after, state, action)

    def _asked(self, state: Any, action: Any) -> tuple[Converted, Tensor]:
        """States and an action for each, whatever form they come in."""
        asked = convert_states(state, self.schema.states)
        taken = convert_actions(action, self.schema, len(asked.values)).values.to(asked.values)
        return asked, taken

    def _factors(self, theta: Theta, rows: int, known: Transitions | None = None) -> Tensor:
        """The factors given, or else those of `known` rows; others than the model was fitted with are refused."""
        theta = check_factors(theta, rows)
        if known is not None and not theta.shape[1]:
            theta = self.subjects(known)
        if theta.shape[1] != self.theta_width:
            raise CounterpointError(
                f"the model has subject factors of {self.theta_width} columns and was given {theta.shape[1]};"
                " pass theta=model.subjects(rows)"
            )
        return theta.expand(rows, -1)

    def _by_chunks(self, function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
        """Rows in pieces, each brought to the model's device and the answer back to the rows'."""
        home, there = columns[0].device, self.device
        rows = CHUNK if there.type == "cuda" else self.mechanism.block
        pieces = zip(*(column.split(rows) for column in columns), strict=True)
        return _joined((function(*(c.to(there) for c in piece)).to(home) for piece in pieces), len(columns[0]))


def _joined(pieces: Iterator[Tensor], rows: int) -> Tensor:
    """Pieces one after another in memory that is taken once."""
    whole, done = torch.empty(0), 0
    for piece in pieces:
        whole = whole if done else piece.new_empty(rows, *piece.shape[1:])
        whole[done : done + len(piece)] = piece
        done += len(piece)
    return whole


class ModelRecipe(ABC):
    """Hyperparameters with one verb. Subclasses are frozen dataclasses that say how many jobs are fitted at once."""

    fitted: ClassVar[type[Model]]
    """What it makes."""

    @checked
    def fit(
        self,
        data: Transitions,
        seed: int = 0,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        theta: Theta = NO_THETA,
    ) -> Any:
        """Fit on one table."""
        return self.fit_many([Job(data, seed, theta)], monitor, device)[0]

    @abstractmethod
    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[Any]:
        """Fit every job, all in one loop."""

    @abstractmethod
    def build(self, state: int, context: int, members: int) -> Mechanism:
        """An unfitted mechanism of the right shape, for `members` members in all, to train or to load weights into."""

    @property
    def structure(self) -> "ModelRecipe":
        """What decides the shape of the mechanism: models of one structure can be stacked."""
        return self

    def joined(self, parts: Sequence[Weights]) -> Weights:
        """The weights of several mechanisms of this structure as those of one with the members of all."""
        return stack(parts)

    def rebuild(self, saved: Saved) -> Any:
        """The fitted model back from its artifact."""
        weights = dict(saved.weights)
        rows = weights.pop(FITTED_ROWS)
        shape = len(saved.schema.states), saved.header["context"], saved.header["members"]
        mechanism = with_weights(self.build(*shape), weights)
        return self.fitted(self, mechanism, saved.schema, saved.origin, rows)

    def cut(self, stack: Any, jobs: Sequence[Job]) -> list[Any]:
        """A fitted model for every job, each with its share of a trained stack."""
        members = stack.members // len(jobs)
        shape = jobs[0].data.state_size, stack.context_width, members
        parts = [with_weights(self.build(*shape), weights) for weights in unstack(stack.state_dict(), len(jobs))]
        return [self._model(part, job) for part, job in zip(parts, jobs, strict=True)]

    def _model(self, mechanism: Mechanism, job: Job) -> Model:
        data = job.data
        rows = data.row_hashes[~data.imagined & data.has_next]
        return self.fitted(self, mechanism, data.schema, Origin.of(job), rows)


def member_seeds(jobs: Sequence[Job], ensemble: int) -> list[int]:
    """A seed for every member of every job's ensemble."""
    return [derive(job.seed, "member", m) for job in jobs for m in range(ensemble)]


def one_a_member(tables: Sequence[Any], ensemble: int) -> list[Any]:
    """Every job's table once for each of its members."""
    return [table for table in tables for _ in range(ensemble)]
