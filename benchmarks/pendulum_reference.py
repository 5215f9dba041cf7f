"""What a controller written by hand reaches on Gymnasium's Pendulum-v1: `python benchmarks/pendulum_reference.py`.

It pumps energy until the pendulum is near the top and holds it there by feedback; nothing is learned. Its return on the
episodes that `python -m reproduction classic` judges by says how hard those are. The last line is JSON.
"""

import json

import torch
from torch import Tensor

from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from reproduction.classic import Classic
from reproduction.tasks.classic import Pendulum
from reproduction.tasks.classic_simulation import gym_returns

GRAVITY, INERTIA, TORQUE = 10.0, 1 / 3, 2.0


def swing_up(state: Tensor) -> Tensor:
    """Torque along the speed while energy is missing, against it while there is too much, feedback near the top."""
    cosine, sine, speed = state.unbind(-1)
    angle = torch.atan2(sine, cosine)
    energy = 0.5 * INERTIA * speed.square() + 0.5 * GRAVITY * (cosine - 1)  # 0 at rest on top.
    near = (angle.abs() < 0.6) & (speed.abs() < 3)
    torque = torch.where(near, -(12 * angle + 3 * speed), -TORQUE * speed.sign() * energy.sign())
    return torque.clamp(-TORQUE, TORQUE)[..., None]


def main() -> None:
    torch.set_num_threads(1)
    judged = Classic().episodes
    rows = []
    for name, episodes, seed in ((f"the {judged} episodes of the table", judged, 0), ("500 others", 500, 1)):
        returns = gym_returns(swing_up, Pendulum.actions, Pendulum.gym_id, episodes, seed)
        rows.append({"episodes": name, "mean": float(returns.mean()), "standard deviation": float(returns.std())})
    print(markdown_table([{k: f"{v:.1f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]))
    print(json.dumps({"returns": rows, **provenance()}))


if __name__ == "__main__":
    main()
