"""vllm-overlay: source patches for an installed vLLM, applied by their anchors.

The functions of ``overlay.api`` are names of this package too: ``overlay.check()``,
``overlay.apply()``, ``overlay.revert()``, ``overlay.status()``, ``overlay.diff()``,
``overlay.features()``, ``overlay.processes()``, and the types of their answers.  They are imported
when they are asked for, because every process of vLLM imports this package at its start.  What a
type checker sees is in ``__init__.pyi``.
"""

__version__ = "0.2.0"

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


def __getattr__(name: str) -> object:
    """A name of the API, imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("overlay.api"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
