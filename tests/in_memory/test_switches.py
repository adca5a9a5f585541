"""The environment variables: an unknown value is an error, never a default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlay import settings as switches
from overlay._features.sources import shipped_folder
from overlay._features.switches import declarations
from overlay.errors import UsageError
from overlay.in_memory.decision import digest
from tests.in_memory.boxes import PATCHED, PRISTINE, Box


def test_defaults() -> None:
    read = switches.read({})
    assert (read.mode, read.required, read.patches, read.untested) == (
        switches.Mode.AUTO,
        frozenset(),
        (),
        False,
    )


@pytest.mark.parametrize("mode", switches.Mode)
def test_known_modes(mode: switches.Mode) -> None:
    assert switches.read({"OVERLAY": mode.value}).mode is mode


@pytest.mark.parametrize(
    "environment",
    [
        {"OVERLAY": "on"},
        {"OVERLAY_UNTESTED": "yes"},
        {"OVERLAY_FEATURES": " , "},
    ],
)
def test_an_unknown_value_is_an_error_that_names_the_allowed(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="expected"):
        switches.read(environment)


def test_required_features_and_folders() -> None:
    read = switches.read(
        {"OVERLAY_REQUIRED": "a, b", "OVERLAY_PATCHES": os.pathsep.join(("/x", "/y"))}
    )
    assert [read.requires(name) for name in "abc"] == [True, True, False]
    assert read.patches == (Path("/x"), Path("/y"))
    assert switches.read({"OVERLAY_REQUIRED": "all"}).requires("anything")


def test_features_that_may_be_patched_in_memory() -> None:
    read = switches.read({"OVERLAY_FEATURES": " a,b,, "})
    assert read.features == {"a", "b"}
    assert [read.allows(name) for name in "abc"] == [True, True, False]
    assert switches.read({}).allows("anything")


def test_the_digest_tells_each_value_of_every_shipped_switch_apart() -> None:
    """Ranks compare digests, so a rank at another value of any switch is found."""
    declared = declarations([shipped_folder()])
    found = {switch.name: switch.values for each in declared for switch in each.switches}
    assert {"OVERLAY_DRAFT_GRAPHS", "OVERLAY_DBO_DRAFTS"} <= found.keys()
    for name, values in found.items():
        digests = {digest((), switches.read({name: value}).all) for value in ("", *values)}
        assert len(digests) == len(values) + 1, name


def test_every_switch_counts_but_places_of_one_machine() -> None:
    counted = {"OVERLAY_DRAFT_GRAPHS": "off", "OVERLAY_FEATURES": "a"}
    environment = {**counted, "OVERLAY_CACHE": "/c", "OVERLAYS": "1", "X": "1"}
    assert switches.read(environment).all == counted


def test_ray_is_told_to_carry_our_variables_once() -> None:
    name = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
    environment = {name: "MY_", "OVERLAY_UNTESTED": "1"}
    switches.carry_to_ray(environment)
    switches.carry_to_ray(environment)
    assert environment[name] == "MY_,OVERLAY"


def test_ray_is_told_nothing_where_there_is_nothing_to_carry() -> None:
    environment = {"HOME": "/home/u"}
    switches.carry_to_ray(environment)
    assert environment == {"HOME": "/home/u"}


@pytest.mark.parametrize(
    ("environment", "allowed"),
    [
        ({}, True),
        ({"VLLM_PLUGINS": "overlay,x"}, True),
        ({"VLLM_PLUGINS": "x"}, False),
        ({"VLLM_PLUGINS": ""}, False),
    ],
)
def test_the_allow_list_of_vllm(environment: dict[str, str], allowed: bool) -> None:
    assert switches.plugin_allowed(environment) is allowed


@pytest.fixture
def newer(box: Box) -> Box:
    """A vLLM that is newer than every range of the one feature, whose hunks match."""
    patch = box.patches / "demo/10-first/0.25.0..0.26.0.patch"
    patch.rename(patch.with_name("0.25.0..0.25.1.patch"))
    document = box.patches / "demo/feature.toml"
    document.write_text(document.read_text().replace("0.25.0..0.26.0", "0.25.0..0.25.1"))
    return box


def test_an_untested_release_is_patched_only_where_it_is_allowed(newer: Box) -> None:
    log = newer.run(PRISTINE)
    assert "demo is left out (pristine): this release is untested; OVERLAY_UNTESTED=on" in log
    done = newer.attempt("register()", OVERLAY_REQUIRED="demo", OVERLAY_UNTESTED="0")
    assert done.returncode != 0
    assert "demo is pristine: this release is untested" in done.stderr
    assert "has the patches demo (memory)" in newer.run(PATCHED, OVERLAY_UNTESTED="1")


@pytest.mark.parametrize("first", [PATCHED, PRISTINE], ids=["allowed first", "refused first"])
def test_a_warm_cache_does_not_outlive_the_leave_to_patch(newer: Box, first: str) -> None:
    for code in (first, PRISTINE if first == PATCHED else PATCHED) * 2:
        newer.run(code, OVERLAY_UNTESTED="1" if code == PATCHED else "0")
