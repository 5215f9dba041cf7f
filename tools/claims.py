"""Compare the numbers and claims on the pages with the result files that they come from.

`results/claims.toml` lists them. `--check` fails where a page and a file disagree, `--write` puts the numbers right,
and `--unbound` lists numbers on the pages that no entry covers. Kinds of entries, each with its `page`:

    [[number]]       text = "returns of {} and {} from 100 and 200 rows"    every {} is a number
                     value = "sd.csv; mean return_selected; method=CTRL_g; trials=5 / 10"    see number_specs.py
    [[comparison]]   text = "above D3QN at every size"
                     holds = "SPECIFICATION > SPECIFICATION"    or <; either side may be a number
    [[quotation]]    text = "not told apart from PETS"
                     source = "sd.md"    a page of results/
                     sentence = "not told apart from PETS everywhere"    which it must contain
    [[table]]        head = "| trials | return |"    the first line of a table of the page
                     file = "sd.csv"
                     row = "| {trials} | {mean return_selected; trials={trials}} |"
                     variables.trials = ["5", "10"]    one row of the table for each value

`text` must occur once on its page; white space may differ. In it `{_}` is a number of another entry.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from number_specs import DIFFERENCE, SpecificationError, answers, exact, located

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "results" / "claims.toml"
NUMBER = r"(?<![\w.,])[−+]?\d+(?:,\d{3})*(?:\.\d+)?%?(?!\w)"
FILE = r"[\w./-]+\.(?:csv|json(?:#\w+)?)"
PLACEHOLDER = re.compile(r"\s*\{_?\}\s*")
PLACE = re.compile(r"\{([^{}]*)\}")
FENCE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
HIDDEN = re.compile(r"`+[^`\n]*`+|\]\([^)\s]*\)|https?://\S+")
COUNTED = (
    "rows?|trials|seeds?|steps|episodes|patients|subjects|members|networks|columns|updates|actions|cores?|workers|"
    "starts|draws|units|checkpoints|resamples|records|alternatives|cells|stays|logs|factors|groups|nodes|times|days|"
    "hours|digits"
)
KINDS = "random|logged|held-out|training|data|full|fitted|posterior|evaluation|state|tuning|other|bootstrap"
ALLOWED = tuple(
    re.compile(pattern)
    for pattern in (
        r"arXiv[: ]?\d{4}\.\d+|\b(19|20)\d\d\b|\b\d+\.\d+\.\d+\b|\bv\d+\.\d+\b",  # papers, years, versions
        r"(?i)\b(figures?|tables?|sections?|eq\.|theorem|remark|algorithm|step|appendix|ITEMID|commit)\s[\d.]+\w*",
        rf"\b\d[\d,]*(\.\d+)? ?(/ \d[\d,]* )*(to \d[\d,]* )?(({KINDS}) )?({COUNTED})\b",  # sizes of the setting
        r"\b95%|\b[γτλΛ] = \d+(\.\d+)?|\bseeds? \d+ (to|and) \d+|\d+% random actions|\d+×\d+|\b0/1\b",
        r"(?m)^(#+ )?\d+\. |\d\d/\d\d/\d{4}|-\d\d-\d\d\b|\b\d\d:\d\d\b",  # numbered lines, dates, times
    )
)
"""Kinds of numbers that no result file need hold."""
PRINTED = re.compile(r"`[^`]*benchmarks/\w+\.\w+[^`]*`")
BLOCK = re.compile(r"\n(?=[ \t]*(?:[-*]|\d+\.) )|\n[ \t]*\n")
Entry = Mapping[str, str]


@dataclass(frozen=True)
class Correction:
    """A stretch of a page, what stands there, and what the result file says."""

    start: int
    end: int
    text: str
    expected: str
    numbers: int = 1


@dataclass(frozen=True)
class Page:
    """A page and the entries of `claims.toml` about it."""

    name: str
    text: str
    entries: Mapping[str, list[Entry]]

    @cached_property
    def corrections(self) -> list[Correction]:
        """All numbers and tables of the page that an entry covers, in their order."""
        numbers = [each for entry in self.entries.get("number", []) for each in self._numbers(entry)]
        tables = [self._table(entry) for entry in self.entries.get("table", [])]
        return sorted([*numbers, *tables], key=lambda correction: correction.start)

    def corrected(self) -> str:
        """The page with every number as its file has it."""
        text = self.text
        for correction in reversed(self.corrections):
            text = text[: correction.start] + correction.expected + text[correction.end :]
        return text

    def disagreements(self) -> list[str]:
        """Describe what the page says otherwise than the files, a line each."""
        wrong = [correction for correction in self.corrections if correction.text != correction.expected]
        lines = [f"line {self._line(each.start)} says {_first_difference(each)}" for each in wrong]
        lines += [line for entry in self.entries.get("comparison", []) for line in self._comparison(entry)]
        return lines + [line for entry in self.entries.get("quotation", []) for line in self._quotation(entry)]

    def unbound(self) -> list[tuple[int, str]]:
        """Line and text of numbers that are no setting, no entry covers, and no script named beside them prints."""
        text = blanked(self.text, FENCE)
        for correction in self.corrections:
            text = text[: correction.start] + re.sub(r"[^\n]", " ", correction.text) + text[correction.end :]
        numbers: list[tuple[int, str]] = []
        start, printed = 0, False
        for block in BLOCK.split(text):
            printed = bool(PRINTED.search(block)) or (printed and block.lstrip().startswith("|"))
            start = text.index(block, start)
            seen = "" if printed else blanked(block, HIDDEN, *ALLOWED)
            numbers += [(self._line(start + match.start()), match[0]) for match in re.finditer(NUMBER, seen)]
            start += len(block)
        return numbers

    def _line(self, place: int) -> int:
        return self.text.count("\n", 0, place) + 1

    def _numbers(self, entry: Entry) -> Iterator[Correction]:
        match = self._occurrence(entry["text"])
        expected = answers(entry["value"])
        if len(expected) != len(match.groups()):
            raise SpecificationError(f"{len(expected)} numbers in the file, {len(match.groups())} in '{entry['text']}'")
        for group, value in enumerate(expected, start=1):
            yield Correction(*match.span(group), match[group], value)

    def _occurrence(self, text: str) -> re.Match[str]:
        """Where the page has the text of an entry."""
        pattern = ""
        for piece in re.split(r"(\s*\{_?\}\s*)", text):
            if PLACEHOLDER.fullmatch(piece):
                number = f"({NUMBER})" if "{}" in piece else NUMBER
                pattern += r"\s+" * piece[0].isspace() + number + r"\s+" * piece[-1].isspace()
            else:
                pattern += r"\s+".join(map(re.escape, piece.split(" ")))
        matches = list(re.finditer(pattern, self.text))
        if len(matches) != 1:
            raise SpecificationError(
                f"'{text}' occurs {len(matches)} times; give a text of {self.name} that occurs once"
            )
        return matches[0]

    def _table(self, entry: Entry) -> Correction:
        lines, count = generated(entry)
        match = re.search(rf"^{re.escape(entry['head'])}\n\|[-| :]+\|\n((?:\|.*\n)*)", self.text, re.MULTILINE)
        if match is None:
            raise SpecificationError(f"there is no table with the head '{entry['head']}'")
        return Correction(*match.span(1), match[1], "".join(f"{line}\n" for line in lines), count)

    def _comparison(self, entry: Entry) -> Iterator[str]:
        sides = re.fullmatch(r"(.*) ([<>]) (.*)", entry["holds"])
        if sides is None:
            raise SpecificationError(f"'{entry['holds']}' compares nothing; give two sides and < or >")
        left, right = _values(sides[1]), _values(sides[3])
        if not holds(left, right, sides[2]):
            said = f" {sides[2]} ".join(", ".join(f"{value:.4g}" for value in side) for side in (left, right))
            line = self._line(self._occurrence(entry["text"]).start())
            yield f"line {line} claims {entry['holds']}, the files say {said}"
        self._occurrence(entry["text"])

    def _quotation(self, entry: Entry) -> Iterator[str]:
        line = self._line(self._occurrence(entry["text"]).start())
        if entry["sentence"] not in located(entry["source"]).read_text(encoding="utf-8"):
            yield f"line {line} rests on '{entry['sentence']}', which {entry['source']} does not say"


def generated(entry: Entry) -> tuple[list[str], int]:
    """The rows of a table from its files, and how many numbers they hold."""
    variables: Mapping[str, list[str]] = entry["variables"]  # pyright: ignore[reportAssignmentType]
    lines: list[str] = []
    count = 0
    for values in zip(*variables.values(), strict=True):
        row = entry["row"]
        for name, value in zip(variables, values, strict=True):
            row = row.replace(f"{{{name}}}", value)
        line, numbers = _filled(row, entry["file"])
        lines.append(line)
        count += numbers
    if not count:
        raise SpecificationError(f"no row of {entry['file']} fits any cell of the table")
    return lines, count


def _filled(line: str, file: str) -> tuple[str, int]:
    """A row of a table with its numbers, and how many they are."""
    counts: list[int] = []

    def fill(place: re.Match[str]) -> str:
        named = re.fullmatch(FILE, place[1].split(";")[0])
        values = answers(place[1] if named else f"{file}; {place[1]}")
        counts.append(len(values))
        interval = f"{DIFFERENCE} " in place[1] and values
        return "{} [{}, {}]".format(*values) if interval else ", ".join(values)

    text = re.sub(r"\*\*\*\*|\(\)", "", PLACE.sub(fill, line))
    return re.sub(" +\\|", " |", text), sum(counts)


def blanked(text: str, *patterns: re.Pattern[str]) -> str:
    """The text with spaces in place of what matches, so that places stay where they were."""
    for pattern in patterns:
        text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


def holds(left: list[float], right: list[float], sign: str) -> bool:
    """Whether every pair is in the order that the sign says; a single number is paired with all."""
    count = max(len(left), len(right))
    if not left or not right or {len(left), len(right)} - {1, count}:
        raise SpecificationError(f"a comparison has {len(left)} numbers on one side and {len(right)} on the other")
    pairs = zip(left * (count // len(left)), right * (count // len(right)), strict=True)
    return all(a > b if sign == ">" else a < b for a, b in pairs)


def _values(side: str) -> list[float]:
    return exact(side) if ";" in side else [float(side)]


def _first_difference(correction: Correction) -> str:
    pairs = zip(correction.text.splitlines() or [""], correction.expected.splitlines(), strict=False)
    old, new = next(((a, b) for a, b in pairs if a != b), ("a table", "one of another length"))
    return f"{old}, the file {new}"


def pages(claims: Path = CLAIMS, root: Path = ROOT) -> list[Page]:
    """Every page that numbers are checked on, with its entries."""
    entries = tomllib.loads(claims.read_text(encoding="utf-8"))
    names = ["README.md", *(str(path.relative_to(root)) for path in sorted(root.glob("docs/**/*.md")))]
    names += [str(path.relative_to(root)) for path in sorted(root.glob("reproduction/docs/*.md"))]
    unknown = {entry["page"] for kind in entries.values() for entry in kind} - set(names)
    if unknown:
        raise SpecificationError(f"claims.toml names pages that are not there: {', '.join(sorted(unknown))}")
    return [
        Page(name, (root / name).read_text(encoding="utf-8"), {
            kind: [entry for entry in listed if entry["page"] == name] for kind, listed in entries.items()
        })
        for name in names
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Numbers on the pages and the files they come from.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="fail where a page and a file disagree")
    mode.add_argument("--write", action="store_true", help="put every number right")
    mode.add_argument("--unbound", action="store_true", help="list numbers that no entry covers")
    options = parser.parse_args()
    lines: list[str] = []
    count = 0
    for page in pages():
        try:
            if options.write:
                (ROOT / page.name).write_text(page.corrected(), encoding="utf-8")
            elif options.unbound:
                lines += [f"{page.name}: line {line}: {text}" for line, text in page.unbound()]
            else:
                lines += [f"{page.name}: {line}" for line in page.disagreements()]
            count += sum(correction.numbers for correction in page.corrections)
        except SpecificationError as error:
            lines.append(f"{page.name}: {error}")
    print("\n".join([*lines, f"{count} numbers come from files; {len(lines)} lines above"]))
    return 1 if lines and not options.unbound else 0


if __name__ == "__main__":
    sys.exit(main())
