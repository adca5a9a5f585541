"""Our rows in RECORD: put in, taken out, and never in the way of the release's own."""

from __future__ import annotations

import csv
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.package import VLLM
from overlay.targets.installations import (
    Record,
    Row,
    our_rows,
    release_part,
    with_rows,
    without_rows,
)
from tests.support import transactions
from tests.support.transactions import ADDED, PROPOSER, TWO, Site

LEDGER = ".vllm-overlay/ledger.json"

paths = st.text(
    st.characters(exclude_characters="\r\n\0", exclude_categories=("Cs", "Cc", "Zl", "Zp")),
    min_size=1,
    max_size=20,
).map(lambda text: "vllm/" + text)
rows = st.lists(
    st.builds(
        Row,
        paths,
        st.binary(min_size=32, max_size=32).map(bytes.hex) | st.none(),
        st.integers(0, 10**9) | st.none(),
    ),
    unique_by=lambda row: row.path,
    max_size=5,
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """What installers write: LF or CRLF, with the last line ended or not."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines = draw(st.lists(paths.map(lambda path: f'"{path.replace(chr(34), chr(34) * 2)}",,')))
    last = end if draw(st.booleans()) and lines else ""
    return (end.join(lines) + last).encode()


@settings(deadline=None)
@given(records(), rows)
def test_taking_out_what_was_put_in_gives_the_same_bytes(record: bytes, ours: list[Row]) -> None:
    patched = with_rows(record, ours, VLLM)
    before = hashlib.sha256(record).hexdigest()
    assert without_rows(patched, before, [row.path for row in ours], VLLM) == record


@settings(deadline=None)
@given(records(), rows, rows)
def test_rows_replace_the_rows_that_were_there(
    record: bytes, first: list[Row], second: list[Row]
) -> None:
    once = with_rows(with_rows(record, first, VLLM), second, VLLM)
    assert our_rows(once, VLLM) == (Row(LEDGER), *second)
    assert release_part(once, VLLM) == release_part(with_rows(record, second, VLLM), VLLM)


@settings(deadline=None)
@given(records(), rows)
def test_what_we_write_is_read_as_csv(record: bytes, ours: list[Row]) -> None:
    text = with_rows(record, ours, VLLM).decode()
    found = [row[0] for row in csv.reader(text.splitlines()) if row]
    theirs = [row[0] for row in csv.reader(record.decode().splitlines()) if row]
    assert found == [*theirs, LEDGER, *(row.path for row in ours)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_line_ends_are_those_of_the_file(end: bytes) -> None:
    patched = with_rows(b"vllm/a.py,," + end, [Row("vllm/b.py")], VLLM)
    assert patched == end.join([b"vllm/a.py,,", LEDGER.encode() + b",,", b"vllm/b.py,,", b""])


def test_somebody_else_wrote_meanwhile_and_only_our_rows_go() -> None:
    before = b"vllm/a.py,,\nvllm-1.dist-info/RECORD,,\n"
    edited = with_rows(before, [Row("vllm/b.py")], VLLM).replace(b"a.py", b"z.py") + b"bin/tool,,\n"
    left = without_rows(edited, hashlib.sha256(before).hexdigest(), ["vllm/b.py"], VLLM)
    assert left == b"vllm/z.py,,\nvllm-1.dist-info/RECORD,,\nbin/tool,,\n"


@pytest.fixture
def site(tmp_path) -> Site:
    return transactions.installed(tmp_path / "site")


def test_every_file_of_ours_is_listed_while_it_stands(site: Site) -> None:
    site.apply()
    rows = our_rows(site.record.read_bytes(), VLLM)
    assert {row.path for row in rows} == {
        ADDED,
        *(
            path.relative_to(site.root).as_posix()
            for path in (site.root / ".vllm-overlay").rglob("*")
            if path.is_file()
        ),
    }
    for row in rows:
        content = (site.root / row.path).read_bytes()
        assert row.sha256 in (None, hashlib.sha256(content).hexdigest())
        assert row.size in (None, len(content))
    assert [row.path for row in rows if row.sha256 is None] == [LEDGER]


def test_the_release_keeps_its_hashes(site: Site) -> None:
    before = dict(Record(site.record.read_bytes(), VLLM))
    site.apply()
    assert dict(Record(site.record.read_bytes(), VLLM)) == before
    assert before[PROPOSER] == hashlib.sha256(site.pristine[PROPOSER]).hexdigest()


@pytest.mark.parametrize("unfinished", [False, True])
def test_an_edited_record_loses_only_our_rows(site: Site, unfinished: bool) -> None:
    before = site.record.read_bytes()
    if unfinished:
        before = before.rstrip(b"\n")
        site.record.write_bytes(before)
    site.apply()
    site.record.write_bytes(site.record.read_bytes() + b"bin/tool,,\n")
    site.apply(TWO)
    site.revert()
    assert site.record.read_bytes() == before.rstrip(b"\n") + b"\nbin/tool,,\n"


def test_a_record_without_a_last_newline_comes_back(site: Site) -> None:
    before = site.record.read_bytes().rstrip(b"\n")
    site.record.write_bytes(before)
    site.apply()
    site.apply(TWO)
    site.revert()
    assert site.record.read_bytes() == before


def test_a_record_that_vanished_is_no_problem(site: Site) -> None:
    site.apply()
    site.record.unlink()
    site.revert()
    assert not site.record.exists()
    assert not (site.root / ".vllm-overlay").exists()
