"""`evaluate` and `compare` as a user runs them on a table: files, words, lineage, and no patient among them."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import counterpoint as cp
from counterpoint.checks.findings import CheckReport, Finding
from counterpoint.core.tables import read_csv
from counterpoint.ope.result import PolicyComparison
from counterpoint.run import Run
from counterpoint.tasks.cartpole import CartPole
from helpers.cli import command
from helpers.personal_commands import refused
from helpers.runs import SMALL_OUTCOME

SHAPES = False
TABLE = ["--subject", "id", "--time", "t", "--state", "x", "frail", "--action", "dose", "--reward", "r"]
SMALL = ["scm:density", "--scm.ensemble", "2", "--scm.hidden", "8", "--scm.likelihood.schedule.steps", "60"]
QUICK = ("--draws", 50, "--no-baselines")
FILES = ("evaluation.json", "estimates.csv", "evaluation.png")


def table(subjects: int = 240, steps: int = 4, seed: int = 0) -> pd.DataFrame:
    """A dose lowers x, is given the likelier the higher x is, and x is best at 0; dates would tell who somebody is."""
    random, rows = np.random.default_rng(seed), []
    for subject in range(subjects):
        x = random.normal(1, 1)
        for t in range(steps):
            dose = int(random.random() < 1 / (1 + np.exp(-0.6 * x)))
            frail = "yes" if subject % 2 else "no"
            rows.append((f"patient-{subject}", t, round(x, 4), frail, dose, round(-abs(x), 4)))
            x = 0.8 * x - 0.7 * dose + 0.3 + 0.4 * random.normal()
    return pd.DataFrame(rows, columns=["id", "t", "x", "frail", "dose", "r"])


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """A learned task that is quick to fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("counterpoint.models.dynamics.outcome.Outcome", lambda **_: SMALL_OUTCOME)
        yield


def fitted(folder: Path, name: str, *more: object) -> Path:
    run, log = folder / name, folder / "log.csv"
    if not log.exists():
        table().to_csv(log, index=False)
    command("fit", "--run", run, "--data", log, *TABLE, "--last", "truncate", "--held-out", 0.5, *more, *SMALL)
    return run


@pytest.fixture(scope="module")
def folder(small: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one table: a Q-network and a searched rule."""
    folder = tmp_path_factory.mktemp("judged")
    for name, words in (("d3qn", ("--hidden", 16, "--steps", 200)), ("search", ())):
        fitted(folder, name)
        command("train", "--run", folder / name, "--method", name, *words)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    command("evaluate", "--run", folder / "d3qn", *QUICK)
    return folder / "d3qn"


def test_a_users_table_is_judged_on_subjects_kept_aside(run: Path, capsys) -> None:
    command("evaluate", "--run", run, *QUICK)
    said, found = capsys.readouterr().out, Run(run).evaluation
    assert found.held_out
    assert found.diagnostics is not None
    assert found.diagnostics.subjects == 120
    assert found.diagnostics.rows == len(Run(run).held_out)
    aside = Run(run).held_out
    assert found.logged.value == pytest.approx(float(aside.reward.sum() / 120), abs=1e-5)
    assert {each.name for each in found.estimates} >= {"one-step DR", "WIS", "FQE", "SCM rollouts", "CF-PE"}
    for words in (found.label(found.value), "paired by subject", f"Verdict: {found.verdict}", "Brier score",
                  "120 subjects that it had not learned from", "return of the policy of d3qn, held-out subjects,",
                  "evaluated: 1% mixture with the behaviour policy", "strength 3 a record"):  # fmt: skip
        assert words in said
    assert (run / "evaluation.png").stat().st_size > 20_000
    rows = read_csv(run / "estimates.csv")
    assert [row["name"] for row in rows if row["kind"] == "estimate"] == [each.name for each in found.estimates]
    assert rows[0]["value"] == found.estimates[0].value


def test_no_patient_is_in_any_file_or_word(run: Path, capsys) -> None:
    command("evaluate", "--run", run, *QUICK, "--severity", "frail")
    written = capsys.readouterr().out + "".join((run / name).read_text() for name in FILES[:2])
    assert "patient-" not in written
    values = {f"{value:.4f}" for value in table()["x"].abs() if value > 0.01}
    numbers = {part for part in written.replace(",", " ").split() if part in values}
    assert not numbers
    assert {part.name for part in Run(run).evaluation.severity} == {"yes", "no"}
    command("evaluate", "--run", run, *QUICK)


def test_the_same_seed_writes_the_same_files(run: Path) -> None:
    before = {name: (run / name).read_bytes() for name in FILES}
    command("evaluate", "--run", run, *QUICK)
    assert {name: (run / name).read_bytes() for name in FILES} == before
    command("evaluate", "--run", run, *QUICK, "--seed", 1)
    assert (run / FILES[0]).read_bytes() != before[FILES[0]]
    command("evaluate", "--run", run, *QUICK)


def test_flags_say_how_a_policy_is_judged(run: Path) -> None:
    whole = Run(run)
    usual = whole.evaluation
    command("evaluate", "--run", run, *QUICK, "--soften", 0.3, "--soften-towards", "uniform", "--discount", 0.9,
            "--behaviour", "trees", "--confounding", "step")  # fmt: skip
    found = whole.evaluation
    assert found.mixture is not None
    assert (found.mixture.share, found.mixture.towards, found.discount) == (0.3, "uniform", 0.9)
    assert found.behaviour is not None
    assert found.behaviour.recipe == "BoostedTrees"
    assert found.sensitivity is not None
    assert found.sensitivity.per == "step"
    assert {each.name for each in found.sensitivity.behaviour} == {"Logistic", "NearestNeighbours"}
    assert found.value != usual.value
    command("evaluate", "--run", run, *QUICK)
    assert whole.evaluation == usual


def test_a_policy_that_was_learned_again_makes_the_judgement_stale(folder: Path, capsys) -> None:
    run = fitted(folder, "stale")
    command("train", "--run", run, "--method", "d3qn", "--hidden", 8, "--steps", 20)
    command("evaluate", "--run", run, *QUICK)
    assert Run(run).has("evaluation")
    command("train", "--run", run, "--method", "d3qn", "--hidden", 8, "--steps", 20, "--seed", 1)
    assert not Run(run).has("evaluation")
    with pytest.raises(cp.CounterpointError, match="made from another policy than this run has now; run evaluate"):
        _ = Run(run).evaluation
    (run / "evaluation.json").write_text("{}")
    with pytest.raises(cp.CounterpointError, match="was changed after"):
        _ = Run(run).evaluation


def test_a_simulated_log_can_be_judged_as_if_there_were_no_simulator(tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    command("simulate", "--run", run, "--trials", 60, "--steps", 8, "--stop-at-failure")
    command("train", "--run", run, "--method", "d3qn", "--hidden", 8, "--steps", 20)
    capsys.readouterr()
    command("evaluate", "--run", run, "--trials", 3)
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    told = [(who.strip(), int(steps)) for _, who, _, steps, *_ in lines]
    assert told == [("the policy", CartPole().horizon), ("the policy", 8), ("the log", 8)], "practice stands beside it"
    assert float(lines[2][4]) == pytest.approx(float(Run(run).data.reward.sum()) / 60, abs=0.05)
    assert not Run(run).has("evaluation")
    command("evaluate", "--run", run, "--log", *QUICK)
    assert len(read_csv(run / "evaluation.csv")) == 3, "true returns stay"
    found = Run(run).evaluation
    assert not found.held_out
    assert any("--held-out" in reason for reason in found.reasons)
    assert {"SCM rollouts", "CF-PE"}.isdisjoint(each.name for each in found.estimates), "there is no model"
    assert "subjects that it may have learned from" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--severity", "height"), "--severity height is no state column"),
        (("--soften", 1.5), "share=1.5 of EpsilonMixture"),
        (("--discount", -1), "discount=-1"),
        (("--draws", 0), "draws=0"),
    ],
)
def test_a_wrong_flag_is_one_line(run: Path, capsys, words: tuple[object, ...], said: str) -> None:
    before = (run / "evaluation.json").read_bytes()
    line = refused(capsys, "evaluate", "--run", run, *words)
    assert said in line or said.replace("=", " ") in line.replace("--", "")
    assert (run / "evaluation.json").read_bytes() == before


def distrust(run: Path, *more: str) -> None:
    """Checks that distrust the run's model."""
    reasons = ("Noise depends on the action.", *more)
    findings = tuple(Finding(reason, 1.0, 0.1, False, reason) for reason in reasons)
    found = json.dumps(CheckReport(findings, 100, True, ("x",)).to_json())
    Run(run).keep("check", lambda path: path.write_text(found), ["scm"])


def test_what_a_distrusted_model_says_is_not_to_be_gone_by(folder: Path, run: Path) -> None:
    said = "because the model failed its checks: SCM rollouts, CF-PE."
    assert not any(said in reason for reason in Run(run).evaluation.reasons), "nobody has checked it"
    own = fitted(folder, "distrusted")
    command("train", "--run", own, "--method", "d3qn", "--hidden", 8, "--steps", 20)
    distrust(own)
    command("evaluate", "--run", own, *QUICK)
    assert said in Run(own).evaluation.reasons[-1]
    command("check-scm", "--run", own)
    assert not Run(own).has("evaluation"), "what the checks found is part of it"


def test_commands_after_the_check_repeat_its_verdict_in_one_line(folder: Path, tmp_path: Path, capsys) -> None:
    own = fitted(folder, "again")
    distrust(own, "The spread is wrong.", "Support is thin.")
    table(8).drop(columns=["r", "dose"]).to_csv(tmp_path / "new.csv", index=False)
    capsys.readouterr()
    command("train", "--run", own, "--method", "search", "--rounds", 20, "--restarts", 1)
    command("recommend", "--run", own, "--data", tmp_path / "new.csv")
    said = capsys.readouterr().out
    brief = (
        "Trust in the model behind this policy: no. Noise depends on the action. (2 more reasons: check-scm or report)"
    )
    assert said.count(brief) == 2
    assert "Support is thin." not in said


def test_continuous_doses_are_evaluated_from_the_log_and_inside_the_model(tmp_path: Path, capsys) -> None:
    log = table(60)
    log["dose"] = log["dose"] + np.random.default_rng(0).random(len(log)).round(3)
    log.to_csv(tmp_path / "log.csv", index=False)
    run = fitted(tmp_path, "run")
    command("train", "--run", run, "--method", "search")
    command("evaluate", "--run", run, "--draws", 50)
    found = Run(run).evaluation
    assert found.verdict == "cannot be judged"
    assert "30 subjects" in found.reasons[0]
    assert found.baselines[0].name.startswith("practice (median dose)")
    names = [each.name for each in found.estimates]
    assert names[0] == found.recommended == "one-step DR"
    assert names[-2:] == ["SCM rollouts", "CF-PE"]
    assert "a spread of 0.5 standard deviations" in capsys.readouterr().out
    assert (run / "evaluation.png").exists()
    distrust(run)
    command("evaluate", "--run", run, *QUICK)
    assert any("the model failed its checks" in reason for reason in Run(run).evaluation.reasons)
    capsys.readouterr()


# --- compare ----------------------------------------------------------------------------------------------------------


def test_runs_side_by_side(folder: Path, tmp_path: Path, capsys) -> None:
    command("compare", folder / "d3qn", folder / "search", "--out", tmp_path, *QUICK)
    said = capsys.readouterr().out
    found = PolicyComparison.from_json(json.loads((tmp_path / "comparison.json").read_text()))
    assert [each.policy for each in found.evaluations] == ["d3qn", "search"]
    assert len(found.pairs) == 1
    rows = read_csv(tmp_path / "comparison.csv")
    assert [row["policy"] for row in rows] == ["behaviour policy", "d3qn", "search"]
    pairs = read_csv(tmp_path / "differences.csv")
    assert pairs[0]["difference"] == pytest.approx(rows[1]["value"] - rows[2]["value"])
    assert (tmp_path / "comparison.png").stat().st_size > 20_000
    for words in ("behaviour policy", "d3qn", "search", "Verdict"):
        assert words in said
    assert said.count("Verdict: ") == 2
    assert all(each.brief.split()[-1] in said for each in found.evaluations)
    assert not any(line.startswith("- ") for line in said.splitlines()), "evaluate lists the reasons, once"
    assert "patient-" not in said + (tmp_path / "comparison.json").read_text()


def test_runs_of_other_tables_or_splits_are_refused(folder: Path, tmp_path: Path, capsys) -> None:
    table(seed=1).to_csv(tmp_path / "log.csv", index=False)
    other = fitted(tmp_path, "other")
    split = fitted(folder, "split", "--seed", 1)
    for run in (other, split):
        command("train", "--run", run, "--method", "d3qn", "--hidden", 8, "--steps", 20)
    out = ("--out", tmp_path / "out")
    assert "different tables" in refused(capsys, "compare", folder / "d3qn", other, *out)
    assert "different" in refused(capsys, "compare", folder / "d3qn", split, *out)
    assert "named twice" in refused(capsys, "compare", folder / "d3qn", folder / "d3qn", *out)
    assert "has no policy; run train first" in refused(capsys, "compare", fitted(folder, "untrained"), *out)
    assert not (tmp_path / "out").exists()
