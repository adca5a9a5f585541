"""A session survives everything but ``--abort``: kills, damage, edits of what it compares with."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.authoring import disk
from overlay.authoring.session import (
    DOCUMENT,
    Session,
    SessionFile,
    SessionKind,
    _session,
    abort,
    begin,
    read,
    render,
    revise,
)
from overlay.errors import UsageError
from overlay.untrusted import parse_toml
from tests.support.faults import FaultyOs, faulty, in_child, killing

A, B, NEW = "vllm/a.py", "vllm/v1/b.py", "vllm/new.py"
LAID = {A: b"a = 1\nb = 2\n", NEW: b"n = 0\n"}
BASES = {A: b"a = 1\n"}


def session(folder: Path, kind: SessionKind = SessionKind.EDIT) -> Session:
    return Session(folder, kind, {"fix": "f" * 64}, "0.26.0", (folder.parent / "ours",))


@pytest.fixture
def begun(tmp_path: Path) -> Session:
    return begin(session(tmp_path / "fix@0.26.0"), LAID, BASES)


def test_a_session_is_read_as_it_was_begun(begun: Session) -> None:
    assert read(begun.folder, SessionKind.EDIT) == begun
    assert begun.present() == (A, NEW)
    assert (begun.base(A), begun.base(NEW), begun.base(B)) == (BASES[A], None, None)
    assert begun.untouched()


#: Texts that can name a file, and ids of features.
PLAIN = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
IDS = st.from_regex(r"[a-z0-9]{1,4}(-[a-z0-9]{1,4}){0,2}", fullmatch=True)


@given(
    texts=st.dictionaries(PLAIN, PLAIN),
    ids=st.dictionaries(IDS, PLAIN),
    id_=IDS,
    paths=st.dictionaries(
        st.from_regex(r"vllm/[a-z_ é\"']{1,9}\.py", fullmatch=True),
        st.tuples(*[st.none() | st.from_regex(r"[0-9a-f]{64}", fullmatch=True)] * 2),
    ),
)
def test_the_document_gives_back_what_was_written(
    texts: dict[str, str],
    ids: dict[str, str],
    id_: str,
    paths: dict[str, tuple[str | None, str | None]],
) -> None:
    files = {path: SessionFile(*hashes) for path, hashes in paths.items()}
    own = {id_: "f"}
    given_ = replace(session(Path("x")), files=files, notes=texts, below=ids, features=own)
    assert _session(Path("x"), given_.kind, parse_toml(render(given_))) == given_


def snapshot(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in disk.files_below(folder)}


def calls_of(work: Callable[[], object]) -> int:
    with faulty(FaultyOs(), disk) as system:
        work()
    return system.count


def killed(at: int, work: Callable[[], object]) -> None:
    def child() -> None:
        with faulty(FaultyOs(at, killing), disk):
            work()

    assert in_child(child) == -signal.SIGKILL


def test_killed_at_every_call_a_session_begins_whole_or_not_at_all(tmp_path: Path) -> None:
    whole = begin(session(tmp_path / "whole"), LAID, BASES)
    most = calls_of(lambda: begin(session(tmp_path / "counted"), LAID, BASES))
    for at in range(1, most + 1):
        place = tmp_path / f"at{at}"
        # Mypy types no lambda with a default.
        killed(at, lambda place=place: begin(session(place), LAID, BASES))  # type: ignore[misc]
        if place.exists():
            assert snapshot(place).keys() == snapshot(whole.folder).keys()
        else:
            begin(session(place), LAID, BASES)
            assert not list(tmp_path.glob(f".at{at}.*"))  # what the killed process left
        assert read(place, SessionKind.EDIT).untouched()


def test_killed_at_every_call_a_session_ends_or_is_as_it_was(tmp_path: Path) -> None:
    most = calls_of(lambda: abort(begin(session(tmp_path / "counted"), LAID, BASES)))
    before = calls_of(lambda: begin(session(tmp_path / "begun"), LAID, BASES))
    for at in range(1, most - before + 1):
        own = begin(session(tmp_path / f"at{at}"), LAID, BASES)
        (own.folder / A).write_bytes(b"mine = 1\n")
        # Mypy types no lambda with a default.
        killed(at, lambda own=own: abort(own))  # type: ignore[misc]
        if own.folder.exists():
            assert read(own.folder, SessionKind.EDIT).now(A) == b"mine = 1\n"
            abort(own)
        assert not own.folder.exists()


def test_killed_at_every_call_a_session_that_grows_keeps_every_edit(tmp_path: Path) -> None:
    more = {B: b"b = 1\n"}

    def start(name: str) -> Session:
        own = begin(session(tmp_path / name), LAID, BASES)
        (own.folder / A).write_bytes(b"mine = 1\n")
        return own

    counted = start("counted")
    for at in range(1, calls_of(lambda: revise(counted, more, more)) + 1):
        own = start(f"at{at}")
        # Mypy types no lambda with a default.
        killed(at, lambda own=own: revise(own, more, more))  # type: ignore[misc]
        again = read(own.folder, SessionKind.EDIT)
        assert again.now(A) == b"mine = 1\n"
        assert again.base(A) == BASES[A]
        grown = revise(again, more, more)
        assert grown.base(B) == grown.now(B) == more[B]
        assert read(own.folder, SessionKind.EDIT) == grown


def test_a_session_takes_the_place_of_nothing(begun: Session) -> None:
    (begun.folder / A).write_bytes(b"mine = 1\n")
    with pytest.raises(UsageError, match="found a file or folder"):
        begin(begun, LAID, BASES)
    with pytest.raises(UsageError, match="expected no file there, found one"):
        revise(begun, {A: b"other = 1\n"}, {})
    assert begun.now(A) == b"mine = 1\n"


def test_an_edited_base_is_named_and_nothing_lost(begun: Session) -> None:
    (begun.folder / ".base" / A).write_bytes(b"other\n")
    with pytest.raises(UsageError, match="it was edited"):
        begun.base(A)
    (begun.folder / ".base" / A).unlink()
    with pytest.raises(UsageError, match="nothing is there"):
        begun.base(A)
    assert begun.now(A) == LAID[A]


def test_the_session_of_another_command_is_refused(begun: Session) -> None:
    with pytest.raises(UsageError, match="expected a session of `overlay port`, found one of"):
        read(begun.folder, SessionKind.PORT)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"schema = 1\n",
        b"\xff\xfe",
        b"[[[[",
        b'schema = 2\nkind = "edit"\n',
        b'schema = 1\nkind = "edit"\nrelease = 1\npatches = ""\n[files]\n[features]\n',
        b'schema = 1\nkind = "x"\nrelease = "1"\npatches = ""\n[files]\n[features]\n[below]\n',
        (
            b'schema = 1\nkind = "edit"\nrelease = "1"\npatches = ""\n[features]\n[below]\n'
            b'[notes]\n[files]\n"../x.py" = { base = "", laid = "" }\n'
        ),
    ],
)
def test_a_damaged_document_is_named(begun: Session, damage: bytes) -> None:
    (begun.folder / DOCUMENT).write_bytes(damage)
    with pytest.raises(UsageError, match="found a damaged one"):
        read(begun.folder, SessionKind.EDIT)
    (begun.folder / DOCUMENT).unlink()
    with pytest.raises(UsageError, match=r"found no session\.toml"):
        read(begun.folder, SessionKind.EDIT)


def test_links_in_a_session_are_refused(begun: Session, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("secret = 1\n")
    (begun.folder / "vllm/link.py").symlink_to(tmp_path / "secret.py")
    with pytest.raises(UsageError, match="found a symbolic link"):
        begun.present()


def test_patches_whose_name_is_not_unicode_are_named_before_anything_is_written(
    tmp_path: Path,
) -> None:
    own = replace(session(tmp_path / "s"), patches=(Path("/nowhere/our\udcff"),))
    with pytest.raises(UsageError, match=r"/nowhere/our\\xff: expected a text or a name in UTF-8"):
        begin(own, LAID, BASES)
    assert list(tmp_path.iterdir()) == []
