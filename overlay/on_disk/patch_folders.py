"""The patches folders of a process: which there are, what they require, what a ledger covers."""

from __future__ import annotations

import keyword
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import overlay
from overlay.features import sources as shipped
from overlay.features.sources import (
    entries,
    feature_documents,
    is_shared,
    left_behind,
    source_of,
    stray,
)
from overlay.results import State
from overlay.untrusted import read_regular

if TYPE_CHECKING:
    from overlay.on_disk.ledger import Ledger, LedgerFeature
    from overlay.settings import Switches


def needless(
    ledger: Ledger, release: str | None, switches: Switches, folders: Iterable[Path]
) -> tuple[LedgerFeature, ...] | None:
    """The features that are not on disk and need not be; ``None`` where only a plan can tell.

    :param ledger: its files are as the overlay wrote them; :param release: what is installed.
    :param folders: the patches folders.
    """
    if ledger.overlay != overlay.__version__ or ledger.release != release:
        return None
    left = {one.result.feature: one for one in ledger.features}
    found: list[LedgerFeature] = []
    others: set[str] = set()
    for name, path, folder in _features(folders):
        if name not in left and package_in(path) != ledger.package.name:
            others.add(name)  # a feature for another package has a ledger of its own
            continue
        one = left.pop(name, None)  # one that is found twice is an error, which a plan reports
        if one is None or one.source != source_of(path, folder):
            return None
        if one.result.state is State.APPLIED:
            continue
        # By its files a feature can change while the release stays.
        if one.result.state not in (State.UPSTREAMED, State.INAPPLICABLE) or one.result.files:
            return None
        found.append(one)
    there = {entry.result.feature for entry in ledger.features} - set(left) | others
    if (switches.features or frozenset()) - there:
        return None  # OVERLAY_FEATURES names an unknown one: an error, too
    return tuple(found)


def package_in(feature: Path) -> str:
    """The name of the package that a feature's folder says it patches; ``vllm`` where it says none.

    Looks into the text first, since each process asks, and parses only what has an unusual form.
    What is malformed is vLLM's: loading the feature reports it.
    """
    try:
        data = read_regular(feature / "feature.toml", follow=False) or b""
    except OSError:
        return "vllm"
    lines = [line for line in data.splitlines() if _names(line, b"package")]
    if not lines:
        return "vllm"
    name: object = _plain_text(lines[0]) if len(lines) == 1 else None
    # A line before the first text of several lines, and the first table, is not in one of them.
    before = data.split(b"'''")[0].split(b'"""')[0].split(b"\n[")[0]
    if name is None or lines[0] not in before.splitlines():
        from overlay.features.documents import parse_toml

        try:
            name = parse_toml(data).get("package")
        except ValueError:
            return "vllm"
    return name if isinstance(name, str) and _may_be_patched(name) else "vllm"


def _plain_text(line: bytes) -> str | None:
    """The value of a line such as ``package = "name"  # why``; ``None`` for any other form."""
    quote, _, rest = line.partition(b"=")[2].strip().partition(b'"')
    text, end, after = rest.partition(b'"')
    if quote or not end or b"\\" in text or after.strip()[:1] not in (b"", b"#"):
        return None
    return text.decode("utf-8", "replace")


def _may_be_patched(name: str) -> bool:
    """Whether ``package_named`` takes a name; told here, since ``overlay.package`` costs time."""
    apart = name in sys.stdlib_module_names or name == "overlay"
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and not apart


def further_packages(folders: Iterable[Path]) -> tuple[str, ...]:
    """The names of the packages other than vLLM that features in folders patch, sorted."""
    return tuple(sorted({package_in(path) for _, path, _ in _features(folders)} - {"vllm"}))


def _features(folders: Iterable[Path]) -> Iterator[tuple[str, Path, Path]]:
    """Name, path and patches folder of all that may be a feature; what is none is in no ledger."""
    seen = set()
    for folder in folders:
        place = os.path.realpath(folder)
        if place in seen:
            continue
        seen.add(place)
        try:
            held = entries(place)
        except OSError:
            held = {"": Path(place)}  # whoever plans says what is wrong with the folder
        for name, path in held.items():
            beside = stray(name) or name in ("__init__.py", "README.md")
            if not (beside or left_behind(name) or is_shared(path)):
                yield name, path, Path(place)


#: Why a feature is not patched that ``OVERLAY_FEATURES`` leaves out.
NOT_ASKED = "OVERLAY_FEATURES does not name it"


def patches_folders(switches: Switches) -> list[Path]:
    """The folders of features that this process looks into."""
    return [shipped.shipped_folder(), *switches.patches]


def required_features(switches: Switches) -> frozenset[str]:
    """The ids of the features whose own feature.toml says that vLLM must not start without them.

    Looks into no file but those that hold the word, since each process asks.
    """
    found = set()
    for folder in patches_folders(switches):
        for document in feature_documents(folder):
            try:
                text = read_regular(document, follow=False) or b""
            except OSError:
                continue  # loading the feature says what is wrong with it
            if any(_names(line, b"required") for line in text.splitlines()):
                from overlay.features.folder import load_all

                loaded = load_all([folder])
                found |= {feature.id for feature in loaded.features if feature.required}
                found |= {malformed.id for malformed in loaded.malformed if malformed.required}
                break
    return frozenset(found)


def _names(line: bytes, key: bytes) -> bool:
    """Whether a line of a feature.toml may set a key."""
    return line.partition(b"=")[0].strip(b" \t\"'") == key
