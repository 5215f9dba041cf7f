"""A personal policy that explores takes a subject for one drawn from what is known of it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import counterpoint as cp
from counterpoint.data.jobs import Origin
from counterpoint.policies.personal import PersonalPolicy
from counterpoint.policies.searched import SearchedPolicy
from counterpoint.tasks import tumour

PATIENTS = 40
PRICE = 0.5
"""Of a fraction of radiotherapy: too dear for the mean patient, not for all."""


@pytest.fixture(scope="module")
def policy() -> PersonalPolicy:
    """Chemotherapy for all, radiotherapy for those whom the factor calls responders; a hand-made rule."""
    task = cp.Tumour(response=tumour.population(PATIENTS, 100))
    job = cp.data.Job(cp.simulate(task, cp.random_policy(task), PATIENTS, 20, 100), 100)
    recipe = cp.RandomEffects(2, ("difference", "difference"), ensemble=1, held_out=0.0)
    model = recipe.fit_many([job])[0]
    theta = model.subject_factors(job.data).mean
    known = torch.cat([theta, torch.ones(PATIENTS, 1)], 1)
    *slope, level = torch.linalg.lstsq(known, task.response.radio[:, None] - PRICE / 2.4).solution[:, 0].tolist()
    weights = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, slope[0]], [0.0, slope[1]], [5.0, level]])
    units = {"returns": torch.zeros(1), "mean": torch.zeros(1, 4), "spread": torch.ones(1, 4)}
    made = {"numbers": weights.flatten(), **units}
    rule = SearchedPolicy(cp.Search(recipe), made, job.data.schema, Origin.of(job))
    personal = cp.CTRLp(cp.Search(recipe), groups=None)
    return PersonalPolicy(personal, model, None, [rule], job.data.schema, Origin.of(job))


def exploring(policy: PersonalPolicy) -> PersonalPolicy:
    parts = policy.model, policy.groups, list(policy.policies), policy.schema, policy.origin
    return PersonalPolicy(replace(policy.recipe, posterior_sampling=True), *parts)  # pyright: ignore[reportArgumentType]


def first_actions(policy: PersonalPolicy) -> Tensor:
    """What is done for many subjects nobody knows, all in the same state."""
    return policy.rollout_actor()(torch.tensor([4.0, 0.0]).expand(1, 50, 2), torch.zeros(1, 50, 0))[0]


def test_unknown_subjects_are_treated_alike_unless_the_policy_explores(policy: PersonalPolicy) -> None:
    assert len(first_actions(policy).unique(dim=0)) == 1
    tried = first_actions(exploring(policy))
    assert len(tried.unique(dim=0)) == 2
    torch.testing.assert_close(first_actions(exploring(policy)), tried)


def test_treatments_are_tried_as_often_as_they_may_be_right(policy: PersonalPolicy) -> None:
    weights = policy.get_submodule("policies.0").get_parameter("numbers").view(5, 2)
    right = torch.distributions.Normal(0, 1).cdf(weights[4, 1] / weights[2:4, 1].norm())
    state = torch.tensor([4.0, 0.0]).expand(1, 5000, 2)
    tried = exploring(policy).rollout_actor()(state, state[..., :0])[0, :, 1].mean()
    assert float(tried) == pytest.approx(float(right), abs=0.03)
