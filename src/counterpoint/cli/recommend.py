"""`counterpoint recommend`: actions that the run's policy recommends to new subjects."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoint.cli.console import say, show
from counterpoint.core.errors import require
from counterpoint.core.wording import counted

if TYPE_CHECKING:
    from counterpoint.policies.recommendation import Advice, PersonalAdvice, Recommendations

FORMULAS = (
    "text that begins with =, +, -, @ or a tab stands in the CSV behind an apostrophe, so that no spreadsheet runs it;"
    " JSON has it as it is"
)
SHOWN = 20
"""Subjects whose advice is shown on the terminal; files have all."""


@dataclass(frozen=True)
class Recommend:
    """Recommend an action to each subject of a table, by its last row, with the value and support of every action,
    beside practice: what the clinicians do in this state.

    With --history, recommend to one subject by its record: the subject's factor or group as inferred from the record,
    and the value of every action for this subject with an interval. Practice, and a policy near it, follow the record.
    """

    run: Path
    """Run folder with policy/."""
    data: Path | None = None
    """Table of new subjects with the columns of the training table; action, reward and outcome are not needed."""
    history: Path | None = None
    """Table of one subject with the columns of the training table: the last row, whose action may be missing, is the
    present state, the rows before it are its record; reward and outcome are not needed."""
    min_support: float | None = None
    """Share of the similar logged rows that must have had an action for it to count as supported; 0.05, and at least
    three rows, where none is given."""
    out: Path | None = None
    """CSV or JSON file for all subjects and all actions; recommendations.csv in the run where none is named, with
    --history recommendation.json."""

    def execute(self) -> None:
        from counterpoint.learners.practice import baseline_practice
        from counterpoint.policies.recommendation import practice_of, recommend, recommend_to
        from counterpoint.run import Run

        require(
            (self.data is None) != (self.history is None),
            "name either new subjects or one record; give --data, a table of new subjects, or --history, one's record",
        )
        run = Run(self.run)
        model, task = (run.scm, run.task) if run.has("scm") and run.has_task() else (None, None)
        policy = run.policy.with_verdict(run.policy_verdict)
        logged = run.training
        practice = None
        if practice_of(policy) is None:
            practice = baseline_practice(logged, personal=self.history is not None)
        how = {"model": model, "task": task, "min_support": self.min_support, "practice": practice}
        if self.history is not None:
            self._print_personal(recommend_to(policy, self.history, logged, **how))
            return
        recommendations = recommend(policy, self.data, logged, **how)
        out = self.out or self.run / "recommendations.csv"
        _write(recommendations, out)
        for note in recommendations.notes:
            say(f"note: {note}")
        some = f"the first {SHOWN} of " if len(recommendations.advice) > SHOWN else ""
        shown = [_advice(advice) for advice in recommendations.advice[:SHOWN]]
        show(shown, f"recommended to {some}{counted(len(recommendations.advice), 'subject')}")
        say(recommendations.verdict.brief)
        say(f"value and support of every action in {out}")

    def _print_personal(self, advice: "PersonalAdvice") -> None:
        """Print the advice to one subject and write it to a file."""
        out, record, rows = (
            self.out or self.run / "recommendation.json",
            advice.subject,
            advice.rows(),
        )
        _write(advice, out)
        for note in advice.notes:
            say(f"note: {note}")
        say(f"recommended: {advice.advice.label}{f' ({advice.advice.why})' if advice.advice.why else ''}")
        if advice.advice.practice_label:
            say(f"practice: {advice.advice.practice_label} (what the clinicians do in this state)")
        say(f"by {record.policy}: {record.why}")
        if record.chances:
            say("groups: " + ", ".join(f"{i + 1} with {chance:.0%}" for i, chance in enumerate(record.chances)))
        if record.factor:
            pairs = zip(record.factor, record.deviation, strict=True)
            say("factor: " + ", ".join(f"{f:.2f} ± {d:.2f}" for f, d in pairs) + " (the average subject is 0 ± 1)")
        if rows:
            show([_action(row) for row in rows], "actions")
        say(advice.verdict.brief)
        say(f"the same in {out}")


def _write(recommendations: "Recommendations | PersonalAdvice", out: Path) -> None:
    from counterpoint.core.artifacts import write_text
    from counterpoint.core.tables import any_guarded, write_csv

    if out.suffix.lower() == ".json":
        write_text(out, json.dumps(recommendations.to_json(), indent=2))
        return
    rows = recommendations.rows()
    write_csv(rows, out)
    if any_guarded(rows):
        say(f"note: {FORMULAS}")


def _action(row: dict[str, Any]) -> dict[str, str]:
    value, low, high = ("" if row[name] is None else f"{row[name]:.3g}" for name in ("value", "low", "high"))
    numbers = {"action": row["action"], "value": value, "90% between": f"{low} and {high}" if low else ""}
    return {**numbers, "support": f"{row['support']:.0%}", "recommended": "yes" if row["recommended"] else ""}


def _advice(advice: "Advice") -> dict[str, str]:
    value = "" if advice.value is None else f"{advice.value:.3g}"
    subject = advice.subject if advice.subject == advice.subject.strip() else repr(advice.subject)  # "P1 " is not "P1".
    columns = {"subject": subject, "recommended": advice.label, "practice": advice.practice_label, "value": value}
    return {**columns, "support": f"{advice.support:.0%}", "note": advice.why}
