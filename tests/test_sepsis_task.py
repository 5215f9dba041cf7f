"""The synthetic sepsis ward: exact counterfactuals, columns that stay what they are, hazards, scores and rewards by
hand, and decisions that matter."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.core.seeding import generator
from counterpoint.data.transitions import Transitions
from counterpoint.ope.model_based import returns
from counterpoint.policies.rule import is_ordered
from counterpoint.sources.mimic.columns import CTRL46, PLACE
from counterpoint.sources.mimic.scores import sirs, sofa
from reproduction.tasks.sepsis import (
    DOSES,
    SepsisResponse,
    SyntheticSepsis,
    hypotension,
    physician,
    population,
    protocol,
)
from reproduction.tasks.sepsis_columns import (
    MOVING,
    STATIC,
    TABLE,
    standardised,
)

TASK = SyntheticSepsis(population(120, 0))
LOG = cp.simulate(TASK, physician(TASK), 120, TASK.horizon, seed=0)
STAYED = LOG[LOG.has_next]


def column(rows: Tensor, name: str) -> Tensor:
    return rows[..., PLACE[name]]


def patient(**values: float) -> Tensor:
    """An ordinary patient with some columns set."""
    state = LOG.state[0].clone()
    ordinary = {row.name: row.centre for row in TABLE} | {n: s.centre for n, s in STATIC.items()} | {"mechvent": 0.0}
    for name, value in (ordinary | values).items():
        state[PLACE[name]] = value
    return state


def value(act: object, task: SyntheticSepsis = TASK, patients: int = 400) -> float:
    random = generator(0, "behaviour")
    actor = lambda state, theta: act(state[0], random)[None]  # pyright: ignore[reportCallIssue]
    return float(returns(actor, task, 1, patients, seed=3).mean())


def always(fluid: int, vasopressor: int) -> object:
    return lambda state, random: TASK.actions.features(torch.full((len(state),), 5 * fluid + vasopressor))


def test_the_columns_are_the_46_of_the_feature_set() -> None:
    assert len(CTRL46) == len(set(CTRL46)) == 46
    derived = {"SOFA", "SIRS", "Shock_Index", "paO2", "output_total"}
    assert {*MOVING, *STATIC, *derived, "gender", "mechvent"} == set(CTRL46)
    assert {CTRL46[i] for i in TASK.schema.static} == {"age", "gender", "Weight_kg", "elixhauser"}
    assert [CTRL46[i] for i, count in TASK.schema.categories if count == 2] == ["gender", "mechvent"]
    assert LOG.schema == TASK.schema


def test_every_driver_in_the_table_is_a_column_or_a_named_driver() -> None:
    known = {*MOVING, "inflammation", "hypotension", "ventilated"}
    assert {name for row in TABLE for name in row.pulls} <= known


def test_same_noise_and_same_action_give_the_record() -> None:
    shuffled = STAYED[torch.randperm(len(STAYED), generator=generator(0))]
    truth = TASK.counterfactual(shuffled, shuffled.action)
    torch.testing.assert_close(truth, shuffled.next_state, atol=1e-5, rtol=1e-5)
    strangers = replace(shuffled, subject=shuffled.subject + 1)
    assert (TASK.counterfactual(strangers, shuffled.action) - truth).abs().max() > 1


def test_another_action_moves_by_its_treatment_alone() -> None:
    """Noise and pulls cancel: z(other) − z(taken) is the difference of the two treatments."""
    own, z = TASK.of_subjects(STAYED.subject), standardised(STAYED.state)
    other = TASK.actions.features((STAYED.action_index + 7) % 25)
    expected = own.treatment(z, other) - own.treatment(z, STAYED.action)
    after = [standardised(own.transition(STAYED.state, a, STAYED.noise)) for a in (other, STAYED.action)]
    inside = after[0].abs().maximum(after[1].abs()) < 2.5  # Far from every limit.
    assert inside.float().mean() > 0.9
    torch.testing.assert_close((after[0] - after[1])[inside], expected[inside], atol=2e-3, rtol=0)
    assert expected[:, MOVING["MeanBP"]].abs().max() > 1


def test_what_is_measured_increases_in_its_own_noise() -> None:
    noise = STAYED.noise.clone().requires_grad_()
    after = TASK.of_subjects(STAYED.subject).transition(STAYED.state, STAYED.action, noise)
    for i, row in enumerate(TABLE):
        slope = torch.autograd.grad(after[:, PLACE[row.name]].sum(), noise, retain_graph=True)[0]
        inside = (after[:, PLACE[row.name]] > row.limits[0]) & (after[:, PLACE[row.name]] < row.limits[1])
        assert slope[inside, i].min() > 0, row.name
        assert slope.abs().sum(0).nonzero()[:, 0].tolist() == [i], "no other noise enters"


def test_static_columns_never_change_and_flags_stay_flags() -> None:
    for name in ("age", "gender", "Weight_kg", "elixhauser"):
        assert torch.equal(column(STAYED.state, name), column(STAYED.next_state, name))
        assert column(LOG.state, name).std() > 0.4
    for name in ("gender", "mechvent"):
        assert set(column(LOG.state, name).unique().tolist()) == {0.0, 1.0}
    changed = column(STAYED.state, "mechvent") != column(STAYED.next_state, "mechvent")
    assert 0 < changed.float().mean() < 0.3


def test_the_log_is_as_declared() -> None:
    TASK.schema.knowledge.check(LOG.state, LOG.state_names)
    TASK.schema.knowledge.check(LOG.next_state, LOG.state_names)
    assert LOG.state.isfinite().all()


def test_what_others_determine_is_determined() -> None:
    after, before = STAYED.next_state, STAYED.state
    torch.testing.assert_close(column(after, "paO2"), column(after, "PaO2_FiO2") * column(after, "FiO2_1"))
    torch.testing.assert_close(column(after, "Shock_Index"), column(after, "HR") / column(after, "SysBP"))
    torch.testing.assert_close(
        column(after, "output_total"), column(before, "output_total") + column(after, "output_4hourly")
    )
    assert torch.equal(column(after, "SOFA"), sofa(after))
    assert torch.equal(column(after, "SIRS"), sirs(after))


@pytest.mark.parametrize(
    ("values", "points"),
    [
        ({"PaO2_FiO2": 450.0, "GCS": 15.0, "Creatinine": 1.0, "Total_bili": 1.0}, 0),
        ({"PaO2_FiO2": 400.0, "GCS": 14.5, "Creatinine": 1.19, "MeanBP": 70.0}, 0),
        ({"PaO2_FiO2": 150.0, "GCS": 15.0, "Creatinine": 1.0}, 2),
        ({"PaO2_FiO2": 150.0, "GCS": 15.0, "Creatinine": 1.0, "mechvent": 1.0}, 3),
        ({"PaO2_FiO2": 99.0, "mechvent": 1.0, "GCS": 3.0, "Creatinine": 5.0, "Total_bili": 12.0,
          "Platelets_count": 10.0, "MeanBP": 69.0}, 21),
        ({"PaO2_FiO2": 450.0, "GCS": 15.0, "Creatinine": 1.0, "output_4hourly": 83.0}, 3),
        ({"PaO2_FiO2": 450.0, "GCS": 15.0, "Creatinine": 5.0, "output_4hourly": 83.0}, 4),
        ({"PaO2_FiO2": 450.0, "GCS": 15.0, "Creatinine": 1.0, "output_4hourly": 33.0}, 4),
    ],
)  # fmt: skip
def test_sofa_by_hand(values: dict[str, float], points: int) -> None:
    assert sofa(patient(**values)) == points


def test_sirs_by_hand() -> None:
    well = {"Temp_C": 37.0, "HR": 80.0, "RR": 18.0, "paCO2": 40.0, "WBC_count": 8.0}
    assert sirs(patient(**well)) == 0
    assert sirs(patient(**well | {"Temp_C": 38.1, "RR": 22.0, "paCO2": 30.0})) == 2
    assert sirs(patient(**well | {"Temp_C": 35.9, "HR": 91.0, "paCO2": 31.0, "WBC_count": 3.0})) == 4


def test_reward_by_hand() -> None:
    """−0.025 for the same SOFA score that is not 0, −0.125 a point, −2·tanh(rise of the lactate)."""
    before = patient(SOFA=5.0, Arterial_lactate=2.0).expand(3, -1)
    after = torch.stack([patient(SOFA=sofa, Arterial_lactate=x) for sofa, x in ((5.0, 2.0), (7.0, 3.0), (3.0, 1.5))])
    found = SyntheticSepsis().reward(before, torch.zeros(3, 2), after)
    expected = [-0.025, -0.25 - 2 * math.tanh(1.0), 0.25 + 2 * math.tanh(0.5)]
    torch.testing.assert_close(found, torch.tensor(expected))
    healthy = patient(SOFA=0.0)
    assert SyntheticSepsis().reward(healthy, torch.zeros(2), healthy) == 0


def test_hazards_are_probabilities_that_rise_with_illness() -> None:
    hazard = TASK.hazard(LOG.state)
    assert hazard.min() > 0
    torch.testing.assert_close(hazard.sum(-1), torch.ones(len(LOG)))
    ill = {"MeanBP": 50.0, "Arterial_lactate": 6.0, "PaO2_FiO2": 90.0, "GCS": 6.0, "Creatinine": 4.0, "age": 88.0}
    for name, bad in ill.items():
        well, worse = TASK.hazard(torch.stack([patient(), patient(**{name: bad})]))
        assert worse[0] > well[0], name
        assert worse[1] < well[1], name
    assert TASK.hazard(torch.stack([patient(mechvent=1.0), patient()]))[:, 1].diff() > 0


def test_ends_are_drawn_as_often_as_expected() -> None:
    state, after = (patient(MeanBP=52.0, Arterial_lactate=5.0).expand(20000, -1) for _ in range(2))
    uniform = torch.rand(20000, generator=generator(0))
    reward, outcome, following = TASK.draw_result(state, torch.zeros(20000, 2), after, uniform)
    mean, stays = TASK.expected(state[0], torch.zeros(2), after[0])
    assert math.isclose(float((outcome < 0).float().mean()), float(stays), abs_tol=0.01)
    assert math.isclose(float(reward.mean()), float(mean), abs_tol=0.1)
    assert set(reward[outcome == 0].tolist()) == {-15.0}
    assert set(reward[outcome == 1].tolist()) == {15.0}
    assert torch.equal(following.isnan().any(-1), outcome >= 0)


def test_seeds() -> None:
    again = cp.simulate(TASK, physician(TASK), 120, TASK.horizon, seed=0)
    assert again.fingerprint == LOG.fingerprint
    assert cp.simulate(TASK, physician(TASK), 120, TASK.horizon, seed=1).fingerprint != LOG.fingerprint
    assert torch.equal(population(5, 3).fluid, population(5, 3).fluid)
    assert not torch.equal(population(5, 3).fluid, population(5, 4).fluid)


def test_doses_are_ordered_and_named() -> None:
    assert TASK.actions.count == 25
    assert is_ordered(TASK.actions)
    for i, dose in enumerate(DOSES):
        assert list(dose.doses) == sorted(dose.doses)
        assert TASK.actions.low[i] == 0
    assert TASK.schema.choices()[5 * 3 + 1] == {"input_4hourly": 330.0, "max_dose_vaso": 0.04}
    assert TASK.actions.values[5 * 3 + 1] == (330.0, 0.04)


def test_more_of_a_dose_does_more() -> None:
    state = patient(MeanBP=58.0).expand(5, -1)
    quiet = torch.zeros(5, TASK.noise_width)
    fluid, vasopressor = torch.zeros(2, 5, 2).unbind(0)
    fluid[:, 0], vasopressor[:, 1] = (torch.tensor(dose.doses) for dose in DOSES)
    wet, tight = (SyntheticSepsis().transition(state, action, quiet) for action in (fluid, vasopressor))
    for rising in (column(wet, "MeanBP"), column(wet, "output_4hourly"), column(tight, "MeanBP")):
        assert (rising.diff() > 0).all()
    assert (column(wet, "PaO2_FiO2").diff() < 0).all(), "fluid that leaks"
    assert (column(tight, "Arterial_lactate").diff() > 0).all(), "vessels that are clamped"
    assert (column(wet, "Arterial_lactate").diff() < 0).all()


def test_whose_pressure_follows_a_drug_less_is_harmed_by_it_more() -> None:
    z = standardised(patient(MeanBP=70.0))
    for drug, level, harmed in (("fluid", 5 * 3, "PaO2_FiO2"), ("vasopressor", 3, "Arterial_lactate")):
        action = TASK.actions.features(torch.tensor(level))
        wards = (SyntheticSepsis(SepsisResponse()._replace(**{drug: torch.tensor(x)})) for x in (1.0, 0.5))
        strong, weak = (ward.treatment(z, action) for ward in wards)
        assert torch.isclose(weak[MOVING["MeanBP"]], strong[MOVING["MeanBP"]] / 2), drug
        assert torch.isclose(weak[MOVING[harmed]], 2 * strong[MOVING[harmed]]), drug


def test_whose_pressure_follows_what_decides_the_best_action() -> None:
    drinker = SyntheticSepsis(SepsisResponse(torch.tensor(2.5), torch.tensor(0.1), torch.tensor(1.0)))
    tense = SyntheticSepsis(SepsisResponse(torch.tensor(0.1), torch.tensor(2.5), torch.tensor(1.0)))
    fluid, vasopressor = always(3, 0), always(0, 1)
    assert value(fluid, drinker) > value(vasopressor, drinker) + 0.5
    assert value(vasopressor, tense) > value(fluid, tense) + 0.5


def test_neither_nothing_nor_everything_and_better_than_the_physician() -> None:
    random, nothing, everything = value(cp.random_policy(TASK)), value(always(0, 0)), value(always(4, 4))
    assert everything < random < value(physician(TASK)) - 1
    assert nothing < value(physician(TASK)) - 0.5
    assert value(protocol) > value(physician(TASK)) + 0.3


def test_the_physician_treats_the_sick_and_tries_everything() -> None:
    rows: Transitions = cp.simulate(TASK, physician(TASK), 600, TASK.horizon, seed=5)
    assert rows.action_index.bincount(minlength=25).min() > 0
    low = hypotension(rows.state) > 1
    assert (rows.action[low].mean(0) > 1.5 * rows.action[~low].mean(0)).all()
    deaths = int((rows.outcome == 0).sum()) / 600
    assert 0.1 < deaths < 0.25


def test_doses_last_and_are_decided_by_the_state_alone() -> None:
    task = SyntheticSepsis(population(600, 0))
    rows = cp.simulate(task, physician(task), 600, task.horizon, seed=5)
    follows = (rows.subject[1:] == rows.subject[:-1]) & (rows.step[1:] == rows.step[:-1] + 1)
    for dose, share in zip(rows.action.T, (0.72, 0.2), strict=True):
        assert math.isclose(float((dose > 0).float().mean()), share, abs_tol=0.05)
        assert torch.corrcoef(torch.stack([dose[:-1][follows], dose[1:][follows]]))[0, 1] > 0.35
    other = SyntheticSepsis(population(600, 1))
    again = [physician(ward)(rows.state, generator(1)) for ward in (task, other)]
    assert torch.equal(*again)
