"""All kinds of damage that hospital tables have."""

import damage_files
import damage_rows
import damage_spelling
import damage_values
from damage_registry import KINDS, Kind, Trace

SOURCES = (damage_values, damage_spelling, damage_rows, damage_files)
"""The modules that register kinds when they are imported, in the order of the table."""

__all__ = ["KINDS", "SOURCES", "Kind", "Trace"]
