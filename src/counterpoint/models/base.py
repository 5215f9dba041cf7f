"""Base classes of dynamics models: recipes, fitted models, and their mechanisms s' = f(s, a, θ, u) of M members."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from counterpoint.core.artifacts import Artifact, Saved
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.core.settings import checked
from counterpoint.data.conversion import Converted, convert_actions, convert_states
from counterpoint.data.jobs import NO_THETA, Job, Origin, check_factors
from counterpoint.data.schema import Schema, agree
from counterpoint.data.shapes import Theta
from counterpoint.data.transitions import Transitions
from counterpoint.models.logged_doses import LoggedDoses
from counterpoint.nets.stacked import Weights, stack, unstack, with_weights
from counterpoint.nets.training import Monitor

CHUNK = 65_536
"""Largest number of rows evaluated at once: memory is bounded by this, not by the table."""
FITTED_ROWS = "fitted_rows"
LOGGED_DOSES = "logged_doses."
"""What the names of that law's tensors begin with in an artifact."""

Values = TypeVar("Values")
"""Rows as a tensor, an array, a list or a DataFrame; what is returned has the same type."""
M_co = TypeVar("M_co", bound="Model", covariant=True)


@dataclass(frozen=True)
class SubjectFactors:
    """Normal posteriors N(mean, covariance) of the factors of n subjects, or of those of every member."""

    mean: Float[Tensor, "*m n t"]
    covariance: Float[Tensor, "*m n t t"]

    @classmethod
    def prior(cls, count: int, width: int, device: torch.device | str = "cpu") -> "SubjectFactors":
        """The prior N(0, I), which is the posterior of a subject without rows."""
        one = torch.eye(width, device=device)
        return cls(one.new_zeros(count, width), one.expand(count, -1, -1))

    @classmethod
    def point(cls, mean: Float[Tensor, "n t"]) -> "SubjectFactors":
        """Point estimates, with covariance 0."""
        return cls(mean, mean.new_zeros(*mean.shape, mean.shape[1]))

    def __getitem__(self, subjects: slice | Tensor) -> "SubjectFactors":
        return SubjectFactors(self.mean[subjects], self.covariance[subjects])

    def draw(self, random: torch.Generator) -> Float[Tensor, "*m n t"]:
        """One posterior draw of every subject's factor."""
        root = torch.linalg.cholesky_ex(self.covariance.double())[0].to(self.mean)
        normal = torch.randn(self.mean.shape, generator=random).to(self.mean)
        return self.mean + (root @ normal[..., None])[..., 0]


class SubjectTracker(ABC):
    """Posterior of the factors of n subjects, updated after every step of their treatment."""

    device: torch.device
    """Device of the inputs and of the posterior."""

    @property
    @abstractmethod
    def informed(self) -> bool:
        """Whether any evidence has been added to the prior."""

    @abstractmethod
    def update(self, state: Float[Tensor, "n s"], action: Float[Tensor, "n a"], after: Float[Tensor, "n s"]) -> None:
        """Add one observed transition of every subject."""

    @abstractmethod
    def factors(self, subjects: int) -> SubjectFactors:
        """The current posterior of so many subjects."""


class Mechanism(nn.Module, ABC):
    """f for M ensemble members; the context is the concatenation (s, a, θ)."""

    members: int
    context_width: int
    capturable: bool = True
    """Whether a step can be captured as a CUDA graph, that is, never synchronises with the GPU."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(chain(self.parameters(), self.buffers())).device

    @property
    def block(self) -> int:
        """Number of rows that a CPU evaluates at once."""
        return CHUNK

    @abstractmethod
    def predict(
        self, context: Float[Tensor, "m n c"], state: Float[Tensor, "m n s"], noise: Float[Tensor, "m n u"]
    ) -> Float[Tensor, "m n s"]:
        """Every member's next state under its noise."""

    @abstractmethod
    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """Draw the noise of `count` rows, on the generator's device."""

    def for_rollouts(self) -> "Mechanism":
        """An equivalent mechanism with everything precomputed that depends on the weights alone."""
        return self


class SubjectMechanism(Mechanism):
    """A mechanism that infers the factors θ of subjects from their rows."""

    @abstractmethod
    def subjects(self, rows: Transitions) -> Float[Tensor, "n t"]:
        """The factor of every row's subject, inferred from all rows of that subject."""

    def subject_factors(self, rows: Transitions) -> SubjectFactors:
        """The posterior of every subject's factor, in the order of `rows.subject_names`; here a point estimate."""
        row_factors = self.subjects(rows)
        mean = row_factors.new_zeros(len(rows.subject_names), row_factors.shape[1])
        mean[rows.subject] = row_factors
        return SubjectFactors.point(mean)

    def member_factors(self, rows: Transitions) -> SubjectFactors:
        """Every member's own posterior of every subject's factor, [m, n, t]; here the same for all members."""
        shared = self.subject_factors(rows)
        count = self.members
        return SubjectFactors(shared.mean.expand(count, -1, -1), shared.covariance.expand(count, -1, -1, -1))

    def informative_rows(self, rows: Transitions) -> Bool[Tensor, " n"]:
        """Which rows carry information about their subject's factor."""
        return ~rows.imagined & rows.has_next


class OnlineSubjectMechanism(SubjectMechanism):
    """A subject mechanism whose posterior can be updated row by row."""

    @abstractmethod
    def factors_before(self, rows: Transitions) -> SubjectFactors:
        """For every row, the posterior of its subject's factor given the subject's earlier rows."""

    @abstractmethod
    def tracker(self) -> SubjectTracker:
        """A tracker that starts from the prior."""


@dataclass(frozen=True)
class Candidate:
    """Held-out scores of one recipe."""

    name: str
    log_likelihood: float | None
    """Mean log density of a held-out row; None where the model has no density."""
    energy_score: float
    """Mean energy score of a held-out row, in standard deviations of the change; lower is better."""
    behind: float
    """Standard errors by which its score is behind the best candidate's; negative if ahead."""
    path_score: float | None = None
    """Mean energy score of held-out paths of several steps; lower is better. None where records are too short."""
    effect_misfit: float | None = None
    """Mean squared distance of its dose effects from the orthogonal estimates, in standard errors; None where the log
    determines no effect."""


@dataclass(frozen=True)
class Selection:
    """Result of a comparison of recipes on held-out rows, saved with the model as `model.selection`."""

    recipe: "Recipe[Model]"
    """The recipe that was selected."""
    candidates: tuple[Candidate, ...]
    """All that were compared, the simplest first."""
    why: str
    """The reason in words."""


class Model(nn.Module, Artifact, ABC):
    """A fitted model of the dynamics, which samples next states.

    Attributes:
        recipe: The recipe that `fit` was called on.
        structure: The recipe with everything filled in that was chosen from the data (kinds of columns, number of
            factors, settings by table size); it decides the shape of the mechanism. Equals `recipe` where nothing
            was chosen.
        selection: The comparison that chose `structure`, where candidates were compared; else None.
        logged_doses: Which doses are usual in which states of the log: intervals widen with the distance from them.
    """

    mechanism: Mechanism
    fitted_rows: Tensor

    def __init__(
        self,
        recipe: "Recipe[Model]",
        mechanism: Mechanism,
        schema: Schema,
        origin: Origin,
        fitted_rows: Int[Tensor, " r"],
        structure: "MechanismRecipe[Model] | None" = None,
        selection: Selection | None = None,
    ) -> None:
        super().__init__()
        self.recipe, self.mechanism, self.schema, self.origin = recipe, mechanism.eval(), schema, origin
        self.structure = cast("MechanismRecipe[Model]", recipe) if structure is None else structure
        self.selection = selection
        self.logged_doses: LoggedDoses | None = None
        self.register_buffer(FITTED_ROWS, fitted_rows)

    @abstractmethod
    def sample(self, state: Values, action: object, random: torch.Generator, theta: Theta = NO_THETA) -> Values:
        """Draw next states with fresh noise: a simulation, not a counterfactual.

        Args:
            state: States as a tensor, an array, a list or a DataFrame; the result has the same type.
            action: One action for all rows, or one for each row: numbers, labels or a DataFrame.
            random: Source of the noise.
            theta: Subject factors, where the model has any.
        """

    @abstractmethod
    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n m a"], random: torch.Generator, theta: Theta = NO_THETA
    ) -> Float[Tensor, "n m s"]:
        """Next states of each row under m alternative actions."""

    @property
    def device(self) -> torch.device:
        """Where the weights are, and where computations run."""
        return self.mechanism.device

    @property
    def theta_width(self) -> int:
        """Number of columns of the subject factor; 0 where the model has none."""
        return self.mechanism.context_width - len(self.state_names) - self.actions.width

    def subjects(self, rows: Transitions) -> Float[Tensor, "n t"]:
        """The factor of every row's subject, inferred from the rows; zero columns where the model has no factors."""
        return self._subject_mechanism().subjects(rows) if self.theta_width else rows.state[:, :0]

    @checked
    def subject_factors(self, rows: Transitions) -> SubjectFactors:
        """The posterior of every subject's factor, in the order of `rows.subject_names`; the prior without rows."""
        agree(self.schema, rows.schema)
        if not self.theta_width:
            return SubjectFactors.prior(len(rows.subject_names), 0)
        return self._subject_mechanism().subject_factors(rows)

    @checked
    def factors_before(self, rows: Transitions) -> SubjectFactors:
        """For every row, the posterior of its subject's factor given the subject's earlier rows."""
        agree(self.schema, rows.schema)
        if not self.theta_width:
            return SubjectFactors.prior(len(rows), 0)
        return self._online_mechanism().factors_before(rows)

    def informative_rows(self, rows: Transitions) -> Bool[Tensor, " n"]:
        """Which rows carry information about their subject's factor; all observed transitions without factors."""
        if isinstance(self.mechanism, SubjectMechanism):
            return self.mechanism.informative_rows(rows)
        return ~rows.imagined & rows.has_next

    def tracker(self) -> SubjectTracker:
        """A tracker of subject factors that starts from the prior."""
        return self._online_mechanism().tracker()

    def _subject_mechanism(self) -> SubjectMechanism:
        if isinstance(self.mechanism, SubjectMechanism):
            return self.mechanism
        raise CounterpointError(
            "the model was fitted with subject factors that were passed in, so it cannot infer those of new subjects;"
            " pass theta"
        )

    def _online_mechanism(self) -> OnlineSubjectMechanism:
        if isinstance(self.mechanism, OnlineSubjectMechanism):
            return self.mechanism
        raise CounterpointError("the model cannot update subject factors row by row; use RandomEffects")

    def has_seen(self, rows: Transitions) -> bool:
        """Whether the model was fitted on any of these rows."""
        return bool(torch.isin(rows.row_hashes, self.fitted_rows.to(rows.state.device)).any())

    def weights(self) -> dict[str, Tensor]:
        """Everything that an artifact keeps as tensors."""
        doses = {} if self.logged_doses is None else self.logged_doses.state_dict()
        named = {LOGGED_DOSES + name: tensor for name, tensor in doses.items()}
        return {**self.mechanism.state_dict(), FITTED_ROWS: self.fitted_rows, **named}

    def extras(self) -> dict[str, Any]:
        return {"context": self.mechanism.context_width, "members": self.mechanism.members}

    def parts(self) -> dict[str, Any]:
        structure = {} if self.structure is self.recipe else {"structure": self.structure}
        return structure if self.selection is None else {**structure, "selection": self.selection}

    def with_recipe(self, recipe: "Recipe[Model]", selection: Selection | None = None) -> Self:
        """The same model as the result of `recipe`, which chose this model's structure."""
        selection = self.selection if selection is None else selection
        return self._copy(recipe, self.mechanism, selection)

    def with_mechanism(self, mechanism: Mechanism) -> Self:
        """The same model with another mechanism of the same structure."""
        return self._copy(self.recipe, mechanism, self.selection)

    def _copy(self, recipe: "Recipe[Model]", mechanism: Mechanism, selection: Selection | None) -> Self:
        fit = self.schema, self.origin, self.fitted_rows
        copied = type(self)(recipe, mechanism, *fit, self.structure, selection)
        copied.logged_doses = self.logged_doses
        return copied

    def _query(self, state: object, action: object) -> tuple[Converted, Tensor]:
        """States of any input type as a query, and an action for each."""
        query = convert_states(state, self.schema.states)
        actions = convert_actions(action, self.schema, len(query.values)).values.to(query.values)
        return query, actions

    def _factors(self, theta: Theta, count: int, rows: Transitions | None = None) -> Tensor:
        """The factors `theta`, or those inferred from `rows` where theta has no columns; a wrong width is refused."""
        theta = check_factors(theta, count)
        if rows is not None and not theta.shape[1]:
            theta = self.subjects(rows)
        if theta.shape[1] != self.theta_width:
            raise CounterpointError(
                f"the model has subject factors of {self.theta_width} columns and was given {theta.shape[1]};"
                " pass theta=model.subjects(rows)"
            )
        return theta.expand(count, -1)

    def _by_chunks(self, function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
        """Apply `function` to blocks of rows on the model's device; the result is on the device of the rows."""
        home, device = columns[0].device, self.device
        block = CHUNK if device.type == "cuda" else self.mechanism.block
        pieces = zip(*(column.split(block) for column in columns), strict=True)
        results = (function(*(c.to(device) for c in piece)).to(home) for piece in pieces)
        return _concatenated(results, len(columns[0]))


def _concatenated(pieces: Iterator[Tensor], rows: int) -> Tensor:
    """Concatenate pieces into memory that is allocated once."""
    whole = torch.empty(0)
    done = 0
    for piece in pieces:
        whole = whole if done else piece.new_empty(rows, *piece.shape[1:])
        whole[done : done + len(piece)] = piece
        done += len(piece)
    return whole


class Recipe(ABC, Generic[M_co]):
    """Base class of model recipes: a frozen dataclass of hyperparameters whose `fit` returns a model of type M."""

    @checked
    def fit(
        self,
        data: Transitions,
        seed: int = 0,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        theta: Theta = NO_THETA,
    ) -> M_co:
        """Fit a model on one table.

        Args:
            data: The transitions; imagined rows and rows without a next state are left out.
            seed: Seed of initial weights, minibatches and held-out subjects.
            monitor: Where checkpoints and progress go.
            device: "cpu", "cuda" or "auto".
            theta: Known subject factors, one row for each row of `data`, or one for all.
        """
        return self.fit_many([Job(data, seed, theta)], monitor, device)[0]

    @abstractmethod
    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[M_co]:
        """Fit one model for every job, all in one training loop."""

    def rebuild(self, saved: Saved) -> M_co:
        """The fitted model back from its artifact."""
        structure = saved.parts.get("structure", self)
        weights = dict(saved.weights)
        rows = weights.pop(FITTED_ROWS)
        shape = len(saved.schema.states), saved.header["context"], saved.header["members"]
        doses = {name: weights.pop(name) for name in list(weights) if name.startswith(LOGGED_DOSES)}
        mechanism = with_weights(structure.build(*shape), weights)
        fit = saved.schema, saved.origin, rows
        model = structure.fitted(self, mechanism, *fit, structure, saved.parts.get("selection"))
        if doses:
            model.logged_doses = LoggedDoses({name.removeprefix(LOGGED_DOSES): x for name, x in doses.items()})
        return model


class MechanismRecipe(Recipe[M_co]):
    """A recipe that builds a mechanism of its own shape."""

    fitted: ClassVar[type]
    """The class of the fitted model."""

    @abstractmethod
    def build(self, state: int, context: int, members: int) -> Mechanism:
        """An unfitted mechanism for `state` state and `context` context columns, of `members` members in all."""

    def joined(self, parts: Sequence[Weights]) -> Weights:
        """The weights of several mechanisms of this structure, concatenated along the members' axis."""
        return stack(parts)

    def cut(self, stack: Mechanism, jobs: Sequence[Job]) -> list[M_co]:
        """Split a trained stack into one fitted model for every job."""
        members = stack.members // len(jobs)
        shape = jobs[0].data.state_size, stack.context_width, members
        parts = [with_weights(self.build(*shape), weights) for weights in unstack(stack.state_dict(), len(jobs))]
        return [self.model(part, job) for part, job in zip(parts, jobs, strict=True)]

    def model(self, mechanism: Mechanism, job: Job) -> M_co:
        """The fitted model with this mechanism, from the job it was trained on."""
        from counterpoint.models.signs import warn_of_signs  # Here, because it reads mechanisms of this file.

        warn_of_signs(mechanism, job)
        data = job.data
        rows = data.row_hashes[~data.imagined & data.has_next]
        return self.fitted(self, mechanism, data.schema, Origin.of(job), rows)


def member_seeds(jobs: Sequence[Job], ensemble: int) -> list[int]:
    """A seed for every member of every job's ensemble."""
    return [derive(job.seed, "member", m) for job in jobs for m in range(ensemble)]


Item = TypeVar("Item")


def repeated(tables: Sequence[Item], ensemble: int) -> list[Item]:
    """Every table `ensemble` times in a row: the same object, which members share in memory."""
    return [table for table in tables for _ in range(ensemble)]
