"""How many stays each step leaves of MIMIC-III's open demo: `python benchmarks/mimic_demo.py DEMO`.

Both definitions of suspected infection, as published and as corrected. Only counts are printed. The last line is JSON.
"""

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any, get_args

from counterpoint.core.errors import CounterpointError
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.sources.mimic.cohort import Antibiotics, Mode, SepsisCohort


def counts(demo: Path, antibiotics: Antibiotics, mode: Mode) -> dict[str, int]:
    """Stays after every step, and what is in the table at the end."""
    with tempfile.TemporaryDirectory() as folder:
        cohort = SepsisCohort(antibiotics=antibiotics, mode=mode)
        results = cohort.build(demo, Path(folder) / "cohort.parquet", lambda *_: None, "2GB", 1)
    left = {each["step"]: each["stays"] for each in results["attrition"]}
    return left | {
        "rows": results["rows"],
        "actions used": results["actions_used"],
        "died in hospital": results["died"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="folder of the open demo")
    options = parser.parse_args()
    try:
        results = {
            f"{antibiotics}, {mode}": counts(options.demo, antibiotics, mode)
            for antibiotics, mode in product(get_args(Antibiotics), get_args(Mode))
        }
    except CounterpointError as error:
        parser.error(str(error))
    steps = list(next(iter(results.values())))
    table: list[dict[str, Any]] = [
        {"step": step, **{name: own[step] for name, own in results.items()}} for step in steps
    ]
    print(markdown_table(table))
    print(json.dumps({"table": table, **provenance()}))


if __name__ == "__main__":
    main()
