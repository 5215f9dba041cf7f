"""Can a fitted SCM be trusted? Its assumptions, one check each, and a verdict in plain words.

A counterfactual is right where s' rises strictly with its noise, the noise is independent of (s, a), the law of s' is
right, and the alternative action is one the data know (Theorem 1). Held-out rows can show that one of these fails; a
test fails a model only where its effect is large as well as improbable: with enough rows no fitted model is perfect.
p-values hold for rows the model was not fitted on. On the fit's own rows they are too large, for the fit has made its
noise look as it should: a failure there still counts, a pass says little, and the verdict says so.
"""

from collections.abc import Callable
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.checks.ambiguity import agreement, turning
from counterpoint.checks.comparisons import EffectComparison
from counterpoint.checks.effects import EffectCheck, check_effects
from counterpoint.checks.findings import CheckReport, CheckSample, Finding, draw
from counterpoint.checks.independence import Dependence, gram, holm, hsic, kolmogorov, prior_quantiles, standard
from counterpoint.checks.support import support
from counterpoint.core.seeding import generator
from counterpoint.core.settings import checked
from counterpoint.data.jobs import NO_THETA
from counterpoint.data.shapes import Action, State, Theta
from counterpoint.data.transitions import Transitions
from counterpoint.models.scm.base import StructuralCausalModel, spread

ALPHA = 0.01
"""How improbable by chance, all tests of a check together, a failure must be."""
ROUND_TRIP = 0.05
"""Error of what comes back, in standard deviations of the change, that still counts as returned."""
INDEPENDENCE = 0.03
"""HSIC effect of state and action on the noise up to which the noise is independent enough."""
CALIBRATION = 0.08
"""Distance of the implied quantiles from uniform up to which the foreseen spread is right enough."""
COPULA = 0.02
"""HSIC effect of state and action on the product of two noises up to which their coupling is fixed enough."""
OUTSIDE = 0.1
"""Share of alternative actions outside the support that is tolerated."""
BETTER = 0.95
"""Energy score, as a share of the best point forecast's error, below which the model foresees more than a mean."""
PAIRS = 200
"""Pairs of noise columns that are looked at, at most."""
DRAWS = 20
"""Fresh next states for each row that the energy score compares with the true one."""


Progress = Callable[[str, int, int], None]
"""Called as progress(stage, done, total)."""


def silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


@checked
def check_scm(
    model: StructuralCausalModel,
    rows: Transitions,
    seed: int = 0,
    theta: Theta = NO_THETA,
    log: Transitions | None = None,
    outcomes: tuple[str, ...] = (),
) -> CheckReport:
    """Check the assumptions of a fitted SCM, and its effects of doses beside those that the log shows.

    Args:
        model: the fitted model.
        rows: rows to check it on, best held out; at most 1,000 are looked at.
        seed: seed of all that is drawn.
        theta: subject factors of `rows`, as in the fit.
        log: the whole log, for the effects; `rows` where it is left out.
        outcomes: state columns of the effects; by default those with the clearest ones.
    """
    effects = check_effects(model, rows if log is None else log, outcomes, seed, theta if log is None else NO_THETA)
    return report(draw(model, rows, seed, theta), effects=effects)


def report(sample: CheckSample, progress: Progress = silent, effects: EffectCheck | None = None) -> CheckReport:
    """Every check on a drawn sample, and what the comparison of effects found, where it was made."""
    tested = (round_trip, monotone, independence, calibration, copula_invariance, better_than_mean)
    findings: list[Finding] = []
    checks = (*tested, supported, agreement, turning)
    for check in checks:
        findings.append(check(sample))
        progress("checks", len(findings), len(checks))
    comparisons: tuple[EffectComparison, ...] = ()
    if effects is not None:
        findings += effects.findings
        comparisons = effects.comparisons
    return CheckReport(tuple(findings), len(sample.rows), sample.held_out, sample.model.state_names, comparisons)


def round_trip(sample: CheckSample) -> Finding:
    """Abduct, then predict under the same action: the seen next state must come back from every member."""
    again = sample.predict(sample.rows.action, sample.abducted())
    error = (again - sample.rows.next_state) / spread(sample.change)
    value = float(error.square().mean(1).sqrt().max())
    passed = value <= ROUND_TRIP
    words = "returns" if passed else "does not return"
    sentence = f"Asked about the action that was taken, the model {words} what happened (error {value:.2g} of spread)."
    return Finding("round trip", value, ROUND_TRIP, passed, sentence)


def monotone(sample: CheckSample) -> Finding:
    """∂s'_i/∂u_i > 0 by autograd, and s'_i rises with a step of u_i, at fresh noises under both actions."""
    normal, actions = sample.model.mechanism.normal_noise, (sample.rows.action, sample.alternative)
    falls = [_falls(sample, action, i).float().mean() for action in actions for i in range(normal)]
    value = float(torch.stack(falls).mean()) if falls else 0.0
    passed = value == 0
    if passed and normal < sample.noise.shape[-1]:
        sentence = (
            "Some columns are categories, whose chance is known only within a range: an answer is one of several."
        )
        return Finding("monotone", 1.0, 0.0, False, sentence, grave=False)
    words = "always rises" if passed else f"does not rise in {value:.1%} of the places looked at"
    return Finding("monotone", value, 0.0, passed, f"The next state {words} with its chance, as Theorem 1 demands.")


def independence(sample: CheckSample) -> Finding:
    """HSIC of every noise column, and of all together, with the action and with state and action."""
    columns = [gram(column[..., None]).mean(0) for column in sample.noise.permute(2, 1, 0)]
    names = [_noise_name(sample, i) for i in range(len(columns))]
    if len(columns) > 1:
        columns, names = [*columns, gram(sample.noise.transpose(0, 1)).mean(0)], [*names, "all columns together"]
    pairs = [(name, column, on) for name, column in zip(names, columns, strict=True) for on in sample.context_kernels]
    tests = [hsic(column, sample.context_kernels[on]) for _, column, on in pairs]
    worst, p_value, passed = _judge(tests, INDEPENDENCE)
    name, _, on = pairs[worst]
    sentence = (
        "What the model takes for chance does not depend on state and action."
        if passed
        else f"What the model takes for chance depends on {on} (most for {name}):"
        " it mistakes their effect for chance, or a common cause is missing."
    )
    return Finding("independent noise", tests[worst].effect, INDEPENDENCE, passed, sentence, p_value)


def quantiles(sample: CheckSample) -> Float[Tensor, "n m u"]:
    """Where each seen next state lies in the law the model foresaw: uniform between 0 and 1 if the law is right."""
    prior = sample.model.mechanism.prior(100_000, generator(sample.seed, "prior")).to(sample.noise)
    return prior_quantiles(sample.noise, prior[:, : sample.noise.shape[-1]])


def calibration(sample: CheckSample) -> Finding:
    """Kolmogorov–Smirnov distance of the implied quantiles from uniform, column by column."""
    tests = [kolmogorov(column) for column in quantiles(sample).unbind(-1)]
    worst, p_value, passed = _judge(tests, CALIBRATION)
    sentence = (
        "The spread of outcomes that the model foresees is the spread that is seen."
        if passed
        else f"The spread of outcomes that the model foresees is wrong, most for {_noise_name(sample, worst)}:"
        f" a quantile is off by up to {tests[worst].effect:.0%}."
    )
    return Finding("calibration", tests[worst].effect, CALIBRATION, passed, sentence, p_value)


def copula_invariance(sample: CheckSample) -> Finding:
    """Whether the dependence between two noise columns changes with state and action.

    Linear HSIC on products of centred quantiles, signed and folded: it sees the mean product move, that is a rank
    correlation or a common spread, and not a column whose own spread is badly fitted.
    """
    centred = 2 * quantiles(sample) - 1
    pairs = _pairs(centred.shape[-1], sample.seed)
    if not pairs:
        return Finding("fixed coupling", 0.0, COPULA, True, "One noise has no other to be coupled with.", 1.0)
    kernels = sample.context_kernels
    products = [_product_gram(centred[..., i], centred[..., j]) for i, j in pairs]
    tests = [hsic(product, kernel) for product in products for kernel in kernels.values()]
    worst, p_value, passed = _judge(tests, COPULA)
    first, second = (_noise_name(sample, i) for i in pairs[worst // len(kernels)])
    sentence = (
        "How the chances of the state columns hang together does not change with state and action."
        if passed
        else f"How the chances of {first} and {second} hang together changes with state or action:"
        " one drives the other, or they mix, and column-by-column answers are wrong; give the order of the columns"
        " (fit … scm:density --scm.order)."
    )
    return Finding("fixed coupling", tests[worst].effect, COPULA, passed, sentence, p_value)


def better_than_mean(sample: CheckSample) -> Finding:
    """Energy score of fresh draws over that of the best point: the draws' own mean, or a straight line."""
    scale = spread(sample.change)
    random = generator(sample.seed, "draws")
    fresh = [sample.model.sample(sample.rows.state, sample.rows.action, random, sample.theta) for _ in range(DRAWS)]
    draws, seen = torch.stack(fresh) / scale, sample.rows.next_state / scale
    points = (draws.mean(0), sample.rows.state / scale + _straight_line(sample.context, sample.change / scale))
    value = energy_score(draws, seen) / min(float((point - seen).norm(dim=-1).mean()) for point in points)
    passed = value < BETTER
    sentence = f"The model foresees unseen outcomes {'better' if passed else 'no better'} than a plain average would."
    return Finding("better than the mean", value, BETTER, passed, sentence)


def energy_score(draws: Float[Tensor, "d n s"], seen: Float[Tensor, "n s"]) -> float:
    """E|x − y| − ½ E|x − x'| (Gneiting and Raftery 2007), lower is better; for one column it is the CRPS."""
    count = len(draws)
    apart = sum((draws - draws.roll(k, 0)).norm(dim=-1).mean() for k in range(1, count)) / (count - 1)
    return float((draws - seen).norm(dim=-1).mean() - 0.5 * apart)


def supported(sample: CheckSample) -> Finding:
    """Share of alternative actions that are far from every action taken in similar states."""
    value = support(sample.rows, sample.alternative, sample.logged).outside
    passed = value <= OUTSIDE
    sentence = (
        f"{value:.0%} of the alternative actions asked about were never tried in similar states"
        f"{'.' if passed else ': there the model guesses.'}"
    )
    return Finding("support", value, OUTSIDE, passed, sentence, grave=False)


def _judge(tests: list[Dependence], limit: float) -> tuple[int, float, bool]:
    """The worst test, its p-value after Holm, and whether no test is both improbable by chance and large."""
    adjusted = holm([test.p_value for test in tests])
    bad = [p < ALPHA and test.effect > limit for p, test in zip(adjusted, tests, strict=True)]
    worst = max(range(len(tests)), key=lambda i: (bad[i], tests[i].effect))
    return worst, adjusted[worst], not any(bad)


def _falls(sample: CheckSample, action: Action, which: int) -> Tensor:
    """Where a column does not rise with its own noise, by its derivative (where it has one) or by a step of a tenth."""
    column = sample.model.mechanism.noise_columns[which]
    model, rows, members = sample.model, sample.rows, sample.model.mechanism.members
    fresh = model.mechanism.prior(len(rows), generator(sample.seed, "monotone")).to(rows.state)
    noise = fresh.repeat(members, 1, 1).requires_grad_()
    here = model.member_predictions(rows.state, action, noise, sample.theta)[..., column]
    with torch.no_grad():
        step = 0.1 * torch.nn.functional.one_hot(torch.tensor(which), noise.shape[-1]).to(noise)
        there = model.member_predictions(rows.state, action, noise + step, sample.theta)[..., column]
    flat = there <= here
    if here.requires_grad:
        flat = flat | (torch.autograd.grad(here.sum(), noise)[0][..., which] <= 0)
    return flat


def _pairs(width: int, seed: int) -> list[tuple[int, int]]:
    pairs = list(combinations(range(width), 2))
    order = torch.randperm(len(pairs), generator=generator(seed, "pairs"))
    return [pairs[i] for i in order[:PAIRS]]


def _product_gram(first: Float[Tensor, "n m"], second: Float[Tensor, "n m"]) -> Float[Tensor, "n n"]:
    folded = (2 * first.abs() - 1) * (2 * second.abs() - 1)
    features = torch.stack([first * second, folded]).mean(-1).double()
    return features.T @ features


def _straight_line(context: Float[Tensor, "n c"], change: Float[Tensor, "n s"]) -> State:
    """A linear forecast of each half of the rows from the other half, by ridge regression in double precision."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    x, y = (table.double().cpu().numpy() for table in (standard(context), change))
    halves = PredefinedSplit([row % 2 for row in range(len(x))])
    return torch.from_numpy(cross_val_predict(Ridge(alpha=1e-3), x, y, cv=halves)).to(change).view_as(change)


def _noise_name(sample: CheckSample, which: int) -> str:
    return f"'{sample.model.state_names[sample.model.mechanism.noise_columns[which]]}'"
