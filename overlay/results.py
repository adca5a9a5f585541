"""Result types that plans compute, ledgers store and reports show."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class State(str, Enum):
    """State of a hunk, a file, a feature or a target; ordered from best to worst."""

    APPLIED = "applied"
    UPSTREAMED = "upstreamed"
    INAPPLICABLE = "inapplicable"
    PRISTINE = "pristine"
    PARTIAL = "partial"
    DRIFTED = "drifted"
    AMBIGUOUS = "ambiguous"
    MISSING = "missing"

    @property
    def needs_attention(self) -> bool:
        """Whether somebody has to act before the target can be patched or trusted."""
        return self.rank >= State.PARTIAL.rank

    @property
    def rank(self) -> int:
        """Position in the order from best (0) to worst."""
        return _ORDER.index(self)


_ORDER = tuple(State)


def worst(states: Iterable[State]) -> State:
    """The worst of independent states, such as those of the features of a target.

    Without any state it is ``inapplicable``: there is nothing to do.
    """
    return max(states, key=lambda state: state.rank, default=State.INAPPLICABLE)


def combine(states: Iterable[State]) -> State:
    """The state of a whole from its parts: the hunks of a file, the files of a feature.

    A whole of which one part is in (``applied`` or ``upstreamed``) while another could
    still be applied (``pristine``) is ``partial``; otherwise the worst part wins.
    """
    parts = set(states)
    whole = worst(parts)
    if whole is State.PRISTINE and parts & {State.APPLIED, State.UPSTREAMED}:
        return State.PARTIAL
    return whole


class Way(str, Enum):
    """The way in which a process of vLLM came to run patched code, if it does."""

    DISK = "disk"
    MEMORY = "memory"
    BOTH = "both"
    #: No feature is active.
    NONE = "none"
    #: The plugin was told to do nothing; what is on disk runs all the same.
    OFF = "off"

    @property
    def patched(self) -> bool:
        """Whether the plugin found or put patched code in the process."""
        return self in (Way.DISK, Way.MEMORY, Way.BOTH)

    def __or__(self, other: Way) -> Way:
        """The way of a process that runs code of both ways; neither may be ``OFF``."""
        ways = {self, other} - {Way.NONE}
        return ways.pop() if len(ways) == 1 else Way.BOTH if ways else Way.NONE


class Reason(NamedTuple):
    """Why something is in its state, and what to do about it.

    :ivar text: what was expected and what was found, as the part of a sentence.
    :ivar next_step: what to do, where the cause tells it better than the state alone.
    :ivar cause: the text without line numbers, where it has some; see ``common``.
    """

    text: str
    next_step: str | None = None
    cause: str = ""

    @property
    def common(self) -> str:
        """What the same cause has in common on every release: the text without line numbers."""
        return self.cause or self.text

    def __str__(self) -> str:
        return self.text if self.next_step is None else f"{self.text}; {self.next_step}"


class Clash(Reason):
    """Why features are not applied together: they change the same lines."""

    __slots__ = ()


class Unusable(Reason):
    """Why nothing is known of a feature: its files are malformed."""

    __slots__ = ()


class Notice(NamedTuple):
    """Something that the user should know, though no state says it.

    :ivar path: the file that it is about; ``None``: the target as a whole.
    """

    path: str | None
    text: str

    def __str__(self) -> str:
        return self.text if self.path is None else f"{self.path}: {self.text}"


class HunkResult(NamedTuple):
    """State of one hunk.  ``line`` is where its pre-image (or post-image) begins, 1-based."""

    scope: str
    state: State
    line: int | None = None
    reason: Reason | None = None
    candidates: tuple[int, ...] = ()


class FileResult(NamedTuple):
    """State of one file of a feature; an added module is a file with no hunks."""

    path: str
    state: State
    patch: str | None = None
    hunks: tuple[HunkResult, ...] = ()
    reason: Reason | None = None


class FeatureResult(NamedTuple):
    """State of one feature in a target.

    :ivar untested: the release is covered by no variant's range and was judged by content.
    """

    feature: str
    state: State
    files: tuple[FileResult, ...] = ()
    reason: Reason | None = None
    untested: bool = False

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The file and scope of each hunk."""
        return tuple((file.path, hunk.scope) for file in self.files for hunk in file.hunks)


class Change(NamedTuple):
    """Bytes of one file before and after; ``None``: no such file."""

    path: str
    before: bytes | None
    after: bytes | None


class Plan(NamedTuple):
    """Every feature's state, and the changes from the pristine tree to the patched one.

    :ivar changes: empty unless every selected feature can be applied; sorted by path.
    :ivar notices: about files that are not the release's own, among others.
    """

    features: tuple[FeatureResult, ...]
    changes: tuple[Change, ...] = ()
    notices: tuple[Notice, ...] = ()

    @property
    def state(self) -> State:
        """The target's state: the worst of its features."""
        return worst(feature.state for feature in self.features)


def file_state(hunks: tuple[HunkResult, ...]) -> State:
    """The state of a patched file from its hunks."""
    return combine(hunk.state for hunk in hunks)


class ModelRunner(str, Enum):
    """A model runner of vLLM; a feature may name the only one that it patches."""

    V1 = "v1"
    V2 = "v2"


#: The file of each model runner: where a release has it no more, the runner is gone.
RUNNER_FILES = {
    ModelRunner.V1: "vllm/v1/worker/gpu_model_runner.py",
    ModelRunner.V2: "vllm/v1/worker/gpu/model_runner.py",
}

#: What the reason of a feature says that is for nothing, since upstream deleted what it is for.
ANY_MORE = "any more"


class Fate(str, Enum):
    """What an import or a session of edits does with a file."""

    EDITED = "edited"
    ADDED = "added"
    #: An added module that the edits removed.
    REMOVED = "removed"
    #: The edits took back all that the feature changed in it.
    OWN = "as the release has it"
    #: A session that begins holds it for editing.
    TO_EDIT = "to edit"
    TESTS = "tests, examples and CI"
    DOCS = "documentation"
    #: What says how a project is built and what is installed beside it.
    PACKAGING = "packaging"
    OUTSIDE = "outside the package"
    #: The mode of a file whose text is carried.
    MODE = "modes of files"
    #: What has no text: a symbolic link, a submodule, an entry that shows no change.
    TEXTLESS = "entries without a text"


class Outcome(Enum):
    """How a hunk was carried; ordered from nothing to do to nothing possible."""

    UPSTREAM = "upstream"
    EXACT = "exact"
    MERGED = "merged"
    MOVED = "moved"
    PARTLY = "partly upstream"
    CONFLICT = "conflict"
    MISSING = "missing"

    @property
    def wants_review(self) -> bool:
        """Whether a person has to look at the result before it is used."""
        return self in (Outcome.MERGED, Outcome.MOVED)


def whole_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of a whole from its parts: the worst, and ``PARTLY`` where upstream has some.

    Without any part it is ``EXACT``: nothing prevents it.
    """
    parts = set(outcomes)
    worst = max(parts, key=list(Outcome).index, default=Outcome.EXACT)
    partly = Outcome.UPSTREAM in parts and worst in (Outcome.EXACT, Outcome.MERGED, Outcome.MOVED)
    return Outcome.PARTLY if partly else worst
