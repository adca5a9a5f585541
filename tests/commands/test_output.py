"""Files that the user names for an answer: what is no plain file is written to, never replaced."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from overlay.commands.output import write_output
from overlay.errors import OverlayError

#: Numbers of the devices null and full.
NULL, FULL = os.makedev(1, 3), os.makedev(1, 7)


def write(place: Path, data: bytes = b"new") -> None:
    write_output("-o", place, data)


def kinds(folder: Path) -> dict[str, int]:
    return {entry.name: stat.S_IFMT(os.lstat(entry).st_mode) for entry in folder.iterdir()}


def device(place: Path, number: int) -> Path:
    try:
        os.mknod(place, stat.S_IFCHR | 0o666, number)
        os.close(os.open(place, os.O_WRONLY))
    except PermissionError:  # not root, or a file system without devices: a link to the real one
        place.unlink(missing_ok=True)
        place.symlink_to("/dev/null" if number == NULL else "/dev/full")
    return place


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "fchmod"])
def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    place = tmp_path / "page.html"
    place.write_text("the last one")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OverlayError, match=r"^-o .*page\.html: .*No space left on device; free"):
        write(place)
    monkeypatch.undo()
    assert place.read_text() == "the last one"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_file_keeps_its_mode_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / ("x" * 255)
    old.write_text("")
    old.chmod(0o640)
    (tmp_path / "usual").write_text("")
    for place in (old, new):
        write(place)
        assert place.read_bytes() == b"new"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE(new.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_link_stays_and_what_it_names_is_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "near").symlink_to("file")
    (tmp_path / "far").symlink_to(tmp_path / "near")
    (tmp_path / "free").symlink_to("made")
    before = kinds(tmp_path)
    write(tmp_path / "far", b"by two links")
    assert file.read_bytes() == b"by two links"
    write(tmp_path / "free")
    assert (tmp_path / "made").read_bytes() == b"new"
    assert kinds(tmp_path) == {**before, "made": stat.S_IFREG}


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    null, full = device(tmp_path / "null", NULL), device(tmp_path / "full", FULL)
    (tmp_path / "link").symlink_to(null)
    before = kinds(tmp_path)
    write(null)
    write(tmp_path / "link")
    with pytest.raises(OverlayError, match="No space left on device; free some space"):
        write(full)
    assert kinds(tmp_path) == before


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, page = tmp_path / "pipe", b"p" * 300_000
    os.mkfifo(pipe)
    with pytest.raises(OverlayError, match="nobody reads from it"):
        write(pipe)
    reader, parts = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), []
    os.set_blocking(reader, True)
    writer = os.open(pipe, os.O_WRONLY)  # the reader does not see an end before this is closed

    def read() -> None:
        while part := os.read(reader, 1 << 16):
            parts.append(part)

    thread = threading.Thread(target=read)
    thread.start()
    write(pipe, page)
    os.close(writer)
    thread.join(10)
    assert b"".join(parts) == page
    os.close(reader)
    assert kinds(tmp_path) == {"pipe": stat.S_IFIFO}


def test_a_pipe_whose_reader_goes_away_is_a_sentence(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    threading.Timer(0.2, os.close, [reader]).start()
    with pytest.raises(OverlayError, match="Broken pipe"):
        write(pipe, b"p" * 1_000_000)


@pytest.mark.parametrize("kind", ["folder", "loop"])
def test_what_cannot_be_written_to_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(place)
    with pytest.raises(OverlayError, match=r"a folder|symbolic links"):
        write(place)


@pytest.mark.parametrize("redirected", [True, False])
def test_what_is_open_already_is_written_where_it_stands(tmp_path: Path, redirected: bool) -> None:
    """By /dev/stdout and /dev/fd/N: neither the file nor the link is replaced."""
    program = (
        "import os, sys; from pathlib import Path; from overlay.commands.output import *\n"
        "os.write(1, b'before|'); write_output('-o', Path('/dev/fd/1'), b'page'); "
        "os.write(1, b'|after'); write_output('-o', Path(sys.argv[1]), b'more')"
    )
    out, further = tmp_path / "out", tmp_path / "further"
    with out.open("wb") as one, further.open("wb") as two:
        two.write(b"less|")
        two.flush()
        done = subprocess.run(
            [sys.executable, "-c", program, f"/dev/fd/{two.fileno()}"],
            stdout=one if redirected else subprocess.PIPE,
            pass_fds=[two.fileno()],
            check=True,
            timeout=60,
        )
    assert (out.read_bytes() if redirected else done.stdout) == b"before|page|after"
    assert further.read_bytes() == b"less|more"


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a link of another user's")
@pytest.mark.parametrize("name", ["link", "folder/file", "own/file", "own/../folder/file"])
def test_a_link_of_somebody_else_s_is_refused_wherever_it_is_on_the_way(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_text("ours")
    (tmp_path / "own").symlink_to("folder")
    for link, goal in (("link", "real/file"), ("folder", "real")):
        (tmp_path / link).symlink_to(goal)
        os.lchown(tmp_path / link, 65534, 65534)
    with pytest.raises(OverlayError, match="it is a symbolic link of nobody"):
        write(tmp_path / name)
    assert (tmp_path / "real/file").read_text() == "ours"


def test_a_folder_by_links_of_one_s_own_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to(tmp_path / "real")
    write(tmp_path / "one/file")
    assert (tmp_path / "real/file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, whom a mode stops")
def test_a_file_that_may_not_be_written_stays(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    file = tmp_path / "file"
    file.write_text("kept")
    file.chmod(0o444)
    program = (
        "import os, sys; from pathlib import Path; from overlay.commands.output import *\n"
        "os.setuid(65534)\n"
        "try: write_output('-o', Path('file'), b'page')\n"
        "except Exception as error: print(error)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "Permission denied" in done.stdout, done.stderr
    assert file.read_text() == "kept"
