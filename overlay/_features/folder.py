"""Read a patches folder as features, checked and digested.

Layout: ``<feature>/feature.toml``, ``<feature>/NN-<topic>/<first>..<last>.patch`` and
``<feature>/files/<package>/...``; ``shared/files/<package>/...`` holds modules that features name.
Files that an editor or a file manager leaves are named and ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple

from packaging.version import Version

from overlay._features import sources
from overlay._features.feature_toml import NO_RELEASES, Document, read_document, read_fields
from overlay._features.model import SHIPPED, AddedFile, Feature, Hunk, Topic, UpstreamTest, Variant
from overlay._features.patch_file import parse_patch
from overlay._features.sources import (
    SHARED,
    ErrorList,
    is_document,
    left_behind,
    read_bytes,
    read_text,
    shared_module,
    source_of,
    stray,
)
from overlay.errors import (
    MAX_ERRORS,
    OverlayError,
    PatchFormatError,
    PatchFormatErrors,
    UsageError,
    bounded,
)
from overlay.package import VLLM, Package, ReleaseRange, file_problem, id_problem
from overlay.results import RUNNER_FILES, Notice

_TOPIC = re.compile(r"^\d\d-[a-z0-9]+(-[a-z0-9]+)*$")


def read_feature(folder: Path, patches: Path, origin: str, errors: ErrorList) -> Feature | None:
    """Read a feature.

    :param patches: the patches folder that it belongs to, which has the modules that it shares.
    :param origin: the name of that folder.
    :param errors: takes every malformed place.
    :returns: the feature, or ``None`` after errors.
    """
    before = len(errors)
    toml = folder / "feature.toml"
    document = read_document(toml, errors) if is_plain(toml, errors) else None
    feature = None if document is None else read_fields(document)
    package = VLLM if feature is None else feature.package
    notices: list[Notice] = []
    topics: list[Topic] = []
    added: list[AddedFile] = []
    for path in _entries(folder, notices):
        if path == toml or not is_plain(path, errors):
            continue
        if path.name == "files" and path.is_dir():
            added = _read_added(path, package, errors, notices)
        elif _TOPIC.match(path.name) and path.is_dir():
            topics.append(_read_topic(path, package, errors, notices))
        elif path.name == "origin" and path.is_dir():
            continue  # what was imported, kept for people and for a later import
        elif not (is_document(path) and path.is_file()):
            errors.add(
                path,
                "expected feature.toml, README.md, files/, origin/ or a topic's folder NN-<topic>/ "
                "(two digits, lower case, such as 01-proposer)",
            )
    if feature is not None and not (topics or added or feature.shared or feature.upstream_tests):
        errors.add(
            toml,
            "the feature does nothing: expected a topic, an added module or [[upstreamed]]; remove "
            "its folder where nothing of it is needed",
        )
    if document is None or feature is None or feature.releases is NO_RELEASES:
        return None
    topics = _with_tests(document, topics, feature.upstream_tests)
    added += _read_shared(document, feature.shared, patches, {module.path for module in added})
    _check_variants(folder, feature.releases, topics, added, errors)
    if len(errors) > before:
        return None
    feature = replace(
        feature,
        upstream_tests=tuple(test for test in feature.upstream_tests if not test.topic),
        topics=tuple(topics),
        added=tuple(sorted(added, key=lambda module: module.path)),
        origin=origin,
        source=source_of(folder, patches),
        notices=tuple(notices),
    )
    return replace(feature, digest=_digest(feature))


def is_plain(path: Path, errors: ErrorList) -> bool:
    """Whether it is a regular file or folder; a link or device could lead anywhere."""
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        errors.add(path, f"it cannot be read: {error.strerror}")
        return False
    if S_ISDIR(mode) or S_ISREG(mode):
        return True
    what = "a symbolic link" if path.is_symlink() else "a special file"
    errors.add(path, f"expected a plain file or folder, found {what}")
    return False


def ignored(path: Path) -> Notice:
    """The notice about a stray file."""
    return Notice(str(path), "ignored: an editor, a file manager or a patch tool left it there")


def _entries(folder: Path, notices: list[Notice]) -> list[Path]:
    """What lies in a folder, by name; what editors leave there is noticed and left out."""
    paths = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if left_behind(path.name):
            continue
        if stray(path.name):
            notices.append(ignored(path))
        else:
            paths.append(path)
    return paths


def _read_topic(folder: Path, package: Package, errors: ErrorList, notices: list[Notice]) -> Topic:
    variants: list[Variant] = []
    entries = _entries(folder, notices)
    for path in entries:
        if not is_plain(path, errors):
            continue
        variant = _read_variant(path, package, errors)
        if variant is not None:
            variants.append(variant)
    if not entries:
        errors.add(folder, "a topic without a patch; expected <first>..<last>.patch")
    return Topic(folder.name, tuple(sorted(variants, key=lambda variant: variant.releases)))


def _read_variant(path: Path, package: Package, errors: ErrorList) -> Variant | None:
    if path.is_dir() or path.suffix != ".patch":
        errors.add(path, "expected only <first>..<last>.patch files in a topic's folder")
        return None
    try:
        releases = ReleaseRange.parse(path.name[: -len(".patch")], package)
    except ValueError as error:
        errors.add(path, f"its name is not a range of releases: {error}")
        return None
    text = read_text(path, errors)
    if text is None:
        return None
    try:
        return Variant(releases, parse_patch(text, "/".join(path.parts[-3:]), package))
    except PatchFormatErrors as malformed:
        for at in malformed.errors:
            errors.add(path, at.problem, at.line)
        return None


def _read_added(
    folder: Path, package: Package, errors: ErrorList, notices: list[Notice]
) -> list[AddedFile]:
    added: list[AddedFile] = []
    pending = [folder]
    while pending:
        for path in _entries(pending.pop(), notices):
            if not is_plain(path, errors):
                continue
            if path.is_dir():
                pending.append(path)
                continue
            name = path.relative_to(folder).as_posix()
            problem = file_problem(name, package)
            if problem:
                errors.add(path, f"an added file's path {problem}")
                continue
            content = read_bytes(path, errors)
            if content is not None:
                added.append(AddedFile(name, content))
    return added


def _with_tests(
    document: Document, topics: Iterable[Topic], tests: Iterable[UpstreamTest]
) -> list[Topic]:
    """The topics, each with the tests that are about it; the errors take those about none."""
    about: dict[str, list[UpstreamTest]] = {topic.name: [] for topic in topics}
    for test in tests:
        if test.topic and test.topic not in about:
            names = ", ".join(about) or "none"
            problem = f"[[upstreamed]] topic: expected one of {names}, found {test.topic!r}"
            document.error("topic", problem)
        elif test.topic:
            about[test.topic].append(test)
    return [topic._replace(upstream_tests=tuple(about[topic.name])) for topic in topics]


def _read_shared(
    document: Document, paths: Iterable[str], patches: Path, own: Container[str]
) -> list[AddedFile]:
    """The shared modules that a feature names; its errors take those that it cannot add.

    :param own: the paths of the modules in its own folder.
    """
    modules: list[AddedFile] = []
    for path in paths:
        place, problem = patches / SHARED / "files" / path, "found none"
        try:
            content = shared_module(patches, path)
        except (OSError, ValueError) as error:
            content, problem = None, getattr(error, "strerror", None) or str(error)
        if path in own:
            document.error("shared", f"shared: {path} is in the feature's own files/, too")
        elif content is None:
            step = "lay it there, or take it out of the list"
            document.error("shared", f"shared: expected a module at {place}, {problem}; {step}")
        else:
            modules.append(AddedFile(path, content))
    return modules


def _check_variants(
    folder: Path,
    releases: ReleaseRange,
    topics: list[Topic],
    added: list[AddedFile],
    errors: ErrorList,
) -> None:
    """Check variants against each other, the feature's range and its added modules."""
    added_paths = {file.path for file in added}
    _expect_apart(folder, added_paths | {v.patch.path for t in topics for v in t.variants}, errors)
    for topic in topics:
        for variant in topic.variants:
            path = folder.parent / variant.patch.name
            if variant.patch.path in added_paths:
                errors.add(path, f"it patches {variant.patch.path}, which the feature adds")
            if variant.releases.first < releases.first or variant.releases.last > releases.last:
                errors.add(path, f"its range leaves the feature's, {releases}")
        for before, after in pairwise(topic.variants):
            if before.releases.overlaps(after.releases):
                errors.add(
                    folder.parent / after.patch.name,
                    f"its range overlaps that of {before.patch.name}; a release has one variant of "
                    "a topic",
                )


def _expect_apart(folder: Path, paths: Iterable[str], errors: ErrorList) -> None:
    """Refuse paths that are one file where names have no case."""
    spellings: dict[str, str] = {}
    for path in sorted(paths):
        other = spellings.setdefault(path.casefold(), path)
        if other != path:
            errors.add(folder, f"{other} and {path} are one file where file names have no case")


def _digest(feature: Feature) -> str:
    """A hash over what the feature does; titles, headers and line numbers do nothing."""
    own = [path for path in feature.obsolete_without if path not in RUNNER_FILES.values()]
    does = {
        "id": feature.id,
        # Where it is the one that every feature once had, digests stay as they were.
        **({} if feature.package == VLLM else {"package": feature.package.name}),
        "releases": str(feature.releases),
        "upstreamed": [_plain(test) for test in feature.upstream_tests],
        # Likewise.
        **({"builds": [each._asdict() for each in feature.builds]} if feature.builds else {}),
        # Likewise; the file of its model runner is implied.
        **({"obsolete_without": own} if own else {}),
        "merged": None if feature.merged is None else str(feature.merged),
        "topics": [
            {
                "name": topic.name,
                **({"upstreamed": tests} if (tests := topic.upstream_tests) else {}),
                "variants": [
                    {
                        "releases": str(variant.releases),
                        "path": variant.patch.path,
                        "hunks": [essence(hunk) for hunk in variant.patch.hunks],
                        **({"retired": True} if variant.patch.retired else {}),
                    }
                    for variant in topic.variants
                ],
            }
            for topic in feature.topics
        ],
        "added": [
            [added.path, hashlib.sha256(added.content).hexdigest()] for added in feature.added
        ],
    }
    return hashlib.sha256(json.dumps(does, sort_keys=True).encode()).hexdigest()


def _plain(test: UpstreamTest) -> dict[str, object]:
    return {name: value for name, value in test._asdict().items() if name != "topic"}


def essence(hunk: Hunk) -> list[object]:
    """What decides where a hunk lands and what it leaves."""
    if hunk.whole is not None:
        before, after = hunk.whole
        return [hunk.scope, before, None if after is None else hashlib.sha256(after).hexdigest()]
    return [hunk.scope, hunk.lines, hunk.pre_unfinished, hunk.post_unfinished, hunk.base_has]


class Hole(NamedTuple):
    """A release inside a feature's range for which one of its topics has no variant."""

    topic: str
    release: str

    def __str__(self) -> str:
        return f"{self.topic} has no variant for {self.release}"


class Malformed(NamedTuple):
    """A feature, or something else in a patches folder, that could not be read.

    :ivar id: the name of its folder, which a well-formed feature has as its id.
    :ivar errors: everything that is wrong with it; at least one.
    :ivar required: whether its feature.toml, as far as it can be read, says that vLLM must not
        start without it.
    """

    id: str
    errors: tuple[PatchFormatError, ...]
    required: bool


class Loaded(NamedTuple):
    """What patches folders hold, folder by folder, by id within each.

    :ivar features: those that could be read; :ivar malformed: those that could not.
    """

    features: tuple[Feature, ...]
    malformed: tuple[Malformed, ...]


def load(folders: Sequence[Path]) -> tuple[Feature, ...]:
    """Read the features of patches folders, all or none.

    :raises UsageError: if a folder is not there or cannot be read.
    :raises PatchFormatErrors: with everything that is malformed in any of them.
    """
    loaded = load_all(folders)
    errors = [error for malformed in loaded.malformed for error in malformed.errors]
    if errors:
        raise PatchFormatErrors(errors)
    return loaded.features


def load_each(folders: Sequence[Path], chosen_ids: Container[str] = ()) -> tuple[Feature, ...]:
    """Read the features of patches folders; what is malformed leaves itself out and nothing else.

    :param chosen_ids: the ids that the user named: one of these that is malformed is an error.
    :returns: the features, and for each that is malformed one that says so (``malformed``).
    :raises UsageError: if a folder is not there or cannot be read.
    :raises PatchFormatErrors: for what is named, and for a folder in which nothing is a feature.
    """
    loaded = load_all(folders)
    empty = [str(folder) for folder in folders if not sources.feature_documents(folder)]
    refused = [
        error
        for each in loaded.malformed
        for error in each.errors
        if each.id in chosen_ids or any(_lies_in(error, folder) for folder in empty)
    ]
    if refused:
        raise PatchFormatErrors(refused)
    ids = {feature.id for feature in loaded.features}
    return (*loaded.features, *(_left_out(each, ids) for each in loaded.malformed))


def _lies_in(error: PatchFormatError, folder: str) -> bool:
    return error.file == folder or error.file.startswith(folder.rstrip(os.sep) + os.sep)


def _left_out(malformed: Malformed, ids: Container[str]) -> Feature:
    """What stands for a malformed feature; where its id is another one's, its place is its id."""
    problems = tuple(str(error) for error in malformed.errors[:MAX_ERRORS])
    usable = id_problem(malformed.id) is None and malformed.id not in ids
    return Feature(
        malformed.id if usable else bounded(malformed.errors[0].file),
        "its files cannot be used",
        *("", ""),
        NO_RELEASES,
        *((), (), ()),
        origin="",
        digest="",
        required=malformed.required,
        malformed=problems,
    )


def load_all(folders: Sequence[Path], *, private: bool = False) -> Loaded:
    """Read the features of patches folders, each one for itself.

    A folder that is named twice, by other paths perhaps, is one folder.  Of features with the same
    id the first is read, and the others are malformed.

    :param private: whether to refuse all features of a folder that somebody else could have
        written (other than the shipped one); otherwise that is one of the first one's notices.
    :raises UsageError: if a folder is not there or cannot be read.
    """
    features: list[Feature] = []
    malformed: list[Malformed] = []
    places: dict[str, Path] = {}
    for folder in _once(folders):
        try:
            for entry in _read_folder(folder, private):
                if isinstance(entry, Malformed):
                    malformed.append(entry)
                    continue
                place = folder / entry.id
                first = places.setdefault(entry.id, place)
                if first == place:
                    features.append(entry)
                else:
                    malformed.append(_defined_twice(entry, place, first))
        except OSError as error:
            raise UsageError(f"cannot read the features in {folder}: {error}") from error
    return Loaded(tuple(features), tuple(malformed))


def holes(feature: Feature, releases: Iterable[str] | None = None) -> tuple[Hole, ...]:
    """The releases inside the feature's range for which a topic has no variant, in order.

    :param releases: those that are asked about; default: those of its package that are known.
    """
    every = feature.package.releases if releases is None else releases
    inside = [text for text in every if Version(text) in feature.releases]
    return tuple(
        Hole(topic.name, text)
        for topic in feature.topics
        for text in inside
        if not any(Version(text) in variant.releases for variant in topic.variants)
    )


def _read_folder(folder: Path, private: bool) -> Iterator[Feature | Malformed]:
    """Each feature of one patches folder, and whatever else lies in it unused."""
    if not folder.is_dir():
        raise UsageError(
            f"expected a folder of features at {folder}, found "
            f"{'no folder' if folder.exists() else 'nothing'}; name one with --patches DIR"
        )
    origin = _origin(folder)
    problem = None if origin == SHIPPED else sources.owner_problem(folder)
    notices = [] if problem is None else [_open_to_others(folder, problem)]
    notices += [
        ignored(path)
        for name, path in sources.entries(folder).items()
        if sources.stray(name) and not name.startswith(".")
    ]
    for _, path in sources.feature_paths(folder):
        if problem is not None and private:
            refused = PatchFormatError(str(path), None, f"it was not read: {problem}")
            yield Malformed(path.name, (refused,), required=False)
            continue
        errors = sources.ErrorList()
        feature = None
        if _is_feature(path, errors):
            feature = read_feature(path, folder, origin, errors)
        if feature is None:
            yield Malformed(path.name, tuple(errors), sources.is_required(path))
        else:
            yield replace(feature, notices=(*notices, *feature.notices))
            notices = []


def _open_to_others(folder: Path, problem: str) -> Notice:
    return Notice(
        str(folder),
        f"somebody else could have written these patches: {problem}. The plugin does not read "
        "them; correct the owner or the mode",
    )


def _is_feature(path: Path, errors: sources.ErrorList) -> bool:
    """Whether it is a feature's folder; anything that would be silently unused is an error."""
    if not is_plain(path, errors):
        return False
    if not path.is_dir():
        errors.add(path, "expected only folders of features here")
        return False
    if path.name == sources.SHARED:
        for place in sources.misplaced(path):
            errors.add(
                place,
                "expected only files/ in the folder of modules that features share; a feature "
                "needs another id than shared, and a folder of that name",
            )
        return False
    if not os.path.lexists(path / "feature.toml"):
        errors.add(path, "expected a feature.toml in it, found none")
        return False
    return True


def _defined_twice(feature: Feature, path: Path, first: Path) -> Malformed:
    error = PatchFormatError(
        str(path),
        None,
        f"the feature {feature.id} is already defined by {first}; give one of them another id",
    )
    return Malformed(feature.id, (error,), feature.required)


def _once(folders: Iterable[Path]) -> Iterable[Path]:
    """The folders without those that were there by another path, in their order."""
    places: dict[str, Path] = {}
    for folder in folders:
        places.setdefault(os.path.realpath(folder), Path(folder))
    return places.values()


def _origin(folder: Path) -> str:
    """Origin recorded in the ledger; absolute, since later commands may run in another folder."""
    place = os.path.abspath(folder)
    try:
        shipped = sources.shipped_folder()
    except OverlayError:
        return place
    return SHIPPED if os.path.realpath(folder) == os.path.realpath(shipped) else place
