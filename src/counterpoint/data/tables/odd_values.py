"""Numbers that mean something else than they say: another unit, a code for a missing value, a limit of the device.

No note quotes a value of a subject: codes such as 999 are nobody's, and factors are between medians of many rows.
"""

import numpy as np

CODES = (-999.0, -9999.0, -99.0, 999.0, 9999.0, 99999.0, -99999.0)
"""Numbers that stand for a value which was not measured; one counts where it is far from all others."""
BELOW = (-1.0, -9.0, -99.0)
"""Those that do in columns of positive numbers."""
FACTORS = (1.8, 2.205, 2.54, 2.67, 9.01, 18.02, 38.67, 88.42, 10.0, 100.0, 1000.0, 1e6)
"""Between units of one quantity: temperatures, weights, lengths, laboratory values, milli and micro."""
NEAR = 0.08
"""A factor is one of those where its logarithm (base 10) is within this."""
APART, FAR, FARTHEST = 0.8, 0.25, 1.5
"""Medians of two groups are apart where their logarithms differ by so much; the second for a factor that is known, the
third for columns with few different values …"""
CLEAR, CLEARER = 4.0, 8.0
"""… and by so many deviations within the groups, which no single hump is cut into."""
LEAST, LEAST_SHARE = 4, 0.01
"""Members, and their share, that make a group."""
SMALL = 0.05
"""Groups with a smaller share are the tail of the others unless most of the distance between the two is empty."""
TAIL, ROW_TAIL = 5.0, 1.6
"""A lower group that spreads so many times as much as the upper one is its tail towards 0; the second among rows."""
ONE_SIGN = 0.98
"""Share of the numbers other than 0 from which on they count as having one sign; others have no unit's factor."""
DISTINCT = 20
"""Different values from which a column is an amount and no score."""
CEILING, PILED = 0.05, 3.0
"""Share of the rows at the highest or lowest value, and how many times that of any other one, that is a pile-up."""
FEW_ROWS, FEW_SHARE = 3, 0.01
"""So many values, or such a share of them, can be isolated …"""
ISOLATED, ROBUST = 5.0, 6.0
"""… where they are so many times all others, and so many robust deviations (of logarithms) from the middle."""
CLOSEST = 0.15
"""Zeros are no small amounts where the least amount is more than this part of the median one."""
ZEROS = 0.32
"""Where more rows than this share are zero, it is a value of its own."""
SWINGS = 5.0
"""A negative value is isolated where it is so many interquartile ranges below the lowest quartile."""


def odd_values(name: str, values: np.ndarray, subject: np.ndarray, dose: bool = False) -> list[str]:
    """What is odd about the numbers of a column; `subject` says whose each is. Of a `dose`, 0 is no oddity."""
    known = ~np.isnan(values)
    values, subject = values[known], subject[known]
    if len(values) < 10 or len(np.unique(values)) < 3:
        return []
    notes, odd = _codes(name, values), _coded(values)
    values, subject = values[~odd], subject[~odd]
    if not len(values):
        return notes
    notes += _negative(name, values)
    if not dose:
        notes += _zeros(name, values)
    units = _units(name, values, subject)
    notes += units or _isolated(name, values)
    return [*notes, *_pile(name, values, dose)]


def odd_rewards(name: str, values: np.ndarray, ends: np.ndarray, subject: np.ndarray) -> list[str]:
    """What is odd about rewards: those of `ends` may be unlike all others."""
    notes = _units(name, values[~ends], subject[~ends], "earn")
    if notes:
        return notes
    for rows in (~ends, ends):
        notes = _isolated(name, values[rows], ISOLATED * 2)
        if notes and len(np.unique(values[rows])) > 2:
            return notes
    return []


def isolated_values(values: np.ndarray) -> int:
    """Count the values far from all others: codes for missing ones, a few below 0, and a few many times the rest."""
    values = values[~np.isnan(values)]
    if len(values) < 10 or len(np.unique(values)) < 3:
        return 0
    coded = _coded(values)
    rest = values[~coded]
    return int(coded.sum()) + (_count_below(rest) + _count_large(rest, ISOLATED) if len(rest) else 0)


def _coded(values: np.ndarray) -> np.ndarray:
    """Which values are codes for missing ones."""
    odd = np.zeros(len(values), dtype=bool)
    for code in CODES:
        here, others = values == code, values[~np.isin(values, CODES)]
        if not here.any() or not len(others):
            continue
        low, high = others.min(), others.max()
        room = max(high - low, 1e-9)
        odd |= here & (code < low - room or code > high + room)
    positive = values[~np.isin(values, BELOW)]
    if len(positive) and positive.min() >= 0:
        odd |= np.isin(values, BELOW)
    return odd


def _codes(name: str, values: np.ndarray) -> list[str]:
    odd = _coded(values)
    if not odd.any():
        return []
    codes = ", ".join(f"{code:g}" for code in np.unique(values[odd]))
    return [
        f"column '{name}' has {_rows(odd.sum())} with {codes}, far from all other values, as codes for missing ones"
        " are; leave such cells empty"
    ]


def _negative(name: str, values: np.ndarray) -> list[str]:
    """A few negative values among positive ones."""
    count = _count_below(values)
    if not count:
        return []
    return [f"column '{name}' has {_rows(count)} below 0, far from all others; correct or empty such cells"]


def _count_below(values: np.ndarray) -> int:
    """Count the negative values where they are few and far from the others."""
    below, quarters = values < 0, np.quantile(values, (0.25, 0.75))
    few = 0 < below.sum() <= max(FEW_ROWS, FEW_SHARE * len(values))
    far = values.min() < quarters[0] - SWINGS * (quarters[1] - quarters[0])
    return int(below.sum()) if few and far else 0


def _zeros(name: str, values: np.ndarray) -> list[str]:
    """Zeros in a column whose other values stay away from 0."""
    zero = values == 0
    above = values[~zero]
    if not 0 < zero.mean() < ZEROS or len(np.unique(above)) < DISTINCT or above.min() <= CLOSEST * np.median(above):
        return []
    return [
        f"column '{name}' has {_rows(zero.sum())} with 0 while no other value comes near it; if 0 stands for a missing"
        " value, leave such cells empty"
    ]


def _units(name: str, values: np.ndarray, subject: np.ndarray, verb: str = "have") -> list[str]:
    """Two groups of subjects, or of rows, whose amounts differ by a factor."""
    used = values != 0
    if not used.any() or max((values[used] > 0).mean(), (values[used] < 0).mean()) < ONE_SIGN:
        return []
    logs, whose = np.log10(np.abs(values[used])), subject[used]
    if len(logs) < 10:
        return []
    order = np.lexsort((logs, whose))
    first = np.flatnonzero(np.r_[True, np.diff(whose[order]) != 0])
    count = np.diff(np.r_[first, len(order)])
    middle = logs[order][first + count // 2]
    owner = np.repeat(np.arange(len(first)), count)
    centred = np.empty_like(logs)
    centred[order] = logs[order] - middle[owner]
    amounts = len(np.unique(logs)) >= DISTINCT
    for what, sample in (("subject", middle), ("row", logs), ("row", centred)):
        found = _two_groups(sample, amounts, TAIL if what == "subject" else ROW_TAIL)
        if found is not None:
            few, factor = found
            likeness = " as between two units" if _known(factor) else ""
            return [
                f"column '{name}': the values of {few} of {len(sample)} {what}s are about {_said(factor)} those of the"
                f" others,{likeness or ' as if of another unit or another column'}; write all in one unit"
            ]
    return []


def _two_groups(sample: np.ndarray, amounts: bool, tail: float) -> tuple[int, float] | None:
    """How many are in the smaller of two groups that lie clearly apart, and by what factor; none where there is one.

    Where they are no `amounts` but a few steps, as doses of 5 and 50, groups lie farther apart.
    """
    ordered = np.sort(sample)
    least = max(LEAST, round(LEAST_SHARE * len(ordered)))
    if len(ordered) < 2 * least + 1:
        return None
    places = np.arange(least, len(ordered) - least + 1)
    total = np.cumsum(ordered)
    below, above = total[places - 1] / places, (total[-1] - total[places - 1]) / (len(ordered) - places)
    gaps = ordered[places] - ordered[places - 1]
    between = places * (len(ordered) - places) * (above - below) ** 2
    for cut in (int(places[between.argmax()]), int(places[gaps.argmax()])):
        low, high = ordered[:cut], ordered[cut:]
        apart = float(np.median(high) - np.median(low))
        within = float(max(each.std() for each in (low, high) if len(each) >= SMALL * len(ordered)))
        known = apart >= FAR and apart >= CLEARER * within and _known(10**apart)
        empty = ordered[cut] - ordered[cut - 1]
        compact = min(len(low), len(high)) >= SMALL * len(ordered) or empty >= max(apart / 2, CLEAR * within)
        compact = compact and low.std() <= tail * max(high.std(), 0.05)
        if compact and ((known and amounts) or (apart >= (APART if amounts else FARTHEST) and apart >= CLEAR * within)):
            few = min(len(low), len(high))
            return few, 10 ** (apart if len(high) <= len(low) else -apart)
    return None


def _known(factor: float) -> bool:
    return bool((np.abs(np.abs(np.log10(factor)) - np.log10(FACTORS)) < NEAR).any())


def _said(factor: float) -> str:
    whole = f"{float(f'{max(factor, 1 / factor):.2g}'):,g}"
    return f"{whole} times" if factor >= 1 else f"1/{whole} of"


def _isolated(name: str, values: np.ndarray, times: float = ISOLATED) -> list[str]:
    """A few values that are many times all others."""
    count = _count_large(values, times)
    if not count:
        return []
    return [
        f"column '{name}' has {_rows(count)} with more than {times:g} times the largest of all others;"
        " correct or empty such cells"
    ]


def _count_large(values: np.ndarray, times: float) -> int:
    """Count the values that are `times` the largest of all others, where they are few."""
    sizes = np.sort(np.abs(values[values != 0]))
    if len(sizes) < 10:
        return 0
    few = int(max(FEW_ROWS, FEW_SHARE * len(sizes)))
    logs = np.log10(sizes)
    middle, low, high = np.median(logs), *np.quantile(logs, (0.25, 0.75))
    spread = max((high - low) / 1.349, 0.02)
    steps = np.diff(logs)[-few:]
    if not (steps > np.log10(times)).any():
        return 0
    first = int(np.flatnonzero(steps > np.log10(times))[0]) + len(logs) - len(steps)
    return 0 if logs[first] < middle + ROBUST * spread else len(logs) - first


def _pile(name: str, values: np.ndarray, dose: bool) -> list[str]:
    """Many rows at the highest or the lowest value of an amount."""
    levels, counts = np.unique(values, return_counts=True)
    if len(levels) < DISTINCT:
        return []
    notes = []
    for place, what in ((-1, "highest"), (0, "lowest")):
        others = np.delete(counts, np.append(np.flatnonzero(levels == 0), place % len(levels)))
        piled = counts[place] >= max(10, CEILING * len(values)) and counts[place] >= PILED * others.max()
        if piled and not (levels[place] == 0 or (dose and place == 0)):
            notes.append(
                f"column '{name}' has {counts[place] / len(values):.0%} of its rows at its {what} value: is that a"
                " limit of what is measured? What lies beyond it is not in the table"
            )
    return notes


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
