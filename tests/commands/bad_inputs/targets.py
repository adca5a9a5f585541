"""Bad targets and usage of the command line (group A)."""

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
from collections.abc import Callable
from pathlib import Path

from tests.commands.bad_inputs.table import Arguments, World, row, simple
from tests.support import fake_vllm
from tests.support.cli import PROPOSER

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
    "dev null": ("/dev/null", "found a device; name a virtual environment"),
    "dev zero": ("/dev/zero", "found a device; name a virtual environment"),
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
    w.patch.setattr("overlay.targets.archives.MAX_MEMBERS", 500)
    return ["check", _wheel(w, {**_INSIDE, **{f"vllm/m{n}.py": b"" for n in range(501)}})]


@row("A sdist that unpacks to a thousand times its size", 2, "times its size")
def _tar_bomb(w: World) -> Arguments:
    w.patch.setattr("overlay.targets.archives.RATIO_FREE_BYTES", 1 << 20)
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


@row("A link in a circle", 2, "Too many levels of symbolic links; name a virtual environment")
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
    ("releases none inside", ["check", "--releases", "0.20.3..0.20.9"], "0.20.3 and 0.20.9"),
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

simple("A --python empty", 2, "--python is empty", lambda w: ["check", "--python", ""])
simple("A -o empty", 2, "-o is empty", lambda w: ["report", "-o", "", "--no-matrix", w.site()])
simple("A budget that is no number", 2, "not a number", lambda w: ["bench", "--budget", "nan"])
simple(
    "A no such feature to show",
    2,
    "ID ../x: expected one of demo; name the folder of a further feature",
    lambda w: ["show", "../x"],
)
simple(
    "A a server that refuses",
    2,
    "cannot be fetched: Connection refused; where",
    lambda w: ["import", "https://127.0.0.1:9/x.diff", "--id", "x", "--patches", w.tmp / "mine"],
)
