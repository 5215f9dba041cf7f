"""How often every action was taken, and which doses to cut into bins."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.doses import ActionColumn, Bins
from counterpoint.data.tables.action_columns import FEW
from counterpoint.data.tables.inspection.columns import TakenColumn
from counterpoint.data.tables.inspection.facts import AMOUNTS, MANY, RARE, SOME, Actions, Dose
from counterpoint.data.tables.inspection.look import Look
from counterpoint.data.tables.inspection.roles import MOST_ACTION_COLUMNS

UNNAMED = f"fewer than {SOME} subjects"


def suggested_bins(look: Look) -> tuple[Bins, ...]:
    """Bins for doses that differ too often to choose from, alone or in combination."""
    columns = look.those("action")
    amounts = [column for column in columns if column.kind in AMOUNTS and not column.labels]
    many = [column for column in amounts if column.distinct > FEW]
    if len(amounts) == len(columns) > 1 and not many and _combinations(amounts) > FEW:
        many = amounts
    return tuple(Bins(column.name, 5 if len(columns) < MOST_ACTION_COLUMNS else 3) for column in many)


def _combinations(columns: Sequence[TakenColumn]) -> int:
    index = np.zeros(len(columns[0].values), dtype=np.int64)
    for column in columns:
        codes = np.unique(column.values, return_inverse=True)[1]
        index = np.unique(index * (codes.max() + 1) + codes, return_inverse=True)[1]
    return int(index.max()) + 1


def actions_of(look: Look, bins: Sequence[Bins]) -> Actions:
    """How often every action, and every combination of several columns' actions, was taken."""
    columns, cut = look.those("action"), {each.column: each for each in bins}
    coded = [_coded(look, column, cut.get(column.name)) for column in columns]
    names = [own[0] if each.name in cut else _known_names(look, *own) for each, own in zip(columns, coded, strict=True)]
    doses = tuple(
        _dose(look, column, cut.get(column.name), own, codes)
        for column, own, (_, codes) in zip(columns, names, coded, strict=True)
    )
    possible = math.prod(map(len, names)) if names else 0
    if not 0 < possible <= 1_000_000:
        return Actions(doses)
    index, known = np.zeros(len(look.columns), dtype=np.int64), np.ones(len(look.columns), dtype=bool)
    for labels, codes in coded:
        index, known = index * len(labels) + codes, known & (codes >= 0)
    places, counts = np.unique(index[known], return_counts=True)
    support: dict[tuple[str, ...], int] = {}
    for place, count in zip(places.tolist(), counts.tolist(), strict=True):
        words = _words(place, names)
        support[words] = support.get(words, 0) + count
    return Actions(doses, possible, len(places), int((counts < RARE).sum()), tuple(support.items()))


def _words(place: int, names: Sequence[list[str]]) -> tuple[str, ...]:
    """What the columns say in one combination; the last column changes fastest."""
    words: list[str] = []
    for own in reversed(names):
        place, code = divmod(place, len(own))
        words.append(own[code])
    return tuple(reversed(words))


def _coded(look: Look, column: TakenColumn, bins: Bins | None) -> tuple[list[str], np.ndarray]:
    """The actions of one column and each sorted row's place among them, −1 where it has none."""
    values = look.sorted(column)
    known, nothing = ~np.isnan(values), ([], np.full(len(values), -1))
    if column.labels:
        return list(column.labels), np.where(known, values, -1).astype(np.int64)
    if bins is not None:
        try:
            fitted = bins.fit(column.name, values[known])
        except CounterpointError:
            return nothing  # The trial says why.
        codes = fitted.codes(np.where(known, values, 0.0))
        return _bin_names(fitted, look.subjects_of(known) >= MANY), np.where(known, codes, -1)
    amounts = np.unique(values[known])
    if not 0 < len(amounts) <= FEW or column.kind not in AMOUNTS:
        return nothing
    return [f"{amount:.10g}" for amount in amounts], np.where(known, np.searchsorted(amounts, values), -1)


def _bin_names(column: ActionColumn, shown: bool) -> list[str]:
    """Bins by their cuts, or by their numbers where too few subjects are behind the cuts."""
    cuts = [f"{float(f'{cut:.3g}'):g}" for cut in column.cuts]  # 1250, not 1.25e+03.
    if not shown or not cuts or len(set(cuts)) < len(cuts):
        return [f"bin {i}" for i in range(column.count)]
    inner = [f"{low} to {high}" for low, high in pairwise(cuts)]
    return ["0"] * column.zero + [f"below {cuts[0]}", *inner, f"{cuts[-1]} and up"]


def _known_names(look: Look, labels: list[str], codes: np.ndarray) -> list[str]:
    """The labels; an action that few subjects had is not named."""
    if not labels:
        return []
    pairs = np.unique(look.log.subject[codes >= 0] * len(labels) + codes[codes >= 0])
    subjects = np.bincount(pairs % len(labels), minlength=len(labels))
    return [label if count >= SOME else UNNAMED for label, count in zip(labels, subjects, strict=True)]


def _dose(look: Look, column: TakenColumn, bins: Bins | None, names: list[str], codes: np.ndarray) -> Dose:
    support: dict[str, int] = {}
    for name, count in zip(names, np.bincount(codes[codes >= 0], minlength=len(names)).tolist(), strict=True):
        support[name] = support.get(name, 0) + count
    return Dose(
        name=column.name,
        distinct=column.distinct,
        bins=bins.count if bins else 0,
        missing=int(np.isnan(column.values).sum()),
        negative=int((column.values < 0).sum()),
        static=column.name in look.static,
        choices=len(names),
        support=support,
    )
