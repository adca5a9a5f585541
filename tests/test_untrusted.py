"""Reading, judging and showing what a stranger may have made."""

from __future__ import annotations

import os
import socket
import stat
import threading
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay import untrusted
from overlay.untrusted import (
    NotPrivate,
    UnfitFile,
    parse_json,
    printable,
    problem_of_owner,
    read_below,
    read_regular,
    require_private,
)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


def _large(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 17 * 2**20)


_UNFIT = {
    _pipe: "a pipe",
    _socket: "a socket",
    _link_to_zeros: "a device",
    _folder: "a folder",
    _large: "at most 16777216 bytes, found 17825792",
}


@pytest.mark.parametrize("make", _UNFIT, ids=lambda make: make.__name__.strip("_"))
@pytest.mark.parametrize("below", [False, True], ids=["path", "below"])
def test_what_is_not_a_bounded_regular_file_is_refused_at_once(
    tmp_path: Path, make: object, below: bool
) -> None:
    assert callable(make)
    make(tmp_path / "it")
    answers: list[object] = []

    def read() -> None:
        try:
            answers.append(read_below(tmp_path, "it") if below else read_regular(tmp_path / "it"))
        except UnfitFile as error:
            answers.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it hangs"
    (answer,) = answers
    assert isinstance(answer, UnfitFile)
    assert answer.filename == str(tmp_path / "it")
    expected = _UNFIT[make]
    if below and make is _link_to_zeros:
        expected = "a symbolic link"
    assert expected in str(answer.strerror)


def test_a_file_of_just_the_limit_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == b"12345"
    with pytest.raises(UnfitFile, match="at most 4 bytes, found 5"):
        read_regular(file, 4)


def test_a_file_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1234")
    real = os.read

    def growing(descriptor: int, size: int) -> bytes:
        with file.open("ab") as stream:
            stream.write(b"more")
        return real(descriptor, size)

    monkeypatch.setattr(untrusted.os, "read", growing)
    with pytest.raises(UnfitFile, match="grew"):
        read_regular(file, 4)


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in ("nothing", "nothing/below", "file/below"):
        assert read_regular(tmp_path / path) is None
        assert read_below(tmp_path, path) is None


def test_no_link_is_followed_below_a_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "real").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "real" / "file").write_bytes(b"mine")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    assert read_below(root, "real/file") == b"mine"
    for path in ("folder/secret", "file"):
        with pytest.raises(UnfitFile, match="a symbolic link"):
            read_below(root, path)
    assert read_regular(root / "file") == b"secret"
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(root / "file", follow=False)


def test_a_descriptor_is_never_left_open(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "a" / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a/file", "a/nothing", "b/c"):
        read_below(tmp_path, path)
    with pytest.raises(UnfitFile):
        read_below(tmp_path, "a/pipe")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"a":' * 200_000])
def test_json_of_many_brackets_is_an_error_like_any_other(data: bytes) -> None:
    with pytest.raises(ValueError, match="too deeply"):
        parse_json(data)


def test_json_is_read() -> None:
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}
    with pytest.raises(ValueError, match="Expecting"):
        parse_json(b"{")


@pytest.mark.parametrize(
    ("mode", "problem"),
    [(0o700, None), (0o755, None), (0o775, "0775"), (0o707, "0707"), (0o777, "0777")],
)
def test_what_others_can_write_is_named(tmp_path: Path, mode: int, problem: str | None) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    found = problem_of_owner(place)
    if problem is None:
        assert found is None
        require_private(place)
    else:
        assert found is not None
        assert problem in found
        with pytest.raises(NotPrivate, match=problem):
            require_private(place)


class _Status:
    """A place of another user, as ``os.lstat`` tells it."""

    def __init__(self, mode: int, user: int, group: int = 4711) -> None:
        self.st_mode, self.st_uid, self.st_gid = stat.S_IFDIR | mode, user, group


def test_what_belongs_to_neither_us_nor_root_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted.os, "geteuid", lambda: 1000)
    for user, trusted in ((1000, True), (0, True), (1001, False)):
        monkeypatch.setattr(untrusted.os, "lstat", lambda _, user=user: _Status(0o755, user))
        assert (problem_of_owner("/place") is None) is trusted


def test_a_private_group_may_write_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Group:
        gr_gid, gr_name, gr_mem = 4711, "me", ()

    class User:
        pw_gid, pw_name = 4711, "me"

    monkeypatch.setattr("pwd.getpwuid", lambda _: User)
    monkeypatch.setattr("grp.getgrgid", lambda _: Group)
    monkeypatch.setattr(untrusted.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(untrusted.os, "lstat", lambda _: _Status(0o775, 1000))
    assert problem_of_owner(tmp_path, allow_group=True) is None
    assert problem_of_owner(tmp_path) is not None
    monkeypatch.setattr(Group, "gr_mem", ("me", "you"))
    assert problem_of_owner(tmp_path, allow_group=True) is not None
    monkeypatch.setattr(Group, "gr_mem", ())
    monkeypatch.setattr(Group, "gr_name", "staff")
    assert problem_of_owner(tmp_path, allow_group=True) is not None


def test_a_link_and_a_missing_place_are_not_private(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(NotPrivate, match="symbolic link"):
        require_private(tmp_path / "link")
    with pytest.raises(NotPrivate, match="No such file"):
        require_private(tmp_path / "nothing")


@given(st.text(st.characters()))
def test_no_control_character_is_printed_and_other_text_stays(text: str) -> None:
    for lines in (False, True):
        shown = printable(text, lines=lines)
        for character in shown:
            control = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
            assert not control or (lines and character == "\n")
    kept = "".join(c for c in text if c.isprintable())
    assert printable(kept) == kept


def test_escapes_are_shown() -> None:
    assert printable("\x1b]0;T\x07\x7f\x9b1m\n\r\t") == r"\x1b]0;T\x07\x7f\x9b1m\n\r\t"
    assert printable("a\nb\x1b", lines=True) == "a\nb\\x1b"
    assert printable(os.fsdecode(b"name\x9b\xff")) == r"name\x9b\xff"
    assert printable("evil \u202e txt") == r"evil \u202e txt"
    assert printable("Grüße, 世界 🎉 naïve\u00a0x") == "Grüße, 世界 🎉 naïve\u00a0x"
