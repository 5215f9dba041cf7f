"""Declared facts about state columns: they hold in every imagined row, and models may use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import require
from counterpoint.core.settings import Finite, check_settings
from counterpoint.data.spaces import ActionSpace, constant

ON_CIRCLE = 1e-2
"""Tolerance for logged cosines and sines, because tables are rounded."""
ROUNDED = 1e-4
"""Relative tolerance for other logged numbers."""


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

    def __post_init__(self) -> None:
        check_settings(self)
        for name, low, high in self.bounds:
            require(low < high, f"the bounds of '{name}' are {low} and {high}; give the lower one first")
        if self.reward_range is not None:
            check_range(self.reward_range)

    @property
    def held(self) -> tuple[str, ...]:
        """State columns with declared values."""
        pairs = (name for pair in self.circles for name in pair)
        return (*(name for name, _, _ in self.bounds), *self.whole, *pairs)

    @property
    def carried_columns(self) -> tuple[str, ...]:
        """State columns that are copies of an earlier column."""
        return tuple(column for column, _ in self.carried)

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
        """Set the carried columns of next states to their sources."""
        if not self.carried:
            return after
        columns, sources = _carried(self, tuple(states), tuple(actions))
        source = torch.cat([state, action], -1).index_select(-1, constant(sources, after.device))
        return after.contiguous().index_copy(-1, constant(columns, after.device), source)

    def signs(self, states: Sequence[str], actions: Sequence[str]) -> tuple[Tensor, Tensor]:
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
def _places(
    knowledge: Knowledge, names: tuple[str, ...]
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[bool, ...], list[tuple[int, int]]]:
    bounds = {name: (low, high) for name, low, high in knowledge.bounds}
    low, high = zip(*(bounds.get(name, (-torch.inf, torch.inf)) for name in names), strict=True)
    circles = [(names.index(cosine), names.index(sine)) for cosine, sine in knowledge.circles]
    return low, high, tuple(name in knowledge.whole for name in names), circles
