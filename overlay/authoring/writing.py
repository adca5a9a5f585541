"""Write a feature's folder: ``feature.toml``, patches of the strict format, added modules, origin.

Everything is rendered first and checked by the reader that every command uses; then the folder
comes, or takes the place of another one, by one switch (``overlay.authoring.disk``), so that a
patches folder never holds half a feature.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from packaging.version import Version

from overlay._features import sources
from overlay._features.binary_patch import literal
from overlay._features.folder import read_feature
from overlay._features.model import Feature, Hunk, UpstreamTest, WholeFile, blob_id
from overlay._features.patch_headers import REPEATED
from overlay._features.sources import (
    SHARED,
    ErrorList,
    entries,
    table_of,
    unread,
)
from overlay.authoring import disk
from overlay.errors import OverlayError, PatchFormatError, PatchFormatErrors, UsageError
from overlay.package import VLLM, Package, ReleaseRange, id_problem
from overlay.planning.attempt import Texts, attempt
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax
from overlay.untrusted import MalformedToml, parse_toml, printable

#: A table of a derived test in ``feature.toml``.
_DERIVED = re.compile(r"\[\[\s*upstreamed\s*\]\](?s:.*?)^lines\s*=", re.MULTILINE)

#: The keys of a ``feature.toml`` that follow from a change and from what is said of it.
OF_A_CHANGE = frozenset(
    {"id", "title", "why", "releases", "package", "upstream", "reason", "merged", "upstreamed"}
)

#: How many of the places that are not read back are named.
_SHOWN = 5

#: Columns at which the lines of a header are folded, behind the blank that each begins with.
_WIDTH = 77


@dataclass(frozen=True)
class FeatureText:
    """What ``feature.toml`` of a new feature says."""

    id: str
    title: str
    why: str
    releases: ReleaseRange
    upstream: str = ""
    merged: str | None = None
    tests: tuple[UpstreamTest, ...] = ()
    package: Package = VLLM
    keys: Mapping[str, Any] = field(default_factory=dict)


class Expected(NamedTuple):
    """What one topic of a feature must make of a text on a release, byte for byte.

    :ivar after: ``None`` where it must remove the file.
    """

    topic: str
    release: str
    before: bytes
    after: bytes | None


@dataclass(frozen=True)
class FeatureFolder:
    """A feature's folder, ready to be written."""

    text: FeatureText
    files: Mapping[str, bytes] = field(default_factory=dict)
    expected: Sequence[Expected] = ()

    def all_files(self) -> dict[str, bytes]:
        """Every file, ``feature.toml`` included."""
        return {"feature.toml": render_toml(self.text).encode(), **self.files}


def render_toml(text: FeatureText) -> str:
    """``feature.toml`` of a feature."""
    why = (text.why.strip() or text.title).replace("\\", "\\\\").replace('"""', '""\\"')
    why = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", why)
    lines = [
        f"id = {toml_string(text.id)}",
        f"title = {toml_string(text.title)}",
        f'why = """\n{why}\n"""',
    ]
    if text.package != VLLM:
        lines.append(f"package = {toml_string(text.package.name)}")
    if text.upstream:
        lines.append(f"upstream = {toml_string(text.upstream)}")
    lines.append(f"releases = {toml_string(str(text.releases))}")
    if text.merged is not None:
        lines.append(f"merged = {toml_string(text.merged)}")
    lines += [f"{name} = {_value(text.keys[name])}" for name in text.keys if name not in _TABLES]
    tables = [line for name in _TABLES for line in _table(name, text.keys.get(name))]
    return "\n".join([*lines, *tables, *_tests(map(_table_of, text.tests))]) + "\n"


#: The further keys that are written as tables.
_TABLES = ("fault", "switches")


def _table(name: str, value: object) -> Iterator[str]:
    """The lines of a key that is a table, or several of them."""
    several = isinstance(value, list)
    for table in value if isinstance(value, list) else [value] if value is not None else []:
        yield ""
        yield f"[[{name}]]" if several else f"[{name}]"
        for key, each in table.items() if isinstance(table, Mapping) else ():
            yield f"{toml_string(key)} = {_value(each)}"


def _value(value: object) -> str:
    """A value in one line of TOML; the reader of features says what it must not be."""
    if isinstance(value, Mapping):
        pairs = (f"{toml_string(str(key))} = {_value(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return toml_string(value) if isinstance(value, str) else json.dumps(value)


def _table_of(test: UpstreamTest) -> dict[str, Any]:
    share = float(f"{test.share:g}")
    return {"path": test.path, "scope": test.scope, "lines": list(test.lines), "share": share}


def _tests(tests: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for test in tests:
        yield from ("", "[[upstreamed]]")
        for key, value in test.items():
            if isinstance(value, list):
                yield from (f"{key} = [", *(f"    {toml_string(text)}," for text in value), "]")
            else:
                text = toml_string(value) if isinstance(value, str) else f"{value:g}"
                yield f"{key} = {text}"


def with_tests(toml: bytes, tests: Sequence[UpstreamTest]) -> bytes:
    """``feature.toml`` with other derived tests; the rest, tests by hand too, stays as it is."""
    by_hand = _by_hand(parse_toml(toml))
    expected = (
        "each [[upstreamed]] with lines as a table of its own behind the others, whose lines are "
        "indented"
    )
    return with_tables(toml, _DERIVED, [*map(_table_of, tests)], by_hand, expected)


def with_tables(
    toml: bytes,
    replaced: re.Pattern[str],
    tests: Sequence[Mapping[str, Any]],
    by_hand: Sequence[Mapping[str, Any]] = (),
    expected: str = "each [[upstreamed]] as a table of its own",
) -> bytes:
    """``feature.toml`` with tests of what upstream has in the place of some of its tables.

    :param replaced: matches those; :param by_hand: the tests that stay.
    """
    tables = re.split(r"(?m)^(?=\[)", toml.decode("utf-8"))
    rest = "".join(part for part in tables if not replaced.match(part)).rstrip("\n")
    after = "\n".join([rest, *_tests(tests)]) + "\n"
    return require_change(toml, after, {"upstreamed": [*by_hand, *tests] or None}, expected)


def require_change(toml: bytes, after: str, keys: Mapping[str, object], expected: str) -> bytes:
    """A changed ``feature.toml``, if nothing but some keys has changed: its text is not parsed.

    :raises UsageError: if more, or less, has changed, as in a text of several lines.
    """
    try:
        table = {**parse_toml(toml), **keys}
        if parse_toml(after) == {key: value for key, value in table.items() if value is not None}:
            return after.encode()
    except MalformedToml:
        pass
    raise UsageError(
        f"feature.toml: expected {expected}, found it written otherwise, so that "
        f"{', '.join(keys)} cannot be changed there; write it so"
    )


def today() -> str:
    """The day on which something is written, ``YYYY-MM-DD``."""
    return datetime.now().astimezone().date().isoformat()


def patch_bytes(headers: Mapping[str, str], path: str, hunks: Sequence[Hunk]) -> bytes:
    """The bytes of a patch file, as ``render_patch``; those that were no UTF-8 are kept."""
    return render_patch(headers, path, hunks).encode("utf-8", "surrogateescape")


def render_patch(headers: Mapping[str, str], path: str, hunks: Sequence[Hunk]) -> str:
    """A patch file of the strict format, which ``git apply`` and ``patch`` take too."""
    lines = [line for name, value in headers.items() for line in _header(name, value)]
    if hunks and (whole := hunks[0].whole) is not None:
        return "\n".join([*lines, "---", *_whole_file(path, whole)]) + "\n"
    lines += ["---", f"--- a/{path}", f"+++ b/{path}"]
    shift = 0
    for hunk in sorted(hunks, key=lambda hunk: hunk.source_line):
        lines += _hunk(hunk, shift)
        shift += len(hunk.post) - len(hunk.pre)
    return "\n".join(lines) + "\n"


def _whole_file(path: str, whole: WholeFile) -> list[str]:
    """A change of a whole file in git's own form, which names what it is for by its id."""
    new = "0" * 40 if whole.after is None else blob_id(whole.after)
    return [
        f"diff --git a/{path} b/{path}",
        *(["deleted file mode 100644"] if whole.after is None else []),
        f"index {whole.before}..{new}{'' if whole.after is None else ' 100644'}",
        *literal(whole.after or b""),
    ]


def _header(name: str, value: str) -> list[str]:
    first, *rest = [" ".join(line.split()) for line in value.strip().splitlines()] or [""]
    if name in REPEATED:  # each value on a line of its own; those of Base-Has are lines of code
        return [f"{name}: {line}".rstrip() for line in value.split("\n")]
    folded = [f"{name}: {first}".rstrip()]
    for line in rest:
        parts = wrap(line, _WIDTH, break_long_words=False, break_on_hyphens=False) or ["."]
        folded += [f" {part}" for part in parts]
    return folded


def _hunk(hunk: Hunk, shift: int) -> list[str]:
    old, new = hunk.source_line, hunk.source_line + shift
    heading = f"@@ -{old},{len(hunk.pre)} +{new},{len(hunk.post)} @@ {hunk.scope}"
    ops = [op for op, _ in hunk.lines]
    last_old = max(index for index, op in enumerate(ops) if op != "+")
    last_new = max(index for index, op in enumerate(ops) if op != "-")
    lines = [heading]
    for index, (op, text) in enumerate(hunk.lines):
        lines.append(op + text)
        ends_old = index == last_old and hunk.pre_unfinished
        ends_new = index == last_new and hunk.post_unfinished
        if ends_old or ends_new:
            lines.append("\\ No newline at end of file")
    return lines


def toml_string(text: str) -> str:
    """A text as a basic string of TOML, whose escapes are those of JSON but for a few."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{printable(text[:200])}: expected a text or a name in UTF-8, which TOML can hold"
        ) from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_folder(folder: FeatureFolder, syntax: Syntax | None = None) -> Feature:
    """The feature that a folder holds, as every command will read it."""
    return check_files(folder.text.id, folder.all_files(), folder.expected, syntax)


def check_files(
    id_: str,
    files: Mapping[str, bytes],
    expected: Sequence[Expected] = (),
    syntax: Syntax | None = None,
    shared: Mapping[str, bytes] | None = None,
) -> Feature:
    """The feature that the files of a folder make, as every command will read it.

    :param files: path below the folder -> bytes, ``feature.toml`` included.
    :param shared: the modules beside the folder that features share, as ``Feature.shared_modules``.
    :raises PatchFormatErrors: if the reader refuses it.
    :raises UsageError: if the reader passes over a module, for its name.
    :raises OverlayError: if a module is not read back, or a patch does not make what it must.
    """
    with tempfile.TemporaryDirectory() as place:
        beside = {f"{SHARED}/files/{path}": data for path, data in (shared or {}).items()}
        disk.require_inside(id_, files)
        _lay({f"{id_}/{name}": data for name, data in files.items()} | beside, Path(place))
        errors = ErrorList()
        feature = read_feature(Path(place, id_), Path(place), "imported", errors)
        if feature is None or errors:  # named as below the folder of patches
            raise PatchFormatErrors(
                [
                    PatchFormatError(os.path.relpath(each.file, place), each.line, each.problem)
                    for each in errors
                ]
            )
    added = {f"files/{module.path}": module.content for module in feature.added}
    modules = (name for name in files if name.startswith("files/"))
    lost = [name for name in modules if added.get(name) != files[name]]
    lost += _texts_missed(feature, expected, syntax or Memo())
    for name in lost:
        if (problem := unread(name)) is not None:
            raise UsageError(f"{id_}: {problem}")
    if lost:
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise OverlayError(
            f"{id_}: expected a folder that makes the change, but read back it does not: "
            f"{', '.join(lost[:_SHOWN])}{more}. Nothing was written; please report this as a bug "
            "in vllm-overlay"
        )
    return feature


def _texts_missed(feature: Feature, expected: Sequence[Expected], syntax: Syntax) -> list[str]:
    texts = Texts(syntax)
    missed: list[str] = []
    for topic, release, before, after in expected:
        patches = [
            variant.patch
            for each in feature.topics
            for variant in each.variants
            if each.name == topic and Version(release) in variant.releases
        ]
        attempts = [attempt(patch, before, texts) for patch in patches]
        if [(each.after, each.removes) for each in attempts] != [(after, after is None)]:
            missed.append(f"{topic} on {release}")
    return missed


def write_folder(folder: FeatureFolder, patches: Path, *, update: bool = False) -> Path:
    """Write a feature's folder into a folder of patches, whole or not at all.

    :param update: take the place of a feature that has the id already.
    :raises OSError: if it cannot be written; the folder of patches is as it was then.
    """
    final = patches / folder.text.id
    if os.path.lexists(final) and not update:
        raise UsageError(
            f"{final}: expected no feature of that id, found one; choose another --id, or pass "
            "--update to replace it"
        )
    check_folder(folder)
    replace_folders([folder], patches)
    return final


def replace_folders(folders: Sequence[FeatureFolder], patches: Path) -> None:
    """Write checked folders, all or none, each in the place of the feature that has its id.

    :raises UsageError: if a ``feature.toml`` would lose words of somebody's.
    :raises OSError: if they cannot be written; the folder of patches is as it was then.
    """
    for folder in folders:
        expect_words_kept(folder, patches)
    new = [disk.NewFolder(folder.text.id, folder.all_files()) for folder in folders]
    disk.replace_features(patches, new)


def expect_words_kept(folder: FeatureFolder, patches: Path) -> None:
    """Refuse to replace a ``feature.toml`` that says more than the change does.

    :raises UsageError: naming the keys that would be lost.
    """
    place = entries(patches).get(folder.text.id) if patches.is_dir() else None
    table = {} if place is None else table_of(place) or {}
    lost = [key for key in table if key not in OF_A_CHANGE and key not in folder.text.keys]
    if _by_hand(table):
        lost.append("[[upstreamed]] without lines")
    if lost:
        raise UsageError(
            f"{place}: --update would replace its feature.toml, and {', '.join(lost)} stands there "
            "alone: take that out, and put it back after the update"
        )


def _by_hand(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tests of a ``feature.toml`` that no command derived."""
    tests = table.get("upstreamed")
    each = tests if isinstance(tests, list) else ()  # a stranger's file may say anything
    return [test for test in each if isinstance(test, Mapping) and "lines" not in test]


def _lay(files: Mapping[str, bytes], place: Path) -> None:
    for name, data in files.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as opened:  # which follows no link and replaces nothing
            opened.write(data)


# Whether a feature can be written


#: What commands write into a feature's folder, and write again.
_OWN = re.compile(
    r"feature\.toml|files/.+/.+|origin/([^/]+\.patch|base/.+)|\d\d-[^/]+/[^/]+\.patch", re.DOTALL
)


def expect_id(id_: str, option: str = "") -> None:
    """Refuse an id that cannot be one."""
    what = f"{option} " if option else ""
    if (problem := id_problem(id_)) is not None:
        raise UsageError(f"{what}{problem}, as ids of features are")
    if id_ == SHARED:
        raise UsageError(
            f"{what}{id_!r} cannot be the id of a feature: in a folder of patches {SHARED}/ holds "
            "the modules that several features name; choose another"
        )


def require_free(
    patches: Path,
    id_: str,
    *,
    update: bool,
    instead: str = "pass --update to replace it",
    option: str = "",
) -> None:
    """Refuse an id that cannot be one, or that is taken, before anything is fetched.

    :param update: whether a feature of that id is to be replaced.
    """
    expect_id(id_, option)
    other = f"choose another {option or 'id'}"
    shipped = sources.shipped_folder()
    if os.path.realpath(patches) != os.path.realpath(shipped) and id_ in entries(shipped):
        raise UsageError(
            f"{id_}: expected no feature of that id, found one that comes with the overlay, and "
            f"an id is one feature's: {other}"
        )
    place = entries(patches).get(id_) if patches.is_dir() else None
    if place is None:
        return
    if not os.path.lexists(place / "feature.toml"):
        what = "a folder without feature.toml" if place.is_dir() else "a file"
        raise UsageError(f"{place}: expected no feature of that id, found {what}: {other}")
    if not update:
        raise UsageError(
            f"{place}: expected no feature of that id, found one; {other}, or {instead}"
        )
    if lost := _foreign_names(place):
        raise UsageError(
            f"{place}: --update would replace all of it, and {', '.join(lost[:3])} is not of its "
            "patches: move that away first"
        )


def _foreign_names(feature: Path) -> list[str]:
    """What somebody else put into a feature's folder, but for what tools leave."""
    files = (path for path in sorted(feature.rglob("*")) if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(feature).as_posix() for path in files)
    return [name for name in names if not (_OWN.fullmatch(name) or unread(name))]
