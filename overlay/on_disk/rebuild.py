"""Reconstruct a lost ledger from the patches and RECORD, where it can be proven; pure.

The patches are matched backwards: where undoing them gives a file whose hash the release's RECORD
lists, the overlay patched that file and nothing else changed it.  Nothing is guessed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from packaging.version import Version

import overlay
from overlay._features.model import Feature, Hunk, Patch, Topic, Variant
from overlay.errors import LedgerError
from overlay.on_disk.changes import Rebuilt
from overlay.on_disk.ledger import Entry, Ledger, copies, reinstall
from overlay.package import VLLM, Package, Tree
from overlay.planning.matching import removed_by
from overlay.planning.planner import plan
from overlay.results import Change, FileResult, Plan, State
from overlay.untrusted import sha256

#: By whether there was a ledger.
_NO_LEDGER = {
    True: "the overlay's ledger is lost",
    False: "no ledger says that the overlay was there",
}


def rebuild(
    features: Sequence[Feature],
    tree: Tree,
    release: Version | None,
    record: Mapping[str, str] | None,
    package: Package = VLLM,
    *,
    lost: bool = True,
    root: Path | None = None,
) -> Rebuilt:
    """Reconstruct the ledger that the target in ``tree`` should have.

    :param features: all that may have been applied, in their order.
    :param record: sha256 (hex) of the release's own files by path.
    :param package: the one that the target is.
    :param lost: whether there was a ledger, of which something is left.
    :param root: where pristine copies may be left: no patch tells the bytes of a removed file.
    :raises LedgerError: naming every file whose pristine bytes cannot be proven.
    """
    if record is None:
        rest = f", and remove the folder {package.state_folder} beside it" if lost else ""
        raise LedgerError(
            f"{_NO_LEDGER[lost]}, and no RECORD tells which bytes the release had. Nothing was "
            f"changed; restore {package.name}/ from where it came from (in a checkout: git "
            f"checkout -- {package.name}){rest}"
        )
    edited = _edited_modules(features, tree, record)
    changed = _changed(features, tree, record) | edited.keys()
    suspects = [feature for feature in features if changed & feature.patched_paths]
    undone = plan([_reversed(feature) for feature in reversed(suspects)], tree, release)
    added, foreign = _added(features, tree, record)
    foreign -= edited.keys()
    own = {**record, **edited}
    befores, unproven = _proven(undone.changes, changed, own)
    if unproven:
        befores, unproven = _proven(_undone_in_turn(suspects, tree, release), changed, own)
    for path in sorted(unproven):
        if root is not None and tree.read(path) is None:
            with suppress(LedgerError):
                befores[path] = copies(root, package)(record[path])
                unproven.discard(path)
    if unproven | foreign:
        raise LedgerError(_refusal(sorted(unproven | foreign), undone, release, package, lost))
    befores = {path: data for path, data in befores.items() if path not in edited}
    entries = [
        *(_entry(path, sha256(data), tree) for path, data in befores.items()),
        *(_entry(path, None, tree) for path in (*added, *edited)),
    ]
    ledger = Ledger(
        overlay=overlay.__version__,
        release="" if release is None else str(release),
        features=(),
        entries=tuple(sorted(entries)),
        folders=_folders([*added, *edited], record),
        record=None,
    )
    return Rebuilt(ledger, {sha256(data): data for data in befores.values()})


def _proven(
    changes: Iterable[Change], changed: Collection[str], own: Mapping[str, str]
) -> tuple[dict[str, bytes], set[str]]:
    """What changes leave of files, and the paths of those that are not as the release has them.

    :param changed: the files that are to be undone; :param own: the sha256 of each by its path.
    """
    befores = {change.path: change.after or b"" for change in changes}
    unproven = {path for path, data in befores.items() if own.get(path) != sha256(data)}
    return befores, unproven | {path for path in changed if path not in befores}


@dataclass
class Overlaid:
    """A tree with other bytes in some files; satisfies ``overlay.package.Tree``."""

    tree: Tree
    files: dict[str, bytes | None] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        """The other bytes of a file, or the tree's own."""
        return self.files[path] if path in self.files else self.tree.read(path)


def _undone_in_turn(
    features: Sequence[Feature], tree: Tree, release: Version | None
) -> list[Change]:
    """What is left of each file where features are taken out one by one, the last one first.

    Others may have changed what lies around the lines of one; so where its hunks are not found, its
    changes are, each with the line beside it, which no other feature changes.  RECORD proves it.
    """
    undoing = Overlaid(tree)
    for feature in reversed(features):
        backwards = _reversed(feature)
        for form in (backwards, _change_by_change(backwards)):
            undone = plan([form], undoing, release)
            if not undone.state.needs_attention:
                undoing.files |= {change.path: change.after for change in undone.changes}
                break
    return [Change(path, tree.read(path), data) for path, data in undoing.files.items()]


def _change_by_change(feature: Feature) -> Feature:
    """A feature whose hunks are as narrow as can be."""

    def narrow(variant: Variant) -> Variant:
        hunks = tuple(part for hunk in variant.patch.hunks for part in _changes_of(hunk))
        return variant._replace(patch=variant.patch._replace(hunks=hunks))

    topics = (
        topic._replace(variants=tuple(map(narrow, topic.variants))) for topic in feature.topics
    )
    return replace(feature, topics=tuple(topics))


def _changes_of(hunk: Hunk) -> Iterator[Hunk]:
    """A hunk for each change of one, with a line of context before it and behind it."""
    if hunk.whole is not None:
        yield hunk
        return
    ops = [op for op, _ in hunk.lines]
    changed = [at for at, op in enumerate(ops) if op != " "]
    begin = 0
    for at, following in pairwise([*changed, len(ops) + 3]):
        if following - at <= 2:
            continue  # nothing stands between them, or one line that would be of both
        first = next(place for place in changed if place >= begin)
        lines = hunk.lines[max(first - 1, begin) : at + 2]
        begin = at + 2
        last = at + 2 >= len(ops)
        yield hunk._replace(
            lines=lines,
            pre_unfinished=last and hunk.pre_unfinished,
            post_unfinished=last and hunk.post_unfinished,
        )


def _changed(features: Sequence[Feature], tree: Tree, record: Mapping[str, str]) -> set[str]:
    """Files that some feature patches and that differ from the release's own."""
    paths = {path for feature in features for path in feature.patched_paths}
    removed = {
        patch.path for feature in features for patch in feature.patches if removed_by(patch.hunks)
    }
    present = {path: tree.read(path) for path in paths if path in record}
    return {
        path
        for path, data in present.items()
        if (path in removed if data is None else sha256(data) != record[path])
    }


def _edited_modules(
    features: Sequence[Feature], tree: Tree, record: Mapping[str, str]
) -> dict[str, str]:
    """Added modules that a later feature patches, with the sha256 that they were added with."""
    patched = {path for feature in features for path in feature.patched_paths}
    modules: dict[str, str] = {}
    for feature in features:
        for module in feature.added:
            data = tree.read(module.path)
            if module.path in patched and data is not None and module.path not in record:
                modules[module.path] = sha256(module.content)
    return {
        path: digest for path, digest in modules.items() if sha256(tree.read(path) or b"") != digest
    }


def _added(
    features: Sequence[Feature], tree: Tree, record: Mapping[str, str]
) -> tuple[list[str], set[str]]:
    """Added modules with the bytes that a feature gives them, and those with other bytes."""
    ours: list[str] = []
    foreign: set[str] = set()
    for feature in features:
        for module in feature.added:
            data = tree.read(module.path)
            if data is None or module.path in record:
                continue
            if data == module.content:
                if module.path not in ours:  # two features may share a module
                    ours.append(module.path)
            else:
                foreign.add(module.path)
    return ours, foreign


def _reversed(feature: Feature) -> Feature:
    """Reverse the hunks of a feature; its added modules are judged by themselves."""
    return replace(
        feature,
        upstream_tests=(),
        topics=tuple(
            Topic(
                topic.name,
                tuple(
                    Variant(variant.releases, _reversed_patch(variant.patch))
                    for variant in topic.variants
                ),
            )
            for topic in reversed(feature.topics)
        ),
        added=(),
    )


def _reversed_patch(patch: Patch) -> Patch:
    return patch._replace(hunks=tuple(_reversed_hunk(hunk) for hunk in patch.hunks))


def _reversed_hunk(hunk: Hunk) -> Hunk:
    swapped = {"+": "-", "-": "+", " ": " "}
    return hunk._replace(
        lines=tuple((swapped[op], text) for op, text in hunk.lines),
        pre_unfinished=hunk.post_unfinished,
        post_unfinished=hunk.pre_unfinished,
        base_has=None,  # the lines that it puts back may be elsewhere too: RECORD proves the result
    )


def _entry(path: str, before: str | None, tree: Tree) -> Entry:
    data = tree.read(path)
    return Entry(path, before, None if data is None else sha256(data), 0o644, len(data or b""))


def _folders(added: Sequence[str], record: Mapping[str, str]) -> tuple[str, ...]:
    """Folders above added modules in which the release itself has nothing."""
    ways = [path.split("/") for path in added]
    above = {"/".join(way[:depth]) for way in ways for depth in range(2, len(way))}
    return tuple(
        sorted(
            folder for folder in above if not any(path.startswith(folder + "/") for path in record)
        )
    )


def _why_not(file: FileResult) -> list[str]:
    """Why patches do not come out of a file; what was never put in is upstream's to a plan."""
    if file.state is State.PARTIAL:
        there = sum(hunk.state is not State.UPSTREAMED for hunk in file.hunks)
        return [f"{there} of {len(file.hunks)} hunks are in it"]
    reasons = (file.reason, *(hunk.reason for hunk in file.hunks))
    return [reason.text for reason in reasons if reason]


def _refusal(
    paths: Sequence[str], undone: Plan, release: Version | None, package: Package, lost: bool
) -> str:
    # Their next steps are for whoever writes patches; here the last sentence says what to do.
    reasons = [
        text for result in undone.features for file in result.files for text in _why_not(file)
    ]
    because = f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
    other = "" if lost else " or in another way"
    return (
        f"{_NO_LEDGER[lost]}, and taking these patches out of {', '.join(paths)} does not give the "
        f"release's own files{because}: they were applied by another overlay{other}, or "
        "edited since. Nothing was changed; "
        f"{reinstall(None if release is None else str(release), package, state=lost)}"
    )
