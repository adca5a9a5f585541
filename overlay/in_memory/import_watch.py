"""Call back when vLLM imports a module, and delegate lookups to later finders."""

from __future__ import annotations

import importlib.abc
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from overlay.errors import OverlayError
from overlay.in_memory import log as speech
from overlay.untrusted import printable


class _Asking(threading.local):
    """The modules that the overlay's finders are asking in this thread the other finders for.

    :ivar aside: those for which a finder of the overlay lets the others answer meanwhile.
    :ivar inside: those that it answers meanwhile -> for each such question, one inside the other,
        whether it was asked.
    """

    def __init__(self) -> None:
        self.aside: set[tuple[int, str]] = set()
        self.inside: dict[tuple[int, str], list[bool]] = {}


_asking = _Asking()


def next_spec(
    finder: importlib.abc.MetaPathFinder,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None,
) -> ModuleSpec | None:
    """What the finders after ``finder`` find.

    A finder among them may ask the whole import system in turn; ``finder`` then does not answer.
    """
    question = (id(finder), fullname)
    _asking.aside.add(question)
    try:
        return _ask(finder, fullname, path, target)
    finally:
        _asking.aside.discard(question)


def spec_around(
    finder: importlib.abc.MetaPathFinder,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None,
) -> ModuleSpec | None:
    """What the finders after ``finder`` put around what ``finder`` itself finds.

    :returns: ``None`` where none of them asks for that.
    """
    questions = _asking.inside.setdefault((id(finder), fullname), [])
    questions.append(False)
    try:
        spec = _ask(finder, fullname, path, target)
        return spec if questions[-1] else None
    finally:
        questions.pop()


def _ask(
    finder: importlib.abc.MetaPathFinder,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None,
) -> ModuleSpec | None:
    finders = list(sys.meta_path)
    after = finders[finders.index(finder) + 1 :] if finder in finders else finders
    for other in after:
        find_spec = getattr(other, "find_spec", None)
        spec = find_spec(fullname, path, target) if find_spec is not None else None
        if spec is not None:
            return spec  # type: ignore[no-any-return]  # any object may be a finder
    return None


def delegates(finder: importlib.abc.MetaPathFinder, fullname: str) -> bool:
    """Whether ``finder`` is being asked for what it is asking the others for."""
    return (id(finder), fullname) in _asking.aside


def answers(finder: importlib.abc.MetaPathFinder, fullname: str) -> None:
    """Note that ``finder`` gives what it found, to whoever asked."""
    if questions := _asking.inside.get((id(finder), fullname)):
        questions[-1] = True


class HookError(ImportError, OverlayError):
    """A module cannot be imported as planned; nothing of it stays in ``sys.modules``.

    Python prints it to a terminal or a log wherever the import is, and its text may name what
    strangers named: control characters are escaped.
    """

    def __init__(self, text: str, *, name: str | None = None, path: str | None = None) -> None:
        super().__init__(printable(text, lines=True), name=name, path=path)


class _WatchedLoader(importlib.abc.Loader):
    """A module's own loader, and a callback once the module was executed."""

    def __init__(self, inner: importlib.abc.Loader, after: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._after = after

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._after(module)


class WatchFinder(importlib.abc.MetaPathFinder):
    """Calls back when one module has been imported; changes nothing of it."""

    def __init__(self, name: str, after: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._after = after
        self._called = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the finders after this one give, for the watched module only."""
        if not self._called:
            self._catch_up()
        if fullname != self._name or delegates(self, fullname):
            return None
        spec = next_spec(self, fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WatchedLoader(spec.loader, self._call)
        return spec

    def _catch_up(self) -> None:
        # Another finder may have found it without asking this one.
        module = sys.modules.get(self._name)
        if module is not None and not getattr(
            getattr(module, "__spec__", None), "_initializing", False
        ):
            self._call(module)

    def _call(self, module: ModuleType) -> None:
        self._called = True
        self._after(module)


def when_imported(name: str, after: Callable[[ModuleType], None], lost: str | None = None) -> None:
    """Call ``after`` with the module ``name``: now, or as soon as it has been imported.

    :param lost: what is said, once, not to happen if ``after`` fails, as where a release of vLLM
        has another name for what it looks for; ``None`` if vLLM must not go on without.
    :raises HookError: if ``after`` fails and ``lost`` is ``None``; with its error as the cause.
    """

    def attempt(module: ModuleType) -> None:
        try:
            after(module)
        except HookError:
            raise
        except Exception as error:
            text = f"{name} is not as expected ({type(error).__name__}: {error})"
            if lost is None:
                raise HookError(
                    f"vllm-overlay: {text}, and what the overlay does to it is required here: "
                    "remove the requirement, or set OVERLAY=off",
                    name=name,
                ) from error
            speech.say([(logging.WARNING, f"vllm-overlay: {text}: {lost}")])

    module = sys.modules.get(name)
    if module is not None:
        attempt(module)
    else:
        sys.meta_path.insert(0, WatchFinder(name, attempt))
