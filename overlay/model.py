"""What flows between the parts of the patcher: plain, frozen data.

Reading (``patchfile``, ``features``, ``targets``) makes the upper half of this page, planning
(``planning``) makes the lower half, and the commands only pass it on.  Nothing here reads or
writes anything.  Paths are POSIX paths relative to the folder that holds ``vllm/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from overlay.release_range import ReleaseRange
from overlay.results import FeatureResult as FeatureResult  # noqa: PLC0414  (public here)
from overlay.results import FileResult as FileResult  # noqa: PLC0414
from overlay.results import HunkResult as HunkResult  # noqa: PLC0414
from overlay.states import State, combine, worst

#: The scope that stands for anywhere in the file.
MODULE_SCOPE = "<module>"

#: Stands in a ``why`` before what to do, where the cause tells it better than the state alone.
NEXT = "; next: "


@dataclass(frozen=True)
class Hunk:
    """One hunk of a unified diff, without its line numbers' meaning: it lands by its pre-image.

    :ivar scope: qualified name of the class or function that holds it, or ``<module>``.
    :ivar lines: ``(op, text)`` with op one of ``" "``, ``"-"``, ``"+"``; text without line end.
    :ivar source_line: the hunk's first line in the file the diff was made from (a hint only).
    :ivar patch_line: 1-based line of the hunk's ``@@`` header in the patch file.
    :ivar pre_unfinished: the pre-image's last line is the file's last and has no line end.
    :ivar post_unfinished: the same of the post-image.
    """

    scope: str
    lines: tuple[tuple[str, str], ...]
    source_line: int
    patch_line: int
    pre_unfinished: bool = False
    post_unfinished: bool = False

    @property
    def pre(self) -> tuple[str, ...]:
        """The pre-image: context and removed lines."""
        return tuple(text for op, text in self.lines if op != "+")

    @property
    def post(self) -> tuple[str, ...]:
        """The post-image: context and added lines."""
        return tuple(text for op, text in self.lines if op != "-")


@dataclass(frozen=True)
class Patch:
    """A patch file: DEP-3 headers and the hunks for exactly one path.

    :ivar name: the patch file relative to its patches folder, for messages and reports.
    """

    name: str
    path: str
    headers: Mapping[str, str]
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Variant:
    """The form a topic's patch takes in one closed range of releases."""

    releases: ReleaseRange
    patch: Patch


@dataclass(frozen=True)
class Topic:
    """One topic of a feature; its variants never overlap."""

    name: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class AddedFile:
    """A module that a feature adds to vLLM."""

    path: str
    content: bytes


@dataclass(frozen=True)
class UpstreamTest:
    """What shows that a release has a feature: ``contains`` stands in ``scope`` of ``path``."""

    path: str
    scope: str
    contains: str


@dataclass(frozen=True)
class Feature:
    """One capability that is applied or not as a whole.

    :ivar origin: the patches folder it came from (``shipped`` or a path).
    :ivar upstream_tests: all of them hold where upstream has merged the feature; none, and only
        the post-images can tell.
    :ivar digest: sha256 over everything that decides what the feature does to a target.
    :ivar required: whether vLLM must not start without it where the plugin cannot bring it about.
    :ivar source: fingerprint of the folder that it was read from.
    """

    id: str
    title: str
    why: str
    upstream: str
    releases: ReleaseRange
    upstream_tests: tuple[UpstreamTest, ...]
    topics: tuple[Topic, ...]
    added: tuple[AddedFile, ...]
    origin: str
    digest: str
    needs: tuple[str, ...] = ()
    required: bool = False
    source: str | None = None


class Tree(Protocol):
    """The files of a target, as far as planning needs them."""

    def read(self, path: str) -> bytes | None:
        """The bytes of ``path``, or ``None`` where there is no such file."""


@dataclass(frozen=True)
class Change:
    """What becomes of one file: ``None`` stands for no file."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Plan:
    """Every feature's state, and the changes from the pristine tree to the patched one.

    :ivar changes: empty unless every selected feature can be applied; sorted by path.
    """

    features: tuple[FeatureResult, ...]
    changes: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """The target's state: the worst of its features."""
        return worst(feature.state for feature in self.features)


@dataclass(frozen=True)
class TargetReport:
    """One target's part of a command's answer.

    :ivar target: what the user named, or a release; :ivar root: ``None`` for read-only targets.
    """

    target: str
    vllm: str | None
    root: str | None
    state: State
    features: tuple[FeatureResult, ...] = ()
    warnings: tuple[str, ...] = field(default=())


def file_state(hunks: tuple[HunkResult, ...]) -> State:
    """The state of a patched file from its hunks."""
    return combine(hunk.state for hunk in hunks)
