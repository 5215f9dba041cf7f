"""A check.json that was edited and hashed anew is one line wherever it is read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterpoint.checks.findings import CheckReport, Finding
from counterpoint.core.artifacts import write_text
from counterpoint.policies.base import Verdict
from counterpoint.run import Run
from helpers.tables import refused

PASSED = Finding("calibration", 0.02, 0.1, True, "The spread is right.", 0.4)
FAILED = Finding("fixed coupling", 0.3, 0.1, False, "The noises mix.", 0.001)
REPORT = CheckReport((PASSED, FAILED), 60, True, ("hr", "lactate"))


def run_with(folder: Path, check: Any) -> Run:
    run = Run(folder)
    run.keep("check", lambda path: write_text(path, json.dumps(check)))
    return run


def test_what_a_check_found_is_read_back(tmp_path: Path) -> None:
    run = run_with(tmp_path, REPORT.to_json())
    assert run.check_report == REPORT
    assert run.check_verdict == Verdict("no", ("The noises mix.",))
    broken = replace(REPORT, findings=(replace(FAILED, value=float("nan")),))
    assert run_with(tmp_path, broken.to_json()).check_verdict.trust == "no"


def without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda said: said.pop(key)


def finding(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda said: said["findings"][1].update(changes)


@pytest.mark.parametrize("edit", [
    without("trust"), without("findings"), without("rows"), without("held_out"), without("state_names"),
    lambda said: said.update(trust="yes", reasons=[]), lambda said: said.update(trust=5),
    lambda said: said.update(findings=[]), lambda said: said.update(findings=5),
    lambda said: said.update(rows="sixty"), lambda said: said.update(held_out="no"),
    lambda said: said.update(state_names=5), lambda said: said.update(state_names=[1]),
    lambda said: said["findings"][0].pop("name"), finding(extra=1), finding(value="a"), finding(threshold=None),
    finding(passed="no"), finding(sentence=5), finding(p_value="a"), finding(grave=None), finding(passed=True),
])  # fmt: skip
def test_an_edited_check_is_one_line(edit: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    said = REPORT.to_json()
    edit(said)
    run = run_with(tmp_path, said)
    for read in (lambda: run.check_verdict, lambda: run.check_report):
        assert refused(read).endswith("run check-scm again")
