"""The names of the subpackage, each imported when it is first used; `core/lazy.py` reads this file."""

from counterpoint.tasks.base import KnownSCM as KnownSCM
from counterpoint.tasks.base import Task as Task
from counterpoint.tasks.blood_pressure import BloodPressure as BloodPressure
from counterpoint.tasks.blood_pressure import PressureResponse as PressureResponse
from counterpoint.tasks.cartpole import CartPole as CartPole
from counterpoint.tasks.hiv import HIV as HIV
from counterpoint.tasks.hiv import HIVResponse as HIVResponse
from counterpoint.tasks.tumour import Tumour as Tumour
from counterpoint.tasks.tumour import TumourResponse as TumourResponse
from counterpoint.tasks.ward import Ward as Ward
