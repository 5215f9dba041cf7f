"""The benchmark of counterfactuals: its reference scores, what it asks whom, its restart, its page."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import reproduction.counterfactuals as benchmark
from counterpoint.core.artifacts import read_json
from counterpoint.core.errors import CounterpointError
from counterpoint.core.tables import read_csv
from counterpoint.models.scm.auto import AutoSCM
from counterpoint.models.scm.bicogan import ConditionalBiCoGAN
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from reproduction.command import Reproduce
from reproduction.counterfactuals import (
    NINE,
    SETS,
    TASKS,
    Counterfactuals,
    Stack,
    fingerprint,
    fit_and_score,
    log,
    quick,
)
from reproduction.estimators import DOWHY, Copy, auto_candidates, estimators, quick_estimators
from reproduction.executors import InProcess, Joblib
from reproduction.experiment import Context
from reproduction.pages.counterfactuals import Expected, counterfactuals_page, coverage, near_the_best
from reproduction.peers_dowhy import DoWhyGCM

CONTEXT = Context("key", Path())
COPY = {"copy the outcome": Copy()}
BRIEF = DensitySCM(ensemble=1, hidden=(8,), likelihood=Likelihood(Schedule(steps=5)))
BRIEF_GAN = replace(
    ConditionalBiCoGAN(), training=replace(ConditionalBiCoGAN().training, schedule=Schedule(steps=20, rate="linear"))
)


@dataclass(frozen=True)
class Elsewhere(Copy):
    """A recipe that differs from copying in its settings alone."""

    setting: int = 1


def small(**changes: Any) -> Counterfactuals:
    return Counterfactuals(**{"scms": ("a",), "n": (100,), "seeds": 1, "estimators": COPY, **changes})


@pytest.mark.parametrize("scm", ["a", "d", "cartpole", "tumour"])
def test_copying_the_outcome_scores_one(scm: str) -> None:
    (row,) = fit_and_score(Stack((("copy", Copy()),), ((scm, 200, 0),)), CONTEXT)
    assert row["error"] == pytest.approx(1.0, abs=0.03)
    assert row["round_trip"] == 0.0


def test_copying_leaves_all_but_the_variable_that_is_held() -> None:
    """x1 has no parents: under do(x1 = v) the truth's x1 is v too, so the distance is that of x2 and x3 alone."""
    causal = SETS["triangle-nlin"]
    x, noise = causal.sample(50, 0)
    (model,) = Copy().fit_graph([x], causal.parents, [0])
    answer, truth = model.counterfactual(x, {0: 0.5}), causal.counterfactual(noise, 0, 0.5)
    assert (answer[:, 0] == 0.5).all()
    assert (answer[:, 1:] == x[:, 1:]).all()
    assert (x[:, 0] != 0.5).all()
    assert (answer - truth).norm(dim=1).mean() > 1


def test_models_never_see_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert log("b", 100, 0).noise.shape[1] == 1
    seen = []
    monkeypatch.setattr(Copy, "fit_many", lambda self, jobs, device: seen.extend(jobs) or [self for _ in jobs])
    fit_and_score(Stack((("copy", Copy()),), (("b", 100, 0), ("b", 200, 1))), CONTEXT)
    assert [job.data.noise.shape for job in seen] == [(100, 0), (200, 0)]


def test_every_cell_is_asked_or_has_a_reason() -> None:
    whole = Counterfactuals()
    gaps = whole.gaps()
    asked = [(name, *fit) for stack in whole.stacks() for name, _ in stack.estimators for fit in stack.fits]
    assert set(whole.scms) == {*TASKS, *SETS}
    assert set(NINE) == set("abchdf") | {"e1", "e2", "cartpole"}
    cells = {
        (method, scm, n, seed)
        for method in estimators()
        for scm in whole.scms
        for n in ((20_000,) if scm in SETS else (1000, 5000))
        for seed in range(5)
        if (method, scm) not in gaps
    }
    assert set(asked) == cells
    assert len(asked) == len(cells)
    assert all(gaps.values())


def test_what_is_not_asked_cannot_be() -> None:
    gaps = Counterfactuals().gaps()
    assert gaps["default, order given", "a"] == "an order of 4 columns is none for a state of 1"
    assert {scm for method, scm in gaps if method == "default, order given"} == {*"abch", "tumour", "hiv", *SETS}
    never = {method for method in estimators() if (method, "triangle-nlin") in gaps}
    assert "BiCoGAN, paper" in never
    assert not never & {"copy the outcome", "location-scale", "mixture ×5", "default", DOWHY}
    assert {scm for method, scm in gaps if method != "default, order given"} == set(SETS)


def test_problems_of_one_shape_share_a_stack_and_the_longest_work_comes_first() -> None:
    packs = Counterfactuals(scms=("a", "b", "d", "e1", "triangle-nlin"), estimators={"x": BRIEF, **COPY}).stacks()
    mine = [{scm for scm, _, _ in stack.fits} for stack in packs if stack.recipe is BRIEF]
    assert sorted(map(sorted, mine)) == [["a", "b"], ["d", "e1"], ["triangle-nlin"]]
    lengths = [stack.cost for stack in Counterfactuals().stacks()]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 100 * (lengths[-1] + 1)
    limited = Counterfactuals(scms=("a", "b"), seeds=3, estimators={"x": BRIEF}, stack_size=3).stacks()
    assert sorted({(scm, n) for scm, n, _ in stack.fits} == {stack.fits[0][:2]} for stack in limited) == 4 * [True]


def test_estimators_that_differ_in_their_abduction_are_read_off_one_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are those of fits that are made apart."""
    encoder, other = replace(BRIEF_GAN, abduction="encoder"), replace(BRIEF_GAN, change=False)
    both = {"encoder": encoder, "inversion": BRIEF_GAN, "of s'": other}
    asked = small(scms=("d",), estimators=both)
    stacks = {tuple(name for name, _ in stack.estimators): stack for stack in asked.stacks()}
    assert set(stacks) == {("encoder", "inversion"), ("of s'",)}
    apart = [fit_and_score(Stack(((name, recipe),), (("d", 100, 0),)), CONTEXT) for name, recipe in both.items()]
    fitted, fit = [], ConditionalBiCoGAN.fit_many
    monkeypatch.setattr(ConditionalBiCoGAN, "fit_many", lambda *told, **more: fitted.append(1) or fit(*told, **more))
    together = fit_and_score(stacks["encoder", "inversion"], CONTEXT)
    assert len(fitted) == 1
    for found, (own,) in zip(together, apart, strict=False):
        assert {**found, "seconds": 0} == {**own, "seconds": 0}
    assert together[0]["error"] != together[1]["error"]
    assert together[0]["recipe"] != together[1]["recipe"]


def test_two_names_of_one_recipe_share_a_fit() -> None:
    rows = small(estimators={"x": BRIEF, "y": replace(BRIEF)}).stacks()
    assert [len(stack.estimators) for stack in rows] == [2]
    one, other = fit_and_score(rows[0], CONTEXT)
    assert (one["method"], other["method"]) == ("x", "y")
    assert one["error"] == other["error"]


def test_the_seconds_of_a_fit_are_told_of_every_reading_and_counted_once(tmp_path: Path) -> None:
    both = {"encoder": replace(BRIEF_GAN, abduction="encoder"), "inversion": BRIEF_GAN}
    whole = small(estimators=both, seeds=2)
    rows = whole.run(tmp_path)
    told = read_json(tmp_path / "counterfactuals.seconds.json", "")
    assert told["encoder"] == told["inversion"]
    made = read_json(tmp_path / "counterfactuals.settings.json", "")
    assert made["seconds"]["encoder and inversion on a"] > 0
    assert {row["seconds"] for row in rows} == {rows[0]["seconds"]}
    assert [each["cells"] for each in made["ran_on"]] == [1]


def test_the_packs_of_dowhy_are_one_problem_each_so_that_they_can_be_run_apart() -> None:
    keys = [
        {cell.key for cell in Counterfactuals(scms=("a", "b"), estimators={DOWHY: DoWhyGCM()}, stack_size=size).cells()}
        for size in (None, 5)
    ]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 4


def test_a_second_run_fits_nothing_and_gives_the_same_bytes(tmp_path: Path, monkeypatch) -> None:
    chosen = small(estimators={**COPY, "brief": BRIEF}, seeds=2)
    chosen.run(tmp_path / "a")
    before = (tmp_path / "a" / "counterfactuals.csv").read_bytes()
    chosen.run(tmp_path / "b", Joblib(1))
    assert (tmp_path / "b" / "counterfactuals.csv").read_bytes() == before
    monkeypatch.setattr(benchmark, "fit_and_score", lambda *arguments: pytest.fail("nothing was left to do"))
    chosen.run(tmp_path / "a")
    assert (tmp_path / "a" / "counterfactuals.csv").read_bytes() == before


def test_every_row_names_its_recipe_and_commit_and_no_row_its_seconds(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COUNTERPOINT_COMMIT", "0123abc")
    small(estimators={**COPY, "brief": BRIEF}).run(tmp_path)
    rows = read_csv(tmp_path / "counterfactuals.csv", words=("commit",))
    assert [(row["method"], row["recipe"], row["commit"]) for row in rows] == [
        ("copy the outcome", fingerprint(Copy()), "0123abc"),
        ("brief", fingerprint(BRIEF), "0123abc"),
    ]
    assert "seconds" not in rows[0]
    seconds = json.loads((tmp_path / "counterfactuals.seconds.json").read_text())
    assert seconds["brief"]["a"]["100"] > seconds["copy the outcome"]["a"]["100"] >= 0


def test_another_recipe_under_the_same_name_is_fitted_anew(tmp_path: Path) -> None:
    (first,) = small(estimators={"x": Copy()}).run(tmp_path)
    (other,) = small(estimators={"x": Elsewhere(2)}).run(tmp_path)
    assert first["recipe"] != other["recipe"]
    (row,) = read_csv(tmp_path / "counterfactuals.csv")
    assert row["recipe"] == fingerprint(Elsewhere(2))


def test_a_failure_is_one_line_and_the_rest_is_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Elsewhere, "fit_many", lambda self, jobs, device: 1 / 0)
    chosen = small(estimators={**COPY, "broken": Elsewhere()})
    with pytest.raises(CounterpointError, match=r"1 of 2 cells .* failed \(broken on a: ZeroDivisionError"):
        chosen.run(tmp_path, InProcess())
    assert [row["method"] for row in read_csv(tmp_path / "counterfactuals.csv")] == ["copy the outcome"]
    assert "1 of 2 cells (scm × rows × method × seed) are filled, 50%" in (tmp_path / "counterfactuals.md").read_text()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(CounterpointError, match="no SCM 'z'"):
        Counterfactuals(scms=("z",))
    with pytest.raises(CounterpointError, match="there is nothing to run"):
        Counterfactuals(scms=("a",), estimators={"x": estimators()["default, order given"]})


def test_the_command_describes_the_benchmark() -> None:
    whole = Reproduce("counterfactuals", device="cpu").part("counterfactuals")
    assert whole == replace(Counterfactuals(), stack_size=5)
    some = Reproduce("counterfactuals", seeds=7, methods=("default",), device="cpu").part("counterfactuals")
    assert some == replace(Counterfactuals(), seeds=7, stack_size=7, estimators={"default": estimators()["default"]})
    assert some.command == "python -m reproduction counterfactuals"
    assert Reproduce("counterfactuals", quick=True, device="cpu").part("counterfactuals") == replace(
        quick(), stack_size=1
    )


def test_the_quick_version_asks_everybody_but_dowhy() -> None:
    assert list(quick().estimators) == [name for name in estimators() if name != DOWHY]
    assert quick().name == "counterfactuals-quick"
    assert all(
        a != b
        for a, b in zip(quick_estimators().values(), list(estimators().values())[:-1], strict=True)
        if a != Copy()
    )


def test_all_candidates_of_auto_stand_in_the_table() -> None:
    for table in (estimators(), quick_estimators()):
        auto = table["auto"]
        assert isinstance(auto, AutoSCM)
        names = auto_candidates(table)["auto"]
        assert {table[name] for name in names} == set(auto.candidates)
        assert len(names) == 3


def rows_of(errors: dict[tuple[str, str], float]) -> list[dict[str, Any]]:
    return [
        {"scm": scm, "n": 100, "seed": seed, "method": method, "error": error + 0.01 * seed,
         "fresh_error": float("nan"), "round_trip": 0.0, "recipe": "r1", "commit": "c", "seconds": 1.0}
        for (scm, method), error in errors.items() for seed in (0, 1)
    ]  # fmt: skip


EXPECTED = Expected(
    (("a", 100), ("b", 100)),
    ("one", "two", "auto"),
    2,
    {("two", "b"): "two knows no b"},
    {"auto": ("one", "two")},
    ("a", "b"),
)
ERRORS = {("a", "one"): 0.2, ("a", "two"): 0.1, ("a", "auto"): 0.11, ("b", "one"): 0.3, ("b", "auto"): 0.3}


def test_coverage_counts_what_can_be_asked() -> None:
    rows = rows_of(ERRORS)
    assert coverage(rows, EXPECTED) == (10, 10)
    assert coverage(rows[:-1], EXPECTED) == (9, 10)
    assert coverage([*rows[:-1], {**rows[-1], "error": float("nan")}], EXPECTED) == (9, 10)
    assert coverage(rows, replace(EXPECTED, gaps={})) == (10, 12)
    assert coverage([*rows, {**rows[0], "method": "two", "scm": "b"}], EXPECTED) == (10, 10)


def test_the_choice_is_judged_against_the_best_candidate() -> None:
    """Means .115 against .105 and .205 on a; on b one candidate is unknown, which decides nothing."""
    ratios = near_the_best(rows_of(ERRORS), "auto", ("one", "two"), ("a", "b"))
    assert ratios == {"a": pytest.approx(0.115 / 0.105)}
    both = rows_of({**ERRORS, ("b", "two"): 0.2})
    page = counterfactuals_page(both, replace(EXPECTED, gaps={}), "x")
    assert "`auto` is within 10% of the best of its candidates (one; two) on 1 of 2; not on b (1.49 times)." in page


def test_the_page_says_who_is_not_asked_and_why() -> None:
    page = counterfactuals_page(rows_of(ERRORS), EXPECTED, "counterpoint bench counterfactuals")
    assert "10 of 10 cells (scm × rows × method × seed) are filled, 100%." in page
    assert "Not run on b, because two knows no b: two." in page
    assert "| two | 0.105 | – |" in page
    assert "By `counterpoint bench counterfactuals`." in page
    assert "nan" not in page


def test_without_dowhy_the_others_are_asked_and_one_line_names_the_extra(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dowhy", None)
    chosen = small(estimators={DOWHY: estimators()[DOWHY], "copy the outcome": Copy()})
    with pytest.raises(CounterpointError, match=r"DoWhy is not installed; run pip install 'counterpoint\[bench\]'"):
        chosen.run(tmp_path)
    assert {row["method"] for row in read_csv(tmp_path / f"{chosen.name}.csv")} == {"copy the outcome"}
