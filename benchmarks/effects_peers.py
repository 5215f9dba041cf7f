"""Orthogonal effect estimates beside econml's on the same logs: `python benchmarks/effects_peers.py [logs]`.

Needs `pip install econml` next to this package. The process is partially linear with known effects: two doses follow a
symptom by curves of it, one fills a slow compartment. LinearDML and CausalForestDML estimate the effect one step ahead
and are given our features of the history and gradient-boosted trees; DynamicDML estimates the effects of every period
of a panel on its last state, with lassos on the state, its tanh and its sine, in which the truth is nearly linear. All
have folds of subjects. A line is (estimator, step): mean error, root mean square error, and share of 90% intervals that
hold the truth. The last line is a JSON object of the figures.
"""

import json
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float

from counterpoint.core.seeding import derive
from counterpoint.data.spaces import Box
from counterpoint.data.transitions import Transitions
from counterpoint.models.effects.history import History
from counterpoint.models.effects.orthogonal import estimate_effects

SUBJECTS, STEPS = 400, 4
DYNAMICS = np.array([[0.3, 0.5], [0.0, 0.5]])
DOSES = np.array([[0.2, -0.1], [0.3, 0.0]])
LEVEL = 0.9
Answer = tuple[str, str, int, float, float, float]
"""Estimator, dose, step, value, low, high."""


def process(seed: int) -> tuple[Float[np.ndarray, "n t s"], Float[np.ndarray, "n t a"], Float[np.ndarray, "n t s"]]:
    """States, doses and next states: y' = .3y + .5d + .2a − .1b + sin 2z + e, d' = .5d + .3a + e'."""
    random = np.random.default_rng(derive(seed, "process"))
    state = random.normal(size=(SUBJECTS, 4))
    state[:, 1] = 0.0
    states, doses, after = [], [], []
    for _ in range(STEPS):
        wanted = np.stack([np.tanh(1.5 * state[:, 0]) + 0.3 * state[:, 0] * state[:, 2], state[:, 3]], 1)
        dose = wanted + 0.5 * random.normal(size=(SUBJECTS, 2))
        moved = state[:, :2] @ DYNAMICS.T + dose @ DOSES.T
        moved[:, 0] += np.sin(2 * state[:, 2])
        moved += random.normal(size=moved.shape) * [1.0, 0.1]
        context = 0.8 * state[:, 2:] + 0.6 * random.normal(size=(SUBJECTS, 2))
        states.append(state)
        doses.append(dose)
        state = np.concatenate([moved, context], 1)
        after.append(state)
    return np.stack(states, 1), np.stack(doses, 1), np.stack(after, 1)


def log(seed: int) -> Transitions:
    tables = (torch.tensor(table.reshape(SUBJECTS * STEPS, -1)).float() for table in process(seed))
    state, action, after = tables
    flags = torch.zeros(len(state), dtype=torch.bool)
    return Transitions.logged(
        state=state,
        action=action,
        next_state=after,
        reward=flags.float(),
        terminated=flags,
        truncated=flags,
        subject=torch.arange(SUBJECTS).repeat_interleave(STEPS),
        step=torch.arange(STEPS).repeat(SUBJECTS),
        actions=Box((-20.0, -20.0), (20.0, 20.0)),
        state_names=("y", "d", "z1", "z2"),
        action_names=("a", "b"),
    )


def truth(dose: str, step: int) -> float:
    return float((np.linalg.matrix_power(DYNAMICS, step - 1) @ DOSES)[0, ("a", "b").index(dose)])


def ours(rows: Transitions, seed: int) -> Iterator[Answer]:
    for one in estimate_effects(rows, ("y",), (1, 2, 4), seed):
        yield "counterpoint", one.dose, one.step, one.value, *one.interval(LEVEL)


def econml_one_step(rows: Transitions, seed: int) -> Iterator[Answer]:
    from econml.dml import CausalForestDML, LinearDML  # pyright: ignore[reportMissingImports]
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.multioutput import MultiOutputRegressor

    history = History.of(rows)
    features, outcome = history.features(2), history.outcome(0, 1)
    trees = HistGradientBoostingRegressor(max_iter=60, max_leaf_nodes=8, random_state=0)
    settings = {"model_y": trees, "model_t": MultiOutputRegressor(trees), "cv": 5, "random_state": seed}
    linear = LinearDML(**settings)
    linear.fit(outcome, history.dose, X=None, W=features, groups=history.subject)
    forest = CausalForestDML(**settings, n_estimators=200)
    forest.fit(outcome, history.dose, X=features[:, :1], W=features, groups=history.subject)
    low, high = linear.intercept__interval(alpha=1 - LEVEL)
    average = forest.const_marginal_ate_inference(features[:, :1])
    bounds = np.ravel(average.conf_int_mean(alpha=1 - LEVEL)[0]), np.ravel(average.conf_int_mean(alpha=1 - LEVEL)[1])
    for i, dose in enumerate(("a", "b")):
        yield "econml LinearDML", dose, 1, np.ravel(linear.intercept_)[i], np.ravel(low)[i], np.ravel(high)[i]
        yield "econml CausalForestDML", dose, 1, np.ravel(average.mean_point)[i], bounds[0][i], bounds[1][i]


def econml_panel(rows: Transitions, seed: int) -> Iterator[Answer]:
    """Effects on the last state: a dose in the last period acts one step ahead, one before that two, and so on."""
    from econml.panel.dml import DynamicDML  # pyright: ignore[reportMissingImports]
    from sklearn.linear_model import LassoCV, MultiTaskLassoCV

    history = History.of(rows)
    outcome = np.repeat(history.after[history.ahead == 1, 0], STEPS)
    panel = DynamicDML(model_y=LassoCV(), model_t=MultiTaskLassoCV(), cv=5, random_state=seed)
    basis = np.concatenate([history.state, np.tanh(1.5 * history.state), np.sin(2 * history.state)], 1)
    panel.fit(outcome, history.dose, X=None, W=basis, groups=history.subject)
    low, high = panel.intercept__interval(alpha=1 - LEVEL)
    for step in (1, 2, 4):
        for i, dose in enumerate(("a", "b")):
            place = 2 * (STEPS - step) + i
            values = (np.ravel(part)[place] for part in (panel.intercept_, low, high))
            yield "econml DynamicDML", dose, step, *values


def main(logs: int) -> int:
    try:
        import econml  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("econml is not installed; run pip install econml next to this package", file=sys.stderr)
        return 2
    answers: list[Answer] = []
    seconds: dict[str, float] = {}
    for seed in range(logs):
        rows = log(seed)
        for estimator in (ours, econml_one_step, econml_panel):
            begun = time.process_time()
            answers += estimator(rows, seed)
            seconds[estimator.__name__] = seconds.get(estimator.__name__, 0.0) + time.process_time() - begun
    figures = []
    for name, step in sorted({(name, step) for name, _, step, *_ in answers}):
        part = [(value - truth(dose, step), low <= truth(dose, step) <= high)
                for other, dose, k, value, low, high in answers if (other, k) == (name, step)]  # fmt: skip
        errors, held = (np.array(column, dtype=float) for column in zip(*part, strict=True))
        bias, rmse, covered = errors.mean(), (errors**2).mean() ** 0.5, held.mean()
        numbers = {"bias": round(float(bias), 4), "rmse": round(float(rmse), 4), "covered": round(float(covered), 3)}
        figures.append({"estimator": name, "step": step, **numbers})
        print(figures[-1])
    print(
        json.dumps({"logs": logs, "seconds": {k: round(v / logs, 2) for k, v in seconds.items()}, "figures": figures})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
