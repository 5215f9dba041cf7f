"""The tumour benchmark: its dynamics by hand, the published data sets, honest forecasts, and a run that goes on."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reproduction.tasks.tumour_benchmark as simulator
from counterpoint.core.errors import CounterpointError
from counterpoint.core.tables import read_csv
from counterpoint.data.lags import with_lags
from counterpoint.data.transitions import Transitions
from reproduction.experiment import recipe_key
from reproduction.measures.forecasting import (
    CopyLast,
    Forecast,
    Forecaster,
    PooledRegression,
    rmse_by_horizon,
    roll_out,
)
from reproduction.pages.tumour import published, tumour_page
from reproduction.tasks.tumour_benchmark import (
    CAPACITY,
    DEATH,
    TREATMENTS,
    Cohort,
    Course,
    relative_change,
    simulate_training,
)
from reproduction.tasks.tumour_questions import (
    ForecastQueries,
    Observed,
    follow,
    one_step_questions,
    several_step_questions,
    tumour_data,
)
from reproduction.tumour import TumourBenchmark, TumourRecipe, fit_and_score, forecasters


def alike(count: int, radio: float = 0.1, growth: float = 0.01, chemo: float = 0.03) -> Cohort:
    """Patients of one kind with tumours of 1, 2, 3, … cm³."""
    same = np.ones(count)
    return Cohort(np.arange(1.0, count + 1), np.ones(count, int), radio * same, growth * same, chemo * same)


def course(count: int = 400, gamma: float = 4.0, seed: int = 0) -> Course:
    return simulate_training(count, gamma, np.random.RandomState(seed))


def test_one_step_by_hand() -> None:
    """ρ ln(K/V) = 0.02, β_c C = 0.03·7.5 = 0.225, αd + βd² = 0.1·2 + 0.01·4 = 0.24."""
    volume = np.array([CAPACITY / np.e**2])
    change = relative_change(alike(1), volume, np.array([7.5]), np.array([1.0]))
    assert change == pytest.approx([0.02 - 0.225 - 0.24])


def test_half_of_the_drug_is_left_a_day_later() -> None:
    seen = Observed.start(alike(1, radio=0, growth=0), 5)
    plans = np.array([[[[1, 0], [0, 0], [1, 0]]]])
    after = follow(seen, np.array([0]), np.array([0]), plans)[0, 0]
    assert after == pytest.approx(np.cumprod([1 - 0.03 * 5, 1 - 0.03 * 2.5, 1 - 0.03 * 6.25]))
    seen.step(0, 0, np.array([True, False]))
    again = follow(seen, np.array([0]), np.array([1]), plans[:, :, 1:])[0, 0]
    assert again == pytest.approx(after[1:])


def test_the_dead_keep_the_volume_of_death_and_the_recovered_none() -> None:
    patients = Course.start(alike(4))
    left = simulator._end(
        patients, np.arange(4), 7, np.array([DEATH + 1, -0.5, 5.0, 1e-12]), np.array([0.0, 0.9, 0, 0.9])
    )
    assert left.tolist() == [2]
    assert patients.volume[:, 7].tolist() == [DEATH, 0, 5, 0]
    assert patients.length.tolist() == [7, 7, 59, 7]
    assert patients.outcome.tolist() == [0, 1, -1, 1]


def test_a_record_ends_with_its_patient() -> None:
    made = course()
    rows = made.table()
    assert (made.length < 59).any()
    assert torch.bincount(rows.subject).tolist() == made.length.tolist()
    last = torch.cat([rows.subject[1:] != rows.subject[:-1], torch.tensor([True])])
    assert torch.equal(rows.terminated | rows.truncated, last)
    assert torch.equal(rows.terminated & last, last & torch.from_numpy(made.length < 59)[rows.subject])
    inside = (~last).nonzero()[:, 0]
    assert torch.equal(rows.next_state[inside], rows.state[inside + 1])
    assert torch.equal(rows.step[inside] + 1, rows.step[inside + 1])
    assert (rows.state[:, 0] > 0).all()


def test_treatment_follows_the_size_of_the_tumour() -> None:
    for gamma in (0.0, 8.0):
        rows = course(gamma=gamma).table()
        rows = rows[rows.step > 0]
        large = rows.state[:, 0] > simulator.ball(5.0)
        difference = rows.action[large].mean(0) - rows.action[~large].mean(0)
        assert (difference > 0.2).all() if gamma else (difference.abs() < 0.05).all()


def test_nobody_is_treated_on_the_first_day_of_training() -> None:
    rows = course().table()
    assert not rows.action[rows.step == 0].any()
    assert rows.action[rows.step == 1].any()


def test_the_four_treatments_of_a_day_share_its_noise() -> None:
    asked = one_step_questions(6, 2.0, np.random.RandomState(3))
    cohort = simulator.draw_cohort(6, np.random.RandomState(3))
    patient = cohort.of(asked.rows.subject.numpy())
    volume = asked.rows.state[:, 0].double().numpy()
    lagged = with_lags(asked.rows, 58).state[:, 2::2].double().numpy()
    left = 5 * lagged @ 0.5 ** np.arange(1, 59)
    noise = []
    for number, (chemo, radio) in enumerate(TREATMENTS):
        change = relative_change(patient, volume, left + 5 * chemo, np.array(radio))
        noise.append(asked.truth[:, number, 0].numpy() / volume - 1 - change)
    recorded = asked.rows.action @ torch.tensor([1.0, 2.0])
    uncut = (asked.rows.next_state[:, 0] > 0.01) & (asked.rows.next_state[:, 0] < DEATH - 1)
    assert np.ptp(np.stack(noise)[:, uncut], axis=0).max() < 1e-4
    assert 0.005 < noise[0][uncut].std() < 0.02
    given = asked.truth[torch.arange(len(recorded)), recorded.long(), 0]
    assert torch.allclose(given.float(), asked.rows.next_state[:, 0])


def test_sequences_begin_after_the_recorded_step() -> None:
    asked = several_step_questions(3, 1.0, np.random.RandomState(1))
    assert asked.horizons == (2, 3, 4, 5, 6)
    assert torch.equal(asked.plans[:, :, 0], asked.rows.action[:, None].expand(-1, 10, -1))
    # The next day's record follows one of its own day's treatments: the same as a sequence that begins with it.
    inside = ((asked.rows.subject[:-2] == asked.rows.subject[2:]) & (asked.truth[:-2, 0, 0] > 0)).nonzero()[:, 0]
    match = (asked.plans[inside, :, 1] == asked.rows.action[inside + 1][:, None]).all(-1)
    truth = asked.truth[inside, :, 0][match]
    recorded = asked.rows.next_state[inside + 1, :1].double().expand(-1, 10)[match]
    assert len(truth) > 100
    assert torch.allclose(truth, recorded, rtol=1e-5)


def test_the_data_sets_are_the_published_ones() -> None:
    """The published simulator, run with seed 10, γ = 4, 300 + 30 + 100 + 100 patients, leaves these numbers behind."""
    data = tumour_data(4.0, 10, patients=300, test=100)
    assert len(data.train) == 17_053
    assert data.train.state[:3, 0].tolist() == pytest.approx([7.68705751, 8.34832971, 9.08886959], rel=1e-6)
    assert data.one_step.truth.numel() == 21_116
    assert int((~data.several.truth[:, :, -1].isnan()).sum()) == 57_803
    copy = CopyLast().fit(data.train, 0)
    assert errors(copy, data.one_step) == pytest.approx([1.6600229], abs=1e-6)
    assert errors(copy, data.several) == pytest.approx([2.437, 3.195, 3.803, 4.327, 4.736], abs=6e-4)


def errors(forecast: Forecast, asked: ForecastQueries) -> list[float]:
    answers = forecast(asked.rows, asked.plans)[:, :, -len(asked.horizons) :]
    return (100 * rmse_by_horizon(answers, asked.truth) / DEATH).tolist()


def test_the_error_of_a_horizon_by_hand() -> None:
    forecast = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [9.0, 9.0]]])
    truth = torch.tensor([[[4.0, 2.0], [3.0, 1.0]], [[0.0, 4.0], [torch.nan, torch.nan]]])
    assert rmse_by_horizon(forecast, truth).tolist() == pytest.approx([(9 / 3) ** 0.5, (25 / 3) ** 0.5])


def test_lags_are_the_actions_before_and_never_those_of_another_patient() -> None:
    rows = course(20).table()
    shuffled = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    one_episode = replace(shuffled, episode=torch.zeros_like(shuffled.episode))
    for table in (rows, shuffled[len(rows) // 4 :], one_episode):
        told = with_lags(table, 2)
        assert told.state_names == ("volume", "type", "chemo_1_ago", "radio_1_ago", "chemo_2_ago", "radio_2_ago")
        given = {(int(s), int(t)): a for s, t, a in zip(table.subject, table.step, table.action, strict=True)}
        for subject, step, state, after, action in zip(
            told.subject, told.step, told.state, told.next_state, told.action, strict=True
        ):
            ago = [given.get((int(subject), int(step) - k), torch.zeros(2)) for k in (1, 2)]
            assert torch.equal(state[2:], torch.cat(ago))
            assert torch.equal(after[2:], torch.cat([action, ago[0]]))


def test_a_rollout_moves_the_lags_and_keeps_the_type() -> None:
    rows = with_lags(course(5).table(), 2)[:7]
    plans = torch.randint(0, 2, (7, 3, 4, 2), generator=torch.Generator().manual_seed(1)).float()
    states: list[torch.Tensor] = []

    def step(state: torch.Tensor, action: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        assert torch.equal(row, torch.arange(7).repeat_interleave(3))
        states.append(state)
        return state[:, 0] + 1 + action[:, 1]

    found = roll_out(step, rows, plans)
    assert torch.allclose(found, rows.state[:, :1, None] + (1 + plans[..., 1]).cumsum(2))
    assert torch.equal(states[3][:, 2:].view(7, 3, 4), torch.cat([plans[:, :, 2], plans[:, :, 1]], 2))
    assert torch.equal(states[3][:, 1], rows.state[:, 1].repeat_interleave(3))


def test_pooled_regression_knows_patients_who_are_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "draw_cohort", lambda count, random: alike(count))
    rows = simulate_training(300, 0.0, np.random.RandomState(0)).table()
    plans = rows.action[:, None, None]
    answer = PooledRegression(lags=8).fit(rows, 0)(rows, plans)[:, 0, 0]
    noise = (answer - rows.next_state[:, 0]) / rows.state[:, 0]
    assert 0.009 < float(noise.std()) < 0.011


@pytest.mark.parametrize("name", forecasters())
def test_no_forecaster_looks_ahead(name: str) -> None:
    """What a row is told must not change with its own action and next state, nor with anything later."""
    train = course(100).table()
    forecast, asked = forecasters()[name].fit(train, 0), several_step_questions(5, 1.0, np.random.RandomState(0))
    rows, day = asked.rows, 20
    later = rows.step >= day
    state = torch.where((rows.step > day)[:, None], rows.state * torch.tensor([2.0, 1.0]), rows.state)
    other = replace(
        rows,
        state=state,
        action=torch.where(later[:, None], 1 - rows.action, rows.action),
        next_state=torch.where(later[:, None], 3 * rows.next_state, rows.next_state),
    )
    before = rows.step <= day
    told, changed = forecast(rows, asked.plans), forecast(other, asked.plans)
    assert torch.equal(told[before], changed[before])


@dataclass(frozen=True)
class Dies:
    """Fails on the large sets while its file is there."""

    file: str

    def fit(self, train: Transitions, seed: int) -> Forecast:
        if Path(self.file).exists() and int(train.subject.max()) > 50:
            raise CounterpointError("the power went out")
        return PooledRegression(lags=2).fit(train, seed)


def small(who: Forecaster) -> TumourBenchmark:
    named = {"copy": CopyLast(), "who": who}
    return TumourBenchmark(patients=(100, 40), gammas=(4.0,), seeds=(10,), test=3, forecasters=named)


def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path) -> None:
    trouble = tmp_path / "trouble"
    whole = small(Dies(str(trouble))).run(tmp_path / "a")
    assert len(whole) == 2 * 2 * 6
    trouble.touch()
    with pytest.raises(CounterpointError, match="1 of 4 cells of tumour failed"):
        small(Dies(str(trouble))).run(tmp_path / "b")
    assert len(read_csv(tmp_path / "b" / "tumour.csv")) == 3 * 6
    trouble.unlink()
    cells = sorted((tmp_path / "b" / "tumour" / "cells").iterdir())
    cells[0].write_text("[{")
    kept = {cell: cell.stat().st_mtime_ns for cell in cells[1:]}
    small(Dies(str(trouble))).run(tmp_path / "b")
    assert read_csv(tmp_path / "b" / "tumour.csv") == read_csv(tmp_path / "a" / "tumour.csv")
    assert {cell: cell.stat().st_mtime_ns for cell in kept} == kept
    assert (tmp_path / "b" / "tumour.png").exists()


def test_a_cell_is_identified_by_its_recipe() -> None:
    recipe = TumourRecipe(PooledRegression(), 100, 0.0, 10)
    others = [
        replace(recipe, forecaster=PooledRegression(lags=4)),
        replace(recipe, patients=99),
        replace(recipe, gamma=1.0),
        replace(recipe, seed=11),
    ]
    assert len({recipe_key(fit_and_score, each) for each in (recipe, *others)}) == 5


def test_the_page_has_the_published_numbers_beside_ours() -> None:
    assert len(published()) == 6 * 6 * 5
    best = [min(r["nrmse"] for r in published() if (r["horizon"], r["gamma"]) == (1, g)) for g in range(5)]
    assert best == [0.755, 0.783, 0.862, 1.057, 1.319]
    rows = [
        {"model": "ours", "patients": 100, "gamma": 4.0, "horizon": 6, "seed": s, "nrmse": s / 2, "fit_seconds": 1.5}
        for s in (1, 2)
    ]
    page = tumour_page(rows, "counterpoint bench tumour")
    assert "| CT | 10000 | 1.201 ± 0.419 |" in page
    assert "| ours | 100 | 0.750 ± 0.354 |" in page


@pytest.mark.parametrize(
    ("settings", "message"), [({"patients": (20_000,)}, "10000 patients"), ({"gammas": (-1.0,)}, "gammas")]
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CounterpointError, match=message):
        TumourBenchmark(**settings)
