"""Groups of subject factors: how well they can name gravities, and how well they do."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from counterpoint.models.scm.random_effects import RandomEffects
from counterpoint.nets.training import Schedule
from reproduction.executors import InProcess
from reproduction.experiment import Context
from reproduction.groups import (
    GroupAccuracy,
    GroupsRecipe,
    likelihood_bound,
    matched_accuracy,
    name_subjects,
    population,
)


def test_accuracy_is_that_of_the_best_matching():
    planet = torch.tensor([0, 0, 1, 1, 2, 2])
    assert matched_accuracy(torch.tensor([2, 2, 0, 0, 1, 1]), planet) == 1.0
    assert matched_accuracy(torch.tensor([0, 0, 0, 0, 1, 1]), planet) == pytest.approx(4 / 6)


def test_the_true_equations_name_more_the_longer_the_record():
    planet = torch.arange(5).repeat_interleave(12)
    bounds = [likelihood_bound(population("scaled", 12, trials, 3), "scaled", planet) for trials in (1, 8)]
    assert 0.35 < bounds[0] < bounds[1] <= 1.0
    shuffled = planet[torch.randperm(60, generator=torch.Generator().manual_seed(0))]
    assert likelihood_bound(population("scaled", 12, 8, 3), "scaled", shuffled) < 0.5


def test_groups_of_random_effects_come_near_the_bound():
    model = RandomEffects(factors=1, ensemble=1, schedule=Schedule(steps=1, check_every=1))
    rows = name_subjects(GroupsRecipe("scaled", 4, 0, 20, model), Context("key", Path()))
    assert {row["groups"] for row in rows} == {"mixture", "k-means"}
    assert all(row["accuracy"] > 0.75 * row["bound"] for row in rows)


def test_the_experiment_with_groups_writes_its_files(tmp_path: Path):
    model = RandomEffects(factors=1, ensemble=1, schedule=Schedule(steps=1, check_every=1))
    experiment = GroupAccuracy(trials=(1,), subjects=8, seeds=1, model=model)
    rows = experiment.run(tmp_path, InProcess())
    assert len(rows) == 4
    assert replace(experiment).run(tmp_path, InProcess()) == rows
    assert {"groups.csv", "groups.md", "groups.png", "groups.settings.json"} <= {p.name for p in tmp_path.iterdir()}
