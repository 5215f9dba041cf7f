"""`counterpoint reproduce sepsis`: patients split, what policies do counted, a killed run gone on with, one ending."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.core.artifacts import read_json
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.core.tables import read_csv
from helpers.sepsis_experiment import BRIEFLY, TINY
from reproduction.command import Reproduce
from reproduction.executors import InProcess
from reproduction.pages.sepsis import right, sepsis_page, why_none_is_evaluated
from reproduction.sepsis import PARTS, Sepsis
from reproduction.sepsis_arms import (
    CTRL_P,
    PAPER_P,
    PHYSICIAN,
    Fitted,
    changes_of,
)
from reproduction.sepsis_behaviour import action_counts, discounted, dose_differences, mean_values, mortality_by_return
from reproduction.sepsis_cohort import Split, SyntheticPatients, TableCohort, one_ending, with_numbers
from reproduction.sepsis_evaluation import true_values
from reproduction.tasks.sepsis import SyntheticSepsis, population

POLICIES = "D3QN", "CTRL_g", "CTRL_g + search", PAPER_P, CTRL_P, "CTRL_p + search"


@pytest.fixture(scope="module")
def rows() -> cp.Transitions:
    return SyntheticPatients(60).read(100)


def test_patients_are_split_80_10_10_and_never_cut_in_two(rows: cp.Transitions) -> None:
    split = Split.of(rows, 3)
    parts = [set(part.subject.tolist()) for part in (split.train, split.validation, split.test)]
    assert [len(part) for part in parts] == [48, 6, 6]
    assert len(set.union(*parts)) == 60
    assert sum(map(len, (split.train, split.validation, split.test))) == len(rows)
    assert split.train.noise.shape[1] == 0
    assert set(Split.of(rows, 4).test.subject.tolist()) != parts[2]


def test_windows_are_runs_of_five_states_of_one_patient(rows: cp.Transitions) -> None:
    split = Split.of(rows, 3)
    lengths = torch.bincount(split.train.subject)
    assert split.sizes()[0]["windows"] == int((lengths - 4).clamp(min=0).sum())


def test_flags_become_numbers_between_0_and_1(rows: cp.Transitions) -> None:
    levels = {column.name: column.levels for column in with_numbers(rows).schema.states}
    assert not any(levels.values())
    bounds = with_numbers(rows).schema.knowledge.bounds
    assert {("mechvent", 0.0, 1.0), ("gender", 0.0, 1.0)} <= set(bounds)
    assert len({name for name, _, _ in bounds}) == len(bounds)


def test_changes_are_log_ratios_of_what_is_always_positive(rows: cp.Transitions) -> None:
    changes = dict(zip(rows.state_names, changes_of(rows), strict=True))
    assert changes["WBC_count"] == "log ratio"
    assert changes["Arterial_BE"] == changes["mechvent"] == "difference"


def test_a_policy_is_graded_by_its_own_q() -> None:
    values = torch.tensor([[1.0, 4.0], [3.0, 2.0]])
    assert mean_values(values, torch.tensor([0, 1])) == {"own": 3.5, "clinicians": 1.5}


def test_the_physicians_q_is_the_return_that_followed(rows: cp.Transitions) -> None:
    own = rows[rows.subject < 2]
    records = [own.reward[own.subject == subject].tolist() for subject in (0, 1)]
    expected = [sum(0.9**k * r for k, r in enumerate(each[t:])) for each in records for t in range(len(each))]
    shuffled = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(0))]
    found = discounted(shuffled, 0.9)[shuffled.in_order()]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.double), atol=1e-4)


def test_actions_are_counted_by_dose_of_either_drug() -> None:
    assert action_counts(torch.tensor([0, 7, 7, 24]), (5, 5))[1] == [0, 0, 2, 0, 0]


def test_dose_differences_are_levels_beyond_what_was_given(rows: cp.Transitions) -> None:
    died = int((rows.outcome == 0).nonzero()[0])
    own = rows[rows.subject == rows.subject[died]]
    more = (own.action_index // 5 + 1).clamp(max=4) * 5 + own.action_index % 5
    found = {(each["drug"], each["difference"]): each for each in dose_differences(more, own)}
    capped = int((own.action_index // 5 == 4).sum())
    assert found["fluid", 1]["rows"] == found["fluid", 1]["died"] == len(own) - capped
    assert found["vasopressor", 0]["rows"] == len(own)


def test_deaths_are_binned_by_the_value_of_what_was_done(rows: cp.Transitions) -> None:
    dead = torch.isin(rows.subject, rows.subject[rows.outcome == 0])
    values = torch.where(dead, -1.0, 1.0)[:, None].expand(-1, 25)
    bins = mortality_by_return(values, rows)
    first = len(rows.subject.tensor_split(10)[0])
    assert bins[0]["died"] == pytest.approx(min(int(dead.sum()) / first, 1.0))
    assert bins[0]["expected"] == pytest.approx(1 - 2 * bins[0]["died"])
    assert bins[-1] == {"bin": 9, "expected": 1.0, "died": 0.0}


def test_a_refusal_and_a_covering_interval_are_right() -> None:
    row = {"low": 0.0, "high": 1.0, "truth": 2.0, "verdict": "with care"}
    assert not right(row)
    assert right({**row, "truth": 0.5})
    assert right({**row, "verdict": "cannot be judged"})


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "CTRL_g.policy" and done:
            raise Killed

    cohort = TableCohort.of(cohort_table(tmp_path, [True, False, False] * 25))
    experiment = Sepsis(cohort, TINY, seeds=1, ope=BRIEFLY, name="tiny")
    with pytest.raises(Killed):
        experiment.run(tmp_path / "killed", report=stop)
    assert list((tmp_path / "killed").rglob("*.checkpoint.safetensors"))
    stages: list[str] = []
    told = lambda stage, done, total: stages.append(f"{stage} {done}")
    again = experiment.run(tmp_path / "killed", report=told)
    assert stages.count("model-CTRL_g.model.change 20") == 1
    whole = experiment.run(tmp_path / "whole", report=told)
    assert stages.count("model-CTRL_g.model.change 20") == 3, (
        "what is trained anew says so at its last chunk and at its end"
    )
    timeless = lambda cells: [{key: value for key, value in cell.items() if key != "seconds"} for cell in cells]
    assert timeless(again) == timeless(whole)
    assert not list((tmp_path / "killed").rglob("*.checkpoint.safetensors"))
    before, stages[:] = (tmp_path / "whole" / "tiny.md").read_text(), []
    experiment.run(tmp_path / "whole", report=lambda stage, done, total: stages.append(stage))
    assert (tmp_path / "whole" / "tiny.md").read_text() == before
    assert set(stages) == {"cells"}
    _looks_right(tmp_path / "whole", whole)


def _looks_right(out: Path, cells: list[dict[str, Any]]) -> None:
    """What one seed leaves behind."""
    table = read_csv(out / "tiny.csv")
    assert {row["policy"] for row in table} == {PHYSICIAN, *POLICIES}
    assert all(row["truth"] is None for row in table)
    page = (out / "tiny.md").read_text()
    assert "Each policy by its own Q" in page
    assert "True values" not in page
    assert (out / "tiny.png").stat().st_size > 10_000
    assert read_json(out / "tiny.settings.json", "")["arms"]["learner"]["huber"] == 15.0
    assert cells[0].keys() >= set(PARTS)
    assert {len(counts) for counts in cells[0]["counts"].values()} == {3}
    graded = {row["policy"]: row for row in cells[0]["mean_q"]}
    assert graded.keys() == {PHYSICIAN, "D3QN", "CTRL_g", CTRL_P, PAPER_P}
    assert all(row["own"] >= row["clinicians"] for name, row in graded.items() if name != PHYSICIAN)


def test_true_values_are_of_the_same_unseen_patients(rows: cp.Transitions) -> None:
    task = SyntheticSepsis()
    learner = replace(TINY.learner, schedule=cp.Schedule(steps=2))
    policy = learner.fit(Split.of(rows, 0).train, task)
    found = true_values(Fitted(None, {}, {"one": policy, "two": policy}), 200)  # pyright: ignore[reportArgumentType]
    assert found["one"] == found["two"] != found[PHYSICIAN]
    unseen = SyntheticSepsis(population(200, derive(0, "unseen patients")))
    assert found["one"] == pytest.approx(float(cp.true_return(policy, unseen, 200, 0).mean()), abs=1e-4)


def cohort_table(folder: Path, died: list[bool], blocs: int = 6) -> Path:
    """A cohort of `counterpoint mimic` by hand: two columns, two doses of either drug."""
    count = len(died) * blocs
    bloc = [number + 1 for _ in died for number in range(blocs)]
    last = [each == blocs for each in bloc]
    dead = [last[i] and died[i // blocs] for i in range(count)]
    table = pd.DataFrame(
        {"patient": [i // blocs for i in range(count)], "stay": [100 + i // blocs for i in range(count)], "bloc": bloc,
         "HR": [80.0 + i % 7 for i in range(count)], "SOFA": [float(i % 5) for i in range(count)],
         "input_4hourly": [float(i % 3 * 100) for i in range(count)],
         "max_dose_vaso": [i % 2 * 0.2 for i in range(count)],
         "reward": [15.0 - 30.0 * dead[i] if last[i] else 0.1 * (i % 3) for i in range(count)],
         "died": dead, "survived": [end and not d for end, d in zip(last, dead, strict=True)]}
    )  # fmt: skip
    path = folder / "cohort.parquet"
    table.to_parquet(path)
    manifest = {"state": ["HR", "SOFA"], "computed": ["SOFA"],
                "cuts": {"input_4hourly": [150.0], "max_dose_vaso": []}}  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize(("died", "word"), [(True, "Everybody died"), (False, "Nobody died")])
def test_a_cohort_that_all_ended_alike_is_judged_by_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], died: bool, word: str
) -> None:
    path = cohort_table(tmp_path, [died] * 30)
    Reproduce("sepsis", cohort=str(path), out=tmp_path / "out", device="cpu", executor=InProcess()).execute()
    said = f"{word} in this cohort (30 stays that ended, {30 * died} in death): no policy can be evaluated from it"
    assert said in capsys.readouterr().out
    assert said in (tmp_path / "out" / "sepsis.md").read_text()
    assert read_csv(tmp_path / "out" / "sepsis.csv") == []


def test_a_cohort_of_both_endings_is_read_through_its_manifest(tmp_path: Path) -> None:
    path = cohort_table(tmp_path, [True, False, True, False] * 5)
    cohort = TableCohort.of(path)
    rows = cohort.read(0)
    assert one_ending(rows) == ""
    assert rows.outcome_names == ("died", "survived")
    assert rows.schema.doses[0].cuts == (150.0,)
    assert rows.schema.knowledge.computed == ("SOFA",)
    assert rows.schema.knowledge.bounds == (("HR", 80.0, 86.0), ("SOFA", 0.0, 4.0))
    short = replace(cohort, shortest=7)
    with pytest.raises(CounterpointError, match=r"no stay .* has 7 decisions"):
        short.read(0)


def test_some_policies_are_learned_alone(tmp_path: Path) -> None:
    """Without the models of the others, and without a report where its policy is not among them."""
    cohort = TableCohort.of(cohort_table(tmp_path, [True, False, False] * 25))
    some = replace(TINY, policies=("CTRL_p + search", "D3QN"))
    experiment = Sepsis(cohort, some, seeds=1, ope=BRIEFLY, name="some")
    cell = experiment.run(tmp_path / "out")[0]
    assert [row["policy"] for row in cell["estimates"] if row["recommended"]] == [PHYSICIAN, "CTRL_p + search", "D3QN"]
    assert [row["model"] for row in cell["models"]] == [CTRL_P]
    assert not experiment.parts(tmp_path / "out").exists()


def test_another_table_has_another_key(tmp_path: Path) -> None:
    keys = []
    for died in ([True, False] * 10, [False, True] * 10):
        experiment = Sepsis(TableCohort.of(cohort_table(tmp_path, died)), TINY, seeds=1)
        keys.append(experiment.cells()[0].key)
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"experiment": "sepsis", "methods": ("D3NQ",)}, "there is no policy 'D3NQ'; choose from D3QN, CTRL_g"),
        ({"experiment": "sd", "patients": 5}, "neither --cohort nor --patients"),
        ({"experiment": "sepsis", "cohort": "nowhere.parquet"}, "there is no cohort"),
        ({"experiment": "sepsis", "cohort": "demo"}, "raw folder is not known"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    options: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("COUNTERPOINT_MIMIC_DEMO", raising=False)
    with pytest.raises(CounterpointError, match=said):
        Reproduce(**options, out=tmp_path).execute()  # pyright: ignore[reportArgumentType]


def test_the_papers_size_is_a_matter_of_two_options() -> None:
    experiment = Reproduce("sepsis", patients=15_656, seeds=1).part("sepsis")
    assert experiment.cohort == SyntheticPatients(15_656)
    assert (experiment.seeds, experiment.name) == (1, "sepsis")


def test_the_page_says_whether_the_order_holds() -> None:
    cell = {"seed": 0, "ending": "", "seconds": 1.0, "groups": [], "mean_q": [], "models": [],
            "sizes": [dict.fromkeys(("patients", "decisions", "transitions", "windows", "died"), 1)] * 3}  # fmt: skip
    row = {"estimator": "DR", "low": 0.0, "high": 9.0, "verdict": "with care", "recommended": True, "effective": 60.0,
           "unsupported": 0.1, "agreement": 0.2, "reason": "Too few."}  # fmt: skip
    values = {"physician": (1.0, 1.0, 1.0), "D3QN": (2.0, 2.1, 1.9), "CTRL_g": (2.0, 2.3, 1.8)}
    judged = lambda seed: [{**row, "seed": seed, "policy": name, "value": own[seed], "truth": own[seed]}
                           for name, own in values.items()]  # fmt: skip
    page = sepsis_page([{**cell, "seed": seed, "estimates": judged(seed)} for seed in range(3)], "command", "sepsis")
    lines = {line.split(" | ")[0]: line for line in page.splitlines()}
    assert lines["| D3QN − physician"].endswith("more |")
    assert lines["| CTRL_g − D3QN"].endswith("no clear difference |")


def test_where_every_verdict_is_a_refusal_one_line_says_why() -> None:
    row = {"recommended": True, "policy": "CTRL_g", "verdict": "cannot be judged", "reason": "Too few."}
    cell = {"ending": "", "estimates": [{**row, "policy": "physician", "verdict": "supported"}, row]}
    said = why_none_is_evaluated([cell, cell])
    assert said == "No policy can be evaluated from this cohort. The first reason in 2 of 2 cases: Too few."
    assert why_none_is_evaluated([cell, {"ending": "", "estimates": [{**row, "verdict": "with care"}]}]) == ""
