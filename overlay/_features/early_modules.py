"""The modules that vLLM imports before it loads its plugins, which cannot be patched in memory.

``early-modules.json`` has them, by ranges of releases: what is reached by import statements that
run while a module is imported, from the modules that each kind of process is entered through
(``scripts/vllm_import_graph.py`` writes it, and a test compares it with the sources).  Following
the imports of a target takes seconds, and ``status`` may not; so the table is shipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from packaging.version import Version

from overlay.package import KNOWN_RELEASES, VLLM, ReleaseRange, is_module, module_name

if TYPE_CHECKING:
    from overlay._features.model import Feature
    from overlay.results import FeatureResult

TABLE = "early-modules.json"


@cache
def early_modules(release: Version | None) -> frozenset[str]:
    """The modules that a release of vLLM imports before it loads plugins.

    Of a release that is not known, those of the newest that is.
    """
    import json

    releases = {Version(text) for text in KNOWN_RELEASES}
    version = None if release is None else Version(release.base_version)
    if version is None or version not in releases:
        version = max(releases)
    table: Mapping[str, list[str]] = json.loads(
        files("overlay._features").joinpath(TABLE).read_text(encoding="utf-8")
    )
    return frozenset(
        module
        for span, modules in table.items()
        if version in ReleaseRange.parse(span, VLLM)
        for module in modules
    )


def early_among(paths: Iterable[str], release: Version | None) -> tuple[str, ...]:
    """Those modules of patched files that a release of vLLM imports too early, sorted."""
    ours = [path for path in paths if path.startswith(f"{VLLM.name}/") and is_module(path)]
    early = early_modules(release) if ours else frozenset()
    return tuple(sorted({module for path in ours if (module := module_name(path)) in early}))


def why_on_disk(modules: Sequence[str]) -> str:
    """Why what patches these modules cannot be patched in memory, and what to do.

    :param modules: at least one.
    """
    *first, last = modules
    names = f"{', '.join(first)} and {last}" if first else last
    return f"vLLM imports {names} before it loads plugins; apply it on disk"


def not_in_memory(
    results: Iterable[FeatureResult],
    features: Iterable[Feature],
    release: Version | None,
    package: str,
) -> dict[str, str]:
    """The features that cannot be patched in memory -> the reason.

    :param results: their state in a target of this release; :param package: its import name.
    """
    results, features = tuple(results), tuple(features)
    ids = {result.feature for result in results}
    reasons = {each.id: why for each in features if each.id in ids and (why := each.on_disk_reason)}
    if package == VLLM.name:
        late = too_early(results, features, release)
        reasons = {name: why_on_disk(modules) for name, modules in late.items()} | reasons
    return reasons


def too_early(
    results: Iterable[FeatureResult], features: Iterable[Feature], release: Version | None
) -> dict[str, tuple[str, ...]]:
    """The features that cannot be patched in memory -> their modules that are imported too early.

    None of the shipped ones is among them, which a test holds for every release.

    :param results: their state in a target of vLLM of this release.
    """
    own = {each.id for each in features if not each.shipped and each.package == VLLM}
    early = {
        result.feature: early_among((file.path for file in result.files), release)
        for result in results
        if result.feature in own
    }
    return {name: modules for name, modules in early.items() if modules}
