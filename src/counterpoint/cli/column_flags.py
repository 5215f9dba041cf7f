"""Options that say what is in a user's table."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.cli.console import say
from counterpoint.cli.mirror import value
from counterpoint.core.errors import CounterpointError, require
from counterpoint.data.role_words import bounds_of, cycle_of, duration_of, scale_of, sign_of

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
    """Column of the reward, or an expression of columns: "0 - (marker - 100)**2 / 100 - 0.1*dose". A name is a state
    or action column, or an outcome; "next NAME" is a state column's value in the next row."""
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
    exogenous: tuple[str, ...] = ()
    """State columns that no action changes: an announced meal, the ward's census."""
    cyclic: tuple[str, ...] = ()
    """Periods of state columns that begin again, as hour=24; each becomes its cosine and sine."""
    recursion: tuple[str, ...] = ()
    """State columns that follow a linear recursion of their own value, the actions and the exogenous columns."""
    on_board: tuple[str, ...] = ()
    """Half-lives of doses, or of state columns, as heparin:6h; each adds the state column heparin_on_board."""
    running_sum: tuple[str, ...] = ()
    """Windows of doses, or of state columns, as heparin:6h; each adds the state column heparin_sum."""
    sign: tuple[str, ...] = ()
    """Signs of effects, as heparin:ptt=+ where more heparin never lowers ptt, and - where it never raises it."""
    per: tuple[str, ...] = ()
    """Scales of doses, as dose:weight: effects act through dose / weight, which is constant within subjects."""
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
        """Return rows that counterpoint wrote with the declared range of rewards and roles of columns."""
        from counterpoint.data.returns import check_rewards

        for name in ("cyclic", "recursion", "on_board", "running_sum"):
            require(
                not getattr(self, name),
                f"--{name.replace('_', '-')} makes columns while a table is read, and this one was written by"
                " counterpoint; declare it with the original table",
            )
        stated, known = self._knowledge(), rows.schema.knowledge
        if stated.reward_range is not None:
            check_rewards(rows.reward, stated.reward_range)
        known = replace(
            known,
            reward_range=stated.reward_range or known.reward_range,
            exogenous=tuple(dict.fromkeys((*known.exogenous, *stated.exogenous))),
            signs=tuple(dict.fromkeys((*known.signs, *stated.signs))),
            per=tuple(dict.fromkeys((*known.per, *stated.per))),
        )
        if known == rows.schema.knowledge:
            return rows
        schema = replace(rows.schema, knowledge=known)
        schema.check_rows(rows.state, rows.action, rows.next_state)
        return replace(rows, schema=schema)

    def layout(self) -> "Layout":
        """Return the same choices as a `Layout`."""
        from counterpoint.data.layout import Layout

        plain = {
            name: getattr(self, name)
            for name in ("subject", "time", "state", "action", "reward", "done", "outcome", "truncated", "episode",
                         "next_state", "last", "step", "gaps", "numeric", "missing", "carry_forward", "masks", "labels",
                         "encoding", "lags", "dates", "zone", "recursion")
        }  # fmt: skip
        categories = tuple(
            (name, tuple(levels.split(",")) if levels else ()) for name, levels in _pairs(self.categorical)
        )
        units, bins = tuple(_pairs(self.units)), tuple(map(_bins, self.bins))
        return Layout(
            **plain,
            categorical=categories,
            units=units,
            bins=bins,
            knowledge=self._knowledge(),
            cyclic=tuple(map(cycle_of, self.cyclic)),
            on_board=tuple(duration_of("on-board", word) for word in self.on_board),
            running_sum=tuple(duration_of("running-sum", word) for word in self.running_sum),
        )

    def _knowledge(self) -> "Knowledge":
        from counterpoint.data.knowledge import Knowledge

        circles = tuple(_circle(word) for word in self.circles)
        bounds, rewards = tuple(map(bounds_of, self.bounds)), _reward_range(self.reward_range)
        return Knowledge(
            bounds,
            self.whole,
            circles,
            self.mirror,
            computed=self.computed,
            reward_range=rewards,
            exogenous=self.exogenous,
            signs=tuple(map(sign_of, self.sign)),
            per=tuple(map(scale_of, self.per)),
        )


def _pairs(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Split every NAME=rest; the rest is empty where there is no equals sign."""
    return [(name, rest) for name, _, rest in (word.partition("=") for word in words)]


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
