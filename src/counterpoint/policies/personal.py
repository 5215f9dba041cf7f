"""Personal policies: one policy for each group of subjects, or one that is conditioned on the subject's factor.

The factor of a subject is inferred by the model from the subject's rows so far. `adapt(history)` gives its posterior,
the group and the policy that follows; in rollouts the posterior is updated after every step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, final

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
from counterpoint.nets.placement import common_device
from counterpoint.policies.base import Policy, joint_actor, saved_verdict
from counterpoint.simulation.rollout import Actor

POPULATION = "population"


class PersonalRecipe(Protocol):
    """The settings of a learner that its personal policies act by."""

    @property
    def min_group_probability(self) -> float:
        """Posterior probability of a group from which the group's policy is used."""
        ...

    @property
    def posterior_sampling(self) -> bool:
        """Whether the policy acts for a draw of the factor's posterior instead of its mean."""
        ...


@dataclass(frozen=True)
class Adaptation:
    """A personal policy adapted to one subject's record."""

    factors: SubjectFactors
    """Posterior of the subject's factor."""
    chances: Float[Tensor, " g"]
    """Posterior probability of each group: the groups' shares without a record; empty without groups."""
    group: int | None
    """The group whose policy is used; None where no group is probable enough, and without groups."""
    rows: int
    """Rows of the record that are informative about the factor."""
    policy: Policy
    """The policy for this subject: `policy.act(state)`."""

    @property
    def factor(self) -> Float[Tensor, " t"]:
        """Posterior mean of the factor."""
        return self.factors.mean[0]

    @property
    def covariance(self) -> Float[Tensor, "t t"]:
        """Posterior covariance of the factor."""
        return self.factors.covariance[0]

    @property
    def group_probability(self) -> float:
        """The probability of the likeliest group; 1 without groups."""
        return float(self.chances.max()) if len(self.chances) else 1.0


@final
class PersonalPolicy(Policy):
    """A model that infers subject factors, groups of factors, and a policy for each group and for everybody."""

    def __init__(
        self,
        recipe: PersonalRecipe,
        model: Model,
        groups: Groups | None,
        policies: Sequence[Policy],
        schema: Schema,
        origin: Origin,
    ) -> None:
        """`policies` holds one policy for each group, then the population's; without groups only the latter."""
        super().__init__()
        common_device([model, *policies], "the model and its policies")
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

    def adapt(self, history: Transitions) -> Adaptation:
        """Adapt to the record of one subject; equal to updating the posterior row by row."""
        agree(self.schema, history.schema, "policy", "history")
        subjects = history.subject.unique()
        require(len(subjects) <= 1, f"the history holds {len(subjects)} subjects; give the rows of one")
        rows = int(self.model.informative_rows(history).sum())
        if not rows:
            return self._adaptation(SubjectFactors.prior(1, self.model.theta_width), self.population_index, 0)
        factors = self.model.subject_factors(history)[subjects]
        return self._adaptation(factors, int(self._index_of_posterior(factors)[0]), rows)

    def _adaptation(self, factors: SubjectFactors, index: int, rows: int) -> Adaptation:
        policy = self.policies[index]
        assert isinstance(policy, Policy)
        if self.groups is None:
            return Adaptation(factors, torch.zeros(0), None, rows, FixedFactorPolicy(self, policy, factors.mean))
        chances = self.groups.chances(factors)[0] if rows else self.groups.share
        return Adaptation(factors, chances, None if index == self.population_index else index, rows, policy)

    @property
    def population_index(self) -> int:
        """Index of the policy for subjects whose group is not known."""
        return len(self.policies) - 1

    def policy_index(self, factors: SubjectFactors, informed: Bool[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Index of the policy that acts for each subject; the population's where the record is not informative."""
        return torch.where(informed, self._index_of_posterior(factors), self.population_index)

    def _index_of_posterior(self, factors: SubjectFactors) -> Int[Tensor, " n"]:
        """Index of the policy that acts for each subject, by the posterior of its factor."""
        if self.groups is None:
            return _same_index(self.population_index, factors.mean)
        probability, likeliest = self.groups.chances(factors).max(1)
        return torch.where(probability >= self.recipe.min_group_probability, likeliest, self.population_index)

    def _index_of_factor(self, theta: Float[Tensor, "n t"]) -> Int[Tensor, " n"]:
        """Index of the policy that acts for factors that are known exactly; the population's where there are none."""
        if self.groups is None or not theta.shape[1]:
            return _same_index(self.population_index, theta)
        return torch.cdist(theta, self.groups.centre.to(theta)).argmin(1)

    def act_with_posterior(
        self, state: State, factors: SubjectFactors, informed: Bool[Tensor, " n"], random: torch.Generator
    ) -> Action:
        """The action at one step of each of n subjects with these posteriors.

        `informed` is false for subjects without an informative row. `random` is for posterior sampling.
        """
        sampling = self.recipe.posterior_sampling
        theta = factors.draw(random) if sampling else factors.mean
        index = self._index_of_factor(theta) if sampling else self.policy_index(factors, informed)
        device = self.device
        return _grouped_actor([self])(state[None].to(device), [theta.to(device)], index[None].to(device))[0]

    def likeliest(self, rows: Transitions) -> Int[Tensor, " subjects"]:
        """The likeliest group of each subject by all its rows, in the order of `rows.subject_names`."""
        require(self.groups is not None, "the policy sees factors and knows no groups; ask one that was given groups")
        assert self.groups is not None
        return self.groups.chances(self.model.subject_factors(rows)).argmax(1)

    def sizes(self, rows: Transitions) -> list[int]:
        """The number of subjects of a table in each group; empty without groups."""
        if self.groups is None:
            return []
        present = torch.bincount(rows.subject, minlength=len(rows.subject_names)) > 0
        return torch.bincount(self.likeliest(rows)[present.cpu()], minlength=self.groups.count).tolist()

    def actor(self) -> Actor:
        """A stateless actor for given factors; without factors the population's policy acts, for the mean factor."""
        act, width = _grouped_actor([self]), self.model.theta_width

        def acting(state: Float[Tensor, "1 n s"], theta: Float[Tensor, "1 n t"]) -> Float[Tensor, "1 n a"]:
            columns = theta.shape[-1]
            require(
                columns in (0, width),
                f"the policy knows factors of {width} columns and was given {columns}; give as many",
            )
            factors = theta if columns else theta.new_zeros(*theta.shape[:-1], width)
            return act(state, list(factors), self._index_of_factor(theta[0])[None])

        return acting

    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        """Policies that start without a record of their subjects and learn about them from step to step."""
        return AdaptiveActor([self, *others])


class FixedFactorPolicy(Policy):
    """A policy that needs a subject factor, with the factor of one subject filled in."""

    def __init__(self, whole: Policy, policy: Policy, factor: Float[Tensor, "1 t"]) -> None:
        """`whole` is the policy that was trained, `policy` the part of it that acts."""
        super().__init__()
        self.policy, self.factor, self.schema = policy, factor, whole.schema
        self.recipe, self.origin, self.verdict = whole.recipe, whole.origin, whole.verdict

    def weights(self) -> dict[str, Tensor]:
        raise CounterpointError("a policy for one subject cannot be saved; save the personal policy instead")

    def actor(self) -> Actor:
        act, factor = self.policy.actor(), self.factor
        return lambda state, theta: act(state, factor.to(state).expand(*state.shape[:-1], -1))

    def rollout_actor(self, others: Sequence[Self] = ()) -> Actor:
        actors = [policy.actor() for policy in (self, *others)]
        return lambda state, theta: torch.cat([act(state[k : k + 1], theta[k : k + 1]) for k, act in enumerate(actors)])


class AdaptiveActor:
    """K personal policies in rollouts: every step updates the posterior of the subject before the next action."""

    def __init__(self, policies: Sequence[PersonalPolicy]) -> None:
        self.policies, self.act = policies, _grouped_actor(policies)
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
        posteriors = [tracker.factors(state.shape[1]) for tracker in self.trackers]
        sampling = self.policies[0].recipe.posterior_sampling
        action = self._sampled_action(state, posteriors) if sampling else self._mean_action(state, posteriors)
        self.before = state.clone(), action
        return action

    def _mean_action(
        self, state: Float[Tensor, "k n s"], posteriors: Sequence[SubjectFactors]
    ) -> Float[Tensor, "k n a"]:
        """Act for the posterior means; the population's policy acts until every tracker has seen a step."""
        if all(tracker.informed for tracker in self.trackers):
            pairs = zip(self.policies, posteriors, strict=True)
            index = [policy._index_of_posterior(factors) for policy, factors in pairs]
        else:
            index = [_same_index(policy.population_index, posteriors[0].mean) for policy in self.policies]
        return self.act(state, [factors.mean for factors in posteriors], torch.stack(index))

    def _sampled_action(
        self, state: Float[Tensor, "k n s"], posteriors: Sequence[SubjectFactors]
    ) -> Float[Tensor, "k n a"]:
        """Act for draws from the posteriors (posterior sampling)."""
        laws = (SubjectFactors(factors.mean.cpu(), factors.covariance.cpu()) for factors in posteriors)
        theta = [law.draw(random).to(state) for law, random in zip(laws, self.randoms, strict=True)]
        index = [policy._index_of_factor(factor) for policy, factor in zip(self.policies, theta, strict=True)]
        return self.act(state, theta, torch.stack(index))


def _same_index(index: int, subjects: Float[Tensor, "n t"]) -> Int[Tensor, " n"]:
    return torch.full((len(subjects),), index, device=subjects.device)


GroupedActor = Callable[[Tensor, Sequence[Tensor], Tensor], Tensor]
"""From the states of K policies' subjects, their factors and the index of the acting policy to actions."""


def _grouped_actor(policies: Sequence[PersonalPolicy]) -> GroupedActor:
    """All inner policies of K personal policies in one batch, of which the action of the indexed one is taken."""
    inner = [list(policy.policies) for policy in policies]
    most, sees_factor = max(map(len, inner)), policies[0].groups is None
    require(
        not sees_factor or len({policy.model.theta_width for policy in policies}) == 1,
        "policies that see other numbers of factors cannot act together; ask each alone",
    )
    # Fewer groups than the largest policy has are padded with copies of the population's policy.
    padded = [policy for parts in inner for policy in (*parts, *parts[-1:] * (most - len(parts)))]
    actor = joint_actor(padded)  # pyright: ignore[reportArgumentType]

    @torch.no_grad()
    def act(
        state: Float[Tensor, "k n s"], factors: Sequence[Float[Tensor, "n _"]], index: Int[Tensor, "k n"]
    ) -> Float[Tensor, "k n a"]:
        repeated = state.repeat_interleave(most, 0)
        theta = torch.stack(list(factors)).repeat_interleave(most, 0).to(state) if sees_factor else repeated[..., :0]
        actions = actor(repeated, theta).unflatten(0, (len(state), most))
        place = index.to(state.device)[:, None, :, None].expand(-1, -1, -1, actions.shape[-1])
        return actions.gather(1, place)[:, 0]

    return act


@dataclass(frozen=True)
class SubjectPolicy:
    """A policy, personal or not, applied to one subject's record."""

    policy: Policy
    """The policy for this subject: `policy.act(state)`."""
    inner: Policy
    """The same policy before the subject's factor was filled in."""
    factors: SubjectFactors
    """Posterior of the subject's factor."""
    adaptation: Adaptation | None
    """The adaptation of a personal policy; None for any other."""

    @property
    def theta(self) -> Theta:
        """The factor that `inner` is conditioned on; of width zero where it needs none."""
        return self.factors.mean if self.inner.factor_width else NO_THETA


def policy_for_subject(policy: Policy, history: Transitions, model: Model | None = None) -> SubjectPolicy:
    """Adapt a personal policy to a record; fill in the factor inferred by `model` where another policy needs one."""
    if isinstance(policy, PersonalPolicy):
        adaptation = policy.adapt(history)
        adapted = adaptation.policy
        inner = adapted.policy if isinstance(adapted, FixedFactorPolicy) else adapted
        return SubjectPolicy(adapted, inner, adaptation.factors, adaptation)
    width = policy.factor_width
    factors = SubjectFactors.prior(1, width)
    if model is not None and model.theta_width and len(history):
        factors = model.subject_factors(history)[history.subject[:1]]
    fixed = FixedFactorPolicy(policy, policy, factors.mean) if width else policy
    return SubjectPolicy(fixed, policy, factors, None)


def saved_personal_policy(recipe: PersonalRecipe, saved: Saved) -> PersonalPolicy:
    """A personal policy back from its artifact."""
    parts = dict(saved.parts)
    model, population = parts.pop("model"), parts.pop(POPULATION)
    settings = saved.header["groups"]
    groups = None
    if settings is not None:
        groups = Groups(saved.weights["centre"], saved.weights["share"], settings["hard"])
    policies = [parts[f"group_{i}"] for i in range(len(parts))]
    policy = PersonalPolicy(recipe, model, groups, [*policies, population], saved.schema, saved.origin)
    policy.verdict = saved_verdict(saved)
    return policy
