"""`counterpoint recommend`: what the run's policy advises new subjects."""

import json
from dataclasses import dataclass
from pathlib import Path

from counterpoint.artifacts import write_text
from counterpoint.commands.console import say, show
from counterpoint.methods.recommendation import Advice, recommend
from counterpoint.report.results import write_csv
from counterpoint.runs import Run


def _shown(each: Advice) -> dict[str, str]:
    value = "" if each.value is None else f"{each.value:.3g}"
    told = {"subject": each.subject, "recommended": each.label, "value": value}
    return {**told, "support": f"{each.support:.0%}", "note": each.why}


SHOWN = 20
"""Subjects whose advice is shown on the terminal; files have all."""


@dataclass(frozen=True)
class Recommend:
    """Recommend an action to each subject of a table, by its last row, with the value and support of every action."""

    run: Path
    """Run folder with policy/."""
    data: Path
    """Table of new subjects with the columns of the training table; action, reward and outcome are not needed."""
    out: Path | None = None
    """CSV or JSON file for all subjects and all actions; recommendations.csv in the run where none is named."""

    def execute(self) -> None:
        run = Run(self.run)
        model, task = (run.scm, run.task) if run.has("scm") and run.has_task() else (None, None)
        answer = recommend(run.policy.judged(run.verdict), self.data, run.training, model=model, task=task)
        out = self.out or self.run / "recommendations.csv"
        if out.suffix.lower() == ".json":
            write_text(out, json.dumps(answer.to_json(), indent=2))
        else:
            write_csv(answer.rows(), out)
        some = f"the first {SHOWN} of " if len(answer.advice) > SHOWN else ""
        show([_shown(each) for each in answer.advice[:SHOWN]], f"recommended to {some}{len(answer.advice)} subjects")
        say(str(answer.verdict))
        say(f"value and support of every action in {out}")
