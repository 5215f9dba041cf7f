"""A recipe that cannot be followed is refused when it is written, in one line that names the number."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from counterpoint.core.errors import CounterpointError
from counterpoint.learners.baselines.bcq import BCQ
from counterpoint.learners.baselines.pets import PETS, Planner
from counterpoint.learners.baselines.steve import MVE, STEVE
from counterpoint.learners.ctrl_g import CTRLg
from counterpoint.learners.d3qn import D3QN
from counterpoint.models.dynamics.gaussian import GaussianDynamics
from counterpoint.models.dynamics.gaussian_process import GaussianProcess
from counterpoint.models.dynamics.outcome import Outcome
from counterpoint.models.scm.auto import AutoSCM
from counterpoint.models.scm.bicogan import BiCoGAN
from counterpoint.models.scm.density import DensitySCM
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.simulation.augmentation import Augmenter
from counterpoint.simulation.selection import CheckpointSelection
from counterpoint.tasks.cartpole import CartPole
from helpers.recipes import DENSITY, ROWS

NAN = math.nan
CHECKING = Schedule(steps=10, check_every=5)

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "an alternative at least": (
        lambda: Augmenter(alternatives=0),
        "alternatives=0 of Augmenter is not a number",
    ),
    "an order names a column once": (lambda: DensitySCM(order=(0, 0)), "order=(0, 0) must name every state column"),
    "an order has no gap": (lambda: DensitySCM(order=(0, 2)), "order=(0, 2) must name every state column"),
    "an order names all columns": (
        lambda: replace(DENSITY, order=(1, 0)).fit(ROWS),
        "order=(1, 0) names 2 columns of 4; name all",
    ),
    "no order longer than the state": (
        lambda: replace(DENSITY, order=(4, 3, 2, 1, 0)).fit(ROWS),
        "names 5 columns of 4; name all",
    ),
    "an ensemble has a member": (lambda: DensitySCM(ensemble=0), "ensemble=0 of DensitySCM is not a number from 1"),
    "so has one of dynamics": (
        lambda: GaussianDynamics(ensemble=0),
        "ensemble=0 of GaussianDynamics is not",
    ),
    "a process has a row": (lambda: GaussianProcess(most=0), "most=0 of GaussianProcess is not a number from 1"),
    "a process learns": (lambda: GaussianProcess(learning_rate=0.0), "learning_rate=0.0 of GaussianProcess is not"),
    "a price is not paid out": (
        lambda: DensitySCM(variation_penalty=-1.0),
        "variation_penalty=-1.0 of DensitySCM",
    ),
    "a price is a number": (
        lambda: DensitySCM(variation_penalty=NAN),
        "variation_penalty=nan of DensitySCM is not",
    ),
    "what is checked is held out": (lambda: Likelihood(CHECKING, held_out=0.0), "held_out=0 leaves nothing to check"),
    "a share is no count": (lambda: Likelihood(held_out=2), "held_out=2 of Likelihood is not a number from 0 to 1"),
    "a share leaves something": (lambda: Likelihood(held_out=1.0), "held_out=1 leaves nothing to learn from"),
    "a share is a number": (lambda: Likelihood(held_out=NAN), "held_out=nan of Likelihood is not a finite number"),
    "a batch has a row": (lambda: Likelihood(batch=0), "batch=0 of Likelihood is not a number from 1"),
    "a rate is a number": (
        lambda: Likelihood(learning_rate=NAN),
        "learning_rate=nan of Likelihood is not",
    ),
    "a log has rows": (lambda: Schedule(log_every=0), "log_every=0 of Schedule is not a number from 1"),
    "a schedule has a step": (lambda: Schedule(steps=0), "steps=0 of Schedule is not a number from 1"),
    "no negative check": (lambda: Schedule(check_every=-1), "check_every=-1 of Schedule is not a number from 0"),
    "no negative patience": (lambda: Schedule(patience=-1), "patience=-1 of Schedule is not a number from 0"),
    "real rows are a share": (lambda: D3QN(real_share=2), "real_share=2 of D3QN is not a number from 0 to 1"),
    "a target that never follows": (lambda: D3QN(tau=0), "tau=0 of D3QN is not a number above 0 to 1"),
    "a target that overtakes": (lambda: D3QN(tau=1.5), "tau=1.5 of D3QN is not a number above 0 to 1"),
    "a policy's rate is a number": (
        lambda: D3QN(learning_rate=float("nan")),
        "learning_rate=nan of D3QN is not a finite",
    ),
    "a policy's batch has a row": (lambda: D3QN(batch=0), "batch=0 of D3QN is not a number from 1"),
    "an action is allowed": (lambda: BCQ(threshold=1), "threshold 1 allows no action"),
    "particles share out": (lambda: PETS(particles=3), "3 particles do not share out among"),
    "there are particles": (lambda: PETS(particles=0), "particles=0 of PETS is not a number from 1"),
    "a plan has elites": (lambda: Planner(elites=0), "elites=0 of Planner is not a number from 1"),
    "elites are candidates": (lambda: Planner(candidates=10, elites=11), "11 elites of 10 candidates"),
    "candidates come in pairs": (lambda: Planner(candidates=11, elites=2), "2 elites of 11 candidates"),
    "a plan looks ahead": (lambda: Planner(horizon=0), "horizon=0 of Planner is not a number from 1"),
    "an episode is tried": (
        lambda: CheckpointSelection(starts=0),
        "starts=0 of CheckpointSelection is not a number from 1",
    ),
    "no negative episode": (
        lambda: CheckpointSelection(horizon=0),
        "horizon=0 of CheckpointSelection is not a number from 1",
    ),
    "STEVE looks ahead": (lambda: STEVE(horizon=-1), "horizon=-1 of STEVE is not a number from 0"),
    "so does MVE": (lambda: MVE(horizon=-1), "horizon=-1 of MVE is not a number from 0"),
    "STEVE has a Q-function": (lambda: STEVE(q_functions=0), "q_functions=0 of STEVE is not a number from 1"),
    "no negative reward models": (lambda: STEVE(rewards=0), "rewards=0 of STEVE is not a number from 1"),
    "a discount discounts": (lambda: Outcome(discount=2), "discount=2 of Outcome is not a number from 0 to 1"),
    "a discount is a number": (lambda: Outcome(discount=NAN), "discount=nan of Outcome is not a finite number"),
    "few rows need a ridge": (lambda: Outcome(ridge=0.0), "ridge=0.0 of Outcome is not a number above 0"),
    "a rate is not a billion": (lambda: D3QN(learning_rate=1e9), "learning_rate=1000000000.0 of D3QN is not a number"),
    "a width is no text": (lambda: D3QN(hidden="wide"), "hidden='wide' of D3QN is not a tuple"),
    "a layer has a width": (lambda: DensitySCM(hidden=(64, 0)), "hidden=(64, 0) of DensitySCM is not a number from 1"),
    "a count is whole": (lambda: Schedule(steps=2.5), "steps=2.5 of Schedule is not a whole number"),
    "yes is no count": (lambda: Schedule(steps=True), "steps=True of Schedule is not a whole number"),
    "a rate falls in a known way": (lambda: Schedule(rate="wild"), "rate='wild' of Schedule is not one of 'constant'"),
    "a recipe is made of recipes": (lambda: CTRLg(model="gan"), "model='gan' of CTRLg is not a Recipe"),
    "a law is a law": (lambda: DensitySCM(law=None), "law=None of DensitySCM is not a Gaussian"),
    "a simulator looks ahead": (lambda: CartPole(horizon=-5), "horizon=-5 of CartPole is not a number from 1"),
    "noise is finite": (lambda: CartPole(noise_size=math.inf), "noise_size=inf of CartPole is not a finite number"),
    "betas are two": (
        lambda: replace(BiCoGAN().training, betas=(0.5,)),
        "betas=(0.5,) of Adversarial is not a tuple",
    ),
    "a choice has candidates": (lambda: AutoSCM(candidates=()), "AutoSCM has no candidates"),
    "a choice is judged on something": (lambda: AutoSCM(held_out=0.0), "held_out=0.0 leaves one side empty"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_in_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(CounterpointError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Augmenter(alternatives=1),
        lambda: DensitySCM(order=(1, 0), variation_penalty=0.0, ensemble=1),
        lambda: Likelihood(Schedule(steps=1, check_every=0, log_every=1), held_out=0.0, batch=1),
        lambda: D3QN(real_share=0.0, tau=1.0),
        lambda: D3QN(real_share=1.0),
        lambda: BCQ(threshold=0.0),
        lambda: Planner(candidates=10, elites=10, horizon=1, iterations=1),
        lambda: CheckpointSelection(starts=1, horizon=1),
        lambda: STEVE(horizon=0, rewards=None, q_functions=1),
        lambda: Outcome(discount=0.0),
        lambda: Outcome(discount=1.0),
        lambda: AutoSCM(candidates=(DensitySCM(),)),
    ],
)
def test_what_is_just_possible_is_not(make: Callable[[], object]) -> None:
    make()
