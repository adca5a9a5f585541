"""``overlay import --release RELEASE``: a change that fits nowhere waits in a session of a port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from overlay.authoring import releases as package_releases
from overlay.authoring.commands.port import (
    ForeignChange,
    create,
    expect_no_session,
    session_folder,
)
from overlay.authoring.importing import words_of
from overlay.authoring.locating import Origin, ReleaseTexts
from overlay.authoring.onto import (
    Placeable,
    feature_at,
    own_feature,
    placeable,
    topics_of,
    with_own_text,
    write_once,
)
from overlay.authoring.porting import Porter
from overlay.authoring.reports.ported import PortReport, concluded, placed
from overlay.authoring.session import IMPORT
from overlay.authoring.sources import ChangeSource
from overlay.authoring.triage import added_content, sort_files
from overlay.authoring.writing import check_folder
from overlay.errors import UsageError, told_once
from overlay.package import Package
from overlay.planning.scope_cache import Memo
from overlay.report.codes import Code, Verdict


def release_of(text: str, package: Package) -> str:
    """The one release that ``--release`` names."""
    own, names = package_releases.names_in(text, package)
    if own.name != package.name or len(names) != 1:
        raise UsageError(
            f"--release {text}: expected one release of {package.title}, such as 0.26.0"
        )
    return names[0]


def open_onto(
    sources: Sequence[ChangeSource],
    id_: str,
    release: str,
    texts: ReleaseTexts,
    patches: Path,
    package: Package,
    *,
    checkout: Origin | None,
    partial: bool,
    update: bool,
) -> PortReport:
    """Open a session in which a change is placed on a release, or write it where nothing waits."""
    place = session_folder(release, package)
    expect_no_session(place)
    commits = [commit for source in sources for commit in source.commits]
    edits, added, _ = sort_files(commits, partial, package)
    files: list[Placeable] = []
    problems: list[tuple[str, str]] = []
    for path, parts in edits.items():
        file = placeable(path, parts, texts, release, checkout)
        if file is None:
            why = (
                f"{parts[0].place}: expected {path} in a release, as Python, found none: give the "
                "text that it was made on with --base, or leave it out of the diff"
            )
            problems.append((path, why))
        else:
            files.append(file)
    if problems:
        raise UsageError("\n".join(told_once(problems)))
    bases = [file.base for file in files]
    stuck = {file.base.path: file.text for file in files if file.text is not None}
    today = datetime.now().astimezone().date().isoformat()
    pages = list(dict.fromkeys(source.upstream for source in sources if source.upstream))
    page = pages[0] if len(pages) == 1 else ""
    words = words_of(commits, id_, sources[0].name, today, page, package)
    contents = {path: added_content(file) for path, file in added.items()}
    verbatim = b"".join(source.data for source in sources)
    folder = own_feature(topics_of(bases), contents, words, verbatim)
    notes = {
        "origin": words.origin,
        "author": words.author,
        "date": words.date,
        "patches": str(patches.absolute()),
        "update": "yes" if update else "",
    }
    syntax = Memo()
    own_texts = {base.path: base.before for base in bases}
    porter = Porter(with_own_text(texts, own_texts.get), syntax)
    port = porter.port(check_folder(folder, syntax), release)
    if port.idle:
        text = (
            f"Nothing was written: {release} has {id_} already ({port.evidence or port.obsolete})."
        )
        return PortReport(Verdict(Code.NOT_IMPORTED, text), (port,))
    why = "no merge can place all of its hunks: they stand between markers"
    topics = (replace(t, problem=why) if t.path in stuck else t for t in port.topics)
    port = replace(port, topics=tuple(topics))
    if not (port.conflicts or port.review):
        prepared = feature_at(port, notes, texts, verbatim, syntax)
        if prepared.folder is not None:
            written = write_once(prepared.folder, notes)
            return PortReport(placed(written, prepared.summary.releases, None), (port,))
    notes |= {f"stuck {path}": "yes" for path in stuck}
    change = ForeignChange(
        notes,
        {f"{IMPORT}/{id_}/{name}": data for name, data in folder.all_files().items()},
        own_texts,
        stuck,
    )
    folders = [str(patches)] if patches.is_dir() else []
    session = create(place, release, [port], folders, package, change)
    return PortReport(concluded((port,), [release], session, write=True), (port,), session)
