"""Policies: functions from a state and a subject factor to an action, with the verdict on the model behind them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch

from counterpoint.core.artifacts import Artifact, Saved, decode, encode
from counterpoint.core.errors import require
from counterpoint.core.settings import check_settings, checked
from counterpoint.core.wording import counted
from counterpoint.data.conversion import convert_states
from counterpoint.data.jobs import NO_THETA, check_factors
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.spaces import Discrete
from counterpoint.nets.placement import PlacedModule, common_device
from counterpoint.simulation.rollout import Actor

TRUST = "Trust in the model behind this policy"


@dataclass(frozen=True)
class Verdict:
    """How far the model behind a policy can be trusted, and why; saved with the policy."""

    trust: Literal["yes", "with care", "no", "not checked"] = "not checked"
    reasons: tuple[str, ...] = ()
    """Why the answer is not simply yes."""

    def __post_init__(self) -> None:
        check_settings(self)

    def __str__(self) -> str:
        lines = "".join(f"\n- {reason}" for reason in self.reasons)
        return f"{TRUST}: {self.trust}{', because:' if lines else '.'}{lines}"

    @property
    def brief(self) -> str:
        """One line: the trust and the gravest reason."""
        head = f"{TRUST}: {self.trust}"
        if not self.reasons:
            return f"{head}."
        first, *more = self.reasons
        rest = f" ({counted(len(more), 'more reason')}: check-scm or report)" if more else ""
        return f"{head}. {first}{rest}"


@dataclass(frozen=True)
class SelectedCheckpoint:
    """The checkpoint that became the policy, and its score inside the model that selected it."""

    step: int
    steps: int
    """Steps of the whole training."""
    score: float
    """What was maximised: the mean return inside the model, or the objective of a search."""
    return_in_model: float
    """Mean return inside the model, without the price of leaving the log."""
    horizon: int
    """Steps of an episode inside the model."""

    def __str__(self) -> str:
        text = f"kept step {self.step} of {self.steps}: return inside the model {self.return_in_model:.4g}"
        text += f" over {self.horizon} steps"
        return text if self.score == self.return_in_model else f"{text}, objective {self.score:.4g}"


class Policy(PlacedModule, Artifact, ABC):
    """A fitted policy. `act` is a pure function of the state and of the subject's factor."""

    kind: ClassVar[str] = "policy"
    verdict: Verdict = Verdict()
    """The verdict of the checks on the model behind the policy."""
    checkpoint: SelectedCheckpoint | None = None
    """The selected checkpoint; None where nothing selected one, and for a policy that was loaded."""

    @abstractmethod
    def actor(self) -> Actor:
        """A stateless actor of this policy alone."""

    @abstractmethod
    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        """An actor for rollouts of this policy and `others` of the same shape: policy k acts in states [k].

        It may remember the episode so far, as a policy that learns about its subjects does.
        """

    @property
    def factor_width(self) -> int:
        """Columns of the subject factor that `act` needs; 0 for a policy that ignores the subject."""
        return 0

    def extras(self) -> dict[str, Any]:
        return {"verdict": encode(self.verdict)}

    @checked
    def with_verdict(self, verdict: Verdict) -> Self:
        """The same policy with the verdict on the model behind it."""
        policy = copy(self)
        policy.verdict = verdict
        return policy

    def act(self, state: Any, theta: Theta = NO_THETA) -> Any:
        """The action to take in each state, in the form of the input.

        Tensors and arrays are read by the order of their columns and give feature values. A DataFrame is read by the
        names of its columns and gives the action columns of the training table. Missing values are filled as in the
        training table; where it had none they are refused.
        """
        query = convert_states(state, self.schema.states)
        action = self._act(query.values, check_factors(theta, len(query.values)))
        if query.from_columns is None:
            return query.restore(action, ())
        if not isinstance(self.actions, Discrete):
            columns = {name: action[:, i].tolist() for i, name in enumerate(self.schema.action_names)}
            return query.from_columns(columns)
        choices = self.schema.choices()
        rows = [choices[i] for i in self.actions.index(action).tolist()]
        return query.from_columns({name: [row[name] for row in rows] for name in choices[0]})

    @torch.no_grad()
    def _act(self, state: State, theta: Theta) -> Action:
        device = self.device
        action = self.actor()(state[None].to(device), theta.expand(len(state), -1)[None].to(device))
        return action[0].to(state)

    def __call__(self, state: State, random: torch.Generator) -> Action:
        """Act as a behaviour policy of a simulator; the generator is not used."""
        return self._act(state, NO_THETA)


def joint_actor(policies: Sequence[Policy]) -> Actor:
    """One actor for rollouts of several policies of one class on one device: policy k acts in states [k]."""
    first, *others = policies
    kinds = sorted({type(policy).__name__ for policy in policies})
    require(len(kinds) == 1, f"policies of the kinds {' and '.join(kinds)} cannot act in one batch; evaluate each kind")
    common_device(policies, "the policies")
    return first.rollout_actor(others)


def saved_verdict(saved: Saved) -> Verdict:
    """The verdict that a policy was saved with."""
    verdict = decode(saved.header["verdict"], {"Verdict": Verdict})
    require(isinstance(verdict, Verdict), "the policy's verdict is damaged; train it again")
    return verdict
