"""What to do about a patch that does not fit: by state, by whose it is, and by the release."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.version import Version

from overlay._features.model import SHIPPED
from overlay.planning import advice
from overlay.results import State
from tests.support.patches import feature, hunk

PATH = "vllm/a.py"
OURS = feature((PATH, [hunk(["-a", "+b"])]), releases="0.20.0..0.26.0")
THEIRS = replace(OURS, origin=SHIPPED)
PATCH = OURS.topics[0].variants[0].patch
HUNK = PATCH.hunks[0]
PORT = "`overlay port demo --releases 0.27.0` carries it there"
PLACE = f"{PATCH.name}:{HUNK.patch_line}"
RETIRES = (
    '; where upstream has the change in another form, merged = "0.27.0" in feature.toml retires it'
)
RENAMED = "where the release has renamed or moved the scope, "
SCOPE = f"correct the scope in {PLACE}; {RENAMED}"
EDITED = "if somebody edited this file, reinstall vLLM; otherwise "
UPGRADE = (
    "upgrade vllm-overlay, or give the patch a variant for this release (`overlay list -v` shows "
    "the ranges)"
)


@pytest.mark.parametrize(
    ("state", "misplaced", "original", "release", "step"),
    [
        (State.DRIFTED, False, True, "0.27.0", f"{PORT}{RETIRES}"),
        (State.DRIFTED, False, None, "0.27.0", f"{PORT}{RETIRES}"),
        (State.DRIFTED, False, False, "0.27.0", f"{EDITED}{PORT}{RETIRES}"),
        (State.DRIFTED, False, True, None, "give the patch a variant for this release"),
        (State.DRIFTED, False, True, "0.27.0rc1", "give the patch a variant for this release"),
        # Beyond its range the patch is right as it is: to correct it would break where it fits.
        (State.DRIFTED, True, True, "0.27.0", f"{RENAMED}{PORT}"),
        (State.MISSING, False, True, "0.27.0", f"{RENAMED}{PORT}"),
        (
            State.AMBIGUOUS,
            True,
            True,
            "0.27.0",
            f"give the hunk in {PLACE} more context lines, or a narrower scope",
        ),
        (
            State.MISSING,
            False,
            True,
            "0.26.0",
            (
                f"{SCOPE}let the range of {PATCH.name} end before 0.26.0; then "
                "`overlay port demo --releases 0.26.0` carries it there"
            ),
        ),
    ],
)
def test_a_hunk_of_ones_own(
    state: State, misplaced: bool, original: bool | None, release: str | None, step: str
) -> None:
    named = None if release is None else Version(release)
    found = advice.for_hunk(
        OURS, PATCH, HUNK, state, misplaced=misplaced, original=original, release=named
    )
    assert found == step


@pytest.mark.parametrize(
    ("base", "edge", "retires"),
    [("0.21.0", "begin after", False), ("0.20.0", "end before", True)],
)
def test_a_release_before_the_base_is_cut_off_at_the_beginning(
    base: str, edge: str, retires: bool
) -> None:
    """And ``merged`` is not advised: it would retire the feature on its base as well."""
    patch = PATCH._replace(headers={**PATCH.headers, "Base": base})
    topic = OURS.topics[0]
    variant = topic.variants[0]._replace(patch=patch)
    given = replace(OURS, topics=(topic._replace(variants=(variant,)),))
    found = advice.for_hunk(
        given,
        patch,
        HUNK,
        State.DRIFTED,
        misplaced=False,
        original=True,
        release=Version("0.20.0"),
    )
    assert found is not None
    port = "`overlay port demo --releases 0.20.0` carries it there"
    assert found.startswith(f"let the range of {patch.name} {edge} 0.20.0; then {port}")
    assert ("merged =" in found) is retires


@pytest.mark.parametrize(
    ("original", "step"), [(None, None), (True, UPGRADE), (False, f"{EDITED}{UPGRADE}")]
)
def test_a_hunk_that_is_shipped_asks_for_an_upgrade(original: bool | None, step: str) -> None:
    for state in (State.DRIFTED, State.MISSING, State.AMBIGUOUS):
        found = advice.for_hunk(THEIRS, PATCH, HUNK, state, misplaced=False, original=original)
        assert found == step


def test_a_missing_file() -> None:
    beyond = "where the release has moved the file, "
    moved = f"correct the path in {PATCH.name}; {beyond}"
    assert advice.for_missing_file(OURS, PATCH, Version("0.27.0")) == f"{beyond}{PORT}"
    within = advice.for_missing_file(OURS, PATCH, Version("0.26.0"))
    assert within is not None
    assert within.startswith(moved)
    assert advice.for_missing_file(OURS, PATCH) == (
        f"{moved}give the patch a variant for this release"
    )
    assert advice.for_missing_file(THEIRS, PATCH, Version("0.27.0")) is None


def test_an_added_module() -> None:
    file = f"test/demo/files/{PATH}"
    assert advice.for_module(OURS, PATH) == f"correct {file}"
    assert "report this as a bug" in advice.for_module(THEIRS, PATH)
    assert advice.for_taken_name(OURS, PATH) == f"give {file} another name"
    assert advice.for_taken_name(THEIRS, PATH) is None


def test_what_is_left_of_a_feature() -> None:
    port = "`overlay port demo --releases 0.27.0` makes a variant of what is left"
    assert advice.for_part(OURS, Version("0.27.0")) == port
    assert advice.for_part(OURS, Version("0.27.0rc1")) is None
    assert advice.for_part(OURS, None) is None
    assert "has no variant for what is left" in (advice.for_part(THEIRS, None) or "")


def test_a_result_that_would_not_do() -> None:
    assert advice.for_result(OURS, "demo/x.patch") == "correct demo/x.patch in test"
    assert "report this as a bug" in advice.for_result(THEIRS, "demo/x.patch")
