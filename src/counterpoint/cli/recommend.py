"""`counterpoint recommend`: what the run's policy advises new subjects."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoint.cli.console import say, show
from counterpoint.core.artifacts import write_text
from counterpoint.core.errors import require
from counterpoint.core.tables import any_guarded, write_csv
from counterpoint.policies.history import PersonalAdvice, recommend_to
from counterpoint.policies.recommendation import Advice, Recommendations, recommend
from counterpoint.run import Run


def counted(subjects: int) -> str:
    return f"{subjects} subject{'' if subjects == 1 else 's'}"


def _shown(each: Advice) -> dict[str, str]:
    value = "" if each.value is None else f"{each.value:.3g}"
    subject = each.subject if each.subject == each.subject.strip() else repr(each.subject)  # "P1 " is not "P1".
    told = {"subject": subject, "recommended": each.label, "value": value}
    return {**told, "support": f"{each.support:.0%}", "note": each.why}


FORMULAS = (
    "text that begins with =, +, -, @ or a tab stands in the CSV behind an apostrophe, so that no spreadsheet runs it;"
    " JSON has it as it is"
)
SHOWN = 20
"""Subjects whose advice is shown on the terminal; files have all."""


@dataclass(frozen=True)
class Recommend:
    """Recommend an action to each subject of a table, by its last row, with the value and support of every action.

    With --history, to one subject by its record: what the record says of the subject, and the value of every action to
    this subject with an interval.
    """

    run: Path
    """Run folder with policy/."""
    data: Path | None = None
    """Table of new subjects with the columns of the training table; action, reward and outcome are not needed."""
    history: Path | None = None
    """Table of one subject with the columns of the training table: the last row, whose action may be missing, is where
    it stands now, the rows before it are its record; reward and outcome are not needed."""
    min_support: float | None = None
    """Share of the similar logged rows that must have had an action for it to count as supported; 0.05, and at least
    three rows, where none is given."""
    out: Path | None = None
    """CSV or JSON file for all subjects and all actions; recommendations.csv in the run where none is named, with
    --history recommendation.json."""

    def execute(self) -> None:
        require(
            (self.data is None) != (self.history is None),
            "there is nobody to advise, or two kinds; give --data, a table of new subjects, or --history, one's record",
        )
        run = Run(self.run)
        model, task = (run.scm, run.task) if run.has("scm") and run.has_task() else (None, None)
        policy = run.policy.with_verdict(run.policy_verdict)
        if self.history is not None:
            share = self.min_support
            self._tell(recommend_to(policy, self.history, run.training, model=model, task=task, min_support=share))
            return
        answer = recommend(policy, self.data, run.training, model=model, task=task, min_support=self.min_support)
        out = self.out or self.run / "recommendations.csv"
        _write(answer, out)
        for note in answer.notes:
            say(f"note: {note}")
        some = f"the first {SHOWN} of " if len(answer.advice) > SHOWN else ""
        shown = [_shown(each) for each in answer.advice[:SHOWN]]
        show(shown, f"recommended to {some}{counted(len(answer.advice))}")
        say(answer.verdict.brief)
        say(f"value and support of every action in {out}")

    def _tell(self, answer: PersonalAdvice) -> None:
        """One subject's advice on the terminal and in a file."""
        out, record, rows = self.out or self.run / "recommendation.json", answer.subject, answer.rows()
        _write(answer, out)
        for note in answer.notes:
            say(f"note: {note}")
        say(f"recommended: {answer.advice.label}{f' ({answer.advice.why})' if answer.advice.why else ''}")
        say(f"by {record.policy}: {record.why}")
        if record.chances:
            say("groups: " + ", ".join(f"{i + 1} with {chance:.0%}" for i, chance in enumerate(record.chances)))
        if record.factor:
            pairs = zip(record.factor, record.deviation, strict=True)
            say("factor: " + ", ".join(f"{f:.2f} ± {d:.2f}" for f, d in pairs) + " (the average subject is 0 ± 1)")
        if rows:
            show([_action(row) for row in rows], "actions")
        say(answer.verdict.brief)
        say(f"the same in {out}")


def _write(answer: Recommendations | PersonalAdvice, out: Path) -> None:
    if out.suffix.lower() == ".json":
        write_text(out, json.dumps(answer.to_json(), indent=2))
        return
    rows = answer.rows()
    write_csv(rows, out)
    if any_guarded(rows):
        say(f"note: {FORMULAS}")


def _action(row: dict[str, Any]) -> dict[str, str]:
    value, low, high = ("" if row[name] is None else f"{row[name]:.3g}" for name in ("value", "low", "high"))
    told = {"action": row["action"], "value": value, "90% between": f"{low} and {high}" if low else ""}
    return {**told, "support": f"{row['support']:.0%}", "recommended": "yes" if row["recommended"] else ""}
