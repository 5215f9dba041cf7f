"""The page about practice: typical patients who are nobody, the tilt, and when doses act."""

import re
from dataclasses import replace

import pytest
import torch

import counterpoint as cp
from counterpoint.checks.comparisons import EffectComparison
from counterpoint.page.cells import SMALLEST
from counterpoint.page.effect_curves import acting_times
from counterpoint.page.gather import gather
from counterpoint.page.page import render
from counterpoint.page.practice import practice_section, typical_states
from counterpoint.page.summary import RunContents
from counterpoint.policies.near_practice import NearPracticePolicy
from counterpoint.policies.practice import ConstantPolicy
from helpers.near_practice import dosed_rows, near_practice
from helpers.recipes import ROWS, Pays

SHAPES = False


@pytest.fixture(scope="module")
def dosed() -> cp.Transitions:
    return dosed_rows()


@pytest.fixture(scope="module")
def tilted(dosed: cp.Transitions) -> NearPracticePolicy:
    policy = near_practice(dosed, 1.0, 0.0, Pays(dosed.actions))
    policy.numbers[-1] = -0.5
    return policy


def test_typical_patients_are_centres_of_groups_and_nobody_alone_is_one() -> None:
    """Three clusters of rows at −4, 0 and 4, and nine subjects far from all."""
    subject = ROWS.subject.unique(return_inverse=True)[1]
    state = ROWS.state * 0.1 + 4.0 * (torch.arange(len(ROWS)) % 3 - 1)[:, None]
    alone = subject < SMALLEST - 1
    rows = replace(ROWS, state=torch.where(alone[:, None], state + 40, state))
    found = typical_states(rows, 6)
    assert found is not None
    assert sum(found.share) == pytest.approx(1 - float(alone.float().mean()))
    assert float((found.state[:, None] - rows.state[None]).abs().amax(-1).min()) > 1e-3
    assert {round(float(value) / 4) for value in found.state.mean(1)} == {-1, 0, 1}
    assert typical_states(rows[alone]) is None


def test_the_page_shows_practice_the_tilt_and_both_actions(dosed: cp.Transitions, tilted: NearPracticePolicy) -> None:
    page = gather(RunContents("near", dosed, 0, {}, policy=tilted))
    text = render(page)
    assert page.rule == tuple(tilted.explain().splitlines()[:-1])
    assert page.practice is not None
    assert page.practice.distance == ("by hand",)
    assert page.practice.typical is not None
    for patient, lactate, practice, recommended in page.practice.typical.rows:
        assert re.fullmatch(r"\d+ \([\d.]+% of decisions\)", patient)
        given = float(tilted.practice.act(torch.tensor([[float(lactate)]])))
        assert float(practice.removeprefix("dose ")) == pytest.approx(given, rel=0.02)
        if not recommended.startswith("no recommendation: "):
            assert float(recommended.removeprefix("dose ")) == pytest.approx(given * 0.6065, rel=0.02)
        assert practice in text
    assert "a readable tilt of practice" in text


def test_another_policy_has_typical_patients_with_practice_and_withholds(
    dosed: cp.Transitions, tilted: NearPracticePolicy
) -> None:
    always = ConstantPolicy(cp.learners.Constant(), torch.tensor([60.0]), dosed.schema, tilted.origin)
    section = practice_section(dosed, always)
    assert section is not None
    assert section.distance == ()
    assert section.typical is not None
    assert all(line[-1].startswith("no recommendation: ") for line in section.typical.rows)
    assert all(float(line[-2].removeprefix("dose ")) > 0 for line in section.typical.rows)


def test_settings_are_last_and_folded(dosed: cp.Transitions, tilted: NearPracticePolicy) -> None:
    text = render(gather(RunContents("near", dosed, 0, {}, policy=tilted)))
    caveats, settings = text.index('<section id="caveats"'), text.index('<section id="settings"')
    assert caveats < settings < text.index("<details") < text.index("practice.trees") < text.index("</details>")
    assert "<details open" not in text


def test_when_a_dose_acts_is_read_from_the_intervals() -> None:
    def effect(outcome: str, log: tuple[float, ...], half: float) -> EffectComparison:
        low, high = tuple(x - half for x in log), tuple(x + half for x in log)
        zeros = (0.0,) * len(log)
        return EffectComparison("vaso", outcome, 0.1, "", (1, 2, 4), zeros, log, low, high, zeros, 0, 0.0, "agrees")

    effects = [effect("lactate", (0.5, 0.5, 0.5), 1.0), effect("MeanBP", (1.0, 3.0, -2.0), 0.9)]
    (said,) = acting_times(effects)
    assert said == "In the log 0.1 more vaso acts most plainly after 2 steps: MeanBP is raised by 3."
    assert acting_times(effects[:1]) == ("The log shows no effect of 0.1 more vaso within 4 steps.",)
