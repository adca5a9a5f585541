"""A port's session: lay out what waits for a person, and make hunks of the files as edited.

``port-RELEASE/<feature>/<topic>/<package>/...`` is the release's file with every hunk that lands,
and the others between markers.  Everything else is worked out again from patches and releases, so
that the folder cannot disagree with them; the digests of the features say whether they are still
those that the session began with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from overlay._features.model import Feature
from overlay.authoring.composing import NotComposable, compose
from overlay.authoring.port_views import conflict, marker_lines
from overlay.authoring.ports import FeaturePort, TopicPort, as_patch
from overlay.authoring.session import (
    DOCUMENT,
    Kind,
    Session,
    Waiting,
    begin,
    features_of,
    from_anywhere,
)
from overlay.errors import UsageError
from overlay.package import VLLM, Package
from overlay.planning.attempt import Texts, attempt
from overlay.planning.scopes import Syntax, UnparsableError
from overlay.planning.text import TextError
from overlay.results import Outcome
from overlay.untrusted import sha256


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
    laid: dict[str, bytes] = {}
    waiting: list[Waiting] = []
    for port in ports:
        id_, digest = port.feature.id, port.feature.digest
        for topic in port.topics:
            if not topic.covered and (topic.conflicts or topic.review):
                texts = conflict(topic, release)
                text = "" if texts is None else sha256(texts.merged)
                waiting.append(Waiting(id_, digest, topic.topic, topic.path, topic.base, text))
                if texts is not None:
                    laid[waiting[-1].name] = texts.merged
        if port.problem is not None:
            waiting.append(Waiting(id_, digest, "files", port.feature.added[0].path, "", ""))
    features, places = features_of(waiting), tuple(Path(p).absolute() for p in patches)
    session = Session(
        folder, Kind.PORT, features, release, places, package=package, waiting=tuple(waiting)
    )
    return begin(session, laid, {}).folder


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


def check_there(session: Session, features: Mapping[str, Feature]) -> None:
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


def check_digests(session: Session, features: Mapping[str, Feature]) -> None:
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
    session: Session, ports: Sequence[FeaturePort], syntax: Syntax
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
    session: Session, entry: Waiting, topic: TopicPort, syntax: Syntax, problems: list[str]
) -> TopicPort:
    """A topic with the hunks of its edited file; what is wrong with that is added to problems."""
    place = session.folder / entry.name
    data = session.now(entry.name)
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
