"""A density SCM over variables with a known graph and no action: x_i = f_i(x_parents, u_i), asked about do(x_j = v)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.core.artifacts import device_of, recipe_hash, tensors_hash
from counterpoint.core.seeding import derive
from counterpoint.models.base import repeated
from counterpoint.models.scm.density import DensitySCM, interquartile_mean
from counterpoint.nets.conditional import ConditionalLaw, Parents
from counterpoint.nets.likelihood import fit_by_likelihood
from counterpoint.nets.stacked import unstack, with_weights
from counterpoint.nets.training import Monitor


@dataclass(frozen=True)
class GraphSCM:
    """A fitted ensemble; the law's context has no columns, its parents are the graph."""

    law: ConditionalLaw

    @torch.no_grad()
    def abduct(self, x: Float[Tensor, "n x"]) -> Float[Tensor, "m n x"]:
        """Every member's noise for what was seen."""
        stacked = self._stack(x)
        return self.law.abduct(stacked[..., :0], stacked)

    @torch.no_grad()
    def predict(self, noise: Float[Tensor, "m n x"], held: dict[int, float] | None = None) -> Float[Tensor, "n x"]:
        """What the members make of this noise, combined; the variables in `held` are fixed at their value."""
        return interquartile_mean(self.law.predict(noise[..., :0], noise, held))

    def counterfactual(self, x: Float[Tensor, "n x"], held: dict[int, float]) -> Float[Tensor, "n x"]:
        """What the same rows would have been with the variables in `held` at their values."""
        return self.predict(self.abduct(x), held).to(x)

    def sample(self, count: int, random: torch.Generator, held: dict[int, float] | None = None) -> Float[Tensor, "n x"]:
        """Fresh rows, the same noise for every member."""
        return self.predict(self._stack(torch.randn(count, self.law.size, generator=random)), held).to(random.device)

    def _stack(self, x: Tensor) -> Float[Tensor, "m n x"]:
        return x.to(self.law.y.mean).expand(self.law.members, -1, -1)


def fit_graph(
    recipe: DensitySCM,
    tables: Sequence[Float[Tensor, "n x"]],
    parents: Parents,
    seeds: Sequence[int],
    monitor: Monitor = Monitor(),
    device: str = "cpu",
) -> list[GraphSCM]:
    """Fit one SCM a table, all in one loop, with the law, ensemble and training of `recipe`."""
    size, ensemble = tables[0].shape[1], recipe.ensemble
    members = [derive(seed, "member", m) for seed in seeds for m in range(ensemble)]
    build = lambda count: ConditionalLaw(count, 0, size, recipe.law, recipe.hidden, parents)
    whole = build(len(members)).to(device_of(device))
    columns = [{"context": x[:, :0], "y": x, "subject": torch.arange(len(x))} for x in tables]
    run = recipe_hash(recipe, parents, list(seeds), [tensors_hash({"x": x}) for x in tables])
    stacked = repeated(columns, ensemble)
    fit_by_likelihood(whole, stacked, members, recipe.likelihood, run, monitor, recipe.penalty())
    return [GraphSCM(with_weights(build(ensemble), part)) for part in unstack(whole.state_dict(), len(tables))]
