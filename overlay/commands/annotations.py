"""What a check found as annotations of GitHub: each at the line of the patch that needs somebody.

A hunk that has drifted on many releases is told once, with the releases: of one step GitHub shows
ten annotations.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from overlay._features import sources
from overlay._features.model import Feature, Patch
from overlay.report.problems import explained, next_steps, word
from overlay.report.targets import CheckReport
from overlay.report.words import enumeration
from overlay.results import FeatureResult, FileResult, HunkResult, Reason, State
from overlay.untrusted import printable

if TYPE_CHECKING:
    from overlay.report.model import TargetReport

#: A target, the package, and a feature; empty for the target itself.
Key = tuple[str, str, str]


class Annotation(NamedTuple):
    """Something that needs somebody.

    :ivar file: the patch, or the ``feature.toml``; ``None`` where no file is to blame.
    :ivar line: 1-based; :ivar title: what it is, in a few words.
    """

    file: Path | None
    line: int
    title: str
    reason: Reason

    def command(self, targets: list[str]) -> str:
        """The command of GitHub's runner that shows it, with the targets that have it."""
        properties = [f"title={_escaped(self.title, in_property=True)}"]
        if self.file is not None:
            place = _escaped(_relative(self.file), in_property=True)
            properties = [f"file={place}", f"line={self.line}", *properties]
        text = f"on {enumeration(targets)}: {self.reason}"
        return f"::error {','.join(properties)}::{_escaped(text)}"


def runner_commands(report: CheckReport, features: Iterable[Feature], keys: Collection[Key]) -> str:
    """The commands of GitHub's runner, a line each.

    :param features: those at hand; :param keys: what is told, of all that needs somebody.
    """
    by_id = {feature.id: feature for feature in features}
    places: dict[Annotation, list[str]] = {}
    for target in report.checked:
        for each in _of_target(target, by_id, keys):
            cause = next((first for first in places if _same_cause(first, each)), each)
            places.setdefault(cause, []).append(target.target)
    lines = [cause.command(names) for cause, names in places.items()]
    lines += [f"::error title=overlay check::{_escaped(each.error)}" for each in report.failures]
    return "".join(f"{line}\n" for line in lines)


def _same_cause(first: Annotation, second: Annotation) -> bool:
    """Whether both tell of the same, but for the lines of a release's file."""
    return first[:3] == second[:3] and first.reason.common == second.reason.common


def _of_target(
    target: TargetReport, features: Mapping[str, Feature], keys: Collection[Key]
) -> Iterator[Annotation]:
    if (target.target, target.package, "") in keys:
        for obstacle in target.obstacles:
            yield Annotation(None, 1, obstacle.summary, obstacle.reason)
        if target.interrupted:
            step = f"run {target.command('apply')} or {target.command('revert')}"
            yield Annotation(None, 1, "interrupted", Reason("a transaction has not ended", step))
    steps = next_steps(target)
    for result in target.features:
        if (target.target, target.package, result.feature) in keys:
            yield from _of_feature(result, features.get(result.feature), steps)


def _of_feature(
    result: FeatureResult, feature: Feature | None, steps: Mapping[State, str]
) -> Iterator[Annotation]:
    """One for each hunk, or else file, that needs somebody; or else one for the feature."""
    title = f"{result.feature}: {word(result)}"
    files = [file for file in result.files if file.state.needs_attention]
    for file in files:
        place, patch = _patch(feature, file)
        numbers = [n for n, hunk in enumerate(file.hunks) if hunk.state.needs_attention]
        for number in numbers:
            hunk = file.hunks[number]
            reason = explained(hunk.state, hunk.reason or file.reason, steps)
            if reason is not None:
                line = _line(patch, file.hunks, number)
                yield Annotation(place, line, f"{title} in {hunk.scope}", reason)
        reason = explained(file.state, file.reason, steps)
        if not numbers and reason is not None:
            yield Annotation(place, 1, f"{title}, {file.path}", reason)
    reason = explained(result.state, result.reason, steps)
    if not files and reason is not None:
        yield Annotation(_patch(feature, None)[0], 1, title, reason)


def _patch(feature: Feature | None, file: FileResult | None) -> tuple[Path | None, Patch | None]:
    """The patch of a file of a feature and where it lies, or else its ``feature.toml``."""
    if feature is None or not feature.origin:
        return None, None
    folder = sources.shipped_folder() if feature.shipped else Path(feature.origin)
    for patch in feature.patches:
        if file is not None and patch.name == file.patch:
            return folder / patch.name, patch
    return folder / feature.id / "feature.toml", None


def _line(patch: Patch | None, hunks: tuple[HunkResult, ...], number: int) -> int:
    """The line of a hunk in its patch."""
    if patch is None:
        return 1
    scopes = [hunk.scope for hunk in patch.hunks]
    if scopes == [hunk.scope for hunk in hunks]:
        return patch.hunks[number].patch_line
    at = scopes.index(hunks[number].scope) if hunks[number].scope in scopes else 0
    return patch.hunks[at].patch_line


def _relative(file: Path) -> str:
    """A path as GitHub's runner takes it: below the checkout, where it lies there."""
    start = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    relative = os.path.relpath(file, start)
    return os.path.abspath(file) if relative.startswith("..") else relative


def _escaped(text: str, *, in_property: bool = False) -> str:
    """A text of which nothing is read as another command, or as another property."""
    escaped = printable(text, lines=True)
    letters = "%\r\n:," if in_property else "%\r\n"
    return "".join(f"%{ord(each):02X}" if each in letters else each for each in escaped)
