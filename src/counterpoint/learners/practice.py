"""`Practice` estimates the behaviour policy as a policy of its own; `Constant` always takes one action.

For every function of the state three models are tried: a constant, a line, and a line with boosted trees of its
residuals. The one with the smallest loss on held-out subjects is fitted to all rows: the mean absolute error of the
median for doses, the Brier score for probabilities.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.core.artifacts import Saved, device_of
from counterpoint.core.errors import require
from counterpoint.core.seeding import derive, generator
from counterpoint.core.settings import Checked, Positive, Range, Share
from counterpoint.data.far_values import near
from counterpoint.data.jobs import Job, Origin, spread_levels
from counterpoint.data.spaces import Discrete
from counterpoint.data.transitions import Transitions, subject_folds
from counterpoint.learners.base import PolicyCheckpoints, PolicyLearner, action_numbers
from counterpoint.nets.training import Monitor
from counterpoint.policies.base import Policy
from counterpoint.policies.practice import (
    MEDIAN,
    QUANTILES,
    ActionPractice,
    AdditiveFunctions,
    ConstantPolicy,
    DosePractice,
    PracticePolicy,
    StandardisedColumns,
    no_treatment,
    saved_constant,
    saved_practice,
)
from counterpoint.tasks.base import Task, check_task

KINDS: tuple[str, ...] = ("constant", "linear", "boosted trees")
"""Models of a function of the state, the simplest first."""
FEW_ZEROS = 0.02
"""Share of doses of 0 from which their probability is modelled apart."""
COMMON = 0.2
"""Share of the rows from which a dose counts as the commonest one; else it is the median dose."""
BASELINE_ROWS = 5000
"""Rows that practice is fitted to as a baseline, at most."""
RIDGE = 1.0
"""Penalty on the squared slopes of standardised columns, in units of one row."""
RARE_ROWS = 10.0
"""Rows that all actions of the log together are given beside their own, so that no probability is 0 or 1."""
MOST_TREES = 200
"""Boosted trees of a list of actions in all: with many actions each has fewer."""
MOST_RATE = 0.3
TEMPERATURES = (0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0)
"""By which one of these scores are divided, so that probabilities are calibrated on held-out subjects."""
LEAST_SUBJECTS = 10
"""Subjects with enough doses that a test for personal offsets needs."""
LEAST_DOSES = 4
"""Doses of a subject that it is part of that test from."""
SIGNIFICANT = 1.645
"""Standard errors by which offsets of one half of the records must agree with those of the other."""

Array = np.ndarray
Predict = Callable[[Array], Array]


@dataclass(frozen=True)
class Practice(Checked, PolicyLearner[PracticePolicy]):
    """Estimates what the clinicians do in a state.

    Continuous doses: quantiles given the state, of which the median acts. Listed actions: calibrated probabilities,
    of which the largest acts.
    """

    command: ClassVar = ("practice", "what the clinicians do")
    trees: Positive = 60
    """Boosted trees of a function."""
    depth: Annotated[int, Range(1, 4)] = 3
    """Comparisons from the root of a tree to a leaf."""
    shrinkage: Share = 0.1
    """Factor by which every tree counts."""
    most: Positive = 10_000
    """Rows that functions are fitted to, at most; a random sample of more."""
    folds: Annotated[int, Range(2, 20)] = 3
    """Folds of subjects by which the models are compared."""
    personal: bool = True
    """Whether an offset of the subject's doses is tried; it is kept where it predicts the rest of the record."""
    stochastic: bool = False
    """Whether the policy draws its actions as the clinicians' vary."""

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[PolicyCheckpoints[PracticePolicy]]:
        for job in jobs:
            check_task(task, job.data.schema)
        policies = []
        for done, job in enumerate(jobs):
            monitor.report("practice", done, len(jobs))
            policies.append(self.learned(job).to(device_of(device)))
        monitor.report("practice", len(jobs), len(jobs))
        return [PolicyCheckpoints(policy, policy) for policy in policies]

    def learned(self, job: Job) -> PracticePolicy:
        """Estimate practice from one table, whatever its task."""
        rows = job.data.real.to("cpu")
        check_practice_rows(rows)
        table = PracticeTable.of(rows, self, job.seed)
        practice, notes = _actions(table, self) if isinstance(rows.actions, Discrete) else _doses(table, self)
        policy = PracticePolicy(self, practice, job.data.schema, Origin.of(job), tuple(notes))
        if isinstance(practice, DosePractice) and self.personal:
            return _with_offsets(policy, rows)
        return policy

    def rebuild(self, saved: Saved) -> PracticePolicy:
        """The policy back from its artifact."""
        return saved_practice(self, saved)


@dataclass(frozen=True)
class Constant(Checked, PolicyLearner[ConstantPolicy]):
    """Always takes one action: none at all, or the commonest of the log."""

    action: Literal["nothing", "commonest"] = "nothing"
    """Nothing is dose 0 or the treatment that is named so; of a list of amounts without 0 the lowest."""

    def fit_many(
        self, jobs: Sequence[Job], task: Task, monitor: Monitor = Monitor(), device: str = "cpu"
    ) -> list[PolicyCheckpoints[ConstantPolicy]]:
        policies = []
        for job in jobs:
            check_task(task, job.data.schema)
            policies.append(self.learned(job).to(device_of(device)))
        return [PolicyCheckpoints(policy, policy) for policy in policies]

    def learned(self, job: Job) -> ConstantPolicy:
        """The action of one table, whatever its task."""
        return ConstantPolicy(self, self._of(job.data.real), job.data.schema, Origin.of(job))

    def _of(self, rows: Transitions) -> Float[Tensor, " a"]:
        if self.action == "nothing":
            action = no_treatment(rows.schema)
            require(
                action is not None,
                "none of the treatments is named none, so there is no policy that gives nothing; use"
                " Constant('commonest')",
            )
            assert action is not None
            return action
        require(len(rows) > 0, "the table has no rows, so no action is the commonest; pass the logged ones")
        if isinstance(rows.actions, Discrete):
            return rows.actions.features(action_numbers(rows).bincount().argmax()).cpu()
        return torch.stack([_commonest(column) for column in rows.action.cpu().unbind(1)])

    def rebuild(self, saved: Saved) -> ConstantPolicy:
        """The policy back from its artifact."""
        return saved_constant(self, saved)


MOST_COLUMNS = 100
"""Columns, one for every level of a category, up to which practice is estimated as a baseline."""


def baseline_policies(log: Transitions, seed: int = 0) -> dict[str, Policy]:
    """Return the policies that any policy is compared with: practice, nothing, and the commonest action.

    Left out are practice in states of more than `MOST_COLUMNS` columns, nothing where no treatment is none, and the
    commonest action where it is nothing.
    """
    job = Job(log, seed)
    policies: dict[str, Policy] = {}
    practice = baseline_practice(log, seed)
    if practice is not None:
        policies[practice_name(log)] = practice
    nothing = no_treatment(log.schema)
    if nothing is not None:
        policies["nothing"] = Constant("nothing").learned(job)
    commonest = Constant("commonest").learned(job)
    if nothing is None or not torch.equal(commonest.action, nothing):
        policies["commonest action"] = commonest
    return policies


def baseline_practice(log: Transitions, seed: int = 0, personal: bool = False) -> PracticePolicy | None:
    """Return practice as estimated in a few seconds, with or without offsets of subjects; None for wide states and for
    one subject."""
    if log.schema.spread_width > MOST_COLUMNS or len(log.real.subject.unique()) < 2:
        return None
    recipe = Practice(trees=30, shrinkage=0.2, most=BASELINE_ROWS, personal=personal)
    return recipe.learned(Job(log, seed))


def practice_name(log: Transitions) -> str:
    """Return the name of practice that says how it acts."""
    return f"practice ({'most probable action' if isinstance(log.actions, Discrete) else 'median dose'})"


def _commonest(doses: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    values, counts = doses.unique(return_counts=True)
    often = int(counts.argmax())
    return values[often] if int(counts[often]) >= COMMON * len(doses) else doses.median()


def check_practice_rows(rows: Transitions) -> None:
    """Refuse a log that no practice can be estimated from."""
    require(len(rows) > 0, "the table has no rows; pass the logged ones")
    subjects = len(rows.subject.unique())
    require(subjects > 1, "the table has one subject, and practice is compared on held-out subjects; pass more")
    require(bool(rows.state.isfinite().all()), "the log has states that are not finite; fill them")
    require(bool(rows.action.isfinite().all()), "the log has doses that are not finite; fill or drop such rows")
    if isinstance(rows.actions, Discrete):
        action_numbers(rows)


@dataclass(frozen=True, eq=False)
class PracticeTable:
    """The sampled rows that functions are fitted to."""

    rows: Transitions
    columns: StandardisedColumns
    z: Array
    fold: Array
    """Fold of every row's subject."""
    folds: int
    seed: int

    @classmethod
    def of(cls, rows: Transitions, recipe: Practice, seed: int) -> "PracticeTable":
        picked = torch.randperm(len(rows), generator=generator(seed, "practice rows"))[: recipe.most].sort().values
        rows = rows[picked]
        spread = spread_levels(rows.state, rows.schema.categories)
        columns = _standardised(spread, len(rows.schema.states) - len(rows.schema.categories))
        subject = rows.subject.unique(return_inverse=True)[1]
        subjects = int(subject.max()) + 1
        folds = min(recipe.folds, subjects)
        fold = subject_folds(subjects, folds, derive(seed, "practice"))[subject]
        return cls(rows, columns, columns(spread).numpy(), fold.numpy(), folds, seed)


def _standardised(spread: Float[Tensor, "n w"], numeric: int) -> StandardisedColumns:
    """Means and deviations that a few far values do not set; indicators of levels stay as they are."""
    values = near(spread)
    mean, scale = values.mean(0), values.std(0, correction=0)
    mean[numeric:], scale[numeric:] = 0.0, 1.0
    return StandardisedColumns(mean, torch.where(scale > 1e-8, scale, 1.0))


@dataclass(frozen=True, eq=False)
class Additive:
    """One fitted function: intercept, line and trees, and its name."""

    name: str
    intercept: float
    slope: Array
    trees: tuple[Any, ...] = ()
    """Fitted trees of scikit-learn."""
    rate: float = 0.0

    def __call__(self, z: Array) -> Array:
        value = self.intercept + z @ self.slope
        for tree in self.trees:
            value = value + self.rate * tree.predict(z)[..., 0]
        return value


def functions(parts: Sequence[Additive], width: int, depth: int) -> AdditiveFunctions:
    """Export fitted functions to tensors."""
    count = max((len(part.trees) for part in parts), default=0)
    inner, leaves = 2**depth - 1, 2**depth
    feature = torch.zeros(len(parts), count, inner, dtype=torch.long)
    threshold = torch.zeros(len(parts), count, inner)
    leaf = torch.zeros(len(parts), count, leaves)
    for output, part in enumerate(parts):
        for number, tree in enumerate(part.trees):
            complete = _complete(tree, depth)
            feature[output, number], threshold[output, number], leaf[output, number] = complete
        leaf[output] *= part.rate
    intercept = torch.tensor([part.intercept for part in parts], dtype=torch.float)
    slope = torch.stack([torch.from_numpy(part.slope).float() for part in parts]).view(len(parts), width)
    return AdditiveFunctions(intercept, slope, feature, threshold, leaf)


def _complete(tree: Any, depth: int) -> tuple[Int[Tensor, " m"], Float[Tensor, " m"], Float[Tensor, " l"]]:
    """A tree of scikit-learn with all levels filled: below a leaf both sides are that leaf."""
    feature, threshold = torch.zeros(2**depth - 1, dtype=torch.long), torch.zeros(2**depth - 1)
    nodes = [0]
    for level in range(depth):
        after = []
        for place, node in enumerate(nodes):
            left, right = int(tree.children_left[node]), int(tree.children_right[node])
            if left >= 0:
                feature[2**level - 1 + place] = int(tree.feature[node])
                threshold[2**level - 1 + place] = _rounded_down(float(tree.threshold[node]))
            after += [left, right] if left >= 0 else [node, node]
        nodes = after
    return feature, threshold, torch.tensor([float(tree.value[node].item()) for node in nodes])


def _rounded_down(value: float) -> float:
    """The largest single-precision number that is not above a double-precision threshold."""
    single = np.float32(value)
    return float(np.nextafter(single, np.float32(-np.inf)) if single > value else single)


def _constant_function(name: str, value: float, width: int) -> Additive:
    return Additive(name, value, np.zeros(width))


# Doses


def _doses(table: PracticeTable, recipe: Practice) -> tuple[DosePractice, list[str]]:
    """Fit every dose column."""
    given, quantile, notes = [], [], []
    rows = table.rows
    has_zeros, logarithmic = [], []
    for column, name in enumerate(rows.action_names):
        dose = rows.action[:, column].double().numpy()
        zeros = bool(dose.min() >= 0 and (dose == 0).mean() >= FEW_ZEROS and (dose > 0).any())
        used = dose > 0 if zeros else np.ones(len(dose), dtype=bool)
        log_scale = bool((dose[used] > 0).all())
        seed = derive(table.seed, "dose", column)
        probability, note = _given(table, dose > 0, recipe, seed) if zeros else (None, "")
        curve, curve_note = _curve(table, dose, used, log_scale, recipe, seed)
        given.append(probability or _constant_function("constant", 0.0, table.z.shape[1]))
        quantile += curve
        has_zeros.append(zeros)
        logarithmic.append(log_scale)
        notes.append(f"{name}: {note}{curve_note}")
    width = table.z.shape[1]
    doses = len(rows.action_names)
    tables = {
        "low": rows.action.amin(0),
        "high": rows.action.amax(0),
        "has_zeros": torch.tensor(has_zeros),
        "logarithmic": torch.tensor(logarithmic),
        "offset": torch.zeros(doses),
        "centre": torch.zeros(doses),
        "between": torch.zeros(doses),
        "within": torch.ones(doses),
    }
    return DosePractice(
        table.columns,
        functions(given, width, recipe.depth),
        functions(quantile, width, recipe.depth),
        tables,
    ), notes


def _given(table: PracticeTable, given: Array, recipe: Practice, seed: int) -> tuple[Additive, str]:
    """Log odds that a dose is above 0."""
    candidates = {name: _classifier(name, recipe, seed) for name in KINDS}
    losses = dict.fromkeys(candidates, 0.0)
    for fold in range(table.folds):
        test = table.fold == fold
        for name, fit in candidates.items():
            odds = fit(table.z[~test], given[~test].astype(int), 2)[1](table.z[test])
            losses[name] += float(np.square(_sigmoid(odds) - given[test]).sum()) / len(given)
    best = min(losses, key=lambda name: losses[name])
    function = candidates[best](table.z, given.astype(int), 2)[1]
    return function, f"given in {given.mean():.0%} of the rows, by {best} (Brier score {losses[best]:.3g}); "


def _curve(
    table: PracticeTable, dose: Array, used: Array, log_scale: bool, recipe: Practice, seed: int
) -> tuple[list[Additive], str]:
    """Quantile functions of the doses that are used, one a level.

    The median is of the kind with the smallest error; the other levels are of the kind with the smallest pinball loss
    of the outer two, because the spread of the doses may depend on the state in another way.
    """
    z, fold = table.z[used], table.fold[used]
    y = np.log(dose[used]) if log_scale else dose[used]
    back = np.exp if log_scale else np.asarray
    middle: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    outer = dict(middle)
    if np.ptp(y) == 0 or len(np.unique(fold)) < 2:
        middle = outer = {"constant": 0.0}
    levels = (QUANTILES[MEDIAN], QUANTILES[0], QUANTILES[-1])
    for number in np.unique(fold) if len(middle) > 1 else ():
        test = fold == number
        for name in middle:
            fitted = _quantile_functions(name, z[~test], y[~test], levels, recipe, seed)
            errors = [back(y[test]) - back(function(z[test])) for function in fitted]
            losses = [_pinball(error, level) / len(y) for error, level in zip(errors, levels, strict=True)]
            middle[name] += 2 * losses[0]
            outer[name] += losses[1] + losses[2]
    best, best_outer = (min(losses, key=lambda name: losses[name]) for losses in (middle, outer))
    functions_of = _quantile_functions(best_outer, z, y, QUANTILES, recipe, seed)
    functions_of[MEDIAN] = _quantile_functions(best, z, y, levels[:1], recipe, seed)[0]
    what = "median of the doses above 0" if not used.all() else "median dose"
    note = f"{what} given the state by {best}, {middle[best]:.3g} off on held-out subjects"
    single = "" if best == "constant" else f" (one dose for all: {middle['constant']:.3g})"
    return functions_of, note + single


def _pinball(error: Array, level: float) -> float:
    return float(np.maximum(level * error, (level - 1) * error).sum())


def _quantile_functions(
    name: str, z: Array, y: Array, levels: Sequence[float], recipe: Practice, seed: int
) -> list[Additive]:
    """Quantile functions by one kind of model: those of what a line leaves, by trees or at a constant distance."""
    slope = np.zeros(z.shape[1]) if name == "constant" else _ridge(z, y)
    rest = y - z @ slope
    if name != "boosted trees":
        return [Additive(name, float(np.quantile(rest, level)), slope) for level in levels]
    from sklearn.ensemble import GradientBoostingRegressor

    fitted = []
    for level in levels:
        model: Any = GradientBoostingRegressor(
            loss="quantile",
            alpha=level,
            n_estimators=recipe.trees,
            max_depth=recipe.depth,
            learning_rate=recipe.shrinkage,
            min_samples_leaf=_least_rows(len(y)),
            subsample=0.5,
            random_state=seed % 2**32,
        )
        model.fit(z, rest)
        start = float(np.ravel(model.init_.constant_)[0])
        trees = tuple(tree.tree_ for tree in model.estimators_[:, 0])
        fitted.append(Additive(name, start, slope, trees, recipe.shrinkage))
    return fitted


def _ridge(z: Array, y: Array) -> Array:
    """Slopes of a ridge regression with a free intercept."""
    centred = z - z.mean(0)
    moments = centred.T @ centred + RIDGE * np.eye(z.shape[1])
    return np.linalg.solve(moments.astype(float), centred.T @ (y - y.mean()))


def _least_rows(rows: int) -> int:
    """Fewest rows of a leaf."""
    return max(5, min(100, rows // 50))


def _with_offsets(policy: PracticePolicy, rows: Transitions) -> PracticePolicy:
    """Keep the offsets of subjects where the first half of their records predicts the second.

    The product of a subject's mean residuals in both halves is an unbiased estimate of the variance between subjects,
    and a quarter of the squared difference, times the rows, one of the variance of a row: neighbouring rows that
    deviate alike are counted as what they are.
    """
    practice = policy.practice
    assert isinstance(practice, DosePractice)
    deviation = policy.deviations(rows).double()
    notes = list(policy.notes)
    for column in range(deviation.shape[1]):
        halves = _half_means(deviation[:, column], rows)
        if halves is None:
            continue
        first, second, count = halves
        centre = (first + second).mean() / 2
        product = (first - centre) * (second - centre)
        between = float(product.mean())
        error = float(product.std()) / len(product) ** 0.5
        if between <= SIGNIFICANT * error:
            continue
        practice.centre[column] = centre.float()
        practice.between[column] = between
        practice.within[column] = float((count * (first - second).square() / 4).mean().clamp(min=1e-12))
        spread = between**0.5
        unit = f"by a factor of {np.exp(spread):.3g}" if practice.logarithmic[column] else f"by {spread:.3g}"
        notes[column] += f"; subjects in the same state differ {unit} (one standard deviation)"
    return PracticePolicy(policy.recipe, practice, policy.schema, policy.origin, tuple(notes))


def _half_means(deviation: Float[Tensor, " n"], rows: Transitions) -> tuple[Tensor, Tensor, Tensor] | None:
    """Mean of the first and of the second half of every subject's deviations, and their number; None for too few."""
    order = rows.in_order()
    order = order[~deviation[order].isnan()]
    subject = rows.subject[order].unique_consecutive(return_counts=True)[1]
    parts = [part for part in deviation[order].split(subject.tolist()) if len(part) >= LEAST_DOSES]
    if len(parts) < LEAST_SUBJECTS:
        return None
    first = torch.stack([part[: len(part) // 2].mean() for part in parts])
    second = torch.stack([part[len(part) // 2 :].mean() for part in parts])
    return first, second, torch.tensor([float(len(part)) for part in parts], dtype=torch.double)


# Listed actions


def _actions(table: PracticeTable, recipe: Practice) -> tuple[ActionPractice, list[str]]:
    """Fit probabilities, choose the model by the Brier score, and calibrate them on held-out subjects."""
    actions = table.rows.actions
    assert isinstance(actions, Discrete)
    taken = action_numbers(table.rows).numpy()
    observed = np.unique(taken)
    code = np.searchsorted(observed, taken)
    count = len(observed)
    seed = derive(table.seed, "actions")
    names = KINDS if count > 1 else KINDS[:1]
    held_out = {name: np.zeros((len(code), count)) for name in names}
    for fold in range(table.folds):
        test = table.fold == fold
        for name in names:
            parts = _classifier(name, recipe, seed)(table.z[~test], code[~test], count)
            held_out[name][test] = _scores(parts, table.z[test])
    losses = {name: _brier(scores, code) for name, scores in held_out.items()}
    best = min(losses, key=lambda name: losses[name])
    temperature = min(TEMPERATURES, key=lambda t: _log_loss(held_out[best] / t, code)) if count > 1 else 1.0
    parts = _divided(_classifier(best, recipe, seed)(table.z, code, count), temperature)
    fitted = functions(parts, table.z.shape[1], recipe.depth)
    place = torch.from_numpy(observed)
    grown = {
        name: torch.zeros(actions.count, *part.shape[1:], dtype=part.dtype).index_copy_(0, place, part)
        for name, part in fitted.state_dict().items()
    }
    score = AdditiveFunctions(**grown)
    mask = torch.zeros(actions.count, dtype=torch.bool)
    mask[place] = True
    note = (
        f"{count} of {actions.count} actions in the log, their probabilities by {best}, Brier score {losses[best]:.3g}"
    )
    if best != "constant":
        note += f" on held-out subjects (without the state {losses['constant']:.3g})"
    return ActionPractice(table.columns, score, mask), [note]


Classifier = Callable[[Array, Array, int], list[Additive]]
"""From inputs, codes 0 … count − 1 and their count to a score for each; of two codes the first has score 0."""


def _classifier(name: str, recipe: Practice, seed: int) -> Classifier:
    def fit(z: Array, code: Array, count: int) -> list[Additive]:
        present = np.unique(code)
        if name == "constant" or len(present) < 2:
            return _frequencies(code, count, z.shape[1])
        if name == "linear":
            return _with_absent(_lines(_logistic().fit(z, code), name), present, count)
        return _with_absent(_boosted(z, code, len(present), recipe, seed), present, count)

    return fit


def _frequencies(code: Array, count: int, width: int) -> list[Additive]:
    counts = np.bincount(code, minlength=count) + RARE_ROWS / count
    scores = np.log(counts / counts.sum())
    return [_constant_function("constant", float(score), width) for score in scores - (count == 2) * scores[0]]


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    class Quiet(LogisticRegression):
        """One that does not warn of few iterations: the Brier score shows whether the fit is good enough."""

        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:  # noqa: N803
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return super().fit(X, y, sample_weight)

    return Quiet(C=1 / RIDGE, max_iter=200, tol=1e-3)


def _lines(model: Any, name: str) -> list[Additive]:
    """Scores of a fitted logistic regression."""
    lines = [Additive(name, float(b), w) for w, b in zip(model.coef_, model.intercept_, strict=True)]
    return lines if len(lines) > 1 else [_constant_function(name, 0.0, model.coef_.shape[1]), *lines]


def _boosted(z: Array, code: Array, count: int, recipe: Practice, seed: int) -> list[Additive]:
    """Scores of a logistic regression and of boosted trees of what it leaves."""
    from sklearn.ensemble import GradientBoostingClassifier

    outputs = 1 if count == 2 else count
    rounds = max(1, min(recipe.trees, MOST_TREES // outputs))
    slower = recipe.trees / rounds
    rate = min(MOST_RATE, recipe.shrinkage * slower) if slower > 1 else recipe.shrinkage
    model: Any = GradientBoostingClassifier(
        init=_logistic(),
        n_estimators=rounds,
        max_depth=recipe.depth,
        learning_rate=rate,
        min_samples_leaf=_least_rows(len(code)),
        subsample=0.5,
        random_state=seed % 2**32,
    ).fit(z, code)
    trees = [tuple(tree.tree_ for tree in model.estimators_[:, output]) for output in range(outputs)]
    lines = _lines(model.init_, "boosted trees")
    trees = [(), *trees] if count == 2 else trees
    return [replace(line, trees=part, rate=rate) for line, part in zip(lines, trees, strict=True)]


ABSENT = -8.0
"""Score, beside those of the others, of an action that the training subjects of a fold lack."""


def _with_absent(parts: list[Additive], present: Array, count: int) -> list[Additive]:
    width = len(parts[0].slope)
    by_code = dict(zip(present.tolist(), parts, strict=True))
    return [by_code.get(code) or _constant_function(parts[0].name, ABSENT, width) for code in range(count)]


def _divided(parts: list[Additive], temperature: float) -> list[Additive]:
    return [
        replace(
            part,
            intercept=part.intercept / temperature,
            slope=part.slope / temperature,
            rate=part.rate / temperature,
        )
        for part in parts
    ]


def _scores(parts: list[Additive], z: Array) -> Array:
    return np.stack([part(z) for part in parts], 1)


def _log_probabilities(scores: Array) -> Array:
    top = scores - scores.max(1, keepdims=True)
    return top - np.log(np.exp(top).sum(1, keepdims=True))


def _brier(scores: Array, code: Array) -> float:
    probabilities = np.exp(_log_probabilities(scores))
    taken = np.take_along_axis(probabilities, code[:, None], 1)[:, 0]
    return float((np.square(probabilities).sum(1) - 2 * taken + 1).mean())


def _log_loss(scores: Array, code: Array) -> float:
    return -float(np.take_along_axis(_log_probabilities(scores), code[:, None], 1).mean())


def _sigmoid(odds: Array) -> Array:
    return 1 / (1 + np.exp(-odds))
