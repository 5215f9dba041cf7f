"""The schema of transitions: state columns and actions. Models, tasks and policies keep that of their training rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.settings import check_settings
from counterpoint.data.doses import ActionColumn
from counterpoint.data.knowledge import ROUNDED, ROUNDED_CHANGE, Knowledge, mirrored_actions
from counterpoint.data.reward_expression import NEXT, parse_reward
from counterpoint.data.spaces import ActionSpace, Box, Discrete, describe, same_space


@dataclass(frozen=True)
class Fill:
    """Replacement for a missing value: value + Σ weights[j]·(x_j − fill_j) over the observed columns."""

    value: float
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Column:
    """A column of the state."""

    name: str
    levels: tuple[str, ...] = ()
    """Levels of a categorical column: code i is levels[i]; () for numbers."""
    unit: str = ""
    static: bool = False
    """Whether it is constant within subjects, as sex or age at admission."""
    fill: Fill | None = None
    """Replacement for missing values, learned from training subjects; None where missing values are refused."""
    mask_of: str = ""
    """The column whose missing values this one marks; "" for other columns."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.name != "", "a state column has no name; give it one")
        require(len(set(self.levels)) == len(self.levels), f"column '{self.name}' names a level twice; name each once")


@dataclass(frozen=True)
class Schema:
    """Columns of the state, and the actions."""

    states: tuple[Column, ...]
    actions: ActionSpace
    action_names: tuple[str, ...]
    """Names of the features of an action."""
    doses: tuple[ActionColumn, ...] = ()
    """Coding of the table's action columns, where they are not the features themselves."""
    action_units: tuple[tuple[str, str], ...] = ()
    """(column, unit) of the action columns whose unit was declared."""
    learned_with: tuple[float, int] | None = None
    """(share, seed) of the subjects that fills and cuts were learned without; None where nothing was learned."""
    knowledge: Knowledge = Knowledge()
    """Declared facts about the columns, which hold in every imagined row."""

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
        """Refuse facts about categorical columns, scales that change, and a mirror that maps actions to none."""
        known = self.knowledge
        sources = {source.removeprefix(NEXT) for recursion in known.recursions for source, _ in recursion.weights}
        scales = [column for _, column in known.per]
        signed = [column for _, column, _ in known.signs]
        paid = parse_reward(known.reward).columns if known.reward else ()
        declared = {*known.held, *known.mirror, *known.recursion_columns, *sources, *scales, *signed}
        declared |= {name.removeprefix(NEXT) for name in paid}
        coded = [column.name for column in self.states if column.levels and column.name in declared]
        require(
            not coded, f"'{(coded or [''])[0]}' is a category, and only of numbers can more be declared; leave it out"
        )
        static = [column.name for column in self.states if column.static]
        changing = [name for name in scales if name not in static]
        require(
            not changing,
            f"'{(changing or [''])[0]}' scales an action and is not constant within subjects; name a static column, as"
            " the weight at admission",
        )
        constant = [name for name in static if name in {*known.recursion_columns, *signed}]
        require(
            not constant,
            f"'{(constant or [''])[0]}' is constant within subjects, so that nothing changes it; leave its recursion or"
            " sign out",
        )
        if isinstance(self.actions, Discrete) and self.knowledge.mirror:
            _, signs = self.knowledge.mirror_signs(self.state_names, self.action_names)
            mirrored = mirrored_actions(self.actions.table(), self.actions, signs)
            require(
                bool(self.actions.contains(mirrored).all()),
                "mirrored about the middle of the action space, some actions are none; name other columns in mirror",
            )

    @classmethod
    def of(
        cls,
        state_names: Sequence[str],
        actions: ActionSpace,
        action_names: Sequence[str] = (),
        knowledge: Knowledge = Knowledge(),
    ) -> "Schema":
        """Return a schema of numeric states; actions without names are numbered."""
        require(isinstance(actions, Discrete | Box), "actions are no action space; give Discrete.of([…]) or a Box")
        require(isinstance(state_names, list | tuple), "state_names is no list of names; give one name a column")
        states = tuple(Column(name) for name in state_names)
        names = tuple(action_names) or numbered("action", actions.width)
        return cls(states, actions, names, knowledge=knowledge)

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.states)

    @property
    def categories(self) -> tuple[tuple[int, int], ...]:
        """(index, number of levels) of every categorical state column."""
        return tuple((i, len(column.levels)) for i, column in enumerate(self.states) if column.levels)

    @property
    def spread_width(self) -> int:
        """Width of a state whose categories are one-hot."""
        return len(self.states) + sum(count - 1 for _, count in self.categories)

    @property
    def static(self) -> tuple[int, ...]:
        """Indices of the columns that are constant within subjects."""
        return tuple(i for i, column in enumerate(self.states) if column.static)

    @property
    def unpredicted(self) -> tuple[int, ...]:
        """Indices of the columns without an equation in the law of effects: static, carried and exogenous ones, and
        those that follow a recursion."""
        known = self.knowledge
        names = (*known.carried_columns, *known.recursion_columns, *known.exogenous)
        return tuple(sorted({*self.static, *map(self.state_names.index, names)}))

    @property
    def exogenous(self) -> tuple[int, ...]:
        """Indices of the columns that change and that no action changes; static columns are not among them."""
        columns = {self.state_names.index(name) for name in self.knowledge.exogenous}
        return tuple(sorted(columns - {*self.static}))

    @property
    def scales(self) -> tuple[tuple[int, int], ...]:
        """(index of the action feature, index of the state column) of every dose that acts per a static column."""
        return tuple((self.action_names.index(a), self.state_names.index(c)) for a, c in self.knowledge.per)

    @property
    def autonomous(self) -> tuple[int, ...]:
        """Indices of the columns that no action reaches: static and exogenous ones, and those that are carried or
        computed from them alone, as a clock. Laws of exogenous columns read these."""
        known, reached = self.knowledge, {*self.static, *self.exogenous}
        sources = {column: [source] for column, source in known.carried}
        sources |= {r.column: [source.removeprefix(NEXT) for source, _ in r.weights] for r in known.recursions}
        # A column that reads itself is autonomous unless an action reaches it, so start with all and strike out.
        names = {*sources} | {self.state_names[i] for i in reached}
        while True:
            struck = {column for column, read in sources.items() if column in names and not names.issuperset(read)}
            if not struck:
                return tuple(i for i, name in enumerate(self.state_names) if name in names)
            names -= struck

    @property
    def computed(self) -> tuple[int, ...]:
        """Indices of the columns that are declared to be computed from others."""
        return tuple(sorted(self.state_names.index(name) for name in self.knowledge.computed))

    @property
    def dose_levels(self) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """(index, amounts) of every action feature with three levels or more, where actions are coded."""
        if not self.doses or not isinstance(self.actions, Discrete):
            return ()
        amounts = [tuple(sorted(set(column))) for column in zip(*self.actions.values, strict=True)]
        return tuple((i, levels) for i, levels in enumerate(amounts) if len(levels) > 2)

    def held(
        self, after: Float[Tensor, "*n s"], state: Float[Tensor, "*n s"], action: Float[Tensor, "*n a"]
    ) -> Float[Tensor, "*n s"]:
        """Project next states onto the declared facts."""
        if self.knowledge.recursions:  # They may read the next values of exogenous columns, so those are held first.
            after = self.knowledge.hold(after, self.state_names)
        after = self.knowledge.carry(after, state, action, self.state_names, self.action_names)
        return self.knowledge.hold(after, self.state_names)

    def check_rows(
        self, state: Float[Tensor, "n s"], action: Float[Tensor, "n a"], after: Float[Tensor, "n s"]
    ) -> None:
        """Refuse logged rows that violate the declared facts; missing next states are skipped."""
        for values in (state, after):
            self.knowledge.check(values, self.state_names)
        carried = self.knowledge.carry(after, state, action, self.state_names, self.action_names)
        for column, source in self.knowledge.carried:
            index = self.state_names.index(column)
            tolerance = ROUNDED * carried[:, index].abs().clamp(min=1)
            wrong = ((carried - after)[:, index].abs() > tolerance).sum()
            require(
                not int(wrong),
                f"column '{column}' is not what '{source}' was one step before in {int(wrong)} rows; correct the rows"
                " or the declaration",
            )
        self._check_recursions(state, after, carried)
        for action_name, column in self.knowledge.per:
            low = int((state[:, self.state_names.index(column)] <= 0).sum())
            require(
                not low,
                f"'{action_name}' is per '{column}', which is not positive in {low} rows; correct the rows or the"
                " declaration",
            )

    def _check_recursions(
        self, state: Float[Tensor, "n s"], after: Float[Tensor, "n s"], computed: Float[Tensor, "n s"]
    ) -> None:
        """Refuse logged next states that are not as the recursions compute them; missing ones are skipped."""
        for column in self.knowledge.recursion_columns:
            index = self.state_names.index(column)
            change = (after - state)[:, index]
            seen = ~after[:, index].isnan()
            spread = change[seen].std(correction=0) if bool(seen.any()) else change.new_zeros(())
            tolerance = (ROUNDED * after[:, index].abs().clamp(min=1)).maximum(ROUNDED_CHANGE * spread)
            wrong = int(((computed - after)[:, index].abs() > tolerance).sum())
            require(
                not wrong,
                f"column '{column}' does not follow its recursion in {wrong} of {int(seen.sum())} rows; correct the"
                " rows or leave the recursion out",
            )

    def choices(self) -> list[dict[str, str | float]]:
        """Return every action of a finite space as values of the table's action columns."""
        if not isinstance(self.actions, Discrete):
            raise CounterpointError("a continuous action space has no list of actions; cut the doses into Bins")
        if not self.doses:
            return [dict(zip(self.action_names, values, strict=True)) for values in self.actions.values]
        return [self._choice(index) for index in range(self.actions.count)]

    def _choice(self, index: int) -> dict[str, str | float]:
        values: dict[str, str | float] = {}
        for column in reversed(self.doses):
            index, code = divmod(index, column.count)
            values[column.name] = column.value(code)
        return dict(reversed(values.items()))

    def _in_words(self, index: int, units: dict[str, str]) -> str:
        words = list[str]()
        for column in reversed(self.doses):
            index, code = divmod(index, column.count)
            unit = "" if column.labels else units.get(column.name, "")
            dose = f"{column.in_words(code)} {unit}".rstrip()
            words.append(dose if len(self.doses) == 1 else f"{column.name} {dose}")
        return ", ".join(reversed(words))

    def labels(self, units: bool = False) -> list[str]:
        """Return a short label for every action; a dose that represents a bin with the range of the bin.

        Args:
            units: whether amounts are followed by their declared units.
        """
        if self.doses and isinstance(self.actions, Discrete):
            unit_of = dict(self.action_units) if units else {}
            return [self._in_words(index, unit_of) for index in range(self.actions.count)]
        return self.plain_labels(units)

    def plain_labels(self, units: bool = False) -> list[str]:
        """Return the labels without ranges of doses."""
        unit_of = dict(self.action_units) if units else {}
        return [
            ", ".join(_label(name, value, unit_of.get(name, ""), len(choice) == 1) for name, value in choice.items())
            for choice in self.choices()
        ]


def _label(name: str, value: str | float, unit: str, alone: bool) -> str:
    text = f"{value:g} {unit}".rstrip() if isinstance(value, float) else str(value)
    return text if alone else f"{name} {text}"


def numbered(what: str, count: int) -> tuple[str, ...]:
    """Return names for columns without names."""
    return tuple(f"{what}_{i}" for i in range(count))


def agree(mine: Schema, other: Schema, me: str = "model", they: str = "table") -> None:
    """Refuse to combine two things with different columns, units or actions."""
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
    """Refuse different state columns, levels or units."""
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
    """Refuse different action spaces."""
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
    """Join names for a message, shortened to the first `most`."""
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")


def _levels(column: Column) -> str:
    """Return the number of levels; the levels are patients' data."""
    return f"{len(column.levels)} levels" if column.levels else "numbers"


def _unnamed(names: tuple[str, ...]) -> bool:
    """Return whether the actions are numbered, as of rows that were not read from a table."""
    return names == numbered("action", len(names))
