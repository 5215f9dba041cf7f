"""Policies that know whom they treat: one for each group of subjects, or one that is told the subject's factor.

What is known of a subject comes from its record so far, by the model: `adapt(history)` says what, how sure, and which
policy follows; a policy at work learns about its subject from step to step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from counterpoint.core.artifacts import Saved
from counterpoint.core.errors import CounterpointError, require
from counterpoint.core.seeding import generator
from counterpoint.data.jobs import NO_THETA, Origin
from counterpoint.data.schema import Schema, agree
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Model, SubjectFactors
from counterpoint.models.groups import Groups
from counterpoint.policies.base import Policy, saved_verdict
from counterpoint.simulation.rollout import Actor

POPULATION = "population"


@dataclass(frozen=True)
class Adapted:
    """What a record says of its subject, and what follows from it."""

    factors: SubjectFactors
    """What is known of the one subject."""
    chances: Float[Tensor, " g"]
    """How likely the subject is of each group: the groups' shares without a record; empty where there are none."""
    group: int | None
    """The group whose policy is used; none where the record does not say enough, and for a policy without groups."""
    rows: int
    """Rows of the record that tell something."""
    policy: Policy
    """What to do for this subject: `policy.act(state)`."""

    @property
    def factor(self) -> Float[Tensor, " t"]:
        return self.factors.mean[0]

    @property
    def covariance(self) -> Float[Tensor, "t t"]:
        return self.factors.covariance[0]

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
        rows = int(self.model.informative_rows(history).sum())
        factors = self.model.subject_factors(history)[seen] if rows else SubjectFactors.prior(1, self.model.theta_width)
        decides = self._of_known(factors)[0] if rows else self.everybody
        policy = self.policies[int(decides)]
        assert isinstance(policy, Policy)
        if self.groups is None:
            return Adapted(factors, torch.zeros(0), None, rows, Told(self, policy, factors.mean))
        chances = self.groups.chances(factors)[0] if rows else self.groups.share
        return Adapted(factors, chances, None if decides == self.everybody else int(decides), rows, policy)

    @property
    def everybody(self) -> int:
        """The place of the policy for those of whom not enough is known."""
        return len(self.policies) - 1

    def _of_known(self, factors: SubjectFactors) -> Int[Tensor, " n"]:
        """The place of the policy that decides for each subject, by what its record says."""
        if self.groups is None:
            return _all(self.everybody, factors.mean)
        sure, likeliest = self.groups.chances(factors).max(1)
        return torch.where(sure >= self.recipe.sure, likeliest, self.everybody)

    def _of_given(self, theta: Float[Tensor, "n t"]) -> Int[Tensor, " n"]:
        """The same for factors that are simply given, and taken as sure; everybody's policy where there are none."""
        if self.groups is None or not theta.shape[1]:
            return _all(self.everybody, theta)
        return torch.cdist(theta, self.groups.centre.to(theta)).argmin(1)

    def deciding(self, factors: SubjectFactors, known: Bool[Tensor, " n"]) -> Int[Tensor, " n"]:
        """The place of the policy that decides for subjects of whom so much, or where not `known` nothing, is known."""
        return torch.where(known, self._of_known(factors), self.everybody)

    def act_knowing(
        self, state: State, factors: SubjectFactors, known: Bool[Tensor, " n"], random: torch.Generator
    ) -> Action:
        """What it does at one step of each of n subjects of whom so much is known; nothing where `known` is false.

        The generator is for a policy that explores, to which subjects are draws from what is known of them.
        """
        explores = self.recipe.explores
        told = factors.draw(random) if explores else factors.mean
        decides = self._of_given(told) if explores else self.deciding(factors, known)
        return _dispatch([self])(state[None].to(self.device), [told.to(self.device)], decides[None].to(self.device))[0]

    def likeliest(self, rows: Transitions) -> Int[Tensor, " subjects"]:
        """The group that each subject, in the order of `rows.subject_names`, is likeliest of by all its rows."""
        require(self.groups is not None, "the policy sees factors and knows no groups; ask one that was given groups")
        assert self.groups is not None
        return self.groups.chances(self.model.subject_factors(rows)).argmax(1)

    def sizes(self, rows: Transitions) -> list[int]:
        """How many of the subjects in a table are likeliest of each group."""
        if self.groups is None:
            return []
        there = torch.bincount(rows.subject, minlength=len(rows.subject_names)) > 0
        return torch.bincount(self.likeliest(rows)[there.cpu()], minlength=self.groups.count).tolist()

    def actor(self) -> Actor:
        """For subjects whose factors are given; where none is, everybody's policy or one told the middle of all."""
        act, width = _dispatch([self]), self.model.theta_width

        def acting(state: Float[Tensor, "1 n s"], theta: Float[Tensor, "1 n t"]) -> Float[Tensor, "1 n a"]:
            given = theta.shape[-1]
            require(
                given in (0, width), f"the policy knows factors of {width} columns and was given {given}; give as many"
            )
            factors = theta if given else theta.new_zeros(*theta.shape[:-1], width)
            return act(state, list(factors), self._of_given(theta[0])[None])

        return acting

    @classmethod
    def together(cls, policies: Sequence["PersonalPolicy"]) -> Actor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Policies that begin with a subject they know nothing of, and learn about it from step to step."""
        return Learning(policies)


class Told(Policy):
    """A policy that sees factors, told one subject's."""

    def __init__(self, whole: Policy, policy: Policy, factor: Float[Tensor, "1 t"]) -> None:
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
        self.trackers = [policy.model.tracker() for policy in policies]
        self.device = self.trackers[0].device
        self.randoms = [generator(policy.origin.seed, "exploring") for policy in policies]
        self.before: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def __call__(self, state: Float[Tensor, "k n s"], theta: Float[Tensor, "k n t"]) -> Float[Tensor, "k n a"]:
        if self.before is not None:
            last, action, after = (table.to(self.device) for table in (*self.before, state))
            for k, tracker in enumerate(self.trackers):
                tracker.update(last[k], action[k], after[k])
        found = [tracker.factors(state.shape[1]) for tracker in self.trackers]
        chosen = self._explored(state, found) if self.policies[0].recipe.explores else self._sure(state, found)
        self.before = state.clone(), chosen
        return chosen

    def _sure(self, state: Float[Tensor, "k n s"], found: Sequence[SubjectFactors]) -> Float[Tensor, "k n a"]:
        """By the means of what is known; as long as nothing is known of anybody, everybody's policy decides."""
        if all(tracker.informed for tracker in self.trackers):
            decides = [policy._of_known(own) for policy, own in zip(self.policies, found, strict=True)]
        else:
            decides = [_all(policy.everybody, found[0].mean) for policy in self.policies]
        return self.act(state, [factors.mean for factors in found], torch.stack(decides))

    def _explored(self, state: Float[Tensor, "k n s"], found: Sequence[SubjectFactors]) -> Float[Tensor, "k n a"]:
        """As if subjects were draws from what is known of them."""
        laws = (SubjectFactors(own.mean.cpu(), own.covariance.cpu()) for own in found)
        drawn = [law.draw(random).to(state) for law, random in zip(laws, self.randoms, strict=True)]
        decides = [policy._of_given(own) for policy, own in zip(self.policies, drawn, strict=True)]
        return self.act(state, drawn, torch.stack(decides))


def _all(place: int, subjects: Float[Tensor, "n t"]) -> Int[Tensor, " n"]:
    """One place for all of some subjects."""
    return torch.full((len(subjects),), place, device=subjects.device)


Dispatch = Callable[[Tensor, Sequence[Tensor], Tensor], Tensor]
"""States of K policies' subjects, each policy's factors of them, and the places of who decides, to actions."""


def _dispatch(policies: Sequence[PersonalPolicy]) -> Dispatch:
    """Every policy's own members as one actor, of whom those who decide are heard."""
    parts = [list(policy.policies) for policy in policies]
    most, sees = max(map(len, parts)), policies[0].groups is None
    require(
        not sees or len({policy.model.theta_width for policy in policies}) == 1,
        "policies that see other numbers of factors cannot act together; ask each alone",
    )
    padded = [each for own in parts for each in (*own, *own[-1:] * (most - len(own)))]
    inner = type(padded[0]).together(padded)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]

    @torch.no_grad()
    def act(
        state: Float[Tensor, "k n s"], factors: Sequence[Float[Tensor, "n _"]], decides: Int[Tensor, "k n"]
    ) -> Float[Tensor, "k n a"]:
        wide = state.repeat_interleave(most, 0)
        theta = torch.stack(list(factors)).repeat_interleave(most, 0).to(state) if sees else wide[..., :0]
        said, heard = inner(wide, theta).unflatten(0, (len(state), most)), decides.to(state.device)
        return said.gather(1, heard[:, None, :, None].expand(-1, -1, -1, said.shape[-1]))[:, 0]

    return act


@dataclass(frozen=True)
class Met:
    """What a policy makes of a subject's record, whether it is personal or not."""

    policy: Policy
    """What to do for this subject: `policy.act(state)`."""
    decides: Policy
    """The same, before it was told the factor."""
    factors: SubjectFactors
    """What is known of the subject's factor."""
    adapted: Adapted | None
    """What a personal policy says of the subject; none for one that is not."""

    @property
    def told(self) -> Theta:
        """The factor, where the policy is to be told one."""
        return self.factors.mean if self.decides.factor_width else NO_THETA


def meet(policy: Policy, history: Transitions, model: Model | None = None) -> Met:
    """Adapt a personal policy to a record; tell another the factor that `model` finds, where it wants one."""
    if isinstance(policy, PersonalPolicy):
        adapted = policy.adapt(history)
        decides = adapted.policy.policy if isinstance(adapted.policy, Told) else adapted.policy
        return Met(adapted.policy, decides, adapted.factors, adapted)
    width = policy.factor_width
    own = SubjectFactors.prior(1, width)
    if model is not None and model.theta_width and len(history):
        own = model.subject_factors(history)[history.subject[:1]]
    return Met(Told(policy, policy, own.mean) if width else policy, policy, own, None)


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
