"""The plugin in a process of a fake vLLM: what it does for each state, way and switch."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.patches import hunk, patch_text

REPO = Path(__file__).resolve().parents[2]
PROPOSER = "vllm/v1/spec_decode/proposer.py"
HUNK = hunk(
    [
        " def _first(self, tokens):".replace(" def", "     def"),
        "-        return self.model(tokens)",
        "+        from vllm.v1.spec_decode.added import MARK",
        "+",
        "+        return MARK",
    ],
    "SpecDecodeBaseProposer._first",
)
FEATURE = """
id = "demo"
title = "A demo"
why = "To see that it runs."
upstream = "https://example.com/1"
releases = "0.25.0..0.26.0"
"""


class Box:
    """A fake vLLM in a site-packages, a patches folder, and an environment for child processes."""

    def __init__(self, folder: Path) -> None:
        self.site = fake_vllm.site_packages(
            folder / "site", "0.26.0", {"vllm/__init__.py": b"__version__ = '0.26.0'\n"}
        )
        self.patches = folder / "team"
        demo = self.patches / "demo"
        (demo / "10-first").mkdir(parents=True)
        (demo / "feature.toml").write_text(FEATURE)
        (demo / "10-first/0.25.0..0.26.0.patch").write_text(patch_text(PROPOSER, HUNK))
        added = demo / "files/vllm/v1/spec_decode/added.py"
        added.parent.mkdir(parents=True)
        added.write_text("MARK = 'patched'\n")
        (folder / "empty").mkdir()
        self.empty = folder / "empty"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "OVERLAY_CACHE": str(folder / "cache"),
            "OVERLAY_PATCHES": str(self.patches),
            "PYTHONPATH": f"{self.site}{os.pathsep}{REPO}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.cache = folder / "cache"
        for name in ("home", "run"):
            (folder / name).mkdir(mode=0o700)

    def run(self, code: str, *options: str, **changes: str) -> str:
        """Load the plugin as vLLM does, then run ``code``; returns standard error."""
        done = self.attempt(code, *options, **changes)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def attempt(self, code: str, *options: str, **changes: str) -> subprocess.CompletedProcess[str]:
        head = (
            "import logging; logging.basicConfig(level=logging.DEBUG)\n"
            "from pathlib import Path\n"
            "import overlay.features\n"
            f"overlay.features.shipped_folder = lambda: Path({str(self.empty)!r})\n"
            "def runs():\n"
            "    from vllm.v1.spec_decode.proposer import SpecDecodeBaseProposer as P\n"
            "    p = P(1); p.model = lambda tokens: 'pristine'\n"
            "    return p.propose(None)[0]\n"
            "from overlay.plugin import register\n"
        )
        return subprocess.run(
            [sys.executable, *options, "-c", head + textwrap.dedent(code)],
            env=self.environment | changes,
            capture_output=True,
            text=True,
            check=False,
        )

    def fingerprint(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.site)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.site.rglob("*"))
            if path.is_file()
        }

    def overlay(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", OVERLAY, str(self.empty), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


OVERLAY = """
import sys
from pathlib import Path
import overlay.features
shipped = Path(sys.argv.pop(1))
overlay.features.shipped_folder = lambda: shipped
from overlay.cli import main
main()
"""


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


PATCHED = "register(); assert runs() == 'patched', runs()\n"
PRISTINE = "register(); assert runs() == 'pristine', runs()\n"


@pytest.mark.parametrize("options", [(), ("-O",), ("-B",), ("-s",)])
def test_a_pristine_installation_is_patched_in_memory_only(
    box: Box, options: tuple[str, ...]
) -> None:
    before = box.fingerprint()
    for _ in ("cold", "warm"):
        log = box.run(PATCHED, *options)
        assert "runs demo (memory) on vLLM 0.26.0" in log
    assert box.fingerprint() == before


def test_a_second_load_does_nothing(box: Box) -> None:
    log = box.run("register()\n" + PATCHED)
    assert log.count("runs demo (memory)") == 1


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
    assert "demo is not active" in done.stderr


@pytest.mark.parametrize("mode", ["auto", "disk"])
def test_what_is_applied_on_disk_is_verified_and_runs(box: Box, mode: str) -> None:
    box.overlay("apply", str(box.site))
    before = box.fingerprint()
    assert "runs demo (disk)" in box.run(PATCHED, OVERLAY=mode, OVERLAY_REQUIRED="demo")
    assert box.fingerprint() == before


def test_an_edit_after_apply_is_not_called_ours(box: Box) -> None:
    box.overlay("apply", str(box.site))
    file = box.site / PROPOSER
    file.write_text(file.read_text() + "# edited\n")
    log = box.run("register()")
    assert "edited after overlay apply" in log
    assert "runs unpatched" in log
    done = box.attempt("register()", OVERLAY_REQUIRED="demo")
    assert done.returncode != 0
    assert PROPOSER in done.stderr


def test_memory_and_disk_have_one_digest(box: Box) -> None:
    show = "import overlay.auto.process as p; register()\n"
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


def test_a_target_imported_before_is_named(box: Box) -> None:
    done = box.attempt("import vllm.v1.spec_decode.proposer\nregister()")
    assert done.returncode != 0
    assert "vllm.v1.spec_decode.proposer (imported by" in done.stderr


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
    show = PATCHED + "from overlay.auto import records; [r] = records.read_all()\n"
    show += "print([(m.module.rpartition('.')[2], m.scopes) for m in r.modules], r.way)"
    found = box.attempt(show)
    expected = "[('added', {}), ('proposer', {'SpecDecodeBaseProposer._first': 'runs'})] memory"
    lines = found.stdout.splitlines()
    assert lines, found.stderr
    assert sorted(lines[-1]) == sorted(expected)


def test_a_forked_child_has_a_record_of_its_own(box: Box) -> None:
    box.run(
        PATCHED
        + """
import os
child = os.fork()
if child == 0:
    from overlay.auto import records
    pids = {r.pid for r in records.read_all()}
    os._exit(0 if os.getpid() in pids and runs() == "patched" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_multiprocessing_that_load_the_plugin_are_patched(
    box: Box, tmp_path: Path, method: str
) -> None:
    (tmp_path / "worker.py").write_text(
        "def work(queue):\n"
        "    import overlay.features\n"
        "    from pathlib import Path\n"
        f"    overlay.features.shipped_folder = lambda: Path({str(box.empty)!r})\n"
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


def test_importing_the_plugin_imports_nothing_of_weight(box: Box) -> None:
    box.run(
        "import sys; assert not {'torch', 'vllm', 'rich', 'click', 'unidiff'} & set(sys.modules)\n"
        "register()\n"
        "assert not {'torch', 'vllm', 'rich', 'click', 'unidiff'} & set(sys.modules)"
    )
