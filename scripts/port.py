#!/usr/bin/env python3
"""Port a feature's patches to another release, and keep their numbers right.

    python scripts/port.py check 0.34.0              what would still land
    python scripts/port.py check 0.34.0 --write      widen the ranges of what lands
    python scripts/port.py renumber                  counts and line numbers, from the sources

``check`` takes each topic's variants, the nearest first, tries them as ``overlay apply`` would,
and says which one lands.  With ``--write``, once all of a feature lands, the range of each such
variant (or, where another variant lies between, of a copy of it) is widened to the release, and so
is the feature's.  For what does not land it writes, into the folder of ``--out``, each hunk with
the reason and the lines of the release that come nearest: write a variant for the release from
that, and run it again.  Exit status: 0 if all lands, 1 if not, 2 for a wrong usage or sources that
cannot be had.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from overlay.authoring.port import (
    Landing,
    Series,
    land,
    port_topic,
    recount,
    renumber,
    report,
    series_before,
    topics,
    variants,
    widen,
    widen_feature,
)
from overlay.errors import OverlayError
from overlay.package import Tree, parse_release

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
        series = Series(found)
        landed: list[Landing] = []
        for topic in topics(feature):
            tried = port_topic(topic, release, series)
            label = f"{feature.name}/{topic.name}"
            if tried and tried[-1].lands:
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
                landing = land(path, series_before(feature, topic, span.first, tree))
                if not landing.lands:
                    raise click.ClickException(report(topic.name, landing))
                old = path.read_text(encoding="utf-8")
                new = renumber(recount(old), landing.patch, landing.tried.result.hunks)
                if new != old:
                    path.write_text(new, encoding="utf-8")
                    click.echo(f"{path.relative_to(patches)}: renumbered")


if __name__ == "__main__":
    try:
        main()
    except OverlayError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
