"""Find misspelt ids and levels (7 and 007, icu and ICU), and rows of totals among subjects."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.core.wording import counted
from counterpoint.data.tables.columns import WORDS

TOTALS = frozenset(
    ("total", "totals", "subtotal", "grand total", "sum", "mean", "average", "avg", "median", "sd", "std")
)
"""Ids of rows of totals."""
RARE = 10
"""A level on fewer rows than this, and on a smaller share than `RARE_SHARE`, may be a misspelling of another."""
RARE_SHARE = 0.01
STRAY_SHARE = 0.1
"""Share of rows from which a third number beside 0 and 1 is no misspelling."""


def plain(word: str) -> str:
    """Normalise blanks, capitals and forms of letters."""
    return " ".join(unicodedata.normalize("NFKC", word).split()).casefold()


def _bare(name: str) -> str:
    """Normalise an id: as `plain`, without quotation marks, leading zeros and .0 behind a whole number."""
    name = re.sub(r"^(\d+)\.0+$", r"\1", plain(re.sub("[\"'`]", "", name)))
    return re.sub(r"(?<!\d)0+(?=\d)", "", name)


def alike_ids(names: Sequence[str]) -> int:
    """Return how many ids differ from another only by blanks, capitals, quotes, leading zeros or a trailing .0."""
    return len(names) - len({_bare(name) for name in names})


def alike_note(column: str, names: Sequence[str]) -> list[str]:
    """Return a note on similar ids, which may belong to one subject."""
    count = alike_ids(names)
    if not count:
        return []
    return [
        f"{counted(count, 'id')} in '{column}' like another but for blanks, capitals, quotes, leading zeros"
        " or a trailing .0, as 7 and 007: one subject may be taken for two; write the ids alike"
    ]


def refuse_alike(column: str, names: Sequence[str]) -> None:
    """Refuse similar ids in a table of new subjects: of a subject in two parts, the older part has no current state."""
    for note in alike_note(column, names):
        raise CounterpointError(note)


def refuse_totals(column: str, codes: np.ndarray, names: Sequence[str]) -> None:
    """Refuse a row of totals."""
    places = [place for place, name in enumerate(names) if plain(name) in TOTALS]
    rows = np.flatnonzero(np.isin(codes, places))
    if len(rows):
        raise CounterpointError(
            f"the id in column '{column}' at row {rows[0]} is that of a row of totals, not of a subject; leave it out"
        )


def level_notes(column: str, levels: Sequence[str], counts: np.ndarray) -> list[str]:
    """Return a note on equivalent or rare levels; `counts` are the rows of every level."""
    groups = Counter(map(plain, levels))
    truth = [WORDS.get(plain(level)) for level in levels]
    if len(levels) > 2 and None not in truth:
        groups = Counter(map(str, truth))
    alike = len(levels) - len(groups)
    if alike:
        return [
            f"{alike} of {len(levels)} levels of column '{column}' mean the same as another but for blanks, capitals or"
            " the word for yes and no, and a model takes them for different; write each alike"
        ]
    rare = int(((counts < RARE) & (counts < RARE_SHARE * counts.sum())).sum())
    if len(levels) > 2 and rare:
        what = "level of column" if rare == 1 else "levels of column"
        return [
            f"{rare} {what} '{column}' on fewer than {RARE} rows, of which little is learned; correct a misspelling, or"
            " join levels"
        ]
    return []


def stray_number_note(column: str, values: np.ndarray) -> list[str]:
    """Return a note on a column that is 0 or 1 except on a few rows, which all hold the same third number."""
    observed = values[~np.isnan(values)]
    other = observed[(observed != 0) & (observed != 1)]
    few = 0 < len(other) < STRAY_SHARE * len(observed)
    if not few or len(np.unique(other)) > 1 or len(np.unique(observed)) < 3:
        return []
    return [
        f"column '{column}' is 0 or 1 but for {counted(len(other), 'row')}, and is read as a number"
        f" for their sake; correct them, or pass --categorical {column}"
    ]
