"""``overlay doctor`` and ``overlay status --live``, as commands in an environment of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import overlay
from overlay._processes import CodeState, Effect, EffectRecord, ModuleRecord, ProcessRecord
from overlay._processes.live import LiveProcess, strangers_noted
from overlay.commands import diagnosis
from overlay.commands.doctor import doctor
from overlay.commands.live import ProcessesReport, live, running
from overlay.commands.report_ import report as collect
from overlay.commands.request import Request
from overlay.report.as_json import as_data
from overlay.report.codes import Code, Verdict
from overlay.results import Way
from tests.in_memory.boxes import REPO, Box

#: What the command imports beyond the standard library; not every Python needs all of it.
NEEDED = (
    "click",
    "filelock",
    "markdown_it",
    "mdurl",
    "packaging",
    "platformdirs",
    "pygments",
    "rich",
    "tomli",
    "typing_extensions",
    "unidiff",
)


def command(box: Box, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The command in the box's environment, where the plugin is installed beside vLLM."""
    info = box.site / "vllm_overlay-0.1.0.dist-info"
    if not info.exists():
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: vllm-overlay\nVersion: 0.1.0\n"
        )
        (info / "entry_points.txt").write_text(
            "[vllm.general_plugins]\noverlay = overlay.plugin:register\n"
        )
    return subprocess.run(
        [sys.executable, "-m", "overlay", *arguments],
        env=box.environment | changes,
        capture_output=True,
        text=True,
        check=False,
        cwd=box.empty,
    )


def asked(box: Box, *arguments: str, **changes: str) -> dict[str, Any]:
    done = command(box, *arguments, "--json", **changes)
    data: dict[str, Any] = json.loads(done.stdout)
    assert data["exit"] == done.returncode
    return data


def test_doctor_tells_everything_on_one_page(box: Box) -> None:
    data = asked(box, "doctor", OVERLAY_DRAFT_GRAPHS="off")
    page = data["doctor"]
    assert page["vllm"]["version"] == "0.26.0"
    assert page["vllm"]["root"] == str(box.site)
    assert page["vllm"]["found"].startswith("on sys.path")
    assert page["python"]["executable"] == sys.executable
    assert page["environment"]["set"]["OVERLAY_DRAFT_GRAPHS"] == "off"
    (ours,) = [plugin for plugin in page["plugins"] if "0.1.0" in plugin["distribution"]]
    assert ours["runs"]
    assert "V2 for dense models" in page["model_runner"]
    assert "does not use draft-graphs" in page["model_runner"]
    assert page["cache"]["folder"] == str(box.cache / "modules")
    features = {feature["feature"]: feature["state"] for feature in data["targets"][0]["features"]}
    assert features["demo"] == "pristine"
    text = command(box, "doctor").stdout
    for word in ("python", "torch", "plugins", "cache", "model runner", "demo", "vLLM 0.26.0"):
        assert word in text


#: Everything that a bug report needs -> its place in the JSON, and how its section begins.
PAGE = {
    "the overlay": ("overlay", "version", "overlay\n  version: "),
    "Python": ("python", "version", "python\n  version: "),
    "the platform": ("python", "platform", "  platform: "),
    "vLLM": ("vllm", "version", "vllm\n  version: 0.26.0"),
    "how it was found": ("vllm", "found", "  found: on sys.path as "),
    "torch": ("torch", "version", "torch\n  version: "),
    "what torch was built for": ("torch", "built_for", "  built for: "),
    "devices": ("devices", "devices", "devices\n  nvidia driver: "),
    "plugins and why they run": ("plugins", "why", "overlay: runs (VLLM_PLUGINS is not set"),
    "switches": ("environment", "set", "  OVERLAY_CACHE: "),
    "cache": ("cache", "folder", "cache\n  folder: "),
    "where records lie": ("cache", "records", "  records: "),
    "model runner": ("model_runner", None, "model runner  V2 for "),
}


def test_doctor_tells_each_as_json_and_on_the_page(box: Box) -> None:
    whole, page = asked(box, "doctor")["doctor"], command(box, "doctor", COLUMNS="400").stdout
    for what, (section, key, begins) in PAGE.items():
        data = whole[section]
        rows = data if isinstance(data, list) else [data]
        assert rows, what
        assert all(key is None or key in row for row in rows), what
        assert begins in page, what


def test_doctor_lists_the_processes_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "overlay._processes.live.processes", lambda: (process(7, "differs"), process(8))
    )
    monkeypatch.setattr(diagnosis, "installed", lambda *_: (None, "no vLLM"))
    report = doctor(Request())
    assert report.processes == (process(7, "differs"), process(8))
    assert "process 7: differs" in report.problems
    text = "\n".join(str(line) for line in report.lines())
    assert "demo (memory)" in text
    assert as_data(report)["processes"][0]["pid"] == 7


def test_doctor_counts_what_is_in_the_cache(box: Box) -> None:
    box.run("register()")
    cache = asked(box, "doctor")["doctor"]["cache"]
    assert cache["entries"] == 1
    assert cache["bytes"] > 1000


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"VLLM_PLUGINS": "other"}, "VLLM_PLUGINS=other does not name it"),
        ({"OVERLAY": "on"}, "expected one of auto, disk, off"),
        ({"OVERLAY_FEATURES": ","}, "expected ids of features"),
        ({"OVERLAY_FEATURES": "dmeo"}, "OVERLAY_FEATURES names dmeo: expected ids among"),
    ],
)
def test_doctor_finds_what_is_wrong(box: Box, changes: dict[str, str], problem: str) -> None:
    done = command(box, "doctor", **changes)
    assert done.returncode == 1, done.stderr
    assert problem in done.stdout
    assert problem in " ".join(asked(box, "doctor", **changes)["doctor"]["problems"])


def test_doctor_finds_that_there_is_no_vllm(box: Box, tmp_path: Path) -> None:
    # Without the site-packages of this Python, since there may be a vLLM among them.
    needed = tmp_path / "needed"
    needed.mkdir()
    for name in NEEDED:
        package = importlib.util.find_spec(name)
        if package is not None and package.origin is not None:
            file = Path(package.origin)
            place = file.parent if file.name == "__init__.py" else file
            (needed / place.name).symlink_to(place)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "overlay", "doctor"],
        env=box.environment | {"PYTHONPATH": f"{REPO}{os.pathsep}{needed}"},
        capture_output=True,
        text=True,
        check=False,
        cwd=box.empty,
    )
    assert done.returncode == 1, done.stderr
    assert "no vLLM: expected a package vllm" in done.stdout


def test_status_says_when_the_allow_list_keeps_the_plugin_out(box: Box) -> None:
    assert "VLLM_PLUGINS" not in command(box, "status").stdout
    text = command(box, "status", VLLM_PLUGINS="other").stdout
    assert "VLLM_PLUGINS=other does not name overlay: vLLM does not load the plugin" in text
    assert "VLLM_PLUGINS" not in command(box, "status", VLLM_PLUGINS="x,overlay").stdout


SERVES = """
register()
assert runs() == "patched"
print("ready", flush=True)
input()
"""


def test_live_lists_a_running_process_and_its_proof(box: Box) -> None:
    script = box.cache.parent / "serves.py"
    head = (
        "from pathlib import Path\nimport overlay._features.folder, overlay._features.sources\n"
        f"empty = Path({str(box.empty)!r})\n"
        "overlay._features.sources.shipped_folder = lambda: empty\n"
        "from overlay.plugin import register\n"
        "def runs():\n"
        "    from vllm.v1.spec_decode.proposer import SpecDecodeBaseProposer as P\n"
        "    return P(1).propose(None)[0]\n"
    )
    script.write_text(head + SERVES)
    process = subprocess.Popen(
        [sys.executable, str(script), "VLLM::EngineCore"],
        env=box.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        data = asked(box, "status", "--live")
        (mine,) = [each for each in data["processes"] if each["pid"] == process.pid]
        assert mine["problem"] is None
        assert mine["record"]["way"] == "memory"
        states = {each["module"]: each["state"] for each in mine["record"]["modules"]}
        assert states["vllm.v1.spec_decode.proposer"] == "runs"
        text = command(box, "status", "--live").stdout
        assert f"{process.pid}" in text
        assert "demo (memory)" in text
    finally:
        process.communicate("\n")


def test_live_takes_no_target(box: Box) -> None:
    done = command(box, "status", "--live", ".")
    assert done.returncode == 2
    assert "omit TARGET" in done.stderr


def process(pid: int, problem: str | None = None, *, recorded: bool = True) -> LiveProcess:
    record = ProcessRecord(
        pid, "1", "h", "worker", 0, "0.32.0", "/site", Way.MEMORY, "a" * 64, "demo (memory)"
    ).with_module(ModuleRecord("vllm.a", "b" * 64, {"f": CodeState.RUNS}))
    return LiveProcess(pid, "VLLM::Worker", 1, record if recorded else None, problem)


def test_the_verdict_of_live_agrees_with_its_exit_code() -> None:
    assert running(()) == (Code.NOT_RUNNING, "No vLLM of this user is running.")
    assert running((process(1), process(2))) == (
        Code.RUNNING,
        "2 processes of vLLM in 1 engine, 2 patched, none needs you.",
    )
    code, verdict = running((process(1), process(2, "differs")))
    assert (code.exit, verdict) == (1, "Action needed on 1 of 2 processes of vLLM.")


def test_live_processes_as_lines_and_as_json() -> None:
    processes = (process(11), process(12, "runs without the overlay's plugin", recorded=False))
    report = ProcessesReport(Verdict(Code.NEEDS_ATTENTION, "1 of 2 needs you."), processes)
    text = "\n".join(str(line) for line in report.lines())
    assert "engine 1  VLLM::Worker" in text
    assert "11   worker  0     0.32.0  aaaaaaaaaaaa  demo (memory)" in text
    assert "! runs without the overlay's plugin" in text
    data = as_data(report)
    assert data["targets"] == []
    assert data["processes"][0]["record"]["modules"] == [
        {"module": "vllm.a", "state": "runs", "sha256": "b" * 64, "scopes": {"f": "runs"}}
    ]
    assert data["processes"][1]["record"] is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"OVERLAY_REQUIRED": "zz"}, "OVERLAY_REQUIRED names zz: expected ids among"),
        ({"OVERLAY_REQUIRED": "dem"}, "did you mean demo?"),
        ({"OVERLAY_REQUIRED_PRESENT": "zz"}, "OVERLAY_REQUIRED_PRESENT names zz"),
        ({"OVERLAY_DRAFT_GRAPHS": "on"}, "expected one of off, step, loop, auto"),
        ({"OVERLAY_DRAFT_GRAPH": "off"}, "did you mean OVERLAY_DRAFT_GRAPHS?"),
        ({"OVERLAY_PATCHS": "x"}, "did you mean OVERLAY_PATCHES?"),
        ({"OVERLAY_CACHE": "/proc/version"}, "/proc/version is not a folder"),
        ({"OVERLAY_CACHE": "/proc/version/below"}, "/proc/version is not a folder"),
        ({"OVERLAY_CACHE": "/proc/x"}, "keeps no files"),
        ({"OVERLAY_CACHE": "/sys/kernel/x"}, "keeps no files"),
    ],
)
def test_doctor_finds_variables_with_which_vllm_would_not_start_or_that_do_nothing(
    box: Box, changes: dict[str, str], problem: str
) -> None:
    assert problem in " ".join(asked(box, "doctor", **changes)["doctor"]["problems"])


#: Each part and each way to be broken; any other pair repeats it.
BROKEN = {
    "modules": "file",
    "receipts": "dangling",
    "releases": "open",
    "syntax": "file",
}


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        pytest.param(part, kind, marks=() if BROKEN[part] == kind else pytest.mark.thorough)
        for kind in ("file", "dangling", "open")
        for part in BROKEN
    ],
)
def test_doctor_finds_each_part_of_the_cache_that_is_broken(box: Box, part: str, kind: str) -> None:
    place = box.cache / part
    place.parent.mkdir()
    if kind == "file":
        place.write_text("")
    elif kind == "dangling":
        place.symlink_to("nowhere")
    else:
        place.mkdir()
        place.chmod(0o777)
    (problem,) = [
        problem
        for problem in asked(box, "doctor")["doctor"]["problems"]
        if "OVERLAY_CACHE" in problem
    ]
    assert str(place) in problem


def test_doctor_finds_patches_that_the_plugin_does_not_read(box: Box) -> None:
    def problems(**changes: str) -> str:
        return " ".join(asked(box, "doctor", **changes)["doctor"]["problems"])

    assert "OVERLAY_PATCHES" not in problems()
    assert "OVERLAY_PATCHES: expected a folder" in problems(OVERLAY_PATCHES="/nowhere/at/all")
    box.patches.chmod(0o777)
    assert "can be written by others" in problems()
    box.patches.chmod(0o755)
    (box.patches / "demo" / "notes").write_text("")
    assert "expected feature.toml, README.md" in problems()


def test_doctor_finds_no_fault_with_good_and_with_empty_variables(box: Box) -> None:
    plain = asked(box, "doctor")["doctor"]["problems"]
    names = ("OVERLAY", "OVERLAY_FEATURES", "OVERLAY_REQUIRED", "OVERLAY_DRAFT_GRAPHS")
    assert asked(box, "doctor", **dict.fromkeys(names, ""))["doctor"]["problems"] == plain
    good = {"OVERLAY_REQUIRED": "demo,draft-graphs", "OVERLAY_STEADY_INPUTS": "off"}
    assert asked(box, "doctor", **good)["doctor"]["problems"] == plain
    assert asked(box, "doctor", OVERLAY_REQUIRED="all")["doctor"]["problems"] == plain


def test_doctor_lists_every_switch_with_its_value(box: Box) -> None:
    page = asked(box, "doctor", OVERLAY_DRAFT_GRAPHS="loop")["doctor"]["environment"]
    switches = {switch["name"]: switch for switch in page["switches"]}
    assert switches["OVERLAY_DRAFT_GRAPHS"]["value"] == "loop"
    assert switches["OVERLAY_STEADY_INPUTS"]["value"] is None
    assert switches["OVERLAY_STEADY_INPUTS"]["default"] == "on"
    text = command(box, "doctor", COLUMNS="400").stdout
    assert "OVERLAY_DRAFT_GRAPHS: auto (default); off|step|loop|auto: " in text


def test_doctor_tells_a_former_spelling_and_is_not_red_for_it(box: Box) -> None:
    data = asked(box, "doctor", OVERLAY_UNTESTED="0")["doctor"]
    assert "OVERLAY_UNTESTED=0 is deprecated: write OVERLAY_UNTESTED=off" in data["notes"]


def test_doctor_names_another_vllm_and_is_not_red_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    alien = replace(process(7, "runs without the overlay's plugin", recorded=False), root="/other")
    monkeypatch.setattr("overlay._processes.live.processes", lambda: (alien,))
    monkeypatch.setattr(diagnosis, "installed", lambda *_: (None, None))
    monkeypatch.setattr(diagnosis, "plugin_problems", lambda plugins: iter(()))
    report = doctor(Request())
    assert report.problems == ()
    assert report.page.notes == ("process 7 is another vLLM, runs without the overlay's plugin",)
    assert "\n".join(map(str, report.lines())).count("is another vLLM") == 1  # in the table
    peer = replace(process(8), engine=7)
    mine = replace(alien, engine=7)
    monkeypatch.setattr("overlay._processes.live.processes", lambda: (mine, peer))
    assert doctor(Request()).problems == ("process 7: runs without the overlay's plugin",)


@pytest.mark.parametrize("root", ["/other", None])
def test_where_there_is_no_vllm_every_process_is_of_another(root: str | None) -> None:
    alien = replace(process(7, "runs without the overlay's plugin", recorded=False), root=root)
    (noted,) = strangers_noted([alien], None)
    assert (noted.problem, noted.note) == (None, f"is another vLLM, {alien.problem}")


@pytest.mark.parametrize("root", ["/other", None])
def test_live_names_another_vllm_and_is_not_red_for_it(
    monkeypatch: pytest.MonkeyPatch, root: str | None
) -> None:
    """The same rule as doctor's: only this vLLM, or a peer with the plugin, makes it a problem."""
    alien = process(7, "runs without the overlay's plugin", recorded=False)
    alien = replace(alien, root=root, engine=7)
    target = SimpleNamespace(root=Path("/site"))
    monkeypatch.setattr("overlay.commands.live.resolve_installed", lambda package: target)
    monkeypatch.setattr("overlay._processes.live.processes", lambda: (alien, process(9)))
    assert process(9).engine != 7
    report = live(Request())
    assert report.exit == 0
    assert "1 of another vLLM" in report.verdict
    (first, second) = as_data(report)["processes"]
    assert first["problem"] is None
    assert first["note"] == "is another vLLM, runs without the overlay's plugin"
    assert "note" not in second
    assert "note: is another vLLM" in "\n".join(map(str, report.lines()))
    assert overlay.processes()[0].problem is None
    ours = replace(alien, root="/site")
    for red in ((ours,), (alien, replace(process(9), engine=7))):
        monkeypatch.setattr("overlay._processes.live.processes", lambda red=red: red)
        assert live(Request()).exit == 1
        assert (
            as_data(live(Request()))["processes"][0]["problem"]
            == "runs without the overlay's plugin"
        )


def test_the_page_is_not_red_for_another_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    alien = replace(process(7, "runs without the overlay's plugin", recorded=False), root="/other")
    monkeypatch.setattr("overlay._processes.live.processes", lambda: (alien,))
    sections = {each.title: each.report for each in collect(Request(), matrix=False).sections}
    assert sections["overlay status --live"].exit == 0


def test_doctor_makes_no_folder_for_records(box: Box, tmp_path: Path) -> None:
    command(box, "doctor", XDG_RUNTIME_DIR=str(tmp_path))
    assert list(tmp_path.glob("vllm-overlay*")) == []


def test_live_shows_what_features_do_and_how_often() -> None:
    effects = (
        EffectRecord("demo", Effect.ACTIVE, "14 graphs (loop)"),
        EffectRecord("other", Effect.IDLE, "the platform has no graphs"),
    )
    first = process(11)
    assert first.record is not None
    processes = (
        replace(
            first,
            record=first.record._replace(effects=effects),
            counts=(("demo", "replays of loop", 7),),
        ),
    )
    verdict = running(processes)
    assert verdict == (
        Code.RUNNING,
        "1 process of vLLM in 1 engine, 1 patched, none needs you; active: demo; idle: other.",
    )
    report = ProcessesReport(verdict, processes)
    text = "\n".join(str(line) for line in report.lines())
    assert "demo is active: 14 graphs (loop); replays of loop 7" in text
    assert "other is idle: the platform has no graphs" in text
    record = as_data(report)["processes"][0]["record"]
    assert record["effects"][0] == {
        "feature": "demo",
        "state": "active",
        "text": "14 graphs (loop)",
    }
    assert record["counts"] == [{"feature": "demo", "count": "replays of loop", "number": 7}]
