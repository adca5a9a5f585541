"""The import hook beside other tools' hooks and loaders, and modules that are only watched."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.in_memory.boxes import OTHER_FINDER
from tests.in_memory.hooked import PATCHED, run

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


#: As wrapt's hooks, on which tracers build: they call back after the module was executed.
WRAPPING = (
    OTHER_FINDER
    + """
done = []
class Around:
    def __init__(self, inner):
        self.inner = inner
    def create_module(self, spec):
        return self.inner.create_module(spec)
    def exec_module(self, module):
        self.inner.exec_module(module)
        done.append(module.__name__)
def changed(spec):
    return Around(spec.loader)
"""
)


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_hook_that_wraps_loaders_keeps_working_in_both_orders(
    root: Path, ours_first: bool
) -> None:
    order = "install(finder)\nsys.meta_path.insert(0, Other())\n"
    if ours_first:
        order = "sys.meta_path.insert(0, Other())\ninstall(finder)\n"
    body = "import importlib, vllm.mod, vllm.other\n"
    body += "assert vllm.mod.Runner().run() == 'patched'\n"
    body += "assert seen == ['vllm.new', 'vllm.mod'], seen\n"
    body += "assert {'vllm.mod', 'vllm.other'} <= set(done) and len(done) == len(set(done)), done\n"
    body += "finder.require_asked()\nassert passed == []\n"
    body += "assert importlib.reload(vllm.mod).Runner().run() == 'patched'\n"
    run(root, WRAPPING + order + body)


def test_hooks_that_wrap_each_other_keep_working(root: Path) -> None:
    second = WRAPPING.replace("Other", "Second").replace("changed(", "second(")
    second = second.replace("done", "twice").replace("Around", "Again")
    body = "sys.meta_path[:0] = [Second(), Other()]\ninstall(finder)\nimport vllm.mod\n"
    body += "assert vllm.mod.Runner().run() == 'patched'\n"
    body += "assert done.count('vllm.mod') == twice.count('vllm.mod') == 1, (done, twice)\n"
    run(root, WRAPPING + second + body)


#: As wrapt's own loader: a proxy, in whose class nothing tells that it executes.
PROXY = """
class Proxy:
    def __init__(self, inner):
        self.__dict__.update(create_module=inner.create_module, exec_module=self.execute)
        self.__dict__["inner"] = inner
    def execute(self, module):
        self.inner.exec_module(module)
        done.append(module.__name__)
def changed(spec):
    return Proxy(spec.loader)
"""


def test_a_proxy_that_wraps_keeps_working(root: Path) -> None:
    body = "sys.meta_path.insert(0, Other())\ninstall(finder)\nimport vllm.mod\n"
    body += "assert vllm.mod.Runner().run() == 'patched'\nassert 'vllm.mod' in done\n"
    run(root, WRAPPING + PROXY + body)


def test_hooks_that_wrap_and_hooks_that_change_the_text_work_together(root: Path) -> None:
    both = WRAPPING.replace("Other", "Outer").replace("changed(", "around(")
    body = "sys.meta_path[:0] = [Outer(), Other()]\ninstall(finder)\nimport vllm.mod\n"
    body += "assert vllm.mod.Runner().run() == 'both'\nassert 'vllm.mod' in done\n"
    run(root, both + OTHER_HOOK + body, patched=PATCHED.replace("added()", "'patched'"))


def test_what_a_hook_wraps_past_ours_is_executed_patched_all_the_same(root: Path) -> None:
    """It asks Python's own finder, so it cannot be given our loader."""
    direct = WRAPPING.replace(
        "importlib.util.find_spec(name)", "importlib.machinery.PathFinder.find_spec(name, path)"
    )
    assert direct != WRAPPING
    body = "sys.meta_path.insert(0, Other())\ninstall(finder)\nimport vllm.mod\n"
    body += "assert vllm.mod.Runner().run() == 'patched'\nassert 'vllm.mod' not in done\n"
    run(root, direct + body)


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
        import importlib.machinery, logging, overlay.in_memory.import_watch as watching
        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger("vllm.overlay").addHandler(handler)
        def watch():
            watching.when_imported("vllm.other", lambda module: module.absent, {lost})
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
