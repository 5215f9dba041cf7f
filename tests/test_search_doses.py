"""A search on continuous doses: where a rule starts and how far it reaches, the price of leaving the log, the words."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import counterpoint as cp
from counterpoint.cli.search_flags import SearchFlags
from counterpoint.data.jobs import Job
from counterpoint.data.returns import logged_returns, return_deviation
from counterpoint.data.schema import Schema
from counterpoint.data.transitions import Transitions
from counterpoint.learners.search import SearchLearner
from counterpoint.policies.rule import logged_doses, middle_doses
from counterpoint.run import Run
from counterpoint.simulation.models import ModelSimulator
from helpers.cli import command
from helpers.search import DRIFT, LOG, MODEL_RECIPE, SEARCH, policy
from helpers.search_commands import FIT, TABLE


def rows(doses: list[float], rewards: list[float] | None = None, episodes: list[int] | None = None) -> Transitions:
    """One row a dose; the steps of an episode are counted from 0."""
    count, episode = len(doses), torch.tensor(episodes or list(range(len(doses))))
    return Transitions.logged(
        state=torch.zeros(count, 1),
        action=torch.tensor(doses)[:, None],
        reward=torch.tensor(rewards or [0.0] * count),
        next_state=torch.zeros(count, 1),
        terminated=torch.zeros(count).bool(),
        truncated=torch.zeros(count).bool(),
        subject=episode,
        step=torch.tensor([int((episode[:i] == episode[i]).sum()) for i in range(count)]),
        actions=cp.Box((min(doses),), (max(doses),)),
    )


def test_the_median_and_the_central_doses_by_hand() -> None:
    doses = logged_doses(rows([0.1 * i for i in range(41)]))[:, 0]  # 0 … 4: 20 doses below 2 and 20 above.
    torch.testing.assert_close(doses, torch.tensor([2.0, 2.0, 2.0]))  # int(0.95) = 0 and ceil(18.05) = 19: both ends.
    skewed = logged_doses(rows([0.0] * 60 + [1.0] * 39 + [25.0]))[:, 0]
    torch.testing.assert_close(skewed, torch.tensor([0.0, 0.0, 1.0]))  # Most are 0, and the largest is not reached.
    assert logged_doses(rows([3.0, 3.0, 3.0]))[:, 0].tolist() == [3, 0, 0]


def test_a_rule_starts_at_the_logged_median_and_stays_within_the_central_doses() -> None:
    log = rows([0.1] * 10 + [0.4] * 30 + [1.2] * 30 + [25.0])
    learner = SearchLearner(SEARCH_FREE, ModelSimulator([MODEL]), [Job(LOG)], DRIFT, [0])
    first = learner.policies({"numbers": torch.zeros(1, learner.width), "returns": torch.zeros(1, 2)})[0]
    median = LOG.action.sort(0).values[(len(LOG) - 1) // 2]
    torch.testing.assert_close(first.act(torch.zeros(1, 2))[0], median)
    weights = {"numbers": torch.tensor([1.0, 0.0]), "returns": torch.zeros(2), "doses": logged_doses(log)}
    weights |= {"mean": torch.zeros(1, 1), "spread": torch.ones(1, 1)}
    found = type(first)(cp.Search(), weights, log.schema, first.origin)
    doses = found.act(torch.tensor([[-100.0], [0.0], [100.0]]))[:, 0].tolist()
    assert doses == pytest.approx([0.1, 0.4, 1.2])
    assert found.explain() == "action_0 = 0.4 + (0.8 where z > 0, else 0.3) · tanh(z), with z = 0 + 1·state_0"


SEARCH_FREE = cp.Search(MODEL_RECIPE, draws=None, support_price=0.0)
MODEL = MODEL_RECIPE.fit(LOG)


def test_logged_returns_by_hand() -> None:
    log = rows([1.0] * 5, [1.0, 2.0, 4.0, 8.0, 16.0], [0, 0, 1, 1, 1])
    assert logged_returns(log).tolist() == [3, 28]
    assert logged_returns(log, 2).tolist() == [3, 12]
    assert return_deviation(log) == pytest.approx(25 / 2**0.5)
    assert return_deviation(rows([1.0, 1.0], [-7.0, -7.0])) == 7
    assert return_deviation(rows([1.0, 1.0])) == 1


def test_continuous_doses_are_priced_and_lists_of_doses_are_not_unless_it_is_asked_for() -> None:
    assert cp.Search().price(Job(LOG), DRIFT) == pytest.approx(return_deviation(LOG, DRIFT.horizon))
    assert cp.Search(support_price=0.0).price(Job(LOG), DRIFT) == 0
    cart = cp.CartPole()
    log = cp.simulate(cart, cp.random_policy(cart), 5, 20, seed=0)
    assert cp.Search().price(Job(log), cart) == 0
    assert SearchFlags().applied(cp.Search(), log, cart).support_price == pytest.approx(return_deviation(log))
    changed = SearchFlags(support_price=2.0, objective="worst-share", rounds=7, restarts=3, horizon=9).applied(
        cp.Search(), log, cart
    )
    assert (changed.support_price, changed.objective, changed.horizon) == (2.0, cp.simulation.WorstShare(), 9)
    assert (changed.schedule.steps, changed.restarts) == (7, 3)


def test_the_price_is_not_in_the_return_that_is_shown() -> None:
    """Every step of this rule leaves the log: both numbers would differ by 8 prices of 1,000."""
    how = cp.Search(MODEL_RECIPE, draws=None, support_price=1000.0, restarts=1)
    learner = SearchLearner(how, ModelSimulator([MODEL]), [Job(LOG)], DRIFT, [0])
    learner.distribution.mean[..., 4:] = 9.0
    objective = -float(learner.score())
    plain = learner.returns(learner.distribution.mean, **learner.choosing, priced=False)
    torch.testing.assert_close(learner.incumbents.returns[0], plain[0, :, 0].mean(-1))
    assert objective < float(learner.incumbents.returns.mean()) - 1000


def table(path: Path) -> Path:
    """Doses around 0.4, one slip of 25; whoever is given more has less lactate, so that a model asks for ever more."""
    random, written = np.random.default_rng(0), []
    for subject in range(40):
        level = random.normal(6, 1)
        for t in range(6):
            dose = float(random.lognormal(np.log(0.4), 0.6)) if (subject, t) != (0, 0) else 25.0
            after = 0.9 * level - 0.3 * min(dose, 4) + 0.6 + 0.2 * random.normal()
            written.append((f"p{subject}", t, level, dose, -level, t == 5 and subject % 3 == 0))
            level = after
    pd.DataFrame(written, columns=["id", "t", "lactate", "dose", "r", "died"]).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skewed")
    words = ["--run", folder / "run", "--data", table(folder / "log.csv"), *TABLE, "--last", "truncate"]
    command("fit", *words, *FIT)
    return folder / "run"


def test_a_skewed_dose_is_not_answered_by_its_maximum(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("train", "--run", run, "--method", "search", "--rounds", "10")
    said = " ".join(capsys.readouterr().out.split())
    logged = Run(run).training
    given = Run(run).policy.act(logged.state)
    assert float(given.max()) <= float(logged.action.quantile(0.98))
    assert "kept step" in said
    assert "return inside the model" in said
    assert f"mean return in the log {float(logged_returns(logged).mean()):.4g}" in said
    assert "have no support: no similar subject was given them or about as much" in said


def test_an_evaluation_of_a_rule_does_not_call_it_random(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("train", "--run", run, "--method", "search", "--rounds", "5")
    command("evaluate", "--run", run, "--draws", "50")
    said = capsys.readouterr().out
    assert "chances of its own" not in said
    assert "at random" not in said


def test_the_help_names_the_settings_of_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("train", "--method", "search", "--help")
    said = capsys.readouterr().out
    for flag in ("--support-price", "--objective", "--rounds", "--restarts", "--horizon"):
        assert flag in said


def test_settings_of_a_search_are_refused_where_nothing_is_searched(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command("train", "--run", run, "--method", "bcq", "--rounds", "3")
    assert "bcq searches no rule; leave --support-price" in capsys.readouterr().err


def test_an_older_policy_has_the_middle_of_its_space() -> None:
    schema = Schema.of(["x"], cp.Box((0.0,), (4.0,)))
    found = policy([0.0, 0.0], schema, cp.policies.OrderedDose(), [0.0], [1.0])
    assert torch.equal(found.doses, middle_doses(schema.actions))
    assert found.act([0.0]) == [2.0]
    assert SEARCH.support_price is None
