"""Names that moved to `executors.py`, until all experiments are on the frame of `experiment.py`."""

from reproduction.executors import RETRIES, Failure, Report, silent

__all__ = ["RETRIES", "Failure", "Report", "silent"]
