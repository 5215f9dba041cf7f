"""What a user knows of the state and need not be learned: it holds in every imagined row, and a fit may rely on it."""

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
"""Logged cosines and sines may be so far off the circle: tables are rounded."""
ROUNDED = 1e-4
"""Logged numbers may be so far outside what is declared, in units of the numbers themselves."""


@dataclass(frozen=True)
class Knowledge:
    """Facts about columns, by name. Nothing is assumed where nothing is declared."""

    bounds: tuple[tuple[str, Finite, Finite], ...] = ()
    """(column, lowest, highest)."""
    whole: tuple[str, ...] = ()
    """Columns that hold whole numbers."""
    circles: tuple[tuple[str, str], ...] = ()
    """Pairs of columns that are the cosine and the sine of one angle."""
    mirror: tuple[str, ...] = ()
    """State and action columns of a mirror symmetry: the same happens, mirrored, where these state columns change their
    sign and these action columns their side of the middle of the action space."""
    carried: tuple[tuple[str, str], ...] = ()
    """(column, source): a state column that holds what a state or action column was one step before."""
    computed: tuple[str, ...] = ()
    """State columns that follow from the others of the same moment and from what they were before: scores, ratios,
    sums. How, is learned; a model that knows it keeps an imagined score with the imagined values it is made of."""
    reward_range: tuple[Finite, Finite] | None = None
    """Smallest and largest reward that a step can have; None where it is not known."""

    def __post_init__(self) -> None:
        check_settings(self)
        for name, low, high in self.bounds:
            require(low < high, f"the bounds of '{name}' are {low} and {high}; give the lower one first")
        if self.reward_range is not None:
            check_range(self.reward_range)

    @property
    def held(self) -> tuple[str, ...]:
        """The state columns whose values are declared."""
        pairs = (name for pair in self.circles for name in pair)
        return (*(name for name, _, _ in self.bounds), *self.whole, *pairs)

    @property
    def carried_columns(self) -> tuple[str, ...]:
        """The state columns that nothing but another column decides."""
        return tuple(column for column, _ in self.carried)

    def check_names(self, states: Sequence[str], actions: Sequence[str]) -> None:
        """Raise one line for a column that is not there."""
        for name in self.held:
            require(name in states, f"'{name}' is declared and is not a state column; name one of the state")
        for column, source in self.carried:
            require(column in states, f"'{column}' is declared as carried and is not a state column; name one")
            found = (*states, *actions).count(source)
            require(found > 0, f"'{column}' is carried from '{source}', which is not a column; name one")
            require(found == 1, f"'{column}' is carried from '{source}', a state and an action column; rename one")
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
        """Raise one line where logged rows are not as declared; missing next states are passed over."""
        held = self.hold(state, names)
        for i, name in enumerate(names):
            near = ON_CIRCLE if any(name in pair for pair in self.circles) else ROUNDED * state[:, i].abs().clamp(min=1)
            wrong = ((held[:, i] - state[:, i]).abs() > near) & ~state[:, i].isnan()
            require(
                not bool(wrong.any()),
                f"column '{name}' is not as declared ({self._said(name)}) in {int(wrong.sum())} rows; correct the rows"
                " or the declaration",
            )

    def _said(self, name: str) -> str:
        facts = [f"from {low:g} to {high:g}" for column, low, high in self.bounds if column == name]
        facts += ["whole numbers"] if name in self.whole else []
        return ", ".join([*facts, *(f"on a circle with '{' and '.join(p)}'" for p in self.circles if name in p)])

    def hold(self, state: Float[Tensor, "*n s"], names: Sequence[str]) -> Float[Tensor, "*n s"]:
        """The nearest state that is as declared."""
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
        """Next states whose carried columns hold what their sources were."""
        if not self.carried:
            return after
        columns, sources = _carried(self, tuple(states), tuple(actions))
        source = torch.cat([state, action], -1).index_select(-1, constant(sources, after.device))
        return after.contiguous().index_copy(-1, constant(columns, after.device), source)

    def signs(self, states: Sequence[str], actions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """−1 for every column that the mirror turns, 1 for the others."""
        state, action = ([-1.0 if name in self.mirror else 1.0 for name in names] for names in (states, actions))
        return torch.tensor(state), torch.tensor(action)


def mirrored_actions(
    action: Float[Tensor, "n a"], space: ActionSpace, signs: Float[Tensor, " a"]
) -> Float[Tensor, "n a"]:
    """Actions on the other side of the middle of their space."""
    middle = (torch.tensor(space.low) + torch.tensor(space.high)) / 2
    return middle + signs * (action - middle)


def check_range(rewards: tuple[float, float]) -> None:
    """Raise one line where a range of rewards begins above its end."""
    low, high = rewards
    require(low <= high, f"the reward range {low:g} to {high:g} begins above its end; give the smaller one first")


@lru_cache(maxsize=64)
def _carried(
    known: Knowledge, states: tuple[str, ...], actions: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Places of carried columns in the state, and of their sources in state and action side by side."""
    both = (*states, *actions)
    columns, sources = zip(*known.carried, strict=True)
    return tuple(map(states.index, columns)), tuple(map(both.index, sources))


@lru_cache(maxsize=64)
def _places(
    known: Knowledge, names: tuple[str, ...]
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[bool, ...], list[tuple[int, int]]]:
    bounds = {name: (low, high) for name, low, high in known.bounds}
    low, high = zip(*(bounds.get(name, (-torch.inf, torch.inf)) for name in names), strict=True)
    circles = [(names.index(cosine), names.index(sine)) for cosine, sine in known.circles]
    return low, high, tuple(name in known.whole for name in names), circles
