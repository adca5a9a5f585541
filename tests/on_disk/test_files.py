"""The calls that change a target, each by itself: what they do, leave and raise."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from overlay.on_disk import files
from overlay.on_disk.files import Form, Owner
from overlay.untrusted import UnfitFile

ME = Owner(os.getuid(), os.getgid())
OTHER = Owner(4711, 4712)


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Nothing may depend on it."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fail(patch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Let a system call fail, as the system does: with the last part of the name."""

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number), path if isinstance(path, str) else None)

    patch.setattr(os, name, call)


def recorded(patch: pytest.MonkeyPatch, name: str, *, real: bool = True) -> list[Any]:
    """What a system call is asked from here on: the inodes that are synced, or its arguments."""
    calls: list[Any] = []
    function = getattr(os, name)

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(os.fstat(arguments[0]).st_ino if name == "fsync" else arguments[1:])
        return function(*arguments, **options) if real else None

    patch.setattr(os, name, call)
    return calls


def test_a_file_is_written_whole_with_its_mode_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = recorded(monkeypatch, "fsync")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))
    (tmp_path / "a").mkdir()
    path = tmp_path / "a/new"
    for data, wanted in ((b"0123456789", 0o640), (b"", 0o755), (b"x" * 7, 0o604)):
        files.create(tmp_path, "a/new", data, Form(wanted))
        assert (path.read_bytes(), mode(path)) == (data, wanted)
        assert synced.pop() == path.stat().st_ino
    assert not synced


def test_what_is_left_over_there_is_removed_and_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    os.link(elsewhere, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(elsewhere)
    for name in ("hard", "soft"):
        files.create(tmp_path, name, b"new", Form())
        assert (tmp_path / name).read_bytes() == b"new"
        assert mode(tmp_path / name) == 0o644
    assert elsewhere.read_text() == "mine"


@pytest.mark.parametrize(("owner", "changed"), [(None, []), (ME, []), (OTHER, [OTHER])])
def test_the_owner_is_set_where_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Owner | None, changed: list[Owner]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    given = recorded(monkeypatch, "fchown", real=False)
    files.create(tmp_path, "new", b"", Form(0o644, owner))
    files.make_folder(tmp_path, "folder", owner)
    assert given == [tuple(each) for each in changed] * 2


@pytest.mark.parametrize("user", [0, 1000])
def test_only_root_is_told_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("")
    (tmp_path / "a/x").chmod(0o751)
    owner = ME if user == 0 else None
    assert files.form(tmp_path, "a/x") == Form(0o751, owner)
    assert files.inherited(tmp_path, "a/b/c") == Form(0o644, owner)
    assert files.form(tmp_path, "a/y") is None
    assert files.form(tmp_path, "a/x/y") is None
    assert files.form(tmp_path, "b/y") is None


def test_the_form_of_a_link_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert files.form(tmp_path, "link") is not None


def test_a_kept_file_is_the_very_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    for _ in range(2):  # also where one is left over
        files.keep(tmp_path, "a", ".a.old", b"old", Form())
        assert (tmp_path / ".a.old").samefile(path)
        (tmp_path / ".a.old").unlink()
        (tmp_path / ".a.old").write_text("left over")
    path.unlink()
    path.symlink_to("nowhere")
    files.keep(tmp_path, "a", ".a.old", b"", Form())
    assert os.readlink(tmp_path / ".a.old") == "nowhere"


@pytest.mark.parametrize(
    "number",
    [
        errno.EPERM,
        errno.EACCES,
        errno.EMLINK,
        errno.EXDEV,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.ENOTSUP,
    ],
)
def test_without_hard_links_it_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v/a").write_text("old")
    fail(monkeypatch, "link", number)
    files.keep(tmp_path, "v/a", "v/.a.old", b"bytes", Form(0o604))
    assert (tmp_path / "v/.a.old").read_bytes() == b"bytes"
    assert mode(tmp_path / "v/.a.old") == 0o604


def test_files_are_replaced_and_removed(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v/new").write_text("new")
    (tmp_path / "v/a").write_text("old")
    files.replace(tmp_path, "v/new", "v/a")
    assert [path.name for path in (tmp_path / "v").iterdir()] == ["a"]
    assert (tmp_path / "v/a").read_text() == "new"
    for path in ("v/a", "v/a", "none/a"):
        files.remove(tmp_path, path)
    (tmp_path / "plain").write_text("")
    files.remove(tmp_path, "plain/a")
    assert [*(tmp_path / "v").iterdir()] == []


def test_a_folder_is_made_open_for_everybody_to_read(tmp_path: Path) -> None:
    files.make_folder(tmp_path, "a")
    assert mode(tmp_path / "a") == 0o755
    for before, after in ((0o700, 0o755), (0o775, 0o775), (0o777, 0o777), (0o555, 0o755)):
        (tmp_path / "a").chmod(before)
        files.make_folder(tmp_path, "a")
        assert mode(tmp_path / "a") == after
    (tmp_path / "plain").write_text("")
    (tmp_path / "link").symlink_to("a")
    for name in ("plain", "link"):
        with pytest.raises(FileExistsError) as caught:
            files.make_folder(tmp_path, name)
        assert caught.value.filename == str(tmp_path / name)


def test_only_an_empty_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full/empty").mkdir(parents=True)
    (tmp_path / "plain").write_text("")
    asked = ["full", "full/empty", "full", "full", "no/folder", "plain", "plain/x"]
    answers = [files.remove_folder(tmp_path, path) for path in asked]
    assert answers == [False, True, True, True, True, False, True]
    fail(monkeypatch, "rmdir", errno.EEXIST)
    assert files.remove_folder(tmp_path, "x") is False
    fail(monkeypatch, "rmdir", errno.EBUSY)
    with pytest.raises(OSError) as caught:
        files.remove_folder(tmp_path, "x")
    assert caught.value.filename == str(tmp_path / "x")


def test_a_folder_is_synced_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "plain").write_text("")
    synced = recorded(monkeypatch, "fsync")
    for path in ("", "v", "none", "plain"):
        files.sync_folder(tmp_path, path)
    assert synced == [tmp_path.stat().st_ino, (tmp_path / "v").stat().st_ino]
    fail(monkeypatch, "fsync", errno.EINVAL)
    files.sync_folder(tmp_path, "v")
    fail(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(OSError) as caught:
        files.sync_folder(tmp_path, "v")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "v"))


CALLS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "create": ("fchmod", lambda root: files.create(root, "v/a", b"", Form()), "v/a"),
    "keep": ("link", lambda root: files.keep(root, "v/a", "v/b", b"", Form()), "v/a"),
    "replace": ("replace", lambda root: files.replace(root, "v/a", "v/b"), "v/a"),
    "remove": ("unlink", lambda root: files.remove(root, "v/a"), "v/a"),
    "make_folder": ("mkdir", lambda root: files.make_folder(root, "v/f"), "v/f"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_names_the_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call, action, first = CALLS[name]
    (tmp_path / "v").mkdir()
    (tmp_path / "v/a").write_text("")
    fail(monkeypatch, call, errno.EIO)
    with pytest.raises(OSError) as caught:
        action(tmp_path)
    assert caught.value.filename == str(tmp_path / first)


def test_an_error_of_two_names_names_both_whole(tmp_path: Path) -> None:
    (tmp_path / "v/b").mkdir(parents=True)
    (tmp_path / "v/a").write_text("")
    with pytest.raises(OSError) as caught:
        files.replace(tmp_path, "v/a", "v/b")
    told = (caught.value.filename, caught.value.filename2)
    assert told == (str(tmp_path / "v/a"), str(tmp_path / "v/b"))


def test_nothing_is_changed_behind_a_link(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (elsewhere / "f").mkdir(parents=True)
    (elsewhere / "a").write_text("mine")
    root.mkdir()
    (root / "v").symlink_to(elsewhere)
    actions: list[Callable[[], object]] = [
        lambda: files.create(root, "v/new", b"", Form()),
        lambda: files.keep(root, "v/a", "v/b", b"", Form()),
        lambda: files.replace(root, "v/a", "v/b"),
        lambda: files.remove(root, "v/a"),
        lambda: files.make_folder(root, "v/new"),
        lambda: files.remove_folder(root, "v/f"),
        lambda: files.sync_folder(root, "v"),
        lambda: files.form(root, "v/a"),
    ]
    for action in actions:
        with pytest.raises(UnfitFile):
            action()
    assert sorted(path.name for path in elsewhere.iterdir()) == ["a", "f"]


def bytecode(source: Path, flags: int = 0, *, later: int = 0) -> bytes:
    """What Python writes beside its code: flags, and the time and the size of the source."""
    status = source.stat()
    numbers = (flags, int(status.st_mtime) + later, status.st_size)
    return b"magi" + b"".join(number.to_bytes(4, "little") for number in numbers) + b"code"


@pytest.mark.parametrize(
    ("flags", "later", "runs"), [(0, 0, True), (0, 1, False), (1, 1, True), (3, 0, False)]
)
@pytest.mark.parametrize("linked", [False, True])
def test_bytecode_that_stays_must_be_one_that_python_rejects(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    linked: bool,
    flags: int,
    later: int,
    runs: bool,
) -> None:
    """Behind a link it is left alone; elsewhere it may be that it cannot be removed."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (root / "v").mkdir(parents=True)
    elsewhere.mkdir()
    (root / "v/.a.new").write_text("new")
    cache = root / "v/__pycache__"
    if linked:
        cache.symlink_to(elsewhere)
    else:
        cache.mkdir()
        fail(monkeypatch, "unlink", errno.EACCES)
    (cache / "a.cpython-312.pyc").write_bytes(bytecode(root / "v/.a.new", flags, later=later))
    (cache / "ab.cpython-312.pyc").write_bytes(bytecode(root / "v/.a.new"))
    if runs:
        with pytest.raises(OSError) as caught:
            files.remove_bytecode(root, "v/a.py", "v/.a.new")
        named = cache if linked else cache / "a.cpython-312.pyc"
        assert caught.value.filename == str(named)
    else:
        files.remove_bytecode(root, "v/a.py", "v/.a.new")
    files.remove_bytecode(root, "v/b.py", "v/.a.new")
    assert len([*cache.iterdir()]) == 2


def test_behind_a_link_that_leads_nowhere_or_without_a_source_no_bytecode_runs(
    tmp_path: Path,
) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v/a.py").write_text("")
    cache = tmp_path / "v/__pycache__"
    cache.symlink_to("nowhere")
    files.remove_bytecode(tmp_path, "v/a.py", "v/a.py")
    cache.unlink()
    (tmp_path / "real").mkdir()
    cache.symlink_to(tmp_path / "real")
    (cache / "a.cpython-312.pyc").write_bytes(bytecode(tmp_path / "v/a.py"))
    files.remove_bytecode(tmp_path, "v/a.py", None)
    assert len([*cache.iterdir()]) == 1


def test_a_folder_of_bytecode_goes_with_its_last_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    for name in ("a.cpython-312.pyc", "a.cpython-312.opt-1.pyc", "b.cpython-312.pyc"):
        (cache / name).write_bytes(b"")
    files.remove_bytecode(tmp_path, "a.py", None)
    assert [path.name for path in cache.iterdir()] == ["b.cpython-312.pyc"]
    files.remove_bytecode(tmp_path, "b.py", None)
    assert not cache.exists()
    cache.mkdir()
    files.remove_bytecode(tmp_path, "b.py", None)
    assert cache.exists()


def test_what_is_added_has_the_owner_of_the_nearest_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the working folder holds."""
    (tmp_path / "v/w").mkdir(parents=True)
    (tmp_path / "cwd/v/w/x/y").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    lstat, asked = os.lstat, list[str]()

    def noted(path: Any, **options: Any) -> os.stat_result:
        asked.append(os.fspath(path))
        return lstat(path, **options)

    monkeypatch.setattr(os, "lstat", noted)
    for folder, nearest in (("v/w/x/y", "v/w"), ("v/w", "v/w"), ("z/x", "")):
        assert files.inherited(tmp_path, folder) == Form(0o644, ME)
        assert asked[-1] == os.path.join(tmp_path, nearest)


def test_nothing_is_open_to_others_whatever_the_umask_lets_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.umask(0)  # the fixture puts the old one back
    change, modes = os.fchmod, list[int]()

    def noted(file: int, wanted: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(file).st_mode))
        change(file, wanted)

    monkeypatch.setattr(os, "fchmod", noted)
    (tmp_path / "b").write_text("left over")
    for name in ("a", "b"):
        files.create(tmp_path, name, b"", Form())
    assert modes == [0o600, 0o600]
    files.make_folder(tmp_path, "folder")
    assert mode(tmp_path / "folder") == 0o755


def test_bytecode_that_somebody_else_removed_meanwhile_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.cpython-312.pyc").write_bytes(b"")
    fail(monkeypatch, "unlink", errno.EACCES)
    monkeypatch.setattr(files, "read_below", lambda *arguments: None)
    (tmp_path / "new").write_text("")
    files.remove_bytecode(tmp_path, "a.py", "new")
