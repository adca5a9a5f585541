"""The page of ``overlay report``, for every text that a report can hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overlay.authoring.commands.matrix import MatrixCell, MatrixReport, MatrixRow
from overlay.commands.report_ import CollectedReport, Section, collected, page
from overlay.report import failure
from overlay.report.codes import Code, Verdict
from overlay.results import State
from overlay.untrusted import printable
from tests.commands.test_report_command import Page, expect_safe

TEXTS = st.text(max_size=30) | st.sampled_from(
    ["<script>x</script>", '"><b onload=a>', "&amp;", "{style}", "]]>", "\ud800", "</pre></span>"]
)


def made(*sections: Section) -> CollectedReport:
    return CollectedReport(collected(sections), "2026-01-01T00:00:00+00:00", "1", None, sections)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_whatever_sections_say_is_text_and_all_of_it_is_there(
    said: list[tuple[str, str]],
) -> None:
    sections = [Section(title, failure("check", text)) for title, text in said]
    read = Page(page(made(*sections)).encode("utf-8", "backslashreplace").decode())
    expect_safe(read)
    for title, text in said:
        assert printable(title, lines=True).replace("\r", "\n") in read.text.replace("\r", "\n")
        for line in text.splitlines():
            assert printable(line).strip() in read.text
    assert read.text.count("needs you") == 0


@given(st.lists(TEXTS, min_size=1, max_size=3, unique=True), st.sampled_from(State))
def test_a_matrix_has_a_cell_for_each_release(releases: list[str], state: State) -> None:
    cells = tuple(MatrixCell(release, state) for release in releases)
    verdict = Verdict(Code.LOGGED, "Nothing needs you.")
    matrix = MatrixReport(
        verdict, tuple(releases), (MatrixRow("<a>", cells), MatrixRow("b", cells))
    )
    read = Page(page(made(Section("log", matrix))))
    expect_safe(read)
    assert read.tags.count("td") == 2 * len(releases)
    assert read.tags.count("th") == 1 + len(releases) + 2
    assert "<a>" in read.text
