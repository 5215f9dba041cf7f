"""Options that say what is in a user's table."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.cli.console import say
from counterpoint.cli.mirror import value
from counterpoint.core.errors import CounterpointError, require

if TYPE_CHECKING:
    from counterpoint.data.doses import Bins
    from counterpoint.data.knowledge import Knowledge
    from counterpoint.data.layout import DateOrder, Gaps, Last, Layout, Method, Outcome
    from counterpoint.data.transitions import Transitions
else:
    NAMES = ("DateOrder", "Gaps", "Last", "Method", "Outcome")
    DateOrder, Gaps, Last, Method, Outcome = (value("counterpoint.data.layout", name) for name in NAMES)


@dataclass(frozen=True)
class Columns:
    """What is in your own CSV, TSV or Parquet table; not needed for tables that counterpoint wrote."""

    subject: str = ""
    """Column that says whose row it is."""
    time: str = ""
    """Column that orders the rows of a subject: numbers, or dates."""
    state: tuple[str, ...] = ()
    """Columns of the state."""
    action: tuple[str, ...] = ()
    """Column (or columns) of the action."""
    reward: str = ""
    """Column of the reward."""
    done: tuple[str, ...] = ()
    """Column that is true where an episode ends with an outcome; several columns, such as died discharged,
    are different outcomes."""
    outcome: Outcome | None = None
    """How to read --done where a flag is repeated on all rows of a subject."""
    truncated: str = ""
    """Column that is true where the record stops without an outcome."""
    episode: str = ""
    """Column that numbers or names the episodes of a subject."""
    next_state: tuple[str, ...] = ()
    """Columns of the next state, where the table carries them."""
    last: Last | None = None
    """What a subject's last row means where --done does not say."""
    step: str = ""
    """Time between two rows, as 1 or 4h; the commonest where it is not given."""
    gaps: Gaps | None = None
    """What to do where rows are missing: stop the episode there (cut), or take the rows as consecutive (bridge)."""
    categorical: tuple[str, ...] = ()
    """State columns that hold categories: NAME, or NAME=level,level in their order. Columns of text and of 0 and 1
    are categories without this option."""
    numeric: tuple[str, ...] = ()
    """State columns of 0 and 1 that are amounts, not categories."""
    units: tuple[str, ...] = ()
    """Units of columns, as lactate=mmol/L."""
    missing: Method = "refuse"
    """How a missing value of the state is imputed, learned from the training subjects."""
    carry_forward: float = 0.0
    """Steps for which the last observed value is carried forward first."""
    masks: tuple[str, ...] = ()
    """State columns that get another column of 0 and 1 for what was missing."""
    bins: tuple[str, ...] = ()
    """Cut doses: 5 (bins for every dose column), COLUMN=5, or COLUMN=0.1,0.5,1 (where to cut)."""
    labels: tuple[str, ...] = ()
    """The treatments of a text column in their order; the sorted ones where they are not given."""
    encoding: str = "utf-8"
    """Encoding of a text file, as latin-1."""
    dates: DateOrder | None = None
    """Order of day and month in dates such as 03/04/2024, where no date of the table decides it."""
    zone: str = ""
    """Zone of times that name none, as UTC or +05:00, where others of the column do."""
    lags: int = 0
    """Earlier actions that become columns of the state, for drugs that act late: 2 for the last two steps'."""
    bounds: tuple[str, ...] = ()
    """Limits of state columns that hold in every imagined row too, as HR=0,300."""
    whole: tuple[str, ...] = ()
    """State columns that hold whole numbers."""
    circles: tuple[str, ...] = ()
    """Pairs of state columns that are the cosine and the sine of one angle, as COS,SIN."""
    mirror: tuple[str, ...] = ()
    """State and action columns that change sign, or side, together in a mirror symmetry of the dynamics."""
    computed: tuple[str, ...] = ()
    """State columns that follow from the others of the same moment: scores, ratios, sums."""
    reward_range: str = ""
    """Smallest and largest reward that a row can have, as -100:0. Estimates of returns are limited to
    what it allows; without it, to what the logged rewards allow."""

    def read(self, path: Path, held_out: float, seed: int) -> "Transitions":
        """Read the table as transitions; print what was done to it."""
        from counterpoint.data.storage import read
        from counterpoint.data.tables.reading import read_table

        if not self.subject:
            return self._declared(read(path))
        missing = [name for name in ("time", "state", "action", "reward") if not getattr(self, name)]
        require(
            not missing,
            f"--{missing[0] if missing else ''} is missing; name the columns of '{path}' for subject, time, state,"
            " action and reward",
        )
        rows, notes = read_table(path, self.layout(), held_out, seed)
        for note in notes:
            say(f"note: {note}")
        return rows

    def _declared(self, rows: "Transitions") -> "Transitions":
        """Return rows that counterpoint wrote with the declared range of rewards."""
        from counterpoint.data.returns import check_rewards

        declared = _reward_range(self.reward_range)
        if declared is None:
            return rows
        check_rewards(rows.reward, declared)
        knowledge = replace(rows.schema.knowledge, reward_range=declared)
        return replace(rows, schema=replace(rows.schema, knowledge=knowledge))

    def layout(self) -> "Layout":
        """Return the same choices as a `Layout`."""
        from counterpoint.data.layout import Layout

        plain = {
            name: getattr(self, name)
            for name in ("subject", "time", "state", "action", "reward", "done", "outcome", "truncated", "episode",
                         "next_state", "last", "step", "gaps", "numeric", "missing", "carry_forward", "masks", "labels",
                         "encoding", "lags", "dates", "zone")
        }  # fmt: skip
        categories = tuple(
            (name, tuple(levels.split(",")) if levels else ()) for name, levels in _pairs(self.categorical)
        )
        units, bins = tuple(_pairs(self.units)), tuple(map(_bins, self.bins))
        return Layout(**plain, categorical=categories, units=units, bins=bins, knowledge=self._knowledge())

    def _knowledge(self) -> "Knowledge":
        from counterpoint.data.knowledge import Knowledge

        circles = tuple(_circle(word) for word in self.circles)
        bounds, rewards = tuple(map(_bounds, self.bounds)), _reward_range(self.reward_range)
        return Knowledge(bounds, self.whole, circles, self.mirror, computed=self.computed, reward_range=rewards)


def _pairs(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Split every NAME=rest; the rest is empty where there is no equals sign."""
    return [(name, rest) for name, _, rest in (word.partition("=") for word in words)]


def _bounds(word: str) -> tuple[str, float, float]:
    column, _, rest = word.rpartition("=")
    try:
        low, high = map(float, rest.split(","))
    except ValueError:
        raise CounterpointError(f"--bounds {word} is not understood; give COLUMN=LOWEST,HIGHEST") from None
    require(column != "", f"--bounds {word} names no column; write COLUMN={rest}")
    return column, low, high


def _reward_range(word: str) -> tuple[float, float] | None:
    if not word:
        return None
    try:
        low, high = map(float, word.split(":"))
    except ValueError:
        raise CounterpointError(f"--reward-range {word} is not understood; give LOWEST:HIGHEST, as -100:0") from None
    return low, high


def _circle(word: str) -> tuple[str, str]:
    names = word.split(",")
    require(len(names) == 2 and all(names), f"--circles {word} is not understood; give COSINE,SINE")
    return names[0], names[1]


def _bins(word: str) -> "Bins":
    from counterpoint.data.doses import Bins

    column, _, rest = word.rpartition("=")
    try:
        numbers = [float(part) for part in rest.split(",")]
    except ValueError:
        raise CounterpointError(f"--bins {word} is not understood; give 5, COLUMN=5 or COLUMN=0.1,0.5") from None
    if rest.isdigit():
        return Bins(column, int(numbers[0]))
    require(column != "", f"--bins {word} gives cuts but no column; write COLUMN={rest}")
    return Bins(column, cuts=tuple(numbers))
