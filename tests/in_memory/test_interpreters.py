"""The plugin in children of a process, and in Pythons and beside imports of other kinds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.in_memory.boxes import PATCHED, PRISTINE, REPO, Box


def test_a_forked_child_has_a_record_of_its_own(box: Box) -> None:
    box.run(
        PATCHED
        + """
import os
child = os.fork()
if child == 0:
    from overlay import _processes as records
    pids = {r.pid for r in records.read_all()}
    os._exit(0 if os.getpid() in pids and runs() == "patched" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    )


def test_a_forked_child_that_became_another_program_is_not_listed(box: Box) -> None:
    # Ray starts its servers so: a fork of this process first, and then a program of its own.
    box.run(
        PATCHED
        + """
import os, subprocess
from overlay import _processes as records
child = subprocess.Popen(["sleep", "30"], preexec_fn=lambda: None)
try:
    assert [one.pid for one in records.read_all()] == [os.getpid()]
finally:
    child.kill()
    child.wait()
"""
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_multiprocessing_that_load_the_plugin_are_patched(
    box: Box, tmp_path: Path, method: str
) -> None:
    (tmp_path / "worker.py").write_text(
        "def work(queue):\n"
        "    import overlay._features.folder\n"
        "    from pathlib import Path\n"
        f"    empty = lambda: Path({str(box.empty)!r})\n"
        "    overlay._features.sources.shipped_folder = empty\n"
        "    from overlay.plugin import register\n"
        "    register()\n"
        "    from vllm.v1.spec_decode.proposer import SpecDecodeBaseProposer as P\n"
        "    queue.put(P(1).propose(None)[0])\n"
    )
    (tmp_path / "start.py").write_text(
        "import multiprocessing, worker\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=worker.work, args=(queue,))\n"
        "    process.start()\n"
        "    assert queue.get(timeout=60) == 'patched'\n"
        "    process.join()\n"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "start.py")],
        env=box.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr


def test_the_vllm_that_runs_is_patched_whatever_the_path_says(box: Box, tmp_path: Path) -> None:
    (tmp_path / "other/vllm").mkdir(parents=True)
    (tmp_path / "other/vllm/__init__.py").write_text("raise SystemExit('the wrong vLLM')\n")
    box.run(f"import vllm\nsys.path.insert(0, {str(tmp_path / 'other')!r})\n" + PATCHED)


def test_a_zipped_vllm_is_left_alone_or_refused(box: Box, tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "vllm"), "zip", box.site)
    path = f"{tmp_path / 'vllm.zip'}{os.pathsep}{REPO}"
    log = box.run("import vllm\n" + PRISTINE, PYTHONPATH=path)
    assert "from inside the archive" in log
    assert "runs unpatched" in log
    done = box.attempt("import vllm; register()", PYTHONPATH=path, OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert "demo: this Python imports vLLM from inside the archive" in done.stderr


FROZEN = """
import importlib.abc, importlib.util, sys
class Frozen(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == "vllm":
            return importlib.util.spec_from_loader(name, self, is_package=True)
    def exec_module(self, module):
        module.__version__ = "0.26.0"
sys.meta_path.insert(0, Frozen())
sys.path[:] = [entry for entry in sys.path if "site" not in entry.split("/")[-1]]
import vllm
assert not hasattr(vllm, "__file__")
"""


def test_a_frozen_vllm_is_left_alone_or_refused(box: Box) -> None:
    assert "no vLLM" in box.run(FROZEN + "register()", PYTHONPATH=str(REPO))
    done = box.attempt(FROZEN + "register()", PYTHONPATH=str(REPO), OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert "no vLLM" in done.stderr


@pytest.mark.parametrize("options", [("-I", "-B"), ("-S",), ("-I", "-S", "-B", "-O")])
def test_isolated_interpreters_are_patched(box: Box, options: tuple[str, ...]) -> None:
    path = [str(box.site), str(REPO), *(entry for entry in sys.path if "site-packages" in entry)]
    before = box.fingerprint()
    done = box.attempt(PATCHED, *options, path=path)
    assert done.returncode == 0, done.stderr
    assert "has the patches demo (memory)" in done.stderr
    assert box.fingerprint() == before


def test_two_overlays_in_one_process_are_refused(box: Box, tmp_path: Path) -> None:
    shutil.copytree(REPO / "overlay", tmp_path / "second/overlay")
    load_again = """
for name in [name for name in sys.modules if name.partition(".")[0] == "overlay"]:
    del sys.modules[name]
"""
    # The same one, loaded again, does nothing.
    again = "import sys\nregister()\n" + load_again + "from overlay.plugin import register\n"
    log = box.run(again + PATCHED)
    assert log.count("has the patches demo (memory)") == 1
    other = f"sys.path.insert(0, {str(tmp_path / 'second')!r})\n"
    other = "import sys\nregister()\n" + load_again + other
    done = box.attempt(other + "from overlay.plugin import register\nregister()\n")
    assert done.returncode != 0
    assert "two overlays are installed" in done.stderr
    assert str(tmp_path / "second") in done.stderr


TRANSFORM = """
import importlib.abc, importlib.machinery, sys
class Instrument(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, *, _optimization=-1):
        return super().source_to_code(data.replace(b"return MARK", b"return MARK + '!'"), path)
class Other(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "vllm.v1.spec_decode.proposer":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Instrument(name, spec.origin)
        return spec
sys.meta_path.insert(0, Other())
"""


def test_a_hook_that_transforms_the_patched_text_is_no_mismatch(box: Box) -> None:
    box.run(TRANSFORM + "register(); assert runs() == 'patched!', runs()")
