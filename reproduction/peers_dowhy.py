"""DoWhy's graphical causal models as an estimator of the counterfactual benchmark.

    s₁ … s_d, a  →  s'_i  for every i,        x_parents → x_i where a graph is given

`InvertibleStructuralCausalModel` with the mechanisms that `gcm.auto` assigns, which are regressions with additive noise
chosen by cross-validation (Blöbaum et al., "DoWhy-GCM", JMLR 2024).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.errors import CounterpointError
from counterpoint.core.seeding import derive
from counterpoint.data.jobs import NO_THETA, Job
from counterpoint.data.transitions import Transitions

if TYPE_CHECKING:
    from pandas import DataFrame

    from counterpoint.nets.conditional import Parents


@dataclass(frozen=True)
class DoWhyGCM:
    """Mechanisms assigned and fitted by DoWhy, with its default settings."""

    def fit_many(self, jobs: Sequence[Job], device: str) -> list["DoWhyModel"]:
        """Fit one model for each job, one after the other, on the processor."""
        return [DoWhyModel(_transition_model(job)) for job in jobs]

    def fit_graph(
        self, tables: Sequence[Float[Tensor, "n x"]], parents: "Parents", seeds: Sequence[int]
    ) -> list["DoWhyGraph"]:
        """Fit one model for each table of variables with a known graph."""
        edges = [(f"x{j}", f"x{i}") for i, causes in enumerate(parents) for j in causes]
        pairs = zip(tables, seeds, strict=True)
        return [DoWhyGraph(_fitted(_columns(x=x), edges, derive(seed, "dowhy"))) for x, seed in pairs]


class DoWhyModel:
    """A fitted model of s' given (s, a)."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def imagine(
        self, rows: Transitions, action: Float[Tensor, "n k a"], random: torch.Generator, theta: Tensor = NO_THETA
    ) -> Float[Tensor, "n k s"]:
        """Return counterfactual next states under each of the actions."""
        seen = _columns(s=rows.state, a=rows.action, t=rows.next_state)
        answers = [_counterfactual(self.model, seen, _columns(a=choice)) for choice in action.unbind(1)]
        return torch.stack([_tensor(answer, _names("t", rows.state)) for answer in answers], 1)

    def sample(
        self, state: Tensor, action: Tensor, random: torch.Generator, theta: Tensor = NO_THETA
    ) -> Float[Tensor, "n s"]:
        """Draw next states."""
        inputs, names = _columns(s=state, a=action), [f"t{i}" for i in range(state.shape[1])]
        with _repeatable(_seed(random)):
            drawn = [
                self.model.causal_mechanism(name).draw_samples(_in_order(self.model, name, inputs)) for name in names
            ]
        return torch.as_tensor(np.concatenate(drawn, 1)).float()


class DoWhyGraph:
    """A fitted model of variables with a known graph."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def counterfactual(self, x: Float[Tensor, "n x"], held: Mapping[int, float]) -> Float[Tensor, "n x"]:
        """Return the same rows under do(x = value) for the variables in `held`."""
        fixed = {f"x{i}": np.full(len(x), value) for i, value in held.items()}
        return _tensor(_counterfactual(self.model, _columns(x=x), fixed), _names("x", x))

    def sample(self, count: int, random: torch.Generator, held: Mapping[int, float]) -> Float[Tensor, "n x"]:
        """Draw new rows under do(x = value)."""
        fixed = {f"x{i}": lambda _, value=value: value for i, value in held.items()}
        with _repeatable(_seed(random)):
            drawn = _gcm().interventional_samples(self.model, fixed, num_samples_to_draw=count)
        return _tensor(drawn, [f"x{i}" for i in range(len(self.model.graph))])


def _transition_model(job: Job) -> Any:
    rows = job.data[job.data.has_next]
    columns = _columns(s=rows.state, a=rows.action, t=rows.next_state)
    causes, effects = [name for name in columns if name[0] != "t"], [name for name in columns if name[0] == "t"]
    return _fitted(columns, [(cause, effect) for cause in causes for effect in effects], derive(job.seed, "dowhy"))


def _fitted(columns: "DataFrame", edges: Sequence[tuple[str, str]], seed: int) -> Any:
    """Fit a model; DoWhy stores mechanisms in the graph, so every model has its own."""
    from networkx import DiGraph

    gcm, graph = _gcm(), DiGraph(edges)
    graph.add_nodes_from(columns)
    model = gcm.InvertibleStructuralCausalModel(graph)
    with _repeatable(seed):
        gcm.auto.assign_causal_mechanisms(model, columns)
        gcm.fit(model, columns)
    return model


def _counterfactual(model: Any, seen: "DataFrame", held: "Mapping[str, np.ndarray] | DataFrame") -> "DataFrame":
    """Counterfactual samples; DoWhy calls an intervention once for each row, in their order."""
    values = {str(name): iter(np.asarray(held[name])) for name in held}
    fixed = {name: lambda _, column=column: next(column) for name, column in values.items()}
    return _gcm().counterfactual_samples(model, fixed, observed_data=seen)


def _in_order(model: Any, name: str, inputs: "DataFrame") -> np.ndarray:
    """The parents' values in the order in which DoWhy's mechanisms expect them."""
    from dowhy.graph import get_ordered_predecessors  # pyright: ignore[reportMissingImports]

    return inputs[get_ordered_predecessors(model.graph, name)].to_numpy()


def _columns(**tables: Float[Tensor, "n w"]) -> "DataFrame":
    """Columns s0, s1, …, a0, … of the tables called s, a, …"""
    from pandas import DataFrame

    numbers = {name: column for key, x in tables.items() for name, column in zip(_names(key, x), x.T, strict=True)}
    return DataFrame({name: column.double().cpu().numpy() for name, column in numbers.items()})


def _names(key: str, x: Float[Tensor, "n w"]) -> list[str]:
    return [f"{key}{i}" for i in range(x.shape[1])]


def _tensor(columns: "DataFrame", names: Sequence[str]) -> Float[Tensor, "n w"]:
    return torch.as_tensor(np.stack([columns[name] for name in names], 1)).float()


def _seed(random: torch.Generator) -> int:
    return int(torch.randint(2**31, (), generator=random, device=random.device))


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Set one seed and one thread. DoWhy draws from numpy's global state, which is restored afterwards."""
    from threadpoolctl import threadpool_limits

    config, state = _gcm().config, np.random.get_state()
    shown, jobs = config.show_progress_bars, config.default_n_jobs
    np.random.seed(seed % 2**32)
    config.show_progress_bars, config.default_n_jobs = False, 1
    try:
        with threadpool_limits(1):
            yield
    finally:
        config.show_progress_bars, config.default_n_jobs = shown, jobs
        np.random.set_state(state)


def _gcm() -> Any:
    try:
        from dowhy import gcm  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise CounterpointError(
            "DoWhy is not installed; run pip install 'counterpoint[bench]', or name other methods"
        ) from None
    return gcm
