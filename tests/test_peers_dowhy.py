"""DoWhy's graphical causal models as we ask them; skipped where DoWhy is not installed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.core.seeding import generator
from counterpoint.data.jobs import Job
from counterpoint.data.transitions import Transitions
from counterpoint.simulation.augmentation import without_noise
from reproduction.counterfactuals import SETS, Stack, fit_and_score, log
from reproduction.experiment import Context
from reproduction.peers_dowhy import DoWhyGCM, DoWhyModel

gcm = pytest.importorskip("dowhy.gcm")
pytestmark = pytest.mark.filterwarnings("ignore")


def rows(scm: str = "a", n: int = 200, seed: int = 1) -> Transitions:
    return log(scm, n, seed)


def fitted(scm: str = "a", seed: int = 0) -> DoWhyModel:
    return DoWhyGCM().fit_many([Job(without_noise(rows(scm)), seed)], "cpu")[0]


def test_the_action_taken_brings_the_outcome_back_and_noise_is_additive() -> None:
    model, asked = fitted(), rows(seed=2)
    again = model.imagine(asked, asked.action[:, None], generator(0))[:, 0]
    torch.testing.assert_close(again, asked.next_state)
    other = torch.stack([-asked.action, asked.action], 1)
    assert (model.imagine(asked, other, generator(0))[:, 0] - asked.next_state).abs().mean() > 0.3


def test_each_row_has_its_own_action() -> None:
    """Turning the rows turns the answers: interventions are read row by row, in order."""
    model, asked = fitted(), rows(seed=2)
    action = torch.linspace(-1, 1, len(asked))[:, None, None]
    turned = torch.arange(len(asked)).flip(0)
    answer = model.imagine(asked, action, generator(0))
    torch.testing.assert_close(model.imagine(asked[turned], action[turned], generator(0)), answer[turned])


def test_every_state_and_action_is_a_parent_of_every_next_state() -> None:
    graph: Any = fitted("tumour").model.graph
    assert {effect: set(graph.predecessors(effect)) for effect in ("t0", "t1")} == {
        "t0": {"s0", "s1", "a0", "a1"},
        "t1": {"s0", "s1", "a0", "a1"},
    }
    assert not list(graph.predecessors("s0"))


def test_one_seed_one_model_and_numpys_own_state_is_left_alone() -> None:
    asked, jobs_before, bars_before = rows(seed=2), gcm.config.default_n_jobs, gcm.config.show_progress_bars
    np.random.seed(5)
    before = np.random.get_state()[1].copy()  # pyright: ignore
    first = fitted().sample(asked.state, asked.action, generator(3))
    assert (np.random.get_state()[1] == before).all()  # pyright: ignore
    assert (gcm.config.default_n_jobs, gcm.config.show_progress_bars) == (jobs_before, bars_before)
    np.random.seed(6)
    again = fitted().sample(asked.state, asked.action, generator(3))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert (fitted().sample(asked.state, asked.action, generator(4)) - first).abs().max() > 1e-3


def test_a_graph_is_answered_through_its_children_alone() -> None:
    causal = SETS["triangle-nlin"]
    x, _ = causal.sample(300, 0)
    (model,) = DoWhyGCM().fit_graph([x], causal.parents, [0])
    answer = model.counterfactual(x, {1: 2.0})
    torch.testing.assert_close(answer[:, 0], x[:, 0])
    assert (answer[:, 1] == 2).all()
    assert (answer[:, 2] - x[:, 2]).abs().mean() > 0.1
    # A tree that x lies on the edge of may answer from the leaf beside, a rounding away.
    assert (model.counterfactual(x, {}) - x).abs().mean() < 1e-3
    drawn = model.sample(50, generator(0), {1: 2.0})
    assert drawn.shape == (50, 3)
    assert (drawn[:, 1] == 2).all()


def test_it_stands_in_the_table_where_its_assumption_holds() -> None:
    """SCM a has additive noise."""
    (row,) = fit_and_score(Stack((("DoWhy gcm", DoWhyGCM()),), (("a", 500, 0),)), Context("key", Path()))
    assert row["error"] < 0.25
    assert row["round_trip"] < 1e-5
