"""Whether a release has a feature, or one of its hunks, itself: by memory, by lines, by texts.

Memory comes first: a feature that upstream has merged is in every later release, whatever becomes
of its lines.  Then the tests of ``feature.toml`` are compared with the release's own files: a text
that a scope must hold, or the new lines of the change, a share of which must be in their scopes
(upstream goes on editing what it has merged, so not all of them last).  A hunk is judged by its own
new lines, so that "upstream took 21 of 23 hunks" can be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from packaging.version import Version

from overlay.features.model import Feature, Hunk, UpstreamTest
from overlay.planning.matching import new_lines, share_of

#: Upstream has a change where at least this share of its new lines is in its scope (measured on
#: 300 merged changes: 98 % are recognised in the first release that has them, and 0.3 % before).
SHARE = 0.6

#: Gives the lines of each place that a scope has in a file; none where it has no such scope.
ScopeLines = Callable[[str, str], Sequence[Sequence[str]]]


class Evidence(NamedTuple):
    """What shows that a release has a feature, or what is missing.

    :ivar merged: whether the release has it.
    :ivar text: what was found, or what was expected and not found.
    """

    merged: bool
    text: str


def evidence(feature: Feature, release: Version | None, scope_lines: ScopeLines) -> Evidence:
    """Whether a release has a feature, by its memory and its tests.

    A feature without either has no evidence; only its post-images can tell then.

    :param release: ``None`` where it is not known, and memory says nothing.
    :param scope_lines: reads the release's own files.
    """
    if release is not None and remembers(feature, release):
        return Evidence(True, f"every release from {feature.merged} on has it")
    texts = [test for test in feature.upstream_tests if test.contains]
    lined = [test for test in feature.upstream_tests if test.lines]
    missing = [test for test in texts if not _contains(test, scope_lines)]
    if missing:
        return Evidence(False, "; ".join(map(_named, missing)))
    there, wanted = _counted(lined, scope_lines)
    if lined and there < wanted * min(test.share for test in lined):
        return Evidence(False, f"{there} of the {wanted} lines of the change are in their scopes")
    said = [f"{_named(test)}" for test in texts]
    if lined:
        said.append(f"{there} of the {wanted} lines of the change are in their scopes")
    return Evidence(bool(said), "; ".join(said))


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


def taken(hunk: Hunk, places: Iterable[Sequence[str]]) -> Evidence:
    """Whether a release has one hunk, by the share of its new lines in its scope.

    Nothing is known of a hunk whose base is not known: its lines may have been there before.

    :param places: the lines of each place that the hunk's scope has in the release's own file.
    """
    telling = () if hunk.base_has is None else new_lines(hunk)
    share = max((share_of(telling, lines) for lines in places), default=0.0)
    if not telling or share < SHARE:
        return Evidence(False, "")
    number = round(share * len(telling))
    return Evidence(True, f"{number} of its {len(telling)} new lines are in {hunk.scope}")


def _contains(test: UpstreamTest, scope_lines: ScopeLines) -> bool:
    return any(test.contains in "\n".join(lines) for lines in scope_lines(test.path, test.scope))


def _counted(tests: Sequence[UpstreamTest], scope_lines: ScopeLines) -> tuple[int, int]:
    """How many lines of the tests are in their scopes, and how many lines the tests have."""
    there = wanted = 0
    for test in tests:
        wanted += len(test.lines)
        shares = (share_of(test.lines, lines) for lines in scope_lines(test.path, test.scope))
        there += round(max(shares, default=0.0) * len(test.lines))
    return there, wanted


def _named(test: UpstreamTest) -> str:
    return f"{test.contains.strip()!r} in {test.scope} of {test.path}"
