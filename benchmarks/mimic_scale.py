"""What `counterpoint mimic` takes as the database grows: `python benchmarks/mimic_scale.py DEMO [--times 1 10]`.

The open demo of MIMIC-III is blown up: every table that holds patients is written N times, each time with other numbers
of patients, admissions and stays. Every size is made in a process of its own, whose peak of memory is that size's; the
raw files are written before. MIMIC-III itself has 436 times the CHARTEVENTS of the demo. The last line is JSON.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from counterpoint.core.errors import CounterpointError
from counterpoint.core.provenance import provenance
from counterpoint.core.tables import markdown_table
from counterpoint.sources.mimic.cohort import SepsisCohort
from counterpoint.sources.mimic.source import TABLES, open_source

SHIFTED = {"subject_id": 1_000_000, "hadm_id": 1_000_000, "icustay_id": 1_000_000}
"""What is added to the numbers of each further copy."""


def blow_up(demo: Path, folder: Path, times: int) -> None:
    """The demo `times` times over, packed as MIMIC-III is, with the columns that are read."""
    import duckdb

    folder.mkdir()
    with duckdb.connect() as connection:
        files = open_source(connection, demo).files
        connection.execute("SET preserve_insertion_order = false; SET memory_limit = '2GB'")
        for name, columns in TABLES.items():
            named = [
                f"CASE WHEN {column} IS NOT NULL THEN {column}::BIGINT + {SHIFTED[column]} * copy END AS {column}"
                if column in SHIFTED
                else column
                for column in columns
            ]
            table = f"read_csv('{files[name]}', header=true, all_varchar=true, quote='\"', escape='\"')"
            query = f"SELECT {', '.join(named)} FROM range({times}) AS copies(copy), {table}"
            connection.execute(f"COPY ({query}) TO '{folder / name}.csv.gz' (HEADER, COMPRESSION gzip)")


def measure(raw: Path, out: Path, memory: str, threads: int) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    results = SepsisCohort().build(raw, out, lambda *_: None, memory, threads)
    return {
        "seconds": round(time.perf_counter() - wall, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "database_gb": round(out.with_suffix(".duckdb").stat().st_size / 2**30, 3),
        "stays": results["stays"],
        "rows": results["rows"],
    }


def in_process(raw: Path, out: Path, options: argparse.Namespace) -> dict[str, float]:
    words = [sys.executable, __file__, str(raw), "--measure", str(out), "--memory", options.memory,
             "--threads", str(options.threads)]  # fmt: skip
    finished = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(finished.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="folder of the open demo")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--memory", default="4GB", help="of DuckDB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.demo, options.measure, options.memory, options.threads)))
        return
    results = []
    for times in options.times:
        with tempfile.TemporaryDirectory() as folder:
            try:
                blow_up(options.demo, Path(folder) / "raw", times)
            except CounterpointError as error:
                parser.error(str(error))
            raw = sum(file.stat().st_size for file in (Path(folder) / "raw").iterdir()) / 2**30
            numbers = in_process(Path(folder) / "raw", Path(folder) / "cohort.parquet", options)
            results.append({"times": times, "raw_gb": round(raw, 3)} | numbers)
            print(results[-1], file=sys.stderr, flush=True)
    print(markdown_table(results))
    print(json.dumps({"sizes": results, "memory": options.memory, "threads": options.threads, **provenance()}))


if __name__ == "__main__":
    main()
