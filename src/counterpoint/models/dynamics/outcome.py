"""Reward and end learned from the log, for users who have rows but no function of them.

    P(outcome k, no next state | s, a)      the hazard before: a death or discharge that leaves no next state
    P(outcome k | s, a, s')                 the hazard after: an end that is seen in the next state
    r(s, a, s', k) by least squares,    r_k(s, a) by ridge regression where there is no next state

A reward that is declared as an expression of columns (`Knowledge.reward`) is computed, not learned.

Each hazard is a softmax over "goes on" and the outcomes, fitted by maximum likelihood on all real rows that can tell,
its intercepts set so that it foresees every outcome as often as the log has it; an outcome that the log never has is
never foreseen. It is linear in its inputs (logistic regression: deaths are few) unless a network foresees the ends
of held-out subjects clearly better. An imagined step ends before its next state, or in it, or goes on:

    p = [h_k,  (1 − Σh)·g_k,  (1 − Σh)(1 − Σg)],    h = hazard before,  g = hazard after
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from counterpoint.core.artifacts import Artifact, Saved, device_of
from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.core.settings import Amount, Finite, Share, Widths, check_settings, checked
from counterpoint.data.jobs import Job, Origin, check_fittable, context, identity, spread_levels
from counterpoint.data.knowledge import ROUNDED, check_range
from counterpoint.data.returns import check_rewards
from counterpoint.data.reward_expression import parse_reward
from counterpoint.data.schema import Schema
from counterpoint.data.shapes import Action, Reward, State
from counterpoint.data.transitions import GOES_ON, Transitions
from counterpoint.models.base import CHUNK
from counterpoint.models.dynamics.base import LawNetwork
from counterpoint.models.dynamics.hazards import (
    AFTER,
    BEFORE,
    REWARD,
    OutcomeNetworks,
    logistic,
    network,
    pick,
    set_intercepts,
)
from counterpoint.nets.likelihood import Likelihood, fit_by_likelihood
from counterpoint.nets.stacked import unstack, with_weights
from counterpoint.nets.training import Monitor
from counterpoint.tasks.base import StepResult, Task

CLEARLY = 0.95
"""A network is preferred to logistic regression where its loss on held-out subjects is below this share of the other's:
a network learned from 150 deaths lets them depend on doses that nothing happened after."""


@final
class LearnedTask(nn.Module, Task, Artifact):
    """A task whose reward and end were learned; it stands wherever a task does."""

    kind: ClassVar[str] = "task"
    without_bound: ClassVar[tuple[str, ...]] = (f"{BEFORE}_intercept", f"{AFTER}_intercept")

    def __init__(
        self,
        recipe: "Outcome",
        heads: OutcomeNetworks,
        schema: Schema,
        origin: Origin,
        outcome_names: tuple[str, ...],
        horizon: int,
    ) -> None:
        super().__init__()
        self.recipe, self.heads, self.schema = recipe, heads.eval(), schema
        self.discount, self.origin, self.outcome_names, self.horizon = recipe.discount, origin, outcome_names, horizon
        self.ends_in_next_state = bool(heads.after_intercept[:, 1:].isfinite().any())
        self.expression = parse_reward(schema.knowledge.reward) if schema.knowledge.reward else None

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Smallest and largest reward of a step, where they were declared."""
        return self.recipe.reward_range or self.schema.knowledge.reward_range

    @torch.no_grad()
    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """The expected reward of a step after which the episode goes on."""
        if self.expression is not None:
            return self._computed(state, action, next_state, GOES_ON)
        state, next_state = (spread_levels(values, self.schema.categories) for values in (state, next_state))
        return self._reward(state, action, next_state, GOES_ON)

    def terminated(self, next_state: State) -> Bool[Tensor, "*n"]:
        """Only what has no next state is over for certain; of the rest `expected` tells the probability."""
        return next_state.isnan().any(-1)

    def expected(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        probability, reward = self.branches(state, action, next_state)
        return (probability * reward).sum(-1), probability[..., -1]

    def draw_result(self, state: Tensor, action: Tensor, next_state: Tensor, uniform: Tensor) -> StepResult:
        probability, reward = self.branches(state, action, next_state)
        branch, outcomes = pick(probability, uniform.to(probability)), len(self.outcome_names)
        outcome = torch.where(branch < 2 * outcomes, branch % outcomes, GOES_ON)
        cut_short = (branch < outcomes)[..., None]
        taken = reward.gather(-1, branch[..., None])[..., 0]
        return StepResult(taken, outcome, next_state.masked_fill(cut_short, torch.nan))

    @torch.no_grad()
    def branches(
        self, state: State, action: Action, next_state: State
    ) -> tuple[Float[Tensor, "*n b"], Float[Tensor, "*n b"]]:
        """Probability and reward of every way a step can turn out: outcomes before s', outcomes in s', going on."""
        plain, plain_next = state, next_state
        state, next_state = (spread_levels(values, self.schema.categories) for values in (state, next_state))
        inputs, outcomes = context(state, action), len(self.outcome_names)
        survives, *before = self._hazard(BEFORE, inputs).unbind(-1)
        goes_on, *after = self._hazard(AFTER, torch.cat([inputs, next_state], -1)).unbind(-1)
        probability = [*before, *(survives * share for share in after), survives * goes_on]
        if self.expression is not None:
            ways = (*range(outcomes), *range(outcomes), GOES_ON)
            rewards = [self._computed(plain, action, plain_next, k) for k in ways]
            return torch.stack(probability, -1), torch.stack(rewards, -1)
        rewards = list((inputs @ self.heads.end_weight[0].mT + self.heads.end_bias[0]).unbind(-1))
        for k in (*range(outcomes), GOES_ON):
            possible = k == GOES_ON or self.ends_in_next_state
            rewards.append(self._reward(state, action, next_state, k) if possible else torch.zeros_like(survives))
        return torch.stack(probability, -1), self._possible(torch.stack(rewards, -1))

    def weights(self) -> dict[str, Tensor]:
        return self.heads.state_dict()

    def extras(self) -> dict[str, Any]:
        linear = {name: self.heads.linear(name) for name in (BEFORE, AFTER)}
        return {"outcome_names": list(self.outcome_names), "horizon": self.horizon, "linear": linear}

    def _hazard(self, name: str, inputs: Tensor) -> Tensor:
        return _apply(lambda rows: self.heads.logits(name, rows), inputs).softmax(-1)

    def _reward(self, state: Tensor, action: Tensor, next_state: Tensor, outcome: int) -> Tensor:
        """r(s, a, s', k) in the units of the data; states come level by level."""
        which = self._which(state, outcome)
        reward = _apply(self.heads.reward.point, torch.cat([state, action, next_state, which], -1))[..., 0]
        return self._possible(reward)

    def _computed(self, state: Tensor, action: Tensor, next_state: Tensor, outcome: int) -> Tensor:
        """The declared reward of a step that ends with an outcome, or goes on."""
        assert self.expression is not None
        names = self.schema.state_names, self.schema.action_names, self.outcome_names
        return self._possible(
            self.expression.evaluate(names, state, action, next_state, self._which(state, outcome)).to(state)
        )

    def _which(self, state: Tensor, outcome: int) -> Float[Tensor, "*n k"]:
        """1 for the outcome, 0 for the others."""
        which = state.new_zeros(*state.shape[:-1], len(self.outcome_names))
        if outcome != GOES_ON:
            which[..., outcome] = 1.0
        return which

    def _possible(self, reward: Tensor) -> Tensor:
        """Rewards, those outside the declared range moved to its nearer end."""
        return reward if self.reward_range is None else reward.clamp(*self.reward_range)


def _apply(function: Any, inputs: Float[Tensor, "*n c"]) -> Tensor:
    """A function of one stack of rows, for rows of any leading shape."""
    answers = [function(piece[None])[0] for piece in inputs.flatten(0, -2).split(CHUNK)]
    return torch.cat(answers).view(*inputs.shape[:-1], -1)


@dataclass(frozen=True)
class Outcome:
    """Learns reward and end from the real rows of a log."""

    discount: Share = 0.99
    """Discount of the task; nothing in a log says what it should be."""
    hidden: Widths = (64, 64)
    """Widths of the reward's network, and of a hazard's where logistic regression does not do."""
    ridge: Amount = 1.0
    """Penalty of the linear reward of rows without a next state, as a number of rows a column."""
    likelihood: Likelihood = Likelihood()
    """How the networks are fitted."""
    reward_range: tuple[Finite, Finite] | None = None
    """Smallest and largest reward of a step, to which learned rewards are held; None for what the table's schema
    declares (`Knowledge.reward_range`), if anything."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.reward_range is not None:
            check_range(self.reward_range)

    @checked
    def fit(self, data: Transitions, seed: int = 0, monitor: Monitor = Monitor(), device: str = "cpu") -> LearnedTask:
        """Fit on one table."""
        return self.fit_many([Job(data, seed)], monitor, device)[0]

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[LearnedTask]:
        """Fit every job, all in one loop a network."""
        fitting = Fitting(self, jobs, monitor, device)
        rewards = fitting.rewards()
        hazards = {name: fitting.hazards(name) for name in (BEFORE, AFTER)}
        tasks = []
        for k, (job, table) in enumerate(zip(jobs, fitting.tables, strict=True)):
            heads = OutcomeNetworks(rewards[k], {name: parts[k] for name, parts in hazards.items()}).to(
                device_of(device)
            )
            set_intercepts(heads, table)
            self._fit_ends(heads, job.data)
            longest = int(job.data.step.max()) + 1
            tasks.append(LearnedTask(self, heads, job.data.schema, Origin.of(job), job.data.outcome_names, longest))
        return tasks

    def rebuild(self, saved: Saved) -> LearnedTask:
        """The fitted task back from its artifact."""
        names, linear = tuple(saved.header["outcome_names"]), saved.header["linear"]
        shape = saved.schema.spread_width, saved.schema.actions.width, len(names)
        hazards = {name: network(name, 1, *shape, () if linear[name] else self.hidden) for name in (BEFORE, AFTER)}
        heads = OutcomeNetworks(network(REWARD, 1, *shape, self.hidden), hazards)
        heads = with_weights(heads, saved.weights)
        return LearnedTask(self, heads, saved.schema, saved.origin, names, saved.header["horizon"])

    def _fit_ends(self, heads: OutcomeNetworks, data: Transitions) -> None:
        """Ridge regression of the reward on the standardised (s, a) by outcome; few rows shrink to their mean."""
        from sklearn.linear_model import Ridge
        from sklearn.preprocessing import StandardScaler

        for k in range(len(data.outcome_names)):
            rows = data[~data.imagined & ~data.has_next & (data.outcome == k)]
            if len(rows):
                scaler = StandardScaler()
                standard = scaler.fit_transform(_inputs(rows).double().cpu().numpy())
                line = Ridge(alpha=self.ridge).fit(standard, rows.reward.double().cpu().numpy())
                weight = torch.from_numpy(line.coef_ / scaler.scale_)
                bias = float(line.intercept_) - float(weight @ torch.from_numpy(scaler.mean_))
                heads.end_weight[0, k] = weight.to(heads.end_weight)
                heads.end_bias[0, k] = bias


class Fitting:
    """The networks of some jobs, fitted as stacks and handed out one a job."""

    def __init__(self, how: Outcome, jobs: Sequence[Job], monitor: Monitor, device: str) -> None:
        self.how, self.monitor, self.device = how, monitor, device_of(device)
        self.tables, self.seeds = (
            [_tables(job.data, how.reward_range) for job in jobs],
            [derive(job.seed, "outcome") for job in jobs],
        )
        first = jobs[0].data
        self.declared = bool(first.schema.knowledge.reward)
        for job in jobs:
            check_computed_reward(job.data)
        self.shape = first.schema.spread_width, first.action.shape[1], len(first.outcome_names)
        self.identity = identity(how, jobs)

    def rewards(self) -> list[LawNetwork]:
        """The reward's network of every job; untrained where the reward is declared as an expression."""
        if not self.declared:
            return self.networks(REWARD)[0]
        return [self._empty(REWARD, 1, self.how.hidden) for _ in self.tables]

    def networks(self, name: str) -> tuple[list[LawNetwork], list[float]]:
        """One function of every job, and its loss on held-out subjects."""
        stack = self._empty(name, len(self.tables), self.how.hidden).to(self.device)
        tables, stage = [table[name] for table in self.tables], self.monitor.stage(name)
        fitted = fit_by_likelihood(stack, tables, self.seeds, self.how.likelihood, self.identity, stage)
        parts = unstack(stack.state_dict(), len(tables))
        return [with_weights(self._empty(name, 1, self.how.hidden), p) for p in parts], fitted.best_score.tolist()

    def hazards(self, name: str) -> list[LawNetwork]:
        """Of every job logistic regression, or a network where that is clearly better; untrained where nobody ends."""
        tables, share = [table[name] for table in self.tables], self.how.likelihood.held_out
        plain = [logistic(t, s, share, self._empty(name, 1, ())) for t, s in zip(tables, self.seeds, strict=True)]
        if not self.how.hidden or not any(bool(table["y"].any()) for table in tables):
            return [network for network, _ in plain]
        deep = zip(*self.networks(name), strict=True)
        return [b if deep_loss < CLEARLY * loss else a for (a, loss), (b, deep_loss) in zip(plain, deep, strict=True)]

    def _empty(self, name: str, members: int, hidden: Sequence[int]) -> LawNetwork:
        return network(name, members, *self.shape, hidden)


def _tables(data: Transitions, declared: tuple[float, float] | None) -> dict[str, dict[str, Tensor]]:
    check_fittable(data.real)
    _check_reward(data, declared)
    real, outcomes = data.real, len(data.outcome_names)
    rows, code = real.with_next(), torch.where(real.has_next, GOES_ON, real.outcome)
    ends = torch.nn.functional.one_hot(rows.outcome + 1, outcomes + 1)[:, 1:].to(rows.state)
    inputs = context(_inputs(rows), spread_levels(rows.next_state, rows.schema.categories))
    return {
        REWARD: {"context": torch.cat([inputs, ends], -1), "y": rows.reward[:, None], "subject": rows.subject},
        BEFORE: {"context": _inputs(real), "y": _classes(code), "subject": real.subject},
        AFTER: {"context": inputs, "y": _classes(rows.outcome), "subject": rows.subject},
    }


def _inputs(rows: Transitions) -> Float[Tensor, "n c"]:
    """State and action, categories level by level."""
    return context(spread_levels(rows.state, rows.schema.categories), rows.action)


def _classes(outcome: Tensor) -> Float[Tensor, "n 1"]:
    """0 for going on, then the outcomes."""
    return (outcome + 1).float()[:, None]


def check_computed_reward(data: Transitions) -> None:
    """Refuse rows whose rewards are not what the declared expression says."""
    schema, real = data.schema, data.real
    if not schema.knowledge.reward:
        return
    expression = parse_reward(schema.knowledge.reward)
    names = schema.state_names, schema.action_names, data.outcome_names
    expression.check_names(*names)
    which = torch.nn.functional.one_hot(real.outcome + 1, len(data.outcome_names) + 1)[:, 1:].to(real.state)
    reward = expression.evaluate(names, real.state, real.action, real.next_state, which)
    wrong = int(((reward - real.reward).abs() > ROUNDED * reward.abs().clamp(min=1)).sum())
    if wrong:
        raise CounterpointError(
            f"the reward of {wrong} rows is not '{expression.text}', as declared; correct the rows or the expression"
        )


def _check_reward(data: Transitions, declared: tuple[float, float] | None) -> None:
    bad = (~data.reward.isfinite() & ~data.imagined).nonzero()
    if len(bad):
        raise CounterpointError(f"the reward is not finite at row {int(bad[0])}; fill or drop such rows")
    declared = declared or data.schema.knowledge.reward_range
    if declared is not None:
        check_rewards(data.reward[~data.imagined], declared)
