"""The names of the subpackage, each imported when it is first used; `core/lazy.py` reads this file."""

from counterpoint.ope.behaviour import BoostedTrees as BoostedTrees
from counterpoint.ope.behaviour import Logistic as Logistic
from counterpoint.ope.behaviour import NearestNeighbours as NearestNeighbours
from counterpoint.ope.continuous import DoseSpread as DoseSpread
from counterpoint.ope.continuous import ShiftedDoses as ShiftedDoses
from counterpoint.ope.evaluation import OPESettings as OPESettings
from counterpoint.ope.evaluation import evaluate as evaluate
from counterpoint.ope.fqe import FQE as FQE
from counterpoint.ope.model_based import true_return as true_return
from counterpoint.ope.problem import EpsilonMixture as EpsilonMixture
from counterpoint.ope.result import Evaluation as Evaluation
