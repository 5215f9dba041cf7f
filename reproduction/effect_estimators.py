"""Estimators of the effects benchmark by their names in the table: fitted models, and differences of regressions.

A fitted SCM replays a window: it abducts the noise of every logged step and predicts the states under the other
actions, one after the other. A regression g of the outcome after h steps on the state and the actions answers with

    factual outcome + g(s, a') − g(s, a)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.seeding import derive, generator
from counterpoint.data.jobs import Job
from counterpoint.data.spaces import places
from counterpoint.data.transitions import Transitions
from counterpoint.models.base import Recipe
from counterpoint.models.scm.auto import AutoSCM
from counterpoint.models.scm.base import StructuralCausalModel
from counterpoint.models.scm.density import default_scm
from counterpoint.models.scm.partially_linear import PartiallyLinearSCM
from counterpoint.models.scm.path_intervals import counterfactual_paths
from counterpoint.models.scm.random_effects import RandomEffects
from reproduction.peers_dowhy import DoWhyGCM
from reproduction.tasks.confounded import Questions

Numbers = Float[np.ndarray, "n w"]
Answer = Callable[[Questions], Float[Tensor, "n s"]]
"""From questions to the states that are answered."""


class EffectEstimator(Protocol):
    """A recipe whose fits answer questions."""

    def fit_many(self, jobs: Sequence[Job], device: str) -> Sequence[Answer]:
        """Fit one for every log."""
        ...


@dataclass(frozen=True)
class FittedSCM:
    """A structural causal model of this package."""

    recipe: Recipe[Any]

    def fit_many(self, jobs: Sequence[Job], device: str) -> Sequence[Answer]:
        return [SCMReplay(model.to("cpu")) for model in self.recipe.fit_many(jobs, device=device)]


@dataclass(frozen=True)
class SCMReplay:
    """Answers of a fitted SCM."""

    model: StructuralCausalModel

    def __call__(self, questions: Questions) -> Float[Tensor, "n s"]:
        rows, schema = questions.rows, self.model.schema
        theta = self.model.subjects(rows)
        noise = self.model.abduct(rows.with_next(), theta[rows.has_next])
        place = torch.full((len(rows),), -1)
        place[rows.has_next] = torch.arange(len(noise))
        exogenous = places(schema.exogenous, rows.state.device)
        state = rows.state[questions.window[:, 0]]
        for k in range(questions.window.shape[1]):
            row = questions.window[:, k]
            action = questions.plan[:, k]
            after = self.model.predict(state, action, noise[place[row]], theta[row])
            if schema.exogenous:  # No action changes them, so they are as they were.
                after[:, exogenous] = rows.next_state[row][:, exogenous]
                after = schema.held(after, state, action)
            state = after
        return state

    def interval(self, questions: Questions, level: float) -> tuple[Float[Tensor, "n s"], Float[Tensor, "n s"]]:
        """Return both ends of the intervals of answers."""
        found = counterfactual_paths(self.model, questions.rows, questions.window, questions.plan, level)
        return found.low[:, -1], found.high[:, -1]

    def distance(self, questions: Questions) -> Float[Tensor, " n"]:
        """Return the distance of the first action from those that were logged in such states."""
        return self.model.dose_distance(questions.rows.state[questions.window[:, 0]], questions.plan[:, 0])


@dataclass(frozen=True)
class Difference:
    """A regression of the outcome on state and actions, asked twice."""

    regression: str
    """A name of `REGRESSIONS`."""

    def fit_many(self, jobs: Sequence[Job], device: str) -> Sequence[Answer]:
        return [RegressionDifference(self, job.data, job.seed) for job in jobs]


@dataclass(frozen=True, eq=False)
class RegressionDifference:
    """Answers of regressions that are fitted for the horizon and the columns asked about."""

    recipe: Difference
    rows: Transitions
    seed: int

    def __call__(self, questions: Questions) -> Float[Tensor, "n s"]:
        window = self.rows.windows(questions.window.shape[1]).rows
        window = window[self.rows.has_next[window].all(1)]
        state, action = _numbers(self.rows.state[window[:, 0]]), _numbers(self.rows.action[window].flatten(1))
        asked = _numbers(questions.rows.state[questions.window[:, 0]])
        logged, plan = _numbers(questions.logged.flatten(1)), _numbers(questions.plan.flatten(1))
        answer = questions.factual.clone()
        for column in questions.columns:
            outcome = _numbers(self.rows.next_state[window[:, -1], column] - self.rows.state[window[:, 0], column])
            fitted = REGRESSIONS[self.recipe.regression](state, action, outcome, derive(self.seed, column) % 2**31)
            answer[:, column] += torch.from_numpy(fitted(asked, plan) - fitted(asked, logged)).to(answer)
        return answer


def boosted_trees(state: Numbers, action: Numbers, outcome: np.ndarray, seed: int) -> Callable[..., np.ndarray]:
    """Fit gradient-boosted trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    fitted = HistGradientBoostingRegressor(random_state=seed).fit(np.hstack([state, action]), outcome)
    return lambda state, action: fitted.predict(np.hstack([state, action]))


def ridge(state: Numbers, action: Numbers, outcome: np.ndarray, seed: int) -> Callable[..., np.ndarray]:
    """Fit a ridge regression on the state, its squares, the actions, and their products with the state."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def features(state: Numbers, action: Numbers) -> Numbers:
        products = (state[:, :, None] * action[:, None]).reshape(len(state), -1)
        return np.hstack([state, state**2, action, products])

    fitted = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 13))).fit(features(state, action), outcome)
    return lambda state, action: fitted.predict(features(state, action))


def line(state: Numbers, action: Numbers, outcome: np.ndarray, seed: int) -> Callable[..., np.ndarray]:
    """Fit a linear regression without products."""
    from sklearn.linear_model import LinearRegression

    fitted = LinearRegression().fit(np.hstack([state, action]), outcome)
    return lambda state, action: fitted.predict(np.hstack([state, action]))


REGRESSIONS = {"line": line, "ridge": ridge, "boosted trees": boosted_trees}
"""From states, actions, outcomes and a seed to a fitted function of states and actions."""


@dataclass(frozen=True)
class DoubleMachineLearning:
    """econml's LinearDML or CausalForestDML, with boosted trees as nuisances, cross-fitted by subject.

    The treatment is the action of the first step; the actions of later steps are controls.
    """

    name: str
    """LinearDML or CausalForestDML."""

    def fit_many(self, jobs: Sequence[Job], device: str) -> Sequence[Answer]:
        return [DMLDifference(self.name, job.data, job.seed) for job in jobs]


@dataclass(frozen=True, eq=False)
class DMLDifference:
    """Answers of double machine learning, fitted for the horizon and the columns asked about."""

    name: str
    rows: Transitions
    seed: int

    def __call__(self, questions: Questions) -> Float[Tensor, "n s"]:
        from econml import dml  # pyright: ignore[reportMissingImports]
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.model_selection import GroupKFold
        from sklearn.multioutput import MultiOutputRegressor

        window = self.rows.windows(questions.window.shape[1]).rows
        window = window[self.rows.has_next[window].all(1)]
        state, action = _numbers(self.rows.state[window[:, 0]]), _numbers(self.rows.action[window[:, 0]])
        later = _numbers(self.rows.action[window[:, 1:]].flatten(1))
        subject = self.rows.subject[window[:, 0]].numpy()
        folds = list(GroupKFold(min(5, len(np.unique(subject)))).split(state, groups=subject))
        columns = list(questions.columns)
        change = self.rows.next_state[window[:, -1]][:, columns] - self.rows.state[window[:, 0]][:, columns]
        estimator = getattr(dml, self.name)(
            model_y=MultiOutputRegressor(HistGradientBoostingRegressor(random_state=0)),
            model_t=MultiOutputRegressor(HistGradientBoostingRegressor(random_state=0)),
            cv=folds,
            random_state=self.seed % 2**31,
        )
        controls = later if later.shape[1] else None
        estimator.fit(_numbers(change), action, X=state, W=controls)
        asked = _numbers(questions.rows.state[questions.window[:, 0]])
        logged, plan = _numbers(questions.logged[:, 0]), _numbers(questions.plan[:, 0])
        effect = estimator.effect(asked, T0=logged, T1=plan).reshape(len(asked), len(columns))
        answer = questions.factual.clone()
        answer[:, columns] += torch.from_numpy(effect).to(answer)
        return answer


@dataclass(frozen=True)
class DoWhy:
    """DoWhy's graphical causal models; they answer about one step."""

    def fit_many(self, jobs: Sequence[Job], device: str) -> Sequence[Answer]:
        return [_one_step_of(model) for model in DoWhyGCM().fit_many(jobs, device)]


def _one_step_of(model: Any) -> Answer:
    def answer(questions: Questions) -> Float[Tensor, "n s"]:
        rows = questions.rows[questions.window[:, 0]]
        return model.imagine(rows, questions.plan, generator(0, "unused"))[:, 0]

    return answer


def _numbers(values: Tensor) -> np.ndarray:
    return values.double().numpy()


def estimators() -> dict[str, EffectEstimator]:
    """Return all estimators whose libraries are installed; those of this package come first."""
    found: dict[str, EffectEstimator] = {
        "default SCM": FittedSCM(default_scm()),
        "auto": FittedSCM(AutoSCM()),
        "partially linear": FittedSCM(PartiallyLinearSCM()),
        "random effects": FittedSCM(RandomEffects()),
        **{name: Difference(name) for name in REGRESSIONS},
    }
    if find_spec("econml"):
        found |= {name: DoubleMachineLearning(name) for name in ("LinearDML", "CausalForestDML")}
    if find_spec("dowhy"):
        found["DoWhy gcm"] = DoWhy()
    return found


ONE_STEP_ONLY = ("DoWhy gcm",)
"""Estimators that do not answer about several steps."""
OURS = ("default SCM", "auto", "partially linear", "random effects")
SLOW = ("auto",)
"""Estimators that are run only where they are named: they fit several of the others."""


def usual() -> Mapping[str, EffectEstimator]:
    """Return the estimators that are run where none is named."""
    return {name: estimator for name, estimator in estimators().items() if name not in SLOW}
