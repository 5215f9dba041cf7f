"""`counterpoint run`: the whole chain from one small file that records every choice."""

import contextlib
import io
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from counterpoint.cli import main
from counterpoint.cli.augment import Augment
from counterpoint.cli.check_scm import CheckScm
from counterpoint.cli.console import say
from counterpoint.cli.evaluate import Evaluate
from counterpoint.cli.fit import Fit
from counterpoint.cli.mirror import build
from counterpoint.cli.report import Report
from counterpoint.cli.train import Train
from counterpoint.core.errors import CounterpointError

CHAIN: dict[str, Any] = {
    "fit": Fit, "check-scm": CheckScm, "augment": Augment, "train": Train, "evaluate": Evaluate, "report": Report
}  # fmt: skip
"""The commands of a study in their order."""
SECTIONS = ("table", *CHAIN)
RESUMED = ("fit", "train")


@dataclass(frozen=True)
class RunStudy:
    """Fit, check, augment, train, evaluate and report as a study file says. Started again, it continues.

    The file has a section [table] that says what the columns are, and sections [fit], [check-scm], [augment], [train],
    [evaluate] and [report] for the flags of those commands; `counterpoint check TABLE --write-study study.toml` writes
    one.
    """

    table: tyro.conf.Positional[Path]
    """CSV, TSV or Parquet table."""
    config: Path
    """The study file, TOML."""
    run: Path | None = None
    """Run folder; runs/<name of the study file> where none is given."""

    def execute(self) -> None:
        from counterpoint.core.artifacts import write_text

        study, text = _read(self.config)
        run = self.run or Path("runs") / self.config.stem
        again = _same(run / "study.toml", text)
        commands = {name: _command(name, self._words(name, study, run, again), self.config) for name in CHAIN}
        write_text(run / "study.toml", text)
        for name, command in commands.items():
            say(f"── {name}")
            build(command).execute()
        say(f"the run is in {run}; next: counterpoint recommend --run {run} --data NEW_SUBJECTS")

    def _words(self, name: str, study: Mapping[str, Any], run: Path, again: bool) -> list[str]:
        """Return the command line of one step of the study."""
        words = ["--run", str(run)]
        if name == "fit":
            words += ["--data", str(self.table), *_flags(study.get("table", {}))]
        model = study.get(name, {})
        words += _flags({key: value for key, value in model.items() if key != "scm"})
        words += ["--resume"] if again and name in RESUMED else []
        return words + ([f"scm:{model['scm']}"] if "scm" in model else [])


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """Return the sections of a study file and its text."""
    from counterpoint.data.tables.columns import check_regular

    check_regular(path)
    try:
        text = path.read_text(encoding="utf-8")
        study = tomllib.loads(text)
    except FileNotFoundError:
        raise CounterpointError(f"there is no study file {path}; write one with check TABLE --write-study") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CounterpointError(f"{path} is not TOML ({error}); correct it") from None
    for section, content in study.items():
        if section not in SECTIONS or not isinstance(content, dict):
            raise CounterpointError(f"{path} has an unknown section [{section}]; use {', '.join(SECTIONS)}")
    return study, text


def _same(path: Path, text: str) -> bool:
    """Whether the run was started with the same study; only then can it be resumed."""
    return path.exists() and path.read_text(encoding="utf-8") == text


def _flags(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield keys and values of a section as words of a command line."""
    for key, value in section.items():
        name = f"{prefix}{key.replace('_', '-')}"
        if isinstance(value, dict):
            yield from _flags(value, f"{name}.")
        elif isinstance(value, bool):
            yield f"--{name}" if value else f"--{_negated(name)}"
        elif name == "reward":
            yield f"--{name}={value}"  # An expression may begin with a minus, and is no flag.
        else:
            yield f"--{name}"
            yield from map(str, value if isinstance(value, list) else [value])


def _negated(name: str) -> str:
    *parts, last = name.split(".")
    return ".".join([*parts, f"no-{last}"])


def _command(name: str, words: list[str], config: Path) -> Any:
    """Return the command with its options; a message of the parser becomes one line."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            return main.parse_options(CHAIN[name], words, f"counterpoint {name}")
    except SystemExit:
        lines = [line.strip(" │╭╮╰╯─-") for line in output.getvalue().splitlines()]
        reason = " ".join(dict.fromkeys(line for line in lines if line and "--help" not in line))[:200]
        raise CounterpointError(f"{config}: [{name}] or [table] is wrong: {reason}; see {name} --help") from None
