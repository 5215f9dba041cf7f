"""Guess roles of state columns that the rows show beyond doubt, and ask about those that only the user can know.

A guess is part of the suggested flags: a column that advances by one amount and begins again is cyclic, one that is a
linear function of its own value and the doses is a recursion, values that pile up at an extreme are a sensor's limit.
That no action changes a column, or that a dose acts per kilogram, is a question: it is never declared silently.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from counterpoint.core.errors import CounterpointError
from counterpoint.data.doses import Bins
from counterpoint.data.knowledge import Recursion
from counterpoint.data.tables.clock import REGULAR
from counterpoint.data.tables.inspection.facts import AMOUNTS, BEYOND, RoleGuess
from counterpoint.data.tables.inspection.roles import says
from counterpoint.data.tables.inspection.survey import Survey, SurveyedColumn
from counterpoint.data.tables.made_columns import UNEXPLAINED, Rows, fit_recursion, recursion_text

PAIRS = 50
"""Pairs of consecutive rows that a guess needs."""
MOST_ROWS = 20_000
"""Rows that are looked at."""
WRAPS, FEWEST_STEPS = 5, 4
"""Times that a cyclic column begins again, at least, and steps of its period."""
ROUNDED = 1e-6
"""Relative difference of equal steps."""
PILE, DISTINCT, NEIGHBOURS, TIMES = 0.01, 20, 10, 5
"""Values at an extreme pile up where they are this share of the rows, and this many times as frequent as the mean of
this many neighbours, in a column of so many distinct values."""
FAINT = 2.0
"""Standard errors below which an action does not seem to change a column."""
QUESTION_PAIRS = 200
"""Pairs of consecutive rows that a question needs."""
INPUTS = ("meal", "carb", "food", "eaten", "intake", "feed", "census", "occupancy", "staff", "weekday", "weekend",
          "season", "outdoor", "temperature_outside", "exercise", "announced")  # fmt: skip
"""Names of columns that actions seldom cause."""
MOSTLY_ZERO = 0.5
"""Share of zeros from which a column looks like an input that comes and goes."""
WEIGHTS = ("weight", "kg", "bsa", "bodyweight", "wt")


@dataclass(frozen=True)
class _Pairs:
    """Consecutive rows of one record, as places in sorted order."""

    before: np.ndarray
    after: np.ndarray


def guess_roles(survey: Survey, bins: Sequence[Bins]) -> tuple[RoleGuess, ...]:
    """Return the roles of state columns that the rows show, with the flags that declare them."""
    pairs = _pairs(survey)
    columns = [column for column in survey.with_role("state") if _changes(survey, column)]
    guesses: list[RoleGuess] = []
    if len(pairs.before) >= PAIRS and not survey.roles["next_state"]:
        for column in columns:
            guess = _cyclic(survey, column, pairs) or _recursion(survey, column, pairs, bins)
            guesses += [guess] if guess else []
    taken = {guess.column for guess in guesses}
    bounds = [_bounds(survey, column) for column in columns if column.name not in taken]
    return (*guesses, *(guess for guess in bounds if guess and _is_known(guess)))


def ask_roles(survey: Survey, guesses: Sequence[RoleGuess]) -> tuple[RoleGuess, ...]:
    """Return questions about roles that only the user can answer."""
    taken = {guess.column for guess in guesses if guess.setting != "bounds"}
    pairs = _pairs(survey)
    questions: list[RoleGuess] = []
    if len(pairs.before) >= QUESTION_PAIRS and survey.roles["action"]:
        for column in survey.with_role("state"):
            likely = says(column.name, INPUTS) or float((column.values == 0).mean()) >= MOSTLY_ZERO
            changes = column.name not in taken and _changes(survey, column)
            if likely and changes and _no_action_changes(survey, column, pairs):
                why = f"no action seems to change '{column.name}'; declare it if none can"
                questions.append(RoleGuess("exogenous", column.name, column.name, why))
    bounds = [_bounds(survey, column) for column in survey.with_role("state") if _changes(survey, column)]
    questions += [guess for guess in bounds if guess and guess.column not in taken and not _is_known(guess)]
    doses = [column.name for column in survey.with_role("action") if _is_amount(column) and column.distinct > 2]
    weights = [
        column.name
        for column in survey.with_role("state")
        if column.name in survey.static and column.kind == "number" and says(column.name, WEIGHTS)
        if (column.values > 0).all()
    ]
    if weights:
        for dose in doses:
            why = f"declare it if '{dose}' acts per unit of '{weights[0]}' and is not given per unit already"
            questions.append(RoleGuess("per", f"{dose}:{weights[0]}", dose, why))
    return tuple(questions)


def _pairs(survey: Survey) -> _Pairs:
    clock = survey.clock
    follows = ~clock.records.opens & ~clock.repeated & (np.abs(clock.elapsed - 1) <= REGULAR)
    after = np.flatnonzero(follows)
    ended = np.zeros(len(follows), dtype=bool)
    for role in ("done", "truncated"):
        for column in survey.with_role(role):
            ended |= survey.flag(column)
    after = after[~ended[after - 1]][:MOST_ROWS]
    return _Pairs(after - 1, after)


def _is_amount(column: SurveyedColumn) -> bool:
    return column.kind in AMOUNTS and not column.labels


def _changes(survey: Survey, column: SurveyedColumn) -> bool:
    """Return whether a column is a number without missing values that changes within subjects."""
    number = column.kind in ("number", "whole number") and column.name not in survey.static
    return number and column.distinct > 2 and not np.isnan(column.values).any()


def _cyclic(survey: Survey, column: SurveyedColumn, pairs: _Pairs) -> RoleGuess | None:
    """Guess a column that advances by one amount in every row and begins again after one period."""
    values = survey.sorted(column)
    change = values[pairs.after] - values[pairs.before]
    forward, back = change[change > 0], change[change < 0]
    if len(forward) + len(back) < len(change) or len(back) < WRAPS:
        return None
    step, period = float(np.median(forward)), float(np.median(forward) - np.median(back))
    near = ROUNDED * max(period, 1.0)
    even = np.abs(forward - step).max() <= near and np.abs(back - (step - period)).max() <= near
    inside = values.min() >= 0 and values.max() <= period + near
    if not even or not inside or period < FEWEST_STEPS * step:
        return None
    why = f"'{column.name}' advances by {step:g} in every row and begins again after {period:g}"
    return RoleGuess("cyclic", f"{column.name}={period:.10g}", column.name, why)


def _recursion(survey: Survey, column: SurveyedColumn, pairs: _Pairs, bins: Sequence[Bins]) -> RoleGuess | None:
    """Guess a column that is a linear function of its own value and the doses: learned from half of the subjects, it
    holds in the others."""
    doses = [dose for dose in survey.with_role("action") if _is_amount(dose) and not np.isnan(dose.values).any()]
    subjects = survey.records.subject[pairs.before]
    training = subjects % 2 == 0
    if len(np.unique(subjects)) < 2 or not 2 < int(training.sum()) < len(training):
        return None
    values = survey.sorted(column)
    action = np.column_stack([survey.sorted(dose)[pairs.before] for dose in doses] or [np.zeros((len(subjects), 0))])
    state, after = values[pairs.before, None], values[pairs.after, None]
    rows = Rows((column.name,), tuple(dose.name for dose in doses), state, action, after, training)
    try:
        recursion = fit_recursion(column.name, rows, ())
    except CounterpointError:
        return None
    if not _holds(recursion, rows):
        return None
    cut = {part.column for part in bins} & {source for source, _ in recursion.weights}
    if cut:
        return None  # Bins replace the doses that it is made of.
    return RoleGuess("recursion", column.name, column.name, f"in every row {recursion_text(recursion)}")


def _holds(recursion: Recursion, rows: Rows) -> bool:
    """Return whether a recursion holds in the rows that it was not learned from."""
    others = ~rows.training
    weights = dict(recursion.weights)
    expected = rows.state[others, 0] * weights.get(recursion.column, 0.0) + recursion.constant
    for i, name in enumerate(rows.actions):
        expected = expected + rows.action[others, i] * weights.get(name, 0.0)
    change = float((rows.after - rows.state)[others, 0].std())
    rest = float(np.sqrt(np.mean((rows.after[others, 0] - expected) ** 2)))
    scale = max(change, float(np.abs(recursion.constant)))
    return scale > 0 and rest <= UNEXPLAINED * scale


def _bounds(survey: Survey, column: SurveyedColumn) -> RoleGuess | None:
    """Guess the limits of a sensor, at which values pile up; a limit that no values show is LOWEST or HIGHEST."""
    if column.distinct < DISTINCT:
        return None
    values = survey.sorted(column)
    distinct, counts = np.unique(values, return_counts=True)
    low = distinct[0] != 0 and _piles_up(survey, values, distinct[0], counts)
    high = distinct[-1] != 0 and _piles_up(survey, values, distinct[-1], counts[::-1])
    if not (low or high):
        return None
    floor = f"{distinct[0]:.10g}" if low else "0" if distinct[0] >= 0 else "LOWEST"
    ceiling = f"{distinct[-1]:.10g}" if high else "HIGHEST"
    piles = [limit for limit, pile in ((floor, low), (ceiling, high)) if pile]
    why = f"values of '{column.name}' pile up at {' and '.join(piles)}, as at the limits of a sensor"
    return RoleGuess("bounds", f"{column.name}={floor},{ceiling}", column.name, why)


def _is_known(bounds: RoleGuess) -> bool:
    """Return whether both limits are known."""
    return "LOWEST" not in bounds.word and "HIGHEST" not in bounds.word


def _piles_up(survey: Survey, values: np.ndarray, extreme: float, counts: np.ndarray) -> bool:
    neighbours = counts[1 : 1 + NEIGHBOURS].mean()
    many = counts[0] >= PILE * len(values) and counts[0] >= TIMES * neighbours
    return bool(many) and survey.count_subjects(values == extreme) >= BEYOND


def _no_action_changes(survey: Survey, column: SurveyedColumn, pairs: _Pairs) -> bool:
    """Return whether no action is correlated with the next value, given the states that it was chosen in."""
    states = [
        other for other in survey.with_role("state") if other.kind in AMOUNTS and not np.isnan(other.values).any()
    ]
    before = np.column_stack([survey.sorted(other)[pairs.before] for other in states])
    target = _rest(before, survey.sorted(column)[pairs.after])
    for action in survey.with_role("action"):
        values = survey.sorted(action)[pairs.before]
        if np.isnan(values).any():
            return False
        codes = [(values == code).astype(float) for code in np.unique(values)] if action.labels else [values]
        for dose in codes:
            rest = _rest(before, dose)
            size = float(np.sqrt((rest**2).mean() * (target**2).mean()))
            effect = float((rest * target).mean()) / size if size > 1e-9 else 0.0
            if abs(effect) * np.sqrt(len(rest)) >= FAINT:
                return False
    return True


def _rest(states: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return what a linear regression on the states leaves of a column."""
    design = np.column_stack([np.ones(len(values)), states - states.mean(0)])
    return values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
