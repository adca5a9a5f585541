"""From features and a pristine vLLM to a verified cache entry: what the import hook serves.

The plan is kept in the entry beside the patched texts, so that a warm process reads and hashes a
handful of files and parses nothing.  In a process without an entry ``Plans`` reads the features
once, and plans once what can be told from one plan.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import overlay
from overlay import _processes
from overlay._features.sources import fingerprint, owner_problem, patches_folders
from overlay.cache import cache_folder
from overlay.errors import OverlayError, TargetError
from overlay.in_memory import NOT_ASKED, FeatureDecision
from overlay.in_memory import module_cache as store
from overlay.package import VLLM, is_module, module_name
from overlay.results import State
from overlay.settings import require_known
from overlay.untrusted import read_regular, sha256

if TYPE_CHECKING:
    from overlay._features.folder import Loaded, Malformed
    from overlay._features.model import Feature
    from overlay.package import Tree
    from overlay.planning.scopes import Syntax
    from overlay.results import FeatureResult, Plan
    from overlay.settings import Switches
    from overlay.targets import Target


@dataclass(frozen=True)
class PreparedModules:
    """A verified entry, and the plan that it was made from.

    :ivar features: those in its modules are active.
    :ivar scopes: module name -> scopes whose code the plan changes.
    """

    entry: store.CacheEntry
    features: tuple[FeatureDecision, ...]
    scopes: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...]


class Plans:
    """The plans of one process for one vLLM; features are read, and texts parsed, only once."""

    def __init__(self, target: Target, switches: Switches) -> None:
        self.target, self.switches = target, switches
        self.tree = Recording(target)

    @cached_property
    def loaded(self) -> Loaded:
        """Every feature at hand, and those that cannot be used.

        :raises UsageError: if ``OVERLAY_FEATURES`` names a feature that does not exist.
        """
        from overlay._features.folder import load_all

        loaded = load_all(patches_folders(self.switches), private=True)
        ids = [feature.id for feature in loaded.features]
        require_known(self.switches, [*ids, *(malformed.id for malformed in loaded.malformed)])
        return loaded

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """Every feature at hand that is for the package of the target."""
        from overlay._features.model import of_package

        return tuple(of_package(self.loaded.features, self.target.package))

    @cached_property
    def allowed_features(self) -> tuple[Feature, ...]:
        """The features that ``OVERLAY_FEATURES`` allows."""
        return tuple(each for each in self.features if self.switches.allows(each.id))

    @cached_property
    def of_asked(self) -> Plan:
        """The plan of the features that are asked for."""
        return self._plan(self.allowed_features)

    def of_chosen(self, features: Sequence[Feature]) -> Plan:
        """The plan of some of the features that are asked for.

        Where the others change nothing, the plan of all of them tells it.
        """
        from overlay._features.model import paths_of

        ids = {feature.id for feature in features}
        idle = (State.UPSTREAMED, State.INAPPLICABLE)
        if any(
            each.state not in idle for each in self.of_asked.features if each.feature not in ids
        ):
            return self._plan(features)
        own, paths = {notice for each in features for notice in each.notices}, {*paths_of(features)}
        return self.of_asked._replace(
            features=tuple(each for each in self.of_asked.features if each.feature in ids),
            notices=tuple(
                notice for notice in self.of_asked.notices if notice in own or notice.path in paths
            ),
        )

    def results(self) -> dict[str, FeatureResult]:
        """The result of each feature; those not asked for are planned to be reported."""
        results = {result.feature: result for result in self.of_asked.features}
        if len(self.allowed_features) == len(self.features):
            return results
        every = self._plan(self.features)
        return {result.feature: result for result in every.features} | results

    def _plan(self, features: Sequence[Feature]) -> Plan:
        from overlay.planning.planner import plan

        release, record = self.target.release, self.target.record
        return plan(features, self.tree, release, record, self._syntax)

    @cached_property
    def _syntax(self) -> Syntax:
        from overlay.planning.scopes import Syntax

        return Syntax()


def prepare(plans: Plans, left_out: Iterable[str] = ()) -> PreparedModules:
    """The entry for this vLLM and this patch set, made where there is none.

    :param plans: gives the plan from which a missing entry is made.
    :param left_out: ids of features that must not be in it.
    :raises StoreError: if there is no place where it could be kept.
    :raises UsageError: if ``OVERLAY_FEATURES`` names a feature that does not exist.
    """
    entry, warnings = _entry(plans, frozenset(left_out))
    features = tuple(
        FeatureDecision(
            **{
                **row,
                "state": State(row["state"]),
                "modules": tuple(row["modules"]),
                "places": tuple((path, scope) for path, scope in row["places"]),
            }
        )
        for row in entry.rows("features")
    )
    scopes = {str(row["module"]): tuple(row["scopes"]) for row in entry.rows("scopes")}
    plan_warnings = tuple(str(warning) for warning in entry.rows("warnings"))
    return PreparedModules(entry, features, scopes, (*warnings, *plan_warnings))


def _entry(plans: Plans, without: frozenset[str]) -> tuple[store.CacheEntry, tuple[str, ...]]:
    target, switches = plans.target, plans.switches
    package = target.package
    referenced = ReferencedPaths(package.name)
    patch_set = fingerprint((str(folder) for folder in patches_folders(switches)), referenced.scan)
    pristine = referenced.hashes(target)
    key = store.entry_key(
        overlay.__version__,
        *_build(os.path.dirname(overlay.__file__)),  # another build may plan by other rules
        str(target.root),
        target.vllm or "",
        str(switches.untested),
        "every feature" if switches.features is None else ",".join(sorted(switches.features)),
        *sorted(without),
        patch_set,
        *(owner_problem(folder) or "" for folder in switches.patches),
        json.dumps(pristine, sort_keys=True),
        *(() if package == VLLM else (package.name,)),
    )
    warnings: list[str] = []
    for place in _places():
        cache = store.Store(place)
        try:
            entry = cache.load(key)
            if entry is not None and _fits(entry, pristine, target):
                return entry, tuple(warnings)
            if entry is not None:  # a file that the key does not cover has changed
                cache.discard(key)
        except store.StoreError as error:
            warnings.append(f"{error}; the entry was made again")
            with contextlib.suppress(OSError):
                cache.discard(key)
        try:
            texts, facts = _planned_entry(plans, without)
            return cache.save(key, texts, facts), tuple(warnings)
        except (OSError, store.StoreError) as error:
            warnings.append(f"the cache at {place} cannot be used ({error})")
    raise store.StoreError(
        "no place for patched modules can be written: "
        + "; ".join(warnings)
        + "; set OVERLAY_CACHE to a folder of your own, or patch on disk with `overlay apply`"
    )


def _build(folder: str) -> tuple[str, str]:
    """The folder of the overlay's modules, and which they are: two builds may have one version.

    An installation's RECORD has the hash of each; in a checkout, sizes and times tell, as for
    Python's bytecode.
    """
    information = f"vllm_overlay-{overlay.__version__}.dist-info"
    try:
        record = read_regular(os.path.join(os.path.dirname(folder), information, "RECORD"))
    except (OSError, OverlayError):
        record = None
    if record is None:
        stamps = [
            (os.path.relpath(place, folder), name, state.st_size, state.st_mtime_ns)
            for place, _, names in sorted(os.walk(folder))
            for name in sorted(names)
            if name.endswith(".py")
            for state in (os.stat(os.path.join(place, name)),)
        ]
        record = repr(stamps).encode()
    return os.path.realpath(folder), sha256(record)


def _places() -> Iterable[Path]:
    """The folders in which the store may lie: the user's cache, else a private temporary folder.

    The last one lasts as long as this process does.
    """
    yield cache_folder() / "modules"
    for folder in _processes.usable():  # the user's own, and found again by the next process
        yield folder / "modules"
    with contextlib.suppress(OSError):
        place = tempfile.mkdtemp(prefix=f"vllm-overlay-{os.geteuid()}-")
        atexit.register(_remove, place, os.getpid())
        yield Path(place) / "modules"


def _remove(place: str, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        shutil.rmtree(place, ignore_errors=True)


def _fits(entry: store.CacheEntry, pristine: Mapping[str, str | None], target: Target) -> bool:
    sources = entry.facts.get("read")
    return isinstance(sources, dict) and as_it_stands(sources, pristine, target)


def _planned_entry(
    plans: Plans, without: frozenset[str]
) -> tuple[dict[str, tuple[bytes, str | None]], dict[str, object]]:
    """What ``module_cache.Store.save`` takes: the patched texts, and the facts of the plan."""
    selection = _choose(plans.allowed_features, plans.of_asked, plans.switches, without)
    # What needs attention is left out as a whole; the rest is planned without it.
    final = plans.of_chosen(selection)
    on_what_is_left_out: set[str] = set()
    while final.state.needs_attention:
        misfits = {each.feature for each in final.features if each.state.needs_attention}
        on_what_is_left_out |= misfits
        selection = tuple(feature for feature in selection if feature.id not in misfits)
        final = plans.of_chosen(selection)
    results = plans.results()
    rows = [
        _describe(
            feature,
            results[feature.id],
            feature in selection,
            feature in plans.allowed_features,
            _ON_LEFT_OUT if feature.id in on_what_is_left_out else feature.on_disk_reason,
        )._asdict()
        for feature in plans.features
    ]
    if plans.target.package == VLLM:  # whichever package they are for, they are told of once
        rows += [
            _describe_malformed(malformed, plans.switches.allows(malformed.id))._asdict()
            for malformed in plans.loaded.malformed
        ]
    texts = {
        change.path: (change.after, None if change.before is None else sha256(change.before))
        for change in final.changes
        if change.after is not None
    }
    facts: dict[str, object] = {
        "features": rows,
        "read": dict(plans.tree.read_so_far),
        "scopes": _scopes(final),
        "warnings": [str(notice) for notice in final.notices],
    }
    return texts, facts


#: Why a feature is left out that fits where all features are.
_ON_LEFT_OUT = "it is made on a feature that is left out of memory; apply both on disk"


def _describe(
    feature: Feature, result: FeatureResult, included: bool, allowed: bool, reason: str | None
) -> FeatureDecision:
    """A row of the entry.

    :param reason: why the feature is left out although it fits, where that is so.
    """
    why = "\n".join(_reasons(result)) or None
    if result.untested and not included:
        why = "this release is untested; OVERLAY_UNTESTED=on allows it"
    elif not included and result.state is State.PRISTINE:
        why = reason or why
    if not allowed:
        why = NOT_ASKED
    return FeatureDecision(
        id=feature.id,
        digest=feature.digest,
        state=result.state,
        active=included,
        why=why,
        allowed=allowed,
        places=result.places,
        modules=tuple(
            sorted({module_name(file.path) for file in result.files if is_module(file.path)})
        ),
    )


def _describe_malformed(malformed: Malformed, allowed: bool) -> FeatureDecision:
    why = "\n".join(["its files cannot be used:", *map(str, malformed.errors)])
    return FeatureDecision(
        malformed.id, "", State.MISSING, False, why if allowed else NOT_ASKED, allowed
    )


def _reasons(result: FeatureResult) -> Iterable[str]:
    """What the user should know about a feature, and everything that prevents it."""
    from overlay.report.model import TargetReport
    from overlay.report.problems import problems

    if result.reason:
        yield str(result.reason)
    report = TargetReport("", None, None, (result,))
    for problem in problems(report):
        for place in problem.places:
            where = place.path if place.scope is None else f"{place.path}, {place.scope}"
            yield f"{where}: {problem.reason.text}"
        if problem.places:
            continue
        if result.reason is None or problem.reason.text != result.reason.text:
            yield problem.reason.text


def _choose(
    features: Iterable[Feature], first: Plan, switches: Switches, without: frozenset[str]
) -> tuple[Feature, ...]:
    fitting = {
        result.feature
        for result in first.features
        if result.state is State.PRISTINE and (switches.untested or not result.untested)
    }
    return tuple(
        feature
        for feature in features
        if feature.id in fitting - without and feature.on_disk_reason is None
    )


def _scopes(plan: Plan) -> list[dict[str, object]]:
    scopes: dict[str, set[str]] = {}
    for feature in plan.features:
        for file in feature.files:
            scopes.setdefault(module_name(file.path), set()).update(
                hunk.scope for hunk in file.hunks
            )
    return [{"module": name, "scopes": sorted(names)} for name, names in sorted(scopes.items())]


class ReferencedPaths:
    """The paths of a package that features name, read off their files without parsing them.

    A path in an unusual form is not seen; ``Recording`` sees it when the plan reads the file.

    :param package: its import name.
    """

    def __init__(self, package: str) -> None:
        self.paths: set[str] = set()
        # No data classes, and nothing compiled ahead: a process without features pays for it, too.
        self._patched = rf"(?m)^\+\+\+ (?:b/)?({package}/[^\t\r\n]+)".encode()
        self._tested = rf"""["']({package}/[^"'\r\n]+)["']""".encode()
        self._added = rf"(?:^|/)files/({package}/.+)$"

    def scan(self, name: str, data: bytes) -> None:
        """Look at one file of a patches folder."""
        if name.endswith(".patch"):
            self._add(re.findall(self._patched, data))
        elif name.endswith("feature.toml"):
            self._add(re.findall(self._tested, data))
        elif added := re.search(self._added, name):
            self.paths.add(added[1])

    def _add(self, paths: Iterable[bytes]) -> None:
        self.paths.update(path.decode(errors="replace") for path in paths)

    def hashes(self, target: Target) -> dict[str, str | None]:
        """The sha256 of each of those files as it is now, ``None`` where there is none."""
        return {path: _hash(target, path) for path in sorted(self.paths)}


def _hash(target: Target, path: str) -> str | None:
    try:
        data = target.read(path)
    except TargetError as error:  # a plan that needs the file raises it again
        return f"cannot be read: {error}"
    return None if data is None else sha256(data)


class Recording:
    """A tree that remembers the sha256 of what was read of it, ``None`` for what is not there."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.read_so_far: dict[str, str | None] = {}

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, as the tree has them."""
        data = self._tree.read(path)
        self.read_so_far[path] = None if data is None else sha256(data)
        return data


def as_it_stands(
    recorded: Mapping[str, str | None], recent: Mapping[str, str | None], target: Target
) -> bool:
    """Whether the files that a plan has read are still what they were.

    :param recent: hashes of a moment ago; of a path that is not among them the file is read.
    """
    for path, expected in recorded.items():
        if (recent[path] if path in recent else _hash(target, path)) != expected:
            return False
    return True
