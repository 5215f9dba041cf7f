"""`counterpoint compare`: the policies of several runs evaluated on the same logged rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from counterpoint.cli.console import progress, say, show
from counterpoint.cli.evaluate import evaluation_rows, run_model
from counterpoint.cli.ope_flags import OPEFlags
from counterpoint.core.errors import require

if TYPE_CHECKING:
    from counterpoint.ope.result import PolicyComparison
    from counterpoint.run import Run


@dataclass(frozen=True)
class Compare:
    """Evaluate the policies of several runs from the log that they share: the behaviour policy first, every difference
    paired by subject. Writes comparison.csv, differences.csv, comparison.json and comparison.png."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders with policy/, of the same table with the same held-out subjects."""
    out: Path = Path("comparison")
    """Folder for tables and figure."""
    ope: tyro.conf.OmitArgPrefixes[OPEFlags] = OPEFlags()
    seed: int = 0
    """Seed of everything random."""

    def execute(self) -> None:
        from counterpoint.nets.training import Monitor
        from counterpoint.ope.evaluation import compare
        from counterpoint.run import Run

        require(len(self.runs) > 0, "there is no run to compare; name their folders")
        runs = dict(zip(_names(self.runs), map(Run, self.runs), strict=True))
        check_same_log(list(runs.values()))
        rows, others = evaluation_rows(next(iter(runs.values())))
        models = {name: model for name, run in runs.items() if (model := run_model(run)[0]) is not None}
        with progress() as report:
            comparison = compare(
                rows,
                {name: run.policy for name, run in runs.items()},
                self.ope.settings(),
                others=others,
                held_out=len(others) > 0,
                models=models,
                seed=self.seed,
                monitor=Monitor(report=report),
            )
        self._write(comparison)
        _print(comparison)
        say(f"tables, figure and all reasons (comparison.json) in {self.out}")

    def _write(self, comparison: "PolicyComparison") -> None:
        from counterpoint.core.tables import write_csv, write_json
        from counterpoint.page.evaluation_figure import comparison_figure

        write_csv(comparison.rows(), self.out / "comparison.csv")
        columns = ["policy", "less", "difference", "difference_low", "difference_high"]
        write_csv(comparison.pair_rows(), self.out / "differences.csv", columns)
        write_json(comparison.to_json(), self.out / "comparison.json")
        comparison_figure(comparison, self.out / "comparison.png")


def check_same_log(runs: "Sequence[Run]") -> None:
    """Refuse runs of different tables, or with other held-out subjects, whose results could not be paired."""
    for run in runs:
        run.fingerprint("policy")
        for part, what in (("data", "tables"), ("split", "held-out subjects")):
            require(
                run.fingerprint(part) == runs[0].fingerprint(part),
                f"'{runs[0].folder}' and '{run.folder}' have different {what}; compare runs of one table, split alike",
            )


def _names(folders: Sequence[Path]) -> list[str]:
    """Return a short name for every run: its folder's, or the whole path where two folders have the same name."""
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    for name in names:
        require(names.count(name) == 1, f"the run '{name}' is named twice; name each once")
    return names


def _print(comparison: "PolicyComparison") -> None:
    """Print returns, differences and verdicts."""
    first = comparison.evaluations[0]
    blank = {"more than that": "", "verdict": "", "against practice": ""}
    rows = [{"policy": first.logged.name, "return": str(first.logged), **blank}]
    rows += [{"policy": each.name, "return": str(each), **blank} for each in comparison.baselines]
    for evaluation in comparison.evaluations:
        difference = str(evaluation.difference)
        row = {"policy": evaluation.policy, "return": str(evaluation.value), "more than that": difference}
        rows.append({**row, "verdict": evaluation.verdict, "against practice": evaluation.against_practice})
    show(rows, f"{first.recommended} with {first.confidence:.0%} intervals, paired by subject")
    if comparison.pairs:
        pairs = [
            {"policy": pair.one, "less": pair.other, "difference": str(pair.difference)} for pair in comparison.pairs
        ]
        show(pairs, "differences")
    for evaluation in comparison.evaluations:
        say(f"{evaluation.policy}: {evaluation.brief}")
