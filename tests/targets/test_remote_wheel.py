"""A file over a URL reads like the file itself, in few requests."""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import ArchiveError, PackageIndexError
from overlay.targets import fetch
from overlay.targets.fetch import GAP_BYTES, SPAN_BYTES, RangeFile, join_spans
from overlay.targets.http import RemotePart

_CONTENT = random.Random(1).randbytes(3_000_000)


class FakeSession:
    """Serves the parts of some bytes, and counts them."""

    def __init__(self, content: bytes = _CONTENT, tag: str = "one") -> None:
        self.content, self.tag = content, tag
        self.asked: list[tuple[int, int]] = []

    def span(self, url: str, ask: str) -> RemotePart:
        first, _, last = ask.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(self.content) - int(last))
        end = min(int(last) + 1, len(self.content)) if first else len(self.content)
        self.asked.append((start, end))
        return RemotePart(self.content[start:end], start, len(self.content), self.tag)


def _open(session: FakeSession) -> RangeFile:
    # What a RangeFile asks of its session is `span`, and this one has it.
    file = RangeFile.open(session, "https://x.example/w.whl")  # type: ignore[arg-type]
    assert file is not None
    return file


_POSITIONS = st.integers(0, len(_CONTENT) + 10)
_STEPS = st.one_of(
    st.tuples(st.just("seek"), _POSITIONS, st.just(io.SEEK_SET)),
    st.tuples(st.just("seek"), st.integers(-len(_CONTENT), 0), st.just(io.SEEK_END)),
    st.tuples(st.just("read"), st.integers(-1, 600_000), st.just(0)),
    st.tuples(st.just("prefetch"), _POSITIONS, st.integers(1, 300_000)),
)


@given(st.lists(_STEPS, max_size=12))
def test_reads_like_the_file_itself(steps: list[tuple[str, int, int]]) -> None:
    ours, truth = _open(FakeSession()), io.BytesIO(_CONTENT)
    for what, number, other in steps:
        if what == "seek":
            assert ours.seek(number, other) == truth.seek(number, other)
        elif what == "read":
            assert ours.read(number) == truth.read(number)
        elif number + other <= len(_CONTENT):
            ours.prefetch([(number, number + other)], "x", None)
        assert ours.tell() == truth.tell()


@given(st.lists(st.tuples(st.integers(0, 1 << 25), st.integers(1, 1 << 16)), max_size=30))
def test_joined_parts_cover_every_part_and_waste_little(pairs: list[tuple[int, int]]) -> None:
    spans = [(start, start + length) for start, length in pairs]
    joined = join_spans(spans)

    for start, end in spans:
        assert any(first <= start and end <= last for first, last in joined)
    assert sum(end - start for start, end in joined) <= sum(
        end - start + GAP_BYTES for start, end in spans
    )
    assert all(end - start <= SPAN_BYTES for start, end in joined)
    assert len(joined) <= max(1, len(spans))


def test_parts_are_joined_up_to_a_size() -> None:
    step = SPAN_BYTES // 4
    spans = [(at, at + step) for at in range(0, 3 * SPAN_BYTES, step)]

    assert join_spans(spans) == [(at, at + SPAN_BYTES) for at in (0, SPAN_BYTES, 2 * SPAN_BYTES)]
    assert join_spans([(0, 1), (1 + GAP_BYTES, 5 + GAP_BYTES)]) == [(0, 5 + GAP_BYTES)]
    assert len(join_spans([(0, 1), (2 + GAP_BYTES, 5 + GAP_BYTES)])) == 2


def test_what_was_fetched_is_not_asked_for_again() -> None:
    session = FakeSession()
    file = _open(session)
    told: list[tuple[int, int | None]] = []
    file.prefetch(
        [(0, 1000), (2000, 3000), (1_500_000, 1_500_100)],
        "x",
        lambda _, done, total: told.append((done, total)),
    )
    asked = list(session.asked)

    file.seek(2000)
    assert file.read(1000) == _CONTENT[2000:3000]
    file.prefetch([(0, 1000), (2000, 3000)], "x", None)

    assert session.asked == asked
    assert asked[1:] == [(0, 3000), (1_500_000, 1_500_100)]
    assert told == [(3000, 3100), (3100, 3100)]


def test_a_file_that_changes_meanwhile_is_an_error() -> None:
    session = FakeSession()
    file = _open(session)
    session.tag = "two"

    with pytest.raises(PackageIndexError, match="changed while it was read"):
        file.read(10)


def test_a_server_that_sends_another_part_is_an_error() -> None:
    session = FakeSession()
    file = _open(session)
    file._session = type(
        "Liar", (), {"span": lambda *_: RemotePart(b"abc", 5, len(_CONTENT), "one")}
    )()

    with pytest.raises(PackageIndexError, match="the server gave others"):
        file.read(10)


def test_a_server_without_a_suffix_range_is_one_without_ranges() -> None:
    session = type("Odd", (), {"span": lambda *_: RemotePart(b"abc", 0, 100, "")})()

    assert RangeFile.open(session, "https://x.example/w.whl") is None


def test_an_endless_list_of_members_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_SPAN_BYTES", 1_000_000)
    file = _open(FakeSession())

    with pytest.raises(ArchiveError, match="at most 1000000 bytes"):
        file.read(1_500_000)
