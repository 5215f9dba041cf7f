"""What the name of a column says of it."""

import re
from collections.abc import Sequence
from typing import Literal

PEOPLE = {"id", "identifier", "patient", "pat", "pid", "subject", "person", "participant", "mrn", "individual",
          "animal", "traj", "trajectory"}  # fmt: skip
STAYS = {"stay", "icustay", "encounter", "episode", "hadm"}
NUMBERED = {"case", "unit", "user", "uniquep"}, {"admission", "hospitalization"}
"""People and stays, where a number or an id of theirs is named."""
CLOCKS = {"time", "hour", "hours", "step", "bloc", "block", "date", "datetime", "timestamp", "timestep", "day", "days",
          "minute", "minutes", "week", "month", "visit", "period", "window", "cycle", "t"}  # fmt: skip
MOMENTS = ("time", "date", "timestamp")
ENDS = ("died", "death", "dead", "mort", "deceased", "expire", "discharg", "surviv", "alive", "terminal", "terminated",
        "done", "outcome")  # fmt: skip
GENERAL = ("terminal", "terminated", "done", "outcome")
"""An end of whatever kind; a column that says more is taken first."""
STOPS = ("truncated", "censored", "timeout")
TREATMENTS = ("dose", "treatment", "drug", "vaso", "iv", "fluid", "medication", "infusion", "therapy", "input",
              "insulin", "heparin", "norepinephrine", "chemo", "radio")  # fmt: skip
SUMS = ("total", "cum", "sum", "balance")


def tokens_of(name: str) -> list[str]:
    """The words of a column's name: 'maxDose_vaso' is max, dose, vaso."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def says(name: str, words: Sequence[str]) -> bool:
    """Whether a word of the name is one of these, or begins with one that is long enough to tell."""
    return any(
        token == word or (len(word) > 2 and token.startswith(word)) for token in tokens_of(name) for word in words
    )


def id_of(name: str) -> Literal["", "person", "stay"]:
    """Whether a name is that of an id, and of whose."""
    compact = "".join(tokens_of(name))
    bare = re.sub(r"(identifier|id|number|num|nr|no|key)$", "", compact)
    if compact in PEOPLE or (bare != compact and bare in PEOPLE | NUMBERED[0]):
        return "person"
    stay = bare in NUMBERED[1] or bare.endswith(("stay", "encounter"))
    return "stay" if compact in STAYS or (bare != compact and (stay or bare in STAYS)) else ""


def is_clock(name: str) -> bool:
    tokens = tokens_of(name)
    return bool(CLOCKS & set(tokens)) or "".join(tokens).endswith(MOMENTS)


def state_before(name: str) -> str:
    """The state that a column is the next one of."""
    bare = name.removeprefix("next_").removesuffix("_next")
    return bare if bare != name else ""
