"""vllm-overlay: source patches for an installed vLLM, applied by their anchors.

The functions of ``overlay.api`` are names of this package too: ``overlay.check()``,
``overlay.apply()``, ``overlay.revert()``, ``overlay.status()``, ``overlay.diff()``,
``overlay.features()``, ``overlay.processes()``, and the types of their answers.  They are imported
when they are asked for, because every process of vLLM imports this package at its start.  What a
type checker sees is in ``__init__.pyi``.
"""

import sys as _sys
from types import ModuleType as _Module

__version__ = "0.1.0"

#: The promise; the same as ``overlay.api.__all__``, by test.
__all__ = [
    "ApplyReport",
    "CheckReport",
    "Code",
    "DiffReport",
    "DoctorReport",
    "Feature",
    "FeatureResult",
    "FileResult",
    "HunkResult",
    "ListReport",
    "LiveProcess",
    "Notice",
    "Obstacle",
    "OverlayError",
    "PatchRefused",
    "ProcessesReport",
    "Reason",
    "Report",
    "RevertReport",
    "State",
    "StatusReport",
    "TargetReport",
    "UsageError",
    "apply",
    "check",
    "diff",
    "features",
    "processes",
    "revert",
    "status",
]


class _CallableRoom(_Module):
    """A package whose name is also that of a function of the API."""

    def __call__(self, *arguments: object, **options: object) -> object:
        return getattr(_api(), self.__name__.rpartition(".")[2])(*arguments, **options)


class _Overlay(_Module):
    """The package as a module.

    Two of its rooms share their names with functions, so they are callable.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("features", "processes") and type(value) is _Module:
            value.__class__ = _CallableRoom
        super().__setattr__(name, value)


def _api() -> _Module:
    from importlib import import_module

    return import_module("overlay.api")


def __getattr__(name: str) -> object:
    """A name of the API, imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("features", "processes"):
        from importlib import import_module

        return import_module(f"overlay.{name}")
    return getattr(_api(), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


_sys.modules[__name__].__class__ = _Overlay
