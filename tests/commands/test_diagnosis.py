"""What ``overlay doctor`` finds out about devices, torch, plugins and model runners."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features import vllm_defaults as runners
from overlay.commands import diagnosis
from overlay.commands.diagnosis import DeviceFacts, PluginFacts
from tests.support import fake_vllm
from tests.support.cli import Cli

NVIDIA = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build
GCC version:  gcc version 12.3.0
"""


def test_devices_are_told_by_the_kernel(tmp_path: Path) -> None:
    assert diagnosis.devices(tmp_path) == DeviceFacts(None, None, ())
    driver = tmp_path / "proc/driver/nvidia"
    for name, model in (
        ("0000:01:00.0", "Model: \t\t NVIDIA H200\nIRQ: 1\n"),
        ("0000:02:00.0", ""),
    ):
        (driver / "gpus" / name).mkdir(parents=True)
        (driver / "gpus" / name / "information").write_text(model)
    (driver / "version").write_text(NVIDIA)
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.10.5\n")
    assert diagnosis.devices(tmp_path) == DeviceFacts(
        "570.86.15", "6.10.5", ("NVIDIA H200", "0000:02:00.0, model not told")
    )


def test_doctor_finds_two_overlays_and_a_missing_plugin() -> None:
    two = [
        PluginFacts(diagnosis.GROUP, "overlay", value, distribution, runs=True, why="")
        for value, distribution in (
            ("overlay.plugin:register", "vllm-overlay 1"),
            ("fork.plugin:register", "fork 2"),
        )
    ]
    (problem,) = diagnosis.plugin_problems(two)
    assert "vllm-overlay 1 (overlay.plugin:register), fork 2" in problem
    (missing,) = diagnosis.plugin_problems([])
    assert "does not find the overlay's plugin" in missing
    assert list(diagnosis.plugin_problems(two[:1])) == []


def test_every_known_release_has_a_rule_for_its_model_runner() -> None:
    from overlay.package import KNOWN_RELEASES

    for text in KNOWN_RELEASES:
        assert runners.models(Version(text)) is not None, text
    assert "not known for 0.99.0" in runners.advice(Version("0.99.0"), {})
    asked_for = runners.advice(Version("0.26.0"), {"VLLM_USE_V2_MODEL_RUNNER": "1"})
    assert asked_for.startswith("V2, by")
    asked_for = runners.advice(Version("0.33.0"), {"VLLM_USE_V2_MODEL_RUNNER": "0"})
    assert asked_for.startswith("V1, by")


def test_torch_is_told_without_importing_it() -> None:
    before = "torch" in sys.modules
    assert diagnosis.torch()._fields == ("version", "built_for")
    assert ("torch" in sys.modules) == before
    text = "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\ngit_version = 'x'\n"
    assert diagnosis._assigned(text, "cuda") == "12.8"
    assert diagnosis._assigned(text, "hip") is None
    assert diagnosis._assigned(text, "git_version") == "x"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"cuda = '12.8'\n", "cuda 12.8"),
        (b"cuda = hip = None\n", "cpu"),
        (None, "unknown: it has no torch/version.py"),
        (b"cuda = '12.8\n", "unknown: torch/version.py cannot be read"),
        (b"cuda = '\xff'\n", "unknown: torch/version.py cannot be read"),
    ],
)
def test_what_torch_was_built_for_is_unknown_where_its_files_do_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, says: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch-9.9.dist-info").mkdir()
    (tmp_path / "torch-9.9.dist-info/METADATA").write_text("Name: torch\nVersion: 9.9\n")
    if content is not None:
        (tmp_path / "torch/version.py").write_bytes(content)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    told = diagnosis.torch()
    assert told.version == "9.9"
    assert told.built_for is not None
    assert told.built_for.startswith(says)


def environment(place: Path, *, plugin: bool) -> Path:
    """A virtual environment with vLLM, torch, and the overlay's plugin or not."""
    site = fake_vllm.site_packages(place / "lib/python3.11/site-packages")
    (place / "pyvenv.cfg").write_text("version = 3.11.7\n")
    for name, more in (("torch", {}), ("vllm_overlay", {"entry_points.txt": ENTRY_POINTS})):
        info = site / f"{name}-9.9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 9.9\n")
        for file, text in more.items() if plugin else ():
            (info / file).write_text(text)
    return place


ENTRY_POINTS = "[vllm.general_plugins]\noverlay = overlay.plugin:register\n"


@pytest.mark.parametrize("named", ["target", "python"])
def test_doctor_tells_of_another_environment(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Where overlay was installed by uv tool or pipx, and so has no vLLM beside it."""
    monkeypatch.setattr("overlay._processes.live.processes", lambda: ())
    place = environment(tmp_path / "venv", plugin=True)
    words = [place] if named == "target" else ["--python", place]
    told = cli("doctor", *words, "--json").json
    page = told["doctor"]
    assert (page["vllm"]["version"], page["torch"]["version"]) == ("0.26.0", "9.9")
    assert [plugin["distribution"] for plugin in page["plugins"]] == ["vllm_overlay 9.9"]
    assert str(place) in page["vllm"]["found"]
    assert [target["state"] for target in told["targets"][0]["features"]] == ["pristine"]
    assert not any("no vLLM" in problem for problem in page["problems"])
    assert any("nothing of it was run" in note for note in page["notes"])
    without = environment(tmp_path / "other", plugin=False)
    problems = cli("doctor", without, "--json").json["doctor"]["problems"]
    assert any("does not find the overlay's plugin" in problem for problem in problems)
    sections = cli("report", "--python", place, "--no-matrix", "--json").json["report"]["sections"]
    assert sections[3]["report"]["doctor"]["vllm"]["version"] == "0.26.0"


@pytest.mark.parametrize("words", [("0.26.0",), ("--python", "no-such-program"), ("folder",)])
def test_doctor_says_what_it_can_be_asked_about(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    told = cli("doctor", *words)
    assert (told.exit, "expected a" in told.err, "environment" in told.err) == (2, True, True)
