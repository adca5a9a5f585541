"""The import hook, each case in a fresh interpreter, as vLLM's processes are."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.auto.boxes import OTHER_FINDER

REPO = Path(__file__).resolve().parents[2]

PRISTINE = '''\
"""A module."""
import functools


class Runner:
    def run(self):
        return "pristine"


def helper():
    return __file__
'''
PATCHED = PRISTINE.replace('"pristine"', "added()").replace(
    "import functools", "from vllm.new import added"
)
ADDED = "def added():\n    return 'patched'\n"

PRELUDE = f"""
import sys
sys.path[:0] = [ROOT, {str(REPO)!r}]
from pathlib import Path
from overlay.auto.hook import HookError, PatchFinder, WatchFinder, install
from overlay.auto.store import Store, sha256
PRISTINE = Path(ROOT, "vllm/mod.py").read_bytes()
seen = []
store = Store(Path(ROOT, "cache"))
TEXTS = {{
    "vllm/mod.py": (PATCHED.encode(), sha256(PRISTINE)),
    "vllm/new/__init__.py": (ADDED.encode(), None),
    "vllm/new/inner.py": (b"VALUE = 3\\n", None),
}}
entry = store.save("key", TEXTS, {{}})
passed = []
finder = PatchFinder(
    Path(ROOT),
    entry.modules,
    lambda name, module, stored: seen.append(name),
    lambda name, text: passed.append((name, text)),
)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("")
    (tmp_path / "vllm/mod.py").write_text(PRISTINE)
    (tmp_path / "vllm/other.py").write_text("VALUE = 1\n")
    return tmp_path


def run(root: Path, code: str, *options: str, patched: str = PATCHED) -> None:
    """Run ``code`` after the prelude in a fresh interpreter; it asserts by itself."""
    head = f"ROOT = {str(root)!r}\nPATCHED = {patched!r}\nADDED = {ADDED!r}\n"
    done = subprocess.run(
        [sys.executable, *options, "-c", head + PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("options", [(), ("-O",), ("-B",), ("-OO",)])
def test_the_patched_code_runs_and_the_installation_stays(
    root: Path, options: tuple[str, ...]
) -> None:
    run(
        root,
        """
        install(finder)
        import vllm.mod, vllm.other
        assert vllm.mod.Runner().run() == "patched"
        assert seen == ["vllm.new", "vllm.mod"], seen
        assert vllm.mod.helper() == str(Path(ROOT, "vllm/mod.py"))      # __file__ stays
        assert vllm.mod.helper.__code__.co_filename == str(entry.folder / "vllm/mod.py")
        assert Path(ROOT, "vllm/mod.py").read_bytes() == PRISTINE
        assert not list(Path(ROOT, "vllm/__pycache__").glob("mod.*"))   # no bytecode of ours
        assert not Path(ROOT, "vllm/new").exists()
        """,
        *options,
    )


def test_modules_of_an_added_package_are_imported_from_the_store(root: Path) -> None:
    run(
        root,
        """
        install(finder)
        from vllm.new import inner
        import vllm.new.inner
        assert inner.VALUE == 3
        assert type(inner.__loader__).__name__ == "PatchedLoader"
        assert not list(entry.folder.rglob("__pycache__"))
        try:
            import vllm.new.absent
        except ModuleNotFoundError:
            pass
        else:
            raise AssertionError
        """,
    )


def test_an_added_module_that_is_there_already_is_refused(root: Path) -> None:
    (root / "vllm/new").mkdir()
    (root / "vllm/new/__init__.py").write_text("theirs = True\n")
    run(
        root,
        """
        install(finder)
        try:
            import vllm.new
        except HookError as error:
            assert "exists already" in str(error)
        else:
            raise AssertionError
        """,
    )


JIT = """
import inspect

class jit:
    def __init__(self, fn):
        self.fn = fn
        self.lines, self.start = inspect.getsourcelines(fn)
"""


def test_a_compiler_that_reads_source_as_it_decorates_sees_the_patched_text(root: Path) -> None:
    # As Triton does: what @triton.jit compiles later is the text that it found at once.
    (root / "vllm/jit.py").write_text(JIT)
    kernel = "from vllm.jit import jit\n\n\n@jit\ndef kernel(x):\n    return x + {}\n\n\n"
    (root / "vllm/mod.py").write_text(kernel.format(1) + PRISTINE)
    run(
        root,
        """
        install(finder)
        import importlib, vllm.mod
        for _ in range(2):
            assert "return x + 1000" in "".join(vllm.mod.kernel.lines), vllm.mod.kernel.lines
            assert vllm.mod.kernel.start == 4
            importlib.reload(vllm.mod)
        """,
        patched=kernel.format(1000) + PRISTINE,
    )


def test_inspect_and_tracebacks_show_the_patched_text(root: Path) -> None:
    run(
        root,
        """
        install(finder)
        import inspect, traceback, vllm.mod
        assert "added()" in inspect.getsource(vllm.mod.Runner.run)
        assert "added()" in inspect.getsource(vllm.mod.Runner)
        assert "added()" in inspect.getsource(vllm.mod)
        assert vllm.mod.__loader__.get_source("vllm.mod") == PATCHED
        sys.modules["vllm.new"].added.__code__ = (lambda: 1 / 0).__code__
        vllm.mod.added = None
        try:
            vllm.mod.Runner().run()
        except TypeError:
            assert "return added()" in traceback.format_exc()
        else:
            raise AssertionError
        """,
    )


def test_reload_and_pickle_keep_the_patched_code(root: Path) -> None:
    run(
        root,
        """
        install(finder)
        import importlib, pickle, vllm.mod
        assert pickle.loads(pickle.dumps(vllm.mod.Runner))().run() == "patched"
        assert importlib.reload(vllm.mod).Runner().run() == "patched"
        assert seen.count("vllm.mod") == 2
        """,
    )


def test_a_stale_bytecode_file_is_not_executed(root: Path) -> None:
    run(
        root,
        """
        import py_compile
        py_compile.compile(str(Path(ROOT, "vllm/mod.py")))
        install(finder)
        import vllm.mod
        assert vllm.mod.Runner().run() == "patched"
        """,
    )


def test_a_target_imported_already_is_named_with_its_importer(root: Path) -> None:
    (root / "importer.py").write_text("from vllm.mod import Runner\n")
    run(
        root,
        """
        import importer
        try:
            install(finder)
        except HookError as error:
            assert "vllm.mod (imported by importer)" in str(error), error
        else:
            raise AssertionError
        assert finder not in sys.meta_path
        """,
    )


def test_an_error_in_the_patched_module_leaves_nothing_half_done(root: Path) -> None:
    run(
        root,
        """
        install(finder)
        try:
            import vllm.mod
        except HookError as error:
            assert isinstance(error.__cause__, ZeroDivisionError)
            assert "vllm.mod" in str(error)
        else:
            raise AssertionError
        assert "vllm.mod" not in sys.modules
        """,
        patched="1 / 0\n",
    )


def test_a_failing_check_after_execution_fails_the_import(root: Path) -> None:
    run(
        root,
        """
        def refuse(name, module, stored):
            raise KeyError(name)
        install(PatchFinder(Path(ROOT), entry.modules, refuse, refuse))
        try:
            import vllm.new
        except HookError as error:
            assert isinstance(error.__cause__, KeyError)
        else:
            raise AssertionError
        assert "vllm.new" not in sys.modules
        """,
    )


@pytest.mark.parametrize("error", ["KeyError", "HookError"])
def test_what_failed_patched_is_found_where_it_then_runs_pristine(root: Path, error: str) -> None:
    run(
        root,
        f"""
        import importlib.machinery
        def refuse(name, module, stored):
            raise {error}(name)
        finder = PatchFinder(Path(ROOT), entry.modules, refuse, lambda *said: passed.append(said))
        install(finder)
        for finders in ([], [importlib.machinery.PathFinder]):
            sys.meta_path[:0] = finders
            try:
                import vllm.mod
            except HookError:
                assert not finders
            finder.require_asked()
        ((name, text),) = passed
        assert name == "vllm.mod" and "SourceFileLoader loaded it" in text, passed
        """,
        patched=PRISTINE.replace("pristine", "patched"),
    )


def test_a_file_that_changed_since_planning_is_refused(root: Path) -> None:
    run(
        root,
        """
        install(finder)
        Path(ROOT, "vllm/mod.py").write_bytes(PRISTINE + b"# edited")
        try:
            import vllm.mod
        except HookError as error:
            assert "changed" in str(error)
        else:
            raise AssertionError
        """,
    )


def test_a_file_that_cannot_be_read_is_refused_with_the_cause(root: Path) -> None:
    run(
        root,
        """
        install(finder)
        file = Path(ROOT, "vllm/mod.py")
        file.unlink()
        import importlib.machinery, importlib.util
        class Found(importlib.machinery.PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                if name == "vllm.mod":
                    return importlib.util.spec_from_file_location(name, file)
        sys.meta_path.insert(1, Found)
        try:
            import vllm.mod
        except HookError as error:
            assert isinstance(error.__cause__, FileNotFoundError), error.__cause__
            assert f"{file} cannot be read" in str(error), error
        else:
            raise AssertionError
        assert "vllm.mod" not in sys.modules
        """,
    )


def test_another_vllm_on_the_path_is_refused(root: Path, tmp_path: Path) -> None:
    run(
        root,
        """
        import shutil
        shutil.copytree(Path(ROOT, "vllm"), Path(ROOT, "second/vllm"))
        sys.path.insert(0, str(Path(ROOT, "second")))
        install(finder)
        try:
            import vllm.mod
        except HookError as error:
            assert "two vLLMs" in str(error)
        else:
            raise AssertionError
        """,
    )


OTHER_HOOK = (
    OTHER_FINDER
    + """
class Instrument(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, *, _optimization=-1):
        return super().source_to_code(data.replace(b"'patched'", b"'both'"), path)
def changed(spec):
    plain = type(spec.loader) is importlib.machinery.SourceFileLoader
    return Instrument(spec.name, spec.origin) if plain else spec.loader
"""
)


@pytest.mark.parametrize("ours_first", [True, False])
def test_other_hooks_keep_working_in_both_orders(root: Path, ours_first: bool) -> None:
    order = "install(finder)\nsys.meta_path.insert(0, Other())\n"
    if ours_first:
        order = "sys.meta_path.insert(0, Other())\ninstall(finder)\n"
    body = "import vllm.mod, vllm.other\nassert vllm.other.VALUE == 1\n"
    body += "assert vllm.mod.Runner().run() == 'patched'\n"
    body += "assert type(vllm.other.__loader__).__name__ == 'Instrument'\n"
    run(root, OTHER_HOOK + order + body)


def test_a_transforming_loader_sees_the_patched_text(root: Path) -> None:
    body = "sys.meta_path.insert(0, Other())\ninstall(finder)\nimport vllm.mod\n"
    body += "assert vllm.mod.Runner().run() == 'both'\n"
    run(root, OTHER_HOOK + body, patched=PATCHED.replace("added()", "'patched'"))


def test_watching_a_module_changes_nothing_of_it(root: Path) -> None:
    run(
        root,
        """
        found = []
        sys.meta_path.insert(0, WatchFinder("vllm.other", found.append))
        import vllm.other, vllm.mod
        assert found == [vllm.other]
        assert vllm.mod.Runner().run() == "pristine"
        assert vllm.other.__loader__.get_source("vllm.other") == "VALUE = 1\\n"
        """,
    )


INNER_LOADER = """
import importlib.machinery, importlib.util, types
class Special(types.ModuleType):
    pass
class Inner(importlib.machinery.SourceFileLoader):
    def create_module(self, spec):
        return Special(spec.name)
    def own(self):
        return "theirs"
class Theirs(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target)
        if spec is not None and name in ("vllm.mod", "vllm.other"):
            spec.loader = Inner(name, spec.origin)
        return spec
sys.meta_path.insert(0, Theirs)
"""


@pytest.mark.parametrize("watched", [False, True])
def test_the_loader_that_is_wrapped_keeps_its_other_methods_and_makes_the_module(
    root: Path, watched: bool
) -> None:
    name = "vllm.other" if watched else "vllm.mod"
    put = "install(finder)"
    if watched:
        put = "sys.meta_path.insert(0, WatchFinder('vllm.other', lambda module: None))"
    run(
        root,
        INNER_LOADER
        + textwrap.dedent(f"""
        {put}
        import importlib, pkgutil
        module = importlib.import_module({name!r})
        assert type(module.__loader__).__name__ != "Inner"
        assert type(module) is Special, type(module)
        assert module.__loader__.own() == "theirs"
        assert module.__loader__.path == module.__file__
        assert pkgutil.get_data({name!r}, "other.py") == b"VALUE = 1\\n"
        assert not hasattr(module.__loader__, "neither")
        """),
    )


@pytest.mark.parametrize("way", ["before", "after", "bypassing"])
@pytest.mark.parametrize("lost", [None, "'the sky'"])
def test_what_fails_after_a_watched_import_is_our_error_or_one_warning(
    root: Path, way: str, lost: str | None
) -> None:
    """As where a later vLLM renames what the overlay looks for."""
    run(
        root,
        f"""
        import importlib.machinery, logging, overlay.auto.hook as hook
        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger("vllm.overlay").addHandler(handler)
        def watch():
            hook.when_imported("vllm.other", lambda module: module.absent, {lost})
        def act():
            if {way!r} == "before":
                import vllm.other
                watch()
                return
            watch()
            if {way!r} == "bypassing":
                sys.meta_path.insert(0, importlib.machinery.PathFinder)
                import vllm.other
                sys.meta_path.pop(0)
                import colorsys, wave
            import vllm.other
        try:
            act()
        except HookError as error:
            assert {lost} is None, error
            assert isinstance(error.__cause__, AttributeError)
            assert "vllm.other is not as expected" in str(error)
            assert {way!r} != "after" or "vllm.other" not in sys.modules
        else:
            assert {lost} is not None
            assert sys.modules["vllm.other"].VALUE == 1
            (line,) = lines
            assert "vllm.other is not as expected (AttributeError" in line and "the sky" in line
        """,
    )


def test_fork_and_spawn_run_the_patched_code(root: Path) -> None:
    run(
        root,
        """
        import os
        install(finder)
        import vllm.mod
        child = os.fork()
        if child == 0:
            os._exit(0 if vllm.mod.Runner().run() == "patched" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """,
    )
