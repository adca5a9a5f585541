"""The hazards of patching at import: with its remedy taken out, a test of each fails.

The table stands in docs/auto-apply.md, too.  Each mutation is made in a copy of the repository.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.in_memory.installed import REPOSITORY, copy_tree

DOCUMENT = REPOSITORY / "docs/auto-apply.md"


@dataclass(frozen=True)
class Hazard:
    """A remedy, how it is taken out, and the test that fails then.

    :ivar old: stands in ``file`` once; :ivar new: comes in its place.
    """

    words: str
    file: str
    old: str
    new: str
    test: str


HAZARDS = (
    Hazard(
        "`get_source` patches nothing, since `get_code` never calls it",
        "overlay/in_memory/import_hook.py",
        "    def get_code(self,",
        "    def get_the_code(self,",
        "tests/in_memory/test_hook.py::test_the_patched_code_runs_and_the_installation_stays",
    ),
    Hazard(
        "bytecode of the pristine file bypasses a hook",
        "overlay/in_memory/import_hook.py",
        "            return self._stored.code\n",
        "            return self._inner.get_code(fullname)\n",
        "tests/in_memory/test_hook.py::test_a_stale_bytecode_file_is_not_executed",
    ),
    Hazard(
        "bytecode outlives an edit on disk",
        "overlay/on_disk/files.py",
        "            remove(cache / name)\n",
        "            pass\n",
        "tests/on_disk/test_transaction_bytecode.py::test_stale_bytecode_goes_with_its_module",
    ),
    Hazard(
        "`inspect.getsource` reads the file on disk",
        "overlay/in_memory/import_hook.py",
        "            self._show_source(module)\n",
        "",
        "tests/in_memory/test_hook.py::test_inspect_and_tracebacks_show_the_patched_text",
    ),
    Hazard(
        "vLLM's caches hash the file on disk: compiled models",
        "overlay/in_memory/vllm_caches.py",
        'f"{stock(forward)} {key}"',
        'f"{stock(forward)}"',
        "tests/in_memory/test_caches.py::test_each_key_has_places_of_its_own",
    ),
    Hazard(
        "vLLM's caches hash the file on disk: model infos",
        "overlay/in_memory/vllm_caches.py",
        'stock() / f"overlay-{key[:16]}"',
        "stock()",
        "tests/in_memory/test_caches.py::test_each_key_has_places_of_its_own",
    ),
    Hazard(
        "vLLM's caches hash the file on disk: nobody keeps them apart",
        "overlay/in_memory/plugin.py",
        "    if caches.concerned(found.modules):\n",
        "    if False:\n",
        "tests/in_memory/test_process.py::test_where_models_are_patched_vllms_caches_are_kept_apart",
    ),
    Hazard(
        "a target was imported already",
        "overlay/in_memory/activation.py",
        "    late = {name: modules for name, modules in late.items() if modules}\n",
        "    late = {}\n",
        "tests/in_memory/test_process.py::test_a_target_imported_before_leaves_the_feature_out_whole",
    ),
    Hazard(
        "vLLM swallows what the import of a plugin raises",
        "overlay/plugin.py",
        "def register()",
        "import overlay.in_memory.plugin\n\n\ndef register()",
        "tests/in_memory/test_process.py::test_importing_the_plugin_does_nothing_that_could_fail",
    ),
    Hazard(
        "several processes write the same entry",
        "overlay/in_memory/module_cache.py",
        "            if not final.is_dir():\n                raise\n",
        "            raise\n",
        "tests/in_memory/test_store.py::test_many_makers_of_one_entry_agree",
    ),
    Hazard(
        "what stands in a cache need not be what was put there",
        "overlay/in_memory/import_hook.py",
        "        if found != stored.pristine:\n",
        "        if False:\n",
        "tests/in_memory/test_hook.py::test_a_file_that_changed_since_planning_is_refused",
    ),
    Hazard(
        "two pristine texts share a cache entry",
        "overlay/in_memory/preparation.py",
        "        json.dumps(pristine, sort_keys=True),\n",
        "",
        "tests/in_memory/test_pristine.py::test_each_pristine_text_has_an_entry_of_its_own",
    ),
    Hazard(
        "a cache entry outlives a file that was looked at and is not in its key",
        "overlay/in_memory/receipt.py",
        "        self.read_so_far[path] = None if data is None else sha256(data)\n",
        "",
        "tests/in_memory/test_pristine.py::"
        "test_a_file_that_only_an_upstream_test_looks_at_is_asked_each_time",
    ),
    Hazard(
        "a misspelt variable does nothing, and nobody says so: on disk",
        "overlay/in_memory/activation.py",
        "texts if switches.further else None",
        "None",
        "tests/in_memory/test_unread.py::test_what_a_patched_module_reads_is_not_named",
    ),
    Hazard(
        "a misspelt variable does nothing, and nobody says so: a letter is missing at its end",
        "overlay/in_memory/plugin.py",
        ' + rb"(?![A-Za-z0-9_])"',
        "",
        "tests/in_memory/test_unread.py::test_a_variable_that_nobody_reads_is_named",
    ),
    Hazard(
        "other hooks lose their loader's methods",
        "overlay/in_memory/import_hook.py",
        '        if name.startswith("__") or self._inner is None:\n',
        "        if True:\n",
        "tests/in_memory/test_other_hooks.py",
    ),
    Hazard(
        "other hooks lose the module that their loader makes",
        "overlay/in_memory/import_hook.py",
        "        return self._inner.create_module(spec) if self._inner is not None else None\n",
        "        return None\n",
        "tests/in_memory/test_other_hooks.py",
    ),
    Hazard(
        "other hooks that wrap what executes a module are not called",
        "overlay/in_memory/import_hook.py",
        "        if _wraps(spec.loader):\n",
        "        if False:\n",
        "tests/in_memory/test_other_hooks.py::"
        "test_a_hook_that_wraps_loaders_keeps_working_in_both_orders",
    ),
    Hazard(
        "a lazy module is loaded, and may fail, when it is asked what it holds",
        "overlay/in_memory/importers.py",
        'dict(object.__getattribute__(module, "__dict__"))',
        "dict(vars(module))",
        "tests/in_memory/test_hook.py::test_nothing_is_run_to_know_who_holds_a_target",
    ),
    Hazard(
        "another hook finds a target without asking ours",
        "overlay/in_memory/import_hook.py",
        "        self.require_asked()\n",
        "",
        "tests/in_memory/test_bypassed.py",
    ),
    Hazard(
        "links that lead out of the installation",
        "overlay/untrusted.py",
        "    if (real or os.path.realpath(root / path)).startswith(inside):\n",
        "    if True:\n",
        "tests/commands/test_links.py::test_the_first_part_that_leads_out_is_told",
    ),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as it stands, to be mutated."""
    folder = tmp_path_factory.mktemp("hazards")
    copy_tree(folder, lambda name: not name.startswith(("bench/results/", "docs/")))
    return folder


@pytest.mark.parametrize("hazard", HAZARDS, ids=lambda hazard: hazard.words)
def test_without_its_remedy_a_hazard_is_seen(hazard: Hazard, copy: Path) -> None:
    file = copy / hazard.file
    text = file.read_text()
    assert text.count(hazard.old) == 1, f"{hazard.file} has changed: {hazard.old!r}"
    file.write_text(text.replace(hazard.old, hazard.new))
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-qx", "-p", "no:cacheprovider", hazard.test],
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        file.write_text(text)
    assert done.returncode == 1, f"{hazard.test} does not see it:\n{done.stdout}{done.stderr}"
    assert "1 failed" in done.stdout


def test_the_table_in_the_documentation_names_each() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [one.words for one in HAZARDS if f"| {one.words} | `{one.test}` |" not in text]
    assert missing == []
