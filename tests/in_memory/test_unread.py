"""A variable of ours that nobody reads is named, by whichever way a process is patched."""

from __future__ import annotations

import os

import pytest

from tests.in_memory.boxes import PATCHED, PRISTINE, PROPOSER, Box
from tests.in_memory.test_on_disk import another, loads

WARNING = "WARNING:vllm.overlay:vllm-overlay: {} is set, but neither the overlay nor a patched"
READS = """import os
MARK = os.environ.get('OVERLAY_DEMOS', 'patched')
THEIRS = os.environ.get('MY_OVERLAY_DEMO')
"""


@pytest.fixture(params=["memory", "disk", "disk and memory"])
def patched(box: Box, request: pytest.FixtureRequest) -> Box:
    """A box that runs demo in each way; demo reads OVERLAY_DEMOS."""
    (box.patches / "demo/files/vllm/v1/spec_decode/added.py").write_text(READS)
    if request.param != "memory":
        box.overlay("apply", str(box.site))
    if request.param == "disk and memory":
        another(box, "second")
    assert f"({request.param})" in box.run(PATCHED)
    return box


@pytest.mark.parametrize("name", ["OVERLAY_REQUIERD", "OVERLAY_DEMO", "OVERLAY_DEMOSS", "OVERLAY_"])
def test_a_variable_that_nobody_reads_is_named(patched: Box, name: str) -> None:
    patched.environment |= {name: "patched", "OVERLAY_DEMOS": "patched"}
    log = patched.run(PATCHED)
    assert log.count("is set, but neither") == 1
    assert WARNING.format(name) in log


def test_what_a_patched_module_reads_is_not_named(patched: Box) -> None:
    assert "is set, but" not in patched.run(PATCHED, OVERLAY_DEMOS="patched")


def test_what_is_read_by_either_way_is_not_named(box: Box) -> None:
    box.overlay("apply", str(box.site))
    folder = another(box, "second")
    (folder / "files/vllm/second.py").write_text(READS)
    assert "is set, but" not in box.run(PATCHED, OVERLAY_DEMOS="patched")


def test_to_know_it_nothing_is_planned(box: Box) -> None:
    box.overlay("apply", str(box.site))
    imported, said = loads(box, OVERLAY_REQUIERD="demo")
    assert imported == set()
    assert WARNING.format("OVERLAY_REQUIERD") in said


def test_it_is_named_where_nothing_is_patched(box: Box) -> None:
    log = box.run(PRISTINE, OVERLAY="disk", OVERLAY_REQUIERD="demo")
    assert WARNING.format("OVERLAY_REQUIERD") in log


def test_what_an_edited_installation_reads_is_not_named(box: Box) -> None:
    """What stands on disk runs, also where nobody answers for it."""
    (box.patches / "demo/files/vllm/v1/spec_decode/added.py").write_text(READS)
    box.overlay("apply", str(box.site))
    file = box.site / PROPOSER
    file.write_text(file.read_text() + "# edited\n")
    log = box.run(PATCHED, OVERLAY_DEMOS="patched", OVERLAY_DEMO="patched")
    assert "runs unpatched" in log
    assert log.count("is set, but neither") == 1
    assert WARNING.format("OVERLAY_DEMO") in log


def test_nobody_guesses_while_an_apply_is_half_done(box: Box) -> None:
    (box.site / ".vllm-overlay").mkdir()
    (box.site / ".vllm-overlay/journal.json").write_text("{}")
    log = box.run("register()", OVERLAY_DEMOS="patched")
    assert "is running or was interrupted" in log
    assert "is set, but" not in log


def test_off_reads_nothing_and_names_nothing(box: Box) -> None:
    assert "is set, but" not in box.run(PRISTINE, OVERLAY="off", OVERLAY_REQUIERD="demo")


def test_a_name_that_is_no_text_is_named(box: Box) -> None:
    """The kernel allows any byte in a name but the equals sign."""
    box.environment[os.fsdecode(b"OVERLAY_\xff")] = "1"
    log = box.run(PATCHED)
    assert log.count("is set, but neither") == 1
