"""Read one ``feature.toml``: what a feature is, and for which releases."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from packaging.version import Version

from overlay._features.model import (
    MODULE_SCOPE,
    Build,
    Fault,
    Feature,
    Group,
    UpstreamPlan,
    UpstreamTest,
)
from overlay._features.sources import ErrorList, read_text, unread
from overlay._features.switches import read_flag, read_model_runner, read_switches
from overlay.errors import MAX_ERRORS
from overlay.package import (
    VLLM,
    Package,
    ReleaseRange,
    id_problem,
    package_named,
    package_problem,
    parse_release,
    path_problem,
)
from overlay.results import RUNNER_FILES, ModelRunner
from overlay.settings import FORMER_IDS
from overlay.untrusted import MalformedToml, parse_toml

#: The keys that a feature.toml has to have; all are texts.
_REQUIRED = ("id", "title", "why", "releases")

_KEYS = (
    *_REQUIRED,
    *(
        "package",
        "upstream",
        "reason",
        "merged",
        "upstreamed",
        "builds",
        "obsolete_without",
        "shared",
        "needs",
        "required",
        "switches",
        "model_runner",
        "situational",
        "group",
        "fault",
    ),
)

_TEST_KEYS = ("path", "scope", "contains", "lines", "share", "topic")
_FAULT_KEYS = ("symptom", "affects", "evidence", "reports", "page")
_BUILD_KEYS = ("name", "path", "scope", "contains", "text")


#: Those of a feature whose own could not be read.
NO_RELEASES = ReleaseRange(Version("0"), Version("0"))

Value = TypeVar("Value")
Default = TypeVar("Default")
Member = TypeVar("Member", bound=Enum)


class Document(NamedTuple):
    """A ``feature.toml`` that could be parsed.

    :ivar errors: takes every malformed place.
    """

    path: Path
    text: str
    table: dict[str, Any]
    errors: ErrorList

    def error(self, key: str, problem: str) -> None:
        """Note an error at the line of a key, or of the whole document where it has no such key."""
        if len(self.errors) >= MAX_ERRORS:
            return  # each costs a walk through the document, and nobody reads so many
        pattern = re.compile(rf"^\s*(\[\[?\s*)?[\"']?{re.escape(key)}[\"']?\s*[=\]]")
        lines = enumerate(self.text.split("\n"), 1)
        line = next((number for number, text in lines if pattern.match(text)), None)
        self.errors.add(self.path, problem, line)


def read_document(path: Path, errors: ErrorList) -> Document | None:
    """Parse a ``feature.toml``; a byte-order mark at its start is passed over.

    :param errors: takes why it cannot be parsed.
    :returns: the document, or ``None`` after an error.
    """
    text = read_text(path, errors)
    if text is None:
        return None
    try:
        table = parse_toml(text)
    except MalformedToml as error:
        errors.add(path, f"it is not TOML: {error}", error.line)
        return None
    if not table:
        errors.add(path, f"it is empty; expected {', '.join(_REQUIRED)}")
        return None
    return Document(path, text.removeprefix("\ufeff"), table, errors)


def read_fields(document: Document) -> Feature:
    """Read and check the keys of a ``feature.toml``; its errors take what is malformed.

    :returns: what it says of the feature, without what else lies in its folder.
    """
    table = document.table
    for key in table:
        if key not in _KEYS:
            document.error(key, f"unknown key {key!r}; known are {', '.join(_KEYS)}")
    # Only processes that run the feature go by it: see `switches.Declaration`.
    read_flag(table, "situational", document.error)
    package = _package(document)
    model_runner = read_model_runner(table, document.error)
    return Feature(
        id=_id(document),
        title=_text(document, "title"),
        why=_text(document, "why"),
        upstream=_parsed(document, "upstream", _url, ""),
        releases=_parsed(
            document, "releases", lambda text: ReleaseRange.parse(text, package), NO_RELEASES
        ),
        upstream_tests=_upstream_tests(document, package),
        topics=(),
        added=(),
        origin="",
        digest="",
        needs=tuple(_texts(document, "needs", "texts")),
        required=read_flag(table, "required", document.error),
        switches=read_switches(table, document.error),
        model_runner=model_runner,
        merged=_parsed(document, "merged", parse_release, None),
        builds=_builds(document, package),
        reason=_parsed(document, "reason", partial(_member, UpstreamPlan), None),
        package=package,
        obsolete_without=_obsolete_without(document, package, model_runner),
        shared=_shared(document, package),
        group=_parsed(document, "group", partial(_member, Group), None),
        fault=_fault(document),
    )


def _parsed(
    document: Document, key: str, parse: Callable[[str], Value], default: Default
) -> Value | Default:
    """The value of a key; the default where it may be missing and is, or after an error.

    :param parse: reads its text; raises ``ValueError`` with what is wrong with it.
    """
    if key not in document.table and key not in _REQUIRED:
        return default
    text = _text(document, key)
    try:
        return parse(text) if text else default
    except ValueError as error:
        document.error(key, f"{key}: {error}")
        return default


def _url(text: str) -> str:
    if not _is_url(text):
        raise ValueError(f"{text!r} is not a URL; omit the key where nothing was proposed upstream")
    return text


def _member(kind: type[Member], text: str) -> Member:
    values = [each.value for each in kind]
    if text not in values:
        raise ValueError(f"expected one of {', '.join(values)}, found {text!r}")
    return kind(text)


def _fault(document: Document) -> Fault | None:
    """The table of what the feature mends; ``None`` without one, or after an error."""
    table = document.table.get("fault")
    if table is None:
        return None
    if not isinstance(table, dict):
        document.error("fault", "fault: expected a table, written [fault]")
        return None
    for key in (key for key in table if key not in _FAULT_KEYS):
        names = ", ".join(_FAULT_KEYS)
        document.error(key, f"unknown key {key!r} in [fault]; known are {names}")
    texts = {key: table.get(key) for key in ("symptom", "affects", "evidence")}
    texts["page"] = table.get("page", "-")
    reports = table.get("reports", [])
    for key, value in texts.items():
        if not isinstance(value, str) or not value.strip():
            document.error(key, f"[fault] needs a text as {key}, found {value!r}")
            return None
    if not isinstance(reports, list) or not all(_is_url(report) for report in reports):
        document.error("reports", "reports: expected a list of URLs")
        return None
    symptom, affects, evidence, page = (" ".join(str(value).split()) for value in texts.values())
    return Fault(symptom, affects, evidence, tuple(reports), "" if page == "-" else page)


def _is_url(value: object) -> bool:
    return isinstance(value, str) and re.match(r"^https?://\S+$", value) is not None


def _package(document: Document) -> Package:
    """The package that the feature patches; vLLM where the key is missing."""
    text = _parsed(document, "package", str, "")
    if not text:
        return VLLM
    if (problem := package_problem(text)) is not None:
        document.error("package", f"package: {problem}")
        return Package(text, text, text)  # so that its paths are not errors, too
    return package_named(text)


def _text(document: Document, key: str) -> str:
    value = document.table.get(key)
    if isinstance(value, str) and value.strip():
        return value.strip()
    if key in document.table:
        document.error(key, f"{key}: expected a text, found {value!r}")
    else:
        document.error(key, f"the key {key} is missing")
    return ""


def _id(document: Document) -> str:
    text, folder = _text(document, "id"), document.path.parent.name
    if text and (problem := id_problem(text)) is not None:
        document.error("id", f"id: {problem}")
    elif text in FORMER_IDS:
        document.error("id", f"id: {text} means {FORMER_IDS[text]} now; expected another one")
    elif text and text != folder:
        document.error("id", f"id: expected the folder's name, {folder!r}, found {text!r}")
    return text


def _texts(document: Document, key: str, what: str) -> list[str]:
    """The texts of a key, none of them empty; no text where it is missing, or after an error."""
    texts = document.table.get(key, [])
    if isinstance(texts, list) and all(isinstance(text, str) and text for text in texts):
        return texts
    document.error(key, f"{key}: expected a list of {what}")
    return []


def _obsolete_without(
    document: Document, package: Package, model_runner: ModelRunner | None
) -> tuple[str, ...]:
    """The files without which the feature is for nothing; that of its model runner is implied."""
    paths = _texts(document, "obsolete_without", "paths of the package")
    for path in paths:
        if (problem := path_problem(path, package)) is not None:
            document.error("obsolete_without", f"obsolete_without: {problem}")
    implied = [RUNNER_FILES[model_runner]] if model_runner is not None and package == VLLM else []
    return tuple(dict.fromkeys((*implied, *paths)))


def _shared(document: Document, package: Package) -> tuple[str, ...]:
    """The modules of the folder of shared ones that the feature adds, without malformed paths."""
    usable: list[str] = []
    for path in _texts(document, "shared", "paths of modules in shared/files/"):
        problem = path_problem(path, package) or unread(path)
        if problem is None and path in usable:
            problem = f"{path} is named twice"
        if problem is None and path not in document.text:  # as `source_of` looks for it
            problem = f"{path}: expected it as it is, found it written with escapes"
        if problem is None:
            usable.append(path)
        else:
            document.error("shared", f"shared: {problem}")
    return tuple(usable)


def _tables(document: Document, name: str, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """The tables of a key, with an error for each of their keys that is not known."""
    tables = document.table.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        document.error(name, f"{name}: expected tables, written [[{name}]]")
        return []
    for key in (key for table in tables for key in table if key not in keys):
        document.error(key, f"unknown key {key!r} in [[{name}]]; known are {', '.join(keys)}")
    return tables


def _test_place(
    document: Document, name: str, table: dict[str, Any], package: Package
) -> tuple[str, str]:
    """``path`` and ``scope`` of a table; empty after an error."""
    path, scope = (_test_text(document, table, key, name) for key in ("path", "scope"))
    problem = path_problem(path, package) if path else None
    if problem:
        document.error("path", f"path: {problem}")
    return path, scope


def _upstream_tests(document: Document, package: Package) -> tuple[UpstreamTest, ...]:
    tests = []
    for table in _tables(document, "upstreamed", _TEST_KEYS):
        path, scope = _test_place(document, "upstreamed", table, package)
        evidence, topic = _evidence(document, table), ""
        if "topic" in table:
            topic = _test_text(document, table, "topic")
        if path and scope and evidence is not None:
            tests.append(UpstreamTest(path, scope, *evidence, topic))
    return tuple(tests)


def _builds(document: Document, package: Package) -> tuple[Build, ...]:
    """Somebody's own builds of releases, for which the feature is not made."""
    builds = []
    for table in _tables(document, "builds", _BUILD_KEYS):
        path, scope = _test_place(document, "builds", table, package)
        name, contains, text = (
            _test_text(document, table, key, "builds") for key in ("name", "contains", "text")
        )
        if path and scope and name and contains and text:
            builds.append(Build(name, path, scope, contains, text))
    return tuple(builds)


def _evidence(
    document: Document, table: dict[str, Any]
) -> tuple[str, tuple[str, ...], float] | None:
    """``contains``, ``lines`` and ``share`` of a test; ``None`` after an error."""
    if "lines" not in table:
        contains = _test_text(document, table, "contains")
        return (contains, (), 1.0) if contains else None
    lines, share = table["lines"], table.get("share", 1.0)
    if "contains" in table:
        document.error("contains", "[[upstreamed]] has contains or lines, not both")
    elif not (isinstance(lines, list) and lines and all(_is_line(line) for line in lines)):
        document.error("lines", "lines: expected a list of lines of code, none of them empty")
    elif not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
        document.error("share", f"share: expected a number above 0 and up to 1, found {share!r}")
    else:
        return "", tuple(line.strip() for line in lines), float(share)
    return None


def _is_line(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\n" not in value


def _test_text(
    document: Document, table: dict[str, Any], key: str, name: str = "upstreamed"
) -> str:
    value = table.get(key, MODULE_SCOPE if key == "scope" else None)
    if isinstance(value, str) and value.strip():
        return value
    document.error(name, f"[[{name}]] needs a text as {key}, found {value!r}")
    return ""
