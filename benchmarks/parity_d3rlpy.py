"""Our BCQ beside d3rlpy's DiscreteBCQ on the same batch and weights: `python benchmarks/parity_d3rlpy.py`.

Needs `pip install d3rlpy==2.8.1` next to this package. Batch and weights are written as sines, so that no generator has
to agree; `tests/test_bcq.py` keeps the numbers that d3rlpy gives here. The last line is a JSON object of the figures.

One difference is d3rlpy's alone: its penalty takes the logits after normalisation (they are read back from a torch
`Categorical`), the authors' program and ours take them before. Both penalties are printed; all else must agree.
"""

import json
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from counterpoint.data.spaces import Discrete
from counterpoint.learners.baselines.bcq import (
    BCQ,
    BehaviourCloningLoss,
)
from counterpoint.learners.d3qn import (
    D3QN,
    DoubleQTarget,
    QLearner,
    QObjective,
)
from counterpoint.nets.training import Schedule

ROWS, STATE, ACTIONS, HIDDEN = 32, 4, 6, (16, 16)
THRESHOLD, PENALTY, DISCOUNT = 0.3, 0.5, 0.97
Layers = list[tuple[Tensor, Tensor]]


def wave(*shape: int, phase: float, size: float = 1.0) -> Tensor:
    """Numbers without a generator: size·sin(1.7·i² + phase)."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (size * torch.sin(1.7 * count.square() + phase)).float().view(shape)


def layers(phase: float, size: float = 0.6) -> Layers:
    """Weights [inputs, outputs] and biases of one network."""
    widths = (STATE, *HIDDEN, ACTIONS)
    return [
        (wave(before, after, phase=phase + i, size=size), wave(after, phase=phase - i, size=0.3))
        for i, (before, after) in enumerate(pairwise(widths))
    ]


def batch() -> dict[str, Tensor]:
    """Rows as a table of value learning; every fifth ends."""
    rows = torch.arange(ROWS)
    return {
        "state": wave(ROWS, STATE, phase=0.1),
        "action": (rows * 7) % ACTIONS,
        "reward": wave(ROWS, phase=0.5, size=2.0),
        "next_state": wave(ROWS, STATE, phase=0.9),
        "not_terminated": (rows % 5 != 0).float(),
        "imagined": torch.zeros(ROWS, dtype=torch.bool),
    }


NETWORKS = {"q": layers(0.2), "target": layers(1.2), "behaviour": layers(2.2)}


def learner(penalty: float = PENALTY, discount: float = DISCOUNT) -> QLearner:
    """BCQ on this batch, with these weights."""
    recipe = BCQ(THRESHOLD, penalty, D3QN(hidden=HIDDEN, schedule=Schedule(steps=1)))
    objective = QObjective(Discrete.one_hot(ACTIONS), DoubleQTarget(discount), BehaviourCloningLoss(penalty))
    online = recipe.build(STATE, ACTIONS, 1)
    made = QLearner(online, recipe.build, [batch()], recipe.learner, objective, None)
    for network, name in ((made.online, "q"), (made.target, "target")):
        fill(network, NETWORKS[name], NETWORKS["behaviour"])
    return made


def ours(penalty: float = PENALTY) -> dict[str, Any]:
    """Losses of one update and the greedy actions in the batch's states."""
    bcq = learner(penalty)
    greedy = bcq.online(bcq.state)[0].argmax(-1)
    losses = bcq.update({"rows": torch.arange(ROWS)[None]})
    return {"value": float(losses["loss"]), "imitation": float(losses["penalty"]), "greedy": greedy.tolist()}


@torch.no_grad()
def fill(network: Any, q: Layers, behaviour: Layers) -> None:
    """The plain Q as a dueling one: advantage = Q and value = mean Q; states are taken as they are."""
    last, bias = q[-1]
    dueling = [*q[:-1], (torch.cat([last.mean(1, keepdim=True), last], 1), torch.cat([bias.mean()[None], bias]))]
    for net, source in ((network.net, dueling), (network.behaviour, behaviour)):
        for layer, (weight, offset) in zip(net.layers[::2], source, strict=True):
            layer.weight.copy_(weight[None])
            layer.bias.copy_(offset[None, None])
    network.states.take(torch.zeros(1, 1, STATE), torch.ones(1, 1, STATE))


def theirs() -> dict[str, Any]:
    """The same from d3rlpy."""
    from d3rlpy.algos import DiscreteBCQConfig
    from d3rlpy.models import VectorEncoderFactory
    from d3rlpy.torch_utility import TorchMiniBatch

    encoder = VectorEncoderFactory(hidden_units=list(HIDDEN))
    config = DiscreteBCQConfig(
        encoder_factory=encoder, gamma=DISCOUNT, beta=PENALTY, action_flexibility=THRESHOLD, share_encoder=False
    )
    algorithm = config.create(device="cpu")
    algorithm.create_impl((STATE,), ACTIONS)
    impl: Any = algorithm.impl
    for module, name in (("q_funcs", "q"), ("targ_q_funcs", "target"), ("imitator", "behaviour")):
        _fill_peer(getattr(impl.modules, module), NETWORKS[name])
    rows, ones = batch(), torch.ones(ROWS, 1)
    mini = TorchMiniBatch(
        observations=rows["state"],
        actions=rows["action"][:, None],
        rewards=rows["reward"][:, None],
        next_observations=rows["next_state"],
        next_actions=rows["action"][:, None],
        returns_to_go=ones,
        terminals=1 - rows["not_terminated"][:, None],
        intervals=ones,
        device="cpu",
    )
    loss = impl.compute_loss(mini, impl.compute_target(mini))
    logits = impl.modules.imitator(rows["state"]).logits
    penalty = float(PENALTY * logits.detach().square().mean())
    return {
        "value": float(loss.td_loss),
        "imitation": float(loss.imitator_loss),
        "cross_entropy": float(loss.imitator_loss) - penalty,
        "greedy": impl.inner_predict_best_action(rows["state"]).tolist(),
    }


@torch.no_grad()
def _fill_peer(module: torch.nn.Module, source: Layers) -> None:
    linear = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    # The head may be listed before the encoder's layers.
    linear.sort(key=lambda layer: layer.out_features == ACTIONS)
    for layer, (weight, bias) in zip(linear, source, strict=True):
        layer.weight.copy_(weight.T)
        layer.bias.copy_(bias)


def main() -> None:
    peer, own, bare = theirs(), ours(), ours(penalty=0.0)
    rows = [
        ("value loss", own["value"], peer["value"]),
        ("cross entropy", bare["imitation"], peer["cross_entropy"]),
        ("cross entropy + penalty (defined differently)", own["imitation"], peer["imitation"]),
    ]
    print("| quantity | ours | d3rlpy | apart |\n| :-- | --: | --: | --: |")
    for name, mine, other in rows:
        print(f"| {name} | {mine:.7f} | {other:.7f} | {abs(mine - other):.1e} |")
    same = sum(a == b for a, b in zip(own["greedy"], peer["greedy"], strict=True))
    print(f"| greedy actions that agree | {same} | of {ROWS} | |")
    figures = {"d3rlpy": peer, "ours": own, "same_greedy": same, "rows": ROWS}
    figures["largest_distance"] = max(abs(mine - other) for _, mine, other in rows[:2])
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
