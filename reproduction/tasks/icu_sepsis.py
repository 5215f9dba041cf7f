"""ICU-Sepsis: sepsis patients of MIMIC-III as a decision process of 713 states and 25 treatments.

Choudhary, Gupta and Thomas, "ICU-Sepsis: A benchmark MDP built from real medical data", RLC 2024. The tables are read
from the installed package `icu-sepsis`; its environment is not needed. A return is survival.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from reproduction.tasks.finite import FiniteProcess

LIVING = 713
"""States of patients in treatment; death and survival follow."""
TABLES = Path("envs", "assets", "dynamics.npz")


class ICUSepsis(NamedTuple):
    """The process, and the clinicians' action probabilities."""

    process: FiniteProcess
    expert: Float[Tensor, "s a"]


def icu_sepsis() -> ICUSepsis:
    """Read the published process."""
    package = find_spec("icu_sepsis")
    if package is None or package.origin is None:
        raise CounterpointError("ICU-Sepsis is not installed; run pip install 'counterpoint[bench]'")
    with np.load(Path(package.origin).parent / TABLES) as tables:
        start, chance, expert = (torch.from_numpy(tables[name]) for name in ("d_0", "tx_mat", "expert_policy"))
    return ICUSepsis(FiniteProcess(start[:LIVING], chance[:LIVING, :, : LIVING + 2].float()), expert[:LIVING].float())
