"""Another tool's finder that never asks the overlay: pristine code must not pass for patched."""

from __future__ import annotations

import json
import sys

import pytest

from overlay import _processes
from overlay._processes import live
from overlay.in_memory.import_hook import PendingModules
from tests.in_memory.boxes import OTHER_FINDER, PATCHED, PRISTINE, Box
from tests.in_memory.test_process import second_feature

#: As the hooks of typeguard and jaxtyping: Python's own finder is asked, and no other.
OTHER = """
import importlib.abc, importlib.machinery, sys
class Theirs(importlib.machinery.SourceFileLoader):
    pass
class Other(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if not name.startswith(PREFIX):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Theirs(name, spec.origin)
        return spec
"""
BYPASS = OTHER + "sys.meta_path.insert(0, Other())\n"
SHOW = """
import json
import overlay.in_memory.plugin as p
record = p._process.record
shown = {**record._asdict(), "modules": [module._asdict() for module in record.modules]}
print(json.dumps({**shown, "planned": p._process.activation.digest}))
"""
EVERY, PROPOSER = "PREFIX = 'vllm.'\n", "PREFIX = 'vllm.v1.spec_decode.proposer'\n"


@pytest.mark.parametrize("required", ["", "demo", "all"])
def test_a_finder_that_stood_before_ours_came_is_asked_by_ours(box: Box, required: str) -> None:
    log = box.run(EVERY + BYPASS + PATCHED + "import colorsys", OVERLAY_REQUIRED=required)
    assert "WARNING" not in log


@pytest.mark.parametrize("prefix", [EVERY, PROPOSER])
@pytest.mark.parametrize("required", ["demo", "all"])
def test_a_required_feature_that_another_finder_bypasses_stops_the_process(
    box: Box, prefix: str, required: str
) -> None:
    code = f"{prefix}register()\n{BYPASS}runs()\n"
    code += "try:\n    import colorsys\nexcept ImportError:\n    pass\n"
    code += "import wave"  # what was swallowed once is said again
    done = box.attempt(code, OVERLAY_REQUIRED=required)
    assert done.returncode != 0
    *_, error = [line for line in done.stderr.splitlines() if "HookError" in line]
    assert "vllm.v1.spec_decode.proposer runs its pristine code: __main__.Theirs loaded" in error
    assert "(hooks before it: __main__.Other)" in error
    assert "`overlay apply`" in error


def test_the_ranks_report_stops_for_it_without_a_further_import(box: Box) -> None:
    code = EVERY + "register()\n" + BYPASS + "import overlay.in_memory.plugin as p\nruns()\n"
    code += "from overlay.in_memory.import_hook import PatchFinder\n"
    code += "sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, PatchFinder)]\n"
    code += "p._process.rank_report(0)"
    done = box.attempt(code, OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert "runs its pristine code" in done.stderr
    assert "HookError" in done.stderr
    assert box.attempt(code).returncode == 0


@pytest.mark.parametrize("prefix", [EVERY, PROPOSER])
def test_without_a_requirement_it_is_said_once_and_recorded(box: Box, prefix: str) -> None:
    code = prefix + "register()\n" + BYPASS + PRISTINE.removeprefix("register(); ")
    code += "import colorsys, wave\n"
    done = box.attempt(code + SHOW)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("runs its pristine code") == 1
    assert "WARNING:vllm.overlay:vllm-overlay: vllm.v1.spec_decode.proposer runs" in done.stderr
    record = json.loads(done.stdout)
    assert record["summary"] == "demo (memory) but vllm.v1.spec_decode.proposer unpatched"
    assert record["digest"] != record.pop("planned")
    read = _processes._decoded({"schema": _processes.SCHEMA, **record})
    assert read is not None
    (module,) = read.modules
    assert module.scopes == {"SpecDecodeBaseProposer._first": _processes.CodeState.UNPATCHED}
    said = live.problem(read, [])
    assert said is not None
    assert said.startswith("vllm.v1.spec_decode.proposer: unpatched")


def test_a_hook_that_is_asked_for_nothing_any_more_is_noticed_by_a_report(box: Box) -> None:
    code = "register()\nimport importlib.machinery as m\nsys.meta_path.insert(0, m.PathFinder)\n"
    code += PRISTINE.removeprefix("register(); ") + "import overlay.in_memory.plugin as p\n"
    code += "p._process.publish((), (), None, ())\n"
    done = box.attempt(code + SHOW)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["summary"] == "demo (memory) but vllm.v1.spec_decode.proposer unpatched"
    assert box.attempt(code, OVERLAY_REQUIRED="demo").returncode != 0


def test_ranks_compare_what_really_runs_and_agree_where_it_is_the_same(box: Box) -> None:
    show = "import overlay.in_memory.plugin as p\nprint(p._process.rank_report(0).digest)\n"
    patched = box.attempt(PATCHED + show).stdout
    bypassed = box.attempt(EVERY + "register()\n" + BYPASS + "runs()\n" + show)
    other = box.attempt(PROPOSER + "register()\n" + BYPASS + "runs()\n" + show)
    assert bypassed.stderr.count("runs its pristine code") == 1
    assert patched != bypassed.stdout
    assert bypassed.stdout == other.stdout


def test_only_the_features_it_concerns_count_as_required(box: Box) -> None:
    second_feature(box)
    code = PROPOSER + "register()\n" + BYPASS + "runs()\nimport colorsys, vllm.second"
    assert "runs its pristine code" in box.run(code, OVERLAY_REQUIRED="second")
    assert box.attempt(code, OVERLAY_REQUIRED="second,demo").returncode != 0


WRAPPING = (
    OTHER_FINDER
    + """
def changed(spec):
    return Wrapper(spec.loader)
sys.meta_path.insert(0, Other())
"""
)
SLOTS = """
import importlib.abc, importlib.machinery, importlib.util, sys
class Wrapper(importlib.abc.Loader):
    def __init__(self, inner):
        self.act = lambda module: inner.exec_module(module)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        if module.__name__.endswith("proposer"):
            import colorsys, wave
        self.act(module)
"""
LAZY = """
import importlib.abc, importlib.machinery, importlib.util, sys
Wrapper = importlib.util.LazyLoader
"""


@pytest.mark.parametrize("wrapper", [SLOTS, LAZY])
def test_a_loader_that_wraps_ours_is_no_bypass(box: Box, wrapper: str) -> None:
    code = "register()\n" + wrapper + WRAPPING
    code += "import vllm.v1.spec_decode.proposer, colorsys, wave\n"
    if wrapper is LAZY:  # looking at it does not load it
        code += "module = sys.modules['vllm.v1.spec_decode.proposer']\n"
        code += "assert type(module) is importlib.util._LazyModule\n"
    code += PATCHED.removeprefix("register(); ") + "import plistlib\n"
    assert "pristine code" not in box.run(code, OVERLAY_REQUIRED="demo")


def test_what_is_waited_for_ends_when_all_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ours:
        pass

    pending = PendingModules(["one", "two"], Ours)
    assert pending.bypassed() == {}
    monkeypatch.setitem(sys.modules, "one", type(sys)("one"))
    assert pending.bypassed() == {"one": "builtins.NoneType"}
    assert pending.bypassed() == {}
    pending.mark_executing("two")
    monkeypatch.setitem(sys.modules, "two", type(sys)("two"))
    assert pending.bypassed() == {}
    pending.mark_failed("two")
    assert set(pending.bypassed()) == {"two"}


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("vllm.distributed.parallel_state", "the ranks of this engine are not compared"),
        ("vllm.model_executor.models.registry", "what it keeps of models is not kept apart"),
        ("vllm.compilation.decorators", "what it compiled ahead of time is not kept apart"),
    ],
)
@pytest.mark.parametrize("early", [False, True])
def test_a_later_vllm_without_a_name_of_ours_starts_unless_a_feature_is_required(
    box: Box, name: str, lost: str, early: bool
) -> None:
    file = box.site / f"{name.replace('.', '/')}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("def renamed(): ...\n")
    load = f"import {name}\n"
    keep = (
        "import overlay.in_memory.module_cache as c\nc.concerned = lambda modules: bool(modules)\n"
    )
    code = keep + (load if early else "") + "register()\n" + load
    log = box.run(code)
    assert log.count(f"{name} is not as expected (AttributeError") == 1
    assert lost in log
    done = box.attempt(code, OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert "HookError: vllm-overlay: " + name + " is not as expected" in done.stderr
    assert "AttributeError: " in done.stderr.partition("direct cause")[0]
    # No import hook of the overlay is active.
    box.run(code, OVERLAY="off")
    box.run(code, OVERLAY="disk")
    box.run(code, OVERLAY_PATCHES="")


def test_a_refused_process_keeps_no_hook_of_ours(box: Box) -> None:
    """One feature could be patched, another one that is required could not."""
    second_feature(box)
    code = """
    import sys
    try:
        register()
    except RuntimeError as error:
        assert "third" in str(error), error
    else:
        raise AssertionError
    assert not [f for f in sys.meta_path if type(f).__module__.startswith("overlay.")]
    assert runs() == "pristine"
    """
    box.run(code, OVERLAY_REQUIRED="third")
