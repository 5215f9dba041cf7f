"""The names of the subpackage, each imported when it is first used; `core/lazy.py` reads this file."""

from counterpoint.policies.base import Policy as Policy
from counterpoint.policies.base import Verdict as Verdict
from counterpoint.policies.practice import PracticePolicy as PracticePolicy
from counterpoint.policies.recommendation import recommend as recommend
from counterpoint.policies.rule import OrderedDose as OrderedDose
from counterpoint.policies.rule import ScoredActions as ScoredActions
