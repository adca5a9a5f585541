"""Turn a foreign change into a feature: split by file, placed in scopes, tried on every release.

Nothing is written here.  ``prepare`` gives the folder that would be written and a summary of what
was done with each file and how the change lands on each release.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from overlay.authoring.baseless import ByHand
from overlay.authoring.baseless import why as why_no_base
from overlay.authoring.building import EditedFile, FeatureChange, Prepared, Words, build
from overlay.authoring.composing import NotComposable, compose_file, contexts_from, whole_file
from overlay.authoring.incoming import ChangeKind, Commit, IncomingFile
from overlay.authoring.locating import (
    Base,
    Origin,
    ReleaseTexts,
    doubts,
    following_bytes,
    having,
    locate,
)
from overlay.authoring.mailbox import author_of, described
from overlay.authoring.triage import (
    FileFate,
    added_content,
    added_problem,
    sort_files,
    uncompilable,
)
from overlay.errors import command
from overlay.package import VLLM, Package
from overlay.planning.scopes import Syntax
from overlay.report.lines import enumeration
from overlay.report.progress import Progress, counting
from overlay.results import Fate

_PULL = re.compile(r"\(#(\d+)\)\s*$")
_UPSTREAM = "https://github.com/vllm-project/vllm"


def prepare(
    commits: Sequence[Commit],
    id_: str,
    texts: ReleaseTexts,
    *,
    source: str,
    verbatim: bytes,
    today: str,
    checkout: Origin | None = None,
    partial: bool = False,
    upstream: str = "",
    syntax: Syntax | None = None,
    package: Package = VLLM,
    context: int | None = None,
    progress: Progress | None = None,
    by_hand: ByHand | None = None,
) -> Prepared:
    """The feature that the commits, laid on each other, make.

    :param source: what errors and headers call the change; :param verbatim: its own bytes.
    :param upstream: the page of the pull request or commit; by default the subject may tell it.
    """
    edits, added, fates = sort_files(commits, partial, package)
    answers = syntax or Syntax()
    topics: list[EditedFile] = []
    warnings: list[str] = []
    contexts = contexts_from(context)
    contents = {path: added_content(file) for path, file in added.items()}

    def as_it_came(release: str) -> str:
        return f"place it by hand: {command('import', source, '--id', id_, '--release', release)}"

    place = by_hand or as_it_came
    with counting(progress, "placed", len(edits), "file") as step:
        for path, parts in edits.items():
            fate, topic = _topic(path, parts, texts, checkout, answers, contexts, place)
            fates.append(fate)
            step()
            if topic is None:
                continue
            topics.append(topic)
            warnings += doubts(topic.base, parts[0].hunks)
            if (new := parts[-1].new_path) is not None:
                added[new], contents[new] = parts[-1], topic.base.after
    for path, file in added.items():
        problem = added_problem(path, contents[path], answers)
        problem = None if problem is None else f"{file.place}: {problem}"
        fates.append(FileFate(path, Fate.ADDED, problem=problem))
    words = words_of(commits, id_, source, today, upstream, package)
    change = FeatureChange(
        tuple(topics), contents, tuple(fates), len(commits), context, tuple(warnings)
    )
    return build(change, words, texts, {"origin/01.patch": verbatim}, answers, progress)


def words_of(
    commits: Sequence[Commit], id_: str, source: str, today: str, upstream: str, package: Package
) -> Words:
    """What a feature of commits says about itself; the parameters are those of ``prepare``."""
    first = commits[0]
    title, words = first.subject or id_.replace("-", " ").capitalize(), described(first.message)
    pull = _PULL.search(title) if package == VLLM else None
    page = upstream or words.upstream or (f"{_UPSTREAM}/pull/{pull[1]}" if pull else "")
    further = [commit.subject for commit in commits[1:] if commit.subject]
    why = words.why or title
    if further:
        why = f"{why}\n\nWith: {enumeration(further)}."
    origin = f"other, {page or source}"
    fields = (id_, title, why, page, origin, author_of(first.author), today, package)
    return Words(*fields, words.keys, words.headers)


def _topic(
    path: str,
    parts: Sequence[IncomingFile],
    texts: ReleaseTexts,
    checkout: Origin | None,
    syntax: Syntax,
    contexts: Sequence[int],
    by_hand: ByHand,
) -> tuple[FileFate, EditedFile | None]:
    def refused(problem: str, part: IncomingFile = parts[0]) -> tuple[FileFate, None]:
        return FileFate(path, Fate.EDITED, problem=f"{part.place}: {problem}"), None

    def no_base() -> str:
        has_base = checkout is not None
        return why_no_base(parts[0], texts, parts[1:], checkout=has_base, by_hand=by_hand)

    base = locate(parts[0], texts, checkout, parts[1:])
    if base is None and parts[0].binary is not None:
        return refused(
            f"its old bytes, git's id {parts[0].old_blob}, are in no release that could be read: "
            "name a folder that has them with --base"
        )
    if base is None:
        return refused(no_base())
    after = base.after
    for part in parts[1:]:
        following = following_bytes(after, part)
        if following is None:
            return refused(
                f"expected {path} as the change before left it, found hunks that do not fit "
                "there: two changes of the same lines, or not in their order (--each makes a "
                "feature of each change)",
                part,
            )
        after = following
    base, last = replace(base, after=after), parts[-1]
    if last.kind in (ChangeKind.REMOVED, ChangeKind.RENAMED):
        if last.kind is ChangeKind.REMOVED and after:
            return refused(
                f"it removes {path}, and shows a part of its lines only: make it with `git diff "
                "--binary`, without -D",
                last,
            )
        release, by_id, words = base.release, base.by_id, _made_on(base, texts, checkout)
        fate = FileFate(path, Fate.EDITED, release, by_id, 1, removes=True, made_on=words)
        return fate, EditedFile(base, (whole_file(base.before, None),))
    try:
        hunks = compose_file(path, base.before, after, contexts)
    except NotComposable as error:
        if base.by_id or not having(parts[0], texts, parts[1:]):
            return refused(str(error))
        return refused(no_base())
    if (problem := uncompilable(path, after, syntax)) is not None:
        return refused(f"with the change, {problem}")
    words = _made_on(base, texts, checkout)
    fate = FileFate(path, Fate.EDITED, base.release, base.by_id, len(hunks), made_on=words)
    return fate, EditedFile(base, hunks)


def _made_on(base: Base, texts: ReleaseTexts, checkout: Origin | None) -> str:
    """The text that a change was made on, in words: every release in a row that has it.

    Where neither an id nor the user says which, other texts may have the same lines.
    """
    if base.release not in texts.names:
        return base.words
    has = [texts.read(name, base.path) == base.before for name in texts.names]
    first = last = texts.names.index(base.release)
    while first and has[first - 1]:
        first -= 1
    while last + 1 < len(has) and has[last + 1]:
        last += 1
    first_name, last_name = texts.names[first], texts.names[last]
    guess = "" if base.by_id or checkout is not None else ", by its lines"
    return (first_name if first == last else f"{first_name}..{last_name}") + guess
