"""``overlay report``: what check, status, doctor and log answer, as one page.

The page of HTML loads nothing.  What a report holds may be a stranger's text (paths, titles,
messages of processes): all of it goes through ``_text``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import overlay
from overlay.commands import MATRIX, load
from overlay.commands.check import check
from overlay.commands.doctor import doctor
from overlay.commands.live import live
from overlay.commands.output import write_output
from overlay.commands.request import Request
from overlay.commands.status import status
from overlay.errors import OverlayError, UsageError
from overlay.report import Report, Table, by_fields, failure
from overlay.report.as_json import as_data
from overlay.report.codes import Code, Exit, Verdict
from overlay.report.lines import BLANK, Line, Span, count, enumeration, labelled
from overlay.targets.environments import is_environment
from overlay.untrusted import printable

#: The name of a file that means standard output.
STANDARD_OUTPUT = "-"


def report(
    request: Request,
    *,
    releases: str | None = None,
    matrix: bool = True,
    output: str | None = None,
) -> CollectedReport:
    """Ask each command, and write the page where it was asked for.

    What one of them cannot answer is its section; the others answer all the same.

    :param releases: those of the matrix, as ``--releases`` takes them; default: all.
    :param matrix: whether there is one: it needs the package index, or releases in the cache.
    :param output: the file for the page of HTML; ``-`` is standard output, ``None`` writes none.
    :raises UsageError: if ``output`` is empty, or lies in a target.
    :raises OverlayError: if it cannot be written.
    """
    if output == "":
        raise UsageError(f"-o is empty: name a file, or {STANDARD_OUTPUT} for standard output")
    sections = tuple(_sections(request, releases, matrix=matrix))
    timestamp = datetime.now(timezone.utc).isoformat(timespec="seconds")
    answer = CollectedReport(collected(sections), timestamp, overlay.__version__, None, sections)
    if output is None:
        return answer
    content = page(answer).encode("utf-8", "backslashreplace")
    if output == STANDARD_OUTPUT:
        return replace(answer, page=content)
    place = Path(output).absolute()
    _refuse_in_target(place, sections)
    write_output("-o", place, content)
    return replace(answer, place=str(place))


def _sections(request: Request, releases: str | None, *, matrix: bool) -> Iterator[Section]:
    target = "" if request.target is None else f" {request.target}"
    names = [] if request.target is None else [request.target]
    yield _section(f"check{target}", lambda: check(request, names))
    yield _section(f"status{target}", lambda: status(request))
    yield _section("status --live", lambda: live(request))
    # An environment has a doctor of its own; of a folder or a release there is none, and then it
    # does not matter whether this Python has a vLLM.
    place = Path(os.path.expanduser(request.target or ""))
    if request.target is None or is_environment(place):
        yield _section(f"doctor{target}", lambda: doctor(request))
    else:
        here = request._replace(target=None)
        yield _section("doctor", lambda: doctor(here, needs_vllm=False))
    if matrix:
        span = "" if releases is None else f" --releases {releases}"
        yield _section(
            f"log --matrix{span}",
            lambda: load(MATRIX, "--matrix").matrix(request, releases),
        )


def _section(command: str, ask: Callable[[], Report]) -> Section:
    """The answer of a command, or why there is none."""
    title = f"overlay {command}"
    try:
        return Section(title, ask())
    except OverlayError as error:
        return Section(title, failure(command, str(error)))


def _refuse_in_target(place: Path, sections: tuple[Section, ...]) -> None:
    """Refuse a file below the folder of any target: commands that read write nothing there.

    :raises UsageError: if it is.
    """
    folder = Path(os.path.realpath(place)).parent
    roots = {
        target.root.resolve()
        for section in sections
        for target in section.report.targets
        if target.root is not None
    }
    for root in roots:
        if folder == root or root in folder.parents:
            raise UsageError(
                f"-o {place}: expected a file outside of the target, found it below {root}; name "
                "one elsewhere"
            )


class Section(NamedTuple):
    """The answer of one command.

    :ivar title: what it is about, as a command: ``overlay status --live``.
    """

    title: str
    report: Report

    def plain(self) -> dict[str, Any]:
        """The title, and what the command answers in JSON."""
        return {"title": self.title, "report": as_data(self.report)}


@dataclass(frozen=True)
class CollectedReport(Report):
    """What check, status, doctor and log answer, each as it would by itself.

    :ivar made: when it was made, as ISO 8601 in UTC.
    :ivar overlay: the version of the overlay that made it.
    :ivar place: the file that the page was written to, ``None`` where it was not.
    :ivar sections: in the order in which they are read.
    :ivar page: the page of HTML for standard output, ``None`` where it does not go there.
    """

    _command: ClassVar[str] = "report"
    _key: ClassVar[str] = "report"
    made: str
    overlay: str
    place: str | None
    sections: tuple[Section, ...]
    page: bytes | None = None

    @property
    def body(self) -> bytes | None:
        """The page, where it was asked for on standard output."""
        return self.page

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """Each section with its own lines and verdict; its verdict alone where there is a page."""
        if self.place is not None or self.page is not None:
            for section in self.sections:
                yield labelled(0, f"{section.title}: ", section.report.verdict)
        else:
            for section in self.sections:
                yield Line((Span(f"# {section.title}", "heading"),))
                yield BLANK
                yield from section.report.lines(verbose=verbose)
                yield BLANK
        if self.place is not None:
            yield labelled(0, "written: ", self.place)

    def plain(self) -> dict[str, Any]:
        """The sections, each the JSON of its command."""
        return by_fields(self, "conclusion", "page")


def collected(sections: Sequence[Section]) -> Verdict:
    """The verdict of ``report``: a section that could not be answered needs somebody, too."""
    needy = [section.title for section in sections if section.report.exit is not Exit.OK]
    if needy:
        names = enumeration([f"`{title}`" for title in needy])
        return Verdict(Code.PROBLEMS, f"Action needed: see {names}.")
    return Verdict(Code.NO_PROBLEM, f"Nothing needs you in {count(len(sections), 'section')}.")


_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b1f24; --muted: #57606a;
  --line: #d0d7de; --box: #f6f8fa; --good: #116329; --new: #0a5a86;
  --warn: #7d4e00; --bad: #a40e26; }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --text: #e6edf3; --muted: #9aa4af;
  --line: #30363d; --box: #161b22; --good: #56d364; --new: #6cb6ff;
  --warn: #e3b341; --bad: #ff8f87; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 64rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: .5rem 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
code, .lines, .grid { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .85rem; }
nav ul { list-style: none; padding: 0; }
nav li { border-top: 1px solid var(--line); padding: .4rem 0; }
a { color: var(--new); }
.lines, .grid { background: var(--box); border: 1px solid var(--line); border-radius: 6px;
  padding: .6rem .8rem; overflow-x: auto; }
.line { display: flex; flex-wrap: wrap; min-height: 1.4em; }
.head { white-space: pre; flex: none; }
.body { white-space: pre-wrap; flex: 1 1 16rem; min-width: 0; }
.option { white-space: nowrap; }
@media (max-width: 40rem) { .body { padding-left: 2ch; flex-basis: 12rem; }
  .head:has(+ .body:empty) { white-space: pre-wrap; flex: 1 1 auto; min-width: 0; } }
.grid table { border-collapse: collapse; }
.grid th, .grid td { padding: .15rem .4rem; text-align: center; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
.grid th:first-child { text-align: left; position: sticky; left: 0; background: var(--box); }
.grid thead th { font-weight: normal; color: var(--muted); }
.grid thead th + th { writing-mode: vertical-rl; padding: .45rem .15rem; }
.muted { color: var(--muted); } .heading { font-weight: 600; } .warning { color: var(--warn); }
.good, .applied, .upstreamed { color: var(--good); } .pristine { color: var(--new); }
.inapplicable { color: var(--muted); }
.bad, .partial, .drifted, .ambiguous, .missing { color: var(--bad); font-weight: 600; }
.verdict { font-weight: 600; }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>overlay report</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>overlay report</h1>
<p class="verdict {kind}">{verdict}</p>
<p class="muted">Made {made} by vllm-overlay {version}.</p>
</header>
<nav aria-label="Sections">
<ul>
{contents}
</ul>
</nav>
<main>
{sections}
</main>
</body>
</html>
"""

#: An option of a command, which is not broken behind its hyphens.
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")

#: The classes that a span may have: the styles of lines, and the states.
_CLASSES = frozenset(
    (
        *("muted", "heading", "warning", "good", "bad", "applied", "upstreamed", "pristine"),
        *("inapplicable", "partial", "drifted", "ambiguous", "missing"),
    )
)


def page(report: CollectedReport) -> str:
    """The whole page."""
    numbered = list(enumerate(report.sections, 1))
    return _PAGE.format(
        style=_STYLE,
        kind=_kind(report.exit),
        verdict=_prose(report.verdict),
        made=_text(report.made),
        version=_text(report.overlay),
        contents="\n".join(_entry(number, section) for number, section in numbered),
        sections="\n".join(_answer(number, section) for number, section in numbered),
    )


def _kind(exit_: Exit) -> str:
    return "good" if exit_ is Exit.OK else "bad"


def _entry(number: int, section: Section) -> str:
    verdict = section.report.verdict
    return (
        f'<li><a href="#s{number}"><code>{_text(section.title)}</code></a><br>'
        f'<span class="{_kind(section.report.exit)}">{_prose(verdict)}</span></li>'
    )


def _answer(number: int, section: Section) -> str:
    report = section.report
    table = report.table()
    content = _lines(report.lines()[:-1]) if table is None else _grid(table)
    return (
        f'<section id="s{number}">\n<h2><code>{_text(section.title)}</code></h2>\n{content}\n'
        f'<p class="verdict {_kind(report.exit)}">{_prose(report.verdict)}</p>\n</section>'
    )


def _lines(lines: Iterable[Line]) -> str:
    """Lines as on a terminal: where one is too long, its body goes below its head."""
    page_lines = list(lines)
    while page_lines and page_lines[-1] == BLANK:
        page_lines.pop()
    rows = "\n".join(
        f'<div class="line"><span class="head">{_spans(line.head)}</span>'
        f'<span class="body">{_spans(line.body)}</span></div>'
        for line in page_lines
    )
    return f'<div class="lines">\n{rows}\n</div>' if rows else ""


def _spans(spans: Iterable[Span]) -> str:
    return "".join(
        f'<span class="{span.style}">{_prose(span.text)}</span>'
        if span.style in _CLASSES
        else _prose(span.text)
        for span in spans
    )


def _grid(table: Table) -> str:
    """A table with a legend of the texts in its cells, and what stands below."""
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in table.columns)
    rows = "\n".join(
        f'<tr><th scope="row">{_text(name)}</th>'
        + "".join(
            f'<td class="{cell.style}" title="{_text(cell.title)}">{_text(cell.text)}</td>'
            for cell in cells
        )
        + "</tr>"
        for name, cells in table.rows.items()
    )
    legend = "<br>".join(
        f"<code>{_text(text)}</code> {_text(meaning)}" for text, meaning in table.legend.items()
    )
    return (
        '<div class="grid" tabindex="0"><table>\n'
        f'<thead><tr><th scope="col">{_text(table.corner)}</th>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>\n<p>{legend}</p>{_lines(table.notes)}"
    )


def _prose(text: str) -> str:
    """Text of anybody for an element, whose options stay whole."""
    return _OPTION.sub(r'<span class="option">\g<0></span>', _text(text))


def _text(text: str) -> str:
    """Text of anybody for an element or an attribute in double quotes."""
    return escape(printable(text, lines=True))
