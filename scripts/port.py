#!/usr/bin/env python3
"""Port a feature's patches to another release, and keep their numbers right.

    python scripts/port.py check 0.34.0              what would still land
    python scripts/port.py check 0.34.0 --write      widen the ranges of what lands
    python scripts/port.py renumber                  counts and line numbers, from the sources

``check`` takes each topic's variants, the nearest first, matches them as ``overlay apply`` would,
and says which one lands.  With ``--write``, once all of a feature lands, the range of each such
variant (or, where another variant lies between, of a copy of it) is widened to the release, and so
is the feature's.  For what does not land it writes, into the folder of ``--out``, each hunk with
the reason and the lines of the release that come nearest: write a variant for the release from
that, and run it again.  Exit status: 0 if all lands, 1 if not, 2 for a wrong usage or sources that
cannot be had.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import click
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from overlay.errors import OverlayError
from overlay.features.model import Hunk, Patch
from overlay.features.patch_file import parse_patch
from overlay.package import KNOWN_RELEASES, ReleaseRange, Tree, parse_release
from overlay.planning.matching import edits, match
from overlay.planning.scopes import find
from overlay.planning.text import SourceText
from overlay.results import HunkResult, Reason, State

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$")
_RELEASES = re.compile(r'^(releases\s*=\s*")[^"]*(")', re.MULTILINE)


@dataclass(frozen=True)
class Landing:
    """A variant matched against a text: one result a hunk, and the text it leaves."""

    path: Path
    patch: Patch
    results: tuple[HunkResult, ...]
    before: SourceText | None
    after: SourceText | None

    @property
    def lands(self) -> bool:
        """Whether every hunk stands where it can be applied."""
        return self.after is not None


# Counts and line numbers


def recount(text: str) -> str:
    """The patch with the line counts of every ``@@`` header as its lines are."""
    lines = text.rstrip("\n").split("\n")
    heads = [index for index, line in enumerate(lines) if line.startswith("@@ ")]
    for head, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        found = _HUNK.match(lines[head])
        if found is None:
            continue  # parse_patch names it
        ops = [line[:1] for line in lines[head + 1 : end]]
        before, after = len(ops) - ops.count("+"), len(ops) - ops.count("-")
        lines[head] = f"@@ -{found[1]},{before} +{found[2]},{after} @@{found[3]}"
    return "\n".join(lines) + "\n"


def renumber(text: str, patch: Patch, results: Sequence[HunkResult]) -> str:
    """The patch with its hunks in the order of the file and their right line numbers.

    :param results: one for each hunk, each with the line at which it stands.
    """
    head = text[: text.index("\n@@ ") + 1]
    placed = sorted(
        zip((result.line or 0 for result in results), patch.hunks, strict=True),
        key=lambda pair: pair[0],
    )
    body, shift = "", 0
    for line, hunk in placed:
        body += f"@@ -{line},{len(hunk.pre)} +{line + shift},{len(hunk.post)} @@ {hunk.scope}\n"
        body += "".join(f"{op}{content}\n" for op, content in hunk.lines)
        shift += len(hunk.post) - len(hunk.pre)
    return head + body


# Series


def variants(topic: Path) -> list[tuple[ReleaseRange, Path]]:
    """The variants of a topic's folder by their ranges, oldest first."""
    found = [
        (ReleaseRange.parse(path.name[: -len(".patch")]), path) for path in topic.glob("*.patch")
    ]
    return sorted(found, key=lambda pair: pair[0])


def topics(feature: Path) -> list[Path]:
    """The topics' folders of a feature, in the order of the series."""
    return sorted(path for path in feature.iterdir() if path.is_dir() and path.name[:2].isdigit())


def land(path: Path, texts: Mapping[str, SourceText], tree: Tree) -> Landing:
    """Match one variant against what the topics before it left, or else the tree's own file."""
    patch = parse_patch(recount(path.read_text(encoding="utf-8")), path.name)
    before = texts.get(patch.path)
    if before is None:
        data = tree.read(patch.path)
        if data is None:
            reason = Reason(f"the release has no file {patch.path}")
            missing = tuple(HunkResult(h.scope, State.MISSING, reason=reason) for h in patch.hunks)
            return Landing(path, patch, missing, None, None)
        before = SourceText.from_bytes(data)
    scopes = find(before.lines)
    results = tuple(match(h, before.lines, scopes, before.final_newline) for h in patch.hunks)
    if any(result.state is not State.PRISTINE for result in results):
        return Landing(path, patch, results, before, None)
    made = [
        edit
        for hunk, result in zip(patch.hunks, results, strict=True)
        for edit in edits(hunk, (result.line or 1) - 1)
    ]
    return Landing(path, patch, results, before, before.splice(made))


def nearest_first(topic: Path, release: Version) -> list[tuple[ReleaseRange, Path]]:
    """The variants, the one for the release first, then by their distance from it."""
    order = {Version(known): index for index, known in enumerate(KNOWN_RELEASES)}

    def distance(pair: tuple[ReleaseRange, Path]) -> tuple[int, int]:
        span = pair[0]
        if release in span:
            return (0, 0)
        newest = len(order)
        if span.last < release:
            return (1, newest - order.get(span.last, newest))
        return (2, order.get(span.first, newest))

    return sorted(variants(topic), key=distance)


def port_topic(
    topic: Path, release: Version, texts: Mapping[str, SourceText], tree: Tree
) -> list[Landing]:
    """The landings that were tried, the last of which is the one that lands, if one does."""
    tried = []
    for _, path in nearest_first(topic, release):
        tried.append(land(path, texts, tree))
        if tried[-1].lands:
            break
    return tried


# Writing


def widen(path: Path, release: Version) -> Path:
    """Give the release to a variant: widen its range, or copy it where another lies between."""
    span = ReleaseRange.parse(path.name[: -len(".patch")])
    if release in span:
        return path
    wide = ReleaseRange(min(span.first, release), max(span.last, release))
    others = [other for other, its_path in variants(path.parent) if its_path != path]
    if any(wide.overlaps(other) for other in others):
        copy = path.with_name(f"{release}..{release}.patch")
        shutil.copyfile(path, copy)
        return copy
    return path.rename(path.with_name(f"{wide}.patch"))


def widen_feature(toml: Path, release: Version) -> None:
    """Widen the range in ``feature.toml`` to hold the release."""
    text = toml.read_text(encoding="utf-8")
    found = _RELEASES.search(text)
    if found is None:
        raise click.UsageError(f'{toml}: expected a line releases = "first..last", found none')
    span = ReleaseRange.parse(found[0].split('"')[1])
    wide = ReleaseRange(min(span.first, release), max(span.last, release))
    toml.write_text(_RELEASES.sub(rf"\g<1>{wide}\g<2>", text, count=1), encoding="utf-8")


def report(topic: str, landing: Landing) -> str:
    """What a human needs to port a variant: the hunks that do not land, and what comes nearest."""
    parts = [f"{topic}: {landing.path.name} against {landing.patch.path}\n"]
    for hunk, result in zip(landing.patch.hunks, landing.results, strict=True):
        if result.state is State.PRISTINE:
            parts.append(f"lands at line {result.line}: the hunk in {hunk.scope}\n")
            continue
        parts.append(f"{result.state.value}: the hunk in {hunk.scope}\n{result.reason}\n")
        parts.append("".join(f"  {op}{text}\n" for op, text in hunk.lines))
        if landing.before is not None:
            parts.append(excerpt(hunk, result, landing.before.lines))
    return "\n".join(parts)


def excerpt(hunk: Hunk, result: HunkResult, lines: Sequence[str], around: int = 6) -> str:
    """The lines of the release near the places where a hunk could have been meant to land."""
    wanted = "\n".join(hunk.pre)
    starts = [
        line - 1 for line in result.candidates or (() if result.line is None else (result.line,))
    ]
    if not starts:
        size = len(hunk.pre)
        matcher = SequenceMatcher(b=wanted, autojunk=False)
        scored: list[tuple[float, int]] = []
        for start in range(max(1, len(lines) - size + 1)):
            matcher.set_seq1("\n".join(lines[start : start + size]))
            if matcher.real_quick_ratio() > 0.6 and matcher.quick_ratio() > 0.6:
                scored.append((matcher.ratio(), start))
        starts = [start for _, start in sorted(scored, reverse=True)[:3]]
    if not starts:
        return "no lines of the release come near\n"
    shown = []
    for start in starts:
        stop = min(len(lines), start + len(hunk.pre) + around)
        shown += [
            f"{number + 1:6} {lines[number]}\n" for number in range(max(0, start - around), stop)
        ]
        shown.append("       ...\n")
    return "near:\n" + "".join(shown[:-1])


# Commands


def _features(folder: Path, names: Sequence[str]) -> list[Path]:
    found = sorted(path.parent for path in folder.glob("*/feature.toml"))
    unknown = set(names) - {path.name for path in found}
    if unknown:
        raise click.UsageError(f"no feature {', '.join(sorted(unknown))} in {folder}")
    return [path for path in found if not names or path.name in names]


def _resolve(name: str) -> Tree:
    from overlay.targets.resolution import resolve

    return resolve(name)


_patches = click.option(
    "--patches",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=ROOT / "patches",
    help="The folder of features (default: those shipped).",
)
_names = click.option("--feature", "names", multiple=True, help="Only this feature; repeatable.")


@click.group()
def main() -> None:
    """Port patches to another release, and keep their numbers right."""


@main.command()
@click.argument("target")
@_patches
@_names
@click.option("--write", is_flag=True, help="Widen the ranges of what lands.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for what does not land.")
def check(
    target: str, patches: Path, names: tuple[str, ...], write: bool, out: Path | None
) -> None:
    """Say what would land on TARGET: a release, or a folder, wheel or sdist of one."""
    from overlay.targets.resolution import resolve

    found = resolve(target)
    if found.release is None:
        raise click.UsageError(f"{target}: its release cannot be told")
    release = parse_release(str(found.release))
    out = out or Path(f"port-{release}")
    whole = True
    for feature in _features(patches, names):
        texts: dict[str, SourceText] = {}
        landed: list[Landing] = []
        for topic in topics(feature):
            tried = port_topic(topic, release, texts, found)
            label = f"{feature.name}/{topic.name}"
            if tried and tried[-1].after is not None:
                texts[tried[-1].patch.path] = tried[-1].after
                landed.append(tried[-1])
                click.echo(f"{label}: {tried[-1].path.name} lands")
                continue
            whole = False
            out.mkdir(parents=True, exist_ok=True)
            file = out / f"{feature.name}.{topic.name}.txt"
            file.write_text("\n\n".join(report(label, one) for one in tried), encoding="utf-8")
            click.echo(f"{label}: nothing lands; see {file}")
        complete = len(landed) == len(topics(feature))
        if write and not complete:
            click.echo(f"{feature.name}: nothing is widened until all of it lands")
        elif write:
            for landing in landed:
                click.echo(f"  {landing.path.parent.name}: now {widen(landing.path, release).name}")
            widen_feature(feature / "feature.toml", release)
    if not whole:
        sys.exit(1)


@main.command("renumber")
@_patches
@_names
def renumber_command(patches: Path, names: tuple[str, ...]) -> None:
    """Set counts and line numbers of every variant from the first release of its range."""
    trees: dict[str, Tree] = {}
    for feature in _features(patches, names):
        for topic in topics(feature):
            for span, path in variants(topic):
                release = str(span.first)
                tree = trees.setdefault(release, _resolve(release))
                landing = land(path, _texts_before(feature, topic, span.first, tree), tree)
                if not landing.lands:
                    raise click.ClickException(report(topic.name, landing))
                old = path.read_text(encoding="utf-8")
                new = renumber(recount(old), landing.patch, landing.results)
                if new != old:
                    path.write_text(new, encoding="utf-8")
                    click.echo(f"{path.relative_to(patches)}: renumbered")


def _texts_before(
    feature: Path, topic: Path, release: Version, tree: Tree
) -> dict[str, SourceText]:
    """What the topics before one leave in a release."""
    texts: dict[str, SourceText] = {}
    for earlier in topics(feature):
        if earlier == topic:
            break
        path = next((path for span, path in variants(earlier) if release in span), None)
        landing = land(path, texts, tree) if path is not None else None
        if landing is not None and landing.after is not None:
            texts[landing.patch.path] = landing.after
    return texts


if __name__ == "__main__":
    try:
        main()
    except OverlayError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
