"""The paper's subject factor: the stacked LSTM, windows inside an episode, one θ a subject, and what it learns."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions, first_outcome
from counterpoint.models.scm.bicogan import BiCoGAN, ConditionalBiCoGAN, standardised
from counterpoint.models.scm.bicogan_networks import AdversarialTraining
from counterpoint.models.scm.lstm_factor import Histories, LSTMFactor, StackedLSTM
from counterpoint.nets.stacked import initialise
from counterpoint.nets.training import Monitor, Schedule
from counterpoint.simulation.models import ModelSimulator

DOSES = cp.Discrete.of([-1.0, 0.0, 1.0])
FACTOR = LSTMFactor(window=3, width=8, factors=2)
TRAINING = replace(BiCoGAN().training, schedule=Schedule(steps=20, log_every=10), batch=32)
PAPER = BiCoGAN((8, 8), (8, 8), (8, 8), factor=FACTOR, training=TRAINING)
CONDITIONAL = ConditionalBiCoGAN((8,), 4, (8,), (8,), factor=FACTOR, training=TRAINING)
BOTH = pytest.mark.parametrize("recipe", [PAPER, CONDITIONAL], ids=["paper", "conditional"])


def rows_of(slope: Tensor, steps: int = 12, seed: int = 0) -> Transitions:
    """s' = .5s + slope·a + .1u, step after step; a subject's fifth step ends its first episode and life goes on."""
    random = generator(seed)
    state, log = torch.randn(len(slope), generator=random), []
    for _ in range(steps):
        action = DOSES.table()[torch.randint(3, (len(slope),), generator=random), 0]
        after = 0.5 * state + slope * action + 0.1 * torch.randn(len(slope), generator=random)
        log.append((state, action, after))
        state = after
    state, action, after = (torch.stack(column, 1).flatten()[:, None] for column in zip(*log, strict=True))
    subject, step = torch.arange(len(slope)).repeat_interleave(steps), torch.arange(steps).repeat(len(slope))
    return Transitions.logged(
        state=state, action=action, reward=after[:, 0], next_state=after, terminated=step == 4,
        truncated=step == steps - 1, subject=subject, episode=2 * subject + (step > 4), step=step, actions=DOSES,
    )  # fmt: skip


KINDS = torch.arange(40) % 2 * 2.0 - 1
"""Half of the subjects respond the other way round."""
ROWS = rows_of(KINDS[:12])


@pytest.fixture(scope="module")
def model():
    return PAPER.fit(ROWS, seed=1)


def test_a_member_of_the_stacked_lstm_is_torchs_own():
    stacked, x = StackedLSTM(2, 3, 4), torch.randn(2, 5, 6, 3, generator=generator(0))
    initialise(stacked, [1, 2])
    for member in range(2):
        plain = torch.nn.LSTM(3, 4, batch_first=True)
        weights = stacked.input[member].T, stacked.hidden[member].T, stacked.bias[member, 0], torch.zeros(16)
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        plain.load_state_dict(dict(zip(names, weights, strict=True)))
        torch.testing.assert_close(stacked(x)[member], plain(x[member])[0][:, -1])


def test_a_member_of_the_stacked_lstm_starts_as_torchs_own():
    """Uniform in ±1/√width, every member from its own seed."""
    stacked = StackedLSTM(2, 3, 100)
    initialise(stacked, [1, 2])
    for parameter in stacked.parameters():
        assert 0.09 < parameter.max() <= 0.1
        assert -0.1 <= parameter.min() < -0.09
        assert (parameter[0] != parameter[1]).all()


def test_windows_stay_inside_an_episode():
    """Of 12 steps in episodes of 5 and 7 there are 3 + 5 windows of three, and each is a run of its own subject."""
    told = Histories.of(ROWS, 3)
    assert len(told.windows) == 12 * (3 + 5)
    state, action = told.windows[..., 0], told.windows[..., 1]
    drift = state[:, 1:] - 0.5 * state[:, :-1] - KINDS[told.owner][:, None] * action[:, :-1]
    assert drift.abs().max() < 0.5
    crossing = (ROWS.step == 3).nonzero()[:, 0]
    assert not torch.isin(told.windows[:, 0, 0], ROWS.state[crossing, 0]).any()


def test_a_row_learns_from_windows_of_its_own_subject_that_do_not_hold_its_next_state():
    told = Histories.of(ROWS, 3)
    rows, windows = told.draw(generator(0), 2000, windows=3)
    assert (told.owner[windows] == ROWS.subject[rows][:, None]).all()
    held = told.windows[windows][..., 0] == ROWS.next_state[rows][:, :, None]
    assert not held.any()
    assert rows.unique().numel() == len(ROWS)
    # Of row 8 (step 8; windows start at 0 1 2, 5 6 7 8 9) those that start at 7, 8 and 9 hold its next state.
    assert windows[rows == 8].unique().tolist() == [0, 1, 2, 3, 4]


def test_windows_and_rows_without_a_next_state_go_together():
    """Rows are counted among those with a next state, as in the table that the SCM learns from."""
    ended = (ROWS.step == 11) & (ROWS.subject < 6)
    rows = replace(
        ROWS, next_state=ROWS.next_state.masked_fill(ended[:, None], torch.nan), outcome=first_outcome(ended)
    )
    told, kept = Histories.of(rows, 3), rows.with_next()
    picked, windows = told.draw(generator(0), 500, windows=2)
    assert (told.owner[windows] == kept.subject[picked][:, None]).all()
    assert torch.equal(told.subject, kept.subject)


@BOTH
def test_one_subject_has_one_factor_whatever_the_order(recipe):
    model = recipe.fit(ROWS, seed=1)
    found = model.subjects(ROWS)
    assert model.theta_width == found.shape[1] == 2
    assert found.unique(dim=0).shape[0] == 12
    for subject in range(12):
        assert found[ROWS.subject == subject].unique(dim=0).shape[0] == 1
    shuffled = torch.randperm(len(ROWS), generator=generator(1))
    torch.testing.assert_close(model.subjects(ROWS[shuffled]), found[shuffled])
    renamed = torch.randperm(12, generator=generator(2))
    torch.testing.assert_close(model.subjects(replace(ROWS, subject=renamed[ROWS.subject])), found)
    torch.testing.assert_close(model.subjects(ROWS[ROWS.subject == 7]), found[ROWS.subject == 7])


def test_the_factor_is_the_mean_over_the_subjects_windows(model):
    own = ROWS[ROWS.subject == 3]
    parts = [model.subjects(own[own.episode == episode])[0] for episode in own.episode.unique()]
    torch.testing.assert_close(model.subjects(own)[0], (3 * parts[0] + 5 * parts[1]) / 8)
    assert (parts[0] - parts[1]).abs().max() > 1e-3


def test_a_subject_without_a_window_has_the_populations_factor(model):
    brief = (ROWS.subject == 4) & torch.isin(ROWS.step, torch.tensor([0, 1, 3, 4, 5, 6]))
    found = model.subjects(ROWS[brief | (ROWS.subject == 5)])
    each = torch.stack([model.subjects(ROWS)[ROWS.subject == subject][0] for subject in range(12)])
    torch.testing.assert_close(found[:2], each.mean(0).expand(2, -1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.subjects(ROWS[:0]), torch.zeros(0, 2))


def test_what_is_known_before_a_row_are_the_windows_that_ended_before_it(model):
    """Row by row what the rows before it tell, in any order; nothing of the row itself."""
    shuffled = ROWS[torch.randperm(len(ROWS), generator=generator(2))]
    found, population = model.factors_before(shuffled).mean, model.mechanism.factor.population[0, 0]
    for place in range(0, len(shuffled), 7):
        own = shuffled[(shuffled.subject == shuffled.subject[place]) & (shuffled.step < shuffled.step[place])]
        expected = model.subjects(own)[0] if len(own) else population
        torch.testing.assert_close(found[place], expected)
    assert not found.isclose(population).all()


def test_final_factors_are_in_standard_units_over_windows(model):
    windows = Histories.of(ROWS, 3).windows[None]
    each = model.mechanism.factor(model.mechanism.standard_inputs(windows))[0]
    torch.testing.assert_close(each.mean(0), torch.zeros(2), rtol=0, atol=0.1)
    torch.testing.assert_close(each.std(0), torch.ones(2), rtol=0, atol=0.1)


def test_opposite_kinds_of_subjects_are_told_apart():
    """The sign of a subject's response is what its windows agree on: the two kinds lie on either side of 0."""
    factor = LSTMFactor(window=3, width=16, factors=1)
    training = replace(TRAINING, schedule=Schedule(steps=150), batch=64, learning_rate=1e-2)
    recipe = replace(CONDITIONAL, factor=factor, training=training)
    model = recipe.fit(rows_of(KINDS), seed=0)
    new = rows_of(KINDS, seed=5)
    found = model.subjects(new)[::12, 0]
    right = ((found > 0) == (KINDS > 0)).float().mean()
    assert max(right, 1 - right) > 0.9


def test_agreement_draws_the_windows_of_a_subject_together():
    within = []
    for agreement in (0.0, 30.0):
        training = replace(TRAINING, schedule=Schedule(steps=60), learning_rate=1e-2)
        factor = replace(FACTOR, agreement=agreement)
        mechanism = replace(CONDITIONAL, factor=factor, training=training).fit(ROWS, seed=0).mechanism
        told = Histories.of(ROWS, 3)
        each = mechanism.factor(mechanism.standard_inputs(told.windows[None]))[0]
        within.append(float(each.unflatten(0, (12, 8)).var(1).mean().detach()))
    assert within[1] < 0.9 * within[0]


def learner_of(recipe: BiCoGAN, judge: torch.nn.Module) -> AdversarialTraining:
    mechanism = recipe.build(1, 4, 1)
    table = standardised(mechanism, [Job(ROWS, theta=torch.zeros(1, 2))])
    for network in (mechanism.generator, mechanism.encoder, mechanism.factor):
        initialise(network, [0])
    factoring = recipe.factoring(mechanism, [Job(ROWS)])
    return AdversarialTraining(mechanism, judge, table, recipe.training, 1.0, 0.0, factoring)  # pyright: ignore


def test_a_row_is_told_the_mean_of_its_windows_and_agreement_weighs_variance_and_correlation():
    learner = learner_of(replace(PAPER, factor=replace(FACTOR, agreement=3.0)), PAPER.discriminator(1, 4, 1))
    factor, training = learner.averaged.factor.eval(), learner.factoring
    numbers = torch.tensor([[[0, 1], [2, 2], [9, 30]]])
    each = factor(training.windows)[0]
    theta, disagreement = training(factor, numbers)
    torch.testing.assert_close(theta[0], (each[[0, 2, 9]] + each[[1, 2, 30]]) / 2)
    within = ((each[[0, 2, 9]] - each[[1, 2, 30]]).square() / 2).mean(0).sum()
    shown = each[numbers.flatten()]
    torch.testing.assert_close(disagreement, 3 * (within + (shown[:, 0] * shown[:, 1]).mean().square())[None])


class _Indifferent(torch.nn.Module):
    """A discriminator that says the same of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, 6, 1))

    def forward(self, joint: Tensor) -> Tensor:
        return joint @ self.weight


def test_the_encoders_guess_is_drawn_to_the_factor_and_not_the_factor_to_the_guess():
    """Against an indifferent D only λ·R is left: it teaches the encoder θ̂, and no θ that is easier to guess."""
    learner = learner_of(replace(PAPER, factor=replace(FACTOR, agreement=0.0)), _Indifferent())
    learner.discriminator_optimizer.param_groups[0]["lr"] = 0.0
    learner.update(learner.draw(0, generator(0), 1))
    assert (learner.live.encoder.net.layers[-1].bias.grad[0, 0, :4] != 0).all()
    assert learner.live.factor.lstm.hidden.grad.abs().max() == 0


def test_batch_norm_statistics_are_those_of_the_final_factors():
    """Fails where `settle` shows the generator another θ than that of its rows."""
    mechanism = (model := replace(PAPER, training=replace(TRAINING, learning_rate=3e-2)).fit(ROWS, seed=1)).mechanism
    told = torch.cat([ROWS.state, ROWS.action, model.subjects(ROWS)], 1).repeat(40, 1)[None]
    noise = torch.randn(*told.shape[:2], 1, generator=generator(0))
    reached = mechanism.generator.linear[0](torch.cat([mechanism.context(told), noise], -1))
    norm = mechanism.generator.norm[0]
    away = (reached.var(1, keepdim=True) / norm.running_variance).log().abs()
    assert away.max() < 0.1


@BOTH
def test_the_generator_teaches_the_factor(recipe):
    """Without agreement the LSTM moves all the same: through G."""
    recipe = replace(recipe, factor=replace(FACTOR, agreement=0.0))
    still = replace(recipe, training=replace(TRAINING, learning_rate=0.0))
    moved, start = (r.fit(ROWS, seed=1).mechanism.factor.lstm.hidden for r in (recipe, still))
    assert (moved - start).abs().max() > 1e-4
    assert (still.fit(ROWS, seed=2).mechanism.factor.lstm.hidden - start).abs().max() > 1e-2


def test_the_factor_does_not_depend_on_the_units_of_the_state():
    inches = replace(ROWS, state=100 * ROWS.state + 3, next_state=100 * ROWS.next_state + 3)
    brief = replace(PAPER, training=replace(TRAINING, schedule=Schedule(steps=5)))
    here, there = (brief.fit(rows, seed=1).subjects(rows) for rows in (ROWS, inches))
    torch.testing.assert_close(here, there, rtol=1e-2, atol=1e-3)


@BOTH
def test_counterfactuals_take_the_subjects_own_factor(recipe):
    model = replace(recipe, abduction="inversion").fit(ROWS, seed=1)
    actions = torch.ones(len(ROWS), 1)
    given = model.counterfactual(ROWS, actions, model.subjects(ROWS))
    assert torch.equal(model.counterfactual(ROWS, actions), given)
    assert (model.counterfactual(ROWS, actions, -model.subjects(ROWS)) - given).abs().max() > 1e-4
    torch.testing.assert_close(model.counterfactual(ROWS, ROWS.action), ROWS.next_state, rtol=0, atol=1e-4)


@BOTH
def test_saved_and_loaded_it_gives_the_same_factors(recipe, tmp_path: Path):
    model = recipe.fit(ROWS, seed=1)
    model.save(tmp_path)
    loaded = cp.load(tmp_path)
    assert torch.equal(loaded.subjects(ROWS), model.subjects(ROWS))
    assert torch.equal(loaded.subjects(ROWS[:2]), model.subjects(ROWS[:2]))


@BOTH
def test_a_member_of_a_stack_is_the_model_fitted_alone(recipe):
    """Few steps: batch norm takes out the size of weights from a single s', and Adam makes much of its rounding."""
    recipe = replace(recipe, training=replace(TRAINING, schedule=Schedule(steps=5)))
    jobs = [Job(ROWS, 1), Job(rows_of(KINDS[:8], steps=9, seed=3), 2)]
    for together, job in zip(recipe.fit_many(jobs), jobs, strict=True):
        alone = recipe.fit(job.data, job.seed)
        for name, tensor in alone.mechanism.state_dict().items():
            torch.testing.assert_close(together.mechanism.state_dict()[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


class PowerCutError(Exception):
    """The process ends in the middle."""


def test_an_interrupted_fit_resumes_to_the_same_factors(tmp_path: Path):
    def stop(stage: str, done: int, total: int) -> None:
        if done >= 10:
            raise PowerCutError

    with pytest.raises(PowerCutError):
        PAPER.fit(ROWS, 1, Monitor(tmp_path, report=stop, save_seconds=0.0))
    resumed, whole = PAPER.fit(ROWS, 1, Monitor(tmp_path, resume=True)), PAPER.fit(ROWS, 1)
    assert torch.equal(resumed.subjects(ROWS), whole.subjects(ROWS))


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        (lambda: PAPER.fit(ROWS, theta=torch.zeros(1, 2)), "leave one of them out"),
        (lambda: PAPER.fit(ROWS[ROWS.step % 2 == 0]), "lower `window`"),
        (lambda: LSTMFactor(draws=1), "draws=1"),
    ],
)
def test_what_cannot_be_learned_is_refused_in_one_line(fit, said):
    with pytest.raises(CounterpointError, match=rf"^[^\n]*{said}[^\n]*$"):
        fit()


def test_a_stack_of_models_is_not_asked_for_factors(model):
    simulator = ModelSimulator([model, PAPER.fit(ROWS, seed=2)])
    with pytest.raises(CounterpointError, match="ask each model alone"):
        simulator.stacks[0].mechanism.subjects(ROWS)
