"""The classes that a saved artifact may name, and `load`, which reads an artifact back."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, overload

from counterpoint.core import artifacts
from counterpoint.core.artifacts import Artifact
from counterpoint.core.settings import checked

Kind = TypeVar("Kind")
CLASSES = {
    "counterpoint.data.doses": "ActionColumn Bins",
    "counterpoint.data.jobs": "Origin",
    "counterpoint.data.knowledge": "Knowledge Recursion",
    "counterpoint.data.schema": "Column Fill Schema",
    "counterpoint.data.spaces": "Box Discrete",
    "counterpoint.data.layout": "Layout",
    "counterpoint.learners.baselines.bcq": "BCQ",
    "counterpoint.learners.baselines.pets": "PETS Planner",
    "counterpoint.learners.baselines.steve": "MVE STEVE",
    "counterpoint.learners.ctrl_g": "CTRLg",
    "counterpoint.learners.ctrl_p": "CTRLp",
    "counterpoint.learners.d3qn": "D3QN",
    "counterpoint.learners.evolution": "CrossEntropy EvolutionStrategy",
    "counterpoint.learners.practice": "Constant Practice",
    "counterpoint.learners.rollout_rows": "RolloutRows",
    "counterpoint.learners.search": "Search",
    "counterpoint.models.dynamics.deterministic": "Deterministic",
    "counterpoint.models.dynamics.gaussian": "GaussianDynamics",
    "counterpoint.models.dynamics.gaussian_process": "GaussianProcess",
    "counterpoint.models.dynamics.mixture": "MixtureDynamics",
    "counterpoint.models.dynamics.outcome": "Outcome",
    "counterpoint.models.groups": "KMeansGroups MixtureGroups",
    "counterpoint.models.base": "Candidate Selection",
    "counterpoint.models.scm.auto": "AutoSCM",
    "counterpoint.models.scm.bicogan": "BiCoGAN ConditionalBiCoGAN",
    "counterpoint.models.scm.bicogan_networks": "Adversarial",
    "counterpoint.models.scm.density": "DefaultLikelihood DensitySCM",
    "counterpoint.models.scm.exogenous": "ExogenousForm",
    "counterpoint.models.scm.effects.changes": "EquationForm",
    "counterpoint.models.scm.lstm_factor": "LSTMFactor",
    "counterpoint.models.scm.mixed": "MixedSCM",
    "counterpoint.models.scm.posterior": "PosteriorDraws",
    "counterpoint.models.scm.random_effects": "RandomEffects",
    "counterpoint.nets.laws": "Gaussian Mixture SkewedSpline Spline",
    "counterpoint.nets.likelihood": "Likelihood",
    "counterpoint.nets.training": "Schedule",
    "counterpoint.ope.behaviour": "BoostedTrees Logistic NearestNeighbours",
    "counterpoint.ope.evaluation": "OPESettings",
    "counterpoint.ope.fqe": "FQE",
    "counterpoint.ope.problem": "EpsilonMixture",
    "counterpoint.policies.base": "Verdict",
    "counterpoint.policies.rule": "OrderedDose ScoredActions",
    "counterpoint.simulation.augmentation": "Augmenter",
    "counterpoint.simulation.models": "FreshNoise NoisePool",
    "counterpoint.simulation.objectives": "LowerBound MeanReturn WorstShare",
    "counterpoint.simulation.selection": "CheckpointSelection",
    "counterpoint.tasks.cartpole": "CartPole",
    "counterpoint.tasks.hiv": "HIV HIVResponse",
    "counterpoint.tasks.tumour": "Tumour TumourResponse",
    "counterpoint.tasks.ward": "Ward",
}
"""Names of the loadable classes, by the module that defines them; a new recipe, task or policy class is added here."""


class Registry(Mapping[str, type]):
    """Loadable classes by name: those of `CLASSES`, each imported when it is looked up, and a caller's own.

    Args:
        classes: classes defined outside the package, such as a task of the user's.
    """

    def __init__(self, classes: Sequence[type] = ()) -> None:
        self.modules = {name: module for module, names in CLASSES.items() for name in names.split()}
        self.classes = {cls.__name__: cls for cls in classes}

    def __getitem__(self, name: str) -> type:
        if name in self.classes:
            return self.classes[name]
        return getattr(import_module(self.modules[name]), name)

    def __iter__(self) -> Iterator[str]:
        return iter({**self.modules, **self.classes})

    def __len__(self) -> int:
        return len(self.modules.keys() | self.classes.keys())


@overload
def load(folder: Path | str) -> Artifact: ...
@overload
def load(folder: Path | str, kind: type[Kind], classes: Sequence[type] = ()) -> Kind: ...
@checked
def load(folder: Path | str, kind: Any = Artifact, classes: Sequence[type] = ()) -> Any:
    """Load the fitted model, task or policy that was saved in `folder`.

    Args:
        folder: the folder that `save` wrote.
        kind: the class that the artifact must have, such as `Policy`; an artifact of another class is refused.
        classes: classes of your own that the artifact contains.

    Example:
        >>> model = counterpoint.load("runs/first/scm")  # doctest: +SKIP
        >>> policy = counterpoint.load("runs/first/policy", Policy, [MyTask])  # doctest: +SKIP
    """
    return artifacts.load(folder, kind, Registry(classes))
