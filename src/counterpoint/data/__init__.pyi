"""The names of the subpackage, each imported when it is first used; `core/lazy.py` reads this file."""

from counterpoint.data.doses import ActionColumn as ActionColumn
from counterpoint.data.doses import Bins as Bins
from counterpoint.data.jobs import Job as Job
from counterpoint.data.jobs import Origin as Origin
from counterpoint.data.knowledge import Knowledge as Knowledge
from counterpoint.data.knowledge import Recursion as Recursion
from counterpoint.data.lags import with_lags as with_lags
from counterpoint.data.layout import Layout as Layout
from counterpoint.data.schema import Column as Column
from counterpoint.data.schema import Fill as Fill
from counterpoint.data.schema import Schema as Schema
from counterpoint.data.spaces import Box as Box
from counterpoint.data.spaces import Discrete as Discrete
from counterpoint.data.storage import read as read
from counterpoint.data.storage import write as write
from counterpoint.data.tables.dataframe import from_dataframe as from_dataframe
from counterpoint.data.tables.inspection.inspecting import check as check
from counterpoint.data.transitions import Transitions as Transitions
from counterpoint.data.transitions import concatenate as concatenate
