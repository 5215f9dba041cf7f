"""Roles of columns as words of a command line, of study files and of the suggestions of `check`."""

from counterpoint.core.errors import CounterpointError, require


def bounds_of(word: str) -> tuple[str, float, float]:
    """Return (column, lowest, highest) of COLUMN=LOWEST,HIGHEST."""
    column, _, rest = word.rpartition("=")
    try:
        low, high = map(float, rest.split(","))
    except ValueError:
        raise CounterpointError(f"--bounds {word} is not understood; give COLUMN=LOWEST,HIGHEST") from None
    require(column != "", f"--bounds {word} names no column; write COLUMN={rest}")
    return column, low, high


def cycle_of(word: str) -> tuple[str, float]:
    """Return (column, period) of COLUMN=PERIOD."""
    column, _, rest = word.rpartition("=")
    try:
        period = float(rest)
    except ValueError:
        raise CounterpointError(f"--cyclic {word} is not understood; give COLUMN=PERIOD, as hour=24") from None
    require(column != "", f"--cyclic {word} names no column; write COLUMN={rest}")
    return column, period


def duration_of(flag: str, word: str) -> tuple[str, str]:
    """Return (column, duration) of COLUMN:DURATION; `flag` names the option in messages."""
    column, _, duration = word.rpartition(":")
    require(
        bool(column and duration), f"--{flag} {word} is not understood; give COLUMN:DURATION, as heparin:6h or dose:4"
    )
    return column, duration


def sign_of(word: str) -> tuple[str, str, int]:
    """Return (action, column, sign) of ACTION:COLUMN=+ or ACTION:COLUMN=-."""
    pair, _, sign = word.rpartition("=")
    action, _, column = pair.partition(":")
    signs = {"+": 1, "-": -1}
    require(
        bool(action and column) and sign in signs,
        f"--sign {word} is not understood; give DOSE:COLUMN=+ or DOSE:COLUMN=-, as heparin:ptt=+",
    )
    return action, column, signs[sign]


def scale_of(word: str) -> tuple[str, str]:
    """Return (action, column) of ACTION:COLUMN."""
    action, _, column = word.partition(":")
    require(bool(action and column), f"--per {word} is not understood; give DOSE:COLUMN, as heparin:weight")
    return action, column
