"""What the columns of a table mean. A model, a task and a policy carry the schema of the table they were made from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import check_settings
from counterpoint.data.doses import ActionColumn
from counterpoint.data.knowledge import ROUNDED, Knowledge, mirrored_actions
from counterpoint.data.spaces import ActionSpace, Box, Discrete, describe, same_space


@dataclass(frozen=True)
class Fill:
    """What stands for a missing value: value + Σ weights[j]·(x_j − fill_j) over the columns that are there."""

    value: float
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Column:
    """One column of the state."""

    name: str
    levels: tuple[str, ...] = ()
    """The categories: code i in the state stands for levels[i]. A number has none."""
    unit: str = ""
    static: bool = False
    """Whether it never changes within a subject, as sex or age at admission."""
    fill: Fill | None = None
    """What stands for a missing value, learned from training subjects; none where missing values are refused."""
    mask_of: str = ""
    """The column whose missing values this one marks; empty for a column of its own."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.name != "", "a state column has no name; give it one")
        require(len(set(self.levels)) == len(self.levels), f"column '{self.name}' names a level twice; name each once")


@dataclass(frozen=True)
class Schema:
    """The columns of the state and what actions are."""

    states: tuple[Column, ...]
    actions: ActionSpace
    action_names: tuple[str, ...]
    """A name for each feature of an action."""
    doses: tuple[ActionColumn, ...] = ()
    """How columns of the user's table become actions, where they are not the features themselves."""
    action_units: tuple[tuple[str, str], ...] = ()
    """(column, unit) of the action columns whose unit was declared."""
    learned_with: tuple[float, int] | None = None
    """Share and seed of the subjects that fills and cuts were learned without; none where nothing was learned."""
    knowledge: Knowledge = Knowledge()
    """What is known of the columns and holds in every imagined row."""

    def __post_init__(self) -> None:
        check_settings(self)
        for what, names in (("state", self.state_names), ("action", self.action_names)):
            twice = [name for name in names if names.count(name) > 1]
            require(not twice, f"two {what} columns are named '{(twice or [''])[0]}'; name each once")
        require(
            len(self.action_names) == self.actions.width,
            f"{len(self.action_names)} action names for an action space of {self.actions.width} columns; give one each",
        )
        self.knowledge.check_names(self.state_names, self.action_names)
        self._check_knowledge()

    def _check_knowledge(self) -> None:
        """What is declared is about numbers, and a mirror shows actions that there are."""
        said = {*self.knowledge.held, *self.knowledge.mirror}
        coded = [column.name for column in self.states if column.levels and column.name in said]
        require(
            not coded, f"'{(coded or [''])[0]}' is a category, and only of numbers can more be declared; leave it out"
        )
        if isinstance(self.actions, Discrete) and self.knowledge.mirror:
            _, signs = self.knowledge.signs(self.state_names, self.action_names)
            shown = mirrored_actions(self.actions.table(), self.actions, signs)
            require(
                bool(self.actions.contains(shown).all()),
                "mirrored about the middle of the action space, some actions are none; name other columns in mirror",
            )

    @classmethod
    def of(
        cls, state_names: Sequence[str], actions: ActionSpace, action_names: Sequence[str] = (), **more: Any
    ) -> "Schema":
        """A schema of plain numbers; actions are numbered where they have no names."""
        require(isinstance(actions, Discrete | Box), "actions are no action space; give Discrete.of([…]) or a Box")
        require(isinstance(state_names, list | tuple), "state_names is no list of names; give one name a column")
        states = tuple(Column(name) for name in state_names)
        return cls(states, actions, tuple(action_names) or numbered("action", actions.width), **more)

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.states)

    @property
    def categories(self) -> tuple[tuple[int, int], ...]:
        """(place, number of levels) of every categorical state column."""
        return tuple((i, len(column.levels)) for i, column in enumerate(self.states) if column.levels)

    @property
    def spread_width(self) -> int:
        """Columns of a state whose categories are spread level by level."""
        return len(self.states) + sum(count - 1 for _, count in self.categories)

    @property
    def static(self) -> tuple[int, ...]:
        """The places of the numeric columns that never change within a subject."""
        return tuple(i for i, column in enumerate(self.states) if column.static)

    @property
    def told(self) -> tuple[int, ...]:
        """The places of the columns that no model need foretell: static ones, and those carried over from another."""
        carried = (self.state_names.index(name) for name in self.knowledge.carried_columns)
        return tuple(sorted({*self.static, *carried}))

    @property
    def computed(self) -> tuple[int, ...]:
        """The places of the columns that are declared to follow from others."""
        return tuple(sorted(self.state_names.index(name) for name in self.knowledge.computed))

    @property
    def dose_levels(self) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """(place, amounts) of every dose that was cut into three levels or more."""
        if not self.doses or not isinstance(self.actions, Discrete):
            return ()
        amounts = [tuple(sorted(set(column))) for column in zip(*self.actions.values, strict=True)]
        return tuple((i, levels) for i, levels in enumerate(amounts) if len(levels) > 2)

    def held(
        self, after: Float[Tensor, "*n s"], state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"]
    ) -> Float[Tensor, "*n s"]:
        """Next states, after these states and actions, as they are declared to be."""
        after = self.knowledge.carry(after, state, action, self.state_names, self.action_names)
        return self.knowledge.hold(after, self.state_names)

    def check_rows(
        self, state: Float[Tensor, "n s"], action: Float[Tensor, "n a"], after: Float[Tensor, "n s"]
    ) -> None:
        """Raise one line where logged rows are not as declared; missing next states are passed over."""
        for known in (state, after):
            self.knowledge.check(known, self.state_names)
        carried = self.knowledge.carry(after, state, action, self.state_names, self.action_names)
        for column, source in self.knowledge.carried:
            place = self.state_names.index(column)
            wrong = ((carried - after)[:, place].abs() > ROUNDED * carried[:, place].abs().clamp(min=1)).sum()
            require(
                not int(wrong),
                f"column '{column}' is not what '{source}' was one step before in {int(wrong)} rows; correct the rows"
                " or the declaration",
            )

    def choices(self) -> list[dict[str, Any]]:
        """Every action of a finite space in the user's own words: a value for each action column of the table."""
        if not isinstance(self.actions, Discrete):
            raise CounterpointError("a continuous action space has no list of actions; cut the doses into Bins")
        if not self.doses:
            return [dict(zip(self.action_names, values, strict=True)) for values in self.actions.values]
        return [self._choice(index) for index in range(self.actions.count)]

    def _choice(self, index: int) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for column in reversed(self.doses):
            index, code = divmod(index, column.count)
            said[column.name] = column.says(code)
        return dict(reversed(said.items()))

    def labels(self) -> list[str]:
        """Every action in a word or two."""
        return [", ".join(_said(*item, alone=len(choice) == 1) for item in choice.items()) for choice in self.choices()]


def _said(name: str, value: Any, alone: bool) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if alone else f"{name} {text}"


def numbered(what: str, count: int) -> tuple[str, ...]:
    return tuple(f"{what}_{i}" for i in range(count))


def agree(mine: Schema, other: Schema, me: str = "model", they: str = "table") -> None:
    """Raise one line where two things that meet speak of different columns, units or actions."""
    agree_on_states(mine.states, other.states, me, they)
    _agree_on_doses(mine, other, me, they)
    agree_on_actions(mine.actions, other.actions, me, they)
    require(
        mine.action_names == other.action_names or _unnamed(mine.action_names) or _unnamed(other.action_names),
        f"the action columns of the {me} are {listed(mine.action_names)} and those of the {they}"
        f" {listed(other.action_names)}; use one log for both",
    )


def _agree_on_doses(mine: Schema, other: Schema, me: str, they: str) -> None:
    units, others = dict(mine.action_units), dict(other.action_units)
    for name in units.keys() & others.keys():
        require(
            units[name] == others[name],
            f"column '{name}' is in {units[name]} in the {me} and in {others[name]} in the {they}; convert one of them",
        )


def agree_on_states(mine: Sequence[Column], other: Sequence[Column], me: str, they: str) -> None:
    names, others = [column.name for column in mine], [column.name for column in other]
    if names != others:
        why = "in another order" if sorted(names) == sorted(others) else f"{listed(others)}"
        raise CounterpointError(
            f"the state columns of the {me} are {listed(names)}, those of the {they} {why};"
            f" load the table with the columns of the {me}, in their order"
        )
    for one, two in zip(mine, other, strict=True):
        require(
            one.levels == two.levels,
            f"column '{one.name}' has {_levels(one)} in the {me} and {_levels(two)} in the {they}, others or in another"
            " order; declare it alike",
        )
        require(
            one.unit == two.unit or not one.unit or not two.unit,
            f"column '{one.name}' is in {one.unit} in the {me} and in {two.unit} in the {they}; convert one of them",
        )


def agree_on_actions(mine: ActionSpace, other: ActionSpace, me: str, they: str) -> None:
    require(
        same_space(mine, other),
        f"the actions of the {me} are {describe(mine)} and those of the {they} {describe(other)}; use the same actions",
    )


def quoted(names: Sequence[str]) -> str:
    """Column names for a message.

    Example:
        >>> quoted(["age", "dose"])
        "columns 'age', 'dose'"
    """
    return ("columns " if len(names) > 1 else "column ") + ", ".join(f"'{name}'" for name in names)


def listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")


def _levels(column: Column) -> str:
    """How many levels there are, not which: they may be cells of patients."""
    return f"{len(column.levels)} levels" if column.levels else "numbers"


def _unnamed(names: tuple[str, ...]) -> bool:
    """Rows that never were a user's table number their actions."""
    return names == numbered("action", len(names))
