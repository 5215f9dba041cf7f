"""Declared facts about state columns: they hold in every imagined row, and models may use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import Finite, check_settings
from counterpoint.data.reward_expression import NEXT, parse_reward
from counterpoint.data.spaces import ActionSpace, constant

ON_CIRCLE = 1e-2
"""Tolerance for logged cosines and sines, because tables are rounded."""
ROUNDED = 1e-4
"""Relative tolerance for other logged numbers."""
ROUNDED_CHANGE = 0.05
"""Tolerance for logged values of a recursion, in standard deviations of the column's change."""


@dataclass(frozen=True)
class Recursion:
    """A state column whose next value is a known linear function: column' = Σ weight·source + constant."""

    column: str
    weights: tuple[tuple[str, Finite], ...]
    """(source, weight). A source is a state column, an action column, or "next NAME": the next value of the exogenous
    column NAME."""
    constant: Finite = 0.0

    def __post_init__(self) -> None:
        check_settings(self)
        sources = [source for source, _ in self.weights]
        twice = [source for source in sources if sources.count(source) > 1]
        require(not twice, f"the recursion of '{self.column}' names '{(twice or [''])[0]}' twice; add the weights up")


@dataclass(frozen=True)
class Knowledge:
    """Facts about columns, by name."""

    bounds: tuple[tuple[str, Finite, Finite], ...] = ()
    """(column, lowest, highest)."""
    whole: tuple[str, ...] = ()
    """Columns that hold whole numbers."""
    circles: tuple[tuple[str, str], ...] = ()
    """Pairs of columns that are the cosine and the sine of one angle."""
    mirror: tuple[str, ...] = ()
    """State and action columns of a mirror symmetry of the dynamics: these state columns change their sign, these
    action columns are reflected at the middle of the action space."""
    carried: tuple[tuple[str, str], ...] = ()
    """(column, source): a state column that holds the value of a state or action column one step before."""
    computed: tuple[str, ...] = ()
    """State columns that are functions of the other columns and of their previous values: scores, ratios, sums. The
    function is learned, so that imagined scores agree with the imagined values that they are computed from."""
    reward_range: tuple[Finite, Finite] | None = None
    """Smallest and largest reward that a step can have; None where it is not declared."""
    exogenous: tuple[str, ...] = ()
    """State columns that no action changes: an announced meal, the ward's census."""
    recursions: tuple[Recursion, ...] = ()
    """State columns whose next value is computed from known columns: a dose on board, a clock, a count of steps."""
    signs: tuple[tuple[str, str, int], ...] = ()
    """(action column, state column, +1 or −1): more of this action never lowers (+1), or never raises (−1), the
    column."""
    per: tuple[tuple[str, str], ...] = ()
    """(action column, state column): effects of the action act through action / column; the column is static and
    positive, as a weight."""
    reward: str = ""
    """The reward as an expression of state and action columns, their next values and outcomes (`reward_expression.py`);
    empty where it is learned from the logged rewards."""

    def __post_init__(self) -> None:
        check_settings(self)
        for name, low, high in self.bounds:
            require(low < high, f"the bounds of '{name}' are {low} and {high}; give the lower one first")
        if self.reward_range is not None:
            check_range(self.reward_range)
        if self.reward:
            parse_reward(self.reward)
        for action, column, sign in self.signs:
            require(sign in (1, -1), f"the sign of '{action}' on '{column}' is {sign}; give +1 or -1")

    @property
    def held(self) -> tuple[str, ...]:
        """State columns with declared values."""
        pairs = (name for pair in self.circles for name in pair)
        return (*(name for name, _, _ in self.bounds), *self.whole, *pairs)

    @property
    def carried_columns(self) -> tuple[str, ...]:
        """State columns that are copies of an earlier column."""
        return tuple(column for column, _ in self.carried)

    @property
    def recursion_columns(self) -> tuple[str, ...]:
        """State columns that follow a recursion."""
        return tuple(recursion.column for recursion in self.recursions)

    def check_names(self, states: Sequence[str], actions: Sequence[str]) -> None:
        """Refuse names that are not columns, and contradictions."""
        for name in self.held:
            require(name in states, f"'{name}' is declared and is not a state column; name one of the state")
        for column, source in self.carried:
            require(column in states, f"'{column}' is declared as carried and is not a state column; name one")
            count = (*states, *actions).count(source)
            require(count > 0, f"'{column}' is carried from '{source}', which is not a column; name one")
            require(count == 1, f"'{column}' is carried from '{source}', a state and an action column; rename one")
        twice = [name for name in self.carried_columns if self.carried_columns.count(name) > 1]
        require(not twice, f"'{(twice or [''])[0]}' is carried from two columns; name one")
        for name in self.computed:
            require(name in states, f"'{name}' is declared as computed and is not a state column; name one")
            require(name not in self.carried_columns, f"'{name}' is both carried and computed; declare one of them")
        for name in self.mirror:
            require(
                name in (*states, *actions), f"mirror names '{name}', which is not a column; name a state or action"
            )
        self._check_exogenous(states)
        for recursion in self.recursions:
            self._check_recursion(recursion, states, actions)
        self._check_effects(states, actions)

    def _check_exogenous(self, states: Sequence[str]) -> None:
        others = {"carried": self.carried_columns, "a recursion": self.recursion_columns, "computed": self.computed}
        for name in self.exogenous:
            require(name in states, f"'{name}' is declared as exogenous and is not a state column; name one")
            for role, columns in others.items():
                require(name not in columns, f"'{name}' is both exogenous and {role}; declare one of them")

    def _check_recursion(self, recursion: Recursion, states: Sequence[str], actions: Sequence[str]) -> None:
        name = recursion.column
        require(name in states, f"'{name}' is declared as a recursion and is not a state column; name one")
        require(self.recursion_columns.count(name) == 1, f"'{name}' has two recursions; declare one")
        for role, columns in (("carried", self.carried_columns), ("computed", self.computed)):
            require(name not in columns, f"'{name}' is both a recursion and {role}; declare one of them")
        for source, _ in recursion.weights:
            count = (*states, *actions).count(source)
            require(count < 2, f"the recursion of '{name}' reads '{source}', a state and an action column; rename one")
            later = source.removeprefix(NEXT) if source.startswith(NEXT) and not count else ""
            require(
                not later or later in self.exogenous,
                f"the recursion of '{name}' reads the next value of '{later}', which is not exogenous; declare it so,"
                " or read its current value",
            )
            require(
                count == 1 or later in states,
                f"the recursion of '{name}' reads '{source}', which is not a column; name one",
            )

    def _check_effects(self, states: Sequence[str], actions: Sequence[str]) -> None:
        unchanged = {
            **dict.fromkeys(self.exogenous, "exogenous"),
            **dict.fromkeys(self.carried_columns, "carried from another column"),
            **dict.fromkeys(self.recursion_columns, "computed by a recursion"),
        }
        for action, column, _ in self.signs:
            require(action in actions, f"a sign is declared of '{action}', which is not an action column; name one")
            require(column in states, f"a sign is declared for '{column}', which is not a state column; name one")
            require(
                column not in unchanged,
                f"a sign is declared for '{column}', which is {unchanged.get(column)}; leave the sign out",
            )
            pairs = [pair[:2] for pair in self.signs]
            require(pairs.count((action, column)) == 1, f"'{action}' has two signs for '{column}'; give one")
        for action, column in self.per:
            require(action in actions, f"per names '{action}', which is not an action column; name one")
            require(column in states, f"'{action}' is per '{column}', which is not a state column; name one")
            times = [name for name, _ in self.per].count(action)
            require(times == 1, f"'{action}' is per two columns; name one")

    def check(self, state: Float[Tensor, "n s"], names: Sequence[str]) -> None:
        """Refuse logged rows that violate a fact; missing next states are skipped."""
        held = self.hold(state, names)
        for i, name in enumerate(names):
            near = ON_CIRCLE if any(name in pair for pair in self.circles) else ROUNDED * state[:, i].abs().clamp(min=1)
            wrong = ((held[:, i] - state[:, i]).abs() > near) & ~state[:, i].isnan()
            require(
                not bool(wrong.any()),
                f"column '{name}' is not as declared ({self._facts_of(name)}) in {int(wrong.sum())} rows; correct the"
                " rows or the declaration",
            )

    def _facts_of(self, name: str) -> str:
        facts = [f"from {low:g} to {high:g}" for column, low, high in self.bounds if column == name]
        facts += ["whole numbers"] if name in self.whole else []
        return ", ".join([*facts, *(f"on a circle with '{' and '.join(p)}'" for p in self.circles if name in p)])

    def hold(self, state: Float[Tensor, "*n s"], names: Sequence[str]) -> Float[Tensor, "*n s"]:
        """Return the nearest state that satisfies the facts."""
        if not (self.bounds or self.whole or self.circles):
            return state
        low, high, whole, circles = _places(self, tuple(names))
        if self.bounds:
            state = state.clamp(constant(low, state.device), constant(high, state.device))
        if self.whole:
            state = torch.where(constant(whole, state.device), state.round(), state)
        for cosine, sine in circles:
            radius = torch.hypot(state[..., cosine], state[..., sine]).clamp(min=1e-6)
            scale = torch.ones_like(state)
            scale[..., cosine] = scale[..., sine] = radius
            state = state / scale
        return state

    def carry(
        self,
        after: Float[Tensor, "*n s"],
        state: Float[Tensor, "*n s"],
        action: Float[Tensor, "*n a"],
        states: Sequence[str],
        actions: Sequence[str],
    ) -> Float[Tensor, "*n s"]:
        """Set the carried columns of next states to their sources, and compute those that follow a recursion.

        The next values of exogenous columns are read from `after`; everything else is read from `state` and `action`.
        """
        if not (self.carried or self.recursions):
            return after
        device = after.device
        result = after.contiguous()
        if self.carried:
            columns, sources = _carried(self, tuple(states), tuple(actions))
            source = torch.cat([state, action], -1).index_select(-1, constant(sources, device))
            result = result.index_copy(-1, constant(columns, device), source)
        if self.recursions:
            columns, sources, weights, constants = _recursions(self, tuple(states), tuple(actions))
            read = torch.cat([state, action, after], -1).index_select(-1, constant(sources, device).long())
            products = read.unsqueeze(-2) * constant(weights, device)  # Not a matrix product, which may round to tf32.
            result = result.index_copy(-1, constant(columns, device), products.sum(-1) + constant(constants, device))
        return result

    def mirror_signs(self, states: Sequence[str], actions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return −1 for every column that the mirror changes, 1 for the others."""
        state, action = ([-1.0 if name in self.mirror else 1.0 for name in names] for names in (states, actions))
        return torch.tensor(state), torch.tensor(action)


def mirrored_actions(
    action: Float[Tensor, "n a"], space: ActionSpace, signs: Float[Tensor, " a"]
) -> Float[Tensor, "n a"]:
    """Reflect actions at the middle of their space."""
    middle = (torch.tensor(space.low) + torch.tensor(space.high)) / 2
    return middle + signs * (action - middle)


def check_range(rewards: tuple[float, float]) -> None:
    """Refuse a range of rewards whose end is below its start."""
    low, high = rewards
    require(low <= high, f"the reward range {low:g} to {high:g} begins above its end; give the smaller one first")


@lru_cache(maxsize=64)
def _carried(
    knowledge: Knowledge, states: tuple[str, ...], actions: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the indices of carried columns in the state, and of their sources in (state, action)."""
    both = (*states, *actions)
    columns, sources = zip(*knowledge.carried, strict=True)
    return tuple(map(states.index, columns)), tuple(map(both.index, sources))


@lru_cache(maxsize=64)
def _recursions(
    knowledge: Knowledge, states: tuple[str, ...], actions: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """Return the columns of recursions, their sources in (state, action, next state), weights and constants."""
    names = [*states, *actions, *(f"{NEXT}{name}" for name in states)]
    sources = sorted({names.index(source) for recursion in knowledge.recursions for source, _ in recursion.weights})
    weights = [{names.index(source): weight for source, weight in r.weights} for r in knowledge.recursions]
    rows = tuple(tuple(float(row.get(source, 0.0)) for source in sources) for row in weights)
    columns = tuple(states.index(recursion.column) for recursion in knowledge.recursions)
    return columns, tuple(sources), rows, tuple(float(recursion.constant) for recursion in knowledge.recursions)


@lru_cache(maxsize=64)
def _places(
    knowledge: Knowledge, names: tuple[str, ...]
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[bool, ...], list[tuple[int, int]]]:
    bounds = {name: (low, high) for name, low, high in knowledge.bounds}
    low, high = zip(*(bounds.get(name, (-torch.inf, torch.inf)) for name in names), strict=True)
    circles = [(names.index(cosine), names.index(sine)) for cosine, sine in knowledge.circles]
    return low, high, tuple(name in knowledge.whole for name in names), circles
