"""What `test_runs.py` shares with other test modules."""

from counterpoint.models.dynamics.outcome import Outcome
from helpers.recipes import BRIEF

SMALL_OUTCOME = Outcome(hidden=(8,), likelihood=BRIEF)
