"""`counterpoint compare`: the policies of several runs side by side, judged on the same logged rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from counterpoint.cli.console import progress, say, show
from counterpoint.cli.evaluate import judged_rows, run_model
from counterpoint.cli.ope_flags import OPEFlags
from counterpoint.core.errors import require
from counterpoint.core.tables import write_csv, write_json
from counterpoint.nets.training import Monitor
from counterpoint.ope.compare import PolicyComparison, compare
from counterpoint.page.evaluation_figure import comparison_figure
from counterpoint.run import Run


@dataclass(frozen=True)
class Compare:
    """Judge the policies of several runs from the log that they share: whoever logged first, every difference paired by
    subject. Writes comparison.csv, differences.csv, comparison.json and comparison.png."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders with policy/, of the same table and the same subjects kept aside."""
    out: Path = Path("comparison")
    """Folder for tables and figure."""
    judging: tyro.conf.OmitArgPrefixes[OPEFlags] = OPEFlags()
    seed: int = 0
    """Seed of everything random."""

    def execute(self) -> None:
        require(len(self.runs) > 0, "there is no run to compare; name their folders")
        runs = dict(zip(_names(self.runs), map(Run, self.runs), strict=True))
        check_same_log(list(runs.values()))
        rows, others = judged_rows(next(iter(runs.values())))
        models = {name: model for name, run in runs.items() if (model := run_model(run)[0]) is not None}
        with progress() as report:
            found = compare(
                rows,
                {name: run.policy for name, run in runs.items()},
                self.judging.judging(),
                others=others,
                held_out=len(others) > 0,
                models=models,
                seed=self.seed,
                monitor=Monitor(report=report),
            )
        self._write(found)
        _tell(found)
        say(f"tables, figure and all reasons (comparison.json) in {self.out}")

    def _write(self, found: PolicyComparison) -> None:
        write_csv(found.rows(), self.out / "comparison.csv")
        columns = ["policy", "less", "difference", "difference_low", "difference_high"]
        write_csv(found.pair_rows(), self.out / "differences.csv", columns)
        write_json(found.to_json(), self.out / "comparison.json")
        comparison_figure(found, self.out / "comparison.png")


def check_same_log(runs: Sequence[Run]) -> None:
    """Refuse runs of different tables, or with other subjects kept aside: nothing would be paired."""
    for run in runs:
        run.fingerprint("policy")
        for part, what in (("data", "tables"), ("split", "subjects kept aside")):
            require(
                run.fingerprint(part) == runs[0].fingerprint(part),
                f"'{runs[0].folder}' and '{run.folder}' have different {what}; compare runs of one table, split alike",
            )


def _names(folders: Sequence[Path]) -> list[str]:
    """A short name for each run: its folder's, or the whole path where two are called alike."""
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    twice = [name for name in names if names.count(name) > 1]
    require(not twice, f"the run '{(twice or [''])[0]}' is named twice; name each once")
    return names


def _tell(found: PolicyComparison) -> None:
    logged = found.evaluations[0].logged
    shown: list[dict[str, Any]] = [{"policy": logged.name, "return": str(logged), "more than that": "", "verdict": ""}]
    for each in found.evaluations:
        shown.append({"policy": each.policy, "return": str(each.value), "more than that": str(each.difference),
                      "verdict": each.verdict})  # fmt: skip
    first = found.evaluations[0]
    show(shown, f"{first.recommended} with {first.confidence:.0%} intervals, paired by subject")
    if found.pairs:
        show([{"policy": pair.one, "less": pair.other, "difference": str(pair.difference)} for pair in found.pairs],
             "differences")  # fmt: skip
    for each in found.evaluations:
        say(f"{each.policy}: {each.brief}")
