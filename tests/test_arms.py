"""The arms that ask whether the paper's GAN fails or only its encoder."""

from dataclasses import replace

from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.methods import SMALL_BICOGAN
from counterpoint.learners.search import Search
from counterpoint.models.scm.bicogan import BiCoGAN, ConditionalBiCoGAN
from counterpoint.nets.training import Schedule
from counterpoint.simulation.trials import random_policy, simulate
from counterpoint.tasks.cartpole import CartPole
from reproduction.arms import (
    CTRL_G,
    CTRL_G_BICOGAN,
    CTRL_G_CONDITIONAL,
    SEARCH,
    SEARCH_BICOGAN,
    SEARCH_CONDITIONAL,
    SHORT_CONDITIONAL,
    adversarial_arms,
    beyond_arms,
    in_one_member,
    paper_arms,
    quick_arms,
)
from reproduction.sd import quick_sd, sd


def test_the_conditional_arm_differs_from_the_papers_in_its_model_alone() -> None:
    ours, paper = adversarial_arms()[CTRL_G_CONDITIONAL], paper_arms()[CTRL_G_BICOGAN]
    assert isinstance(ours, CTRLg)
    assert isinstance(paper, CTRLg)
    assert replace(ours, model=paper.model) == paper
    assert (ours.model, paper.model) == (ConditionalBiCoGAN(), BiCoGAN())
    assert replace(ours, model=CTRLg().model) == paper_arms()[CTRL_G]


def test_a_candidate_has_as_many_episodes_in_a_gan_as_in_all_members_of_the_default() -> None:
    default = beyond_arms()[SEARCH]
    assert isinstance(default, Search)
    assert default.draws is not None
    for name, model in ((SEARCH_BICOGAN, BiCoGAN()), (SEARCH_CONDITIONAL, ConditionalBiCoGAN())):
        arm = adversarial_arms()[name]
        assert isinstance(arm, Search)
        assert (arm.model, arm.draws) == (model, None)
        assert arm.starts == default.starts * default.draws.members == 20
        assert arm.choosing_starts == default.choosing_starts * default.draws.members == 160
        assert arm.allow_tf32 == (name == SEARCH_BICOGAN)
        same = {"model": default.model, "draws": default.draws, "allow_tf32": False}
        assert replace(arm, starts=default.starts, choosing_starts=default.choosing_starts, **same) == default


def test_both_grids_have_them() -> None:
    names = {CTRL_G_CONDITIONAL, SEARCH_BICOGAN, SEARCH_CONDITIONAL}
    assert names == set(adversarial_arms())
    assert names <= set(sd().arms)
    assert names <= set(quick_sd().arms)
    quick = quick_arms()
    assert [quick[name].model for name in (CTRL_G_CONDITIONAL, SEARCH_BICOGAN, SEARCH_CONDITIONAL)] == [  # pyright: ignore
        SHORT_CONDITIONAL,
        SMALL_BICOGAN,
        SHORT_CONDITIONAL,
    ]


def test_a_policy_is_found_inside_either_gan() -> None:
    """Two jobs in one stack, each in its own GAN; the return is that of one member."""
    task = CartPole(horizon=5)
    log = simulate(task, random_policy(task), 4, 10, 100)
    brief = Search(schedule=Schedule(steps=2, check_every=1), starts=1, choosing_starts=1)
    widths = {"generator_hidden": (8, 8), "encoder_hidden": (8,), "discriminator_hidden": (8,)}
    for model in (BiCoGAN(), ConditionalBiCoGAN()):
        small = replace(model, **widths, training=replace(model.training, schedule=Schedule(steps=3), batch=16))
        policy = in_one_member(small, brief).fit(log, task, seed=1)
        assert policy.act(log.state[:3]).shape == (3, 1)
        assert 0 < policy.return_in_model <= 5  # pyright: ignore
