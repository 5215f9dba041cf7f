"""The type checker that the tests put behind every annotation of the package; an int passes for a float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
