"""How long the report of a large run takes and how large it is: `python benchmarks/report_speed.py [--patients 15000]`.

A run of the synthetic sepsis ward (46 columns, 25 pairs of doses) is made in `--run`, unless one is there: its SCM, its
learned rewards and its policy are fitted briefly and on some of the patients; what they are worth is not asked here.
The last line is JSON.
"""

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch

import counterpoint as cp
from counterpoint.cli.check_scm import examine
from counterpoint.cli.report import Report
from counterpoint.cli.train import NO_MODEL
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.run import Run
from reproduction.tasks import sepsis

FITTED = 1000
"""Patients that the brief fits see."""
BRIEF = cp.models.Likelihood(cp.Schedule(steps=300, check_every=100), batch=256)
SCM = cp.DensitySCM(ensemble=3, hidden=(64,), likelihood=BRIEF)
LEARNER = cp.learners.BCQ(learner=cp.D3QN((64, 64), cp.Schedule(steps=500), batch=128))


def make_run(folder: Path, patients: int) -> None:
    """Data, split, task, scm, check and policy of a ward that its physician treats."""
    task = sepsis.SyntheticSepsis(sepsis.population(patients, 0))
    rows = cp.simulate(task, sepsis.physician(task), patients, task.horizon, 0)
    run = Run(folder)
    run.start(rows, 0.2, 0)
    some = run.training[run.training.subject < FITTED]
    learned = cp.Outcome(hidden=(32,), likelihood=BRIEF).fit(some)
    run.keep_task(learned)
    run.keep_model(SCM.fit(some))
    examine(run)
    policy = LEARNER.fit(some, learned).with_verdict(cp.policies.Verdict("not checked", (NO_MODEL,)))
    run.keep("policy", policy.save, ["data", "split", "task"])


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--patients", type=int, default=15_000)
    parser.add_argument("--run", type=Path, default=Path("runs/report_speed"))
    options = parser.parse_args()
    if not Run(options.run).has("policy"):
        make_run(options.run, options.patients)
    rows, start_time, processor = Run(options.run).data, time.perf_counter(), time.process_time()
    Report(options.run).execute()
    seconds, used = time.perf_counter() - start_time, time.process_time() - processor
    figures: dict[str, Any] = {
        "patients": len(rows.subject_names),
        "rows": len(rows),
        "seconds": round(seconds, 1),
        "processor seconds": round(used, 1),
        "megabytes": round((options.run / "report.html").stat().st_size / 1e6, 2),
        "peak memory, gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }
    print(markdown_table([figures]))
    print(json.dumps({**figures, **provenance()}))


if __name__ == "__main__":
    main()
