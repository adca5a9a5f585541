"""A port's session: the files that wait for a person, in a folder that survives all but its end.

``port-RELEASE/<feature>/<topic>/<package>/...`` is the release's file with every hunk that lands,
and the others between markers.  Everything else is worked out again from patches and releases, so
that the folder cannot disagree with them; the digests of the features say whether they are still
those that the session began with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from overlay.authoring import disk
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.port_views import conflict, marker_lines
from overlay.authoring.ports import FeaturePort, TopicPort, as_patch
from overlay.authoring.session_document import (
    DOCUMENT,
    Kind,
    from_anywhere,
    head,
    package_of,
    read_document,
    read_file,
    release_of,
    require_own,
    text_of,
)
from overlay.authoring.writing import toml_string
from overlay.errors import UsageError
from overlay.features.model import Feature
from overlay.package import VLLM, Package, path_problem, require_id, require_text
from overlay.planning.attempt import Texts, attempt
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.text import TextError
from overlay.results import Outcome
from overlay.results.invocation import absolute, command
from overlay.untrusted import sha256


@dataclass(frozen=True)
class Waiting:
    """One topic that waits for a person.

    :ivar digest: of its feature when the session began.
    :ivar path: the file of the package; :ivar base: the release that its variant was made on.
    :ivar laid: sha256 of the text that was laid out; empty where the release has no such file.
    """

    feature: str
    digest: str
    topic: str
    path: str
    base: str
    laid: str

    @property
    def name(self) -> str:
        """The file to edit, below the session's folder."""
        return f"{self.feature}/{self.topic}/{self.path}"


@dataclass(frozen=True)
class PortSession:
    """A session.

    :ivar patches: the folders of patches that were named beside the shipped one.
    :ivar waiting: in the order of the series; :ivar package: whose release it is.
    """

    folder: Path
    release: str
    patches: tuple[str, ...]
    waiting: tuple[Waiting, ...]
    package: Package = VLLM

    @property
    def features(self) -> tuple[str, ...]:
        """The ids of the features that wait."""
        return tuple(dict.fromkeys(entry.feature for entry in self.waiting))

    def text(self, entry: Waiting) -> bytes | None:
        """The present bytes of a file to edit; ``None`` where there is none.

        :raises UsageError: if it is not a plain file.
        """
        return read_file(self.folder, entry.name)


def session_folder(release: str, package: Package = VLLM) -> Path:
    """The folder of a port's session in the working folder."""
    return Path(f"port-{release}" if package == VLLM else f"port-{package.distribution}-{release}")


def create(
    folder: Path,
    release: str,
    ports: Sequence[FeaturePort],
    patches: Sequence[str],
    package: Package = VLLM,
) -> Path:
    """Make a session for the topics of ports that wait for a person, whole or not at all.

    :param package: whose release it is.

    :raises UsageError: if something is there already; :raises OSError: if it cannot be written.
    :raises NotPrivate: if somebody else could have written the patches.
    """
    contents: dict[str, bytes] = {}
    entries: list[Waiting] = []
    for port in ports:
        for topic in port.topics:
            if not topic.covered and (topic.conflicts or topic.review):
                texts = conflict(topic, release)
                laid = "" if texts is None else sha256(texts.merged)
                entry = Waiting(
                    port.feature.id,
                    port.feature.digest,
                    topic.topic,
                    topic.path,
                    topic.base,
                    laid,
                )
                entries.append(entry)
                if texts is not None:
                    contents[entry.name] = texts.merged
        if port.problem is not None:
            added = port.feature.added[0].path
            entries.append(Waiting(port.feature.id, port.feature.digest, "files", added, "", ""))
    places = tuple(str(Path(p).absolute()) for p in patches)
    session = PortSession(folder, release, places, tuple(entries), package)
    contents[DOCUMENT] = _rendered(session)
    _require_own_patches(session)
    try:
        disk.appear(folder, contents)
    except FileExistsError as error:
        raise UsageError(
            f"{folder}: expected nothing there, for a new session; end the one that is there with "
            f"{command('port', '--continue', absolute(folder))} or `--abort`, or move it away"
        ) from error
    return folder


def find(named: str | None) -> Path:
    """The folder of the session that is meant.

    :param named: as the user gave it; ``None``: the only one in the working folder.
    :raises UsageError: if there is none, or several.
    """
    if named is not None:
        return from_anywhere(Path(named))
    there = sorted(path.parent for path in Path().glob(f"port-*/{DOCUMENT}"))
    if len(there) == 1:
        return there[0]
    names = ", ".join(map(str, there)) or "none"
    raise UsageError(
        f"expected one session port-RELEASE/ in this folder, found {names}; name its folder"
    )


def load(folder: Path) -> PortSession:
    """Read a session.

    :raises UsageError: if there is none, or it is damaged.
    :raises NotPrivate: if somebody else could have written it, or the patches that it names.
    """
    session = read_document(folder, Kind.PORT, lambda table: _session(folder, table))
    _require_own_patches(session)
    return session


def _require_own_patches(session: PortSession) -> None:
    for place in session.patches:
        require_own(Path(place))


def without(session: PortSession, id_: str) -> PortSession:
    """A session that no longer waits for a feature, whose files are removed.

    :raises UsageError: if it does not wait for it.
    :raises OSError: if it cannot be written.
    """
    if id_ not in session.features:
        raise UsageError(
            f"{id_}: expected one of {', '.join(session.features) or 'none'}, for which "
            f"{session.folder} waits"
        )
    left = replace(
        session, waiting=tuple(entry for entry in session.waiting if entry.feature != id_)
    )
    if not left.waiting:
        end(session)
        return left
    gone = [entry for entry in session.waiting if entry.feature == id_]
    for entry in gone:
        session.text(entry)  # refused now, where a link lies there
    disk.write_below(session.folder, DOCUMENT, _rendered(left))
    for entry in gone:
        disk.remove_below(session.folder, entry.name)
    return left


def end(session: PortSession) -> bool:
    """Remove a session that was carried out; files that are not its own stay.

    :returns: whether its folder is gone.
    :raises OSError: if it cannot be removed.
    """
    return disk.withdraw(session.folder, DOCUMENT, [entry.name for entry in session.waiting])


def check_there(session: PortSession, features: Mapping[str, Feature]) -> None:
    """Refuse a session whose features are not at hand.

    :raises UsageError: naming the first that is missing.
    """
    for id_ in session.features:
        if id_ not in features:
            raise UsageError(
                f"{id_}: expected the feature of {session.folder}, found none of that id; name "
                "its folder with --patches, or end the session with --abort"
            )


def is_stale(entry: Waiting, features: Mapping[str, Feature]) -> bool:
    """Whether a feature was changed since its session began."""
    return features[entry.feature].digest != entry.digest


def check_digests(session: PortSession, features: Mapping[str, Feature]) -> None:
    """Refuse a session whose features were changed since it began.

    :raises UsageError: naming what changed; nothing is lost.
    """
    changed = [entry.feature for entry in session.waiting if is_stale(entry, features)]
    if changed:
        raise UsageError(
            f"{changed[0]}: its patches were changed since {session.folder} began, so its files do "
            "not follow from them any more. Nothing was written: copy your edits, then --abort and "
            "port again"
        )


def resolved(
    session: PortSession, ports: Sequence[FeaturePort], syntax: Syntax
) -> tuple[FeaturePort, ...]:
    """The ports with the hunks that the edited files make.

    :param ports: of the features that the session waits for, carried again.
    :raises UsageError: naming every file that has markers, is not Python, or cannot be written as
        hunks; nothing is lost.
    """
    problems: list[str] = []
    made: list[FeaturePort] = []
    for port in ports:
        waiting = {e.topic: e for e in session.waiting if e.feature == port.feature.id}
        topics = [
            _edited(session, waiting[topic.topic], topic, syntax, problems)
            if topic.topic in waiting
            else topic
            for topic in port.topics
        ]
        result = replace(port, topics=tuple(topics))
        if result.topics and all(topic.made is None for topic in result.topics):
            result = retired(result)
        elif not problems:
            problems += _not_landing(result, syntax)
        made.append(result)
        if port.problem is not None:
            problems.append(f"{port.problem}: --retire or --skip {port.feature.id}")
    if problems:
        raise UsageError("\n".join(problems))
    return tuple(made)


def _edited(
    session: PortSession, entry: Waiting, topic: TopicPort, syntax: Syntax, problems: list[str]
) -> TopicPort:
    """A topic with the hunks of its edited file; what is wrong with that is added to problems."""
    place = session.folder / entry.name
    data = session.text(entry)
    if data is None or topic.before is None:
        why = "the release has no such file" if topic.before is None else "it is not there any more"
        problems.append(f"{place}: {why}: --retire or --skip {entry.feature}")
        return topic
    if lines := marker_lines(data):
        problems.append(f"{place}:{lines[0]}: expected no markers of a conflict, found some")
        return topic
    if (error := syntax.compile_error(data, entry.path)) is not None:
        problems.append(f"{place}: expected Python: {error}")
        return topic
    if data == topic.before:
        return _retired(topic)
    try:
        hunks = compose(topic.before, data)
    except (NotComposable, TextError, UnparsableError) as error:
        problems.append(f"{place}: expected a change that hunks can carry: {error}")
        return topic
    carried = tuple(
        replace(topic.hunks[0], hunk=hunk, outcome=Outcome.EXACT, scope=hunk.scope, merge=None)
        for hunk in hunks
    )
    return replace(topic, hunks=carried, made=hunks, after=data, by_hand=True, problem=None)


def _retired(topic: TopicPort) -> TopicPort:
    """A topic whose hunks upstream has: what the release has is kept."""
    carried = tuple(replace(hunk, outcome=Outcome.UPSTREAM, merge=None) for hunk in topic.hunks)
    return replace(topic, hunks=carried, made=None, after=topic.before, by_hand=True, problem=None)


def retired(port: FeaturePort) -> FeaturePort:
    """A port by which upstream has the whole feature: in the session's release and every later one,
    where that is newer than all variants, or else in that release.
    """
    last = max((v.releases.last for t in port.feature.topics for v in t.variants), default=None)
    newest = max(filter(None, (last, port.feature.releases.last)))
    topics = tuple(map(_retired, port.topics))
    told = "a person retired it there" if Version(port.release) > newest else ""
    return replace(port, topics=topics, problem=None, shown=told, by_hand=True)


def _not_landing(port: FeaturePort, syntax: Syntax) -> list[str]:
    """What is wrong with a series: each topic must give its edited file, byte for byte, alone,
    and land on what the topics before it leave.
    """
    texts = Texts(syntax)
    laid: dict[str, bytes] = {}
    problems = []
    for topic in port.topics:
        if topic.made is None or topic.before is None:
            continue
        patch = as_patch(topic)
        name = f"{port.feature.id}/{topic.topic}"
        if topic.by_hand and attempt(patch, topic.before, texts).after != topic.after:
            problems.append(f"{name}: its hunks do not give the edited file byte for byte")
        after = attempt(patch, laid.get(topic.path, topic.before), texts).after
        if after is None:
            problems.append(f"{name}: it does not land on what the topics before it leave")
        else:
            laid[topic.path] = after
    return problems


# The document


def _rendered(session: PortSession) -> bytes:
    lines = [
        *head(Kind.PORT, session.release, session.package),
        f"patches = [{', '.join(map(toml_string, session.patches))}]",
    ]
    for entry in session.waiting:
        lines += ["", "[[waiting]]"]
        lines += [f"{key} = {toml_string(value)}" for key, value in vars(entry).items()]
    return ("\n".join(lines) + "\n").encode()


def _session(folder: Path, table: dict[str, Any]) -> PortSession:
    entries = []
    package = package_of(table)
    for item in table.get("waiting", []):
        entry = Waiting(**{key: require_text(value) for key, value in item.items()})
        if problem := path_problem(entry.path, package):
            raise ValueError(problem)
        require_id(entry.feature)
        require_id(entry.topic)  # a topic is named as an id is, with its number first
        entries.append(entry)
    patches = tuple(text_of(place) for place in table["patches"])
    return PortSession(folder, release_of(table), patches, tuple(entries), package)
