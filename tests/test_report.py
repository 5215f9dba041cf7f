"""The page of a run: every section, no patient in it, nothing from elsewhere, and missing parts said to be missing."""

import itertools
import re
import shutil
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.cli.check_scm import examine
from counterpoint.core.artifacts import write_text
from counterpoint.learners.search import SearchedPolicy
from counterpoint.ope.intervals import ConfoundingBound
from counterpoint.ope.problem import EpsilonMixture
from counterpoint.ope.result import (
    BehaviourSummary,
    Diagnostics,
    Estimate,
    Evaluation,
    Sensitivity,
    SubgroupEstimate,
)
from counterpoint.page import cells
from counterpoint.page.choices import choices_of
from counterpoint.page.cohort import cohort, mean_of, records_of
from counterpoint.page.evaluation_tables import comparison_text, evaluation_section
from counterpoint.page.gather import gather, lines_of
from counterpoint.page.imagined import action_effects, direction_notes, directions, effect_curve, imagined_section
from counterpoint.page.page import render
from counterpoint.page.policy import rule_of
from counterpoint.page.severity import Severity, medians, severity_of
from counterpoint.page.summary import RunContents
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.run import Run
from counterpoint.tasks.base import Task
from counterpoint.tasks.cartpole import CartPole
from helpers.cli import command
from helpers.personal import GROUPED, ROWS, TASK
from helpers.recipes import BRIEF, DENSITY, POLICY
from helpers.recipes import ROWS as CONTINUOUS
from reproduction.tasks import sepsis

SHAPES = False

ODD = "<script>alert('rate & rhythm')</script>"
RARE = "bed of J. Doe"
SECTIONS = (
    "summary", "data", "model", "imagined", "groups", "policy", "evaluation", "caveats", "settings", "versions",
)  # fmt: skip


def ward(patients: int = 90) -> pd.DataFrame:
    """Odd ids, a column named like an attack, numbers of full precision, a level of three patients, two doses."""
    random, rows = np.random.default_rng(0), []
    for patient in range(patients):
        severity, bed = random.normal(), RARE if patient < 3 else ("icu", "er")[patient % 2]
        for hour in range(int(random.integers(3, 7))):
            iv, vaso = (float(random.choice([0.0, 0.5, 1.0])) for _ in range(2))
            lactate = severity + random.normal(0, 0.1) if random.random() < 0.8 else None
            told = (f"MRN-{patient:03d}-q{7919 * (patient + 1)}", hour, severity, lactate, bed, iv, vaso)
            rows.append((*told, -severity))
            severity += 0.1 - 0.2 * iv - 0.1 * vaso + random.normal(0, 0.3)
    return pd.DataFrame(rows, columns=["id", "hour", ODD, "lactate", "bed", "iv", "vaso", "reward"])


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return ward()


def rows_of(table: pd.DataFrame) -> cp.Transitions:
    roles: dict[str, Any] = {
        "subject": "id",
        "time": "hour",
        "state": [ODD, "lactate", "bed"],
        "action": ["iv", "vaso"],
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*equals the reward")
        return cp.from_dataframe(
            table, **roles, reward="reward", last="truncate", missing="median", masks=["lactate"], held_out=0.2
        )


def learned(folder: Path, rows: cp.Transitions, task: Task | None = None) -> Run:
    """A run with every part but imagined rows and an evaluation."""
    run = Run(folder)
    run.start(rows, 0.2, 0)
    run.keep_task(task or cp.Outcome(hidden=(8,), likelihood=BRIEF).fit(run.training))
    run.keep_model(recipe_for(rows).fit(run.training))
    examine(run)
    policy = POLICY.fit(run.training, run.task).with_verdict(run.check_verdict)
    run.keep("policy", policy.save, ["data", "split", "task", "scm"])
    return run


def recipe_for(rows: cp.Transitions) -> Any:
    """A small model of a table, categories among its columns or not."""
    coded = rows.schema.categories
    return cp.models.MixedSCM(coded, ensemble=2, hidden=(8,), likelihood=BRIEF) if coded else DENSITY


@pytest.fixture(scope="module")
def run(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned(tmp_path_factory.mktemp("runs") / "ward", rows_of(table)).folder


def page_of(run: Path, *words: str) -> str:
    command("report", "--run", run, *words)
    return (run / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return page_of(run)


class Outline(HTMLParser):
    """Headings, tables' headers, images, anchors and the ids they may lead to; every tag must be closed."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.stack

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def visible(page: str) -> str:
    """The page less its figures, whose addresses hold any letters."""
    return re.sub(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", "", page)


def test_the_page_has_every_section_headings_in_order_and_names_for_what_is_not_text(page: str) -> None:
    outline = Outline(page)
    assert [each["id"] for each in outline.all("section")] == list(SECTIONS)
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(each["alt"] for each in outline.all("img"))
    assert all(each.get("scope") in ("col", "row", "colgroup") for each in outline.all("th"))
    assert outline.all("html") == [{"lang": "en"}]
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {str(each["href"])[1:] for each in outline.all("a")} <= set(ids)
    for landmark in ("header", "nav", "main", "footer"):
        assert len(outline.all(landmark)) == 1


def test_nothing_comes_from_elsewhere_and_no_script_runs(page: str) -> None:
    assert "<script" not in page
    assert not re.search(r"https?:|src=\"?//|url\(|@import|<link|<iframe", visible(page))
    assert all(str(each["src"]).startswith("data:") for each in Outline(page).all("img"))


def test_a_column_named_like_a_script_is_shown_as_text(page: str) -> None:
    assert "&lt;script&gt;alert(&#39;rate &amp; rhythm&#39;)&lt;/script&gt;" in page


def test_no_patient_is_on_the_page(page: str, table: pd.DataFrame) -> None:
    shown = visible(page)
    assert "MRN" not in shown
    assert not any(str(name) in shown for name in table["id"].unique())
    assert "J. Doe" not in shown
    for column in (ODD, "lactate"):
        values = table[column].dropna()
        assert not any(repr(float(value)) in shown for value in values)
        assert not any(f"{value:#.5g}" in shown for value in values)


def test_the_same_run_gives_the_same_page(page: str, run: Path) -> None:
    assert page_of(run) == page


def test_what_was_marked_as_missing_is_counted(page: str, table: pd.DataFrame, run: Path) -> None:
    rows = Run(run).data
    marked = float(rows.state[:, rows.state_names.index("lactate_missing")].mean())
    assert abs(marked - table["lactate"].isna().mean()) < 0.03
    assert re.search(rf"lactate</th><td>[^<]*</td><td class=\"number\">{cells.share(marked)}</td>", page)


def test_a_part_that_is_not_there_is_said_to_be_missing_with_its_command(run: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(run, tmp_path / "bare")
    asked = {"policy": "train --run bare", "check.json": "check-scm --run bare", "scm": "fit --run bare"}
    for part, again in asked.items():
        target = bare / part
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        if part == "scm":
            shutil.rmtree(bare / "task")
        text = page_of(bare)
        assert f"<code>counterpoint {again}</code>" in text
        assert [each["id"] for each in Outline(text).all("section")] == list(SECTIONS)


def test_without_an_evaluation_the_page_says_how_to_make_one(page: str) -> None:
    assert "<code>counterpoint evaluate --run ward</code>" in page
    assert "Not evaluated yet" in page


def test_a_stale_part_is_refused_in_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = shutil.copytree(run, tmp_path / "stale", ignore=shutil.ignore_patterns("report.html"))
    other = Run(stale)
    other.keep_model(recipe_for(other.data).fit(other.training, seed=1))
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        command("report", "--run", stale)
    said = capsys.readouterr().err.strip()
    assert stopped.value.code == 2
    assert "was made from another scm" in said
    assert "\n" not in said
    assert (
        not (stale / "report.html").exists() or (stale / "report.html").read_text() == (run / "report.html").read_text()
    )


def test_an_empty_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("report", "--run", tmp_path / "nothing")
    assert "has no data; run simulate" in capsys.readouterr().err


def test_severity_by_another_column_and_a_wrong_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Severity is measured by <strong>lactate</strong>" in page_of(run, "--severity", "lactate")
    with pytest.raises(SystemExit):
        command("report", "--run", run, "--severity", "bed")
    assert "'bed' is no column of numbers" in capsys.readouterr().err


def test_fewer_than_ten_subjects_have_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("simulate", "--run", tmp_path / "few", "--trials", 9)
    with pytest.raises(SystemExit):
        command("report", "--run", tmp_path / "few")
    assert "the run has 9 subjects" in capsys.readouterr().err


def test_a_simulator_run_shows_true_returns_and_doses_without_a_grid(tmp_path: Path) -> None:
    task = CartPole()
    run = learned(tmp_path / "pole", cp.simulate(task, cp.random_policy(task), 30, 20, 0), task).folder
    command("evaluate", "--run", run, "--trials", 4)
    returns = pd.read_csv(run / "evaluation.csv")["return"]
    text = page_of(run)
    assert (
        f"Mean true return of 4 trials in the simulator that made the log: <strong>{cells.number(returns.mean())}"
        in text
    )
    assert "Tried in a simulator" in text


def evaluation(verdict: Any = "with care", low: float = 0.2) -> Evaluation:
    """An evaluation with every part."""
    value = Estimate("WDR", 7.8, 6.6, 9.0)
    ConfoundingBound(1.0, 7.0, 7.0, 4.0, 9.0), ConfoundingBound(2.0, 5.0, 9.0, 2.0, 11.0)
    part = SubgroupEstimate(
        "lowest return foreseen", 30, Estimate("policy", 3.125, 0.9, 5.0), Estimate("logged", 1.0, 0.6, 1.4)
    )
    return Evaluation(
        policy="General",
        verdict=verdict,
        reasons=("Reasons come <b>first</b>.", "Another."),
        recommended="WDR",
        estimates=(Estimate("WIS", 7.1, 4.2, None), value),
        logged=Estimate("behaviour policy", 6.4, 6.1, 6.6),
        difference=Estimate("WDR less behaviour policy", 1.4, low, 2.6),
        diagnostics=Diagnostics(60, 60, 300, 41.0, 17.0, 0.06, 0.08, 0.13, 0.31),
        behaviour=BehaviourSummary("Logistic", 0.62, 0.02, ((0.1, 0.12), (0.6, 0.55))),
        groups=(),
        severity_by="return foreseen",
        severity=(part, replace(part, name="a small part", subjects=4)),
        sensitivity=Sensitivity(
            (replace(value, name="BoostedTrees"),),
            "record",
            (ConfoundingBound(1.0, 7, 7, 4, 9), ConfoundingBound(2.0, 5, 9, 2, 11)),
            1.1,
        ),
        mixture=EpsilonMixture(),
        held_out=True,
        discount=0.99,
        confidence=0.95,
        draws=200,
        seed=0,
    )


def judged_page(run: Path, tmp_path: Path, found: Evaluation) -> str:
    judged = Run(shutil.copytree(run, tmp_path / "judged"))
    judged.keep("evaluation", lambda path: write_text(path, found.text()), ["policy"])
    return page_of(judged.folder)


def test_every_logged_return_says_its_subjects_steps_and_discount(run: Path, tmp_path: Path) -> None:
    rows = Run(run).data
    steps = cells.number(len(rows) / len(records_of(rows).length))
    everybody = f"of all 90 logged subjects, over all logged steps of an episode ({steps} on average), undiscounted"
    aside = "the 60 held-out subjects, over all logged steps of an episode (5 on average), discounted by 0.99 a step"
    text = visible(judged_page(run, tmp_path, evaluation()))
    parts = dict(zip(SECTIONS, re.split("<section", text)[1:], strict=True))
    assert f"Logged total reward of an episode, mean (95% interval), {everybody}" in parts["data"]
    assert f"Clinicians (95% interval), logged return of {aside}" in parts["summary"]
    assert f"clinicians (behaviour policy), logged return of {aside}" in parts["evaluation"]
    assert f"the clinicians’ return: the logged return of {aside}" in parts["evaluation"]
    assert f"Clinicians: logged return of each subgroup among {aside}" in parts["evaluation"]
    assert "It differs from the logged total reward in the section on the data" in parts["evaluation"]
    assert f"Logged total reward of an episode (95% interval), {everybody}" in page_of(run)
    alone = replace(evaluation(), held_out=False, diagnostics=None, discount=1.0)
    assert evaluation_section(alone).logged_of == (
        "all logged subjects, over all logged steps of an episode, undiscounted"
    )
    assert "differs" not in evaluation_section(alone).note


def test_an_evaluation_is_shown_with_verdict_value_interval_and_parts(run: Path, tmp_path: Path) -> None:
    text = judged_page(run, tmp_path, evaluation())
    Outline(text)
    summary = text[text.index('id="summary"') : text.index('id="data"')]
    for said in ("With care", "7.8 (6.6 to 9)", "6.4 (6.1 to 6.6)", "1.4 (0.2 to 2.6)", "31% of decisions"):
        assert said in summary
    assert "Reasons come &lt;b&gt;first&lt;/b&gt;." in summary
    assert "lowest return foreseen" in text
    assert "a small part" not in text
    assert "confounding of strength 1.1 could explain the difference." in text
    assert "WIS weights whole records, here an effective number of 17 subjects" in text


def test_the_summary_has_no_value_where_none_is_reliable(run: Path, tmp_path: Path) -> None:
    text = judged_page(run, tmp_path, evaluation("cannot be judged"))
    summary = text[text.index('id="summary"') : text.index('id="data"')]
    assert "7.8" not in summary
    assert "1.4" not in summary
    assert "The log does not show whether the policy is better" in summary


def test_better_and_worse_are_said_by_the_interval_of_the_difference() -> None:
    assert "to be better" in comparison_text(evaluation(low=0.2))
    assert "no significant difference" in comparison_text(evaluation(low=-0.1))
    assert "shows no significant difference" in evaluation_section(evaluation(low=-0.1)).sensitivity[1].note
    worse = replace(evaluation(), difference=Estimate("", -1.0, -2.0, -0.1))
    assert "to be worse" in comparison_text(worse)


def test_small_cells_are_hidden_and_cannot_be_had_by_subtraction() -> None:
    assert cells.hidden([50, 9, 0, 30]) == [False, True, False, True]
    assert cells.hidden([50, 9, 3, 30]) == [False, True, True, False]
    assert cells.hidden([50, 10, 0]) == [False, False, False]
    assert [cells.counted(n) for n in (0, 1, 9, 10, 1234)] == ["0", "<10", "<10", "10", "1,234"]
    assert [cells.tail(n) for n in (39, 40, 100, 200)] == [None, 0.25, 0.1, 0.05]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234.567, "1,230"), (0.98765, "0.988"), (-2.5, "−2.5"), (0.00001234, "1.23e−05"), (100.0, "100")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert cells.number(value) == text


def test_an_interval_is_rounded_where_its_largest_number_is() -> None:
    assert cells.between(4.0512, -0.01491, 7.5349) == "4.05 (−0.01 to 7.53)"
    assert cells.between(1234.0, 0.4, 5678.0) == "1,230 (0 to 5,680)"
    assert cells.between(0.0, 0.0, 0.0) == "0 (0 to 0)"


def test_subjects_are_counted_once_a_cell() -> None:
    rows = cp.simulate(CartPole(), cp.random_policy(CartPole()), 6, 5, 0)
    cell = torch.where(rows.step < 2, 0, -1)
    cell[rows.subject == 3] = 2
    assert cells.subjects_in(rows, cell, 3) == [5, 0, 1]


def test_quantiles_are_those_of_numpy() -> None:
    values = torch.randn(501, generator=torch.Generator().manual_seed(0))
    expected = np.quantile(values.double().numpy(), [0.05, 0.5, 0.93])
    assert np.allclose(cells.quantiles(values, 0.05, 0.5, 0.93), expected)


def test_episodes_are_laid_out_whatever_the_order_of_rows() -> None:
    rows = cp.simulate(CartPole(), cp.random_policy(CartPole()), 8, 12, 0, stop_at_failure=True)
    shuffled = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]
    records = records_of(shuffled)
    for subject, length, returned, first, last in zip(*vars(records).values(), strict=True):
        own = rows[rows.subject == subject]
        assert (int(length), float(returned)) == (len(own), float(own.reward.sum()))
        assert int(shuffled.step[first]) == 0
        assert int(shuffled.step[last]) == len(own) - 1


def test_the_mean_of_episodes_has_the_interval_of_its_subjects() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    alone = mean_of(values, torch.arange(400))
    assert alone.high - alone.estimate == pytest.approx(1.96 * float(values.std(correction=0)) / 20)
    doubled = mean_of(values.repeat(2), torch.arange(400).repeat(2))
    assert doubled.high == pytest.approx(alone.high)


@pytest.fixture(scope="module")
def septic() -> cp.Transitions:
    task = sepsis.SyntheticSepsis(sepsis.population(60, 0))
    return cp.simulate(task, sepsis.physician(task), 60, 6, 0)


def test_severity_is_the_column_that_goes_with_reward_the_mildest_first() -> None:
    rows = cp.simulate(cp.Ward(), cp.random_policy(cp.Ward()), 300, 10, 0)
    found = severity_of(rows)
    assert found is not None
    assert found.column == "severity"
    assert found.correlation < 0
    means = [float(rows.state[found.group == g, 0].mean()) for g in range(len(found.labels))]
    assert means == sorted(means)
    assert len(means) == 5
    mirrored = severity_of(replace(rows, state=-rows.state))
    assert mirrored is not None
    means = [float(-rows.state[mirrored.group == g, 0].mean()) for g in range(len(mirrored.labels))]
    assert means == sorted(means, reverse=True)


def test_a_state_that_stands_for_a_group_is_its_columns_medians(septic: cp.Transitions) -> None:
    found = severity_of(septic)
    assert found is not None
    middle = medians(septic, found)
    own = septic.state[found.group == 0].double()
    numbers = [
        i for i, column in enumerate(septic.schema.states) if not column.levels and column.name not in ("SOFA", "SIRS")
    ]
    assert torch.allclose(middle[0, numbers].double(), torch.from_numpy(np.median(own.numpy(), 0))[numbers], rtol=1e-4)


def test_imagined_effects_share_their_noise_and_name_actions_never_taken(run: Path) -> None:
    rows, model = Run(run).data, Run(run).scm
    rows, given = rows[rows.action_index != 8], len(rows.schema.labels())
    severity, choices = severity_of(rows), choices_of(rows)
    assert severity is not None
    assert choices is not None
    assert choices.grid is not None
    asked = action_effects(rows, model, severity, choices)
    assert torch.equal(asked.mean, action_effects(rows, model, severity, choices).mean)
    assert asked.mean.shape == (len(severity.labels), given, len(rows.state_names))
    assert bool((asked.low <= asked.high).all())
    assert {asked.support(g, 8) for g in range(len(severity.labels))} == {"never"}
    assert not any(line[8] for line in asked.supported)
    shown = imagined_section(rows, model, severity, (3,) * len(severity.labels))
    assert shown is not None
    assert shown.unsupported >= 1 / given
    for table in shown.tables:
        assert f"{choices.labels[3]} (the policy’s choice)" in {row[0] for row in table.rows}
        assert (choices.labels[8], "never") in {row[:2] for row in table.rows}


def test_every_action_has_the_same_noise(run: Path) -> None:
    """Differences between actions are what the model says of one noise, not of two draws."""
    rows, model = Run(run).data, Run(run).scm
    severity, choices = severity_of(rows), choices_of(rows)
    assert severity is not None
    assert choices is not None
    asked = action_effects(rows, model, severity, replace(choices, features=choices.features[[4] * len(choices)]))
    assert torch.allclose(asked.mean, asked.mean[:, :1].expand_as(asked.mean), atol=1e-6)


def test_rare_levels_stay_unnamed_in_a_rule(run: Path) -> None:
    rows = Run(run).data
    width = rows.schema.spread_width
    weights = {
        "numbers": torch.ones(2 * (width + 1)),
        "returns": torch.zeros(1),
        "mean": torch.zeros(1, width),
        "spread": torch.ones(1, width),
    }
    policy = SearchedPolicy(cp.Search(), weights, rows.schema, cp.data.Origin(0, "", ""))
    assert RARE in policy.explain()
    rule = rule_of(policy, rows)
    assert len(rule) == 2
    assert "iv = " in rule[0]
    assert not any(RARE in line for line in rule)


def test_settings_show_every_field_and_no_number_of_a_subject() -> None:
    task = sepsis.SyntheticSepsis(sepsis.population(20, 0))
    said = dict(lines_of("kind", task))
    assert said["kind"] == "SyntheticSepsis"
    assert said["end_reward"] == "15"
    assert said["response.fluid"] == "20 numbers"
    recipe = dict(lines_of("kind", POLICY))
    assert recipe["schedule.steps"] == "5"
    assert recipe["hidden"] == "8"


def test_the_lengths_of_long_records_are_put_together() -> None:
    rows = cp.simulate(cp.Tumour(), cp.random_policy(cp.Tumour()), 30, 60, 0)
    bars = cohort(rows, 0).lengths
    assert (bars.width, len(bars.counts)) == (3, 20)
    assert bars.counts == (*(0,) * 19, 30)


def test_groups_are_shown_with_their_size_and_rule() -> None:
    policy = GROUPED.fit(ROWS, TASK)
    page = gather(RunContents("two kinds", ROWS, 0, {}, task=TASK, policy=policy))
    assert isinstance(policy, PersonalPolicy)
    sizes = policy.sizes(ROWS)
    assert [group.name for group in page.groups] == [*(f"Group {i + 1}" for i in range(len(sizes))), "Everybody else"]
    few = cells.hidden(sizes)
    for group, size, rare in zip(page.groups, sizes, few, strict=False):
        assert (f"{size} of 30 subjects" in group.size) != rare
    assert all("tanh" in group.rule[0] for group in page.groups)
    text = render(page)
    Outline(text)
    assert all(group.size in text for group in page.groups)


def test_continuous_doses_are_shown_by_quantiles_and_low_middle_and_high_are_imagined() -> None:
    moments = {"mean": torch.zeros(1, 4), "spread": torch.ones(1, 4)}
    weights = {"numbers": torch.zeros(5), "returns": torch.zeros(1), **moments}
    policy = SearchedPolicy(cp.Search(), weights, CONTINUOUS.schema, cp.data.Origin(0, "", ""))
    severity = CONTINUOUS.state_names[0]
    model = DENSITY.fit(CONTINUOUS)
    page = gather(RunContents("doses", CONTINUOUS, 0, {}, scm=model, policy=policy, severity=severity))
    assert page.imagined is not None
    assert len(page.imagined.surface.choices) == 3
    assert page.actions is not None
    assert page.actions.table.rows[1] == ("action_0, policy", "0", "0", "0")
    assert page.rule[0].startswith("action_0 = 0 + 1 · tanh(")
    Outline(render(page))


def test_a_column_that_hardly_goes_with_the_return_is_not_taken_for_severity() -> None:
    rng = np.random.default_rng(0)
    count = 400
    frame = pd.DataFrame({"id": np.repeat(np.arange(100), 4), "hour": np.tile(np.arange(4), 100)})
    frame = frame.assign(x=rng.normal(size=count), dose=rng.integers(0, 2, count), r=rng.normal(size=count))
    frame["died"] = frame["hour"] == 3
    rows = cp.from_dataframe(frame, subject="id", time="hour", state="x", action="dose", reward="r", done="died")
    assert severity_of(rows) is None
    assert severity_of(rows, "x") is not None


def dosed(action: tuple[str, ...] = ("iv", "vaso"), units: bool = True, **how: Any) -> cp.Transitions:
    """Rows of 250 subjects with random doses of 0, 0.5 and 1 mL/h, and of 0 and 0.25 mg."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": np.repeat(np.arange(250), 3), "hour": np.tile(np.arange(3), 250)})
    frame = frame.assign(x=rng.normal(size=750), iv=rng.integers(0, 3, 750) / 2, vaso=rng.integers(0, 2, 750) / 4)
    frame["r"] = -frame["x"]
    declared = {name: unit for name, unit in (("iv", "mL/h"), ("vaso", "mg")) if units and name in action}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cp.from_dataframe(
            frame, subject="id", time="hour", state="x", action=list(action), reward="r", last="truncate",
            units=declared, **how,
        )  # fmt: skip


def test_doses_are_shown_with_their_units() -> None:
    for units in (True, False):
        ml, mg = (" mL/h", " mg") if units else ("", "")
        rows = dosed(units=units)
        choices = choices_of(rows)
        assert choices is not None
        assert choices.labels[3] == f"iv 0.5{ml}, vaso 0.25{mg}"
        assert choices.grid is not None
        assert (choices.grid.down, choices.grid.across) == (("iv (mL/h)", "vaso (mg)") if units else ("iv", "vaso"))
        assert f"iv 0.5{ml}, vaso 0.25{mg}" in {line[0] for line in cohort(rows, 0).actions.rows}
        weights = {
            "numbers": torch.ones(4), "returns": torch.zeros(1), "mean": torch.zeros(1, 1), "spread": torch.ones(1, 1),
        }  # fmt: skip
        policy = SearchedPolicy(cp.Search(), weights, rows.schema, cp.data.Origin(0, "", ""))
        assert [line.split(" = ")[0] for line in rule_of(policy, rows)] == [choices.grid.down, choices.grid.across]
        single = dosed(("iv",), units, actions=cp.data.Bins(cuts=(0.7,)))
        assert {line[0] for line in cohort(single, 0).actions.rows} == {f"0{ml}", f"0.5{ml}", f"1{ml}"}
        doses = replace(CONTINUOUS.schema, action_units=(("action_0", "mL"),)) if units else CONTINUOUS.schema
        continuous = replace(CONTINUOUS, schema=doses)
        head = "action_0 (mL), logged" if units else "action_0, logged"
        assert cohort(continuous, 0).actions.rows[0][0] == head
        labels = choices_of(continuous)
        assert labels is not None
        assert all(label.endswith(" mL") == units for label in labels.labels)


def test_directions_of_a_curve_by_hand() -> None:
    assert directions([0.0, 1.0, 2.0], 0.1) == [1]
    assert directions([2.0, 1.0, 0.0], 0.1) == [-1]
    assert directions([0.0, 1.0, 0.95, 2.0], 0.1) == [1], "a small dip is ignored"
    assert directions([0.0, -1.0, 1.0], 0.1) == [-1, 1]
    assert directions([0.0, 0.05, 0.0], 0.1) == [], "an effect up to 0.1 is none"
    assert directions([i / 40 for i in range(41)], 0.1) == [1], "many small steps are one rise"
    predicted = torch.tensor([[1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]])
    assert effect_curve(predicted, torch.tensor([5.0, 0.0, 5.0, 0.0])) == [4.0, 3.0]


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        ((-1.0, 0.0, 1.0), "more iv (mL/h) raises x; in the log, at similar severity, x rises less after more of it"),
        ((1.0, 0.0, -1.0), ""),
        ((0.0, -1.0, 0.5), "effect of iv (mL/h) on x is not monotone: with more of it, x first falls, then rises"),
    ],
)
def test_effects_contrary_to_the_log_or_not_monotone_are_named(effect: tuple[float, ...], words: str) -> None:
    """Logged changes are −2·dose, more in the second severity group, which also gets more: alone they would mislead."""
    rows = dosed(("iv",))
    dose = rows.action[:, 0]
    group = torch.arange(len(rows)) % 2
    dose = torch.where((group == 1) & (dose == 0), 0.5, dose)
    change = -2 * dose + 10 * group
    logged = replace(rows, action=dose[:, None], next_state=rows.state + change[:, None])
    severity = Severity("x", 0, -0.5, group, ("mild", "severe"))
    choices = choices_of(rows)
    assert choices is not None
    predicted = torch.tensor(effect).expand(2, -1)[..., None]
    notes = direction_notes(logged, severity, choices, predicted, [0])
    assert len(notes) == bool(words)
    for note in notes:
        assert words in note
        assert note.endswith("needs an explanation by somebody who knows the subject before the model is used.")
