"""Offline learners of d3rlpy 2.8 on a log of this package, each with its library's settings.

Needs `pip install d3rlpy==2.8.1`. States are standardised and doses brought to −1…1, as its documentation advises.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.data.spaces import ActionSpace, Discrete
from counterpoint.data.transitions import Transitions

Choose = Callable[[Tensor], Tensor]
"""From states to the features of the chosen actions."""


def offline(method: str, log: Transitions, seed: int, updates: int, discount: float) -> Choose:
    """Learn from a log by a learner of d3rlpy."""
    import d3rlpy
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    d3rlpy.seed(seed)
    actions, data = log.schema.actions, dataset(log)
    learner = learners(d3rlpy.algos, discount)[method]().create(device="cpu:0")
    learner.fit(
        data,
        n_steps=updates,
        n_steps_per_epoch=updates,
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )
    return lambda state: features(actions, learner.predict(state.numpy()))


def learners(algos: Any, discount: float) -> Mapping[str, Callable[[], Any]]:
    """Return d3rlpy's configurations by name."""
    from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler

    def scaled(config: Any, doses: bool) -> Callable[[], Any]:
        options: dict[str, Any] = {"gamma": discount, "observation_scaler": StandardObservationScaler()}
        return lambda: config(**options, **({"action_scaler": MinMaxActionScaler()} if doses else {}))

    doses = {"TD3+BC": algos.TD3PlusBCConfig, "IQL": algos.IQLConfig, "CQL": algos.CQLConfig, "BC": algos.BCConfig}
    listed = {
        "DiscreteBCQ": algos.DiscreteBCQConfig,
        "DiscreteCQL": algos.DiscreteCQLConfig,
        "DiscreteBC": algos.DiscreteBCConfig,
    }
    return {
        **{name: scaled(config, True) for name, config in doses.items()},
        **{name: scaled(config, False) for name, config in listed.items()},
    }


def dataset(log: Transitions) -> Any:
    """Return a log as d3rlpy's: a cut piece is a timeout; the last next state of each piece is lost there."""
    from d3rlpy.constants import ActionSpace as Kind
    from d3rlpy.dataset import MDPDataset

    listed = isinstance(log.schema.actions, Discrete)
    return MDPDataset(
        observations=log.state.numpy(),
        actions=log.action_index[:, None].numpy() if listed else log.action.numpy(),
        rewards=log.reward[:, None].numpy(),
        terminals=log.terminated.float().numpy(),
        timeouts=log.truncated.float().numpy(),
        action_space=Kind.DISCRETE if listed else Kind.CONTINUOUS,
        action_size=log.schema.actions.count if isinstance(log.schema.actions, Discrete) else log.schema.actions.width,
    )


def features(actions: ActionSpace, chosen: np.ndarray) -> Float[Tensor, "n a"]:
    """Return what another library chose, in this package's terms and inside the bounds."""
    if isinstance(actions, Discrete):
        return actions.features(torch.as_tensor(chosen).long().flatten())
    low, high = torch.tensor(actions.low), torch.tensor(actions.high)
    return torch.as_tensor(chosen, dtype=torch.float32).view(-1, actions.width).clamp(low, high)
