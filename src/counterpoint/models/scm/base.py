"""A structural causal model s' = f(s, a, θ, u): abduct the noise, change the action, predict (paper, section 2.2)."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, final, overload

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import checked
from counterpoint.data.conversion import convert_actions, convert_states
from counterpoint.data.jobs import NO_THETA, Job, context
from counterpoint.data.schema import Column, agree
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.spaces import check_actions, places
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Mechanism, MechanismRecipe, Model, SubjectMechanism, Values
from counterpoint.models.logged_doses import LoggedDoses
from counterpoint.models.scm.intervals import CounterfactualInterval, check_members, half_width


class StructuralMechanism(Mechanism):
    """f and its inverse in the noise, for M ensemble members."""

    noise_width: int

    @property
    def normal_noise(self) -> int:
        """How many of the noise columns, the first ones, are standard normal."""
        return self.noise_width

    @property
    def equation_noise(self) -> int:
        """How many of the noise columns, the first ones, belong to columns that actions can change; the others move
        exogenous columns, which counterfactuals leave as they were."""
        return self.noise_width

    @property
    def noise_columns(self) -> list[int]:
        """The state column that each noise column belongs to."""
        return list(range(self.noise_width))

    @abstractmethod
    def abduct(
        self, context: Float[Tensor, "m n c"], state: Float[Tensor, "m n s"], next_state: Float[Tensor, "m n s"]
    ) -> Float[Tensor, "m n u"]:
        """Every member's noise for the observed transitions."""

    def counterfactual(
        self,
        context: Float[Tensor, "m n c"],
        state: Float[Tensor, "m n s"],
        next_state: Float[Tensor, "m n s"],
        others: Sequence[Float[Tensor, "m n c"]],
    ) -> list[Float[Tensor, "m n s"]]:
        """Every member's next states in the contexts `others`, given the observed transitions."""
        noise = self.abduct(context, state, next_state)
        return [self.predict(other, state, noise) for other in others]

    def combine(self, predictions: Float[Tensor, "m n s"]) -> State:
        """The ensemble's prediction: the mean of its members."""
        return predictions.mean(0)

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n u"]:
        """One draw a row, which every member shares."""
        return torch.randn(count, self.noise_width, generator=random, device=random.device)

    def posterior(
        self,
        context: Float[Tensor, "m n c"],
        state: Float[Tensor, "m n s"],
        next_state: Float[Tensor, "m n s"],
        random: torch.Generator,
    ) -> Float[Tensor, "m n u"]:
        """A draw of the noise given the transitions (Remark 4); `abduct` where the posterior is a point."""
        return self.abduct(context, state, next_state)


@final
class StructuralCausalModel(Model):
    """A fitted SCM. A noise table [n, M·u] holds the noises of the M ensemble members side by side.

    A counterfactual is the mean over members of each member's own abduction, action and prediction. It therefore
    returns the factual next state for the factual action wherever the members abduct exactly.
    """

    kind: ClassVar[str] = "scm"
    mechanism: StructuralMechanism

    @torch.no_grad()
    def abduct(self, rows: Transitions, theta: Theta = NO_THETA) -> Float[Tensor, "n mu"]:
        """Step 1: the noise that explains each row. Rows without a next state are refused."""
        self._check(rows)
        factors = self._factors(theta, len(rows), rows)

        def noise_of(state: Tensor, action: Tensor, next_state: Tensor, theta: Tensor) -> Tensor:
            return _flat(self.mechanism.abduct(*self._transition(state, action, theta, next_state)))

        return self._by_chunks(noise_of, rows.state, rows.action, rows.next_state, factors)

    @overload
    def predict(self, state: Values, action: object, noise: object, theta: Theta = NO_THETA) -> Values: ...
    @overload
    def predict(
        self, state: Values, action: object, noise: object, theta: Theta = NO_THETA, *, level: float
    ) -> CounterfactualInterval[Values]: ...
    def predict(
        self, state: Values, action: object, noise: object, theta: Theta = NO_THETA, level: float | None = None
    ) -> Values | CounterfactualInterval[Values]:
        """Steps 2 and 3: the next state under an action, given the noise.

        Args:
            state: States as a tensor, an array, a list or a DataFrame; the result has the same type.
            action: One action for all rows, or one for each row.
            noise: A noise table, as `abduct` and `prior` return it.
            theta: Subject factors, where the model has any.
            level: For an interval beside every value: the share of next states that it is to hold, if the noise is
                known. The effect of the action is measured against that of the usual dose in the state.
        """
        query, actions = self._query(state, action)
        values = convert_states(noise, self._noise_columns(), "noise").values
        require(len(values) == len(actions), f"{len(values)} rows of noise for {len(actions)} states; give one a state")
        after = self._next_state(query.values, actions, values, theta)
        if level is None:
            return query.restore(after, self.schema.states)
        check_members(self.mechanism.members, level)
        usual = self._doses().usual(query.values.to(self.device), self.actions, self.schema.categories).to(values)
        reference = self._next_state(query.values, usual, values, theta)
        factors = self._factors(theta, len(values))
        columns = query.values, actions, values, factors
        half = self._half_width(self._of_noise_table, level, query.values, actions, after - reference, *columns)
        low, high = self.interval_ends(after, half)
        return CounterfactualInterval(*(query.restore(x, self.schema.states) for x in (after, low, high)))

    @overload
    def counterfactual(self, rows: Transitions, action: str | float, theta: Theta = NO_THETA) -> Tensor: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def counterfactual(self, rows: Transitions, action: Values, theta: Theta = NO_THETA) -> Values: ...
    @overload
    def counterfactual(  # pyright: ignore[reportOverlappingOverload]
        self, rows: Transitions, action: str | float, theta: Theta = NO_THETA, *, level: float
    ) -> CounterfactualInterval[Tensor]: ...
    @overload
    def counterfactual(
        self, rows: Transitions, action: Values, theta: Theta = NO_THETA, *, level: float
    ) -> CounterfactualInterval[Values]: ...
    def counterfactual(
        self, rows: Transitions, action: object, theta: Theta = NO_THETA, level: float | None = None
    ) -> object:
        """What the next state of each row would have been under `action`.

        Args:
            rows: Observed transitions, each with a next state.
            action: One action for each row, or one for all. The result has its type: a tensor, an array, or a DataFrame
                of the table's columns; a label or a number gives a tensor.
            theta: Subject factors; inferred from `rows` where they are left out.
            level: For a `CounterfactualInterval` in place of the values: the share of counterfactuals that the
                intervals are to hold, as 0.9. Its docstring says what they leave out.
        """
        self._check(rows)
        query = convert_actions(action, self.schema, len(rows))
        actions = query.values.to(rows.state).expand(len(rows), -1)
        drawn = theta
        if level is not None:
            check_members(self.mechanism.members, level)
            theta, drawn = self.interval_factors(rows, theta)
        after = self._counterfactual(rows, actions[:, None], theta)[:, 0]

        def restored(values: Tensor) -> object:
            return values if isinstance(action, str | int | float) else query.restore(values, self.schema.states)

        if level is None:
            return restored(after)
        low, high = self.interval_ends(after, self._counterfactual_half_width(rows, actions, after, level, drawn))
        return CounterfactualInterval(restored(after), restored(low), restored(high))

    @torch.no_grad()
    def _counterfactual_half_width(
        self, rows: Transitions, action: Float[Tensor, "n a"], after: State, level: float, theta: Tensor
    ) -> Float[Tensor, "n s"]:
        """Half the width of the interval of each row's counterfactual, which is `after`."""

        def predictions(
            state: Tensor, action: Tensor, next_state: Tensor, other: Tensor, theta: Tensor
        ) -> Float[Tensor, "m n s"]:
            transition = self._transition(state, action, theta, next_state)
            return self.mechanism.counterfactual(*transition, [self._context(state, other, theta)])[0]

        columns = rows.state, rows.action, rows.next_state, action, theta
        half = self._half_width(predictions, level, rows.state, action, after - rows.next_state, *columns)
        half[:, list(self.schema.unpredicted)] = 0.0  # Known without the model: static, computed or exogenous.
        return half

    def interval_factors(self, rows: Transitions, theta: Theta = NO_THETA) -> tuple[Tensor, Tensor]:
        """The factors of the rows' subjects for a value, [n, t], and for its interval.

        Those for the interval are a draw of each member's own posterior, [n, m, t], or the factors that were given.
        """
        if theta.shape[1] or not self.theta_width:
            given = self._factors(theta, len(rows), rows)
            return given, given
        assert isinstance(self.mechanism, SubjectMechanism)
        factors, subject = self.mechanism.member_factors(rows), rows.subject.cpu()
        drawn = factors.draw(generator(0, "interval"))[:, subject].transpose(0, 1)
        return factors.mean.mean(0)[subject].to(rows.state), drawn.to(rows.state)

    def _doses(self) -> LoggedDoses:
        if self.logged_doses is None:
            raise CounterpointError(
                "the model does not say which doses its log has, which intervals need; fit it again, or leave out level"
            )
        return self.logged_doses

    def dose_distance(self, state: State, action: Action) -> Float[Tensor, " n"]:
        """Distance of each action from those logged in such states, in standard deviations beyond the usual range."""
        device = self.device
        return self._doses().distance(state.to(device), action.to(device), self.schema.categories).to(state)

    @torch.no_grad()
    def _half_width(
        self, predictions: Callable[..., Float[Tensor, "m n s"]], level: float, state: State, action: Action,
        effect: State, *columns: Tensor,
    ) -> Float[Tensor, "n s"]:  # fmt: skip
        """Half-widths from members' predictions of `columns`, block by block."""
        distance = self.dose_distance(state, action)

        def half_of(effect: Tensor, distance: Tensor, *parts: Tensor) -> Tensor:
            return half_width(predictions(*parts), effect, distance[:, 0], level)

        return self._by_chunks(half_of, effect, distance[:, None], *columns)

    def interval_ends(self, value: State, half: State) -> tuple[State, State]:
        """Both ends of the intervals, within the declared bounds."""
        bounds = {name: (low, high) for name, low, high in self.schema.knowledge.bounds}
        low, high = zip(*(bounds.get(name, (-torch.inf, torch.inf)) for name in self.state_names), strict=True)
        least, most = value.new_tensor(low), value.new_tensor(high)
        return (value - half).clamp(least, most), (value + half).clamp(least, most)

    @torch.no_grad()
    def _next_state(self, state: State, action: Action, noise: Float[Tensor, "n mu"], theta: Theta) -> State:
        factors = self._factors(theta, len(state))
        return self.schema.held(self._by_chunks(self._predict, state, action, noise, factors), state, action)

    def _noise_columns(self) -> list[Column]:
        return [Column(f"noise_{i}") for i in range(self.mechanism.members * self.mechanism.noise_width)]

    @torch.no_grad()
    def posterior(self, rows: Transitions, random: torch.Generator, theta: Theta = NO_THETA) -> Float[Tensor, "n mu"]:
        """One draw of the noise given each row (CF-PE, Remark 4); equals `abduct` where the posterior is a point."""
        self._check(rows)
        factors = self._factors(theta, len(rows), rows)

        def noise_of(state: Tensor, action: Tensor, next_state: Tensor, theta: Tensor) -> Tensor:
            return _flat(self.mechanism.posterior(*self._transition(state, action, theta, next_state), random))

        return self._by_chunks(noise_of, rows.state, rows.action, rows.next_state, factors)

    def prior(self, count: int, random: torch.Generator) -> Float[Tensor, "n mu"]:
        """Draw fresh noise of `count` rows; all ensemble members share a row's draw."""
        return self.mechanism.prior(count, random).repeat(1, self.mechanism.members)

    @checked
    def sample(self, state: Values, action: object, random: torch.Generator, theta: Theta = NO_THETA) -> Values:
        query, actions = self._query(state, action)
        noise = self.prior(len(actions), random).to(query.values)
        return query.restore(self._next_state(query.values, actions, noise, theta), self.schema.states)

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n m a"], random: torch.Generator, theta: Theta = NO_THETA
    ) -> Float[Tensor, "n m s"]:
        """Counterfactual next states of each row under m alternative actions; `random` is not used."""
        self._check(rows)
        check_actions(self.actions, action.flatten(0, 1))
        return self._counterfactual(rows, action, theta)

    @torch.no_grad()
    def _counterfactual(self, rows: Transitions, action: Float[Tensor, "n m a"], theta: Theta) -> Tensor:
        factors = self._factors(theta, len(rows), rows)

        def next_states(state: Tensor, action: Tensor, next_state: Tensor, others: Tensor, theta: Tensor) -> Tensor:
            contexts = [self._context(state, other, theta) for other in others.unbind(1)]
            transition = self._transition(state, action, theta, next_state)
            predictions = self.mechanism.counterfactual(*transition, contexts)
            return torch.stack([self.mechanism.combine(members) for members in predictions], 1)

        after = self._by_chunks(next_states, rows.state, rows.action, rows.next_state, action, factors)
        if self.schema.exogenous:  # No action changes them, so they are as they were.
            columns = places(self.schema.exogenous, after.device)
            after[..., columns] = rows.next_state[:, None, columns]
        return self.schema.held(after, rows.state[:, None].expand(*after.shape), action)

    def member_predictions(
        self, state: State, action: Action, noise: Float[Tensor, "m n u"], theta: Theta = NO_THETA
    ) -> Float[Tensor, "m n s"]:
        """Every member's next state under its own noise, not combined and differentiable."""
        before = state.expand(self.mechanism.members, -1, -1)
        after = self.mechanism.predict(self._context(state, action, theta), before, noise)
        actions = action.expand(*before.shape[:-1], -1)
        return self.schema.knowledge.carry(after, before, actions, self.state_names, self.schema.action_names)

    def _check(self, rows: Transitions) -> None:
        require(isinstance(rows, Transitions), f"rows are a {type(rows).__name__}; load them with from_dataframe")
        agree(self.schema, rows.schema)
        check_actions(self.actions, rows.action)
        if not bool(rows.has_next.all()):
            missing = int((~rows.has_next).nonzero()[0])
            raise CounterpointError(f"row {missing} has no next state to abduct from; pass rows.with_next()")

    def _predict(self, state: Tensor, action: Tensor, noise: Tensor, theta: Tensor) -> Tensor:
        return self.mechanism.combine(self._of_noise_table(state, action, noise, theta))

    def _of_noise_table(self, state: Tensor, action: Tensor, noise: Tensor, theta: Tensor) -> Float[Tensor, "m n s"]:
        """Every member's next state under its own columns of a noise table."""
        stacked = noise.view(len(noise), self.mechanism.members, self.mechanism.noise_width).transpose(0, 1)
        return self.member_predictions(state, action, stacked, theta)

    def _context(self, state: Tensor, action: Tensor, theta: Tensor) -> Float[Tensor, "m n c"]:
        """The context of every member; a theta of three dimensions, [n, m, t], has a factor for each."""
        members = self.mechanism.members
        if theta.ndim == 2:
            return context(state, action, theta=theta).expand(members, -1, -1)
        return context(*(table.expand(members, -1, -1) for table in (state, action)), theta=theta.transpose(0, 1))

    def _transition(
        self, state: Tensor, action: Tensor, theta: Tensor, next_state: Tensor
    ) -> tuple[Float[Tensor, "m n c"], Float[Tensor, "m n s"], Float[Tensor, "m n s"]]:
        """Context, state and next state, once for every member."""
        before, after = (table.expand(self.mechanism.members, -1, -1) for table in (state, next_state))
        return self._context(state, action, theta), before, after


class SCMRecipe(MechanismRecipe[StructuralCausalModel]):
    """A recipe whose mechanism abducts, so that its fitted model is a `StructuralCausalModel`."""

    fitted: ClassVar[type] = StructuralCausalModel

    @abstractmethod
    def build(self, state: int, context: int, members: int) -> StructuralMechanism: ...

    def model(self, mechanism: Mechanism, job: Job) -> StructuralCausalModel:
        fitted = super().model(mechanism, job)
        fitted.logged_doses = LoggedDoses.of(job.data).to(fitted.device)
        return fitted


def _flat(noise: Float[Tensor, "m n u"]) -> Float[Tensor, "n mu"]:
    return noise.transpose(0, 1).flatten(1)


def spread(change: State) -> Float[Tensor, " s"]:
    """Standard deviation of each column; infinite where a column is constant, so that dividing by it gives 0."""
    deviation = change.std(0)
    return torch.where(deviation > 0, deviation, torch.inf)
