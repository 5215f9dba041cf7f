"""CartPole with eleven forces, five gravities and 5% noise on states and actions (paper, section 5.1).

    s' = noisy(physics(s, a + size·u₅), u₁…u₄),    u ~ N(0, I),    force = 10 N · (2a − 1)

The physics is that of Gymnasium's CartPole-v1 (Euler, 0.02 s). Action plus noise is not clipped: the dynamics are
affine in the force, and clipping would end that, and with it the monotonicity that Theorem 1 asks for.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.settings import Amount, Positive, Share, Weight, check_settings
from counterpoint.data.knowledge import Knowledge
from counterpoint.data.schema import Schema
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import Discrete, constant
from counterpoint.tasks.base import KnownSCM

PLANETS = {"jupiter": 24.79, "earth": 9.8, "mercury": 3.7, "neptune": 11.15, "pluto": 0.62}
"""The gravities of the paper's hybrid data set HD; `earth` alone is its simple data set SD."""

STATE_SCALE = (0.07, 0.41, 0.12, 0.74)
"""Standard deviation of each state over noise-free random trials of 20 steps on earth, carried on past a failure; the
same for every planet, so that planets differ in their gravity alone."""

FORCE = 10.0
CART_MASS = 1.0
POLE_MASS = 0.1
POLE_HALF_LENGTH = 0.5
SECONDS_PER_STEP = 0.02
TRACK_LIMIT = 2.4
ANGLE_LIMIT = 12 * torch.pi / 180

NoiseReading = Literal["scaled", "relative", "observation", "absolute"]


@dataclass(frozen=True)
class CartPole(KnownSCM):
    """CartPole: keep the pole upright. Four noise columns act on the state and one on the action.

    The paper says "5% Gaussian noise to both states and actions" and no more, so the reading is an option:
    `scaled` adds size·`STATE_SCALE`·u to s', `relative` multiplies s' by 1 + size·u, `absolute` adds size·u, and
    `observation` leaves s' alone and adds size·ε to what the policy sees. Under `observation` the logged state is the
    true one, never the observed one, and the four state columns of the noise are zero: nothing of them enters s'.
    Under `relative` the direction of monotonicity turns where s' changes sign, and Theorem 1 does not cover those rows.
    """

    command: ClassVar = ("cartpole", "the paper's; the default")
    gravity: Amount = 9.8
    """Gravity in m/s²; `PLANETS` holds the paper's."""
    noise_reading: NoiseReading = "scaled"
    """What "5% noise on the states" means."""
    noise_size: Weight = 0.05
    """Size of the noise on states and actions; 0 for the noise-free simulator."""
    evaluation_noise_size: Weight = 0.05
    """Size of the noise in `at_evaluation`; 0 to evaluate policies without noise."""
    horizon: Positive = 500
    """Steps after which an evaluation episode is cut, as in CartPole-v1."""
    discount: Share = 0.99
    mirror_declared: bool = False
    """Whether the schema of its logs declares the mirror symmetry of left and right, which a model may then use."""

    def __post_init__(self) -> None:
        check_settings(self)

    actions = Discrete.of([i / 10 for i in range(11)])
    state_names = ("position", "velocity", "angle", "angular_velocity")
    noise_width = 5
    selection_horizon = 200
    """A pole that is upright after this many steps in a model stays so; 500 steps select no better checkpoints."""

    @property
    def schema(self) -> Schema:
        mirror = (*self.state_names, "action_0") if self.mirror_declared else ()
        return Schema.of(self.state_names, self.actions, knowledge=Knowledge(mirror=mirror))

    @property
    def ceiling(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The return of a whole episode: every step has reward 1."""
        return float(self.horizon)

    def at_evaluation(self) -> "CartPole":
        """Return the same physics with the noise of the evaluation."""
        return replace(self, noise_size=self.evaluation_noise_size)

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        """Return 1 for every step, the failing one included, as in CartPole-v1."""
        return torch.ones_like(next_state[..., 0])

    def terminated(self, next_state: State) -> Flag:
        position, angle = next_state[..., 0], next_state[..., 2]
        return (position.abs() > TRACK_LIMIT) | (angle.abs() > ANGLE_LIMIT)

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 4"]:
        return 0.1 * torch.rand(count, 4, generator=generator) - 0.05

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 5"]:
        noise = torch.randn(count, 5, generator=generator)
        if self.noise_reading == "observation":
            noise[:, :4] = 0
        return noise

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        next_state = self.physics(state, action + self.noise_size * noise[..., 4:])
        return self._noisy(next_state, self.noise_size * noise[..., :4])

    def observe(self, state: State, generator: torch.Generator) -> State:
        if self.noise_reading != "observation":
            return state
        return state + self.noise_size * torch.randn(state.shape, generator=generator).to(state)

    def physics(self, state: State, action: Action) -> State:
        """Return the state after one noise-free Euler step of CartPole-v1; `action` may be any real number."""
        velocity, angle, spin = state[..., 1], state[..., 2], state[..., 3]
        force = FORCE * (2 * action[..., 0] - 1)
        sine, cosine, mass = angle.sin(), angle.cos(), CART_MASS + POLE_MASS
        push = (force + POLE_MASS * POLE_HALF_LENGTH * spin.square() * sine) / mass
        inertia = POLE_HALF_LENGTH * (4 / 3 - POLE_MASS * cosine.square() / mass)
        spin_rate = (self.gravity * sine - cosine * push) / inertia
        acceleration = push - POLE_MASS * POLE_HALF_LENGTH * spin_rate * cosine / mass
        return state + SECONDS_PER_STEP * torch.stack([velocity, acceleration, spin, spin_rate], -1)

    def _noisy(self, next_state: State, noise: Noise) -> State:
        match self.noise_reading:
            case "scaled":
                return next_state + noise * constant(STATE_SCALE, noise.device)
            case "relative":
                return next_state * (1 + noise)
            case "absolute":
                return next_state + noise
            case "observation":
                return next_state
