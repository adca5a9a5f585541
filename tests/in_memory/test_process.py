"""The plugin in a process of a fake vLLM: what it does for each state, way and switch."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import types
from pathlib import Path

import pytest

from overlay import _processes
from overlay import settings as switches
from overlay.in_memory import Activation, decision
from overlay.in_memory import module_cache as caches
from overlay.in_memory import plugin as process
from overlay.in_memory.import_watch import HookError
from overlay.in_memory.module_cache import StoredModule
from overlay.in_memory.running import RunningProcess
from overlay.results import Way
from tests.in_memory.boxes import FEATURE, PATCHED, PRISTINE, PROPOSER, Box


@pytest.mark.parametrize("options", [(), ("-O",), ("-B",), ("-s",)])
def test_a_pristine_installation_is_patched_in_memory_only(
    box: Box, options: tuple[str, ...]
) -> None:
    before = box.fingerprint()
    for _ in ("cold", "warm"):
        log = box.run(PATCHED, *options)
        assert "has the patches demo (memory) on vLLM 0.26.0" in log
    assert box.fingerprint() == before


def test_each_python_has_an_entry_of_its_own(box: Box) -> None:
    for options in ((), ("-O",), (), ("-O",)):
        box.run("register(); runs()", *options)
    assert len(list((box.cache / "modules").iterdir())) == 2


def test_a_second_load_does_nothing(box: Box) -> None:
    log = box.run("register()\n" + PATCHED)
    assert log.count("has the patches demo (memory)") == 1


def test_off_does_nothing_and_says_so(box: Box) -> None:
    assert "off (OVERLAY=off)" in box.run(PRISTINE, OVERLAY="off")


def test_an_unknown_mode_stops_the_process(box: Box) -> None:
    done = box.attempt("register()", OVERLAY="on")
    assert done.returncode != 0
    assert "expected one of auto, disk, off" in done.stderr


def test_disk_never_hooks(box: Box) -> None:
    box.run(PRISTINE, OVERLAY="disk")
    done = box.attempt(PRISTINE, OVERLAY="disk", OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert "demo is pristine: it is not applied on disk" in done.stderr


def test_disk_and_memory_work_together(box: Box) -> None:
    box.overlay("apply", str(box.site))
    second_feature(box)
    log = box.run(PATCHED + "import vllm.second")
    assert "has the patches demo, second (disk and memory)" in log


def second_feature(box: Box) -> None:
    """Add a feature beside demo that adds a module."""
    other = box.patches / "second/files/vllm/second.py"
    other.parent.mkdir(parents=True)
    other.write_text("MARK = 'second'\n")
    (box.patches / "second/feature.toml").write_text(FEATURE.replace("demo", "second"))


@pytest.mark.parametrize(
    ("allowed", "runs", "patched"),
    [("demo", "demo", True), ("second", "second", False), ("second, demo", "demo, second", True)],
)
def test_only_the_features_that_are_allowed_are_patched_in_memory(
    box: Box, allowed: str, runs: str, patched: bool
) -> None:
    second_feature(box)
    box.run(PATCHED + "import vllm.second")  # an entry with both of them is in the cache
    log = box.run(PATCHED if patched else PRISTINE + "import vllm.second", OVERLAY_FEATURES=allowed)
    assert f"has the patches {runs} (memory)" in log
    names = ",".join(sorted(allowed.replace(" ", "").split(",")))
    assert f", OVERLAY_FEATURES={names}\n" in log
    for left_out in {"demo", "second"} - set(names.split(",")):
        line = next(line for line in log.splitlines() if f"{left_out} is left out" in line)
        assert line.startswith("DEBUG")
        assert "OVERLAY_FEATURES does not name it" in line
    assert "neither the overlay nor a feature" not in log


def test_a_feature_that_is_not_allowed_is_not_in_another_ones_way(box: Box) -> None:
    folder = box.patches / "rival"
    (folder / "10-first").mkdir(parents=True)
    (folder / "feature.toml").write_text(FEATURE.replace("demo", "rival"))
    text = (box.patches / "demo/10-first/0.25.0..0.26.0.patch").read_text()
    (folder / "10-first/0.25.0..0.26.0.patch").write_text(text.replace("added", "rival"))
    added = folder / "files/vllm/v1/spec_decode/rival.py"
    added.parent.mkdir(parents=True)
    added.write_text("MARK = 'rival'\n")
    rival = "register(); assert runs() == 'rival', runs()\n"
    assert "touch the same lines and cannot be applied together" in box.run(PRISTINE)
    assert "has the patches rival (memory)" in box.run(rival, OVERLAY_FEATURES="rival")
    assert "has the patches demo (memory)" in box.run(PATCHED, OVERLAY_FEATURES="demo")


def test_an_unknown_feature_stops_the_process_and_names_those_there_are(box: Box) -> None:
    second_feature(box)
    done = box.attempt("register()", OVERLAY_FEATURES="demo,thrid,draft-graph")
    assert done.returncode != 0
    expected = "OVERLAY_FEATURES names draft-graph, thrid: expected ids among demo, second"
    assert expected in done.stderr


def test_a_required_feature_must_be_allowed_and_all_means_all_allowed(box: Box) -> None:
    second_feature(box)
    done = box.attempt("register()", OVERLAY_FEATURES="second", OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert "demo is pristine: OVERLAY_FEATURES does not name it" in done.stderr
    box.run(PRISTINE, OVERLAY_FEATURES="second", OVERLAY_REQUIRED="all")


def test_what_is_on_disk_runs_whatever_is_allowed_in_memory(box: Box) -> None:
    box.overlay("apply", str(box.site))
    second_feature(box)
    log = box.run(PATCHED + "import vllm.second", OVERLAY_FEATURES="second")
    assert "has the patches demo, second (disk and memory)" in log


def test_a_vllm_that_was_installed_anew_after_apply_is_patched_in_memory(box: Box) -> None:
    box.overlay("apply", str(box.site))
    pristine = next((box.site / ".vllm-overlay/pristine").iterdir())
    (box.site / PROPOSER).write_bytes(pristine.read_bytes())
    (box.site / "vllm/v1/spec_decode/added.py").unlink()
    assert "has the patches demo (memory)" in box.run(PATCHED)


def test_an_interrupted_apply_is_no_basis(box: Box) -> None:
    (box.site / ".vllm-overlay").mkdir()
    (box.site / ".vllm-overlay/journal.json").write_text("{}")
    assert "is running or was interrupted" in box.run(PRISTINE)
    done = box.attempt("register()", OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert "demo: an apply or revert in" in done.stderr


@pytest.mark.parametrize("mode", ["auto", "disk"])
def test_what_is_applied_on_disk_is_verified_and_runs(box: Box, mode: str) -> None:
    box.overlay("apply", str(box.site))
    before = box.fingerprint()
    assert "has the patches demo (disk)" in box.run(PATCHED, OVERLAY=mode, OVERLAY_REQUIRED="demo")
    assert box.fingerprint() == before


def test_an_edit_after_apply_is_not_called_ours(box: Box) -> None:
    box.overlay("apply", str(box.site))
    file = box.site / PROPOSER
    file.write_text(file.read_text() + "# edited\n")
    log = box.run("register()")
    assert "not as overlay apply left it" in log
    assert "runs unpatched" in log
    done = box.attempt("register()", OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert PROPOSER in done.stderr


def test_memory_and_disk_have_one_digest(box: Box) -> None:
    show = "import overlay.in_memory.plugin as p; register()\n"
    show += "print(p._process.activation.digest)\n"
    digests = set()
    digests.add(box.attempt(show).stdout)
    box.overlay("apply", str(box.site))
    digests.add(box.attempt(show).stdout)
    assert len(digests) == 1
    digests.add(box.attempt(show, OVERLAY_DRAFT_GRAPHS="off").stdout)
    assert len(digests) == 2


def test_a_drifted_feature_is_left_out_whole_or_refused(box: Box) -> None:
    file = box.site / PROPOSER
    file.write_text(file.read_text().replace("return self.model(tokens)", "return 'drifted'"))
    log = box.run("register(); assert runs() == 'drifted'")
    assert "demo is left out (drifted)" in log
    done = box.attempt("register()", OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert "demo is drifted" in done.stderr


def test_an_edited_file_is_planned_anew_in_spite_of_a_warm_cache(box: Box) -> None:
    box.run(PATCHED)
    file = box.site / PROPOSER
    file.write_text(file.read_text() + "\nEDITED = True\n")
    box.run(PATCHED + "from vllm.v1.spec_decode.proposer import EDITED")


EARLY = "import vllm.v1.spec_decode.proposer as early\n"


def test_a_target_imported_before_leaves_the_feature_out_whole(box: Box) -> None:
    log = box.run(
        EARLY + PRISTINE + "import sys; assert not any('added' in m for m in sys.modules)"
    )
    assert "demo is left out (pristine): already imported" in log
    assert "vllm.v1.spec_decode.proposer (imported by __main__)" in log
    assert "runs unpatched" in log


def test_a_target_imported_before_stops_a_process_that_requires_it(box: Box) -> None:
    done = box.attempt(EARLY + "register()", OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert "vllm.v1.spec_decode.proposer (imported by __main__)" in done.stderr


def test_a_feature_can_require_itself(box: Box) -> None:
    file = box.patches / "demo/feature.toml"
    file.write_text(file.read_text() + "required = true\n")
    box.run(PATCHED)
    done = box.attempt(EARLY + "register()")
    assert done.returncode != 0
    assert "demo is pristine: already imported" in done.stderr
    done = box.attempt("register()", OVERLAY="disk")
    assert done.returncode != 0
    assert "demo is pristine: it is not applied on disk" in done.stderr
    box.run("register()", OVERLAY="off")


@pytest.mark.parametrize("line", ["  required=true", '"required" = true', "'required'\t= true"])
def test_however_it_is_written_in_toml(box: Box, line: str) -> None:
    file = box.patches / "demo/feature.toml"
    file.write_text(f"{file.read_text()}{line}\n")
    done = box.attempt("register()", OVERLAY="disk")
    assert "demo is pristine: it is not applied on disk" in done.stderr


def test_what_is_imported_early_takes_no_other_feature_with_it(box: Box) -> None:
    other = box.patches / "second/files/vllm/second.py"
    other.parent.mkdir(parents=True)
    other.write_text("MARK = 'second'\n")
    (box.patches / "second/feature.toml").write_text(FEATURE.replace("demo", "second"))
    log = box.run(EARLY + PRISTINE + "import vllm.second; assert vllm.second.MARK == 'second'")
    assert "has the patches second (memory)" in log


def test_a_read_only_installation_is_patched(box: Box) -> None:
    for path in [box.site, *box.site.rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    box.run(PATCHED)


def test_a_missing_home_is_no_obstacle(box: Box) -> None:
    del box.environment["OVERLAY_CACHE"]
    box.run(PATCHED, HOME="/nowhere/at/all", XDG_CACHE_HOME="/proc/nowhere")


def test_a_damaged_cache_is_made_again(box: Box) -> None:
    box.run(PATCHED)
    for file in (box.cache / "modules").rglob("*.code"):
        file.write_bytes(b"damaged")
    log = box.run(PATCHED)
    assert "has sha256" in log
    assert "has sha256" not in box.run(PATCHED)


def test_the_record_proves_what_runs(box: Box) -> None:
    show = PATCHED + "from overlay import _processes as records; import os\n"
    show += "[r] = [r for r in records.read_all() if r.pid == os.getpid()]\n"
    show += "print([(m.module.rpartition('.')[2], {s: c.value for s, c in m.scopes.items()})"
    show += " for m in r.modules], r.way.value)"
    attempt = box.attempt(show)
    expected = "[('added', {}), ('proposer', {'SpecDecodeBaseProposer._first': 'runs'})] memory"
    lines = attempt.stdout.splitlines()
    assert lines, attempt.stderr
    assert sorted(lines[-1]) == sorted(expected)


def test_where_models_are_patched_vllms_caches_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    apart: list[str] = []
    models = ("vllm.model_executor.models.llama",)
    activation = Activation(Way.MEMORY, "0.26.0", "/vllm", (), "d" * 64, modules=models)
    monkeypatch.setattr(process, "_process", None)
    monkeypatch.setattr(sys, process._MARK, None, raising=False)
    monkeypatch.setattr(decision, "decide", lambda *_: activation)
    monkeypatch.setattr(process.ranks, "watch", lambda *given: None)
    monkeypatch.setattr(caches, "keep_apart", lambda key, *more: apart.append(key))
    monkeypatch.setattr(os, "register_at_fork", lambda **calls: None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process.start({})
    assert apart == ["d" * 64]


def test_the_folder_of_records_is_its_owner_s_whatever_the_umask(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = os.umask(0o777)
    try:
        place = next(_processes.usable())
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_importing_the_plugin_does_nothing_that_could_fail() -> None:
    """vLLM logs what a plugin's import raises, and goes on; only what its function raises stops."""
    check = (
        "import sys, overlay.plugin; "
        "assert sorted(n for n in sys.modules if n.startswith('overlay')) "
        "== ['overlay', 'overlay.plugin']"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_importing_the_plugin_imports_nothing_of_weight(box: Box) -> None:
    box.run(
        "import sys; assert not {'torch', 'vllm', 'rich', 'click', 'requests'} & set(sys.modules)\n"
        "register()\n"
        "assert not {'torch', 'vllm', 'rich', 'click', 'requests'} & set(sys.modules)"
    )


def test_a_process_with_nothing_to_patch_does_without_what_plans(box: Box) -> None:
    """Half of what such a process would pay is the making of these modules' data classes."""
    planning = {
        "overlay._features.model",
        "overlay.planning.matching",
        "overlay.planning.planner",
        "overlay._features.patch_file",
    }
    check = "import sys; from overlay.plugin import register; register()\n"
    check += f"assert not {planning} & set(sys.modules), sorted(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", check],
        env=box.environment | {"OVERLAY": "disk", "OVERLAY_PATCHES": ""},
        check=True,
    )


def test_an_open_cache_is_not_executed(box: Box) -> None:
    box.run(PATCHED)
    (entry,) = (box.cache / "modules").iterdir()
    (entry / "vllm/v1/spec_decode/added.py").chmod(0o666)
    log = box.run(PATCHED)
    assert "can be written by others" in log
    (box.cache / "modules").chmod(0o777)
    log = box.run(PATCHED)  # from a temporary place, since the whole cache is open
    assert "cannot be used" in log


def test_no_place_to_write_leaves_the_feature_out(box: Box) -> None:
    nowhere = {"OVERLAY_CACHE": "/proc/nowhere", "TMPDIR": "/proc/nowhere"}
    code = "import tempfile; tempfile.tempdir = '/proc/nowhere'\n"
    code += "from overlay import _processes as records; records.folders = lambda: ()\n"
    log = box.run(code + PRISTINE, **nowhere)
    assert "no place" in log
    done = box.attempt(code + "register()", **nowhere, OVERLAY_REQUIRED="demo")
    assert done.returncode != 0


@pytest.mark.parametrize("state", ["upstreamed", "inapplicable"])
def test_what_needs_nothing_is_one_line_for_debugging(box: Box, state: str) -> None:
    file = box.patches / "demo/feature.toml"
    if state == "inapplicable":
        file.write_text(FEATURE.replace("0.25.0..0.26.0", "0.27.0..0.27.1"))
        variant = box.patches / "demo/10-first/0.25.0..0.26.0.patch"
        variant.rename(variant.with_name("0.27.0..0.27.1.patch"))
    else:
        scope = 'scope = "SpecDecodeBaseProposer"\ncontains = "def _first"\n'
        file.write_text(f'{FEATURE}[[upstreamed]]\npath = "{PROPOSER}"\n{scope}')
    log = box.run(PRISTINE, OVERLAY_REQUIRED="demo")
    assert log.count(f"DEBUG:vllm.overlay:vllm-overlay: demo is {state} here") == 1
    assert "WARNING" not in log
    assert log.count("INFO:vllm.overlay") == 1


def test_other_code_than_planned_fails_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"def run():\n    return 'planned'\n"
    code = compile(text, "m.py", "exec")
    stored = StoredModule("vllm/m.py", None, Path("m.py"), text, code)
    activation = Activation(Way.MEMORY, "0.32.0", "/site", (), "d", scopes={"vllm.m": ("run",)})
    monkeypatch.setattr(_processes, "write", lambda record: None)
    own = RunningProcess(switches.read({}))
    own.activated(activation)
    module = types.ModuleType("vllm.m")
    exec(code, module.__dict__)
    own.executed("vllm.m", module, stored)
    assert [(entry.module, entry.scopes) for entry in own.record.modules] == [
        ("vllm.m", {"run": "runs"})
    ]
    module.run = lambda: "something else"
    with pytest.raises(HookError, match="run is not the planned code"):
        own.executed("vllm.m", module, stored)
