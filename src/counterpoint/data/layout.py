"""The layout of a user's table: the role of every column, and the rules for time, ends, gaps and missing values."""

from dataclasses import dataclass
from typing import Literal

from counterpoint.core.errors import require
from counterpoint.core.settings import Amount, Count, Weight, check_settings
from counterpoint.data.doses import Bins
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import quoted
from counterpoint.data.spaces import ActionSpace

DateOrder = Literal["day-first", "month-first"]
Gaps = Literal["cut", "bridge"]
Last = Literal["truncate", "terminal", "drop"]
Method = Literal["refuse", "median", "mean", "linear"]
Outcome = Literal["marked row", "last row of the subject"]


@dataclass(frozen=True)
class Layout:
    """Column names and reading rules of a table; `from_dataframe` documents each argument.

    One layout serves fitting, inspection, recommendations and histories. It is saved with the rows that were read by
    it, so that a table of new subjects is read by the same rules.
    """

    subject: str
    time: str
    state: tuple[str, ...]
    action: tuple[str, ...]
    reward: str
    done: tuple[str, ...] = ()
    truncated: str = ""
    episode: str = ""
    next_state: tuple[str, ...] = ()
    actions: ActionSpace | None = None
    bins: tuple[Bins, ...] = ()
    labels: tuple[str, ...] = ()
    last: Last | None = None
    outcome: Outcome | None = None
    step: str = ""
    gaps: Gaps | None = None
    categorical: tuple[tuple[str, tuple[str, ...]], ...] = ()
    numeric: tuple[str, ...] = ()
    units: tuple[tuple[str, str], ...] = ()
    missing: Method = "refuse"
    carry_forward: Weight = 0.0
    masks: tuple[str, ...] = ()
    encoding: str = "utf-8"
    knowledge: Knowledge = Knowledge()
    lags: Count = 0
    dates: DateOrder | None = None
    zone: str = ""
    cyclic: tuple[tuple[str, Amount], ...] = ()
    recursion: tuple[str, ...] = ()
    on_board: tuple[tuple[str, str], ...] = ()
    running_sum: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("subject", "time", "reward"):
            require(getattr(self, name) != "", f"no {name} column was named; pass {name}='…'")
        require(
            bool(self.state and self.action), "no state or no action column was named; pass state=['…'], action='…'"
        )
        for names in (self.state, self.action, self.next_state, self.labels):
            require("" not in names, "a column name is empty; name columns as the table does")
            require(len(set(names)) == len(names), f"{quoted(names)}: one is named twice; name each once")
        require(
            len(self.next_state) in (0, len(self.state)),
            f"next_state names {len(self.next_state)} columns but state names {len(self.state)}; name one for each",
        )
        require(
            not (self.bins and self.labels),
            f"column '{self.action[0]}' cannot have both bins, for amounts, and labels, for words; leave one away",
        )
        require(
            self.outcome is None or bool(self.done),
            f"outcome='{self.outcome}' says how done is read, and no done is named; name it or leave outcome away",
        )
        self._check_declarations()

    def _check_declarations(self) -> None:
        """Refuse declarations about columns that have no matching role."""
        categorical = [name for name, _ in self.categorical]
        states = {*self.state}
        self._check_names("categorical", categorical, states | {*self.action})
        self._check_names("numeric", self.numeric, states)
        self._check_names("units", [name for name, _ in self.units], states | {*self.action})
        self._check_names("masks", self.masks, states)
        contradictory = sorted({*categorical} & {*self.numeric})
        require(
            not contradictory,
            f"column '{''.join(contradictory[:1])}' is declared both categorical and numeric; choose one",
        )
        self._check_made_columns(categorical)
        for bins in self.bins:
            require(
                not bins.column or bins.column in self.action,
                f"bins are given for '{bins.column}', which is not an action column; name one of action=[…]",
            )

    def _check_made_columns(self, categorical: list[str]) -> None:
        """Refuse cyclic columns with another role, columns made twice, and sums whose lags would be there twice."""
        cyclic = [name for name, _ in self.cyclic]
        self._check_names("cyclic", cyclic, {*self.state})
        self._check_names("recursion", self.recursion, {*self.state})
        known = self.knowledge
        others = {*categorical, *self.masks, *self.recursion, *known.held, *known.computed, *known.mirror}
        both = [name for name in cyclic if name in others]
        require(
            not both,
            f"column '{(both or [''])[0]}' is cyclic and becomes its cosine and sine; leave its other declarations out",
        )
        for setting, pairs in (("cyclic", self.cyclic), ("on_board", self.on_board), ("running_sum", self.running_sum)):
            names = [name for name, _ in pairs]
            twice = [name for name in names if names.count(name) > 1]
            require(not twice, f"{setting} names '{(twice or [''])[0]}' twice; name it once")
        lagged = [name for name, _ in self.running_sum if name in self.action and self.lags]
        require(
            not lagged,
            f"the running sum of '{(lagged or [''])[0]}' keeps its earlier doses, as lags={self.lags} does; leave one"
            " of them out",
        )

    def _check_names(self, setting: str, names: list[str] | tuple[str, ...], allowed: set[str]) -> None:
        for name in names:
            require(name in allowed, f"{setting} names '{name}', which is not a state column; name one of state=[…]")

    @property
    def shifts(self) -> bool:
        """Whether the next state of a row is the state of the row after it."""
        return not self.next_state
