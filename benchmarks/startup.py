"""How quickly the package and its command line start, in processor seconds, against `import torch`.

    python benchmarks/startup.py [repetitions]

Every line is the median of several fresh processes that run in turn, so that a busy machine slows all of them alike.
The last line is one JSON object with the ratios to `import torch`.
"""

import json
import os
import resource
import statistics
import subprocess
import sys

STARTS = {
    "import torch": ["-c", "import torch"],
    "import counterpoint": ["-c", "import counterpoint"],
    "import every name": ["-c", "import counterpoint as cp; [getattr(cp, name) for name in cp.__all__]"],
    "counterpoint --help": ["-m", "counterpoint", "--help"],
    "counterpoint train --help": ["-m", "counterpoint", "train", "--help"],
    "counterpoint fit --heldout 3": ["-m", "counterpoint", "fit", "--heldout", "3"],
}
"""Arguments of Python, by what they start; the last is a mistyped option."""


def processor_seconds(arguments: list[str]) -> float:
    """Return the user and system time of a fresh Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(repetitions):
        for name, arguments in STARTS.items():
            seconds[name].append(processor_seconds(arguments))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratios = {name: round(median / medians["import torch"], 3) for name, median in medians.items()}
    print("| start | processor seconds | × import torch |\n| :-- | --: | --: |")
    for name, median in medians.items():
        print(f"| {name} | {median:.2f} | {ratios[name]:.2f} |")
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
