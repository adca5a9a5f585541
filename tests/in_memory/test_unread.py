"""A variable of the overlay that nobody declares is named, whichever way a process is patched."""

from __future__ import annotations

import os

import pytest

from tests.in_memory.boxes import PATCHED, PRISTINE, Box
from tests.in_memory.test_on_disk import another, loads

WARNING = "WARNING:vllm.overlay:vllm-overlay: {} is set, but neither the overlay nor a feature"
READS = """import os
MARK = os.environ.get('OVERLAY_DEMOS', 'patched')
THEIRS = os.environ.get('MY_OVERLAY_DEMO')
"""
DECLARES = """
[[switches]]
name = "OVERLAY_DEMOS"
default = "patched"
text = "what the demo answers"

[[switches]]
name = "OVERLAY_LIGHTS"
values = ["off", "on"]
default = "off"
deprecated = { "1" = "on" }
text = "lights"
"""


def declare(box: Box) -> None:
    (box.patches / "demo/files/vllm/v1/spec_decode/added.py").write_text(READS)
    document = box.patches / "demo/feature.toml"
    document.write_text(document.read_text() + DECLARES)


@pytest.fixture(params=["memory", "disk", "disk and memory"])
def patched(box: Box, request: pytest.FixtureRequest) -> Box:
    """A box that has the patches demo in each way; demo reads and declares OVERLAY_DEMOS."""
    declare(box)
    if request.param != "memory":
        box.overlay("apply", str(box.site))
    if request.param == "disk and memory":
        another(box, "second")
    assert f"({request.param})" in box.run(PATCHED)
    return box


@pytest.mark.parametrize("name", ["OVERLAY_REQUIERD", "OVERLAY_DEMO", "OVERLAY_DEMOSS", "OVERLAY_"])
def test_a_variable_that_nobody_declares_is_named(patched: Box, name: str) -> None:
    patched.environment |= {name: "patched", "OVERLAY_DEMOS": "patched"}
    log = patched.run(PATCHED)
    assert log.count("is set, but neither") == 1
    assert WARNING.format(name) in log


@pytest.mark.parametrize(
    ("name", "meant"),
    [("OVERLAY_REQUIERD", "OVERLAY_REQUIRED"), ("OVERLAY_DEMO", "OVERLAY_DEMOS")],
)
def test_a_misspelt_variable_is_told_with_what_was_meant(box: Box, name: str, meant: str) -> None:
    declare(box)
    assert f"did you mean {meant}?" in box.run(PATCHED, **{name: "patched"})


def test_what_a_feature_declares_is_not_named(patched: Box) -> None:
    assert "is set, but" not in patched.run(PATCHED, OVERLAY_DEMOS="patched")


def test_an_empty_variable_is_an_unset_one(patched: Box) -> None:
    names = ("OVERLAY", "OVERLAY_FEATURES", "OVERLAY_REQUIRED", "OVERLAY_UNTESTED")
    empty = dict.fromkeys((*names, "OVERLAY_LIGHTS", "OVERLAY_NOBODY"), "")
    log = patched.run(PATCHED, **empty)
    assert "WARNING:vllm.overlay" not in log
    assert "OVERLAY_FEATURES" not in log


@pytest.mark.parametrize(("value", "said"), [("onn", "did you mean on?"), ("2", "unset it")])
def test_an_unknown_value_stops_the_process_before_anything_is_patched(
    patched: Box, value: str, said: str
) -> None:
    done = patched.attempt("register()", OVERLAY_LIGHTS=value)
    assert done.returncode != 0
    assert f"OVERLAY_LIGHTS='{value}': expected one of off, on" in done.stderr
    assert said in done.stderr


def test_a_former_spelling_is_accepted_with_a_warning(patched: Box) -> None:
    log = patched.run(PATCHED, OVERLAY_LIGHTS="1", OVERLAY_UNTESTED="0")
    assert "OVERLAY_LIGHTS=1 is deprecated: write OVERLAY_LIGHTS=on" in log
    assert "OVERLAY_UNTESTED=0 is deprecated: write OVERLAY_UNTESTED=off" in log


def test_to_know_it_nothing_is_planned(box: Box) -> None:
    box.overlay("apply", str(box.site))
    imported, said = loads(box, OVERLAY_REQUIERD="demo")
    assert imported == set()
    assert WARNING.format("OVERLAY_REQUIERD") in said


def test_it_is_named_where_nothing_is_patched(box: Box) -> None:
    log = box.run(PRISTINE, OVERLAY="disk", OVERLAY_REQUIERD="demo")
    assert WARNING.format("OVERLAY_REQUIERD") in log


def test_off_reads_nothing_and_names_nothing(box: Box) -> None:
    assert "is set, but" not in box.run(PRISTINE, OVERLAY="off", OVERLAY_REQUIERD="demo")


def test_a_name_that_is_no_text_is_named(box: Box) -> None:
    """The kernel allows any byte in a name but the equals sign."""
    box.environment[os.fsdecode(b"OVERLAY_\xff")] = "1"
    log = box.run(PATCHED)
    assert log.count("is set, but neither") == 1
