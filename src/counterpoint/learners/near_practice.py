"""Search near practice: a tilt of the clinicians' decisions, and how far to go with it by held-out subjects.

    max_w  med_m[gain_m(w)] − c·sd_m[gain_m(w)] + ½·tail(w) − p·‖w‖²      gain_m(w) = J_m(w) − J_m(0) in member m

J_m(w) is the return in member m of the model of the tilt with numbers w, from the same starts and noise as practice
(w = 0). The tail is the gain of the mean of the worst quarter of episodes. All are in units of the standard deviation
of practice's returns.

How far to go, λ, is not left to the model that was searched in. The subjects are divided in halves; a tilt is searched
in a model of one half, and its gain for every λ is measured in a model of the other half. Models share their errors, so
the log itself is asked as well (`log_evidence`): a listed action's tilt needs a first-order gain whose lower bound is
above 0, and the tilt of a dose must not lower the logged rewards in its direction. λ has the largest lower bound of
those that both support, and is 0 where there is none. Where the clinicians vary so much that no action is theirs,
listed actions are drawn.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.artifacts import Saved
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Amount, Positive, Share, check_settings
from counterpoint.core.wording import amount
from counterpoint.data.far_values import near
from counterpoint.data.jobs import Job, Origin, spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions, subject_folds
from counterpoint.learners.base import ModelBased, PolicyCheckpoints
from counterpoint.learners.evolution import CrossEntropy
from counterpoint.learners.log_evidence import LogEvidence, mean_gain
from counterpoint.learners.practice import Practice
from counterpoint.models.base import Model, Recipe
from counterpoint.models.scm.auto import AutoSCM
from counterpoint.models.scm.posterior import PosteriorDraws
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import SelectedCheckpoint
from counterpoint.policies.near_practice import (
    NearPracticePolicy,
    action_features,
    saved_near_practice,
    tilt,
    tilt_width,
)
from counterpoint.policies.practice import PracticePolicy
from counterpoint.simulation.models import ModelSimulator
from counterpoint.simulation.rollout import Rollout, StackedNoise, on_device
from counterpoint.simulation.selection import drawn_factors
from counterpoint.tasks.base import Task, check_task

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of λ that are compared."""
HALVES = 2
MIN_SUBJECTS = 8
"""Subjects below which nothing is held out, and practice is kept."""
ZEROS = 0.05
"""Share of doses of 0 from which a tilt may raise a dose that practice leaves at 0."""
SMALL_DOSE = 0.25
"""ε as a share of the median of the doses above 0."""
AGREEMENT = 0.25
"""Mean probability of the most probable action from which it stands for practice; below, actions are drawn."""
LOG_CONFIDENCE = 1.645
"""Standard errors that the first-order gain of listed actions must be above 0: 95% one-sided."""
NORMAL_QUARTILES = 1.349
"""Distance of the quartiles of a normal variable, in standard deviations."""
WORST = 0.25
"""Share of the episodes that make the tail."""


@dataclass(frozen=True)
class NearPractice(ModelBased[NearPracticePolicy]):
    """Searches a tilt of practice inside a model; how far to go with it is chosen on held-out subjects."""

    command: ClassVar = ("near-practice", "a readable tilt of practice, as far as held-out subjects support it")

    model: Recipe[Model] = AutoSCM()
    """The model in which tilts are tried."""
    practice: Practice = Practice()
    """How practice is estimated."""
    optimizer: CrossEntropy = CrossEntropy(candidates=32, elites=8, spread=0.4, extra=0.1)
    """How candidates are drawn and the next distribution is fitted."""
    rounds: Positive = 15
    """Rounds of the search."""
    starts: Positive = 6
    """Episodes of every candidate in every member."""
    choosing_starts: Positive = 24
    """Episodes in every member by which λ is chosen."""
    horizon: Positive = 96
    """Most steps of an episode in the model. Longer tasks are started from rows anywhere in the records."""
    deviations: Amount = 0.5
    """c: weight of the disagreement between members."""
    penalty: Amount = 0.02
    """p: price of the squared numbers, in standard deviations of the returns."""
    confidence: Amount = 1.0
    """Standard errors, over members and halves, that the gain of a λ must be above 0."""
    most_share: Share = 1.0
    """Largest λ."""

    def __post_init__(self) -> None:
        check_settings(self)

    def check(self, jobs: Sequence[Job], task: Task) -> None:
        for job in jobs:
            check_task(task, job.data.schema)

    def with_models(
        self, jobs: Sequence[Job], models: Sequence[Model], task: Task, monitor: Monitor = Monitor()
    ) -> list[PolicyCheckpoints[NearPracticePolicy]]:
        policies = []
        for number, (job, model) in enumerate(zip(jobs, models, strict=True)):
            stage = monitor if len(jobs) == 1 else monitor.stage(f"job {number}")
            policy = self._learned(job, model, task, stage)
            policy = policy.to(model.device)
            policies.append(PolicyCheckpoints(policy, policy))
        return policies

    def _learned(self, job: Job, model: Model, task: Task, monitor: Monitor) -> NearPracticePolicy:
        practice = self.practice.fit(job.data, task, derive(job.seed, "practice"))
        log = LogEvidence(job.data, derive(job.seed, "log"))
        drawn, notes = self._drawn(practice, log.rows.state)
        search = TiltSearch(self, model, job, practice, task, drawn)
        none = torch.zeros(search.width)
        of_practice = search.evaluated(none[None], self.choosing_starts).mean()
        if not bool(of_practice.isfinite()):
            reason = "practice has no finite return inside the fitted model, so the policy is practice itself"
            return search.policy(none, 0.0, (*notes, reason))
        found = search.best(monitor, "tilt in the model")
        share, evidence = self._share(job, model, task, search, found, log, monitor)
        policy = search.policy(found, share, ())
        own = float(search.evaluated(share * found[None], self.choosing_starts).mean())
        policy.notes = (
            *notes,
            *evidence,
            f"return inside the model over {search.horizon} steps: {own:.4g}, practice's there {of_practice:.4g}",
        )
        policy.checkpoint = SelectedCheckpoint(self.rounds, self.rounds, own, own, search.horizon)
        return policy

    def _drawn(self, practice: PracticePolicy, state: Float[Tensor, "n s"]) -> tuple[bool, tuple[str, ...]]:
        """Whether listed actions are drawn: where no action is what most clinicians do in a state."""
        if not isinstance(practice.actions, Discrete):
            return False, ()
        agreement = float(practice.probabilities(state).amax(-1).mean())
        if agreement >= AGREEMENT:
            return False, ()
        return True, (
            f"the most probable action of practice is taken in {agreement:.0%} of the states only, so it does not stand"
            " for what the clinicians do: actions are drawn as theirs vary",
        )

    def _share(
        self,
        job: Job,
        model: Model,
        task: Task,
        search: "TiltSearch",
        found: Float[Tensor, " p"],
        log: LogEvidence,
        monitor: Monitor,
    ) -> tuple[float, tuple[str, ...]]:
        """λ, and the evidence for it."""
        subjects = job.data.real.subject.unique()
        if len(subjects) < MIN_SUBJECTS:
            reason = f"{len(subjects)} subjects are too few to hold some out, so the policy is practice itself"
            return 0.0, (reason,)
        bounds, evidence = self._bounds_in_models(job, model, task, search, monitor)
        log_bounds, from_log = self._bounds_in_log(search, found, log)
        allowed = [
            i
            for i, share in enumerate(SHARES)
            if share <= self.most_share and float(bounds[i]) > 0 and float(log_bounds[i]) > 0
        ]
        if not allowed:
            reason = "no share of the tilt is supported by both, so the policy is practice itself"
            return 0.0, (evidence, from_log, reason)
        listed = isinstance(job.data.actions, Discrete)
        best = max(allowed, key=lambda i: float((log_bounds if listed else bounds)[i]))
        return SHARES[best], (evidence, from_log, f"{SHARES[best]:.0%} of the tilt is taken")

    def _bounds_in_models(
        self, job: Job, model: Model, task: Task, search: "TiltSearch", monitor: Monitor
    ) -> tuple[Float[Tensor, " l"], str]:
        """Lower bound of the gain of every λ in models of held-out subjects."""
        subjects = job.data.real.subject.unique()
        recipe = _half_recipe(model)
        fold = subject_folds(len(subjects), HALVES, derive(job.seed, "halves"))
        searches = []
        for half in range(HALVES):
            part = replace(_of_subjects(job, subjects[fold == half]), seed=derive(job.seed, "half", half))
            fitted = recipe.fit_many([part], monitor.stage(f"half {half + 1}"))[0]
            searches.append(TiltSearch(self, fitted, part, search.practice, task, search.drawn))
        gains = []
        for half, own in enumerate(searches):
            tilted = own.best(monitor, f"tilt in half {half + 1}")
            gains.append(searches[1 - half].gains(torch.stack([tilted * share for share in SHARES])))
        middle, spread = _over_members(torch.stack(gains, 1))
        mean = middle.mean(0)
        error = (spread.square().mean(0) + middle.var(0) / HALVES).sqrt()
        shown = ", ".join(_shown(*x) for x in zip(SHARES[1:], mean[1:].tolist(), error[1:].tolist(), strict=True))
        return mean - self.confidence * error, f"gain over practice in models of held-out subjects: {shown}"

    def _bounds_in_log(
        self, search: "TiltSearch", found: Float[Tensor, " p"], log: LogEvidence
    ) -> tuple[Float[Tensor, " l"], str]:
        """Lower bound of the first-order gain of every λ by the log itself."""
        state = log.rows.state
        policies = [search.policy(found, share, ()) for share in SHARES]
        if not isinstance(search.practice.actions, Discrete):
            change = policies[-1].decide(state) - policies[0].decide(state)
            direction = log.dose_direction(change)
            bound = direction.value + self.confidence * direction.error
            words = f"rewards in the log change by {direction.deviations:+.1f} standard errors in the tilt's direction"
            return torch.full((len(SHARES),), bound), words
        practice = search.practice.probabilities(state)
        features = action_features(search.practice.schema)
        gains = [log.action_gain(policy.probabilities(state), practice, features) for policy in policies]
        over = [mean_gain(gain - gains[0]) for gain in gains]
        shown = ", ".join(_shown(share, g.value, g.error) for share, g in zip(SHARES[1:], over[1:], strict=True))
        bounds = torch.tensor([gain.value - LOG_CONFIDENCE * gain.error for gain in over])
        impossible = torch.tensor([gain.value > log.largest_gain for gain in over])
        words = f"first-order gain over practice in the log: {shown}"
        if bool(impossible.any()):
            words += f"; no gain above {amount(log.largest_gain)} is possible, so the larger ones are not believed"
        return bounds.masked_fill(impossible, -torch.inf), words

    def rebuild(self, saved: Saved) -> NearPracticePolicy:
        """The policy back from its artifact."""
        return saved_near_practice(self, saved)


def _shown(share: float, gain: float, error: float) -> str:
    return f"{share:.0%} of the tilt {gain:+.3g} ± {error:.2g}"


def _half_recipe(model: Model) -> Recipe[Model]:
    """The recipe of the models of the halves: what was selected for the whole table."""
    return model.recipe if model.selection is None else model.selection.recipe


def _of_subjects(job: Job, subjects: Tensor) -> Job:
    return job[torch.isin(job.data.subject, subjects)]


class TiltSearch:
    """The tilts of one practice in one fitted model."""

    def __init__(
        self, recipe: NearPractice, model: Model, job: Job, practice: PracticePolicy, task: Task, drawn: bool
    ) -> None:
        draws = PosteriorDraws(model.mechanism.members)
        self.recipe, self.job = recipe, job
        self.simulator = ModelSimulator([draws(model, job)])
        self.task = on_device(task, self.simulator.device)
        self.horizon = min(recipe.horizon, task.horizon)
        self.start, self.theta = _starts(job, model, self.horizon < task.horizon)
        self.practice, self.drawn = practice, drawn
        schema, rows = job.data.schema, job.data.real
        columns = near(spread_levels(rows.state, schema.categories))
        spread = columns.std(0, correction=0)
        weights = {
            "mean": columns.mean(0),
            "spread": torch.where(spread > 1e-8, spread, 1.0),
            "offset": _small_doses(rows),
            "share": torch.ones(()),
            "drawn": torch.tensor(float(drawn)),
        }
        self.width = (columns.shape[1] + 1) * tilt_width(schema)
        weights["numbers"] = torch.zeros(self.width)
        own = NearPracticePolicy(recipe, deepcopy(practice), weights, schema, Origin.of(job))
        self.template = own.to(self.simulator.device)

    def policy(self, numbers: Float[Tensor, " p"], share: float, notes: tuple[str, ...]) -> NearPracticePolicy:
        """The policy with these numbers, on the CPU as the log is."""
        template = self.template
        weights = {name: getattr(template, name).cpu() for name in ("mean", "spread", "offset", "drawn")}
        weights |= {"numbers": numbers, "share": torch.tensor(share)}
        return NearPracticePolicy(self.recipe, self.practice, weights, template.schema, template.origin, notes)

    def best(self, monitor: Monitor, name: str) -> Float[Tensor, " p"]:
        """The numbers of the best tilt."""
        recipe, optimizer = self.recipe, self.recipe.optimizer
        random = generator(self.job.seed, "tilts")
        device = self.simulator.device
        distribution = optimizer.start(torch.zeros(1, 1, self.width), torch.ones(self.width)).to(device)
        for round_number in range(recipe.rounds):
            monitor.report(name, round_number, recipe.rounds)
            half = torch.randn(1, 1, optimizer.candidates // 2, self.width, generator=random)
            draw = torch.cat([half, -half], 2).to(device)
            candidates = distribution.candidates(draw)[0, 0]
            none = torch.zeros_like(candidates[:1])
            returns = self.evaluated(torch.cat([candidates, none]), recipe.starts, round_number)
            score = self._scores(returns, candidates)
            share = torch.tensor(round_number / recipe.rounds, device=device)
            optimizer.learn(distribution, draw, score[None, None], share)
        monitor.report(name, recipe.rounds, recipe.rounds)
        return distribution.mean[0, 0].cpu()

    def _scores(self, returns: Float[Tensor, "m c n"], candidates: Float[Tensor, "d p"]) -> Float[Tensor, " d"]:
        """The objective of every candidate; the last of the returns are practice's."""
        practice = returns[:, -1:]
        unit = practice[practice.isfinite()].std().nan_to_num(1.0).clamp(min=1e-9)
        gain = (returns[:, :-1] - practice).mean(2)
        middle, deviation = _over_members(gain)
        tail = _tail(returns[:, :-1]) - _tail(practice)
        price = self.recipe.penalty * candidates.square().sum(1)
        score = (middle - self.recipe.deviations * deviation + 0.5 * tail) / unit - price
        return score.nan_to_num(-1e30, -1e30, -1e30)

    def gains(self, candidates: Float[Tensor, "c p"]) -> Float[Tensor, "m c"]:
        """The gain over practice of every tilt in every member; what is not finite is worst."""
        returns = self.evaluated(torch.cat([candidates, torch.zeros_like(candidates[:1])]), self.recipe.choosing_starts)
        return (returns[:, :-1] - returns[:, -1:]).mean(2).nan_to_num(-1e30, -1e30, -1e30)

    @torch.no_grad()
    def evaluated(self, numbers: Float[Tensor, "c p"], starts: int, draw: int = -1) -> Float[Tensor, "m c n"]:
        """The return of every tilt in every member, all from the same starts and under the same noise."""
        members, count = self.simulator.members, len(numbers)
        random = generator(self.job.seed, "tilt episodes", draw)
        place = torch.randint(len(self.start), (members, starts), generator=random)
        prior = self.simulator.stacks[0].mechanism.prior
        noise = [prior(members * starts, random).view(members, starts, -1) for _ in range(self.horizon)]
        uniforms = torch.rand(self.horizon, members, 1, starts, generator=random).to(self.simulator.device)
        steps_done = iter(uniforms.expand(-1, -1, count, -1).flatten(1))

        def repeated(x: Float[Tensor, "m n w"]) -> Float[Tensor, "1 e w"]:
            return x[:, None].expand(-1, count, -1, -1).reshape(1, members * count * starts, -1)

        def step_noise(t: int) -> StackedNoise:
            return (repeated(noise[t].to(self.simulator.device)),)

        def act(state: Float[Tensor, "1 e s"], theta: Float[Tensor, "1 e t"]) -> Float[Tensor, "1 e a"]:
            columns = self.template.columns(state[0]).view(members, count, starts, -1).transpose(0, 1)
            amounts = tilt(numbers.to(columns), columns.flatten(1, 2), self.template.schema)
            amounts = amounts.view(count, members, starts, -1).transpose(0, 1).flatten(0, 2)
            uniform = next(steps_done)
            return self.template.tilted(state[0], amounts, uniform if self.drawn else None)[None]

        start, theta = (repeated(table[place].to(self.simulator.device)) for table in (self.start, self.theta))
        returns = Rollout(self.simulator, self.task, act).returns(start, step_noise, self.horizon, theta)
        return returns.view(members, count, starts)


def _over_members(gains: Float[Tensor, "m *c"]) -> tuple[Float[Tensor, "*c"], Float[Tensor, "*c"]]:
    """Median over the members and their standard deviation by the quartiles: one member astray does not decide."""
    low, middle, high = torch.quantile(gains, torch.tensor([0.25, 0.5, 0.75]).to(gains), dim=0)
    return middle, (high - low) / NORMAL_QUARTILES


def _tail(returns: Float[Tensor, "m c n"]) -> Float[Tensor, " c"]:
    """Mean of every candidate's worst episodes."""
    flat = returns.transpose(0, 1).flatten(1)
    return flat.sort(1).values[:, : max(1, round(WORST * flat.shape[1]))].mean(1)


def _starts(job: Job, model: Model, anywhere: bool) -> tuple[Float[Tensor, "f s"], Float[Tensor, "f t"]]:
    """First states of the records, or all logged states, with a posterior draw of their subjects' factors."""
    rows = job.data
    theta = job.rows_theta if job.theta.shape[1] else drawn_factors(job, model)
    kept = ~rows.imagined
    if not anywhere:
        kept &= rows.step == rows.step.min()
    return rows.state[kept], theta[kept]


def _small_doses(rows: Transitions) -> Float[Tensor, " a"]:
    """ε of each dose: a quarter of the median of the doses above 0 where many are 0, else 0."""
    if isinstance(rows.actions, Discrete):
        return torch.zeros(rows.action.shape[1])
    small = []
    for dose in rows.action.unbind(1):
        given = dose[dose > 0]
        often_zero = float((dose == 0).float().mean()) >= ZEROS and len(given) > 0
        small.append(SMALL_DOSE * given.median() if often_zero else torch.zeros(()))
    return torch.stack(small)
