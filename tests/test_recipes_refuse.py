"""A recipe that cannot be followed is refused when it is written, in one line that names the number."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from counterpoint.counterfactual import Augmenter
from counterpoint.dynamics.gaussian import GaussianDynamics
from counterpoint.dynamics.outcome import Outcome
from counterpoint.errors import CounterpointError
from counterpoint.nets.likelihood import Likelihood
from counterpoint.nets.training import Schedule
from counterpoint.policies.bcq import BCQ
from counterpoint.policies.d3qn import D3QN
from counterpoint.policies.pets import PETS, Planner
from counterpoint.policies.steve import MVE, STEVE
from counterpoint.scm.auto import Auto
from counterpoint.scm.density import DensitySCM
from counterpoint.simulation.selection import Rollouts
from recipes import DENSITY, ROWS

NAN = math.nan
CHECKING = Schedule(steps=10, check_every=5)

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no fewer than no alternatives": (lambda: Augmenter(alternatives=-1), "alternatives=-1 is negative"),
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
    "an ensemble has a member": (lambda: DensitySCM(ensemble=0), "an ensemble of 0 members"),
    "so has one of dynamics": (lambda: GaussianDynamics(ensemble=0), "an ensemble of 0 members"),
    "a price is not paid out": (lambda: DensitySCM(variation_penalty=-1.0), "variation_penalty cannot be negative"),
    "a price is a number": (lambda: DensitySCM(variation_penalty=NAN), "variation_penalty cannot be negative"),
    "what is checked is held out": (lambda: Likelihood(CHECKING, held_out=0.0), "held_out=0 leaves nothing to check"),
    "a share is no count": (lambda: Likelihood(held_out=2), "held_out=2 is not a share"),
    "a share leaves something": (lambda: Likelihood(held_out=1.0), "held_out=1.0 is not a share"),
    "a share is a number": (lambda: Likelihood(held_out=NAN), "held_out=nan is not a share"),
    "a batch has a row": (lambda: Likelihood(batch=0), "a batch of 0 rows"),
    "a rate is a number": (lambda: Likelihood(learning_rate=NAN), "learning_rate=nan is not usable"),
    "a log has rows": (lambda: Schedule(log_every=0), "log_every=0 logs never"),
    "a schedule has a step": (lambda: Schedule(steps=0), "0 updates train nothing"),
    "no negative check": (lambda: Schedule(check_every=-1), "check_every and patience cannot be negative"),
    "no negative patience": (lambda: Schedule(patience=-1), "check_every and patience cannot be negative"),
    "real rows are a share": (lambda: D3QN(real_share=2), "real_share=2 is not a share"),
    "a target that never follows": (lambda: D3QN(tau=0), "tau=0 is not above 0"),
    "a target that overtakes": (lambda: D3QN(tau=1.5), "tau=1.5 is not above 0 and at most 1"),
    "a policy's rate is a number": (lambda: D3QN(learning_rate=float("nan")), "learning_rate=nan is not usable"),
    "a policy's batch has a row": (lambda: D3QN(batch=0), "a batch of 0 rows"),
    "an action is allowed": (lambda: BCQ(threshold=1), "threshold 1 allows no action"),
    "particles share out": (lambda: PETS(particles=3), "3 particles do not share out among"),
    "there are particles": (lambda: PETS(particles=0), "0 particles do not share out among"),
    "a plan has elites": (lambda: Planner(elites=0), "0 elites of"),
    "elites are candidates": (lambda: Planner(candidates=10, elites=11), "11 elites of 10 candidates"),
    "candidates come in pairs": (lambda: Planner(candidates=11, elites=2), "2 elites of 11 candidates"),
    "a plan looks ahead": (lambda: Planner(horizon=0), "a plan needs a horizon"),
    "an episode is tried": (lambda: Rollouts(starts=0), "0 episodes judge nothing"),
    "no negative episode": (lambda: Rollouts(horizon=-1), "horizon=-1 is negative"),
    "STEVE looks ahead": (lambda: STEVE(horizon=-1), "horizon=-1 is negative"),
    "so does MVE": (lambda: MVE(horizon=-1), "horizon=-1 is negative"),
    "STEVE has a Q-function": (lambda: STEVE(q_functions=0), "dynamics and q_functions need 1 or more"),
    "no negative reward models": (lambda: STEVE(rewards=-1), "rewards=-1 is negative"),
    "a discount discounts": (lambda: Outcome(discount=2), "discount=2 is not between 0 and 1"),
    "a discount is a number": (lambda: Outcome(discount=NAN), "discount=nan is not between 0 and 1"),
    "few rows need a ridge": (lambda: Outcome(ridge=0.0), "ridge=0.0 leaves few rows undefined"),
    "a choice has candidates": (lambda: Auto(candidates=()), "Auto has no candidates"),
    "a choice is judged on something": (lambda: Auto(held_out=0.0), "held_out=0.0 is not a share"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_in_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(CounterpointError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Augmenter(alternatives=0),
        lambda: DensitySCM(order=(1, 0), variation_penalty=0.0, ensemble=1),
        lambda: Likelihood(Schedule(steps=1, check_every=0, log_every=1), held_out=0.0, batch=1),
        lambda: D3QN(real_share=0.0, tau=1.0),
        lambda: D3QN(real_share=1.0),
        lambda: BCQ(threshold=0.0),
        lambda: Planner(candidates=10, elites=10, horizon=1, iterations=1),
        lambda: Rollouts(starts=1, horizon=0),
        lambda: STEVE(horizon=0, rewards=0, dynamics=1, q_functions=1),
        lambda: Outcome(discount=0.0),
        lambda: Outcome(discount=1.0),
        lambda: Auto(candidates=(DensitySCM(),)),
    ],
)
def test_what_is_just_possible_is_not(make: Callable[[], object]) -> None:
    make()
