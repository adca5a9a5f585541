"""``overlay port --show``, ``--continue`` and the rest: what ends and changes a port's session."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from packaging.version import Version

from overlay._features.folder import holes as holes_of
from overlay._features.model import Feature
from overlay.authoring import disk
from overlay.authoring import releases as package_releases
from overlay.authoring import session as sessions
from overlay.authoring.commands.import_onto import (
    change_in,
    feature_at,
    verbatim_of,
    with_own_text,
    write_once,
)
from overlay.authoring.commands.port import folder_of, known_names, write_ports
from overlay.authoring.commands.port_report import (
    OpenFile,
    PortReport,
    ScopeViews,
    aborted,
    ended,
    placed,
    waiting,
)
from overlay.authoring.composing import NotComposable, compose_file, contexts_from
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.port_views import (
    Conflict,
    conflict,
    hunk_view,
    marker_lines,
    merge_view,
    placed_before,
    upstream_view,
)
from overlay.authoring.porting import FeaturePort, Porter, TopicPort
from overlay.authoring.resolvers import merge_tool, propose
from overlay.authoring.session import (
    BASE,
    DOCUMENT,
    Session,
    SessionKind,
    Waiting,
    finish,
    from_anywhere,
    read,
    without,
)
from overlay.commands.request import Request
from overlay.errors import UsageError, absolute
from overlay.planning.attempt import Texts, attempt
from overlay.planning.scope_cache import Memo
from overlay.planning.scopes import Syntax
from overlay.results import Outcome


class Key(str, Enum):
    """The key by which a person answers what to do about one file that waits."""

    PLACE = "p"
    EDITED = "e"
    KEEP = "k"
    TOOL = "t"
    UPSTREAM = "u"
    RETIRE = "r"
    SKIP = "s"
    STOP = "q"


class Resolving:
    """An open session with its features carried again.

    :param trusting: whether features that were changed meanwhile are carried all the same.
    """

    def __init__(self, request: Request, folder: str | None, *, trusting: bool = False) -> None:
        self.session: Session = read(find(folder), SessionKind.PORT)
        # The folder of an import may not be there yet: its session's end writes it.
        later = [each for each in self.session.places_import if not os.path.lexists(each)]
        places = dict.fromkeys((*request.patches, *map(str, self.session.patches)))
        folders = tuple(folder for folder in places if absolute(folder) not in later)
        self.request = request._replace(patches=folders)
        change = change_in(self.session)
        self.features: tuple[Feature, ...] = self.request.authored(self.session.package)
        if change is not None:
            self.features = (*(each for each in self.features if each.id != change.id), change)
        at_hand = {feature.id: feature for feature in self.features}
        _expect_features(self.session, at_hand, trusting=trusting)
        self.names = known_names([self.session.release], self.session.package)
        session = self.session
        texts = package_releases.texts_of(self.names, session.package, request.progress)
        if change is not None:
            texts = with_own_text(texts, lambda path: session.now(f"{BASE}/{path}"))
        self.porter = Porter(texts, Memo())
        self.ports = tuple(self._port(id_) for id_ in self.session.features)

    def _port(self, id_: str) -> FeaturePort:
        index = next(i for i, feature in enumerate(self.features) if feature.id == id_)
        earlier = self.features[:index]
        return self.porter.port(self.features[index], self.session.release, earlier)

    def topic(self, entry: Waiting) -> TopicPort | None:
        """The topic that waits; ``None`` where an added module does."""
        port = next(port for port in self.ports if port.feature.id == entry.feature)
        return next((topic for topic in port.topics if topic.topic == entry.topic), None)

    def is_carried_out(self, entry: Waiting) -> bool:
        """Whether the patches make a file as it is now in the session."""
        port = next(port for port in self.ports if port.feature.id == entry.feature)
        topic = next((t for t in port.feature.topics if t.name == entry.topic), None)
        if topic is None or not (port.covered or port.evidence):
            return False
        before = self.features[: self.features.index(port.feature)]
        texts = self.porter.texts_given(port.feature, topic, self.session.release, before)
        return self.session.now(entry.name) in texts

    def texts(self, entry: Waiting) -> Conflict | None:
        """The texts of what waits, with the result as it is now; ``None`` without a file."""
        topic, data = self.topic(entry), self.session.now(entry.name)
        texts = None if topic is None else conflict(topic, self.session.release)
        return None if texts is None or data is None else replace(texts, merged=data)

    def open_file(self, entry: Waiting) -> OpenFile:
        """What waits, as it is shown."""
        topic, data = self.topic(entry), self.session.now(entry.name)
        hunks = [] if topic is None else [h for h in topic.hunks if h.outcome is not Outcome.EXACT]
        return OpenFile(
            entry.feature,
            entry.topic,
            entry.path,
            entry.base,
            None if data is None else self.session.folder / entry.name,
            () if data is None else tuple(marker_lines(data)),
            tuple(
                ScopeViews(hunk.scope, hunk_view(hunk.hunk), upstream_view(topic, hunk.hunk))
                for hunk in hunks
                if topic is not None
            ),
            () if data is None else merge_view(data),
        )

    def report(self) -> PortReport:
        """What waits in the session."""
        files = tuple(map(self.open_file, self.session.waiting))
        folder = self.session.folder
        return PortReport(waiting(folder, files), self.ports, folder, files)

    # What a person decides about one file

    def write(self, entry: Waiting, data: bytes) -> None:
        """Give a file of the session other bytes."""
        disk.write_below(self.session.folder, entry.name, data)

    def is_by_hand(self, entry: Waiting) -> bool:
        """Whether only a person can place a file's change, since no merge knows all of it."""
        return f"stuck {entry.path}" in self.session.notes

    def place(self, entry: Waiting) -> None:
        """Put the added lines before upstream's, where there is a file for that."""
        topic = self.topic(entry)
        if topic is not None and not self.is_by_hand(entry):
            data = placed_before(topic, self.session.release)
            if data is not None:
                self.write(entry, data)

    def take_upstream(self, entry: Waiting) -> bool:
        """Take the release's own text, which retires the topic there; whether it has a file."""
        topic = self.topic(entry)
        if topic is None or topic.before is None:
            return False
        self.write(entry, topic.before)
        return True

    def resolve(self, entry: Waiting, command: str | None) -> None:
        """Let a command, or git's merge tool, propose a text, where there is a file for that."""
        texts = self.texts(entry)
        if texts is None or self.is_by_hand(entry):
            return
        if command is None:
            data = merge_tool(texts, entry.path)
        else:
            watched = [self.session.folder, *(folder_of(port.feature) for port in self.ports)]
            data = propose(command, texts, entry.path, watched)
        self.write(entry, data)


def show(request: Request, folder: str | None) -> PortReport:
    """What waits in a session: for each scope the hunk, what upstream changed, and the merge."""
    return Resolving(request, folder).report()


def resolve(request: Request, folder: str | None, command: str | None) -> PortReport:
    """Let a command, or git's merge tool, propose a text for every file with markers.

    :raises UsageError: if what it gives cannot be a resolution; those before are kept.
    """
    resolving = Resolving(request, folder)
    for entry in resolving.session.waiting:
        texts = resolving.texts(entry)
        if texts is not None and texts.marked:
            resolving.resolve(entry, command)
    return resolving.report()


def proceed(request: Request, folder: str | None, context: int | None = None) -> PortReport:
    """Write what the edited files say into the patches, and end the session.

    :raises UsageError: if markers are left, or a file cannot be carried; nothing is written then.
    """
    if (finished := _finished(request, folder)) is not None:
        return finished
    resolving = Resolving(request, folder)
    session = resolving.session
    ports = resolved(session, resolving.ports, resolving.porter.syntax, context)
    if session.places_import:
        return _written(resolving, ports[0])
    write_ports(resolving.porter, resolving.features, ports, resolving.names)
    return _ended(resolving, ports)


def _written(resolving: Resolving, port: FeaturePort) -> PortReport:
    session, porter, place = resolving.session, resolving.porter, resolving.session.folder
    if all(topic.new_hunks is None for topic in port.topics) and not port.feature.added:
        return PortReport(ended(place, (), emptied=finish(session)))
    texts = ReleaseTexts(resolving.names, porter.texts.open)
    prepared = feature_at(port, session.notes, texts, verbatim_of(session), porter.syntax)
    if prepared.folder is None:
        problems = [file.problem for file in prepared.summary.files if file.problem]
        why = "; ".join(problems) or f"it does not land on {session.release}"
        raise UsageError(f"{place}: expected a change that a feature carries: {why}")
    folder = write_once(prepared.folder, session.notes)
    emptied = finish(session)
    return PortReport(placed(folder, prepared.summary.releases, place, emptied=emptied))


def _ended(resolving: Resolving, ports: Sequence[FeaturePort]) -> PortReport:
    """End a session that wrote its ports, and report the releases that are left between.

    Nothing is read behind its end: the working folder may be the session's, and gone then.
    """
    entries = tuple(replace(port, written=True) for port in ports)
    ids = {port.feature.id for port in ports}
    now = resolving.request.authored(resolving.session.package)
    holes = [
        (feature.id, hole.release)
        for feature in now
        if feature.id in ids
        for hole in holes_of(feature, resolving.names)
    ]
    emptied = finish(resolving.session)
    verdict = ended(resolving.session.folder, entries, holes, emptied=emptied)
    return PortReport(verdict, entries)


def _finished(request: Request, folder: str | None) -> PortReport | None:
    """End what a killed ``--continue`` carried out: the session, or its part for some features.

    That it was is shown by the patches, which make every file of the session as it is now.  Patches
    that somebody else changed meanwhile do not, and then nothing of the session is lost.

    :returns: ``None`` where something still waits.
    """
    resolving = Resolving(request, folder, trusting=True)
    session = resolving.session
    at_hand = {feature.id: feature for feature in resolving.features}
    waits = {
        entry.feature
        for entry in session.waiting
        if not _is_stale(entry, at_hand) or not resolving.is_carried_out(entry)
    }
    if not waits:
        return _ended(resolving, resolving.ports)
    for id_ in session.features:
        if id_ not in waits:
            session = without(session, id_)
    return None


def leave(request: Request, folder: str | None, id_: str, *, retires: bool) -> PortReport:
    """Leave a feature as it is: it does not serve the release; the others still wait.

    :param retires: note that upstream has it from the session's release on.
    """
    resolving = Resolving(request, folder)
    port = next((port for port in resolving.ports if port.feature.id == id_), None)
    if retires and port is not None and not resolving.session.places_import:
        write_ports(resolving.porter, resolving.features, [retired(port)], resolving.names)
    session = without(resolving.session, id_)
    if not session.waiting:
        return PortReport(ended(session.folder, (), emptied=not session.folder.exists()))
    resolving.session = session
    resolving.ports = tuple(p for p in resolving.ports if p.feature.id in session.features)
    return resolving.report()


def abort(folder: str | None) -> PortReport:
    """Remove a session with its files; the patches stay as they are."""
    session = read(find(folder), SessionKind.PORT)
    sessions.abort(session)
    return PortReport(aborted(session.folder))


def ask(
    request: Request,
    report: PortReport,
    question: Callable[[OpenFile, str], Key],
    tell: Callable[[str], None] = lambda _: None,
) -> PortReport:
    """Ask about each file of a session, and write what the answers make, once nothing is left.

    :param question: shows a file, and which of how many it is, and gives a key.
    :returns: ``report`` itself where it has no session.
    """
    if report.session is None:
        return report
    folder = str(report.session)
    resolving = Resolving(request, folder)
    entries = resolving.session.waiting
    for number, entry in enumerate(entries, 1):
        if entry.feature not in resolving.session.features:
            continue
        place = f"{number} of {len(entries)}"
        key = question(resolving.open_file(entry), place)
        while not _settled(resolving, entry, key):
            tell(_answer(resolving, entry, key, settled=False))
            key = question(resolving.open_file(entry), place)
        tell(_answer(resolving, entry, key, settled=True))
        if key is Key.STOP:
            return resolving.report()
        if key in (Key.RETIRE, Key.SKIP):
            remainder = leave(request, folder, entry.feature, retires=key is Key.RETIRE)
            if remainder.session is None:
                return remainder
            resolving = Resolving(request, folder)
    return proceed(request, folder)


def _answer(resolving: Resolving, entry: Waiting, key: Key, *, settled: bool) -> str:
    """What a key has done, and where that is written."""
    file = resolving.session.folder / entry.name
    markers = resolving.open_file(entry).markers
    release = resolving.session.release
    if key in (Key.PLACE, Key.TOOL):
        rest = f"; line {markers[0]} still has a marker" if markers else ""
        return f"wrote a proposal to {file}{rest}: look at it; `k` takes it"
    if not settled:
        if markers:
            return f"{file}:{markers[0]} has a marker of a conflict: nothing was taken"
        return f"the release has no {entry.path}: nothing was written"
    return {
        Key.UPSTREAM: f"wrote the release's own text to {file}: {release} gets nothing of this",
        Key.RETIRE: f"upstream has {entry.feature} in {release}: noted in its feature.toml",
        Key.SKIP: f"left {entry.feature} as it was; it does not serve {release}",
        Key.STOP: f"nothing more was written; the session stays in {resolving.session.folder}",
    }.get(key, f"took {file} as it is; it goes into the patches once nothing waits")


def _settled(resolving: Resolving, entry: Waiting, key: Key) -> bool:
    """Do what a key says; whether the file is settled by it."""
    if key is Key.PLACE:
        resolving.place(entry)
        return False  # it is a proposal: shown again, without markers
    if key is Key.TOOL:
        resolving.resolve(entry, None)
        return False
    if key is Key.UPSTREAM:
        return resolving.take_upstream(entry)
    if key in (Key.EDITED, Key.KEEP):
        return not resolving.open_file(entry).markers
    return True


# What the edited files make


def find(folder: str | None) -> Path:
    """The folder of the session that is meant.

    :param folder: as the user gave it; ``None``: the only one in the working folder.
    """
    if folder is not None:
        return from_anywhere(Path(folder))
    there = sorted(path.parent for path in Path().glob(f"port-*/{DOCUMENT}"))
    if len(there) == 1:
        return there[0]
    names = ", ".join(map(str, there)) or "none"
    raise UsageError(
        f"expected one session port-RELEASE/ in this folder, found {names}; name its folder"
    )


def _expect_features(session: Session, features: Mapping[str, Feature], *, trusting: bool) -> None:
    """Refuse a session whose features are not at hand, or were changed since it began."""
    for id_ in session.features:
        if id_ not in features:
            raise UsageError(
                f"{id_}: expected the feature of {session.folder}, found none of that id; name "
                "its folder with --patches, or end the session with --abort"
            )

    changed = [entry.feature for entry in session.waiting if _is_stale(entry, features)]
    if changed and not trusting:
        raise UsageError(
            f"{changed[0]}: its patches were changed since {session.folder} began, so its files do "
            "not follow from them any more. Nothing was written: copy your edits, then --abort and "
            "port again"
        )


def _is_stale(entry: Waiting, features: Mapping[str, Feature]) -> bool:
    return features[entry.feature].digest != entry.digest


def resolved(
    session: Session, ports: Sequence[FeaturePort], syntax: Syntax, context: int | None = None
) -> tuple[FeaturePort, ...]:
    """The ports with the hunks that the edited files make.

    :param context: default: the usual number.
    :raises UsageError: naming every file that has markers, is not Python, or cannot be written as
        hunks; nothing is lost.
    """
    problems: list[str] = []
    results: list[FeaturePort] = []
    for port in ports:
        waiting = {e.topic: e for e in session.waiting if e.feature == port.feature.id}
        topics = [
            _edited(session, waiting[topic.topic], topic, syntax, problems, contexts_from(context))
            if topic.topic in waiting
            else topic
            for topic in port.topics
        ]
        result = replace(port, topics=tuple(topics))
        if result.topics and all(topic.new_hunks is None for topic in result.topics):
            result = retired(result)
        elif not problems:
            problems += _not_landing(result, syntax)
        results.append(result)
        if port.problem is not None:
            problems.append(f"{port.problem}: --retire or --skip {port.feature.id}")
    if problems:
        raise UsageError("\n".join(problems))
    return tuple(results)


def _edited(
    session: Session,
    entry: Waiting,
    topic: TopicPort,
    syntax: Syntax,
    problems: list[str],
    contexts: Sequence[int],
) -> TopicPort:
    """A topic with the hunks of its edited file; what is wrong with that is added to problems."""
    place = session.folder / entry.name
    data = session.now(entry.name)
    if data is None or topic.before is None:
        why = "expected the file as it is to be, found none: put it there, or"
        if topic.before is None:
            why = "the release has no such file:"
        problems.append(f"{place}: {why} --retire or --skip {entry.feature}")
        return topic
    if lines := marker_lines(data):
        problems.append(f"{place}:{lines[0]}: expected no markers of a conflict, found some")
        return topic
    if (error := syntax.module_error(data, entry.path)) is not None:
        problems.append(f"{place}: expected Python: {error}")
        return topic
    if data == topic.before:
        return replace(_retired(topic), not_needed=True)
    try:
        hunks = compose_file(entry.path, topic.before, data, contexts)
    except NotComposable as error:
        problems.append(f"{place}: {error}")
        return topic
    carried = tuple(
        replace(topic.hunks[0], hunk=hunk, outcome=Outcome.EXACT, scope=hunk.scope, merge=None)
        for hunk in hunks
    )
    return replace(topic, hunks=carried, new_hunks=hunks, after=data, by_hand=True, problem=None)


def _retired(topic: TopicPort) -> TopicPort:
    """A topic whose hunks upstream has: what the release has is kept."""
    carried = tuple(replace(hunk, outcome=Outcome.UPSTREAM, merge=None) for hunk in topic.hunks)
    return replace(
        topic, hunks=carried, new_hunks=None, after=topic.before, by_hand=True, problem=None
    )


def retired(port: FeaturePort) -> FeaturePort:
    """A port by which upstream has the whole feature: in the session's release and every later one,
    where that is newer than all variants, or else in that release.
    """
    last = max((v.releases.last for t in port.feature.topics for v in t.variants), default=None)
    newest = max(filter(None, (last, port.feature.releases.last)))
    topics = tuple(map(_retired, port.topics))
    evidence = "a person retired it there" if Version(port.release) > newest else ""
    return replace(port, topics=topics, problem=None, evidence=evidence, by_hand=True)


def _not_landing(port: FeaturePort, syntax: Syntax) -> list[str]:
    """What is wrong with a series: each topic must give its edited file, byte for byte, alone,
    and land on what the topics before it leave.
    """
    texts = Texts(syntax)
    patched_texts: dict[str, bytes] = {}
    problems = []
    for topic in port.topics:
        if topic.new_hunks is None or topic.before is None:
            continue
        patch = topic.variant.patch._replace(hunks=topic.new_hunks)
        name = f"{port.feature.id}/{topic.topic}"
        if topic.by_hand and attempt(patch, topic.before, texts).after != topic.after:
            problems.append(f"{name}: its hunks do not give the edited file byte for byte")
        after = attempt(patch, patched_texts.get(topic.path, topic.before), texts).after
        if after is None:
            problems.append(f"{name}: it does not land on what the topics before it leave")
        else:
            patched_texts[topic.path] = after
    return problems
