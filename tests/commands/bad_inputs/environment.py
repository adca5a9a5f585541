"""The environment of the command line (group C), and the plugin's settings as doctor tells them
(group D); there is no vLLM beside the tests.
"""

# mypy types no lambda with a default, and each row of a loop has one.
# mypy: disable-error-code="misc"

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.commands.bad_inputs.table import Arguments, World, row, simple
from tests.support import fake_vllm
from tests.support.cli import PROPOSER
from tests.support.patches import write_feature

# C. The command line

_VARIABLES = {
    "OVERLAY_PATCHES missing": ({"OVERLAY_PATCHES": "/no/such"}, "list", 2, "/no/such"),
    "OVERLAY_PATCHES colons": ({"OVERLAY_PATCHES": ":::"}, "list", 0, "1 feature"),
    "OVERLAY_PATCHES a file": ({"OVERLAY_PATCHES": "/etc/passwd"}, "list", 2, "/etc/passwd"),
    "OVERLAY_PATCHES of nobody": ({"OVERLAY_PATCHES": "~nosuch/x"}, "list", 2, "~nosuch/x"),
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


for _command, _exit, _word in (
    (("check",), 0, "can be applied"),
    (("apply",), 0, "Applied"),
    (("cache", "size"), 2, "set OVERLAY_CACHE to a folder of your own"),
    (("doctor",), 1, "set OVERLAY_CACHE to a folder of your own"),
):
    simple(
        f"C a user without a home, {_command[0]}",
        _exit,
        _word,
        lambda w, c=_command: _homeless(w, c),
    )


def _homeless(w: World, command: tuple[str, ...]) -> Arguments:
    """As platformdirs answers for a user id that the system does not know, without a HOME."""

    def refuse(*_: object, **__: object) -> Path:
        raise RuntimeError("could not determine the home directory for '~/.cache'")

    w.patch.setattr("platformdirs.user_cache_path", refuse)
    w.patch.delenv("OVERLAY_CACHE")
    return [*command, *([w.site()] if command[0] in ("check", "apply") else [])]


@row("C --patches missing", 2, "no-such")
def _no_patches(w: World) -> Arguments:
    return ["list", "--patches", w.tmp / "no-such"]


@row("C --patches a file", 2, "expected a folder of features")
def _patches_file(w: World) -> Arguments:
    return ["--patches", w.file("x"), "list"]


@row("C --patches with a link", 1, "link")
def _patches_link(w: World) -> Arguments:
    folder = write_feature(w.tmp / "mine", {"files/vllm/mine.py": ""}, id="mine")
    w.link(folder / "files/vllm/mine.py", w.file("outside.py"))
    return ["list", "--patches", w.tmp / "mine"]


@row("C --patches with a pipe", 1, "found a special file")
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


for _name, _settings, _word in (
    ("index [", {"PIP_INDEX_URL": "http://u:s3cret@["}, "expected the URL of a package index"),
    ("timeout 1e999", {"PIP_TIMEOUT": "1e999"}, "a number of seconds"),
    ("timeout nan", {"PIP_TIMEOUT": "nan"}, "a number of seconds"),
    ("timeout -1", {"PIP_DEFAULT_TIMEOUT": "-1"}, "a number of seconds"),
):
    simple(
        f"C {_name}",
        2,
        _word,
        lambda w, s=_settings: _set(
            w,
            {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9", **s},
            ["check", "0.26.0"],
        ),
    )

for _command in ("check --releases", "check", "diff", "log demo --releases", "list --package"):
    simple(
        f"C {_command} 999",
        2,
        "9999...9999",
        lambda _, c=_command: [*c.split(), "9" * 4500],
    )


# D. The plugin's settings

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


_SHIPPED = Path(__file__).resolve().parents[3] / "patches"

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
    w.patch.setattr("overlay._features.sources.shipped_folder", lambda: _SHIPPED)
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
