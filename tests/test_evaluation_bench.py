"""The benchmark of off-policy evaluation: rows beside exact truths, resumed where it was; rankings and verdicts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.core.tables import read_csv
from counterpoint.ope.evaluation import OPESettings
from helpers.evaluation_bench import CHANCE, EXPERT
from helpers.tables import refused
from reproduction import evaluation
from reproduction.evaluation import EvaluationBenchmark
from reproduction.known_policies import PROBLEMS, finite_problem, tumour_problem
from reproduction.pages.evaluation import COLUMNS, evaluation_page, right
from reproduction.tasks.finite import FiniteProcess

RESULTS = Path(__file__).parents[1] / "results"
SMALL = OPESettings(baselines=False, alternative_behaviours=(), draws=50, critic_draws=5)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> FiniteProcess:
    process = FiniteProcess(torch.tensor([0.5, 0.5]), CHANCE, horizon=20)
    monkeypatch.setitem(PROBLEMS, "tiny", lambda: finite_problem(process, EXPERT, 60))  # pyright: ignore[reportArgumentType]
    evaluation.problem_of.cache_clear()
    return process


def test_every_estimate_stands_beside_the_exact_truth_and_a_second_run_does_nothing(
    tiny: FiniteProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = EvaluationBenchmark({"tiny": 2}, ope=SMALL)
    stored = benchmark.run(tmp_path)
    rows = benchmark.table(stored)
    truth = {"expert": EXPERT, "half-and-half": (EXPERT + tiny.optimal()) / 2, "optimal": tiny.optimal()}
    assert {(row["repetition"], row["policy"]) for row in rows} == {(n, name) for n in range(2) for name in truth}
    for row in rows:
        assert row["truth"] == pytest.approx(tiny.value(truth[row["policy"]]), abs=1e-6)
        assert not row["recommended"] or row["low"] <= row["estimate"] <= row["high"]
    assert sum(row["recommended"] for row in rows) == 6
    assert len({row["estimate"] for row in rows if row["recommended"]}) == 6
    monkeypatch.setattr(evaluation.EvaluationProblem, "log", lambda *_: pytest.fail("done already"))
    assert benchmark.run(tmp_path) == stored
    written = read_csv(tmp_path / "evaluation.csv")
    assert list(written[0]) == list(COLUMNS)
    assert [row["estimate"] for row in written] == [row["estimate"] for row in rows]
    assert (tmp_path / "evaluation.png").stat().st_size > 10_000


def row(policy: str, estimate: float, truth: float, **more: Any) -> dict[str, Any]:
    found = {"task": "t", "estimator": "e", "policy": policy, "repetition": 0, "estimate": estimate, "truth": truth,
             "low": estimate - 1, "high": estimate + 1, "verdict": "supported", "recommended": True, "silent": False,
             "effective": 100.0, "unsupported": 0.0, "strayed": 0.0}  # fmt: skip
    return {**found, **more}


def test_a_verdict_is_right_that_lets_the_truth_pass_or_refuses() -> None:
    assert right(row("a", 1.0, 1.5))
    assert not right(row("a", 1.0, 2.5))
    assert right(row("a", 1.0, 2.5, verdict="cannot be judged"))
    assert not right(row("a", 1.0, 1.5, silent=True))
    assert right(row("a", 1.0, 1.5, silent=True, verdict="cannot be judged"))


def test_pairs_count_that_lie_farther_apart_than_their_intervals_are_wide() -> None:
    """Widths are 2: a and c, b and c lie 3 and 2.5 apart, of which the second is ordered wrongly; a and b do not."""
    rows = [row("a", 0.0, 0.0), row("b", 9.0, 0.5), row("c", 4.0, 3.0), row("d", 0.0, 9.0, silent=True)]
    page = evaluation_page(rows, "command")
    assert "| t | 2 | 0.50 | 3 | 0.67 |" in page


def test_the_page_says_that_the_expert_of_icu_sepsis_is_an_easy_test() -> None:
    easy = "In ICU-Sepsis random actions have the same mean return as the expert's"
    assert easy in evaluation_page([row("expert", 0.8, 0.78, task="icu-sepsis")], "command")
    assert easy not in evaluation_page([row("expert", 0.8, 0.78)], "command")


def test_the_kept_values_of_icu_sepsis_bear_out_what_the_page_says() -> None:
    """Random actions and the expert agree to two digits, the values are the table's, and the page is theirs."""
    kept = json.loads((RESULTS / "benchmarks" / "icu_sepsis_values.json").read_text())["values"]
    rows = read_csv(RESULTS / "evaluation.csv")
    truth = {each["policy"]: each["truth"] for each in rows if each["task"] == "icu-sepsis"}
    assert f"{kept['random']:.2f}" == f"{kept['expert']:.2f}"
    assert {name: round(truth[name], 4) for name in ("expert", "optimal")} == {
        name: kept[name] for name in ("expert", "optimal")
    }
    assert (RESULTS / "evaluation.md").read_text() == evaluation_page(rows, "python -m reproduction evaluation")


def test_truth_by_simulation_is_the_mean_return_of_logs() -> None:
    problem = tumour_problem()
    rows = problem.log(0)
    assert float(rows.reward.sum()) / problem.subjects == pytest.approx(problem.truth("as logged", 2000, 1), abs=0.15)
    spared = problem.behaviour_policy.probabilities(rows.state)[:, 0] == 1.0
    assert 0.2 < float(spared.float().mean()) < 0.8
    assert bool((rows.action_index[spared] == 0).all())
    assert float(problem.policies[problem.unsupported].probabilities(rows.state[spared])[:, 0].max()) < 0.1


def test_an_unknown_task_is_refused() -> None:
    assert "there is no task 'lung'" in refused(lambda: EvaluationBenchmark({"lung": 1}))
