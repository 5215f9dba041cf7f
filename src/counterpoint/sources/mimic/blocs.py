"""Blocs: four hours of a stay as one row, with the means of the measurements and the doses given.

The first bloc begins with the first record of the window; a bloc without a record has no row.

The published code counts an event on the border of two blocs in both, an infusion that starts on one twice, and omits
doses in blocs without a row. `faithful` does the same; otherwise a bloc includes its beginning, not its end.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from counterpoint.data.tables.clock import changes
from counterpoint.sources.mimic.columns import DOSES, MEASURED
from counterpoint.sources.mimic.physiology import Measurements, completed, record
from counterpoint.sources.mimic.steps import Workspace

if TYPE_CHECKING:
    import pandas as pd

BLOC, MOST = 4 * 3600, 20
"""Seconds of a bloc, and the number of blocs in a window."""
STAYS = 500
"""Stays per piece, so that memory does not grow with the database."""


class Window(NamedTuple):
    """Hours before and after the onset."""

    before: int
    after: int


DEFINITION, DECISIONS = Window(53, 29), Window(29, 53)
"""Windows of the score that defines sepsis and of the decisions: −48 to +24 and −24 to +48, each widened by 5 hours."""


class BlocIndex(NamedTuple):
    """The blocs of some stays: column 0 is all the time before the first bloc, column k the k-th bloc."""

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
        """Return [n, blocs + 1]: which bloc each moment belongs to."""
        rows = self.places(stay)
        low, high, time = self.low[rows], self.high[rows], time[:, None]
        return (time >= low) & ((time <= high) if self.faithful else (time < high))

    def touches(self, stay: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return [n, blocs + 1]: which blocs each interval overlaps."""
        rows = self.places(stay)
        low, high, start, stop = self.low[rows], self.high[rows], start[:, None], stop[:, None]
        if self.faithful:
            return (stop >= low) & (start <= high)
        return (start < high) & ((stop > low) | (start >= low))

    def hours(self, stay: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return [n, blocs + 1]: hours of each interval in each bloc."""
        rows = self.places(stay)
        low, high, start, stop = self.low[rows], self.high[rows], start[:, None], stop[:, None]
        if not self.faithful:
            return np.clip(np.minimum(stop, high) - np.maximum(start, low), 0, None) / 3600
        inside = (stop - start) * ((stop <= high) & (start >= low))
        ends = (stop - low) * ((start <= low) & (stop <= high) & (stop >= low))
        starts = (high - start) * ((start >= low) & (stop >= high) & (start <= high))
        whole = (high - low) * ((stop >= high) & (start <= low))
        return (inside + ends + starts + whole) / 3600


def blocs(space: Workspace, window: Window, among: str) -> "Iterator[pd.DataFrame]":
    """Yield the rows of the stays in table `among`, sorted by stay and bloc, some stays at a time."""
    hours = dict(space.rows("SELECT DISTINCT variable, hold FROM items WHERE hold IS NOT NULL ORDER BY 1").to_numpy())
    stays = space.rows(f"SELECT stay FROM {among} ORDER BY stay")["stay"].to_numpy()
    pieces = [stays[i : i + STAYS] for i in range(0, len(stays), STAYS)] or [stays]
    for number, piece in enumerate(pieces):
        space.report(f"blocs of {among}", number, len(pieces))
        yield _piece(space, window, piece, hours, space.settings["mode"] == "faithful")
    space.report(f"blocs of {among}", len(pieces), len(pieces))


def _piece(
    space: Workspace, window: Window, stays: np.ndarray, hours: dict[str, float], faithful: bool
) -> "pd.DataFrame":
    import pandas as pd

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
    tables = {name: space.rows(f"SELECT * FROM {name} JOIN chosen USING (stay) ORDER BY ALL")
             for name in ("fluids", "vasopressors", "urine", "before_admission")}  # fmt: skip
    space.connection.unregister("chosen")
    return _with_doses(rows, grid, {name: table[table["stay"].isin(grid.stay)] for name, table in tables.items()})


def _means(seen: Measurements, grid: BlocIndex) -> "pd.DataFrame":
    """Return the mean of every variable in each bloc; a bloc without a record is left out."""
    import pandas as pd

    row, place = np.nonzero(grid.holds(seen.stay, seen.time)[:, 1:])
    stay = grid.places(seen.stay)[row]
    cell = stay * MOST + place
    cells, cell = np.unique(cell, return_inverse=True)
    columns = {"stay": grid.stay[cells // MOST], "bloc": cells % MOST + 1}
    columns["start"] = grid.begin[cells // MOST] + BLOC * (cells % MOST)
    for name in (*MEASURED, "mechvent"):
        value = seen.values[name][row]
        present = ~np.isnan(value)
        count = np.bincount(cell[present], minlength=len(cells))
        total = np.bincount(cell[present], value[present], minlength=len(cells))
        columns[name] = np.divide(total, count, out=np.full(len(cells), np.nan), where=count > 0)
    columns["mechvent"] = (np.nan_to_num(columns["mechvent"]) > 0).astype(np.int64)
    return pd.DataFrame(columns)


def _with_doses(rows: "pd.DataFrame", grid: BlocIndex, tables: "dict[str, pd.DataFrame]") -> "pd.DataFrame":
    stay, bloc = grid.places(rows["stay"].to_numpy()), rows["bloc"].to_numpy()
    counted = np.ones((len(grid.stay), MOST + 1), dtype=bool)
    if grid.faithful:
        counted[:, 1:] = False
        counted[stay, bloc] = True
    before = tables["before_admission"]
    fluid, urine = _fluid(grid, tables["fluids"]), _urine(grid, tables["urine"])
    totals = []
    for amount, name in ((fluid, "fluid"), (urine, "urine")):
        earlier = np.zeros(len(grid.stay))
        earlier[grid.places(before["stay"].to_numpy())] = before[name].to_numpy()
        totals.append(earlier[:, None] + np.cumsum(amount * counted, 1))
    highest, median = _vasopressors(grid, tables["vasopressors"])
    doses = (highest, median, totals[0], fluid, totals[1], urine, totals[0] - totals[1])
    rows = rows.assign(**{name: dose[stay, bloc] for name, dose in zip(DOSES, doses, strict=True)})
    inputs = ["input_total", "input_4hourly"]
    return rows.assign(**rows[inputs].clip(lower=0))  # Negative amounts are recording errors.


def _fluid(grid: BlocIndex, fluids: "pd.DataFrame") -> np.ndarray:
    """Return the millilitres in each bloc: rates times hours, and single volumes."""
    amount = np.zeros((len(grid.stay), MOST + 1))
    stay, start, stop, rate, volume = (fluids[n].to_numpy(float) for n in ("stay", "start", "stop", "rate", "volume"))
    poured = np.isnan(rate) | np.isnan(stop)
    np.add.at(amount, grid.places(stay[poured]), volume[poured, None] * grid.holds(stay[poured], start[poured]))
    flows = ~poured
    hours = grid.hours(stay[flows], start[flows], stop[flows])
    np.add.at(amount, grid.places(stay[flows]), rate[flows, None] * hours)
    return amount


def _urine(grid: BlocIndex, urine: "pd.DataFrame") -> np.ndarray:
    amount = np.zeros((len(grid.stay), MOST + 1))
    stay, time, volume = (urine[name].to_numpy(float) for name in ("stay", "time", "volume"))
    np.add.at(amount, grid.places(stay), volume[:, None] * grid.holds(stay, time))
    return amount


def _vasopressors(grid: BlocIndex, table: "pd.DataFrame") -> tuple[np.ndarray, np.ndarray]:
    """Return the highest and the median dose in each bloc; 0 where none was given."""
    import pandas as pd

    stay, start, stop, dose = (table[name].to_numpy(float) for name in ("stay", "start", "stop", "dose"))
    row, place = np.nonzero(grid.touches(stay, start, stop))
    doses = pd.DataFrame({"stay": grid.places(stay)[row], "place": place, "dose": dose[row]})
    highest, median = np.zeros((2, len(grid.stay), MOST + 1))
    for amount, how in ((highest, "max"), (median, "median")):
        cells = doses.groupby(["stay", "place"])["dose"].agg(how).reset_index()
        amount[cells["stay"].to_numpy(int), cells["place"].to_numpy(int)] = cells["dose"].to_numpy()
    return highest, median
