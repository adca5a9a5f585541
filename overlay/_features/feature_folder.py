"""Read one feature's folder: its ``feature.toml``, topics and added modules."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Container, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from overlay._features.feature_toml import NO_RELEASES, Document, read_document, read_fields
from overlay._features.model import AddedFile, Feature, Hunk, Topic, UpstreamTest, Variant
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
from overlay.errors import PatchFormatErrors
from overlay.package import VLLM, Package, ReleaseRange, file_problem
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
