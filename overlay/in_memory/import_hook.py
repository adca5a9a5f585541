"""Serve planned modules patched while Python imports them, and notice those of other hooks.

A finder before ours that asks Python's own ``PathFinder`` (as typeguard's and jaxtyping's hooks do)
never calls us for the modules it takes; what it loads is the pristine file.  ``compare`` is the
proof of effect: what a process runs, beside what was planned, scope by scope."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import io
import linecache
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from overlay._processes import CodeState
from overlay.in_memory.import_watch import (
    HookError,
    WatchFinder,
    answers,
    delegates,
    next_spec,
    spec_around,
)
from overlay.package import module_name
from overlay.untrusted import sha256

if TYPE_CHECKING:
    from overlay.in_memory.module_cache import StoredModule


class PendingModules:
    """The planned modules that were not executed by a loader of the overlay yet.

    :param names: of the planned modules; :param ours: the type of our loader.
    """

    def __init__(self, names: Iterable[str], ours: type) -> None:
        self._names = set(names)
        self._ours = ours
        self._offered: set[str] = set()

    def mark_offered(self, name: str) -> None:
        """Note that our loader was returned for ``name``; the caller may still use another."""
        self._offered.add(name)

    def mark_executing(self, name: str) -> None:
        """Note that our loader begins to execute ``name``."""
        self._names.discard(name)

    def mark_failed(self, name: str) -> None:
        """Note that our loader could not execute ``name``, which may be imported once more."""
        self._names.add(name)

    def bypassed(self) -> dict[str, str]:
        """The modules that another loader executed, in full or in part -> its type; each once.

        Called for nearly every import: costs one intersection, and nothing once all were seen.
        """
        if not self._names:
            return {}
        there = sys.modules.keys() & self._names
        return {name: loader for name in sorted(there) if (loader := self._foreign(name))}

    def _foreign(self, name: str) -> str | None:
        module = sys.modules.get(name)
        if module is None:  # its import is forbidden, or failed meanwhile
            return None
        spec = _attribute(module, "__spec__")
        loader = getattr(spec, "loader", None) or _attribute(module, "__loader__")
        if isinstance(loader, self._ours):
            return None
        if name in self._offered and getattr(spec, "_initializing", False):
            return None  # it may wrap ours, and not have called it yet
        try:
            self._names.remove(name)
        except KeyError:  # another thread says it
            return None
        kind = type(loader)
        return f"{kind.__module__}.{kind.__qualname__}"


def _attribute(module: object, name: str) -> object:
    # Without the module's own __getattribute__, with which a lazy module would load itself.
    try:
        return object.__getattribute__(module, name)
    except AttributeError:
        return None


def others_before(finder: object) -> str:
    """Name the foreign finders that are asked before ``finder``, for an error message."""
    finders = list(sys.meta_path)
    before = finders[: finders.index(finder)] if finder in finders else finders
    kinds = (each if isinstance(each, type) else type(each) for each in before)
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]
    return ", ".join(name for name in names if not name.startswith("overlay.")) or "none"


class Observer(Protocol):
    """Records what this process runs."""

    def executed(self, name: str, module: ModuleType, stored: StoredModule) -> None:
        """Hear of a patched module that was executed; ``stored`` has the code that ran.

        :raises HookError: if it must not stay.
        """

    def bypassed(self, name: str, text: str) -> None:
        """Hear, once, of a planned module that runs its pristine code, and what to say of it."""


class PatchedLoader(importlib.abc.InspectLoader):
    """Executes the stored text of one module; everything else is its own loader's."""

    def __init__(
        self,
        inner: importlib.abc.Loader | None,
        stored: StoredModule,
        observer: Observer,
        pending: PendingModules,
    ) -> None:
        self._inner = inner
        self._stored = stored
        self._observer = observer
        self._pending = pending

    def __getattr__(self, name: str) -> object:
        # Readers of package data and the like ask the loader that knows the installation.
        if name.startswith("__") or self._inner is None:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module object that the module's own loader makes, mostly none."""
        return self._inner.create_module(spec) if self._inner is not None else None

    def is_package(self, fullname: str) -> bool:
        """Whether the module is a package."""
        return self._stored.path.endswith("/__init__.py")

    def get_filename(self, fullname: str) -> str:
        """The file whose text runs."""
        return str(self._stored.file)

    def get_source(self, fullname: str) -> str:
        """The patched text."""
        return importlib.util.decode_source(self._stored.source)

    def get_code(self, fullname: str) -> CodeType:
        """The code that runs.

        Another hook's loader that transforms source (coverage, tracing) sees the patched source.
        """
        transform = getattr(type(self._inner), "source_to_code", None)
        plain = importlib.abc.InspectLoader.source_to_code
        own = getattr(importlib.machinery.SourceFileLoader, "source_to_code", plain)
        if self._inner is None or transform is None or transform in (plain, own):
            return self._stored.code
        # It was found above; the type of every loader does not have it.
        code = self._inner.source_to_code(  # type: ignore[attr-defined]
            self._stored.source, str(self._stored.file)
        )
        if not isinstance(code, CodeType):
            raise HookError(f"{type(self._inner).__name__}.source_to_code gave no code object")
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Execute the patched text in ``module``, then check what runs.

        :raises HookError: from whatever went wrong; the import system then removes the module.
        """
        name = module.__name__
        self._pending.mark_executing(name)
        try:
            code = self.get_code(name)
            exec(code, module.__dict__)
            self._show_source(module)
            # What another hook made of the patched text is what is expected to run.
            self._observer.executed(name, module, replace(self._stored, code=code))
        except HookError:
            self._pending.mark_failed(name)
            raise
        except Exception as error:
            self._pending.mark_failed(name)
            raise HookError(
                f"vllm-overlay: {name} failed in its patched form ({self._stored.file}): "
                f"{type(error).__name__}: {error}",
                name=name,
                path=str(self._stored.file),
            ) from error

    def _show_source(self, module: ModuleType) -> None:
        # inspect.getsource of a class reads __file__, which stays the pristine file.  An entry
        # without a modification time is never checked against the disk.
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            text = self.get_source(module.__name__)
            lines = io.StringIO(text).readlines()  # as the compiler counts lines
            linecache.cache[file] = (len(text), None, lines, file)


class PatchFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of one store entry.

    :param root: the folder that holds the package; a module found elsewhere is refused.
    :param required: names of the modules that must not run their pristine code.
    """

    def __init__(
        self,
        root: Path,
        modules: Iterable[StoredModule],
        observer: Observer,
        required: Iterable[str] = (),
    ) -> None:
        self.root = root
        self.modules: Mapping[str, StoredModule] = {module_name(m.path): m for m in modules}
        self._observer = observer
        self._required = frozenset(required)
        self._pending = PendingModules(self.modules, PatchedLoader)
        self._refusal: str | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a patched or added module, ``None`` for every other.

        :raises HookError: if the module is not the file that was planned for, or a required one
            runs its pristine code, which each further import then says.
        """
        self.require_asked()
        stored = self.modules.get(fullname)
        if stored is None or delegates(self, fullname):
            return None
        spec = next_spec(self, fullname, path, target)
        if stored.pristine is None:
            # Inside an added package, whose path leads here, it is the stored file that is found.
            if spec is not None and spec.origin != str(stored.file):
                raise HookError(f"vllm-overlay: {fullname} exists already, in {spec.origin}")
            return self._added_spec(fullname, stored)
        if spec is None:
            return None
        self._require_planned(fullname, spec, stored)
        if _wraps(spec.loader):
            around = spec_around(self, fullname, path, target)
            if around is not None:
                answers(self, fullname)
                return around
        spec.loader = self._loader(fullname, spec.loader, stored)
        answers(self, fullname)
        return spec

    def require_asked(self) -> None:
        """Say which planned modules were loaded without this finder; stop for a required one.

        :raises HookError: for a required one, now and at each further call.
        """
        for name, loader in self._pending.bypassed().items():
            text = (
                f"vllm-overlay: {name} runs its pristine code: {loader} loaded it, and the "
                f"overlay's import hook was not asked (hooks before it: {others_before(self)}). "
                "Keep that hook away from it, install it before the overlay's plugin is loaded, "
                "or apply on disk instead (`overlay apply`)"
            )
            self._observer.bypassed(name, text)
            if name in self._required:
                # After the callback, which may import.
                self._refusal = text
        if self._refusal is not None:
            raise HookError(self._refusal)

    def _loader(
        self, name: str, inner: importlib.abc.Loader | None, stored: StoredModule
    ) -> PatchedLoader:
        self._pending.mark_offered(name)
        return PatchedLoader(inner, stored, self._observer, self._pending)

    def _added_spec(self, fullname: str, stored: StoredModule) -> ModuleSpec | None:
        loader = self._loader(fullname, None, stored)
        package = stored.path.endswith("/__init__.py")
        spec = ModuleSpec(fullname, loader, origin=str(stored.file), is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [str(stored.file.parent)]
        return spec

    def _require_planned(self, fullname: str, spec: ModuleSpec, stored: StoredModule) -> None:
        origin = spec.origin
        if origin is None or Path(origin).resolve() != (self.root / stored.path).resolve():
            raise HookError(
                f"vllm-overlay: {fullname} would be imported from {origin}, "
                f"expected {self.root / stored.path}; is the package on the path twice?"
            )
        try:
            present = sha256(Path(origin).read_bytes())
        except OSError as error:
            raise HookError(
                f"vllm-overlay: {origin} cannot be read ({error}); expected sha256 "
                f"{stored.pristine}; make it readable and restart",
                name=fullname,
                path=origin,
            ) from error
        if present != stored.pristine:
            raise HookError(
                f"vllm-overlay: {origin} has sha256 {present}, planned for {stored.pristine}; "
                "it changed after this process started; restart"
            )


def _wraps(loader: object) -> bool:
    """Whether a hook does something of its own around the execution, whoever executes.

    Such a hook is given our loader to wrap, if it asks for it; one that changes the text only is
    asked to change the patched text.
    """
    # By the loader itself, since it may be a proxy whose class has no such method.
    execute = getattr(loader, "exec_module", None)
    stock = importlib.machinery.SourceFileLoader.exec_module
    return execute is not None and getattr(execute, "__func__", execute) is not stock


#: Whatever another tool does to ``sys.meta_path``.
_installed: list[PatchFinder] = []


def imported(names: Iterable[str]) -> dict[str, str]:
    """The modules among ``names`` that were imported already -> who imported them, in words."""
    late = [name for name in names if name in sys.modules]
    if not late:
        return {}

    return {name: importers(name) for name in late}


def install(finder: PatchFinder) -> None:
    """Put ``finder`` before every other finder.

    :raises HookError: naming each target that was imported already, and who imported it.
    """
    late = imported(finder.modules)
    if late:
        raise HookError(
            "vllm-overlay: already imported, so they cannot be patched in memory: "
            + "; ".join(f"{name} (imported by {who})" for name, who in late.items())
            + ". Apply on disk instead (overlay apply), or load the plugin earlier."
        )
    sys.meta_path.insert(0, finder)
    _installed.append(finder)


def require_asked() -> None:
    """Say which planned modules were loaded without our finders, and stop for a required one.

    :raises HookError: for a required one.
    """
    for finder in _installed:
        finder.require_asked()


def uninstall(finders: list[Any]) -> None:
    """Remove every finder of the overlay from ``finders`` (``sys.meta_path``)."""
    _installed.clear()
    finders[:] = [
        finder for finder in finders if not isinstance(finder, (PatchFinder, WatchFinder))
    ]


def importers(name: str) -> str:
    """The modules that hold ``name`` or a part of it in a global, or whose text imports it.

    ``import a.b.c`` leaves only ``a`` behind, so those that hold that one are read.
    """
    target, top = sys.modules[name], sys.modules.get(name.partition(".")[0])
    holders = []
    for other, module in list(sys.modules.items()):
        if other == name or module is None or name.startswith(other + "."):
            continue
        module_globals = _globals(module)
        values = list(module_globals.values())
        if any(value is target or _home(value) == name for value in values) or (
            any(value is top for value in values) and _says(module_globals, name)
        ):
            holders.append(other)
    return ", ".join(sorted(holders)[:3]) or "nobody that still holds it"


def _globals(module: object) -> Mapping[str, object]:
    """What a module holds, without asking it: a lazy one would import what it names."""
    try:
        return dict(object.__getattribute__(module, "__dict__"))
    except AttributeError:  # sys.modules may hold anything
        return {}


def _home(value: object) -> str | None:
    """The module that defines a function or class; ``None`` for any other object."""
    kind = type(value)  # isinstance would ask the object for its class
    if kind is FunctionType:
        return cast("FunctionType", value).__module__
    if issubclass(kind, type):
        return cast("str | None", type.__getattribute__(cast("type", value), "__module__"))
    return None


def _says(module_globals: Mapping[str, object], name: str) -> bool:
    """Whether a module's file has ``import name``."""
    file = module_globals.get("__file__")
    if type(file) is not str:
        return False
    try:
        text = Path(file).read_bytes().decode(errors="replace")
    except OSError:  # in an archive, or gone: it is not told then
        return False
    statement = rf"(?:^|[:;])[ \t]*import[ \t]+(?:.*,[ \t]*)?{re.escape(name)}(?!\w)"
    return re.search(statement, text, re.MULTILINE) is not None


def planned_code(module: CodeType, scope: str) -> list[CodeType]:
    """The code objects that the qualified name ``scope`` names inside a module's code.

    A name may be defined more than once (a property and its setter); all are given.
    """
    return _inside([module], scope.split("."))


def _inside(level: list[CodeType], parts: list[str]) -> list[CodeType]:
    """The code objects that a path of names leads to, from those that hold them."""
    for part in parts:
        level = [
            constant
            for code in level
            for constant in code.co_consts
            if isinstance(constant, CodeType) and constant.co_name == part
        ]
    return level


def running_code(module: ModuleType, scope: str) -> list[CodeType]:
    """The code objects that ``scope`` resolves to in an executed module, decorators undone.

    The code of a function inside another one is a constant of the outer function's code, and no
    attribute of that function leads to it.
    """
    value: object = module
    parts = scope.split(".")
    for number, part in enumerate(parts):
        try:
            # Through __dict__, since a descriptor must not run here.
            value = vars(value)[part]
        except (KeyError, TypeError):
            if isinstance(value, (ModuleType, type)):
                return []
            return _inside(list(_codes(value)), parts[number:])
    return list(_codes(value))


def _codes(value: object, depth: int = 0) -> Iterable[CodeType]:
    if _value_at(value, "__class__") is None:  # isinstance would ask for it, too
        return
    code = _value_at(value, "__code__")
    if isinstance(code, CodeType):
        yield code
    if depth > 8:  # a decorator that wraps itself
        return
    if isinstance(value, property):
        inner: Iterable[object] = (value.fget, value.fset, value.fdel)
    elif isinstance(value, (classmethod, staticmethod)):
        inner = (value.__func__,)
    elif isinstance(value, (functools.partial, functools.partialmethod)):
        inner = (value.func,)
    else:
        inner = (
            _value_at(value, "__wrapped__"),
            _value_at(value, "fn"),
            *_closure_functions(value),
        )
    for each in inner:
        if each is not None and each is not value:
            yield from _codes(each, depth + 1)


def _closure_functions(value: object) -> list[object]:
    """What a decorator's function closes over: a plain one says nowhere else what it wraps."""
    functions = []
    cells = _value_at(value, "__closure__")
    for cell in cells if isinstance(cells, tuple) else ():
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if _value_at(content, "__code__") is not None:
            functions.append(content)
    return functions


def _value_at(value: object, name: str) -> object:
    """An attribute, ``None`` where there is none or the object fails when it is asked.

    A lazy one imports what it names, which need not be installed.
    """
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - any error of such an object; it shows no code, that is all
        return None


def compare(module: ModuleType, code: CodeType, scopes: Iterable[str]) -> dict[str, CodeState]:
    """Compare the running code with the planned code, scope by scope; a class by its methods.

    :returns: scope -> ``RUNS``, ``DIFFERS`` or ``UNSEEN``.
    """
    results = {}
    for scope in sorted(set(scopes)):
        if scope == "<module>":
            continue
        codes = planned_code(code, scope)
        methods = [name for body in codes for name in _functions(body)]
        if methods and _is_class(module, scope):
            states = {_compare(module, code, f"{scope}.{name}") for name in methods}
            results[scope] = next(state for state in CodeState if state in states)
        else:
            results[scope] = _compare(module, code, scope)
    return results


def _compare(module: ModuleType, code: CodeType, scope: str) -> CodeState:
    codes = planned_code(code, scope)
    running = running_code(module, scope)
    if not codes or not running:
        return CodeState.UNSEEN
    runs = any(each in codes for each in running)
    return CodeState.RUNS if runs else CodeState.DIFFERS


def _functions(body: CodeType) -> list[str]:
    """The names of the functions that a class's body defines."""
    return [
        constant.co_name
        for constant in body.co_consts
        if isinstance(constant, CodeType) and constant.co_name.isidentifier()
    ]


def _is_class(module: ModuleType, scope: str) -> bool:
    value: object = module
    for part in scope.split("."):
        value = vars(value).get(part) if hasattr(value, "__dict__") else None
    return isinstance(value, type)
