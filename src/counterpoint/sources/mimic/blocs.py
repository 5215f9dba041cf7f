"""Four hours of a stay as one row: the mean of what was measured and held, and the doses that were given in them.

The first bloc begins with the first record of the window; a bloc in which nobody looked at the patient has no row.

The published code counts what falls on the border of two blocs in both, an infusion that starts on one twice, and
forgets what was given in a bloc without a row. `faithful` does the same; else a bloc holds its beginning, not its end.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from counterpoint.data.tables.clock import changes
from counterpoint.sources.mimic.columns import DOSES, MEASURED
from counterpoint.sources.mimic.physiology import Measurements, completed, record
from counterpoint.sources.mimic.steps import Workspace

BLOC, MOST = 4 * 3600, 20
"""Seconds of a bloc, and how many a window has."""
STAYS = 500
"""Stays that are worked on at a time, so that memory does not grow with the database."""


class Window(NamedTuple):
    """Hours before and after onset that are looked at."""

    before: int
    after: int


DEFINITION, DECISIONS = Window(53, 29), Window(29, 53)
"""Of the score that defines sepsis, and of the decisions: −48 to +24 and −24 to +48 with five hours of leeway each."""


class BlocIndex(NamedTuple):
    """The blocs of some stays: place 0 is all the time before the first, place k the k-th bloc."""

    stay: np.ndarray
    begin: np.ndarray
    faithful: bool

    @property
    def low(self) -> np.ndarray:
        return np.column_stack([np.zeros(len(self.begin)), self.begin[:, None] + BLOC * np.arange(MOST)])

    @property
    def high(self) -> np.ndarray:
        return self.begin[:, None] + BLOC * np.arange(MOST + 1)

    def places(self, stay: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.stay, stay)

    def holds(self, stay: np.ndarray, time: np.ndarray) -> np.ndarray:
        """[n, blocs + 1]: which bloc each moment belongs to."""
        own = self.places(stay)
        low, high, time = self.low[own], self.high[own], time[:, None]
        return (time >= low) & ((time <= high) if self.faithful else (time < high))

    def touches(self, stay: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """[n, blocs + 1]: which blocs each interval reaches into."""
        own = self.places(stay)
        low, high, start, stop = self.low[own], self.high[own], start[:, None], stop[:, None]
        if self.faithful:
            return (stop >= low) & (start <= high)
        return (start < high) & ((stop > low) | (start >= low))

    def hours(self, stay: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """[n, blocs + 1]: hours of each interval in each bloc."""
        own = self.places(stay)
        low, high, start, stop = self.low[own], self.high[own], start[:, None], stop[:, None]
        if not self.faithful:
            return np.clip(np.minimum(stop, high) - np.maximum(start, low), 0, None) / 3600
        inside = (stop - start) * ((stop <= high) & (start >= low))
        ends = (stop - low) * ((start <= low) & (stop <= high) & (stop >= low))
        starts = (high - start) * ((start >= low) & (stop >= high) & (start <= high))
        whole = (high - low) * ((stop >= high) & (start <= low))
        return (inside + ends + starts + whole) / 3600


def blocs(space: Workspace, window: Window, among: str) -> Iterator[pd.DataFrame]:
    """The rows of the stays in the table `among`, in the order of stay and bloc, some stays at a time."""
    hours = dict(space.rows("SELECT DISTINCT variable, hold FROM items WHERE hold IS NOT NULL ORDER BY 1").to_numpy())
    stays = space.rows(f"SELECT stay FROM {among} ORDER BY stay")["stay"].to_numpy()
    pieces = [stays[i : i + STAYS] for i in range(0, len(stays), STAYS)] or [stays]
    for number, piece in enumerate(pieces):
        space.report(f"blocs of {among}", number, len(pieces))
        yield _piece(space, window, piece, hours, space.settings["mode"] == "faithful")
    space.report(f"blocs of {among}", len(pieces), len(pieces))


def _piece(
    space: Workspace, window: Window, stays: np.ndarray, hours: dict[str, float], faithful: bool
) -> pd.DataFrame:
    chosen = pd.DataFrame({"stay": stays.astype(np.int64)})
    space.connection.register("chosen", chosen)
    events = space.rows(
        "SELECT stay, time, variable, value FROM events JOIN chosen USING (stay) JOIN onset USING (stay)"
        f" WHERE time BETWEEN onset - {window.before * 3600} AND onset + {window.after * 3600} ORDER BY ALL"
    )
    seen = record(*(events[name].to_numpy() for name in ("stay", "time", "variable", "value")))
    first = np.flatnonzero(changes(seen.stay)[: len(seen.stay)])
    grid = BlocIndex(seen.stay[first], seen.time[first], faithful)
    rows = _means(completed(seen, hours), grid)
    last = seen.time[np.r_[first, len(seen.time)][1:] - 1]
    rows["last_time"] = last[grid.places(rows["stay"].to_numpy())]
    given = {name: space.rows(f"SELECT * FROM {name} JOIN chosen USING (stay) ORDER BY ALL")
             for name in ("fluids", "vasopressors", "urine", "before_admission")}  # fmt: skip
    space.connection.unregister("chosen")
    return _with_doses(rows, grid, {name: table[table["stay"].isin(grid.stay)] for name, table in given.items()})


def _means(seen: Measurements, grid: BlocIndex) -> pd.DataFrame:
    """The mean of every variable over the times of each bloc; a bloc without a time is left out."""
    row, place = np.nonzero(grid.holds(seen.stay, seen.time)[:, 1:])
    stay = grid.places(seen.stay)[row]
    cell = stay * MOST + place
    present, cell = np.unique(cell, return_inverse=True)
    columns = {"stay": grid.stay[present // MOST], "bloc": present % MOST + 1}
    columns["start"] = grid.begin[present // MOST] + BLOC * (present % MOST)
    for name in (*MEASURED, "mechvent"):
        value = seen.values[name][row]
        known = ~np.isnan(value)
        count = np.bincount(cell[known], minlength=len(present))
        total = np.bincount(cell[known], value[known], minlength=len(present))
        columns[name] = np.divide(total, count, out=np.full(len(present), np.nan), where=count > 0)
    columns["mechvent"] = (np.nan_to_num(columns["mechvent"]) > 0).astype(np.int64)
    return pd.DataFrame(columns)


def _with_doses(rows: pd.DataFrame, grid: BlocIndex, given: dict[str, pd.DataFrame]) -> pd.DataFrame:
    stay, bloc = grid.places(rows["stay"].to_numpy()), rows["bloc"].to_numpy()
    counted = np.ones((len(grid.stay), MOST + 1), dtype=bool)
    if grid.faithful:
        counted[:, 1:] = False
        counted[stay, bloc] = True
    before = given["before_admission"]
    fluid, urine = _fluid(grid, given["fluids"]), _urine(grid, given["urine"])
    totals = []
    for amount, name in ((fluid, "fluid"), (urine, "urine")):
        earlier = np.zeros(len(grid.stay))
        earlier[grid.places(before["stay"].to_numpy())] = before[name].to_numpy()
        totals.append(earlier[:, None] + np.cumsum(amount * counted, 1))
    highest, median = _vasopressors(grid, given["vasopressors"])
    doses = (highest, median, totals[0], fluid, totals[1], urine, totals[0] - totals[1])
    rows = rows.assign(**{name: dose[stay, bloc] for name, dose in zip(DOSES, doses, strict=True)})
    inputs = ["input_total", "input_4hourly"]
    return rows.assign(**rows[inputs].clip(lower=0))  # Less than nothing is a slip of the pump's record.


def _fluid(grid: BlocIndex, fluids: pd.DataFrame) -> np.ndarray:
    """Millilitres in each place: rates for their hours, and single volumes."""
    amount = np.zeros((len(grid.stay), MOST + 1))
    stay, start, stop, rate, volume = (fluids[n].to_numpy(float) for n in ("stay", "start", "stop", "rate", "volume"))
    poured = np.isnan(rate) | np.isnan(stop)
    np.add.at(amount, grid.places(stay[poured]), volume[poured, None] * grid.holds(stay[poured], start[poured]))
    flows = ~poured
    hours = grid.hours(stay[flows], start[flows], stop[flows])
    np.add.at(amount, grid.places(stay[flows]), rate[flows, None] * hours)
    return amount


def _urine(grid: BlocIndex, urine: pd.DataFrame) -> np.ndarray:
    amount = np.zeros((len(grid.stay), MOST + 1))
    stay, time, volume = (urine[name].to_numpy(float) for name in ("stay", "time", "volume"))
    np.add.at(amount, grid.places(stay), volume[:, None] * grid.holds(stay, time))
    return amount


def _vasopressors(grid: BlocIndex, given: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The highest and the median dose in each place; 0 where none was given."""
    stay, start, stop, dose = (given[name].to_numpy(float) for name in ("stay", "start", "stop", "dose"))
    row, place = np.nonzero(grid.touches(stay, start, stop))
    found = pd.DataFrame({"stay": grid.places(stay)[row], "place": place, "dose": dose[row]})
    highest, median = np.zeros((2, len(grid.stay), MOST + 1))
    for amount, how in ((highest, "max"), (median, "median")):
        each = found.groupby(["stay", "place"])["dose"].agg(how).reset_index()
        amount[each["stay"].to_numpy(int), each["place"].to_numpy(int)] = each["dose"].to_numpy()
    return highest, median
