"""Practice: what the clinicians do in a state, as estimated from a log; and policies that always take one action.

    listed actions   π(a|s) = softmax_a(score_a(s))
    doses            p(s) = P(dose = 0 | s) = sigmoid(−given(s)),    q_τ(s) = quantile τ of the doses above 0
                     Q_τ(s) = 0 where τ ≤ p(s), else q at (τ − p(s)) / (1 − p(s))

Doses that are never 0, or also negative, have no p. Where all doses above 0 are positive, q is modelled on the log
scale. Every function of the state is a constant, a line, or a line and boosted trees.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Protocol, Self, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from counterpoint.core.artifacts import Saved
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.core.settings import checked
from counterpoint.data.jobs import Origin, spread_levels
from counterpoint.data.schema import Schema, agree
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.spaces import Box, Discrete, constant
from counterpoint.data.transitions import Transitions
from counterpoint.policies.base import Policy, saved_verdict
from counterpoint.simulation.rollout import Actor

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles of a dose."""
MEDIAN = QUANTILES.index(0.5)
MAX_DEVIATIONS = 5.0
"""Standard deviations at which columns are clipped, so that no line is extended far beyond the log."""
DOSE_TABLES = ("low", "high", "has_zeros", "logarithmic", "offset", "centre", "between", "within")
"""Tables with one number for each dose."""
AT_ONCE = 1024
"""States for which trees are evaluated at once: their comparisons fit into a cache."""


class AdditiveFunctions(nn.Module):
    """Functions of standardised columns, one an output: intercept + line + sum of trees.

    Trees are complete: `m` = 2^depth − 1 comparisons from the root down, level by level, and m + 1 leaves. A state goes
    to the right where its column is above the threshold.
    """

    intercept: Tensor
    slope: Tensor
    feature: Tensor
    threshold: Tensor
    leaf: Tensor

    def __init__(
        self,
        intercept: Float[Tensor, " o"],
        slope: Float[Tensor, "o w"],
        feature: Int[Tensor, "o t m"],
        threshold: Float[Tensor, "o t m"],
        leaf: Float[Tensor, "o t l"],
    ) -> None:
        super().__init__()
        tables = {"intercept": intercept, "slope": slope, "feature": feature, "threshold": threshold, "leaf": leaf}
        for name, table in tables.items():
            self.register_buffer(name, table)
        self.has_trees = leaf.flatten(1).any(1).tolist() if leaf.numel() else [False] * len(intercept)

    def forward(self, z: Float[Tensor, "n w"], outputs: slice = slice(None)) -> Float[Tensor, "n o"]:
        values = z @ self.slope[outputs].T + self.intercept[outputs]
        chosen = range(len(self.has_trees))[outputs]
        if not any(self.has_trees[output] for output in chosen):
            return values
        trees = [self._trees(z, output) for output in chosen]
        return values + torch.stack(trees, 1)

    def _trees(self, z: Float[Tensor, "n w"], output: int) -> Float[Tensor, " n"]:
        """Sum of one output's trees. All comparisons are made, and the leaves drop out in pairs, level by level."""
        if not self.has_trees[output]:
            return torch.zeros_like(z[:, 0])
        feature, threshold, leaf = self.feature[output], self.threshold[output], self.leaf[output]
        parts = []
        for block in z.split(AT_ONCE):
            right = block.T[feature] > threshold[..., None]
            value = leaf[..., None]
            while value.shape[1] > 1:
                first = value.shape[1] // 2 - 1
                value = torch.where(right[:, first : 2 * first + 1], value[:, 1::2], value[:, 0::2])
            parts.append(value.sum((0, 1)))
        return torch.cat(parts)


class StandardisedColumns(nn.Module):
    """The inputs of all functions: states with one-hot categories, standardised and clipped."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Float[Tensor, " w"], scale: Float[Tensor, " w"]) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def forward(self, spread: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
        return ((spread - self.mean) / self.scale).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)


class ActionPractice(nn.Module):
    """Probabilities of listed actions given the state."""

    observed: Tensor

    def __init__(self, columns: StandardisedColumns, score: AdditiveFunctions, observed: Bool[Tensor, " a"]) -> None:
        """`observed` marks the actions that the log has; others have probability 0."""
        super().__init__()
        self.columns, self.score = columns, score
        self.register_buffer("observed", observed)

    def probabilities(self, spread: Float[Tensor, "n w"]) -> Float[Tensor, "n a"]:
        scores = self.score(self.columns(spread))
        return scores.masked_fill(~self.observed, -torch.inf).softmax(-1)


class DosePractice(nn.Module):
    """Quantiles of continuous doses given the state."""

    low: Tensor
    high: Tensor
    has_zeros: Tensor
    logarithmic: Tensor
    offset: Tensor
    centre: Tensor
    between: Tensor
    within: Tensor

    def __init__(
        self,
        columns: StandardisedColumns,
        given: AdditiveFunctions,
        quantile: AdditiveFunctions,
        tables: dict[str, Tensor],
    ) -> None:
        """Build from the functions and from one number for each dose.

        Args:
            columns: The inputs of the functions.
            given: Log odds that a dose is above 0, one output for each dose.
            quantile: Quantiles of the doses above 0, one output for each dose and level.
            tables: `low` and `high`, the logged range; `has_zeros`, whether 0 has a probability; `logarithmic`, whether
                quantiles are those of the log dose; `offset`, what the subject's quantiles are above the population's;
                `centre`, `between` and `within`, the mean of the subjects' offsets, their variance, and that of a row's
                deviation from its subject's.
        """
        super().__init__()
        self.columns, self.given, self.quantile = columns, given, quantile
        for name in DOSE_TABLES:
            self.register_buffer(name, tables[name])
        self.any_zeros = bool(tables["has_zeros"].any())

    def curve(self, z: Float[Tensor, "n w"], levels: int = len(QUANTILES)) -> Float[Tensor, "n a q"]:
        """The lowest `levels` quantiles of the doses above 0 on the scale of the model, moved apart where they cross.

        The median stays where it is, so that it is the same with and without the levels above it.
        """
        raw = torch.stack([self.quantile(z, slice(level, None, len(QUANTILES))) for level in range(levels)], -1)
        below = raw[..., : MEDIAN + 1].flip(-1).cummin(-1).values.flip(-1)
        above = raw[..., MEDIAN:].cummax(-1).values
        return torch.cat([below, above[..., 1:]], -1) + self.offset[:, None]

    def middle(self, z: Float[Tensor, "n w"]) -> Float[Tensor, "n a"]:
        """Medians of the doses above 0 on the scale of the model."""
        return self.quantile(z, slice(MEDIAN, None, len(QUANTILES))) + self.offset

    def at(self, spread: Float[Tensor, "n w"], level: Float[Tensor, "n a"]) -> Float[Tensor, "n a"]:
        """Quantile of each dose at a level of its own."""
        z = self.columns(spread)
        return self._doses(self.curve(z), self._zero(z), level)

    def median(self, spread: Float[Tensor, "n w"]) -> Float[Tensor, "n a"]:
        """Median of each dose: one function where none is 0, else a lower quantile of the doses above 0."""
        z = self.columns(spread)
        if not self.any_zeros:
            return self._in_units(self.middle(z))
        zero = self._zero(z)
        return self._doses(self.curve(z, MEDIAN + 1), zero, torch.full_like(zero, QUANTILES[MEDIAN]))

    def quantiles(self, spread: Float[Tensor, "n w"]) -> Float[Tensor, "n a q"]:
        """Quantiles of each dose at all levels."""
        z = self.columns(spread)
        curve, zero = self.curve(z), self._zero(z)
        return torch.stack([self._doses(curve, zero, torch.full_like(zero, level)) for level in QUANTILES], -1)

    def _zero(self, z: Float[Tensor, "n w"]) -> Float[Tensor, "n a"]:
        """Probability that a dose is 0."""
        return torch.sigmoid(-self.given(z)) * self.has_zeros

    def _doses(
        self, curve: Float[Tensor, "n a q"], zero: Float[Tensor, "n a"], level: Float[Tensor, "n a"]
    ) -> Float[Tensor, "n a"]:
        rest = ((level - zero) / (1 - zero).clamp(min=1e-6)).clamp(0.0, 1.0)
        dose = self._in_units(interpolated(curve, rest))
        return torch.where(self.has_zeros & (level <= zero), 0.0, dose)

    def _in_units(self, value: Float[Tensor, "n a"]) -> Float[Tensor, "n a"]:
        dose = torch.where(self.logarithmic, value.exp(), value)
        return dose.clamp(self.low, self.high)

    def model_scale(self, dose: Float[Tensor, "n a"]) -> Float[Tensor, "n a"]:
        """Doses on the scale of the quantiles; those that are 0 beside a probability of 0 have no place there: NaN."""
        positive = torch.where(dose > 0, dose, torch.nan)
        value = torch.where(self.logarithmic, positive.log(), dose)
        return torch.where(self.has_zeros & (dose <= 0), torch.nan, value)


def interpolated(curve: Float[Tensor, "n a q"], level: Float[Tensor, "n a"]) -> Float[Tensor, "n a"]:
    """Linear interpolation between the lowest quantiles; the outer ones beyond them."""
    levels = constant(QUANTILES, curve.device).to(curve)[: curve.shape[-1]]
    right = torch.bucketize(level.contiguous(), levels).clamp(1, len(levels) - 1)
    start, end = levels[right - 1], levels[right]
    share = ((level - start) / (end - start)).clamp(0.0, 1.0)
    low = curve.gather(-1, (right - 1)[..., None])[..., 0]
    high = curve.gather(-1, right[..., None])[..., 0]
    return low + share * (high - low)


class PracticeRecipe(Protocol):
    """What a practice policy needs of its recipe."""

    @property
    def stochastic(self) -> bool:
        """Whether actions are drawn, instead of the median dose or the most probable action."""
        ...


@final
class PracticePolicy(Policy):
    """What the clinicians do in a state: the median dose or the most probable action, or a draw of either."""

    def __init__(
        self,
        recipe: PracticeRecipe,
        practice: ActionPractice | DosePractice,
        schema: Schema,
        origin: Origin,
        notes: tuple[str, ...] = (),
    ) -> None:
        """`notes` say what was chosen for every action column, and how good it is on held-out subjects."""
        super().__init__()
        self.recipe, self.practice, self.schema, self.origin, self.notes = recipe, practice, schema, origin, notes

    @property
    def stochastic(self) -> bool:
        """Whether actions are drawn."""
        return self.recipe.stochastic

    def drawn(self) -> Self:
        """The same policy with actions drawn as the clinicians' vary."""
        policy = copy(self)
        policy.recipe = replace(self.recipe, stochastic=True)  # pyright: ignore[reportArgumentType]
        return policy

    def weights(self) -> dict[str, Tensor]:
        return self.practice.state_dict()

    def extras(self) -> dict[str, Any]:
        return {**super().extras(), "notes": list(self.notes)}

    @torch.no_grad()
    def probabilities(self, state: State) -> Float[Tensor, "*n a"]:
        """Calibrated probability of every listed action in each state; those of `dose` do not exist."""
        if not isinstance(self.practice, ActionPractice):
            raise CounterpointError("doses are continuous and have no list of probabilities; ask for their quantiles")
        return self.practice.probabilities(self._spread(state)).unflatten(0, state.shape[:-1])

    @torch.no_grad()
    def dose(self, state: State) -> Action:
        """Median of each dose in each state."""
        return self._doses().median(self._spread(state)).unflatten(0, state.shape[:-1])

    def usual(self, state: State) -> Action:
        """The median dose or the most probable action in each state."""
        if isinstance(self.practice, DosePractice):
            return self.dose(state)
        return self.actions.features(self.probabilities(state).argmax(-1))

    @torch.no_grad()
    def quantiles(self, state: State) -> Float[Tensor, "*n a q"]:
        """Quantiles of each dose at the levels of `QUANTILES`, rising, within the logged range."""
        return self._doses().quantiles(self._spread(state)).unflatten(0, state.shape[:-1])

    @property
    def range(self) -> Float[Tensor, "2 a"]:
        """Smallest and largest logged dose of each action column."""
        return torch.stack([self._doses().low, self._doses().high])

    @checked
    def with_history(self, rows: Transitions) -> "PracticePolicy":
        """The policy for the one subject of a record.

        The doses of a subject who is treated with more or less than others in the same states are shifted by the best
        linear prediction of the subject's offset. Without an offset that pays (see `personal`), and for listed
        actions, it is the policy itself.
        """
        agree(self.schema, rows.schema, "policy", "history")
        subjects = len(rows.subject.unique())
        require(subjects <= 1, f"the history holds {subjects} subjects; give the rows of one")
        if not self.personal or not len(rows):
            return self
        policy = copy(self)
        policy._modules = dict(self._modules)
        practice = copy(self._doses())
        practice._buffers = {**practice._buffers, "offset": self.offsets(rows)[0]}
        policy.practice = practice
        return policy

    @property
    def personal(self) -> bool:
        """Whether subjects differ in how they are treated, beyond their states."""
        return isinstance(self.practice, DosePractice) and bool((self.practice.between > 0).any())

    @torch.no_grad()
    def offsets(self, rows: Transitions) -> Float[Tensor, "subjects a"]:
        """Offset of every subject with rows in a table, on the scale of the model: shrunk mean residual of its doses.

        b = τ²·n / (τ²·n + σ²) · (mean residual − its mean over subjects), with the variances τ² between subjects and
        σ² of one row.
        """
        practice = self._doses()
        subject = rows.subject.unique(return_inverse=True)[1]
        deviation = self.deviations(rows)
        counts = torch.zeros(int(subject.max()) + 1, deviation.shape[1]).to(deviation)
        sums = counts.clone().index_add_(0, subject, deviation.nan_to_num())
        counts.index_add_(0, subject, (~deviation.isnan()).to(deviation))
        shrinkage = practice.between * counts / (practice.between * counts + practice.within)
        return shrinkage * (sums / counts.clamp(min=1) - practice.centre)

    @torch.no_grad()
    def deviations(self, rows: Transitions) -> Float[Tensor, "n a"]:
        """Logged doses less the population's median, on the scale of the model; NaN for doses of 0 beside it."""
        practice = self._doses()
        middle = practice.middle(practice.columns(self._spread(rows.state))) - practice.offset
        return practice.model_scale(rows.action.to(middle)) - middle

    def explain(self) -> str:
        """How practice was estimated, in words."""
        return "\n".join(self.notes)

    def actor(self) -> Actor:
        return self.rollout_actor()

    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        policies = [self, *others]
        randoms = [generator(policy.origin.seed, "practice") for policy in policies]

        def act(state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
            parts = zip(policies, state, randoms, strict=True)
            return torch.stack([policy.decide(states, random) for policy, states, random in parts])

        return act

    def __call__(self, state: State, random: torch.Generator) -> Action:
        """Act as a behaviour policy of a simulator."""
        return self.decide(state.to(self.device), random).to(state)

    @torch.no_grad()
    def decide(self, state: Float[Tensor, "n s"], random: torch.Generator) -> Float[Tensor, "n a"]:
        """The actions in some states; `random` is used by a stochastic policy only."""
        if isinstance(self.practice, DosePractice):
            if not self.stochastic:
                return self.dose(state)
            level = torch.rand(len(state), self.schema.actions.width, generator=random).to(state)
            return self.practice.at(self._spread(state), level)
        probabilities = self.probabilities(state)
        index = probabilities.argmax(-1)
        if self.stochastic:
            uniform = torch.rand(len(state), 1, generator=random).to(state)
            above = (probabilities.cumsum(-1) <= uniform).sum(-1)
            index = torch.where(above < probabilities.shape[1], above, index)
        return self.actions.features(index)

    def _spread(self, state: State) -> Float[Tensor, "n w"]:
        return spread_levels(state.reshape(-1, state.shape[-1]), self.schema.categories)

    def _doses(self) -> DosePractice:
        if not isinstance(self.practice, DosePractice):
            raise CounterpointError("actions are a list and have no quantiles; ask for their probabilities")
        return self.practice


def saved_practice(recipe: PracticeRecipe, saved: Saved) -> PracticePolicy:
    """The policy back from its artifact."""
    weights = saved.weights
    columns = StandardisedColumns(weights["columns.mean"], weights["columns.scale"])
    if isinstance(saved.schema.actions, Discrete):
        practice = ActionPractice(columns, _functions(weights, "score"), weights["observed"])
    else:
        practice = DosePractice(columns, _functions(weights, "given"), _functions(weights, "quantile"), weights)
    policy = PracticePolicy(recipe, practice, saved.schema, saved.origin, tuple(saved.header["notes"]))
    policy.verdict = saved_verdict(saved)
    return policy


def _functions(weights: dict[str, Tensor], name: str) -> AdditiveFunctions:
    parts = ("intercept", "slope", "feature", "threshold", "leaf")
    return AdditiveFunctions(*(weights[f"{name}.{part}"] for part in parts))


@final
class ConstantPolicy(Policy):
    """One action in every state."""

    action: Tensor

    def __init__(self, recipe: Any, action: Float[Tensor, " a"], schema: Schema, origin: Origin) -> None:
        super().__init__()
        self.recipe, self.schema, self.origin = recipe, schema, origin
        self.register_buffer("action", action)

    def weights(self) -> dict[str, Tensor]:
        return {"action": self.action}

    def explain(self) -> str:
        """The action in words."""
        if isinstance(self.actions, Discrete):
            return f"always {self.schema.labels(units=True)[int(self.actions.index(self.action[None])[0])]}"
        doses = zip(self.schema.action_names, self.action.tolist(), strict=True)
        return f"always {', '.join(f'{name} {dose:.4g}' for name, dose in doses)}"

    def actor(self) -> Actor:
        return self.rollout_actor()

    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        actions = torch.stack([policy.action for policy in (self, *others)])[:, None]

        def act(state: Float[Tensor, "k n s"], theta: Theta) -> Float[Tensor, "k n a"]:
            return actions.expand(-1, state.shape[1], -1).clone()

        return act


NAMES_OF_NOTHING = ("none", "nothing", "no", "0", "off", "no treatment", "untreated")
"""Labels of a treatment that is none, in small letters."""


def no_treatment(schema: Schema) -> Float[Tensor, " a"] | None:
    """The action that gives nothing: dose 0, or the dose nearest to it, or a treatment named so; None without one.

    Of a list of amounts without 0 it is the lowest one.
    """
    actions = schema.actions
    if isinstance(actions, Box):
        return torch.zeros(actions.width).clamp(torch.tensor(actions.low), torch.tensor(actions.high))
    table = actions.table()
    nothing = (table == 0).all(1).nonzero()[:, 0]
    if len(nothing):
        return table[nothing[0]]
    if schema.doses:
        return _no_coded_treatment(schema)
    flags = (table.sum(1) == 1).all() & ((table == 0) | (table == 1)).all() & (actions.width > 1)
    return None if bool(flags) else table[table.sum(1).argmin()]


def _no_coded_treatment(schema: Schema) -> Float[Tensor, " a"] | None:
    """The same of columns that were coded when a table was read: every one at its lowest amount or at no treatment."""
    features: list[float] = []
    for column in schema.doses:
        named = [code for code, label in enumerate(column.labels) if label.strip().lower() in NAMES_OF_NOTHING]
        if column.labels and not column.ordered and not named:
            return None
        code = named[0] if named else 0
        features += column.features()[code]
    return torch.tensor(features)


def saved_constant(recipe: Any, saved: Saved) -> ConstantPolicy:
    """The policy back from its artifact."""
    policy = ConstantPolicy(recipe, saved.weights["action"], saved.schema, saved.origin)
    policy.verdict = saved_verdict(saved)
    return policy
