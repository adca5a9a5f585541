"""Features, topics, patches and hunks as frozen data; nothing here reads or writes anything.

Paths are POSIX paths relative to the folder that holds the package (``vllm/``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from packaging.version import Version

from overlay._features.sources import SHARED
from overlay._features.switches import Switch
from overlay.package import VLLM, Package, ReleaseRange, is_module
from overlay.results import ModelRunner, Notice

#: The scope that matches anywhere in the file.
MODULE_SCOPE = "<module>"

#: The scope of a data file, which has no scopes of its own, and of a change of a whole file.
FILE_SCOPE = "<file>"

#: The origin of the features that come with the overlay.
SHIPPED = "shipped"


class UpstreamPlan(str, Enum):
    """Why a feature is kept as a patch: what upstream is expected to do with it."""

    WAITING = "waiting"
    LOCAL = "local"
    NEVER = "never"


class WholeFile(NamedTuple):
    """A change of a whole file: other bytes in its place, or none.

    :ivar before: git's id of the only bytes that it is for (sha1, 40 hexadecimal digits).
    :ivar after: the new bytes; ``None`` where the file is removed.
    """

    before: str
    after: bytes | None

    @classmethod
    def of(cls, before: bytes, after: bytes | None) -> WholeFile:
        """The change that makes ``after`` of ``before``."""
        return cls(blob_id(before), after)


def blob_id(data: bytes) -> str:
    """Git's id of a file with these bytes (sha1, hexadecimal)."""
    return hashlib.sha1(b"blob %d\0%s" % (len(data), data), usedforsecurity=False).hexdigest()


class Group(str, Enum):
    """What a feature is good for, as `list` groups them."""

    FASTER = "faster"
    MENDED = "mended"


class Fault(NamedTuple):
    """What is wrong without a feature that mends it.

    :ivar symptom: what a user sees, with the error's own words where there is one.
    :ivar affects: which settings have it.
    :ivar reports: addresses of upstream's reports.
    :ivar evidence: how it was shown, on stock and mended.
    :ivar page: address or path of a page about it; empty where there is none.
    """

    symptom: str
    affects: str
    evidence: str
    reports: tuple[str, ...] = ()
    page: str = ""


class Hunk(NamedTuple):
    """One hunk of a unified diff, without its line numbers' meaning: it lands by its pre-image.

    :ivar scope: qualified name of the class or function that holds it, or ``<module>``.
    :ivar lines: ``(op, text)`` with op one of ``" "``, ``"-"``, ``"+"``; text without line end.
    :ivar source_line: the hunk's first line in the file the diff was made from (a hint only).
    :ivar patch_line: 1-based line of the hunk's ``@@`` header in the patch file.
    :ivar pre_unfinished: the pre-image's last line is the file's last and has no line end.
    :ivar post_unfinished: the same of the post-image.
    :ivar base_has: added lines that its scope held already in the text that it was made on, so
        that finding them does not show that the hunk was applied; ``None`` where the text that it
        was made on is not known.
    :ivar whole: the change of the whole file, in the place of ``lines``; its scope is ``<file>``.
    :ivar heading: of a foreign diff, the line that it quotes above the hunk, for people.
    """

    scope: str
    lines: tuple[tuple[str, str], ...]
    source_line: int
    patch_line: int
    pre_unfinished: bool = False
    post_unfinished: bool = False
    base_has: tuple[str, ...] | None = None
    whole: WholeFile | None = None
    heading: str = ""

    @property
    def pre(self) -> tuple[str, ...]:
        """The pre-image: context and removed lines."""
        return tuple(text for op, text in self.lines if op != "+")

    @property
    def post(self) -> tuple[str, ...]:
        """The post-image: context and added lines."""
        return tuple(text for op, text in self.lines if op != "-")

    @property
    def shows_nothing(self) -> bool:
        """Whether its post-image is a part of its pre-image, so that nothing shows it was applied.

        A hunk that speaks of the final newline shows that instead.
        """
        if self.pre_unfinished or self.post_unfinished or self.whole is not None:
            return False
        pre, post = self.pre, self.post
        size = len(post)
        return any(pre[at : at + size] == post for at in range(len(pre) - size + 1))


class PortedWay(Enum):
    """How the text of a ported variant came about; the last word of ``Ported-From``."""

    MERGED = "merged"
    MOVED = "moved"
    BY_HAND = "by-hand"
    UPSTREAM = "upstream"
    NOT_NEEDED = "not-needed"


class Patch(NamedTuple):
    """A patch file: DEP-3 headers and the hunks for exactly one path.

    :ivar name: the patch file relative to its patches folder, for messages and reports.
    :ivar ported: how its text came about, where it was ported.
    """

    name: str
    path: str
    headers: Mapping[str, str]
    hunks: tuple[Hunk, ...]
    ported: PortedWay | None = None

    @property
    def retired(self) -> bool:
        """Whether none of its hunks is applied to the variant's releases.

        Upstream has them there, or a person said that they are not needed; they say what that was.
        """
        return self.ported in (PortedWay.UPSTREAM, PortedWay.NOT_NEEDED)


class Variant(NamedTuple):
    """The form a topic's patch takes in one closed range of releases."""

    releases: ReleaseRange
    patch: Patch


class AddedFile(NamedTuple):
    """A module or data file that a feature adds to its package."""

    path: str
    content: bytes


class UpstreamTest(NamedTuple):
    """A text or lines by which a release shows that it has a feature.

    :ivar scope: qualified name of the class or function of ``path`` that holds them.
    :ivar contains: a text that the scope must hold; empty where ``lines`` are given.
    :ivar lines: new lines of the change, without indentation.
    :ivar share: how much of the lines of all of a feature's tests must be in their scopes,
        from 0 to 1.
    :ivar topic: the one topic that they are about; empty where they are about the feature.
    """

    path: str
    scope: str
    contains: str = ""
    lines: tuple[str, ...] = ()
    share: float = 1.0
    topic: str = ""


class Topic(NamedTuple):
    """One topic of a feature; its variants never overlap.

    :ivar upstream_tests: all of them hold where upstream has this topic, whatever becomes of the
        others; none, and only its hunks can tell.
    """

    name: str
    variants: tuple[Variant, ...]
    upstream_tests: tuple[UpstreamTest, ...] = ()


class Build(NamedTuple):
    """Somebody's own build of a release, for which a feature is not made.

    :ivar name: whose it is.
    :ivar scope: qualified name of the class or function of ``path`` by which it is recognised.
    :ivar contains: a text that the scope holds in this build and in no other.
    :ivar text: why the feature does nothing there, and what the user can do.
    """

    name: str
    path: str
    scope: str
    contains: str
    text: str


@dataclass(frozen=True)
class Feature:
    """One capability that is applied or not as a whole.

    :ivar origin: the patches folder it came from (``shipped`` or a path).
    :ivar upstream_tests: all of them hold where upstream has merged the feature; none, and only
        the post-images can tell.
    :ivar builds: builds of releases in which the feature is not applied, whatever else they hold.
    :ivar merged: the first release that has the feature, if that is known: every later one has it.
    :ivar digest: sha256 over everything that decides what the feature does to a target.
    :ivar required: whether vLLM must not start without it where the plugin cannot bring it about.
    :ivar source: fingerprint of the folder that it was read from.
    :ivar notices: what the user should know about that folder, such as files that were ignored.
    :ivar switches: the variables that its code reads.
    :ivar model_runner: the only model runner whose code it patches (``v1`` or ``v2``); ``None``
        for a feature that does not depend on it.
    :ivar obsolete_without: files of the package that the feature is for: where a release has one of
        them no more, there is nothing left to do.  The file of its model runner is one of them.
    :ivar reason: why it is kept as a patch; ``None`` where its ``feature.toml`` does not say.
    :ivar package: the package that it patches.
    :ivar shared: paths of the modules among ``added`` that lie in ``shared/`` of its patches
        folder, for every feature there that names them.
    :ivar malformed: why its folder cannot be used, where the feature only stands for that.
    :ivar group: what it is good for; ``None`` where its ``feature.toml`` does not say.
    :ivar fault: what it mends; ``None`` where it mends nothing, or does not say what.
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
    notices: tuple[Notice, ...] = ()
    switches: tuple[Switch, ...] = ()
    model_runner: ModelRunner | None = None
    merged: Version | None = None
    builds: tuple[Build, ...] = ()
    reason: UpstreamPlan | None = None
    package: Package = VLLM
    obsolete_without: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    malformed: tuple[str, ...] = ()
    group: Group | None = None
    fault: Fault | None = None

    @property
    def shipped(self) -> bool:
        """Whether it comes with the overlay; other features are the user's own."""
        return self.origin == SHIPPED

    @property
    def patches(self) -> tuple[Patch, ...]:
        """Every patch of it, of whichever topic and releases."""
        return tuple(variant.patch for topic in self.topics for variant in topic.variants)

    @property
    def patched_paths(self) -> frozenset[str]:
        """The files that it patches."""
        return frozenset(patch.path for patch in self.patches)

    @property
    def changes_on_disk_only(self) -> tuple[str, ...]:
        """The data files that it changes and the files that it removes, which no import brings."""
        changed = {file.path for file in self.added if not is_module(file.path)}
        changed |= {
            patch.path
            for patch in self.patches
            if not is_module(patch.path) or any(hunk.whole for hunk in patch.hunks)
        }
        return tuple(sorted(changed))

    @property
    def on_disk_reason(self) -> str | None:
        """Why it can be applied on disk only, on any release; ``None`` where memory will do."""
        paths = self.changes_on_disk_only
        if not paths:
            return None
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return (
            f"it changes data files or removes files ({paths[0]}{more}), which no import brings; "
            "apply it on disk"
        )

    def shared_modules(self) -> dict[str, bytes]:
        """Path -> bytes of the modules that it shares with other features."""
        return {file.path: file.content for file in self.added if file.path in self.shared}

    def file_of(self, path: str) -> str:
        """The file of a module that it adds, below its patches folder.

        :param path: the module's path in the package.
        """
        return f"{SHARED if path in self.shared else self.id}/files/{path}"


def packages_of(features: Iterable[Feature]) -> tuple[Package, ...]:
    """The packages that features patch, each once: vLLM first, the others by name."""
    packages = {feature.package for feature in features}
    return tuple(sorted(packages, key=lambda package: (package != VLLM, package.name)))


def of_package(features: Iterable[Feature], package: Package) -> tuple[Feature, ...]:
    """The features that patch a package, in their order."""
    return tuple(feature for feature in features if feature.package == package)


def paths_of(features: Iterable[Feature]) -> list[str]:
    """Every file that features test, add or patch."""
    paths: list[str] = []
    for feature in features:
        tests = (feature.upstream_tests, *(topic.upstream_tests for topic in feature.topics))
        paths += [test.path for some in tests for test in some]
        paths += [build.path for build in feature.builds]
        paths += feature.obsolete_without
        paths += [added.path for added in feature.added]
        paths += [patch.path for patch in feature.patches]
    return paths
