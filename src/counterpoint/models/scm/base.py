"""A structural causal model s' = f(s, a, θ, u): abduct the noise, change the action, predict (paper, section 2.2)."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import checked
from counterpoint.data.conversion import (
    convert_actions,
    convert_states,
)
from counterpoint.data.jobs import NO_THETA, context
from counterpoint.data.schema import Column, agree
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.spaces import check_actions
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Mechanism, Model, ModelRecipe


class StructuralMechanism(Mechanism):
    """f and its inverse for M ensemble members."""

    noise_width: int

    @property
    def normal_noise(self) -> int:
        """How many of the noise columns, the first ones, are standard normal."""
        return self.noise_width

    @property
    def noise_columns(self) -> list[int]:
        """The state column that each noise moves."""
        return list(range(self.noise_width))

    @abstractmethod
    def abduct(
        self, context: Float[Tensor, "m n c"], state: Float[Tensor, "m n s"], next_state: Float[Tensor, "m n s"]
    ) -> Float[Tensor, "m n u"]:
        """The noise of every member for what was seen."""

    def counterfactual(
        self,
        context: Float[Tensor, "m n c"],
        state: Float[Tensor, "m n s"],
        next_state: Float[Tensor, "m n s"],
        others: Sequence[Float[Tensor, "m n c"]],
    ) -> list[Float[Tensor, "m n s"]]:
        """Every member's next states in other contexts, given what was seen in its own."""
        noise = self.abduct(context, state, next_state)
        return [self.predict(other, state, noise) for other in others]

    def combine(self, predictions: Float[Tensor, "m n s"]) -> State:
        """What the ensemble says: the mean of its members."""
        return predictions.mean(0)

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """One draw a row; every member is given the same draw."""
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
class StructuralCausalModel(Model):
    """A fitted SCM. Noise is a table [n, M·u]: the M ensemble members' noises side by side, so that it can be stored.

    A counterfactual is the mean over members of each member's own abduction, action and prediction. It therefore
    returns the factual next state for the factual action wherever the members abduct exactly.
    """

    kind: ClassVar[str] = "scm"
    mechanism: StructuralMechanism

    @torch.no_grad()
    def abduct(self, rows: Transitions, theta: Theta = NO_THETA) -> Float[Tensor, "n mu"]:
        """Step 1: the noise that explains each row. Rows without a next state have none and are refused."""
        self._check(rows)
        factors = self._factors(theta, len(rows), rows)
        return self._by_chunks(self._abduct, rows.state, rows.action, rows.next_state, factors)

    def predict(self, state: Any, action: Any, noise: Any, theta: Theta = NO_THETA) -> Any:
        """Steps 2 and 3: the next state under an action, given the noise; states in any form, answered in kind."""
        asked, taken = self._asked(state, action)
        luck = convert_states(noise, self._noise_columns(), "noise").values
        require(len(luck) == len(taken), f"{len(luck)} rows of noise for {len(taken)} states; give one for each")
        return asked.restore(self._after(asked.values, taken, luck, theta), self.schema.states)

    def counterfactual(self, rows: Transitions, action: Any, theta: Theta = NO_THETA) -> Any:
        """What would have followed in each row, had `action` been taken: one for each row, or one for all of them.

        A tensor or an array of actions gives next states in kind, a DataFrame with the table's action columns likewise.
        """
        self._check(rows)
        asked = convert_actions(action, self.schema, len(rows))
        taken = asked.values.to(rows.state).expand(len(rows), -1)
        after = self._counterfactual(rows, taken[:, None], theta)[:, 0]
        return after if isinstance(action, str | int | float) else asked.restore(after, self.schema.states)

    @torch.no_grad()
    def _after(self, state: State, action: Action, noise: Float[Tensor, "n mu"], theta: Theta) -> State:
        """The next states of rows that are known to fit."""
        after = self._by_chunks(self._predict, state, action, noise, self._factors(theta, len(state)))
        return self._held(after, state, action)

    def _noise_columns(self) -> list[Column]:
        return [Column(f"noise_{i}") for i in range(self.mechanism.members * self.mechanism.noise_width)]

    @torch.no_grad()
    def posterior(self, rows: Transitions, random: torch.Generator, theta: Theta = NO_THETA) -> Float[Tensor, "n mu"]:
        """One draw of the noise given each row (CF-PE, Remark 4); equals `abduct` where the posterior is a point."""
        self._check(rows)
        factors = self._factors(theta, len(rows), rows)

        def drawn(state: Tensor, action: Tensor, next_state: Tensor, theta: Tensor) -> Tensor:
            told, (before, after) = self._stack(state, action, theta, next_state)
            return _flat(self.mechanism.posterior(told, before, after, random))

        return self._by_chunks(drawn, rows.state, rows.action, rows.next_state, factors)

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n mu"]:
        """Fresh noise that knows nothing of any row; the same draw for every ensemble member."""
        return self.mechanism.prior(count, random).repeat(1, self.mechanism.members)

    @checked
    def sample(self, state: Any, action: Any, random: torch.Generator, theta: Theta = NO_THETA) -> Any:
        """A next state with fresh noise: simulation, not a counterfactual; states in any form, answered in kind."""
        asked, taken = self._asked(state, action)
        drawn = self.prior(len(taken), random).to(asked.values)
        return asked.restore(self._after(asked.values, taken, drawn, theta), self.schema.states)

    def imagine(
        self,
        rows: Transitions,
        action: Float[Tensor, "n m a"],
        random: torch.Generator,
        theta: Theta = NO_THETA,
    ) -> Float[Tensor, "n m s"]:
        """Next states under several other actions for each row: counterfactuals, which need no luck."""
        self._check(rows)
        check_actions(self.actions, action.flatten(0, 1))
        return self._counterfactual(rows, action, theta)

    @torch.no_grad()
    def _counterfactual(self, rows: Transitions, action: Float[Tensor, "n m a"], theta: Theta) -> Tensor:
        """What rows that are known to fit would have led to."""
        factors = self._factors(theta, len(rows), rows)
        told = rows.state, rows.action, rows.next_state, action, factors
        after = self._by_chunks(self._counterfactual_piece, *told)
        return self._held(after, rows.state[:, None].expand(*after.shape), action)

    def _counterfactual_piece(
        self, state: Tensor, action: Tensor, next_state: Tensor, others: Tensor, theta: Tensor
    ) -> Float[Tensor, "n m s"]:
        told, (before, after) = self._stack(state, action, theta, next_state)
        contexts = [self._stack(state, other, theta)[0] for other in others.unbind(1)]
        answers = self.mechanism.counterfactual(told, before, after, contexts)
        return torch.stack([self.mechanism.combine(each) for each in answers], 1)

    def member_predictions(
        self,
        state: State,
        action: Action,
        noise: Float[Tensor, "m n u"],
        theta: Theta = NO_THETA,
    ) -> Float[Tensor, "m n s"]:
        """Every member's next state under its own noise, before they are combined; gradients flow."""
        told, (before,) = self._stack(state, action, theta)
        after, known = self.mechanism.predict(told, before, noise), self.schema.knowledge
        taken = action.expand(*before.shape[:-1], -1)
        return known.carry(after, before, taken, self.state_names, self.schema.action_names)

    def _check(self, rows: Transitions) -> None:
        require(isinstance(rows, Transitions), f"rows are a {type(rows).__name__}; load them with from_dataframe")
        agree(self.schema, rows.schema)
        check_actions(self.actions, rows.action)
        if not bool(rows.has_next.all()):
            missing = int((~rows.has_next).nonzero()[0])
            raise CounterpointError(f"row {missing} has no next state to abduct from; pass rows.with_next()")

    def _abduct(self, state: Tensor, action: Tensor, next_state: Tensor, theta: Tensor) -> Tensor:
        told, (state, next_state) = self._stack(state, action, theta, next_state)
        return _flat(self.mechanism.abduct(told, state, next_state))

    def _predict(self, state: Tensor, action: Tensor, noise: Tensor, theta: Tensor) -> Tensor:
        stacked = noise.view(len(noise), self.mechanism.members, self.mechanism.noise_width).transpose(0, 1)
        return self.mechanism.combine(self.member_predictions(state, action, stacked, theta))

    def _stack(self, state: Tensor, action: Tensor, theta: Tensor, *more: Tensor) -> tuple[Tensor, list[Tensor]]:
        members = self.mechanism.members
        told = context(state, action, theta=theta).expand(members, -1, -1)
        return told, [table.expand(members, -1, -1) for table in (state, *more)]


class SCMRecipe(ModelRecipe):
    """A recipe whose fitted model abducts."""

    fitted: ClassVar[type[Model]] = StructuralCausalModel

    @abstractmethod
    def build(self, state: int, context: int, members: int) -> Any: ...


def _flat(noise: Float[Tensor, "m n u"]) -> Float[Tensor, "n mu"]:
    return noise.transpose(0, 1).flatten(1)


def spread(change: State) -> Float[Tensor, " s"]:
    """Standard deviation of each column; infinite where it never changes, so that it counts for nothing."""
    deviation = change.std(0)
    return torch.where(deviation > 0, deviation, torch.inf)
