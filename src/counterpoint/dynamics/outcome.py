"""Reward and end learned from the log, for users who have rows but no function of them.

    P(outcome k, no next state | s, a)      the hazard before: a death or discharge that leaves no next state
    P(outcome k | s, a, s')                 the hazard after: an end that is seen in the next state
    r(s, a, s', k) by least squares,    r_k(s, a) by ridge regression where there is no next state

Each hazard is a network's softmax over "goes on" and the outcomes, fitted by maximum likelihood on all real rows that
can tell, its intercepts set so that it foresees every outcome as often as the log has it; an outcome that the log never
has is never foreseen. An imagined step ends before its next state, or in it, or goes on:

    p = [h_k,  (1 − Σh)·g_k,  (1 − Σh)(1 − Σg)],    h = hazard before,  g = hazard after
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from counterpoint.artifacts import Artifact, Saved, device_of
from counterpoint.data.jobs import Job, Origin, check_fittable, context, identity, spread_levels
from counterpoint.data.schema import Schema
from counterpoint.data.shapes import Action, Reward, State
from counterpoint.data.transitions import GOES_ON, Transitions
from counterpoint.dynamics.base import Head, HeadNetwork
from counterpoint.dynamics.deterministic import Point
from counterpoint.errors import CounterpointError
from counterpoint.model import CHUNK
from counterpoint.nets.likelihood import Likelihood, fit_by_likelihood
from counterpoint.nets.stacked import unstack, with_weights
from counterpoint.nets.training import Monitor
from counterpoint.seeding import derive
from counterpoint.settings import Amount, Share, Widths, check_settings, checked
from counterpoint.tasks.base import Conclusion, Task

ROUNDS = 40
"""Rounds in which the intercepts are set."""
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Softmax(Head):
    """One of several classes; y holds its number."""

    classes: int

    def width(self, size: int) -> int:
        return self.classes

    def log_prob(self, raw: Float[Tensor, "*n w"], y: Float[Tensor, "*n d"]) -> Reward:
        return raw.log_softmax(-1).gather(-1, y.long())[..., 0]

    def chance(self, shape: Sequence[int], size: int, random: torch.Generator) -> Float[Tensor, "*n c"]:
        return torch.rand(*shape, size, generator=random, device=random.device)

    def sample(self, raw: Float[Tensor, "*n w"], chance: Float[Tensor, "*n c"], size: int) -> Float[Tensor, "*n d"]:
        return pick(raw.softmax(-1), chance[..., 0])[..., None].to(raw)

    def unit(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """A number of a class stays what it is."""
        return torch.zeros_like(mean), torch.ones_like(scale)


def pick(probability: Float[Tensor, "*n c"], uniform: Float[Tensor, "*n"]) -> Tensor:
    """The class that a uniform draw falls on; the last one takes what rounding leaves."""
    return (uniform[..., None] >= probability.cumsum(-1)[..., :-1]).sum(-1)


class Heads(nn.Module):
    """The learned functions of M jobs: reward, two hazards with their intercepts, and the reward of ends without s'."""

    before_intercept: Tensor
    after_intercept: Tensor
    end_weight: Tensor
    end_bias: Tensor

    def __init__(self, members: int, state: int, action: int, outcomes: int, hidden: Sequence[int]) -> None:
        super().__init__()
        seen = 2 * state + action
        self.reward = HeadNetwork(members, seen + outcomes, 1, Point(), hidden, batch_norm=False)
        self.before = HeadNetwork(members, state + action, 1, Softmax(1 + outcomes), hidden, batch_norm=False)
        self.after = HeadNetwork(members, seen, 1, Softmax(1 + outcomes), hidden, batch_norm=False)
        for name in (BEFORE, AFTER):
            never = torch.cat([torch.zeros(members, 1), torch.full((members, outcomes), -torch.inf)], 1)
            self.register_buffer(f"{name}_intercept", never)
        self.register_buffer("end_weight", torch.zeros(members, outcomes, state + action))
        self.register_buffer("end_bias", torch.zeros(members, outcomes))

    def logits(self, name: str, told: Float[Tensor, "k n c"]) -> Float[Tensor, "k n w"]:
        """A hazard's logits with its intercepts."""
        return getattr(self, name).raw(told) + getattr(self, f"{name}_intercept")[:, None]


@final
class LearnedTask(nn.Module, Task, Artifact):
    """A task whose reward and end were learned; it stands wherever a task does."""

    kind: ClassVar[str] = "task"

    def __init__(
        self,
        recipe: "Outcome",
        heads: Heads,
        schema: Schema,
        origin: Origin,
        outcome_names: tuple[str, ...],
        horizon: int,
    ) -> None:
        super().__init__()
        self.recipe, self.heads, self.schema = recipe, heads.eval(), schema
        self.discount, self.origin, self.outcome_names, self.horizon = recipe.discount, origin, outcome_names, horizon
        self.ends_in_next_state = bool(heads.after_intercept[:, 1:].isfinite().any())

    @torch.no_grad()
    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """The expected reward of a step after which the episode goes on."""
        state, next_state = (spread_levels(values, self.schema.categories) for values in (state, next_state))
        return self._reward(state, action, next_state, GOES_ON)

    def terminated(self, next_state: State) -> Bool[Tensor, "*n"]:
        """Only what has no next state is over for certain; of the rest `expected` tells the probability."""
        return next_state.isnan().any(-1)

    def expected(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        probability, reward = self.branches(state, action, next_state)
        return (probability * reward).sum(-1), probability[..., -1]

    def conclude(self, state: Tensor, action: Tensor, next_state: Tensor, uniform: Tensor) -> Conclusion:
        probability, reward = self.branches(state, action, next_state)
        branch, outcomes = pick(probability, uniform.to(probability)), len(self.outcome_names)
        outcome = torch.where(branch < 2 * outcomes, branch % outcomes, GOES_ON)
        cut_short = (branch < outcomes)[..., None]
        taken = reward.gather(-1, branch[..., None])[..., 0]
        return Conclusion(taken, outcome, next_state.masked_fill(cut_short, torch.nan))

    @torch.no_grad()
    def branches(
        self, state: State, action: Action, next_state: State
    ) -> tuple[Float[Tensor, "*n b"], Float[Tensor, "*n b"]]:
        """Probability and reward of every way a step can turn out: outcomes before s', outcomes in s', going on."""
        state, next_state = (spread_levels(values, self.schema.categories) for values in (state, next_state))
        told, outcomes = context(state, action), len(self.outcome_names)
        survives, *before = self._hazard(BEFORE, told).unbind(-1)
        goes_on, *after = self._hazard(AFTER, torch.cat([told, next_state], -1)).unbind(-1)
        probability = [*before, *(survives * share for share in after), survives * goes_on]
        rewards = list((told @ self.heads.end_weight[0].mT + self.heads.end_bias[0]).unbind(-1))
        for k in (*range(outcomes), GOES_ON):
            known = k == GOES_ON or self.ends_in_next_state
            rewards.append(self._reward(state, action, next_state, k) if known else torch.zeros_like(survives))
        return torch.stack(probability, -1), torch.stack(rewards, -1)

    def weights(self) -> dict[str, Tensor]:
        return self.heads.state_dict()

    def extras(self) -> dict[str, Any]:
        return {"outcome_names": list(self.outcome_names), "horizon": self.horizon}

    def _hazard(self, name: str, told: Tensor) -> Tensor:
        return _apply(lambda rows: self.heads.logits(name, rows), told).softmax(-1)

    def _reward(self, state: Tensor, action: Tensor, next_state: Tensor, outcome: int) -> Tensor:
        """r(s, a, s', k) in the units of the data; states come level by level."""
        which = state.new_zeros(*state.shape[:-1], len(self.outcome_names))
        if outcome != GOES_ON:
            which[..., outcome] = 1.0
        return _apply(self.heads.reward.point, torch.cat([state, action, next_state, which], -1))[..., 0]


def _apply(function: Any, told: Float[Tensor, "*n c"]) -> Tensor:
    """A function of one stack of rows, for rows of any leading shape."""
    answers = [function(piece[None])[0] for piece in told.flatten(0, -2).split(CHUNK)]
    return torch.cat(answers).view(*told.shape[:-1], -1)


@dataclass(frozen=True)
class Outcome:
    """Learns reward and end from the real rows of a log."""

    discount: Share = 0.99
    """Discount of the task; nothing in a log says what it should be."""
    hidden: Widths = (64, 64)
    """Widths of the networks."""
    ridge: Amount = 1.0
    """Penalty of the linear reward of rows without a next state, in rows' worth of evidence a column."""
    likelihood: Likelihood = Likelihood()
    """How the networks are fitted."""

    def __post_init__(self) -> None:
        check_settings(self)

    @checked
    def fit(self, data: Transitions, seed: int = 0, monitor: Monitor = Monitor(), device: str = "cpu") -> LearnedTask:
        """Fit on one table."""
        return self.fit_many([Job(data, seed)], monitor, device)[0]

    def fit_many(self, jobs: Sequence[Job], monitor: Monitor = Monitor(), device: str = "cpu") -> list[LearnedTask]:
        """Fit every job, all in one loop a network."""
        tables, seeds = [_tables(job.data) for job in jobs], [derive(job.seed, "outcome") for job in jobs]
        heads = self._build(jobs[0].data, len(jobs)).to(device_of(device))
        for name in ("reward", BEFORE, AFTER):
            if name == "reward" or any(bool(t[name]["y"].any()) for t in tables):
                own, stage = [t[name] for t in tables], monitor.stage(name)
                fit_by_likelihood(getattr(heads, name), own, seeds, self.likelihood, identity(self, jobs), stage)
        for k, (job, table) in enumerate(zip(jobs, tables, strict=True)):
            _set_intercepts(heads, k, table)
            self._fit_ends(heads, k, job.data)
        parts = unstack(heads.state_dict(), len(jobs))
        return [self._task(part, job) for part, job in zip(parts, jobs, strict=True)]

    def rebuild(self, saved: Saved) -> LearnedTask:
        """The fitted task back from its artifact."""
        names = tuple(saved.header["outcome_names"])
        heads = Heads(1, saved.schema.spread_width, saved.schema.actions.width, len(names), self.hidden)
        given = (saved.schema, saved.origin, names, saved.header["horizon"])
        return LearnedTask(self, with_weights(heads, saved.weights), *given)

    def _build(self, data: Transitions, members: int) -> Heads:
        return Heads(members, data.schema.spread_width, data.action.shape[1], len(data.outcome_names), self.hidden)

    def _task(self, weights: dict[str, Tensor], job: Job) -> LearnedTask:
        data, heads = job.data, with_weights(self._build(job.data, 1), weights)
        longest = int(data.step.max()) + 1
        return LearnedTask(self, heads, data.schema, Origin.of(job), data.outcome_names, longest)

    def _fit_ends(self, heads: Heads, member: int, data: Transitions) -> None:
        """Ridge regression of the reward on the standardised (s, a) by outcome; few rows shrink to their mean."""
        from sklearn.linear_model import Ridge
        from sklearn.preprocessing import StandardScaler

        for k in range(len(data.outcome_names)):
            rows = data[~data.imagined & ~data.has_next & (data.outcome == k)]
            if len(rows):
                scaler = StandardScaler()
                standard = scaler.fit_transform(_told(rows).double().cpu().numpy())
                line = Ridge(alpha=self.ridge).fit(standard, rows.reward.double().cpu().numpy())
                weight = torch.from_numpy(line.coef_ / scaler.scale_)
                bias = float(line.intercept_) - float(weight @ torch.from_numpy(scaler.mean_))
                heads.end_weight[member, k] = weight.to(heads.end_weight)
                heads.end_bias[member, k] = bias


@torch.no_grad()
def _set_intercepts(heads: Heads, member: int, tables: dict[str, dict[str, Tensor]]) -> None:
    """Every outcome is to be foreseen as often as it is seen; one that never is has the intercept −∞."""
    for name in (BEFORE, AFTER):
        network, intercept = getattr(heads, name), getattr(heads, f"{name}_intercept")
        seen = torch.bincount(tables[name]["y"][:, 0].long(), minlength=intercept.shape[1]).double()
        told = tables[name]["context"].to(intercept.device).expand(network.members, -1, -1)
        intercept[member] = calibrated(network.raw(told)[member].double().cpu(), seen).to(intercept)


def calibrated(raw: Float[Tensor, "n c"], seen: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """The b with Σ softmax(raw + b) = seen: a few rounds of b + log(seen / foreseen), then Newton's."""
    possible = seen > 0
    raw, seen, moved = raw[:, possible], seen[possible], torch.zeros(int(possible.sum()), dtype=raw.dtype)
    for i in range(ROUNDS):
        chance = (raw + moved).softmax(-1)
        foreseen = chance.sum(0)
        if i < ROUNDS // 2:
            moved = moved + (seen / foreseen).log()
        else:
            slope = foreseen.diag() - chance.T @ chance + 1e-9 * torch.eye(len(moved), dtype=raw.dtype)
            moved = moved + torch.linalg.lstsq(slope, (seen - foreseen)[:, None], driver="gelsd").solution[:, 0].clamp(
                -1, 1
            )
    return torch.full(possible.shape, -torch.inf, dtype=raw.dtype).masked_scatter(possible, moved - moved.max())


def _tables(data: Transitions) -> dict[str, dict[str, Tensor]]:
    check_fittable(data.real)
    _check_reward(data)
    real, outcomes = data.real, len(data.outcome_names)
    rows, code = real.with_next(), torch.where(real.has_next, GOES_ON, real.outcome)
    ends = torch.nn.functional.one_hot(rows.outcome + 1, outcomes + 1)[:, 1:].to(rows.state)
    told = context(_told(rows), spread_levels(rows.next_state, rows.schema.categories))
    return {
        "reward": {"context": torch.cat([told, ends], -1), "y": rows.reward[:, None], "subject": rows.subject},
        BEFORE: {"context": _told(real), "y": _classes(code), "subject": real.subject},
        AFTER: {"context": told, "y": _classes(rows.outcome), "subject": rows.subject},
    }


def _told(rows: Transitions) -> Float[Tensor, "n c"]:
    """State and action, categories level by level."""
    return context(spread_levels(rows.state, rows.schema.categories), rows.action)


def _classes(outcome: Tensor) -> Float[Tensor, "n 1"]:
    """0 for going on, then the outcomes."""
    return (outcome + 1).float()[:, None]


def _check_reward(data: Transitions) -> None:
    bad = (~data.reward.isfinite() & ~data.imagined).nonzero()
    if len(bad):
        raise CounterpointError(f"the reward is not finite at row {int(bad[0])}; fill or drop such rows")
