"""One-step structural causal models with known counterfactuals, each with a different difficulty.

    s ~ N(0, I),    a ~ U(−1, 1),    u ~ N(0, I) unless stated,    s' = f(s, a, u)

`Additive` to `Skewed` have one state; the others have four around a common mean m(s, a). All are strictly increasing in
their own noise given what comes before, except `ConstantMixing` and `RotatingMixing`, whose
noises mix. CartPole is the ninth problem of the benchmark. `CausalSet` holds the two benchmark graphs of Javaloy et
al., "Causal normalizing flows" (NeurIPS 2023).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.core.seeding import generator
from counterpoint.data.shapes import Action, Flag, Noise, Reward, State
from counterpoint.data.spaces import ActionSpace, Box
from counterpoint.data.transitions import Transitions
from counterpoint.tasks.base import KnownSCM

MIXING = ((1.0, 0.6, -0.4, 0.2), (-0.5, 1.0, 0.5, 0.3), (0.4, -0.3, 1.0, 0.6), (0.2, 0.5, -0.6, 1.0))


class OneStep(KnownSCM):
    """A problem of one step: no reward, and every row ends its episode."""

    actions: ActionSpace = Box((-1.0,), (1.0,))
    discount = 0.0
    horizon = 1

    def reward(self, state: State, action: Action, next_state: State) -> Reward:
        return torch.zeros_like(next_state[..., 0])

    def terminated(self, next_state: State) -> Flag:
        return torch.ones_like(next_state[..., 0], dtype=torch.bool)

    def initial(self, count: int, generator: torch.Generator) -> Float[Tensor, "n s"]:
        return torch.randn(count, len(self.state_names), generator=generator)

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n u"]:
        return torch.randn(count, self.noise_width, generator=generator)


class Scalar(OneStep):
    """One state, one noise."""

    state_names = ("s",)
    noise_width = 1


class Additive(Scalar):
    """a: s' = .8s + .5 sin 2s + a + .5as + .3u."""

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        return 0.8 * state + 0.5 * (2 * state).sin() + action + 0.5 * action * state + 0.3 * noise


class Heteroscedastic(Scalar):
    """b: s' = .5s + a + .4 exp(.8a + .3 sin 2s)·u."""

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        return 0.5 * state + action + 0.4 * (0.8 * action + 0.3 * (2 * state).sin()).exp() * noise


class Bimodal(Scalar):
    """c: s' = .5s + a + .4u + .2 sigmoid(2a + s)·softplus(3u); u = ∓1 with probability .35/.65, plus .25·N(0,1)."""

    def noise(self, count: int, generator: torch.Generator) -> Float[Tensor, "n 1"]:
        mode = torch.where(torch.rand(count, 1, generator=generator) < 0.35, -1.0, 1.0)
        return mode + 0.25 * torch.randn(count, 1, generator=generator)

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        bend = (2 * action + state).sigmoid() * torch.nn.functional.softplus(3 * noise)
        return 0.5 * state + action + 0.4 * noise + 0.2 * bend


class Skewed(Scalar):
    """h: s' = .5s + a + .5(e^{κu} − 1)/κ with κ = .9a; the skew turns with the action, and κ = 0 leaves .5u."""

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        skew = 0.9 * action
        skew = torch.where(skew == 0, 1e-7, skew)  # (e^{κu} − 1)/κ tends to u
        return 0.5 * state + action + 0.5 * torch.expm1(skew * noise) / skew


class FourStates(OneStep):
    """Four states around one mean; the descendants differ in how four noises enter."""

    state_names = ("s1", "s2", "s3", "s4")
    noise_width = 4

    def mean(self, state: State, action: Action) -> State:
        """m = [s₁+.3s₂+.5a, .8s₂+a+.3 sin 2s₃, s₃+.3s₄+.6a(1+.5 tanh s₁), .8s₄−.8a cos s₃+.3 tanh(s₁s₂)]."""
        s1, s2, s3, s4 = state.unbind(-1)
        a = action[..., 0]
        m1 = s1 + 0.3 * s2 + 0.5 * a
        m2 = 0.8 * s2 + a + 0.3 * (2 * s3).sin()
        m3 = s3 + 0.3 * s4 + 0.6 * a * (1 + 0.5 * s1.tanh())
        m4 = 0.8 * s4 - 0.8 * a * s3.cos() + 0.3 * (s1 * s2).tanh()
        return torch.stack([m1, m2, m3, m4], -1)


class Independent(FourStates):
    """d: s' = m + [.3u₁, .3e^{.5a}u₂, .3(e^{.6u₃} − 1), .25 sinh(u₄)(1 + .5 tanh s₄)]."""

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        u1, u2, u3, u4 = noise.unbind(-1)
        second = 0.3 * (0.5 * action[..., 0]).exp() * u2
        fourth = 0.25 * u4.sinh() * (1 + 0.5 * state[..., 3].tanh())
        return self.mean(state, action) + torch.stack([0.3 * u1, second, 0.3 * torch.expm1(0.6 * u3), fourth], -1)


class ConstantMixing(FourStates):
    """e1: s' = m + .3·B·u with the full matrix B = `MIXING`; the noises reach s' dependent, always in the same way."""

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        return self.mean(state, action) + 0.3 * noise @ noise.new_tensor(MIXING).T


class RotatingMixing(FourStates):
    """e2: s' = m + .4·R(πa/2)·u, R turning (u₁,u₂) and (u₃,u₄): the law of s' hides which noise was which."""

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        angle = torch.pi / 2 * action[..., 0]
        cosine, sine = angle.cos(), angle.sin()
        u1, u2, u3, u4 = noise.unbind(-1)
        first, third = cosine * u1 - sine * u2, cosine * u3 - sine * u4
        second, fourth = sine * u1 + cosine * u2, sine * u3 + cosine * u4
        return self.mean(state, action) + 0.4 * torch.stack([first, second, third, fourth], -1)


class Triangular(FourStates):
    """f: s' = m + [.3u₁, .3u₂ + .6a·u₁, .3u₃ − .6a·u₂, .3u₄ + .6a·u₃]; identified given the order of the states."""

    def transition(self, state: State, action: Action, noise: Noise) -> State:
        before = torch.nn.functional.pad(noise[..., :3], (1, 0))
        return self.mean(state, action) + 0.3 * noise + 0.6 * action * noise.new_tensor([0, 1, -1, 1]) * before


PROBLEMS: dict[str, OneStep] = {
    "a": Additive(),
    "b": Heteroscedastic(),
    "c": Bimodal(),
    "h": Skewed(),
    "d": Independent(),
    "e1": ConstantMixing(),
    "e2": RotatingMixing(),
    "f": Triangular(),
}
"""The benchmark's letters; `g` is CartPole."""


def sample(task: OneStep, rows: int, seed: int) -> Transitions:
    """Draw independent rows (s, a, s') with their noise; every row is a different subject."""
    state = task.initial(rows, generator(seed, "state"))
    action = task.actions.sample(rows, generator(seed, "action"))
    noise = task.noise(rows, generator(seed, "noise"))
    next_state = task.transition(state, action, noise)
    table = Transitions.logged(
        state=state,
        action=action,
        reward=task.reward(state, action, next_state),
        next_state=next_state,
        terminated=task.terminated(next_state),
        truncated=torch.zeros(rows, dtype=torch.bool),
        subject=torch.arange(rows),
        step=torch.zeros(rows, dtype=torch.long),
        actions=task.actions,
        state_names=task.state_names,
    )
    return replace(table, noise=noise)


@dataclass(frozen=True)
class CausalSet:
    """Variables in causal order: x_i = equations[i](x₁…x_{i−1}, u_i), u ~ N(0, I).

    `equations[i]` takes the earlier variables as columns, and the noise of its own; `interventions` are the variables
    that the benchmark intervenes on.
    """

    names: tuple[str, ...]
    equations: tuple[Callable[[Float[Tensor, "n before"], Float[Tensor, " n"]], Float[Tensor, " n"]], ...]
    parents: tuple[tuple[int, ...], ...]
    interventions: tuple[int, ...]

    def sample(self, rows: int, seed: int) -> tuple[Float[Tensor, "n x"], Float[Tensor, "n x"]]:
        """Draw variables; return them and their exogenous noise."""
        noise = torch.randn(rows, len(self.names), generator=generator(seed, "noise"))
        return self.solve(noise), noise

    def solve(self, noise: Noise, fixed: dict[int, float] | None = None) -> Float[Tensor, "n x"]:
        """Return the variables under this noise, those in `fixed` held at their value: do(x_i = value)."""
        held = fixed or {}
        x = noise.new_zeros(len(noise), 0)
        for i, equation in enumerate(self.equations):
            column = torch.full_like(noise[:, i], held[i]) if i in held else equation(x, noise[:, i])
            x = torch.cat([x, column[:, None]], 1)
        return x

    def counterfactual(self, noise: Noise, variable: int, value: float) -> Float[Tensor, "n x"]:
        """Return the counterfactual rows under do(x_variable = value)."""
        return self.solve(noise, {variable: value})

    def queries(self, x: Float[Tensor, "n x"]) -> list[tuple[int, float]]:
        """Return (variable, value) at the 25th, 50th and 75th percentile of each variable that is intervened on."""
        return [(i, float(x[:, i].quantile(q))) for i in self.interventions for q in (0.25, 0.5, 0.75)]

    def adjacency(self) -> Bool[Tensor, "x x"]:
        """`[i, j]` is true where x_j is a parent of x_i."""
        return torch.tensor([[j in parents for j in range(len(self.names))] for parents in self.parents])


TRIANGLE_NLIN = CausalSet(
    names=("x1", "x2", "x3"),
    equations=(
        lambda x, u: u,
        lambda x, u: 2 * x[:, 0].square() + u,
        lambda x, u: 20 * (x[:, 1].square() - x[:, 0]).sigmoid() + u,
    ),
    parents=((), (0,), (0, 1)),
    interventions=(0, 1),
)
"""x1 = u1; x2 = 2x1² + u2; x3 = 20/(1 + e^{−x2² + x1}) + u3."""

SIMPSON_SYMPROD = CausalSet(
    names=("x1", "x2", "x3", "x4"),
    equations=(
        lambda x, u: u,
        lambda x, u: 2 * (2 * x[:, 0]).tanh() + u / 10**0.5,
        lambda x, u: x[:, 0] * x[:, 1] / 2 + u / 2**0.5,
        lambda x, u: (1.5 * x[:, 0]).tanh() + 0.3**0.5 * u,
    ),
    parents=((), (0,), (0, 1), (0,)),
    interventions=(0, 1, 2),
)
"""x1 = u1; x2 = 2 tanh(2x1) + u2/√10; x3 = x1x2/2 + u3/√2; x4 = tanh(1.5x1) + √.3·u4."""
