"""A feature that cannot be read is left out; vLLM starts unless that feature is required."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.in_memory.boxes import PATCHED, PRISTINE, Box
from tests.in_memory.test_process import second_feature as module_alone
from tests.support.patches import hunk, patch_text

RUNNER = "vllm/v1/worker/gpu_model_runner.py"


def second_feature(box: Box) -> None:
    """Add a feature beside demo that adds a module and patches one."""
    module_alone(box)
    lines = ["-        return size", "+        return size + 8"]
    patch = box.patches / "second" / "10-size" / "0.25.0..0.26.0.patch"
    patch.parent.mkdir()
    patch.write_text(patch_text(RUNNER, hunk(lines, "GPUModelRunner._capture")))


def _overlap(second: Path) -> None:
    (patch,) = second.glob("*/*.patch")
    (patch.with_name("0.26.0..0.26.0.patch")).write_bytes(patch.read_bytes())


def _garbage(second: Path) -> None:
    (patch,) = second.glob("*/*.patch")
    patch.write_text("no patch")


def _a_pipe(second: Path) -> None:
    (patch,) = second.glob("*/*.patch")
    patch.unlink()
    os.mkfifo(patch)


def _toml_is_a_pipe(second: Path) -> None:
    (second / "feature.toml").unlink()
    os.mkfifo(second / "feature.toml")


def _endless(second: Path) -> None:
    (patch,) = second.glob("*/*.patch")
    patch.unlink()
    patch.symlink_to("/dev/zero")


def _too_large(second: Path) -> None:
    (patch,) = second.glob("*/*.patch")
    with open(patch, "ab") as file:
        file.truncate(17 * 1024 * 1024)


def _linked_to_the_root(second: Path) -> None:
    (second / "files" / "vllm" / "root").symlink_to("/")


def _toml_with(text: str) -> Callable[[Path], None]:
    def harm(second: Path) -> None:
        toml = second / "feature.toml"
        toml.write_text(f"{text}\n{toml.read_text()}")

    return harm


def _line_of_5000_digits(second: Path) -> None:
    (patch,) = second.glob("*/*.patch")
    patch.write_text(patch.read_text().replace("@@ -", f"@@ -{'9' * 5000}"))


HARMS = [
    *(_overlap, _garbage, _a_pipe, _toml_is_a_pipe, _endless, _too_large, _linked_to_the_root),
    *(_toml_with(f"required = {'9' * 5000}"), _toml_with(f"required = 0x{'f' * 5000}")),
    *(_toml_with(f"package = {'9' * 5000}"), _toml_with(f"x = {'[' * 100_000}")),
    *(_toml_with(f"a{'.a' * 20_000} = 1"), _toml_with("package = 1979-05-27")),
    _line_of_5000_digits,
]


@pytest.mark.parametrize("harm", HARMS)
def test_a_malformed_feature_is_left_out_alone(box: Box, harm: Callable[[Path], None]) -> None:
    second_feature(box)
    harm(box.patches / "second")
    said = box.run(PATCHED)
    assert "second is left out" in said
    assert "its files cannot be used" in said


@pytest.mark.parametrize("harm", HARMS)
def test_unless_it_is_required(box: Box, harm: Callable[[Path], None]) -> None:
    second_feature(box)
    harm(box.patches / "second")
    done = box.attempt(PATCHED, OVERLAY_REQUIRED_PRESENT="second")
    assert done.returncode != 0
    assert "second" in done.stderr


def test_a_folder_in_the_home_of_nobody_is_a_wrong_setting(box: Box) -> None:
    done = box.attempt(PATCHED, OVERLAY_PATCHES="~nosuchuser/x")
    assert done.returncode != 0
    assert "expected a folder of features at ~nosuchuser/x" in done.stderr.splitlines()[-1]


def test_or_says_so_itself(box: Box) -> None:
    second_feature(box)
    toml = box.patches / "second" / "feature.toml"
    toml.write_text("required = true\n" + toml.read_text())
    box.run(PATCHED)
    _overlap(box.patches / "second")
    assert box.attempt(PATCHED).returncode != 0


@pytest.mark.parametrize(
    "name", [".DS_Store", "10-first/x.patch~", "10-first/.x.patch.swp", "#x#", "10-first/a.rej"]
)
def test_what_an_editor_leaves_is_named_and_changes_nothing(box: Box, name: str) -> None:
    before = box.run(PATCHED)
    (box.patches / "demo" / name).write_bytes(b"\xff")
    assert "ignored" not in before
    # The same patch set: the entry in the cache serves, and so does the ledger of an apply.
    assert "left out" not in box.run(PATCHED)


def test_patches_that_others_can_write_are_not_read(box: Box) -> None:
    box.patches.chmod(0o777)
    said = box.run(PRISTINE)
    assert "demo is left out" in said
    assert "can be written by others" in said
    assert box.attempt(PRISTINE, OVERLAY_REQUIRED_PRESENT="demo").returncode != 0
    box.patches.chmod(0o755)
    box.run(PATCHED)
    (box.patches / "demo" / "feature.toml").chmod(0o666)
    assert "can be written by others" in box.run(PRISTINE)


@pytest.mark.parametrize("required", ["", "all"])
def test_no_control_character_reaches_the_log_of_a_process(box: Box, required: str) -> None:
    """Neither in what it says nor in the error with which it refuses to start."""
    harm = box.patches / "clear\x1b[2J\x9bscreen"
    harm.mkdir()
    (harm / "feature.toml").write_text('id = "\x1b[31m"\n')
    done = box.attempt(PATCHED, OVERLAY_REQUIRED_PRESENT=required)
    assert (done.returncode != 0) == bool(required)
    said = done.stdout + done.stderr
    assert "screen" in said
    assert not {"\x1b", "\x9b"} & set(said)
