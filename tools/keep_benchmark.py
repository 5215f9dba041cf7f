"""Run a script of benchmarks/ and keep the figures of its last line: `python tools/keep_benchmark.py fit_speed`.

They go to results/benchmarks/<script>.json with the command, or to <script>-<suffix>.json with `--as SUFFIX` before the
script's own options; its output is shown as it comes. `results/claims.toml` names these files (`claims.py`).
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from counterpoint.core.artifacts import write_text

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
        refuse(f"{script.name} ended with exit code {process.returncode}; nothing is kept, mend that and run it again")
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        refuse(f"the last line of {script.name} is no JSON object; nothing is kept, let it print one")
    return found


def refuse(why: str) -> NoReturn:
    """One line, exit code 2."""
    print(why, file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a benchmark and keep its figures.")
    parser.add_argument("--as", dest="suffix", default="", help="what the file's name ends with")
    parser.add_argument("script", help="its name in benchmarks/, without .py")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="the script's own")
    arguments = parser.parse_args()
    script = ROOT / "benchmarks" / f"{arguments.script}.py"
    if not script.is_file():
        refuse(f"there is no benchmarks/{arguments.script}.py; choose from {', '.join(names())}")
    command = shlex.join(["python", f"benchmarks/{script.name}", *arguments.options])
    found = {"command": command, **figures(script, arguments.options)}
    path = KEPT / f"{arguments.script}{'-' * bool(arguments.suffix)}{arguments.suffix}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print(f"kept in {path.relative_to(ROOT)}")


def names() -> list[str]:
    return sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


if __name__ == "__main__":
    main()
