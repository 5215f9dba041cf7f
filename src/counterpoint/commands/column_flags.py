"""How a command is told what is in a user's table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from counterpoint.data.dataframe import from_dataframe
from counterpoint.data.storage import read
from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError


@dataclass(frozen=True)
class Columns:
    """Names of the columns of your own CSV or Parquet table; not needed for tables that counterpoint wrote."""

    subject: str = ""
    """Column that says whose row it is."""
    time: str = ""
    """Column that orders the rows of a subject."""
    state: tuple[str, ...] = ()
    """Columns of the state."""
    action: tuple[str, ...] = ()
    """Column (or columns) of the action."""
    reward: str = ""
    """Column of the reward."""
    done: tuple[str, ...] = ()
    """Column that is true where an episode ends with an outcome; several, such as died discharged, are told apart."""
    last: Literal["truncate", "terminal", "drop"] | None = None
    """What a subject's last row means where `done` does not say."""

    def read(self, path: Path) -> Transitions:
        """The table as transitions."""
        if not self.subject:
            return read(path)
        missing = [name for name in ("time", "state", "action", "reward") if not getattr(self, name)]
        if missing:
            raise CounterpointError(
                f"--{missing[0]} is missing; name the columns of '{path}' for subject, time, state, action and reward"
            )
        return from_dataframe(
            path,
            subject=self.subject,
            time=self.time,
            state=self.state,
            action=self.action,
            reward=self.reward,
            done=self.done,
            last=self.last,
        )
