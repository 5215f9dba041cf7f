"""A structural causal model s' = f(s, a, θ, u): abduct the noise, change the action, predict (paper, section 2.2)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint import artifacts
from counterpoint.data.jobs import NO_THETA, Job, Origin
from counterpoint.data.spaces import ActionSpace, check_actions
from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError
from counterpoint.nets.training import Monitor

CHUNK = 65_536
"""Rows handled at once: memory is bounded by this, not by the table."""


class Mechanism(nn.Module, ABC):
    """f and its inverse for M ensemble members; the context is (s, a, θ) side by side."""

    members: int
    context_width: int
    noise_width: int

    @abstractmethod
    def abduct(
        self, context: Float[Tensor, "m n c"], state: Float[Tensor, "m n s"], next_state: Float[Tensor, "m n s"]
    ) -> Float[Tensor, "m n u"]:
        """The noise of every member for what was seen."""

    @abstractmethod
    def predict(
        self, context: Float[Tensor, "m n c"], state: Float[Tensor, "m n s"], noise: Float[Tensor, "m n u"]
    ) -> Float[Tensor, "m n s"]:
        """The next state that every member's noise leads to."""

    def combine(self, predictions: Float[Tensor, "m n s"]) -> Float[Tensor, "n s"]:
        """What the ensemble says: the mean of its members."""
        return predictions.mean(0)

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """Fresh noise, one draw a row; every member is given the same draw."""
        return torch.randn(count, self.noise_width, generator=random, device=random.device)

    def posterior(
        self,
        context: Float[Tensor, "m n c"],
        state: Float[Tensor, "m n s"],
        next_state: Float[Tensor, "m n s"],
        random: torch.Generator,
    ) -> Float[Tensor, "m n u"]:
        """A draw of the noise given what was seen (Remark 4); the abducted point where the posterior is one."""
        return self.abduct(context, state, next_state)


@final
class StructuralCausalModel(nn.Module):
    """A fitted SCM. Noise is a table [n, M·u]: the M ensemble members' noises side by side, so that it can be stored.

    A counterfactual is the mean over members of each member's own abduction, action and prediction. It therefore
    returns the factual next state for the factual action wherever the members abduct exactly.
    """

    def __init__(
        self, recipe: Any, mechanism: Mechanism, actions: ActionSpace, state_names: tuple[str, ...], origin: Origin
    ) -> None:
        super().__init__()
        self.recipe, self.mechanism, self.actions = recipe, mechanism.eval(), actions
        self.state_names, self.origin = state_names, origin

    @torch.no_grad()
    def abduct(self, rows: Transitions, theta: Float[Tensor, "_ t"] = NO_THETA) -> Float[Tensor, "n mu"]:
        """Step 1: the noise that explains each row. Rows without a next state have none and are refused."""
        self._check(rows)
        return self._by_chunks(self._abduct, rows.state, rows.action, rows.next_state, theta.expand(len(rows), -1))

    @torch.no_grad()
    def predict(
        self,
        state: Float[Tensor, "n s"],
        action: Float[Tensor, "n a"],
        noise: Float[Tensor, "n mu"],
        theta: Float[Tensor, "_ t"] = NO_THETA,
    ) -> Float[Tensor, "n s"]:
        """Steps 2 and 3: the next state under an action, given the noise."""
        check_actions(self.actions, action)
        return self._by_chunks(self._predict, state, action, noise, theta.expand(len(state), -1))

    def counterfactual(
        self, rows: Transitions, action: Float[Tensor, "n a"], theta: Float[Tensor, "_ t"] = NO_THETA
    ) -> Float[Tensor, "n s"]:
        """What would have followed in each row, had `action` been taken."""
        return self.predict(rows.state, action, self.abduct(rows, theta), theta)

    @torch.no_grad()
    def posterior(
        self, rows: Transitions, random: torch.Generator, theta: Float[Tensor, "_ t"] = NO_THETA
    ) -> Float[Tensor, "n mu"]:
        """One draw of the noise given each row (CF-PE, Remark 4); equals `abduct` where the posterior is a point."""
        self._check(rows)
        context, (state, next_state) = self._stack(
            rows.state, rows.action, theta.expand(len(rows), -1), rows.next_state
        )
        return _flat(self.mechanism.posterior(context, state, next_state, random))

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n mu"]:
        """Fresh noise that knows nothing of any row; the same draw for every ensemble member."""
        return self.mechanism.prior(count, random).repeat(1, self.mechanism.members)

    def sample(
        self,
        state: Float[Tensor, "n s"],
        action: Float[Tensor, "n a"],
        random: torch.Generator,
        theta: Float[Tensor, "_ t"] = NO_THETA,
    ) -> Float[Tensor, "n s"]:
        """A next state with fresh noise: simulation, not a counterfactual."""
        return self.predict(state, action, self.prior(len(state), random), theta)

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n a"], random: torch.Generator
    ) -> tuple[Float[Tensor, "n s"], Float[Tensor, "n mu"]]:
        """Next states for imagined rows, and the noise that made them: the counterfactual, which needs no luck."""
        noise = self.abduct(rows)
        return self.predict(rows.state, action, noise), noise

    @property
    def device(self) -> torch.device:
        return next(self.mechanism.parameters()).device

    def save(self, folder: Path | str) -> None:
        """Write weights and recipe into `folder`; `counterpoint.load` brings the same predictions back, bit for bit."""
        artifacts.save(folder, self.mechanism.state_dict(), self.header())

    def header(self) -> dict[str, Any]:
        """All that is needed to rebuild the model around its weights."""
        return {
            "kind": "scm",
            "recipe": artifacts.encode(self.recipe),
            "actions": artifacts.encode(self.actions),
            "state_names": list(self.state_names),
            "context": self.mechanism.context_width,
            "members": self.mechanism.members,
            "origin": artifacts.encode(self.origin),
        }

    def _check(self, rows: Transitions) -> None:
        check_actions(self.actions, rows.action)
        if not bool(rows.has_next.all()):
            missing = int((~rows.has_next).nonzero()[0])
            raise CounterpointError(f"row {missing} has no next state to abduct from; pass rows.with_next()")

    def _by_chunks(self, function: Any, *columns: Tensor) -> Tensor:
        """Rows in pieces, each brought to the model's device and the answer back to the rows'."""
        home, there = columns[0].device, self.device
        pieces = zip(*(column.split(CHUNK) for column in columns), strict=True)
        answers = [function(*(column.to(there) for column in piece)).to(home) for piece in pieces]
        return torch.cat(answers)

    def _abduct(self, state: Tensor, action: Tensor, next_state: Tensor, theta: Tensor) -> Tensor:
        context, (state, next_state) = self._stack(state, action, theta, next_state)
        return _flat(self.mechanism.abduct(context, state, next_state))

    def _predict(self, state: Tensor, action: Tensor, noise: Tensor, theta: Tensor) -> Tensor:
        context, (state,) = self._stack(state, action, theta)
        stacked = noise.view(len(noise), self.mechanism.members, -1).transpose(0, 1)
        return self.mechanism.combine(self.mechanism.predict(context, state, stacked))

    def _stack(self, state: Tensor, action: Tensor, theta: Tensor, *more: Tensor) -> tuple[Tensor, list[Tensor]]:
        members = self.mechanism.members
        context = torch.cat([state, action, theta.to(state)], -1).expand(members, -1, -1)
        return context, [table.expand(members, -1, -1) for table in (state, *more)]


class SCMRecipe(ABC):
    """Hyperparameters with one verb. Subclasses are frozen dataclasses that say how many jobs are fitted at once."""

    def fit(
        self, data: Transitions, seed: int = 0, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> StructuralCausalModel:
        """Fit on one table."""
        return self.fit_many([Job(data, seed)], monitor, device)[0]

    @abstractmethod
    def fit_many(
        self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[StructuralCausalModel]:
        """Fit every job, all in one loop."""

    @abstractmethod
    def mechanism(self, state: int, context: int, members: int) -> Mechanism:
        """An unfitted mechanism of the right shape, for `members` members in all, to train or to load weights into."""

    def rebuild(
        self, header: dict[str, Any], weights: dict[str, Tensor], actions: ActionSpace, origin: Origin
    ) -> StructuralCausalModel:
        """The fitted model back from its artifact."""
        state_names = tuple(header["state_names"])
        context = header["context"]
        mechanism = self.mechanism(len(state_names), context, header["members"])
        mechanism.load_state_dict(weights)
        return StructuralCausalModel(self, mechanism, actions, state_names, origin)


def _flat(noise: Float[Tensor, "m n u"]) -> Float[Tensor, "n mu"]:
    return noise.transpose(0, 1).flatten(1)
