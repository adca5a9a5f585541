"""One feature's folder: its ``feature.toml``, topics and added modules, read and checked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from overlay.errors import PatchFormatError, PatchFormatErrors
from overlay.features.model import MODULE_SCOPE, AddedFile, Feature, Topic, UpstreamTest, Variant
from overlay.features.patch_file import parse_patch
from overlay.features.sources import fingerprint, left_behind
from overlay.features.switches import read_model_runner, read_switches
from overlay.package import ReleaseRange, path_problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_ID = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")

_TOPIC = re.compile(r"^\d\d-[a-z0-9]+(-[a-z0-9]+)*$")

_DOCUMENTS = ("README", "LICENSE", "NOTICE", "CHANGELOG")

_TEXTS = ("id", "title", "why", "upstream", "releases")

_KEYS = (*_TEXTS, "upstreamed", "needs", "required", "switches", "model_runner")

_TEST_KEYS = ("path", "scope", "contains")


def read_feature(folder: Path, origin: str, errors: list[PatchFormatError]) -> Feature | None:
    """Read a feature.

    :param origin: the name of the patches folder that holds it.
    :param errors: takes every malformed place.
    :returns: the feature, or ``None`` after errors.
    """
    return _FeatureReader(folder, origin, errors).read()


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, by name, without what Python and the usual tools leave behind."""
    return sorted(
        (path for path in folder.iterdir() if not left_behind(path.name)),
        key=lambda path: path.name,
    )


def is_document(path: Path) -> bool:
    """Whether it is a text for people, which may lie beside a feature."""
    return path.name.split(".")[0] in _DOCUMENTS and path.suffix in ("", ".md", ".txt", ".rst")


def is_plain(path: Path, errors: list[PatchFormatError]) -> bool:
    """Whether it is a regular file or folder; a link or device could lead anywhere."""
    mode = os.lstat(path).st_mode
    if S_ISDIR(mode) or S_ISREG(mode):
        return True
    what = "a symbolic link" if path.is_symlink() else "a special file"
    errors.append(
        PatchFormatError(str(path), None, f"expected a plain file or folder, found {what}")
    )
    return False


class _FeatureReader:
    """Reads one feature's folder, collecting errors."""

    def __init__(self, folder: Path, origin: str, errors: list[PatchFormatError]) -> None:
        self.folder, self.origin, self.errors = folder, origin, errors
        self.toml_path = folder / "feature.toml"
        self.toml_text = ""

    def error(self, path: Path, problem: str, line: int | None = None) -> None:
        """Note an error."""
        self.errors.append(PatchFormatError(str(path), line, problem))

    def read(self) -> Feature | None:
        """The feature, or ``None`` after errors."""
        known = len(self.errors)
        table = self._read_toml()
        topics: list[Topic] = []
        added: list[AddedFile] = []
        for path in entries(self.folder):
            if path == self.toml_path or not is_plain(path, self.errors):
                continue
            if path.name == "files" and path.is_dir():
                added = self._read_added(path)
            elif _TOPIC.match(path.name) and path.is_dir():
                topics.append(self._read_topic(path))
            elif not (is_document(path) and path.is_file()):
                self.error(
                    path,
                    "expected feature.toml, README.md, files/ or a topic's folder NN-<topic>/ "
                    "(two digits, lower case, such as 01-proposer)",
                )
        feature = self._build(table, tuple(topics), tuple(added))
        if feature is None or len(self.errors) > known:
            return None
        return replace(feature, source=fingerprint([str(self.folder)]))

    # feature.toml

    def _read_toml(self) -> dict[str, Any]:
        if not is_plain(self.toml_path, self.errors):
            return {}
        text = self._read_text(self.toml_path)
        if text is None:
            return {}
        self.toml_text = text
        try:
            table: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"at line (\d+)", str(error))
            self.error(self.toml_path, f"no TOML: {error}", int(place[1]) if place else None)
            return {}
        return table

    def _line_of(self, key: str) -> int | None:
        pattern = re.compile(rf"^\s*(\[\[?\s*)?[\"']?{re.escape(key)}[\"']?\s*[=\]]")
        lines = self.toml_text.split("\n")
        return next((i for i, line in enumerate(lines, 1) if pattern.match(line)), None)

    def _toml_error(self, key: str, problem: str) -> None:
        self.error(self.toml_path, problem, self._line_of(key))

    def _build(
        self, table: dict[str, Any], topics: tuple[Topic, ...], added: tuple[AddedFile, ...]
    ) -> Feature | None:
        if not table:
            if not any(error.file == str(self.toml_path) for error in self.errors):
                self.error(self.toml_path, f"it is empty; expected {', '.join(_TEXTS)}")
            return None
        for key in table:
            if key not in _KEYS:
                self._toml_error(key, f"unknown key {key!r}; known are {', '.join(_KEYS)}")
        texts = {key: self._text(table, key) for key in _TEXTS}
        releases = self._releases(texts["releases"])
        tests = self._tests(table.get("upstreamed", []))
        if texts["id"] and not _ID.match(texts["id"]):
            self._toml_error("id", f"id: {texts['id']!r} is not lower-case-with-hyphens")
        elif texts["id"] and texts["id"] != self.folder.name:
            self._toml_error(
                "id", f"id: expected the folder's name, {self.folder.name!r}, found {texts['id']!r}"
            )
        if texts["upstream"] and not re.match(r"^https?://\S+$", texts["upstream"]):
            self._toml_error("upstream", f"upstream: {texts['upstream']!r} is no URL")
        if not (topics or added or tests):
            self.error(
                self.toml_path,
                "the feature does nothing: expected a topic, an added module or [[upstreamed]]",
            )
        if releases is None:
            return None
        self._check_variants(releases, topics, added)
        feature = Feature(
            texts["id"],
            texts["title"],
            texts["why"],
            texts["upstream"],
            releases,
            tests,
            topics,
            added,
            self.origin,
            "",
            self._needs(table.get("needs", [])),
            self._required(table.get("required", False)),
            switches=read_switches(table, self._toml_error),
            model_runner=read_model_runner(table, self._toml_error),
        )
        return Feature(**{**vars(feature), "digest": _digest(feature)})

    def _needs(self, needs: object) -> tuple[str, ...]:
        if isinstance(needs, list) and all(isinstance(need, str) and need for need in needs):
            return tuple(needs)
        self._toml_error("needs", "needs: expected a list of texts")
        return ()

    def _required(self, required: object) -> bool:
        if not isinstance(required, bool):
            self._toml_error("required", "required: expected true or false")
        return required is True

    def _text(self, table: dict[str, Any], key: str) -> str:
        value = table.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if key in table:
            self._toml_error(key, f"{key}: expected a text, found {value!r}")
        else:
            self.error(self.toml_path, f"the key {key} is missing")
        return ""

    def _releases(self, text: str) -> ReleaseRange | None:
        if not text:
            return None
        try:
            return ReleaseRange.parse(text)
        except ValueError as error:
            self._toml_error("releases", f"releases: {error}")
            return None

    def _tests(self, tables: Any) -> tuple[UpstreamTest, ...]:
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._toml_error("upstreamed", "upstreamed: expected tables, written [[upstreamed]]")
            return ()
        found = []
        for table in tables:
            for key in table:
                if key not in _TEST_KEYS:
                    self._toml_error(
                        key,
                        f"unknown key {key!r} in [[upstreamed]]; known are path, scope, contains",
                    )
            values = [self._test_text(table, key) for key in _TEST_KEYS]
            problem = path_problem(values[0]) if values[0] else None
            if problem:
                self._toml_error("path", f"path: {problem}")
            if all(values):
                found.append(UpstreamTest(*values))
        return tuple(found)

    def _test_text(self, table: dict[str, Any], key: str) -> str:
        value = table.get(key, MODULE_SCOPE if key == "scope" else None)
        if isinstance(value, str) and value.strip():
            return value
        self._toml_error("upstreamed", f"[[upstreamed]] needs a text as {key}, found {value!r}")
        return ""

    # Topics and added modules

    def _read_topic(self, folder: Path) -> Topic:
        variants: list[Variant] = []
        for path in entries(folder):
            if not is_plain(path, self.errors):
                continue
            if path.is_dir() or path.suffix != ".patch":
                self.error(path, "expected only <first>..<last>.patch files in a topic's folder")
                continue
            try:
                releases = ReleaseRange.parse(path.name[: -len(".patch")])
            except ValueError as error:
                self.error(path, f"its name says its range: {error}")
                continue
            text = self._read_text(path)
            if text is None:
                continue
            name = path.relative_to(self.folder.parent).as_posix()
            try:
                variants.append(Variant(releases, parse_patch(text, name)))
            except PatchFormatErrors as malformed:
                for place in malformed.errors:
                    self.error(path, place.problem, place.line)
        if not entries(folder):
            self.error(folder, "a topic without a patch; expected <first>..<last>.patch")
        return Topic(folder.name, tuple(sorted(variants, key=lambda variant: variant.releases)))

    def _read_text(self, path: Path) -> str | None:
        data = path.read_bytes()
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            self.error(path, "it is not UTF-8", data.count(b"\n", 0, error.start) + 1)
            return None

    def _read_added(self, folder: Path) -> list[AddedFile]:
        found: list[AddedFile] = []
        pending = [folder]
        while pending:
            current = pending.pop()
            for path in entries(current):
                if not is_plain(path, self.errors):
                    continue
                if path.is_dir():
                    pending.append(path)
                    continue
                name = path.relative_to(folder).as_posix()
                problem = path_problem(name)
                if problem:
                    self.error(path, f"an added module's path {problem}")
                else:
                    found.append(AddedFile(name, path.read_bytes()))
        return sorted(found, key=lambda added: added.path)

    def _check_variants(
        self, releases: ReleaseRange, topics: tuple[Topic, ...], added: tuple[AddedFile, ...]
    ) -> None:
        added_paths = {file.path for file in added}
        for topic in topics:
            for variant in topic.variants:
                path = self.folder.parent / variant.patch.name
                if variant.patch.path in added_paths:
                    self.error(path, f"it patches {variant.patch.path}, which the feature adds")
                if variant.releases.first < releases.first or variant.releases.last > releases.last:
                    self.error(path, f"its range leaves the feature's, {releases}")
            for before, after in pairwise(topic.variants):
                if before.releases.overlaps(after.releases):
                    self.error(
                        self.folder.parent / after.patch.name,
                        f"its range overlaps that of {before.patch.name}; a release has one "
                        "variant of a topic",
                    )


def _digest(feature: Feature) -> str:
    """A hash over what the feature does; titles, headers and line numbers do nothing."""
    return sha256_of(
        {
            "id": feature.id,
            "releases": str(feature.releases),
            "upstreamed": [vars(test) for test in feature.upstream_tests],
            "topics": [
                {
                    "name": topic.name,
                    "variants": [
                        {
                            "releases": str(variant.releases),
                            "path": variant.patch.path,
                            "hunks": [
                                [hunk.scope, hunk.lines, hunk.pre_unfinished, hunk.post_unfinished]
                                for hunk in variant.patch.hunks
                            ],
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
    )


def sha256_of(value: object) -> str:
    """The sha256 (hex) of a value that JSON can write, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
