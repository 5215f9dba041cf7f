"""A policy says what to do in a state; a policy learner is a recipe that makes one from a table and a task."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from counterpoint.core.artifacts import Artifact, Saved, decode, encode
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import derive
from counterpoint.core.settings import check_settings, checked
from counterpoint.core.wording import counted
from counterpoint.data.conversion import convert_states
from counterpoint.data.jobs import NO_THETA, Job, check_factors
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model, Recipe
from counterpoint.nets.training import Monitor
from counterpoint.simulation.rollout import Actor
from counterpoint.tasks.base import Task, check_task

BEHIND = "Trust in the model behind this policy"


@dataclass(frozen=True)
class Verdict:
    """What is known of the model behind a policy; it goes wherever the policy goes."""

    trust: Literal["yes", "with care", "no", "not checked"] = "not checked"
    reasons: tuple[str, ...] = ()
    """Why not simply yes."""

    def __post_init__(self) -> None:
        check_settings(self)

    def __str__(self) -> str:
        lines = "".join(f"\n- {reason}" for reason in self.reasons)
        return f"{BEHIND}: {self.trust}{', because:' if lines else '.'}{lines}"

    @property
    def brief(self) -> str:
        """One line: trust and its gravest reason; for commands after the one that found it out."""
        head = f"{BEHIND}: {self.trust}"
        if not self.reasons:
            return f"{head}."
        first, *more = self.reasons
        rest = f" ({counted(len(more), 'more reason')}: check-scm or report)" if more else ""
        return f"{head}. {first}{rest}"


@dataclass(frozen=True)
class Kept:
    """Which checkpoint became the policy, and how it did inside the model that chose it."""

    step: int
    steps: int
    """Steps of the whole training."""
    score: float
    """What was made as large as possible: the mean return inside the model, or a search's own objective."""
    return_in_model: float
    """Mean return inside the model, without the price of leaving the log."""
    horizon: int
    """Steps of an episode inside the model."""

    def __str__(self) -> str:
        said = f"kept step {self.step} of {self.steps}: return inside the model {self.return_in_model:.4g}"
        said += f" over {self.horizon} steps"
        return said if self.score == self.return_in_model else f"{said}, objective {self.score:.4g}"


class Policy(nn.Module, Artifact, ABC):
    """What a learner returns. `act` is a pure function of the state and the subject's factor."""

    kind: ClassVar[str] = "policy"
    verdict: Verdict = Verdict()
    """What `check` said of the model behind it."""
    kept: Kept | None = None
    """The checkpoint that became this policy; none where nothing chose among them, and for a policy read back."""

    @abstractmethod
    def actor(self) -> Actor:
        """This policy alone as an actor."""

    @classmethod
    @abstractmethod
    def together(cls, policies: Sequence["Policy"]) -> Actor:
        """Policies of one shape as one actor, for evaluating many at once."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def factor_width(self) -> int:
        """Columns of the subject's factor that it must be told; 0 for a policy that is the same for everybody."""
        return 0

    def extras(self) -> dict[str, Any]:
        return {"verdict": encode(self.verdict)}

    @checked
    def judged(self, verdict: Verdict) -> "Policy":
        """The same policy with what is known of the model behind it."""
        policy = copy(self)
        policy.verdict = verdict
        return policy

    def act(self, state: Any, theta: Theta = NO_THETA) -> Any:
        """The action to take in each state, in kind: tensors and arrays give feature values, in their order of columns;
        a DataFrame is read by the names of its columns and gives the action columns of the table learned from.

        States with missing values are filled as the training table was; where it had none they are refused.
        """
        asked = convert_states(state, self.schema.states)
        chosen = self._act(asked.values, check_factors(theta, len(asked.values)))
        if asked.from_columns is None:
            return asked.restore(chosen, ())
        if not isinstance(self.actions, Discrete):
            return asked.from_columns({name: chosen[:, i].tolist() for i, name in enumerate(self.schema.action_names)})
        choices = self.schema.choices()
        said = [choices[i] for i in self.actions.index(chosen).tolist()]
        return asked.from_columns({name: [choice[name] for choice in said] for name in choices[0]})

    @torch.no_grad()
    def _act(self, state: State, theta: Theta) -> Action:
        device = self.device
        chosen = self.actor()(state[None].to(device), theta.expand(len(state), -1)[None].to(device))
        return chosen[0].to(state)

    def __call__(self, state: State, random: torch.Generator) -> Action:
        """The form a simulator asks for; the generator is not needed."""
        return self._act(state, NO_THETA)


def saved_verdict(saved: Saved) -> Verdict:
    """The verdict that a policy was saved with."""
    verdict = decode(saved.header["verdict"], {"Verdict": Verdict})
    require(isinstance(verdict, Verdict), "the policy's verdict is damaged; train it again")
    return verdict


@dataclass(frozen=True)
class Learned:
    """The two ends of a training run: the checkpoint its own rule selected, and the last one."""

    selected: Policy
    last: Policy


class PolicyLearner(ABC):
    """Hyperparameters with one verb; every method of the paper's figures is one of these."""

    @checked
    def fit(
        self,
        data: Transitions,
        task: Task,
        seed: int = 0,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
        theta: Theta = NO_THETA,
    ) -> Policy:
        """Learn on one table."""
        return self.fit_many([Job(data, seed, theta)], task, monitor, device)[0].selected

    @abstractmethod
    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        """Learn every job, all in one loop."""


class ModelBased(PolicyLearner):
    """Fits a model of every job, then learns a policy by it: learners of one `model` fit the very same models."""

    model: Recipe[Model]
    """What is fitted."""

    @abstractmethod
    def check(self, jobs: Sequence[Job], task: Task) -> None:
        """Refuse what cannot be learned, before a model is fitted."""

    @abstractmethod
    def with_models(
        self,
        jobs: Sequence[Job],
        models: Sequence[Model],
        task: Task,
        monitor: Monitor = Monitor(),
        device: str = "cpu",
    ) -> list[Learned]:
        """The policy of every job by its own model."""

    def fit_models(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[Model]:
        """The models alone."""
        own = [replace(job, seed=derive(job.seed, "model")) for job in jobs]
        return self.model.fit_many(own, monitor.stage("model"), device)

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[Learned]:
        self.check(jobs, task)
        models = self.fit_models(jobs, monitor, device)
        return self.with_models(jobs, models, task, monitor, device)


def discrete(task: Task, jobs: Sequence[Job] = ()) -> Discrete:
    """The task's action space, which a Q-network needs to be finite; the jobs' tables must be tables of the task."""
    if not isinstance(task.actions, Discrete):
        raise CounterpointError(
            "this learner chooses from a list of actions, and the doses are continuous; cut them with actions=Bins()"
        )
    for job in jobs:
        check_task(task, job.data.schema)
    return task.actions


def action_numbers(data: Transitions) -> Int[Tensor, " n"]:
    """The rows' action numbers, all of them inside the space."""
    outside = (data.action_index < 0).nonzero()
    if len(outside):
        raise CounterpointError(f"row {int(outside[0])} has an action outside the discrete action space; correct it")
    return data.action_index
