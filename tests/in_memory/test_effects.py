"""Effect, not presence: what features do reaches the record, the log, and whoever requires it."""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import Any

import pytest

from tests.in_memory.boxes import Box
from tests.in_memory.test_effects_module import FILE
from tests.support.patches import hunk, patch_text

TOML = """
model_runner = "v1"

[[switches]]
name = "OVERLAY_DEMO"
values = ["off", "on"]
default = "on"
text = "answer as patched"
"""
#: What of vLLM's worker the plugin looks at; the same names in 0.20.0 to 0.33.0.
WORKER = """
class WorkerWrapperBase:
    def __init__(self, worker):
        self.worker = worker

    def init_device(self):
        self.worker.init_device()

    def __getattr__(self, name):
        return getattr(self.worker, name)
"""
RUNNER = "class GPUModelRunner:\n    pass\n"
MORE = {
    "vllm/v1/worker/worker_base.py": WORKER.encode(),
    "vllm/v1/worker/gpu/__init__.py": b"",
    "vllm/v1/worker/gpu/model_runner.py": RUNNER.encode(),
    "vllm/v1/worker/gpu_model_runner.py": RUNNER.encode(),
}
#: A start of an engine in one process; ``report`` is what patched code does while it warms up.
SERVE = """
register()
import json, os, importlib
from overlay import _processes as records
def report():
    from vllm.v1 import overlay_effects as effects
    {report}
class Worker:
    def init_device(self):
        self.model_runner = importlib.import_module({runner!r}).GPUModelRunner()
    def compile_or_warm_up_model(self):
        report()
        return 7
from vllm.v1.worker.worker_base import WorkerWrapperBase
engine = WorkerWrapperBase(Worker())
engine.init_device()
assert engine.compile_or_warm_up_model() == 7
{then}
[record] = [r for r in records.read_all() if r.pid == os.getpid()]
numbers = [number for *_, number in records.counts_of(record)]
print(json.dumps([
    [[e.feature, e.state.value, e.text] for e in record.effects], record.counters, numbers
]))
"""
V1, V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
ACTIVE = "effects.active('demo', '14 graphs (loop)')"
_IMPORT = "from vllm.v1 import overlay_effects as effects"
UNTOLD = "it does not report what it does"
IDLE = "effects.idle('demo', 'the platform has no graphs')"


@pytest.fixture(params=["memory", "disk"])
def reporting(box: Box, request: pytest.FixtureRequest) -> Box:
    """A box whose feature adds the module through which it reports."""
    return prepared(box, on_disk=request.param == "disk")


def with_worker(box: Box) -> None:
    for path, content in MORE.items():
        file = box.site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def prepared(box: Box, *, on_disk: bool) -> Box:
    with_worker(box)
    document = box.patches / "demo/feature.toml"
    document.write_text(document.read_text() + TOML)
    added = box.patches / "demo/files/vllm/v1/overlay_effects.py"
    added.write_bytes(FILE.read_bytes())
    if on_disk:
        box.overlay("apply", str(box.site))
    return box


def serve(
    box: Box, report: str, runner: str = V1, then: str = "", **changes: str
) -> tuple[list[Any], str]:
    """What the record says in the end, and the log."""
    code = SERVE.format(report=report, runner=runner, then=textwrap.dedent(then))
    done = box.attempt(code, **changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_start_promises_nothing(reporting: Box) -> None:
    log = reporting.run("register()")
    assert "; whether they take effect is told once the model is loaded" in log


def test_what_is_active_is_said_and_recorded(reporting: Box) -> None:
    (effects, _, _), log = serve(reporting, ACTIVE)
    assert effects == [["demo", "active", "14 graphs (loop)"]]
    assert log.count("INFO:vllm.overlay:vllm-overlay: demo is active: 14 graphs (loop)\n") == 1


def test_what_is_idle_is_said_with_its_reason(reporting: Box) -> None:
    (effects, _, _), log = serve(reporting, IDLE, OVERLAY_REQUIRED_PRESENT="demo")
    assert effects == [["demo", "idle", "the platform has no graphs"]]
    assert "INFO:vllm.overlay:vllm-overlay: demo is idle: the platform has no graphs" in log


def test_all_does_not_want_the_effect_of_what_is_rightly_idle(reporting: Box) -> None:
    document = reporting.patches / "demo/feature.toml"
    text = document.read_text()
    required = reporting.attempt(
        SERVE.format(report=IDLE, runner=V1, then=""), OVERLAY_REQUIRED="all"
    )
    assert required.returncode != 0
    document.write_text(
        text.replace('model_runner = "v1"', 'model_runner = "v1"\nsituational = true')
    )
    (effects, _, _), log = serve(reporting, IDLE, OVERLAY_REQUIRED="all")
    assert effects == [["demo", "idle", "the platform has no graphs"]]
    assert "WARNING" not in log
    named = reporting.attempt(
        SERVE.format(report=IDLE, runner=V1, then=""), OVERLAY_REQUIRED="demo"
    )
    assert named.returncode != 0
    assert "demo is idle: the platform has no graphs" in named.stderr


def test_what_reports_nothing_is_idle(reporting: Box) -> None:
    (effects, _, _), _ = serve(reporting, "pass")
    assert effects == [["demo", "idle", "its code was not reached while the model was loaded"]]


@pytest.mark.parametrize("report", [IDLE, "pass"])
@pytest.mark.parametrize("required", ["demo", "all"])
def test_a_required_feature_that_is_idle_stops_the_engine(
    reporting: Box, report: str, required: str
) -> None:
    code = SERVE.format(report=report, runner=V1, then="")
    done = reporting.attempt(code, OVERLAY_REQUIRED=required)
    assert done.returncode != 0
    assert "RequiredIdle" in done.stderr
    assert "demo is idle: " in done.stderr
    assert "OVERLAY_REQUIRED_PRESENT" in done.stderr


def test_a_required_feature_that_is_active_serves(reporting: Box) -> None:
    serve(reporting, ACTIVE, OVERLAY_REQUIRED="demo")


def test_model_runner_v2_is_found_before_a_weight_is_read(reporting: Box) -> None:
    (effects, _, _), log = serve(reporting, "pass", V2)
    assert effects == [["demo", "idle", "model runner V2"]]
    assert "WARNING:vllm.overlay:vllm-overlay: demo: no effect here, since this engine" in log
    code = SERVE.format(report="raise AssertionError('a weight')", runner=V2, then="")
    done = reporting.attempt(code, OVERLAY_REQUIRED="demo")
    assert "demo is idle: model runner V2" in done.stderr
    assert "a weight" not in done.stderr


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("folder", ["there", "gone"])
def test_the_runner_that_a_feature_does_not_name_is_told_by_what_it_patches(
    box: Box, on_disk: bool, folder: str
) -> None:
    """As ``overlay check`` tells it, of patches on disk also where their folder is gone."""
    demo = box.patches / "demo"
    shutil.rmtree(demo / "10-first")
    shutil.rmtree(demo / "files")
    (demo / "10-runner").mkdir()
    lines = [" class GPUModelRunner:", "-    pass", "+    mark = 1"]
    patch = patch_text("vllm/v1/worker/gpu_model_runner.py", hunk(lines, "GPUModelRunner"))
    (demo / "10-runner/0.25.0..0.26.0.patch").write_text(patch)
    with_worker(box)
    if on_disk:
        box.overlay("apply", str(box.site))
    without = {"OVERLAY_PATCHES": ""} if on_disk and folder == "gone" else {}

    def effects(runner: str, **changes: str) -> tuple[Any, str]:
        code = SERVE.format(report="", runner=runner, then="")
        done = box.attempt(code.replace(_IMPORT, "pass"), path=None, **without, **changes)
        return json.loads(done.stdout or "[0]")[0], done.stderr

    assert effects(V1)[0] == [["demo", "patched", UNTOLD]]
    found, log = effects(V2)
    assert found == [["demo", "idle", "model runner V2"]]
    assert "demo: no effect here, since this engine uses model runner V2; VLLM_USE_V2" in log
    assert "=0 asks vLLM for V1" in log
    assert "demo is idle: model runner V2" in effects(V2, OVERLAY_REQUIRED="demo")[1]
    (box.site / "vllm_ascend").mkdir()  # whose runner is another, of which this tells nothing
    assert effects(V2)[0] == [["demo", "patched", UNTOLD]]


def test_a_feature_that_does_not_report_counts_as_present(box: Box) -> None:
    prepared(box, on_disk=False)
    (box.patches / "demo/files/vllm/v1/overlay_effects.py").unlink()
    code = SERVE.format(report="", runner=V1, then="").replace(_IMPORT, "pass")
    done = box.attempt(code, OVERLAY_REQUIRED="demo")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == [["demo", "patched", UNTOLD]]


def test_counts_are_read_from_outside_without_a_further_write(reporting: Box) -> None:
    then = """
    from vllm.v1 import overlay_effects as effects
    effects.count("demo", "replays of loop")
    written = records.write
    def refuse(record):
        raise AssertionError("written")
    records.write = refuse
    for _ in range(41):
        effects.count("demo", "replays of loop")
    records.write = written
    """
    (_, counters, numbers), _ = serve(reporting, ACTIVE, then=then)
    assert counters == [["demo", "replays of loop"]]
    assert numbers == [42]


def test_a_change_while_serving_is_said(reporting: Box) -> None:
    then = "from vllm.v1 import overlay_effects as e; e.idle('demo', 'withdrawn: out of memory')"
    (effects, _, _), log = serve(reporting, ACTIVE, then=then, OVERLAY_REQUIRED="demo")
    assert effects == [["demo", "idle", "withdrawn: out of memory"]]
    assert "WARNING:vllm.overlay:vllm-overlay: demo is idle: withdrawn: out of memory" in log


def test_a_fork_counts_for_itself(reporting: Box) -> None:
    then = """
    from vllm.v1 import overlay_effects as effects
    effects.count("demo", "replays")
    child = os.fork()
    if child == 0:
        effects.count("demo", "others"); effects.count("demo", "others")
        [mine] = [r for r in records.read_all() if r.pid == os.getpid()]
        good = records.counts_of(mine) in ((("demo", "others", 1),), (("demo", "others", 2),))
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    """
    (_, counters, numbers), _ = serve(reporting, ACTIVE, then=then)
    assert (counters, numbers) == ([["demo", "replays"]], [1])


def test_off_turns_off_the_switches_of_what_is_on_disk(box: Box) -> None:
    prepared(box, on_disk=True)
    code = "import vllm, os; register(); print(os.environ.get('OVERLAY_DEMO'))"
    done = box.attempt(code, OVERLAY="off", OVERLAY_DEMO="on")
    assert done.stdout == "off\n", done.stderr
    assert "OVERLAY=off, but patched code is on disk: demo" in done.stderr
    assert "turned off for this process: OVERLAY_DEMO=off" in done.stderr
    assert "as it is installed" not in done.stderr


def test_off_says_where_no_switch_turns_a_feature_off(box: Box) -> None:
    box.overlay("apply", str(box.site))
    done = box.attempt("import vllm; register()", OVERLAY="off")
    assert "No switch turns off demo: it stays in effect" in done.stderr


def test_off_on_a_pristine_disk_leaves_the_environment_alone(box: Box) -> None:
    prepared(box, on_disk=False)
    code = "import vllm, os; register(); print(os.environ.get('OVERLAY_DEMO'))"
    done = box.attempt(code, OVERLAY="off")
    assert done.stdout == "None\n"
    assert "this process runs vLLM as it is installed" in done.stderr
