"""Every check passes for the true SCM and fails for a model that is broken where the check looks."""

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoint.checks import ambiguity
from counterpoint.checks import assumptions as checks
from counterpoint.checks.figure_data import figure_data
from counterpoint.checks.findings import (
    CheckSample,
    draw,
)
from counterpoint.checks.independence import column_gram, gram, holm, hsic, kolmogorov, permutation_moments
from counterpoint.checks.support import similar_rows, support
from counterpoint.core.errors import CounterpointError
from counterpoint.data.jobs import Origin
from counterpoint.data.schema import Schema
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions, concatenate, first_outcome
from counterpoint.models.scm.base import StructuralCausalModel, StructuralMechanism
from counterpoint.page.check_figure import check_figure
from counterpoint.registry import load
from helpers.recipes import DENSITY, SCMS
from reproduction.tasks.structural_problems import (
    Heteroscedastic,
    Independent,
    OneStep,
    RotatingMixing,
    Triangular,
    sample,
)

SHAPES = False


class Handmade(StructuralMechanism):
    """One member without weights; the parameter only says on which device it lives."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.members, self.noise_width, self.context_width = 1, width, width + 1
        self.device_marker = nn.Parameter(torch.zeros(1))


class Truth(Handmade):
    """The true mechanism of d, or of b, with its exact inverse."""

    def __init__(self, task: Independent | Heteroscedastic) -> None:
        super().__init__(task.noise_width)
        self.task = task

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return self.task.transition(state, context[..., -1:], noise)

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        action = context[..., -1:]
        if isinstance(self.task, Heteroscedastic):
            return (next_state - 0.5 * state - action) / (0.4 * (0.8 * action + 0.3 * (2 * state).sin()).exp())
        rest = next_state - self.task.mean(state, action)
        second = rest[..., 1] / (0.3 * (0.5 * action[..., 0]).exp())
        third = torch.log1p(rest[..., 2] / 0.3) / 0.6
        fourth = torch.asinh(rest[..., 3] / (0.25 * (1 + 0.5 * state[..., 3].tanh())))
        return torch.stack([rest[..., 0] / 0.3, second, third, fourth], -1)


class Columnwise(Handmade):
    """s' = m + σ(a)·u, right for every column of e2 (σ = .4) or f (σ² = .09 + .36a² after the first) by itself."""

    def __init__(self, task: RotatingMixing | Triangular) -> None:
        super().__init__(4)
        self.task = task

    def scale(self, action: Tensor) -> Tensor:
        if isinstance(self.task, RotatingMixing):
            return torch.full_like(action, 0.4).expand(*action.shape[:-1], 4)
        later = (0.09 + 0.36 * action.square()).sqrt().expand(*action.shape[:-1], 3)
        return torch.cat([torch.full_like(action, 0.3), later], -1)

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        action = context[..., -1:]
        return self.task.mean(state, action) + self.scale(action) * noise

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        action = context[..., -1:]
        return (next_state - self.task.mean(state, action)) / self.scale(action)


class InOrder(Columnwise):
    """The true triangular mechanism of f."""

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return self.task.transition(state, context[..., -1:], noise)

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        action = context[..., -1]
        rest = next_state - self.task.mean(state, context[..., -1:])
        noise = [rest[..., 0] / 0.3]
        for i, sign in ((1, 1), (2, -1), (3, 1)):
            noise.append((rest[..., i] - 0.6 * sign * action * noise[-1]) / 0.3)
        return torch.stack(noise, -1)


class Shifted(Truth):
    """Noise that depends on the action, u + .5a; abduction and prediction still fit together."""

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return super().predict(context, state, noise - 0.5 * context[..., -1:])

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return super().abduct(context, state, next_state) + 0.5 * context[..., -1:]


class Stretched(Truth):
    """Noise whose size depends on the action, u·e^{.6a}: its mean does not."""

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return super().predict(context, state, noise * (-0.6 * context[..., -1:]).exp())

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return super().abduct(context, state, next_state) * (0.6 * context[..., -1:]).exp()


class Overconfident(Truth):
    """A model that foresees two thirds of the true spread."""

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return super().predict(context, state, noise / 1.5)

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return super().abduct(context, state, next_state) * 1.5


class Certain(Truth):
    """A model that foresees no spread at all, only the median."""

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return super().predict(context, state, 1e-3 * noise)


class Folded(Truth):
    """Not monotone: the last column falls with its noise between −.4 and .4."""

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        last = noise[..., -1:]
        return super().predict(context, state, torch.cat([noise[..., :-1], last**3 - 0.5 * last], -1))


class Stepped(Truth):
    """Not strictly monotone: flat wherever the first noise is above 1.5."""

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return super().predict(context, state, torch.cat([noise[..., :1].clamp(max=1.5), noise[..., 1:]], -1))


class Contrary(Truth):
    """Rises with its noise under doses of 0 and above, and falls below."""

    def _sign(self, context: Tensor) -> Tensor:
        return torch.where(context[..., -1:] < 0, -1.0, 1.0)

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return super().predict(context, state, noise * self._sign(context))

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return super().abduct(context, state, next_state) * self._sign(context)


class Shuffled(Truth):
    """Each row gets the noise of the row before it: its law is right in every respect, and it explains nothing."""

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return super().abduct(context, state, next_state).roll(1, -2)


class Inexact(Truth):
    """An encoder that misses the noise by a fifth of its spread, in one column."""

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        noise = super().abduct(context, state, next_state)
        miss = 0.4 * torch.cos(40 * noise[..., :1])
        return torch.cat([noise[..., :1] + miss, noise[..., 1:]], -1)


class Divided(Truth):
    """Two members, of which the second believes in a stronger effect of the action by `more`."""

    def __init__(self, task: Independent | Heteroscedastic, more: float) -> None:
        super().__init__(task)
        self.members, self.more = 2, more

    def _push(self, context: Tensor) -> Tensor:
        return self.more * torch.tensor([0.0, 1.0])[:, None, None] * context[..., -1:]

    def predict(self, context: Tensor, state: Tensor, noise: Tensor) -> Tensor:
        return super().predict(context, state, noise) + self._push(context)

    def abduct(self, context: Tensor, state: Tensor, next_state: Tensor) -> Tensor:
        return super().abduct(context, state, next_state - self._push(context))


def wrap(mechanism: StructuralMechanism, rows: Transitions, fitted_on: Transitions | None = None) -> Any:
    """A model of this mechanism, as if it were fitted on the rows given, or on others."""
    seen = torch.zeros(0, dtype=torch.long) if fitted_on is None else fitted_on.row_hashes
    return StructuralCausalModel(None, mechanism, rows.schema, Origin(0, "", ""), seen)


def examine(mechanism: StructuralMechanism, task: OneStep, seed: int = 0, count: int = 600) -> CheckSample:
    rows = sample(task, count, seed + 100)
    return draw(wrap(mechanism, rows), rows, seed)


TASK = Independent()
TESTED = {"round trip", "monotone", "independent noise", "calibration", "fixed coupling", "better than the mean"}
ALL = TESTED | {"support", "agreement", "own noise"}


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_passes(seed: int) -> None:
    """Every testable check; what cannot be tested, that columns keep their own noises, is said and not hidden."""
    report = checks.report(examine(Truth(TASK), TASK, seed))
    assert {finding.name for finding in report.findings} == ALL
    assert {finding.name for finding in report.failed} == {"own noise"}
    assert report.trust == "with care"


def test_the_truth_of_one_column_is_trusted() -> None:
    task = Heteroscedastic()
    assert checks.report(examine(Truth(task), task)).trust == "yes"


BROKEN = [
    (Shifted, "independent noise", {"round trip", "monotone"}),
    (Stretched, "independent noise", {"round trip", "monotone"}),
    (Overconfident, "calibration", {"round trip", "monotone", "independent noise"}),
    (Certain, "better than the mean", {"independent noise"}),
    (Folded, "monotone", {"independent noise", "calibration"}),
    (Stepped, "monotone", {"independent noise", "calibration"}),
    (Shuffled, "round trip", {"monotone", "independent noise", "calibration", "fixed coupling"}),
    (Inexact, "round trip", {"monotone", "independent noise"}),
]


@pytest.mark.parametrize(("broken", "fails", "passes"), BROKEN)
def test_a_broken_model_fails_its_check(broken: type[Truth], fails: str, passes: set[str]) -> None:
    report = checks.report(examine(broken(TASK), TASK))
    assert not report[fails].passed
    assert all(report[name].passed for name in passes)
    assert report.trust == "no"
    assert report[fails].sentence in report.verdict()


@pytest.mark.parametrize(("taken", "alternative", "falls"), [(0.5, 0.5, 0.0), (0.5, -0.5, 0.5), (-0.5, 0.5, 0.5)])
def test_the_next_state_must_rise_under_either_action(taken: float, alternative: float, falls: float) -> None:
    seen = examine(Contrary(Heteroscedastic()), Heteroscedastic(), count=60)
    doses = {dose: torch.full_like(seen.alternative, dose) for dose in (taken, alternative)}
    rows = replace(seen.rows, action=doses[taken])
    finding = checks.monotone(replace(seen, rows=rows, alternative=doses[alternative]))
    assert finding.value == falls
    assert finding.passed == (falls == 0)


def test_a_missing_order_is_seen_in_the_coupling() -> None:
    """f column by column: every column's law is right, and only the coupling of the noises tells that it is wrong."""
    wrong = examine(Columnwise(Triangular()), Triangular())
    assert checks.calibration(wrong).passed
    assert not checks.copula_invariance(wrong).passed
    assert checks.copula_invariance(wrong).p_value < 1e-6  # pyright: ignore[reportOptionalOperand]
    right = examine(InOrder(Triangular()), Triangular())
    assert checks.copula_invariance(right).passed
    assert checks.round_trip(right).value < 1e-5


def test_coupling_in_size_is_seen() -> None:
    """Two-peaked noises that turn stay uncorrelated, but at 45° one is large where the other is small."""
    rows = sample(RotatingMixing(), 1000, 1)
    noise = (rows.noise.sign() + 0.25 * rows.noise.roll(1, 0)) / 1.0625**0.5
    turned = replace(rows, next_state=RotatingMixing().transition(rows.state, rows.action, noise))
    assert not checks.copula_invariance(draw(wrap(Columnwise(RotatingMixing()), rows), turned, 0)).passed


def test_turning_noises_are_named_where_no_data_show_them() -> None:
    """e2 has the law of a model with own noises, so every test passes; the hidden error is told as what is at stake."""
    task, errors, told = RotatingMixing(), [], []
    for seed in range(3):
        seen = examine(Columnwise(task), task, seed)
        truth = task.counterfactual(seen.rows, seen.alternative)
        wrong = seen.member_counterfactuals()[0] - truth
        errors.append(float((wrong.square().mean(0) / (truth - seen.rows.next_state).var(0)).mean().sqrt()))
        report = checks.report(seen)
        told.append(report["own noise"].value)
        assert {finding.name for finding in report.failed} == {"own noise"}
        assert report.trust == "with care"
    torch.testing.assert_close(torch.tensor(told), torch.tensor(errors), rtol=0.1, atol=0.0)


def test_turned_noise_keeps_its_law_and_the_factual_answer() -> None:
    seen = examine(Truth(TASK), TASK, count=1000)
    back = ambiguity.turned_noise(replace(seen, alternative=seen.rows.action))
    torch.testing.assert_close(back, seen.abducted(), rtol=0, atol=1e-4)
    turned = ambiguity.turned_noise(seen)
    torch.testing.assert_close(turned[0].T.cov(), seen.abducted()[0].T.cov(), rtol=0, atol=0.15)
    assert (turned - seen.abducted()).abs().mean() > 0.3


@pytest.fixture(scope="module")
def coded() -> CheckSample:
    """A mixed model of three continuous columns and a code, on rows of its own: their noises have the prior's law."""
    recipe, rows = SCMS["mixed"]
    model = replace(recipe, ensemble=1).fit(rows)
    random = torch.Generator().manual_seed(0)
    many = rows[torch.randint(len(rows), (1000,), generator=random)]
    return draw(model, replace(many, next_state=model.sample(many.state, many.action, random)), 0)


def test_only_normal_noises_turn(coded: CheckSample) -> None:
    assert coded.model.mechanism.normal_noise == 3
    own, turned = coded.abducted()[0], ambiguity.turned_noise(coded)[0]
    assert torch.equal(turned[:, 3:], own[:, 3:])
    assert (turned - own)[:, :2].abs().mean() > 0.3
    forward = (coded.alternative > coded.rows.action)[:, 0]
    for normal in (turned[forward, :3], turned[~forward, :3]):
        torch.testing.assert_close(normal.mean(0), torch.zeros(3), rtol=0, atol=0.2)
        torch.testing.assert_close(normal.T.cov(), torch.eye(3), rtol=0, atol=0.2)
    assert ambiguity.turning(coded).value > 0


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_normal_noises_cannot_turn(
    coded: CheckSample, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(coded.model.mechanism), "normal_noise", count)
    torch.testing.assert_close(ambiguity.turned_noise(coded), coded.abducted(), rtol=0, atol=1e-4)
    finding = ambiguity.turning(coded)
    assert finding.passed
    assert finding.value == 0
    assert finding.sentence.startswith("Nothing can turn")


@pytest.mark.parametrize(("more", "passed"), [(0.0, True), (0.05, True), (1.0, False)])
def test_members_must_agree(more: float, passed: bool) -> None:
    task = Heteroscedastic()
    finding = ambiguity.agreement(examine(Divided(task, more), task))
    assert finding.passed == passed
    # The members' answers differ by more·(a' − a), so their spread is half of that.
    assert (finding.value == 0) == (more == 0)


@pytest.mark.parametrize("width", [1, 3])
def test_a_straight_line_is_forecast_from_the_other_half(width: int) -> None:
    """Noise of the odd rows alone spoils the even rows' forecast, and leaves their own exact."""
    random = torch.Generator().manual_seed(0)
    context = torch.randn(400, 4, generator=random)
    line = context @ torch.randn(4, width, generator=random) + 2
    odd = (torch.arange(400) % 2 == 1)[:, None]
    wrong = checks._straight_line(context, line + odd * torch.randn(400, width, generator=random)) - line
    assert wrong[1::2].abs().max() < 1e-3
    assert wrong[::2].abs().mean() > 0.01


class TestSupport:
    def test_similar_rows_are_the_nearest_that_are_not_the_row_itself(self) -> None:
        """Thrice the same table, and rows of one state that differ elsewhere; two rows have no next state."""
        rows = sample(Independent(), 60, 0)
        rows = replace(rows, state=rows.state[torch.arange(60) // 2 * 2])
        rows.next_state[:2] = torch.nan
        logged = rows[torch.arange(180) % 60]
        found = similar_rows(rows, logged, 10)
        distance = ((rows.state[:, None] - logged.state) / logged.state.std(0)).norm(dim=-1)
        distance[torch.arange(60)[:, None] == torch.arange(180) % 60] = torch.inf
        expected = distance.sort().values[:, :10]
        torch.testing.assert_close(distance.gather(1, found), expected, rtol=0, atol=1e-5)
        assert (expected[:, :3] == 0).all()

    def test_actions_tied_to_the_state_leave_others_unsupported(self) -> None:
        rows = sample(Heteroscedastic(), 1000, 0)
        tied = replace(rows, action=(rows.state.tanh() + 0.02 * rows.action).clamp(-1, 1))
        free = rows.actions.sample(1000, torch.Generator().manual_seed(5))
        assert support(rows, free, rows).outside < 0.05
        assert support(tied, free, tied).outside > 0.5
        assert support(tied, tied.action, tied).outside <= 0.011

    def test_a_treatment_never_given_to_the_similar_is_outside(self) -> None:
        """Patients with s > 0 never get treatment 2, so a question about it there (and only there) has no support."""
        random = torch.Generator().manual_seed(0)
        rows, space = sample(Heteroscedastic(), 2000, 0), Discrete.one_hot(3)
        two, three = (torch.randint(count, (2000,), generator=random) for count in (2, 3))
        index = torch.where(rows.state[:, 0] > 0, two, three)
        schema = Schema.of(rows.state_names, space)
        given = replace(rows, action=space.features(index), action_index=index, schema=schema)
        asked = space.features(torch.full((2000,), 2))
        outside = support(given, asked, given).alternative > 1e-4
        clear = rows.state[:, 0].abs() > 0.2
        assert (outside == (rows.state[:, 0] > 0))[clear].float().mean() > 0.99

    def test_the_finding_fails(self) -> None:
        rows = sample(Heteroscedastic(), 1000, 0)
        tied = replace(rows, action=(rows.state.tanh() + 0.02 * rows.action).clamp(-1, 1))
        finding = checks.supported(draw(wrap(Truth(Heteroscedastic()), tied), tied, 0))
        assert not finding.passed
        assert not finding.grave


class TestReport:
    def test_rows_of_the_fit_are_never_trusted_fully(self) -> None:
        task = Heteroscedastic()
        rows = sample(task, 300, 0)
        report = checks.check_scm(wrap(Truth(task), rows, rows), rows)
        assert not report.held_out
        assert report.trust == "with care"
        assert "own rows" in report.verdict()

    @pytest.mark.parametrize("one", [0, 299])
    def test_a_single_row_of_the_fit_among_others_is_noticed(self, one: int) -> None:
        task = Heteroscedastic()
        rows = sample(task, 300, 0)
        assert not checks.check_scm(wrap(Truth(task), rows, rows[one : one + 1]), rows).held_out
        assert checks.check_scm(wrap(Truth(task), rows, sample(task, 300, 1)), rows).held_out

    def test_json_holds_every_finding(self) -> None:
        report = checks.report(examine(Shifted(TASK), TASK, count=300))
        back = json.loads(json.dumps(report.to_json(), allow_nan=False))
        assert {finding["name"] for finding in back["findings"]} == ALL
        assert back["trust"] == "no"
        assert back["verdict"].startswith("Trust: no, because:")

    def test_same_seed_same_report(self) -> None:
        first, second = (checks.report(examine(Truth(TASK), TASK, count=200)) for _ in range(2))
        assert first == second

    def test_too_few_rows_are_refused_in_one_line(self) -> None:
        with pytest.raises(CounterpointError, match="40 real rows"):
            checks.check_scm(wrap(Truth(TASK), sample(TASK, 40, 0)), sample(TASK, 40, 0))

    def test_figure_says_the_verdict_of_the_report(self, tmp_path: Path) -> None:
        sound, broken = (examine(each(TASK), TASK, count=200) for each in (Truth, Shifted))
        assert checks.report(broken).trust == "no"
        for checked, name in ((sound, "sound.png"), (broken, "broken.png")):
            check_figure(checks.report(checked), figure_data(checked), tmp_path / name)
        first, second = ((tmp_path / name).read_bytes() for name in ("sound.png", "broken.png"))
        assert first.startswith(b"\x89PNG")
        assert first != second


def stays(subjects: int, seed: int) -> Transitions:
    """Stays of four rows in d; the last of each ends and has no next state."""
    rows = sample(Independent(), 4 * subjects, seed)
    last = torch.arange(len(rows)) % 4 == 3
    return replace(
        rows,
        next_state=rows.next_state.masked_fill(last[:, None], torch.nan),
        outcome=first_outcome(last),
        subject=torch.arange(len(rows)) // 4,
        episode=torch.arange(len(rows)) // 4,
        step=torch.arange(len(rows)) % 4,
    )


LOG = stays(100, 0)
KEPT, ASIDE = LOG.split(0.3, seed=2)


@pytest.fixture(scope="module")
def model() -> StructuralCausalModel:
    """Fitted on most of the log's subjects."""
    return DENSITY.fit(KEPT)


class TestHeldOut:
    """Whether rows were seen is told by the rows, whatever table they stand in."""

    @pytest.mark.parametrize(
        "pick",
        [
            lambda rows: rows,
            lambda rows: rows.with_next(),
            lambda rows: rows[40:140],
            lambda rows: rows.with_next()[-80:],
            lambda rows: rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))],
            lambda rows: replace(rows, reward=rows.reward + 1, subject=rows.subject + 5),
        ],
        ids=["all", "with next", "slice", "slice with next", "shuffled", "other rewards and numbers"],
    )
    def test_rows_of_the_fit_are_never_held_out(self, pick, model: StructuralCausalModel) -> None:
        report = checks.check_scm(model, pick(KEPT))
        assert not report.held_out
        assert report.trust != "yes"
        assert "rows the model had not seen" not in report.verdict()

    def test_the_whole_log_is_not_held_out(self, model: StructuralCausalModel) -> None:
        assert not checks.check_scm(model, LOG).held_out

    def test_other_subjects_rows_are(self, model: StructuralCausalModel) -> None:
        assert not torch.isin(KEPT.subject, ASIDE.subject).any()
        for rows in (ASIDE, ASIDE.with_next(), ASIDE[:90], stays(40, 1)):
            report = checks.check_scm(model, rows)
            assert report.held_out
            assert "rows the model had not seen" in report.verdict()

    def test_a_saved_model_remembers(self, model: StructuralCausalModel, tmp_path: Path) -> None:
        model.save(tmp_path)
        loaded = load(tmp_path)
        assert not checks.check_scm(loaded, KEPT.with_next()).held_out
        assert checks.check_scm(loaded, ASIDE).held_out

    def test_imagined_rows_are_neither_fitted_on_nor_checked(self, model: StructuralCausalModel) -> None:
        """A table that also holds imagined copies of other subjects' rows has not shown them to the model."""
        copies = replace(ASIDE, imagined=torch.ones(len(ASIDE), dtype=torch.bool))
        again = DENSITY.fit(concatenate([KEPT, copies]))
        assert torch.equal(again.fitted_rows, model.fitted_rows)
        assert checks.check_scm(again, ASIDE).held_out


class TestStatistics:
    def test_permutation_moments_are_exact(self) -> None:
        """Against all 720 permutations of six rows."""
        random = torch.Generator().manual_seed(0)
        kernels = [gram(torch.randn(6, 1, generator=random)), column_gram(torch.randn(6, 2, generator=random))]
        centre = torch.eye(6, dtype=torch.float64) - 1 / 6
        a, b = (centre @ kernel @ centre for kernel in kernels)
        every = torch.stack([(a * b[list(p)][:, list(p)]).sum() for p in permutations(range(6))])
        mean, variance = permutation_moments(a, b)
        assert mean == pytest.approx(float(every.mean()), rel=1e-9)
        assert variance == pytest.approx(float(every.var(correction=0)), rel=1e-9)

    def test_hsic_p_values_are_uniform_under_independence(self) -> None:
        random = torch.Generator().manual_seed(1)
        p = torch.tensor([
            hsic(gram(torch.randn(80, 1, generator=random)), column_gram(torch.rand(80, 2, generator=random))).p_value
            for _ in range(400)
        ])  # fmt: skip
        for level in (0.01, 0.05, 0.2, 0.5):
            assert abs(float((p < level).double().mean()) - level) < 3.5 * (level * (1 - level) / 400) ** 0.5

    def test_hsic_sees_a_dependence_without_correlation(self) -> None:
        x = torch.randn(300, 1, generator=torch.Generator().manual_seed(0))
        test = hsic(gram(x), gram(x.square()))
        assert test.p_value < 1e-6
        assert test.effect > 0.1
        assert hsic(gram(x), gram(x)).effect == pytest.approx(1.0)

    def test_holm_by_hand(self) -> None:
        assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
        assert holm([0.6, 0.02, 0.9, 0.03]) == pytest.approx([1.0, 0.08, 1.0, 0.09])

    def test_kolmogorov_by_hand(self) -> None:
        """For one row p = 2 − 2d; a second member who says the same is no second row."""
        assert kolmogorov(torch.tensor([[0.4], [0.2], [0.9]])).effect == pytest.approx(2 / 3 - 0.4)
        twice = kolmogorov(torch.tensor([[0.75, 0.75]]))
        assert (twice.effect, twice.p_value) == pytest.approx((0.75, 0.5))

    def test_energy_score_is_the_crps_of_a_normal(self) -> None:
        """CRPS(N(0,1), y) = y(2Φ(y) − 1) + 2φ(y) − 1/√π, here its mean over standard normal y: 1/√π."""
        random = torch.Generator().manual_seed(0)
        draws, seen = torch.randn(20, 20_000, 1, generator=random), torch.randn(20_000, 1, generator=random)
        assert checks.energy_score(draws, seen) == pytest.approx(torch.pi**-0.5, abs=0.01)
