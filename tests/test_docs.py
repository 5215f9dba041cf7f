"""What the pages say holds: Python blocks run, commands are commands, links lead somewhere, and the site builds."""

import inspect
import operator
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import counterpoint
from counterpoint.cli.main import main, parse
from helpers.strangers import settle

SHAPES = False

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("reproduction/docs/*.md")))
}
STEPS = 4
"""Steps of every training: enough to run each line, not to learn."""
SMALLER = {"patients=1566": "patients=40", "cp.CartPole()": "cp.CartPole(horizon=20)"}
SMALL_POLE = ("task:cartpole", "--task.horizon", "20")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
RUN = ("docs/tutorial/first-ten-minutes.md", "docs/how-to/own-table.md")
"""Pages whose commands are run, not only parsed."""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return settle(tmp_path, monkeypatch, STEPS)


def blocks(page: str, *languages: str) -> list[str]:
    return [code for language, code in FENCE.findall(PAGES[page]) if language in languages]


def commands(text: str) -> Iterator[list[str]]:
    """The words behind `counterpoint` in every line that calls it."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip().startswith("counterpoint ") and "…" not in line:
            yield shlex.split(line, comments=True)[1:]


def every_command() -> list[tuple[str, ...]]:
    """All commands of all pages: in blocks, indented, and inside a sentence."""
    spans = [span for text in PAGES.values() for span in re.findall(r"`(counterpoint [^`]+)`", FENCE.sub("", text))]
    lines = [line for text in PAGES.values() for line in text.replace("\\\n", " ").splitlines()]
    called = [line for line in lines if re.match(r"(    )?counterpoint [a-z]", line)]
    found = [tuple(words) for text in (*spans, *called) for words in commands(text.replace("\n", " "))]
    return sorted(set(found))


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md" and blocks(page, "python")])
def test_python_blocks_run(page: str, stranger: Path) -> None:
    """In order, in one namespace; the README's have a test of their own."""
    names: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", counterpoint.CounterpointWarning)
        for number, code in enumerate(blocks(page, "python")):
            for large, small in SMALLER.items():
                code = code.replace(large, small)
            exec(compile(code, f"{page}, block {number}", "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", RUN)
def test_commands_run_in_order(page: str, stranger: Path) -> None:
    called = [words for block in blocks(page, "bash") for words in commands(block)]
    assert len(called) > 5
    for words in called:
        if words[0] != "run":  # the README's test runs it
            main([*words, *(SMALL_POLE if words[0] == "simulate" else ())])


def test_every_command_is_understood() -> None:
    called = every_command()
    assert len(called) > 40
    for words in called:
        if words != ("--version",) and words[0].islower():
            understood(words)


def understood(words: tuple[str, ...]) -> None:
    """Parsed as the program parses it, and not carried out; a sentence may leave the run folder or all options away."""
    ways = ([*words], [words[0], "--run", "runs/first", *words[1:]], [*words, "--help"][: 2 * (len(words) == 1)])
    codes = [parsed(way) for way in ways if way]
    assert 0 in codes, f"`counterpoint {shlex.join(words)}` is no command"


def parsed(words: list[str]) -> object:
    """The exit code that the program would leave with before it does anything."""
    try:
        parse(list(words))
    except SystemExit as left:
        return left.code
    return 0


def test_refusals_are_the_programs_own() -> None:
    """The guide quotes messages; what it quotes stands in the code."""
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", re.sub(r"\{[^{}]*\}", "…", code))
    table = PAGES["docs/how-to/own-table.md"].split("| refused | because |")[1].split("\n\n")[0]
    quoted = [quote for line in table.splitlines()[2:] for quote in re.findall(r"`([^`]+)`", line.split("|")[1])]
    pieces = [piece.strip() for quote in quoted for piece in quote.split("…") if len(piece.strip()) > 3]
    assert len(pieces) > 10
    for piece in pieces:
        assert piece in code, piece


def test_links_lead_somewhere() -> None:
    """On a forge a link is a path beside the page; the site checks the same links and their headings when it builds."""
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCE.sub("", text)):
            if not target.startswith("http"):
                assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


def test_every_public_name_is_on_the_page_of_names() -> None:
    named = re.findall(r"\.\. auto(?:class|function):: (?:counterpoint\.)?([\w.]+)", PAGES["docs/reference/api.md"])
    names = {name.split(".")[-1] for name in named}
    public = {name for name in counterpoint.__all__ if not inspect.ismodule(getattr(counterpoint, name))}
    assert public <= names
    assert all(operator.attrgetter(name)(counterpoint) for name in named)


def test_the_site_builds_without_a_warning_or_a_network(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", "docs", "."]
    done = subprocess.run([*build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "docs" / "reference" / "api.html").read_text()
    assert "Members whose counterfactuals are averaged." in api  # what stands under a field
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert not loaded, f"{page.name} loads {loaded}"
