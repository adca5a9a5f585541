"""What needs a GPU says at once that there is none; what can be compared on a CPU is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overlay.cli.run import run
from overlay.errors import UsageError
from overlay.proof.commands.installation import Device, DevicePlace, device_of
from overlay.proof.commands.verify_stage import tiny_sets
from tests.proof.support.fake_engine import (
    behaving,
    install_plugin,
    write_fake_environment,
    write_fake_python,
)
from tests.support import fake_vllm

TORCH = {
    "cuda": "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
    "hip": "cuda: Optional[str] = None\nhip: Optional[str] = '7.1'\n",
    "xpu": "cuda = None\nhip = None\nxpu = '20250301'\n",
    "cpu": "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None\n",
}
RIGHT = {"off": "right", "step": "right", "loop": "right", "whole": "right", "again": "right"}
NOWHERE = Device(DevicePlace.NOWHERE, "its torch is built for cuda 13.0, and no device is here")
WITH_GPU = Device(DevicePlace.DEVICE)
ON_CPU = Device(DevicePlace.CPU, "its torch is built for CPUs")


def environment(folder: Path, torch: str | None) -> str:
    """An environment with a vLLM, and a torch that was built for something."""
    site = folder / "env/lib/python3.11/site-packages"
    fake_vllm.site_packages(site)
    if torch is not None:
        (site / "torch").mkdir()
        (site / "torch/version.py").write_text(f"__version__ = '2.13'\n{torch}")
    (folder / "env/bin").mkdir()
    (folder / "env/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    (folder / "env/bin/python").symlink_to("/usr/bin/python3")
    return str(folder / "env")


@pytest.mark.parametrize(
    ("torch", "node", "place"),
    [
        ("cuda", None, DevicePlace.NOWHERE),
        ("cuda", "dev/nvidia0", DevicePlace.DEVICE),
        ("cuda", "proc/driver/nvidia/gpus/0000:01:00.0", DevicePlace.DEVICE),
        ("cuda", "dev/nvidiactl", DevicePlace.NOWHERE),
        ("cuda", "dev/kfd", DevicePlace.NOWHERE),
        ("cuda", "dev/dxg", DevicePlace.DEVICE),
        ("hip", "dev/kfd", DevicePlace.DEVICE),
        ("hip", None, DevicePlace.NOWHERE),
        ("xpu", "dev/dri/renderD128", DevicePlace.DEVICE),
        ("cpu", None, DevicePlace.CPU),
        ("cpu", "dev/nvidia0", DevicePlace.CPU),
        ("cpu", "dev/davinci0", DevicePlace.DEVICE),
        (None, None, DevicePlace.DEVICE),
    ],
)
def test_the_kernel_and_torchs_files_tell_the_place(
    tmp_path: Path, torch: str | None, node: str | None, place: DevicePlace
) -> None:
    """Where it is not known, the engine is started and tells."""
    python = environment(tmp_path, TORCH[torch] if torch else None)
    root = tmp_path / "kernel"
    root.mkdir()
    if node is not None:
        (root / node).parent.mkdir(parents=True, exist_ok=True)
        (root / node).touch()
    assert device_of(python, (), {}, root).place is place
    if place is DevicePlace.NOWHERE:
        backend = "--distributed-executor-backend"
        for remote in ((backend, "ray"), (f"{backend}=ray",), ('{"executor": "ray"}',)):
            assert device_of(python, remote, {}, root).place is DevicePlace.DEVICE
        assert device_of(python, ("--model", "x-ray/y"), {}, root).place is DevicePlace.NOWHERE


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_gpu_that_is_hidden_is_none(tmp_path: Path, value: str) -> None:
    python = environment(tmp_path, TORCH["cuda"])
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert (
        device_of(python, (), {"CUDA_VISIBLE_DEVICES": "0"}, tmp_path).place is DevicePlace.DEVICE
    )
    found = device_of(python, (), {"CUDA_VISIBLE_DEVICES": value}, tmp_path)
    assert found.place is DevicePlace.NOWHERE
    assert f"CUDA_VISIBLE_DEVICES={value} hides" in found.text


def test_a_torch_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    python = environment(tmp_path, "def (")
    assert device_of(python, (), {}, tmp_path).place is DevicePlace.DEVICE


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "--tiny"),
        ("verify", "--model", "a/b", "--draft", "c/d"),
        ("bench", "--shape", "trial"),
    ],
)
@pytest.mark.parametrize("device", [NOWHERE, ON_CPU])
def test_without_a_gpu_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    device: Device,
) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("an engine was started")

    for command in ("verify", "bench"):
        monkeypatch.setattr(f"overlay.proof.commands.{command}.device_of", lambda *_: device)
    monkeypatch.setattr("overlay.proof.commands.verify_stage.run_jobs", started)
    monkeypatch.setattr("overlay.proof.commands.verify_stage.write_models", started)
    if device is ON_CPU and "--tiny" in words:
        words = (*words, "--mode", "step")
    assert run([*words]) == 2
    said = capsys.readouterr().err
    assert f"overlay {words[0]}: expected a GPU for vLLM, found none: {device.text}" in said
    if words[:2] == ("verify", "--model"):
        assert "--tiny compares on a CPU what a CPU can show" in said


@pytest.mark.parametrize("of_plugin", ["absent", "off", "another feature", "there", "inherited"])
def test_a_vllm_without_the_patches_is_refused_before_an_engine_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    of_plugin: str,
) -> None:
    """On disk they are not, and in memory they can be only where the plugin is asked for them."""
    asked: list[object] = []

    def started(*words: Any, **_: Any) -> None:
        asked.append(words)
        raise UsageError("an engine was started")

    monkeypatch.setattr("overlay.proof.commands.verify_stage.run_jobs", started)
    monkeypatch.setattr("overlay.proof.commands.verify.device_of", lambda *_: WITH_GPU)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    python = environment(tmp_path, None)
    site = tmp_path / "env/lib/python3.11/site-packages"
    if of_plugin != "absent":
        place = tmp_path / "elsewhere" if of_plugin == "inherited" else site
        (place / "vllm_overlay-0.2.0.dist-info").mkdir(parents=True)
    variables = {
        "off": ("OVERLAY", "off"),
        "another feature": ("OVERLAY_FEATURES", "steady-scheduler"),
        "inherited": ("PYTHONPATH", str(tmp_path / "elsewhere")),
    }
    if of_plugin in variables:
        monkeypatch.setenv(*variables[of_plugin])
    words = ("verify", "--model", "a/b", "--draft", "c/d", "--python", python)
    assert run([*words]) == 2
    said = capsys.readouterr().err
    assert bool(asked) is (of_plugin in ("there", "inherited"))
    if not asked:
        assert f"expected a vLLM with the feature draft-graphs, found the one in {site}" in said
        assert f"run `overlay apply --python {python}`, then `overlay status" in said
    asked.clear()
    (site / "vllm/v1/spec_decode/draft_graphs").mkdir()
    assert run([*words]) == 2
    assert asked, "on disk they are"


def test_on_a_cpu_models_of_ones_own_are_compared_with_stock_where_that_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("overlay.proof.commands.verify.device_of", lambda *_: ON_CPU)
    for name, value in behaving({"stock": "right", "overlay": "right"}).items():
        monkeypatch.setenv(name, value)
    python = write_fake_environment(tmp_path / "environment")
    install_plugin(python)
    words = ("verify", "--model", "a/b", "--draft", "c/d", "--python", str(python))
    assert run([*words, "--mode", "overlay"]) == 0
    assert "in use the overlay gave the tokens" in capfd.readouterr().out
    assert run([*words]) == 2
    assert "--mode overlay your models with stock" in capfd.readouterr().err


def served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: dict[str, str], *options: str
) -> int:
    monkeypatch.setattr("overlay.proof.commands.verify.device_of", lambda *_: ON_CPU)
    for name, value in behaving({**RIGHT, **words}).items():
        monkeypatch.setenv(name, value)
    python = write_fake_python(tmp_path)
    tiny = ("--tiny", "--draft", "eagle3hid")
    return run(["verify", *tiny, "--python", str(python), *options])


def test_on_a_cpu_the_tiny_models_are_compared_without_graphs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert served(monkeypatch, tmp_path, {"whole": "idle"}, "--json") == 0
    told = json.loads(capfd.readouterr().out)
    assert told["code"] == "without-graphs"
    assert told["verdict"].startswith("No draft graphs on a CPU: with the patches eagle3hid gave")
    assert "needs a GPU and was not compared" in told["verdict"]
    outcomes = [(each["models"], each["outcome"]) for each in told["verify"]["modes"]]
    assert outcomes == [("eagle3hid", "reference"), ("eagle3hid", "without graphs")]


def test_on_a_cpu_a_wrong_draft_is_found_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert served(monkeypatch, tmp_path, {"whole": "token"}, "--json") == 1
    assert json.loads(capfd.readouterr().out)["code"] == "drafts-differ"


def test_an_engine_that_does_not_start_ends_the_run_and_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The others are not started, and those that run are ended."""
    said = "problem raised: ValueError: No common block size for 16"
    assert served(monkeypatch, tmp_path, {"off": said, "whole": "hangs"}) == 2
    told = capfd.readouterr().err
    assert "the engine eagle3hid off: ValueError: No common block size for 16" in told
    assert "eagle3hid whole" not in told


def test_a_draft_of_v1_alone_is_not_compared_with_stock(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="drafts eagle3hid, eagle3 to compare the overlay"):
        tiny_sets(Path("python"), tmp_path, (), (), "p-eagle", on_cpu=True, whole=True)


@pytest.mark.parametrize(
    ("on_cpu", "served"),
    [
        (True, "on a CPU one of the drafts eagle3hid, p-eagle, found --draft none"),
        (False, "one of the drafts eagle3hid, eagle3, p-eagle, and a mode that it has, found"),
    ],
)
def test_a_draft_that_is_not_served_is_answered_with_those_that_are(
    tmp_path: Path, on_cpu: bool, served: str
) -> None:
    with pytest.raises(UsageError, match=f"expected with --tiny {served}"):
        tiny_sets(Path("python"), tmp_path, (), (), "none", on_cpu=on_cpu)
