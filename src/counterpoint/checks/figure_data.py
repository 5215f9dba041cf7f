"""Numbers behind the figure of a model's checks, computed from the sample of rows that was checked."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from counterpoint.checks.ambiguity import turned_noise
from counterpoint.checks.assumptions import quantiles
from counterpoint.checks.findings import CheckSample
from counterpoint.checks.support import support


@dataclass(frozen=True)
class CheckFigureData:
    """What the four panels of the figure show; all tensors are on the CPU."""

    noise_names: tuple[str, ...]
    """State columns that the noises belong to."""
    quantiles: Float[Tensor, "n m u"]
    """Predicted quantile of every observed outcome, by member and noise."""
    action: Float[Tensor, " n"]
    """First action column."""
    noise: Float[Tensor, "n u"]
    """Abducted noise, the mean over members."""
    distance_taken: Float[Tensor, " n"]
    """Distance from the logged action to the nearest one in similar states, in standard deviations."""
    distance_alternative: Float[Tensor, " n"]
    """The same for the alternative action."""
    support_limit: float
    member_difference: Float[Tensor, " n"]
    """Differences between members' counterfactuals, in standard deviations of the effect."""
    rotation_difference: Float[Tensor, " n"] | None
    """The same between the model and one with rotated noises; None for a single noise or state column."""


def figure_data(sample: CheckSample) -> CheckFigureData:
    """Compute the numbers of the figure."""
    names = sample.model.state_names
    scores = support(sample.rows, sample.alternative, sample.logged)
    counterfactuals = sample.member_counterfactuals()
    mean = counterfactuals.mean(0)
    rotation_difference = None
    if counterfactuals.shape[-1] > 1 and sample.noise.shape[-1] > 1:
        rotated = sample.predict(sample.alternative, turned_noise(sample))
        scale = sample.effect_scale(rotated.mean(0))
        rotation_difference = _root_mean_square((counterfactuals - rotated) / scale)
    return CheckFigureData(
        noise_names=tuple(names[column] for column in sample.model.mechanism.noise_columns[: sample.noise.shape[-1]]),
        quantiles=quantiles(sample).cpu(),
        action=sample.rows.action[:, 0].cpu(),
        noise=sample.noise.mean(1).cpu(),
        distance_taken=scores.taken.cpu(),
        distance_alternative=scores.alternative.cpu(),
        support_limit=float(scores.limit),
        member_difference=_root_mean_square((counterfactuals - mean) / sample.effect_scale(mean)),
        rotation_difference=rotation_difference,
    )


def _root_mean_square(difference: Float[Tensor, "m n s"]) -> Float[Tensor, " n"]:
    """Root mean square over members and columns."""
    return difference.square().mean((0, 2)).sqrt().cpu()
