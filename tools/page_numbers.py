"""Numbers on the pages come from result files: `--check` compares them, `--write` puts them right, `--unbound` lists
those that no file is named for.

A comment behind numbers says what they are (`number_specs.py`):

    worth 480, 499<!-- sd.csv; mean return_selected; method=CTRL_g + search; trials=5 / 10 --> of 500

A claim in words is followed by what makes it true: numbers or specifications on both sides of a > or <. Where both
sides stand for as many numbers, all pairs in order must hold; a single number stands against all.

    above D3QN<!-- claim: sd.csv; mean return_selected; method=PETS; trials=5 / 10 > sd.csv; … method=D3QN; … -->

A claim that rests on a sentence which a page of results/ makes from its rows quotes that sentence.

    told apart from PETS nowhere<!-- quote: sd.md; not told apart from PETS everywhere -->

A table is written whole from the comment above it: variables that run together, the head, and one line for each value,
whose {…} are such specifications (of the table's file, unless they name another); where no row fits, a cell is empty.

    <!-- table: sd.csv
    trials = 5 / 10
    | trials | return |
    |---|---|
    | {trials} | {mean return_selected; method=PETS; trials={trials}} |
    -->
    …
    <!-- end -->
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from number_specs import DIFFERENCE, SpecificationError, answers, exact, located

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"(?<![\w.,])[−+]?\d+(?:,\d{3})*(?:\.\d+)?%?(?!\w)")
FILE = r"[\w./-]+\.(?:csv|json(?:#\w+)?)"
MARKER = re.compile(rf"<!-- ({FILE}; [^\n]*?) -->")
CLAIM = re.compile(r"<!-- claim: ([^\n]*?) ([<>]) ([^\n]*?) -->")
QUOTE = re.compile(r"<!-- quote: ([\w./-]+\.md); ([^\n]*?) -->")
TABLE = re.compile(rf"(<!-- table: ({FILE})\n(.*?)\n-->\n)(.*?)(<!-- end -->)", re.DOTALL)
PLACE = re.compile(r"\{([^{}]*)\}")
FENCE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
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


@dataclass(frozen=True)
class Found:
    """A place on a page, what stands there, and what should."""

    start: int
    end: int
    text: str
    wanted: str
    count: int = 1
    """Numbers in it."""


def found_in(page: str) -> list[Found]:
    """Everything on a page that a file stands behind, in order."""
    text = blanked(page, FENCE)
    tables = [generated(found) for found in TABLE.finditer(text)]
    seen = blanked(text, COMMENT, HIDDEN)
    inline = [each for marker in MARKER.finditer(text) for each in marked(seen, marker)]
    return sorted([*tables, *inline], key=lambda each: each.start)


def marked(seen: str, marker: re.Match[str]) -> Iterator[Found]:
    """The numbers before a comment that it speaks of."""
    wanted, start = answers(marker[1]), seen.rfind("\n\n", 0, marker.start()) + 1
    before = list(NUMBER.finditer(seen, start, marker.start()))[-len(wanted) :]
    if not wanted or len(before) < len(wanted):
        raise SpecificationError(f"{len(wanted)} numbers in the file, {len(before)} on the page before ({marker[1]})")
    for number, value in zip(before, wanted, strict=True):
        yield Found(*number.span(), number[0], value)


def generated(found: re.Match[str]) -> Found:
    """A table, and what its comment makes of the files."""
    *told, head, rule, line = found[3].split("\n")
    names, values = zip(*(each.split(" = ", 1) for each in told), strict=True)
    lines, count = [head, rule], 0
    for each in zip(*(value.split(" / ") for value in values), strict=True):
        text = line
        for name, value in zip(names, each, strict=True):
            text = text.replace(f"{{{name.strip()}}}", value.strip())
        text, own = filled(text, found[2])
        lines.append(text)
        count += own
    if not count:
        raise SpecificationError(f"no row of {found[2]} fits any cell of the table")
    return Found(*found.span(4), found[4], "\n".join(lines) + "\n", count)


def filled(line: str, file: str) -> tuple[str, int]:
    """A line of a table with its numbers, and how many they are."""
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
    """The text with what matches as spaces, so that places stay where they were."""
    for pattern in patterns:
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def rewritten(page: str) -> str:
    """The page with every number as its file has it."""
    for each in reversed(found_in(page)):
        page = page[: each.start] + each.wanted + page[each.end :]
    return page


def unbound(page: str) -> list[tuple[int, str]]:
    """Line and text of numbers that are no setting, have no file, and are not beside the script that prints them."""
    text = blanked(page, FENCE)
    for each in found_in(page):
        text = text[: each.start] + re.sub(r"[^\n]", " ", each.text) + text[each.end :]
    text = blanked(text, COMMENT)
    found, start, named = [], 0, False
    for block in BLOCK.split(text):
        named = bool(PRINTED.search(block)) or (named and block.lstrip().startswith("|"))
        start = text.index(block, start)
        seen = "" if named else blanked(block, HIDDEN, *ALLOWED)
        found += [(page.count("\n", 0, start + each.start()) + 1, each[0]) for each in NUMBER.finditer(seen)]
        start += len(block)
    return found


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


def mismatches(page: str) -> list[str]:
    """What a page says otherwise than its files, a line each."""
    wrong = [each for each in found_in(page) if each.text != each.wanted]
    return [f"line {page.count(chr(10), 0, each.start) + 1} says {first_difference(each)}" for each in wrong]


def false_claims(page: str) -> list[str]:
    """Claims in words that the files they name do not bear out, a line each."""
    text = blanked(page, FENCE)
    return [
        f"line {text.count(chr(10), 0, found.start()) + 1} claims {found[1]} {found[2]} {found[3]},"
        f" the files say {found[2].join(', '.join(f'{value:.4g}' for value in side) for side in sides)}"
        for found in CLAIM.finditer(text)
        if not holds(*(sides := (values(found[1]), values(found[3]))), found[2])
    ]


def missing_quotes(page: str) -> list[str]:
    """Sentences that a page rests on and the named page of results/ does not have, a line each."""
    text = blanked(page, FENCE)
    return [
        f"line {text.count(chr(10), 0, found.start()) + 1} rests on '{found[2]}', which {found[1]} does not say"
        for found in QUOTE.finditer(text)
        if found[2] not in located(found[1]).read_text(encoding="utf-8")
    ]


def values(side: str) -> list[float]:
    """The numbers of a side of a claim: those of a specification, or the number that stands there."""
    return exact(side) if ";" in side else [float(side)]


def holds(left: list[float], right: list[float], sign: str) -> bool:
    """Whether every pair is in the order that the sign says; a single number is paired with all."""
    count = max(len(left), len(right))
    if not left or not right or {len(left), len(right)} - {1, count}:
        raise SpecificationError(f"a claim compares {len(left)} numbers with {len(right)}")
    pairs = zip(left * (count // len(left)), right * (count // len(right)), strict=True)
    return all(a > b if sign == ">" else a < b for a, b in pairs)


def first_difference(each: Found) -> str:
    pairs = zip(each.text.splitlines() or [""], each.wanted.splitlines(), strict=False)
    old, new = next(((a, b) for a, b in pairs if a != b), ("a table", "one of another length"))
    return f"{old}, the file {new}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Numbers on the pages and the files they come from.")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--check", action="store_true", help="fail where a page differs from its file or a claim is false")
    how.add_argument("--write", action="store_true", help="put every number right")
    how.add_argument("--unbound", action="store_true", help="list numbers that no file is named for")
    told, wrong, count = parser.parse_args(), [], 0
    for path in pages():
        page = path.read_text(encoding="utf-8")
        try:
            if told.write:
                path.write_text(page := rewritten(page), encoding="utf-8")
            listed = [f"line {line}: {text}" for line, text in unbound(page)] if told.unbound else mismatches(page)
            listed += [] if told.unbound else [*false_claims(page), *missing_quotes(page)]
            count += sum(each.count for each in found_in(page))
        except SpecificationError as error:
            listed = [str(error)]
        wrong += [f"{path.relative_to(ROOT)}: {line}" for line in listed]
    print("\n".join([*wrong, f"{count} numbers are bound to files; {len(wrong)} listed above"]))
    return 1 if wrong and not told.unbound else 0


if __name__ == "__main__":
    sys.exit(main())
