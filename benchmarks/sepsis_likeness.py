"""How like patients the synthetic cohort is: `python benchmarks/sepsis_likeness.py DEMO --out results`.

DEMO is the folder of MIMIC-III's open demo. The synthetic cohort and the demo's (mimic-code's antibiotics, mode
corrected: 85 stays) are compared column by column, action by action and by severity, beside what is published of the
whole of MIMIC-III. Statistics of fewer than ten patients are left out. Writes sepsis-likeness.csv, .md and
.settings.json.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from counterpoint.core.artifacts import write_text
from counterpoint.core.errors import CounterpointError
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table, write_csv, write_json
from counterpoint.sources.mimic.cohort import SepsisCohort
from likeness import likeness
from reproduction.tasks.synthetic_cohort import SyntheticCohort

PUBLISHED = {
    "patients": (15_656, "arXiv:2012.09092 (CTRL): patients with five steps or more"),
    "stays": (17_898, "Raghu et al. 2017"),
    "rows": (242_450, "Raghu et al. 2017"),
    "blocs a stay, mean": (13.5, "the two above"),
    "share of stays that end in death": (0.137, "Raghu et al., arXiv:1705.08422, abstract: in hospital"),
}
"""Of the whole of MIMIC-III: (number, source)."""


def compared(demo: Path, synthetic: SyntheticCohort, real: SepsisCohort) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        tables = {"synthetic": Path(folder) / "synthetic.parquet", "demo": Path(folder) / "demo.parquet"}
        synthetic.build(tables["synthetic"])
        missing = real.build(demo, tables["demo"], lambda *_: None)["missing_before_imputation"]
        rows = likeness({name: pd.read_parquet(path) for name, path in tables.items()})
    measured = {"of": "column", "statistic": "share measured", "synthetic": 1.0}
    rows += [measured | {"name": name, "demo": 1 - share} for name, share in missing.items()]
    for row in rows:
        known = PUBLISHED.get(row["statistic"]) if row["of"] == "cohort" else None
        row["published"], row["source"] = known or (None, None)
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    """The same as tables: one of the cohorts, one of the columns, one of the actions, one by severity."""
    return "\n\n".join(
        [
            "Synthetic cohort beside the open demo of MIMIC-III and published numbers"
            " (`python benchmarks/sepsis_likeness.py DEMO`). An empty cell has fewer than ten patients behind it.",
            _table([row for row in rows if row["of"] == "cohort"], ["statistic", "synthetic", "demo", "published"]),
            "Columns: the synthetic cohort / the demo.",
            _by_statistic([row for row in rows if row["of"] == "column"], "column"),
            "Actions: shares of rows, the synthetic cohort / the demo.",
            _grid([row for row in rows if row["of"] == "action"]),
            "By severity, the synthetic cohort / the demo.",
            _by_statistic([row for row in rows if row["of"] == "severity"], "rows"),
        ]
    )


def _table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    return markdown_table([{name: _said(row[name]) for name in columns} for row in rows])


def _by_statistic(rows: list[dict[str, Any]], what: str) -> str:
    names = dict.fromkeys(row["name"] for row in rows)
    lines = [{what: name} | {row["statistic"]: _both(row) for row in rows if row["name"] == name} for name in names]
    return markdown_table(lines)


def _grid(rows: list[dict[str, Any]]) -> str:
    head = [f"vasopressor {i}" for i in range(5)]
    cells = [_both(row) for row in rows]
    return markdown_table([{"fluid": i} | dict(zip(head, cells[5 * i : 5 * i + 5], strict=True)) for i in range(5)])


def _both(row: dict[str, Any]) -> str:
    return f"{_said(row['synthetic'])} / {_said(row['demo'])}"


def _said(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--patients", type=int, default=SyntheticCohort().patients)
    options = parser.parse_args()
    synthetic, real = SyntheticCohort(patients=options.patients), SepsisCohort(antibiotics="mimic-code")
    try:
        rows = compared(options.demo, synthetic, real)
    except CounterpointError as error:
        parser.error(str(error))
    write_csv(rows, options.out / "sepsis-likeness.csv")
    write_text(options.out / "sepsis-likeness.md", page(rows) + "\n")
    settings = {"synthetic": asdict(synthetic), "demo": asdict(real), "made_with": provenance()}
    write_json(settings, options.out / "sepsis-likeness.settings.json")
    print(page(rows))
    print(json.dumps({"statistics": rows, **settings}))


if __name__ == "__main__":
    main()
