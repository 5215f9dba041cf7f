"""The two adversarial SCMs: their objective by hand, exact inversion, seeds, stacks, and what they learn."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from counterpoint.core.artifacts import Saved
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job, fitting_table
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.bicogan import BiCoGAN, ConditionalBiCoGAN, standardised
from counterpoint.models.scm.bicogan_networks import (
    AdversarialTraining,
    context_loss,
    deception_loss,
    discriminator_loss,
    invert,
)
from counterpoint.nets.stacked import StackedBatchNorm, initialise
from counterpoint.nets.training import Monitor, Schedule
from reproduction.tasks.structural_problems import (
    PROBLEMS,
    sample,
)

SHAPES = False

torch.set_num_threads(1)


def tiny(recipe: BiCoGAN | ConditionalBiCoGAN, steps: int = 30) -> BiCoGAN | ConditionalBiCoGAN:
    training = replace(recipe.training, schedule=Schedule(steps, log_every=10), batch=32)
    widths = {"generator_hidden": (12, 12), "encoder_hidden": (12, 12), "discriminator_hidden": (12, 12)}
    return replace(recipe, training=training, **widths)


PAPER, CONDITIONAL = tiny(BiCoGAN()), tiny(ConditionalBiCoGAN())
BOTH = pytest.mark.parametrize("recipe", [PAPER, CONDITIONAL], ids=["paper", "conditional"])


def rows(letter: str = "d", count: int = 200, seed: int = 0) -> Transitions:
    return sample(PROBLEMS[letter], count, seed)


def weights(model: StructuralCausalModel) -> dict[str, Tensor]:
    return model.mechanism.state_dict()


def other_actions(table: Transitions) -> Tensor:
    return table.actions.sample(len(table), generator(3))


def test_discriminator_objective_worked_by_hand():
    """D = .8 on what the encoder made, .3 on what the decoder made: V = log .8 + log(1 − .3)."""
    encoded, decoded = (torch.full((1, 4, 1), math.log(p / (1 - p))) for p in (0.8, 0.3))
    expected = -(math.log(0.8) + math.log(0.7))
    torch.testing.assert_close(discriminator_loss(encoded, decoded), torch.tensor([expected]))
    fooling = -(math.log(0.2) + math.log(0.3))
    torch.testing.assert_close(deception_loss(encoded, decoded), torch.tensor([fooling]))


def test_regulariser_worked_by_hand():
    context, guess = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 4.0], [0.0, 1.0]]])
    torch.testing.assert_close(context_loss(context, guess), torch.tensor([(1 + 4 + 0 + 1) / 2]))


class _Still(torch.nn.Module):
    """A discriminator that says the same of everything and records what it was shown."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, width, 1))
        self.seen: list[Tensor] = []

    def forward(self, joint: Tensor) -> Tensor:
        self.seen.append(joint.detach().clone())
        return joint @ self.weight


def begin(*networks: torch.nn.Module) -> None:
    for network in networks:
        initialise(network, [0] * getattr(network, "per_member", 1))


def still_learner(recipe: BiCoGAN | ConditionalBiCoGAN, regulariser: float, cycle: float) -> AdversarialTraining:
    mechanism = recipe.build(4, 5, 1)
    table = standardised(mechanism, [Job(rows())])
    begin(mechanism.generator, mechanism.encoder)
    how = replace(recipe.training, penalty=0.0, learning_rate=0.0)
    return AdversarialTraining(mechanism, _Still(5 + 4 + 4), table, how, regulariser, cycle)  # pyright: ignore


def update_once(learner: AdversarialTraining) -> dict[str, Tensor]:
    draw = learner.draw(0, generator(0), 1)
    learner.update(draw)
    return draw


def test_paper_regulariser_teaches_the_encoder_the_state_and_action_but_not_the_noise():
    """Against an indifferent discriminator only λ·R is left: its gradient stops at the outputs (ŝ, â)."""
    learner = still_learner(PAPER, regulariser=1.0, cycle=0.0)
    update_once(learner)
    gradient = learner.live.encoder.net.layers[-1].bias.grad[0, 0]
    assert (gradient[:5] != 0).all()
    assert (gradient[5:] == 0).all()


def test_paper_regulariser_follows_lambda():
    gradients = []
    for weight in (1.0, 3.0, 0.0):
        learner = still_learner(PAPER, weight, 0.0)
        update_once(learner)
        gradients.append(learner.live.encoder.net.layers[-1].bias.grad)
    torch.testing.assert_close(3 * gradients[0], gradients[1])
    assert gradients[2].abs().max() == 0


def test_paper_regulariser_draws_the_guess_to_the_context():
    """The slope of λ·E‖c − ĉ‖² in the bias of ĉ is 2λ·E(ĉ − c), so that descent brings ĉ nearer to c."""
    learner = still_learner(PAPER, regulariser=3.0, cycle=0.0)
    update_once(learner)
    encoded, decoded = learner.discriminator.seen[0][0].chunk(2)
    slope = 2 * 3.0 * (encoded - decoded)[:, :5].mean(0)
    torch.testing.assert_close(learner.live.encoder.net.layers[-1].bias.grad[0, 0, :5], slope)


def test_the_discriminator_sees_both_joints_in_one_order():
    """(ĉ, û, s') from the encoder, (c, u, ŝ') from the decoder. Swapping s and s' in either joint fails here."""
    learner = still_learner(PAPER, 1.0, 0.0)
    draw = update_once(learner)
    table, picked = rows(), draw["rows"][0]
    columns = torch.cat([table.state, table.action], 1), table.next_state
    context, next_state = (((c - c.mean(0)) / c.std(0, correction=0))[picked] for c in columns)
    encoded, decoded = learner.discriminator.seen[0][0].chunk(2)
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(encoded[:, 9:], next_state, **close)
    torch.testing.assert_close(decoded[:, :5], context, **close)
    torch.testing.assert_close(decoded[:, 5:9], draw["noise"][0], **close)


def test_the_conditional_discriminator_sees_the_same_context_in_both_halves():
    learner = still_learner(CONDITIONAL, 0.0, 0.3)
    update_once(learner)
    encoded, decoded = learner.discriminator.seen[0][0].chunk(2)
    torch.testing.assert_close(encoded[:, :5], decoded[:, :5])


def test_the_noise_cycle_teaches_the_conditional_encoder():
    learner = still_learner(CONDITIONAL, 0.0, 0.3)
    update_once(learner)
    assert (learner.live.encoder.net.layers[-1].bias.grad != 0).all()


def test_the_noise_cycle_draws_the_recovered_noise_to_the_noise():
    """The slope of .3·E‖u − E(c, G(c, u))‖² in the encoder's last bias is 2·.3·E(E(c, G(c, u)) − u)."""
    learner = still_learner(CONDITIONAL, 0.0, 0.3)
    update_once(learner)
    context, noise, generated = learner.discriminator.seen[0].chunk(2, 1)[1].split([5, 4, 4], -1)
    slope = 2 * 0.3 * (learner.live.encoder(context, generated)[1] - noise).mean(1)
    torch.testing.assert_close(learner.live.encoder.net.layers[-1].bias.grad[0], slope)


@BOTH
def test_generator_and_encoder_lead_the_discriminator_astray(recipe):
    """It says "encoded" where its logit is high: with D held still, one step lowers E's half and raises G's."""
    learner = still_learner(recipe, 0.0, 0.0)
    torch.nn.init.normal_(learner.discriminator.weight, generator=generator(1))
    learner.generator_optimizer.param_groups[0]["lr"] = 1e-3
    draw = update_once(learner)
    learner.update(draw)
    before, after = (learner.discriminator(learner.discriminator.seen[i])[0].chunk(2) for i in (0, 2))
    assert after[0].mean() < before[0].mean() - 1e-3
    assert after[1].mean() > before[1].mean() + 1e-3


@BOTH
def test_the_weights_kept_are_the_running_average(recipe):
    """The n-th update counts for max(9/(9 + n), 1 − average): here 9/10, 9/11, .8 and .8."""
    mechanism, judge = recipe.build(4, 5, 1), recipe.discriminator(4, 5, 1)
    table = standardised(mechanism, [Job(rows())])
    begin(mechanism.generator, mechanism.encoder, judge)
    how = replace(recipe.training, learning_rate=1e-2, average=0.2)
    learner = AdversarialTraining(mechanism, judge, table, how, *recipe.weights())
    expected = {name: tensor.clone() for name, tensor in learner.live.state_dict().items()}
    draws = learner.draw(0, generator(0), 4)
    for i, share in enumerate((9 / 10, 9 / 11, 0.8, 0.8)):
        learner.update({name: column[i : i + 1] for name, column in draws.items()})
        live = learner.live.state_dict()
        expected = {name: (1 - share) * kept + share * live[name] for name, kept in expected.items()}
    assert learner.network() is learner.averaged
    for name, tensor in learner.averaged.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5, msg=name)
    weight = next(name for name, _ in learner.live.encoder.named_parameters(prefix="encoder"))
    assert (expected[weight] - live[weight]).abs().max() > 1e-3


def test_generator_and_encoder_are_judged_row_by_row():
    """Through the batch's statistics G could spoil D's view of the other half: fails when `_fool` judges in train()."""
    judge = PAPER.discriminator(4, 5, 1)
    initialise(judge, [0])
    mechanism = PAPER.build(4, 5, 1)
    learner = AdversarialTraining(mechanism, judge, standardised(mechanism, [Job(rows())]), PAPER.training, 1, 0)
    update_once(learner)
    joint = torch.randn(1, 6, 13, generator=generator(0)).requires_grad_()
    (slope,) = torch.autograd.grad(learner.discriminator(joint)[0, 0, 0], joint)
    assert slope[0, 1:].abs().max() == 0


def test_inversion_recovers_the_noise():
    noise = torch.cat([4 * torch.randn(300, 3, generator=generator(0)), torch.zeros(1, 3)])
    for rising in (lambda u: u.exp(), lambda u: u + 0.9 * u.sin(), lambda u: torch.where(u > 0, 5 * u, 0.2 * u)):
        found = invert(rising, rising(noise))
        torch.testing.assert_close(found, noise, rtol=1e-5, atol=1e-5)


def test_inversion_finds_far_noise():
    """A value a thousand standard deviations away: the bracket has to grow on either side."""
    y = torch.tensor([[-1e3, 1e3, 0.0]])
    torch.testing.assert_close(invert(lambda u: 0.01 * u, y), 100 * y)


@BOTH
def test_inverted_noise_is_the_noise_that_made_the_row(recipe):
    """Abduction of a prediction returns its noise, whatever the weights: u → s' → u."""
    model = replace(recipe, abduction="inversion").fit(rows(), seed=1)
    table = rows(seed=9)
    noise = model.prior(len(table), generator(2))
    made = replace(table, next_state=model.predict(table.state, table.action, noise))
    torch.testing.assert_close(model.abduct(made), noise, rtol=1e-4, atol=1e-4)


@BOTH
def test_inversion_round_trip(recipe):
    model = replace(recipe, abduction="inversion").fit(rows(), seed=1)
    table = rows(seed=9)
    assert (model.counterfactual(table, table.action) - table.next_state).abs().max() < 1e-5


@BOTH
def test_the_encoder_is_another_way_to_the_noise(recipe):
    by_encoder = replace(recipe, abduction="encoder").fit(rows(), seed=1)
    by_inversion = replace(recipe, abduction="inversion").fit(rows(), seed=1)
    table = rows(seed=9)
    assert (by_encoder.abduct(table) - by_inversion.abduct(table)).abs().max() > 1e-2


@BOTH
def test_one_training_serves_both_ways_to_the_noise(recipe):
    by_encoder, by_inversion = (replace(recipe, abduction=way) for way in ("encoder", "inversion"))
    table, fitted = rows(seed=9), by_inversion.fit(rows(), seed=1)
    read, back = by_inversion.reread(by_encoder.fit(rows(), seed=1)), by_encoder.reread(fitted)
    assert (read.recipe, back.recipe) == (by_inversion, by_encoder)
    assert read.fingerprint == fitted.fingerprint
    assert torch.equal(read.abduct(table), fitted.abduct(table))
    assert not torch.equal(back.abduct(table), fitted.abduct(table))
    with pytest.raises(CounterpointError, match="trained by another recipe"):
        replace(by_encoder, change=not recipe.change).reread(fitted)


def test_the_paper_encoder_sees_the_next_state_only_and_the_conditional_one_everything():
    table = rows(seed=9)
    moved = replace(table, action=other_actions(table))
    for recipe, blind in ((PAPER, True), (replace(CONDITIONAL, abduction="encoder"), False)):
        model = recipe.fit(rows(), seed=1)
        assert torch.equal(model.abduct(table), model.abduct(moved)) is blind


@BOTH
def test_a_model_of_the_change_adds_the_state_and_its_encoder_sees_the_change(recipe):
    """The same s' − s from another state: the same noise and, from the paper's encoder, the same guess of it."""
    model, table = replace(recipe, change=True, abduction="encoder").fit(rows(), seed=1), rows(seed=9)
    mechanism, noise = model.mechanism, model.prior(len(table), generator(2))
    told = torch.cat([table.state, table.action], 1)[None]
    state, moved = (x[None] for x in (table.state, table.state + 3.0))
    change = mechanism.predict(told, state, noise[None]) - state
    torch.testing.assert_close(mechanism.predict(told, moved, noise[None]) - moved, change, rtol=1e-4, atol=1e-5)
    found, again = (mechanism.abduct(told, s, s + change) for s in (state, moved))
    torch.testing.assert_close(again, found, rtol=1e-3, atol=1e-4)


@BOTH
def test_a_model_of_the_next_state_does_not_add_the_state(recipe):
    mechanism = replace(recipe, change=False).fit(rows(), seed=1).mechanism
    told, noise = torch.randn(1, 20, 5, generator=generator(0)), torch.randn(1, 20, 4, generator=generator(1))
    state = torch.randn(1, 20, 4, generator=generator(2))
    assert torch.equal(mechanism.predict(told, state, noise), mechanism.predict(told, state + 3.0, noise))


def test_the_paper_generates_the_next_state_and_ours_the_change():
    assert BiCoGAN().change is False
    assert ConditionalBiCoGAN().change is True


@BOTH
def test_one_seed_one_model(recipe):
    first, again, other = (recipe.fit(rows(), seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(weights(first).values(), weights(again).values(), strict=True))
    table = rows(seed=9)
    actions = other_actions(table)
    assert (first.counterfactual(table, actions) - other.counterfactual(table, actions)).abs().max() > 1e-2


@BOTH
def test_a_member_of_a_stack_is_the_model_fitted_alone(recipe):
    """Jobs of different lengths and seeds; a normalisation over members or padding would show."""
    jobs = [Job(rows(count=200), 1), Job(rows(count=120, seed=5), 2)]
    stacked, alone = recipe.fit_many(jobs), [recipe.fit(job.data, job.seed) for job in jobs]
    for together, single in zip(stacked, alone, strict=True):
        for name, tensor in weights(single).items():
            torch.testing.assert_close(weights(together)[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


class PowerCutError(Exception):
    """The process ends in the middle."""


def _stop(stage: str, done: int, total: int) -> None:
    if done >= 20:
        raise PowerCutError


@BOTH
def test_an_interrupted_fit_resumes_to_the_same_weights(recipe, tmp_path):
    with pytest.raises(PowerCutError):
        recipe.fit(rows(), 1, Monitor(tmp_path, report=_stop, save_seconds=0.0))
    resumed, whole = recipe.fit(rows(), 1, Monitor(tmp_path, resume=True)), recipe.fit(rows(), 1)
    assert all(torch.equal(a, b) for a, b in zip(weights(resumed).values(), weights(whole).values(), strict=True))


@BOTH
def test_weights_suffice_to_rebuild_the_model(recipe):
    model = recipe.fit(rows(), seed=1)
    given = recipe, model.schema, model.origin, model.header(), model.weights(), {}
    rebuilt = recipe.rebuild(Saved(*given))
    table = rows(seed=9)
    actions = other_actions(table)
    assert torch.equal(rebuilt.counterfactual(table, actions), model.counterfactual(table, actions))


@BOTH
def test_theta_is_part_of_the_context(recipe):
    table = rows()
    theta = torch.randn(len(table), 2, generator=generator(4))
    (model,) = recipe.fit_many([Job(table, 1, theta)])
    actions = other_actions(table)
    assert (model.counterfactual(table, actions, theta) - model.counterfactual(table, actions, -theta)).abs().max() > 0


def test_batch_norm_statistics_are_those_of_the_weights_that_are_kept():
    """Fails when `settle` is left out: statistics gathered while training belong to weights that are gone."""
    recipe = replace(PAPER, training=replace(PAPER.training, learning_rate=3e-2))
    mechanism = recipe.fit(rows(), seed=1).mechanism
    offsets: list[float] = []
    for norm in (module for module in mechanism.modules() if isinstance(module, StackedBatchNorm)):
        norm.register_forward_hook(lambda norm, x, _: offsets.append(_offset(norm, x[0])))
    table = fitting_table(Job(rows()))
    told, after = (table[name].repeat(40, 1)[None] for name in ("context", "next_state"))
    context, y = mechanism.context(told), mechanism.target(after)
    mechanism.encoder(context, y)
    mechanism.generator(context, torch.randn(y.shape, generator=generator(0)))
    assert len(offsets) == 4
    assert max(offsets) < 0.1


def _offset(norm: StackedBatchNorm, x: Tensor) -> float:
    """How far the mean input of a layer lies from the mean it believes in, in standard deviations."""
    away = (x.mean(1, keepdim=True) - norm.running_mean) * torch.rsqrt(norm.running_variance + norm.epsilon)
    return float(away.abs().max().detach())


def test_conditional_model_learns_heteroscedastic_counterfactuals():
    """s' = .5s + a + .4·exp(.8a + …)·u: far better than copying the factual outcome (1.0) or the mean (.59)."""
    recipe = ConditionalBiCoGAN()
    training = replace(recipe.training, schedule=Schedule(500, rate="linear"), batch=128)
    task, table = PROBLEMS["b"], rows("b", 1000, 9)
    model = replace(recipe, training=training).fit(rows("b", 2000), seed=0)
    actions = other_actions(table)
    truth = task.transition(table.state, actions, table.noise)
    error = (model.counterfactual(table, actions) - truth).square().mean().sqrt() / (truth - table.next_state).std()
    assert error < 0.3
