"""Policies that know whom they treat: one for each group of subjects, or one that is told the subject's factor.

What is known of a subject comes from its record so far, by the model: `adapt(history)` says what, how sure, and which
policy follows; a policy at work learns about its subject from step to step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.artifacts import Saved
from counterpoint.data.jobs import Origin
from counterpoint.data.schema import Schema, agree
from counterpoint.data.transitions import Transitions
from counterpoint.errors import CounterpointError, require
from counterpoint.model import Model, SubjectFactors
from counterpoint.policies.base import Policy, saved_verdict
from counterpoint.scm.groups import Groups
from counterpoint.simulation.rollout import Actor

POPULATION = "population"


@dataclass(frozen=True)
class Adapted:
    """What a record says of its subject, and what follows from it."""

    factor: Float[Tensor, " t"]
    covariance: Float[Tensor, "t t"]
    chances: Float[Tensor, " g"]
    """How likely the subject is of each group; empty where there are none."""
    group: int | None
    """The group whose policy is used; none where the record does not say enough, and for a policy without groups."""
    rows: int
    """Rows of the record that tell something."""
    policy: Policy
    """What to do for this subject: `policy.act(state)`."""

    @property
    def sure(self) -> float:
        """The chance of the likeliest group."""
        return float(self.chances.max()) if len(self.chances) else 1.0


@final
class PersonalPolicy(Policy):
    """A model that finds subjects' factors, groups of them, and a policy for each group and for everybody."""

    def __init__(
        self,
        recipe: Any,
        model: Model,
        groups: Groups | None,
        policies: Sequence[Policy],
        schema: Schema,
        origin: Origin,
    ) -> None:
        """`policies` are one for each group and, last, one for everybody; without groups the one that sees factors."""
        super().__init__()
        self.recipe, self.model, self.groups, self.schema, self.origin = recipe, model, groups, schema, origin
        self.policies = nn.ModuleList(policies)

    def parts(self) -> dict[str, Any]:
        names = [f"group_{i}" for i in range(len(self.policies) - 1)]
        return {"model": self.model, **dict(zip([*names, POPULATION], self.policies, strict=True))}

    def weights(self) -> dict[str, Tensor]:
        if self.groups is None:
            return {}
        return {"centre": self.groups.centre, "share": self.groups.share}

    def extras(self) -> dict[str, Any]:
        return {**super().extras(), "groups": None if self.groups is None else {"hard": self.groups.hard}}

    @property
    def device(self) -> torch.device:
        return self.model.device

    def adapt(self, history: Transitions) -> Adapted:
        """What the record of one subject says of it; a longer record says as much as its rows taken up one by one."""
        agree(self.schema, history.schema, "policy", "history")
        seen = history.subject.unique()
        require(len(seen) <= 1, f"the history holds {len(seen)} subjects; give the rows of one")
        factors = self.model.subject_factors(history)
        place = int(seen[0]) if len(seen) else 0
        own = SubjectFactors(factors.mean[place : place + 1], factors.covariance[place : place + 1])
        rows = int((~history.imagined & history.has_next).sum())
        chances = self.groups.chances(own)[0] if self.groups is not None and rows else torch.zeros(0)
        group = int(chances.argmax()) if len(chances) and float(chances.max()) >= self.recipe.sure else None
        policy = self._of_group(own, group)
        return Adapted(own.mean[0], own.covariance[0], chances, group, rows, policy)

    def _of_group(self, own: SubjectFactors, group: int | None) -> Policy:
        chosen = self.policies[-1 if group is None else group]
        assert isinstance(chosen, Policy)
        return chosen if self.groups is not None else Told(self, chosen, own.mean)

    def actor(self) -> Actor:
        """For subjects whose factors are given; everybody's policy where none is."""
        return _dispatch([self])

    @classmethod
    def together(cls, policies: Sequence["PersonalPolicy"]) -> Actor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Policies that begin with a subject they know nothing of, and learn about it from step to step."""
        return Learning(policies)


class Told(Policy):
    """A policy that sees factors, told one subject's."""

    def __init__(self, whole: PersonalPolicy, policy: Policy, factor: Float[Tensor, "1 t"]) -> None:
        super().__init__()
        self.policy, self.factor, self.schema = policy, factor, whole.schema
        self.recipe, self.origin, self.verdict = whole.recipe, whole.origin, whole.verdict

    @property
    def device(self) -> torch.device:
        return self.policy.device

    def weights(self) -> dict[str, Tensor]:
        raise CounterpointError("a policy told one subject's factor is not kept; save the personal policy it came from")

    def actor(self) -> Actor:
        act, factor = self.policy.actor(), self.factor
        return lambda state, theta: act(state, factor.to(state).expand(*state.shape[:-1], -1))

    @classmethod
    def together(cls, policies: Sequence["Told"]) -> Actor:  # pyright: ignore[reportIncompatibleMethodOverride]
        acts = [policy.actor() for policy in policies]
        return lambda state, theta: torch.cat([act(state[k : k + 1], theta[k : k + 1]) for k, act in enumerate(acts)])


class Learning:
    """K personal policies at work: each step's outcome is evidence about the subject before the next decision."""

    def __init__(self, policies: Sequence[PersonalPolicy]) -> None:
        self.policies, self.act = policies, _dispatch(policies)
        self.trackers = [policy.model.mechanism.tracker() for policy in policies]
        self.before: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def __call__(self, state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        if self.before is not None:
            last, action = self.before
            for k, tracker in enumerate(self.trackers):
                tracker.see(last[k], action[k], state[k])
        found = [tracker.factors(state.shape[1]) for tracker in self.trackers]
        mean, covariance = (torch.stack(column).to(state) for column in zip(*found, strict=True))
        knows = all(tracker.knows for tracker in self.trackers)
        chosen = self.act(state, mean, covariance) if knows else self.act(state, mean, everybody=True)
        self.before = state.clone(), chosen
        return chosen


def _dispatch(policies: Sequence[PersonalPolicy]) -> Any:
    """Every policy's own members as one actor, and who of them decides: by group, or everybody's."""
    parts = [list(policy.policies) for policy in policies]
    most = max(len(own) for own in parts)
    padded = [own[:-1] + [own[-1]] * (most - len(own) + 1) for own in parts]
    kind = type(padded[0][0])
    inner = kind.together([each for own in padded for each in own])  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]

    @torch.no_grad()
    def act(state: Tensor, theta: Tensor, covariance: Tensor | None = None, everybody: bool = False) -> Tensor:
        k, n, _ = state.shape
        wide = state[:, None].expand(k, most, n, -1).flatten(0, 1)
        factors = theta[:, None].expand(k, most, n, -1).flatten(0, 1)
        said = inner(wide, factors).view(k, most, n, -1)
        if everybody:
            return said[:, -1]
        decides = torch.stack([_who(p, t, None if covariance is None else covariance[i], most)
                               for i, (p, t) in enumerate(zip(policies, theta, strict=True))])  # fmt: skip
        return said.gather(1, decides[:, None, :, None].expand(-1, -1, -1, said.shape[-1]))[:, 0]

    return act


def _who(policy: PersonalPolicy, theta: Float[Tensor, "n t"], covariance: Tensor | None, most: int) -> Tensor:
    """The place of the policy that decides for each subject; factors that are simply given are taken as sure."""
    everybody = torch.full((len(theta),), most - 1, device=theta.device)
    if policy.groups is None or not theta.shape[1]:
        return everybody
    if covariance is None:
        return torch.cdist(theta, policy.groups.centre.to(theta)).argmin(1)
    chances = policy.groups.chances(SubjectFactors(theta.cpu(), covariance.cpu())).to(theta)
    sure, likeliest = chances.max(1)
    return torch.where(sure >= policy.recipe.sure, likeliest, everybody)


def rebuilt(recipe: Any, saved: Saved) -> PersonalPolicy:
    """A personal policy back from its artifact."""
    own = dict(saved.parts)
    model, population = own.pop("model"), own.pop(POPULATION)
    said = saved.header["groups"]
    groups = None if said is None else Groups(saved.weights["centre"], saved.weights["share"], said["hard"])
    ordered = [own[f"group_{i}"] for i in range(len(own))]
    policy = PersonalPolicy(recipe, model, groups, [*ordered, population], saved.schema, saved.origin)
    policy.verdict = saved_verdict(saved)
    return policy
