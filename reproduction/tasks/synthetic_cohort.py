"""The synthetic ward's patients as a table with the columns of a MIMIC-III cohort and known counterfactuals.

A stay ends with an outcome, or is cut at the horizon: its last row is then `truncated`, the state after the last
decision, without doses and reward. Doses are the five amounts of each drug that the ward gives, so that the table's
actions are the task's. The table holds what a hospital would record; the noise is in `log()`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from counterpoint.core.errors import require
from counterpoint.core.settings import Count, Positive, Share, check_settings
from counterpoint.data.transitions import Transitions
from counterpoint.simulation.trials import simulate
from counterpoint.sources.mimic.cohort import write_parquet
from counterpoint.sources.mimic.columns import CTRL46, WHOLE
from counterpoint.sources.mimic.columns import DOSES as AMOUNTS
from counterpoint.sources.mimic.decisions import training_patients
from reproduction.tasks.sepsis import (
    ACTIONS,
    COMPUTED,
    DOSES,
    SyntheticSepsis,
    physician,
    population,
)

FLAGS = ("gender", "mechvent")


@dataclass(frozen=True)
class SyntheticCohort:
    """Patients of the synthetic ward, treated by its physician.

    Example:
        >>> cohort = SyntheticCohort(patients=50)
        >>> rows = cohort.log()
        >>> truth = cohort.task.counterfactual(rows[rows.has_next], rows[rows.has_next].action)
    """

    patients: Positive = 15_656
    """Patients, with one stay each; by default as many as the paper's cohort."""
    held_out: Share = 0.2
    """Share of the patients held out from learning."""
    seed: Count = 0
    """Seed of the patients, their records and the split."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.held_out < 1, "held_out=1 leaves nobody to learn from; give a share below 1")

    @property
    def task(self) -> SyntheticSepsis:
        """The simulator; its subject i is patient i of the table."""
        return SyntheticSepsis(population(self.patients, self.seed))

    def log(self) -> Transitions:
        """Simulate the log, with its noise."""
        task = self.task
        return simulate(task, physician(task), self.patients, task.horizon, self.seed)

    def build(self, out: Path) -> dict[str, Any]:
        """Write the table and return its counts and columns."""
        import pyarrow as pa

        log = self.log()
        rows = _rows(log)
        training = training_patients(rows.rename(columns={"patient": "subject_id"}), self.held_out, self.seed)
        rows["split"] = np.where(training, "training", "held out")
        write_parquet(pa.Table.from_pandas(rows, preserve_index=False), out)
        died, survived = ((log.outcome == place).sum() for place in (0, 1))
        return {
            "stays": self.patients, "rows": len(rows), "patients": self.patients,
            "training_patients": len(np.unique(rows["patient"].to_numpy()[training])), "died": int(died),
            "survived": int(survived), "cut_at_the_horizon": int(log.truncated.sum()),
            "actions_used": len(log.action_index.unique()),
            "cuts": {dose.name: list(dose.cuts) for dose in DOSES}, "state": list(CTRL46),
            "computed": list(COMPUTED), "whole": list(WHOLE),
        }  # fmt: skip


def _rows(log: Transitions) -> Any:
    """A row for each decision, and one for the state in which a record is cut."""
    stops = log.truncated
    after = pd.DataFrame(_known(log.next_state[stops], log.subject[stops], log.step[stops] + 2) | _nothing(stops))
    rows = pd.concat([pd.DataFrame(_known(log.state, log.subject, log.step + 1) | _decided(log)), after])
    rows = rows.sort_values(["patient", "bloc"], ignore_index=True)
    given = rows["input_4hourly"].fillna(0.0).groupby(rows["patient"]).cumsum()
    rows["median_dose_vaso"], rows["input_total"] = rows["max_dose_vaso"], given
    rows["cumulated_balance"] = given - rows["output_total"]
    amounts = [name for name in AMOUNTS if name not in CTRL46]
    decided = ["fluid_bin", "vaso_bin", "action", "reward", "terminated", "died", "survived", "truncated"]
    return rows[["patient", "stay", "bloc", *CTRL46, *amounts, *decided]]


def _known(state: torch.Tensor, patient: torch.Tensor, bloc: torch.Tensor) -> dict[str, Any]:
    values = dict(zip(CTRL46, state.numpy().T, strict=True))
    flags = {name: values[name].astype(np.int64) for name in FLAGS}
    return {"patient": patient.numpy(), "stay": patient.numpy(), "bloc": bloc.numpy(), **values, **flags}


def _decided(log: Transitions) -> dict[str, Any]:
    """Actions and outcomes; doses in double precision, so that reading gives the same amounts."""
    codes = log.action_index.numpy()
    amounts = np.array(ACTIONS.values)[codes]
    return {
        "input_4hourly": amounts[:, 0], "max_dose_vaso": amounts[:, 1],
        **{name: pd.array(code, dtype="Int64") for name, code in
           (("fluid_bin", codes // 5), ("vaso_bin", codes % 5), ("action", codes))},
        "reward": log.reward.double().numpy(), "terminated": log.terminated.numpy(),
        **{name: (log.outcome == place).numpy() for place, name in enumerate(log.outcome_names)},
        "truncated": np.zeros(len(log), dtype=bool),
    }  # fmt: skip


def _nothing(stops: torch.Tensor) -> dict[str, Any]:
    """The columns of a row without a decision."""
    count = int(stops.sum())
    amounts = dict.fromkeys(("input_4hourly", "max_dose_vaso", "reward"), np.full(count, np.nan))
    codes = dict.fromkeys(("fluid_bin", "vaso_bin", "action"), pd.array([pd.NA] * count, dtype="Int64"))
    ends = dict.fromkeys(("terminated", "died", "survived"), np.zeros(count, dtype=bool))
    return {**amounts, **codes, **ends, "truncated": np.ones(count, dtype=bool)}
