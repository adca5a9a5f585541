"""The hazards of patching at import: with its remedy taken out, a test of each fails.

docs/appendix/in-memory.md has the table, too.  Each mutation is made in a copy of the repository.
"""

from __future__ import annotations

import compileall
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import _pytest
import pytest

from tests.in_memory.installed import REPOSITORY, copy_tree
from tests.support.code_edits import edited
from tests.support.forked_programs import ForkedPrograms, forked_programs, modules_of

DOCUMENT = REPOSITORY / "docs/appendix/in-memory.md"


@dataclass(frozen=True)
class Hazard:
    """A remedy, how it is taken out, and the test that fails then.

    :ivar edit: scope, old and new code, as ``code_edits`` matches them: by syntax, in a function.
    """

    words: str
    file: str
    edit: tuple[str, str, str]
    test: str


HAZARDS = (
    Hazard(
        "`get_source` patches nothing, since `get_code` never calls it",
        "overlay/in_memory/import_hook.py",
        ("PatchedLoader.get_code", "...", "return self._inner.get_code(fullname)"),
        "tests/in_memory/test_hook.py::test_the_patched_code_runs_and_the_installation_stays",
    ),
    Hazard(
        "bytecode of the pristine file bypasses a hook",
        "overlay/in_memory/import_hook.py",
        (
            "PatchedLoader.get_code",
            "return self._stored.code",
            "return self._inner.get_code(fullname)",
        ),
        "tests/in_memory/test_hook.py::test_a_stale_bytecode_file_is_not_executed",
    ),
    Hazard(
        "bytecode outlives an edit on disk",
        "overlay/on_disk/files.py",
        ("_remove_compiled", "...", "pass"),
        "tests/on_disk/test_transaction_bytecode.py::test_stale_bytecode_goes_with_its_module",
    ),
    Hazard(
        "`inspect.getsource` reads the file on disk",
        "overlay/in_memory/import_hook.py",
        ("PatchedLoader._show_source", "...", "pass"),
        "tests/in_memory/test_hook.py::test_inspect_and_tracebacks_show_the_patched_text",
    ),
    Hazard(
        "vLLM's caches hash the file on disk: compiled models",
        "overlay/in_memory/module_cache.py",
        ("_ahead_of_time.model_hash_key", "...", "return stock(forward)"),
        "tests/in_memory/test_caches.py::test_each_key_has_places_of_its_own",
    ),
    Hazard(
        "vLLM's caches hash the file on disk: model infos",
        "overlay/in_memory/module_cache.py",
        ("_model_info.cache_dir", "...", "return stock()"),
        "tests/in_memory/test_caches.py::test_each_key_has_places_of_its_own",
    ),
    Hazard(
        "vLLM's caches hash the file on disk: nobody keeps them apart",
        "overlay/in_memory/module_cache.py",
        ("concerned", "...", "return False"),
        "tests/in_memory/test_process.py::test_where_models_are_patched_vllms_caches_are_kept_apart",
    ),
    Hazard(
        "a target was imported already",
        "overlay/in_memory/import_hook.py",
        ("imported", "...", "return {}"),
        "tests/in_memory/test_process.py::test_a_target_imported_before_leaves_the_feature_out_whole",
    ),
    Hazard(
        "vLLM swallows what the import of a plugin raises",
        "overlay/plugin.py",
        ("<module>", "def register() -> None: ...", "import overlay.in_memory.plugin\nMATCH"),
        "tests/in_memory/test_process.py::test_importing_the_plugin_does_nothing_that_could_fail",
    ),
    Hazard(
        "several processes write the same entry",
        "overlay/in_memory/module_cache.py",
        ("Store._publish", "...", "unfinished.rename(final)"),
        "tests/in_memory/test_store.py::test_many_makers_of_one_entry_agree",
    ),
    Hazard(
        "a cache may hold other bytes than were put there",
        "overlay/in_memory/import_hook.py",
        ("PatchFinder._require_planned", "present != stored.pristine", "False"),
        "tests/in_memory/test_hook.py::test_a_file_that_changed_since_planning_is_refused",
    ),
    Hazard(
        "two pristine texts share a cache entry",
        "overlay/in_memory/preparation.py",
        ("_entry", "json.dumps(pristine, sort_keys=True)", "''"),
        "tests/in_memory/test_pristine.py::test_each_pristine_text_has_an_entry_of_its_own",
    ),
    Hazard(
        "a cache entry outlives a file that was looked at and is not in its key",
        "overlay/in_memory/preparation.py",
        ("as_it_stands", "...", "return True"),
        "tests/in_memory/test_pristine.py::"
        "test_a_file_that_only_an_upstream_test_looks_at_is_asked_each_time",
    ),
    Hazard(
        "a misspelt variable does nothing, and nobody says so",
        "overlay/_features/switches.py",
        ("check_values", "unknown.append(_unknown(...))", "pass"),
        "tests/in_memory/test_unread.py::test_a_variable_that_nobody_declares_is_named",
    ),
    Hazard(
        "a misspelt value is seen after the weights were read, or never",
        "overlay/_features/switches.py",
        ("_value_problem", "...", "return None"),
        "tests/in_memory/test_unread.py::"
        "test_an_unknown_value_stops_the_process_before_anything_is_patched",
    ),
    Hazard(
        "patched code is there and does nothing: model runner V2",
        "overlay/in_memory/effects.py",
        ("model_runner", "...", "return None"),
        "tests/in_memory/test_effects.py::test_model_runner_v2_is_found_before_a_weight_is_read",
    ),
    Hazard(
        "patched code is there and does nothing, though it is required",
        "overlay/in_memory/effects.py",
        ("EffectWatch._refuse_idle", "...", "pass"),
        "tests/in_memory/test_effects.py::test_a_required_feature_that_is_idle_stops_the_engine",
    ),
    Hazard(
        "a forked child writes its counts into its parent's memory",
        # The copies are equal; the test takes the first.
        "patches/shared/files/vllm/v1/overlay_effects.py",
        ("_after_fork", "_numbers = array('Q', bytes(8 * SLOTS))", "pass"),
        "tests/in_memory/test_effects_module.py::"
        "test_a_fork_starts_without_reports_and_does_not_write_to_its_parents_memory",
    ),
    Hazard(
        "`OVERLAY=off` leaves what is on disk in effect",
        "overlay/in_memory/decision.py",
        ("_turned_off", "...", "return Activation(Way.OFF, 'unknown', '', (), '')"),
        "tests/in_memory/test_effects.py::test_off_turns_off_the_switches_of_what_is_on_disk",
    ),
    Hazard(
        "other hooks lose their loader's methods",
        "overlay/in_memory/import_hook.py",
        ("PatchedLoader.__getattr__", "...", "raise AttributeError(name)"),
        "tests/in_memory/test_other_hooks.py",
    ),
    Hazard(
        "other hooks lose the module that their loader makes",
        "overlay/in_memory/import_hook.py",
        ("PatchedLoader.create_module", "...", "return None"),
        "tests/in_memory/test_other_hooks.py",
    ),
    Hazard(
        "other hooks that wrap what executes a module are not called",
        "overlay/in_memory/import_hook.py",
        ("_wraps", "...", "return False"),
        "tests/in_memory/test_other_hooks.py::"
        "test_a_hook_that_wraps_loaders_keeps_working_in_both_orders",
    ),
    Hazard(
        "a lazy module is loaded, and may fail, when it is asked what it holds",
        "overlay/in_memory/import_hook.py",
        ("_globals", "object.__getattribute__(module, '__dict__')", "vars(module)"),
        "tests/in_memory/test_hook.py::test_nothing_is_run_to_know_who_holds_a_target",
    ),
    Hazard(
        "another hook finds a target without asking ours",
        "overlay/in_memory/import_hook.py",
        ("PatchFinder.require_asked", "...", "pass"),
        "tests/in_memory/test_bypassed.py",
    ),
    Hazard(
        "links that lead out of the installation",
        "overlay/untrusted.py",
        ("way_out", "...", "return None"),
        "tests/commands/test_links.py::test_the_first_part_that_leads_out_is_told",
    ),
)


#: What the tests import and no mutation changes.
EARLY = (
    *("pytest", *modules_of(_pytest), "xdist.plugin"),
    *("hypothesis.stateful", "hypothesis.strategies"),
    *("click", "requests", "yaml", "filelock"),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, to be mutated; with bytecode, so that only a mutation is compiled.

    The files are older than what a mutation writes, which thereby is none of that bytecode's.
    """
    folder = tmp_path_factory.mktemp("hazards")
    copy_tree(folder, lambda name: not name.startswith(("bench/", "docs/")))
    for file in folder.rglob("*.py"):
        os.utime(file, (0, 0))
    for package in ("overlay", "tests/support", "tests/in_memory"):
        compileall.compile_dir(folder / package, quiet=2)
    return folder


@pytest.fixture(scope="module")
def pytests(copy: Path) -> Iterator[ForkedPrograms]:
    """Where pytest runs in the copy, forked from a process that has imported it."""
    with forked_programs(EARLY, copy, "-B") as forks:
        yield forks


@pytest.mark.parametrize("hazard", HAZARDS, ids=lambda hazard: hazard.words)
def test_without_its_remedy_a_hazard_is_seen(
    hazard: Hazard, copy: Path, pytests: ForkedPrograms
) -> None:
    file = copy / hazard.file
    text = file.read_text()
    file.write_text(edited(text, [hazard.edit], hazard.file))
    words = ("-qx", "-n0", "-p", "no:cacheprovider", hazard.test)
    try:
        run = pytests.start("pytest", words, copy, os.environ)
        output = run.communicate(timeout=600).decode(errors="replace")
    finally:
        file.write_text(text)
    assert run.returncode == 1, f"{hazard.test} does not see it:\n{output}"
    assert "1 failed" in output


def test_the_table_in_the_documentation_names_each() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [
        hazard.words for hazard in HAZARDS if f"| {hazard.words} | `{hazard.test}` |" not in text
    ]
    assert missing == []
