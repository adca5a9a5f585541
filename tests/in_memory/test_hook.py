"""The import hook, each case in a fresh interpreter, as vLLM's processes are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.in_memory.hooked import PRISTINE, run


@pytest.mark.parametrize("options", [(), ("-O",), ("-B",), ("-OO",)])
def test_the_patched_code_runs_and_the_installation_stays(
    root: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # what a user need not set
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
        written = {file.name.partition(".")[0] for file in Path(ROOT).rglob("*.pyc")}
        assert written == (set() if sys.dont_write_bytecode else {"__init__", "other"})
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


LAZY = """
class Lazy:
    def __getattribute__(self, name):
        raise ModuleNotFoundError(f"No module named 'absent' (asked for {name})")
class Meta(type):
    def __getattribute__(cls, name):
        raise RuntimeError(name)
class Odd(metaclass=Meta):
    pass
import types
class LazyModule(types.ModuleType):
    def __getattribute__(self, name):
        raise RuntimeError(name)
import sys
sys.modules["lazy.module"] = LazyModule("lazy.module")
sys.modules["lazy.object"] = Lazy()
sys.modules["lazy.int"] = 3
lazy = Lazy()
"""


@pytest.mark.parametrize(
    "held",
    [
        "import vllm.mod as one",
        "from vllm.mod import helper as one",
        "from vllm.mod import Runner as one",
    ],
)
def test_nothing_is_run_to_know_who_holds_a_target(root: Path, held: str) -> None:
    """Modules as those of transformers import, and may fail, when they are looked into."""
    (root / "importer.py").write_text(f"{held}\n{LAZY}")
    run(
        root,
        """
        import importer
        from overlay.in_memory.import_hook import imported
        assert imported(["vllm.mod", "vllm.other"]) == {"vllm.mod": "importer"}
        del importer.one
        assert imported(["vllm.mod"]) == {"vllm.mod": "nobody that still holds it"}
        """,
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import vllm.mod\n", True),
        ("if True:\n    import os, vllm.mod, sys\n", True),
        ("if True: import vllm.mod\n", True),
        ("import vllm.other\n# import vllm.mod\n", False),
        ("import vllm.other, vllm.model\n", False),
        ("import vllm.mod\ndel vllm\n", False),
    ],
)
def test_an_import_that_leaves_only_the_package_behind_is_found(
    root: Path, text: str, found: bool
) -> None:
    for name in ("mod", "other", "model"):
        (root / f"vllm/{name}.py").write_text("VALUE = 1\n")
    (root / "importer.py").write_text(text)
    who = "importer" if found else "nobody that still holds it"
    run(
        root,
        f"""
        import vllm.mod
        del vllm
        import importer
        from overlay.in_memory.import_hook import imported
        assert imported(["vllm.mod"]) == {{"vllm.mod": {who!r}}}, imported(["vllm.mod"])
        """,
    )


def test_an_error_of_a_later_import_has_no_control_character(root: Path) -> None:
    """Another vLLM comes before on the path, in a folder whose name clears the screen."""
    run(
        root,
        """
        import shutil, traceback
        install(finder)
        folder = Path(ROOT, "clear\\x1b[2J\\x9bscreen")
        shutil.copytree(Path(ROOT, "vllm"), folder / "vllm")
        sys.path.insert(0, str(folder))
        try:
            import vllm.mod
        except HookError as error:
            assert "screen" in str(error)
            assert not {"\\x1b", "\\x9b"} & set(traceback.format_exc())
        else:
            raise AssertionError
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
        class Refusing(Observer):
            def executed(self, name, module, stored):
                raise KeyError(name)
        install(PatchFinder(Path(ROOT), entry.modules, Refusing()))
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
        class Refusing(Observer):
            def executed(self, name, module, stored):
                raise {error}(name)
        finder = PatchFinder(Path(ROOT), entry.modules, Refusing())
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
            assert "on the path twice" in str(error)
        else:
            raise AssertionError
        """,
    )


def test_a_fork_runs_the_patched_code(root: Path) -> None:
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
