"""The one rule for "does this release have this change", asked by every command and the plugin.

Memory comes first: a feature that upstream has merged is in every later release, whatever becomes
of its lines.  Then come the texts that its author names (``[[upstreamed]]``).  Otherwise only
certainty retires: each hunk's post-image stands, or every line of code that it adds does
(``overlay.planning.telling``), and every added module is there.  A missing line of code is never
outvoted; where much of a change is there, ``Evidence.partly`` asks for a person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from packaging.version import Version

from overlay._features.model import MODULE_SCOPE, AddedFile, Feature, Hunk, UpstreamTest, Variant
from overlay.package import hiding, is_module
from overlay.planning.code_lines import code_lines, margin_of
from overlay.planning.telling import (
    SHARE,
    Place,
    missing_of,
    partly,
    place_of,
    present,
    quoted,
)
from overlay.results import ANY_MORE, RUNNER_FILES, Outcome

#: Gives the lines of each place that a scope has in a file; none where it has no such scope.
ScopeLines = Callable[[str, str], Sequence[Sequence[str]]]


class Evidence(NamedTuple):
    """What shows that a release has a feature, or what is missing.

    :ivar merged: whether the release has it.
    :ivar text: what was found, or what was expected and not found.
    :ivar partly: whether so much of it is there that a person has to look.
    """

    merged: bool
    text: str
    partly: bool = False


def evidence(feature: Feature, release: Version | None, scope_lines: ScopeLines) -> Evidence:
    """Whether a release has a feature, by its memory and its tests.

    A feature without either has no evidence; only its hunks and modules can tell then.

    :param release: ``None`` where it is not known, and memory says nothing.
    :param scope_lines: reads the release's own files.
    """
    if release is not None and remembers(feature, release):
        return Evidence(True, f"every release from {feature.merged} on has it")
    texts = [test for test in feature.upstream_tests if test.contains]
    lined = [test for test in feature.upstream_tests if test.lines]
    missing = [test for test in texts if not _contains(test, scope_lines)]
    if missing:
        return Evidence(False, "; ".join(map(_label, missing)))
    total, lacking = _counted(lined, scope_lines)
    counted = f"{total - len(lacking)} of the {total} lines of the change are in their scopes"
    if lacking:
        much = total - len(lacking) >= total * min(test.share for test in lined)
        return Evidence(False, f"{counted}; missing: {quoted(lacking)}", much)
    if any(test.share < 1 for test in lined) and not _nothing_denies(feature, release, scope_lines):
        return Evidence(False, f"{counted}, but not all of the change", True)
    facts = [f"{_label(test)}" for test in texts]
    if lined:
        facts.append(counted)
    return Evidence(bool(facts), "; ".join(facts))


def _nothing_denies(feature: Feature, release: Version | None, scope_lines: ScopeLines) -> bool:
    """Whether no module and no hunk of a feature is known to be missing."""
    for added in feature.added:
        if (
            not is_module(added.path)
            or not has_module(added, scope_lines(added.path, MODULE_SCOPE)).merged
        ):
            return False
    for topic in feature.topics:
        patch = by_distance(topic.variants, release)[0].patch
        for hunk in patch.hunks if not patch.retired else ():
            if hunk.whole is not None:
                return False
            places = [place_of(tuple(lines)) for lines in scope_lines(patch.path, hunk.scope)]
            presence = present(hunk, places, patch.hunks)
            if presence.leftover or (presence.added_count and not presence.whole):
                return False
    return True


def by_distance(variants: Iterable[Variant], release: Version | None) -> list[Variant]:
    """The variants, the most likely first: the newest that is not newer than the release."""
    newest = sorted(variants, key=lambda variant: variant.releases, reverse=True)
    if release is None:
        return newest
    older = [variant for variant in newest if variant.releases.first <= release]
    newer = [variant for variant in reversed(newest) if variant.releases.first > release]
    return [*older, *newer]


def remembers(feature: Feature, release: Version) -> bool:
    """Whether a feature's memory says that a release has it, whatever the release's files hold."""
    return feature.merged is not None and Version(release.base_version) >= feature.merged


def build_of(feature: Feature, scope_lines: ScopeLines) -> str | None:
    """Whose build of a release this is, where the feature is not made for it; ``None`` elsewhere.

    A build that has a change of its own may show all the texts of upstream's.
    """
    for build in feature.builds:
        places = scope_lines(build.path, build.scope)
        if any(build.contains in "\n".join(lines) for lines in places):
            return f"this is {build.name}'s build of the release: {build.text}"
    return None


def hunk_is_upstream(
    hunk: Hunk, places: Iterable[Sequence[str] | Place], patch_hunks: Sequence[Hunk] = ()
) -> Evidence:
    """Whether a release has one hunk by the lines that it adds; images are ``matching``'s part.

    Nothing is known of a hunk whose base is not known: its lines may have been there before.

    :param places: the lines of each place that the hunk's scope has in the release's own file.
    :param patch_hunks: the hunks of its patch, which may add the same lines in the same scope.
    """
    if hunk.whole is not None:
        return Evidence(False, "")
    read = (each if isinstance(each, Place) else Place(each) for each in places)
    presence = present(hunk, read, patch_hunks)
    if presence.whole:
        return Evidence(
            True, f"all {presence.added_count} lines of code that it adds are in {hunk.scope}"
        )
    if presence.share < SHARE:
        return Evidence(False, "")
    return Evidence(False, partly(hunk, presence).text, True)


def module_in(added: AddedFile, data: bytes) -> Evidence:
    """Whether a release's file of its name is an added module, or a later version of it."""
    if data == added.content:
        return Evidence(True, "the release has the module")
    if not is_module(added.path):
        return Evidence(False, "")
    return has_module(added, [data.decode("utf-8", "replace").splitlines()])


def module_outcome(added: AddedFile, read: Callable[[str], bytes | None]) -> Outcome:
    """What becomes of an added module where a release has something of its name, or nothing.

    :param read: gives the bytes of a file of the release; ``None`` where it has none.
    """
    data = read(added.path)
    if data is None:
        hidden = is_module(added.path) and read(hiding(added.path)) is not None
        return Outcome.EXACT if not hidden else Outcome.CONFLICT
    return Outcome.UPSTREAM if module_in(added, data).merged else Outcome.CONFLICT


def has_module(added: AddedFile, places: Sequence[Sequence[str]]) -> Evidence:
    """Whether a release has an added module: all of its lines of code, in their order.

    A later version of the module, which only adds lines, has them too.

    :param places: the lines of the release's file of that name, as one place; none without one.
    """
    if not places:
        return Evidence(False, "")
    own = added.content.decode("utf-8", "replace").splitlines()
    code = [own[at] for at, _ in code_lines(own)]
    lacking = missing_of(code, places[0])
    number = f"{len(code) - len(lacking)} of the {len(code)} lines of code of the module"
    if lacking:
        much = len(code) - len(lacking) >= SHARE * len(code)
        text = f"{number} are in the release's file of that name; missing: {quoted(lacking)}"
        return Evidence(False, text, much)
    if not code or not _as_written(own, places[0]):
        return Evidence(
            False, "the release's file of that name has other code, order or indentation"
        )
    return Evidence(True, f"the release has the module: {number} are there")


def _as_written(own: Sequence[str], lines: Sequence[str]) -> bool:
    """Whether the lines of code of a module stand in a file, in order and as far in."""
    rest = ((key, margin_of(lines[at])) for at, key in code_lines(lines))
    return all((key, margin_of(own[at])) in rest for at, key in code_lines(own))


def _contains(test: UpstreamTest, scope_lines: ScopeLines) -> bool:
    return any(test.contains in "\n".join(lines) for lines in scope_lines(test.path, test.scope))


def _counted(tests: Sequence[UpstreamTest], scope_lines: ScopeLines) -> tuple[int, list[str]]:
    """How many lines of code the tests have, and which of them are not in their scopes."""
    total = 0
    lacking: list[str] = []
    for test in tests:
        own = [test.lines[at] for at, _ in code_lines(test.lines)]
        total += len(own)
        remainders = [missing_of(own, lines) for lines in scope_lines(test.path, test.scope)]
        fewest: list[str] = min([own, *remainders], key=len)
        lacking += fewest
    return total, lacking


def _label(test: UpstreamTest) -> str:
    return f"{test.contains.strip()!r} in {test.scope} of {test.path}"


def obsolete_by(
    feature: Feature,
    release: Version | None,
    read: Callable[[str], bytes | None],
    record: Mapping[str, str] | None,
) -> str | None:
    """What a release has no more that the feature is for; ``None`` where nothing of it is gone.

    A model runner that upstream has deleted takes with it what was made for it: nobody has to act.
    Only the files that a feature names say so; any other that is not there is missing.  The
    release's own RECORD says which files it has: one that it lists is missing from the tree and not
    gone.  Without a RECORD a file that a variant for the release patches is missing, for it
    was there when that was written.

    :param read: gives a file of the release's own tree.
    :param record: the release's own files, where it has a RECORD.
    """
    title = feature.package.title
    for path in feature.obsolete_without:
        was_there = release is not None and any(
            variant.patch.path == path and release in variant.releases
            for topic in feature.topics
            for variant in topic.variants
        )
        if read(path) is not None or (was_there if record is None else path in record):
            continue
        runner = next((each for each, file in RUNNER_FILES.items() if file == path), None)
        if runner is not None:
            return f"{title} has no model runner {runner.value.upper()} {ANY_MORE}"
        return f"{title} has no {path} {ANY_MORE}, which the feature is for"
    return None
