"""Run a script of benchmarks/ and keep the figures of its last line: `python tools/keep_benchmark.py fit_speed`.

They go to results/benchmarks/<script>.json with the command, or to <script>-<suffix>.json with `--as SUFFIX` before the
script's own options; what the script prints is shown as it comes. Pages name these files (`page_numbers.py`).
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from counterpoint.artifacts import write_text

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "benchmarks"


def figures(script: Path, options: list[str]) -> dict[str, object]:
    """What the script says in its last line, after everything else is shown."""
    last = ""
    with subprocess.Popen([sys.executable, str(script), *options], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line
    if process.returncode:
        raise SystemExit(f"{script.name} ended with exit code {process.returncode}; nothing is kept")
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SystemExit(f"the last line of {script.name} is no JSON object; nothing is kept")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a benchmark and keep its figures.")
    parser.add_argument("--as", dest="suffix", default="", help="what the file's name ends with")
    parser.add_argument("script", help="its name in benchmarks/, without .py")
    told, options = parser.parse_known_args()
    script = ROOT / "benchmarks" / f"{told.script}.py"
    if not script.is_file():
        raise SystemExit(f"there is no benchmarks/{told.script}.py; choose from {', '.join(names())}")
    command = shlex.join(["python", f"benchmarks/{script.name}", *options])
    found = {"command": command, **figures(script, options)}
    path = KEPT / f"{told.script}{'-' * bool(told.suffix)}{told.suffix}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print(f"kept in {path.relative_to(ROOT)}")


def names() -> list[str]:
    return sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


if __name__ == "__main__":
    main()
