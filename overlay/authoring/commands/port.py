"""``overlay port``: carry features to other releases, and write what needs no review."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from packaging.version import Version

from overlay._features import sources
from overlay._features.folder import holes as holes_of
from overlay._features.model import Feature
from overlay.authoring import disk
from overlay.authoring import releases as package_releases
from overlay.authoring.commands.port_report import PortReport, concluded
from overlay.authoring.port_views import conflict
from overlay.authoring.porting import FeaturePort, Porter
from overlay.authoring.session import Session, SessionKind, Waiting, begin, features_of
from overlay.authoring.variants import remembered, with_ports
from overlay.authoring.writing import Expected, check_files, today
from overlay.commands.request import Request
from overlay.errors import OverlayError, UsageError, absolute, command
from overlay.package import VLLM, Package
from overlay.planning.scope_cache import Memo
from overlay.report.progress import counting
from overlay.results import Outcome
from overlay.settings import in_home
from overlay.untrusted import require_own_name, sha256


def port(
    request: Request,
    releases: str,
    *,
    write: bool = False,
    accept_merged: bool = False,
    session: Path | None = None,
    context: int | None = None,
    lay_out: bool = True,
) -> PortReport:
    """Carry the features that are meant to releases.

    :param releases: as ``--releases`` takes them; a bare version is one of the package of the
        features that are named.
    :param session: the folder to be made for what waits for a person, where one release is named;
        default: ``port-RELEASE`` in the working folder.
    :param context: how many lines of context merged hunks keep; default: as many as those of the
        variant have.
    """
    everything = request.load()
    package, targets = package_releases.names_in(releases, request.package(everything))
    place = session or (session_folder(targets[0], package) if len(targets) == 1 else None)
    expect_no_session(place if lay_out else None)
    features = request.authored(package, everything)
    own = _select(request, features)
    names = known_names(targets, package)
    texts = package_releases.texts_of(names, package, request.progress)
    porter = Porter(texts, Memo(), context)
    for name in set(targets) - set(package_releases.names_of(package)):
        porter.texts.open(name)  # memory would answer for a release that nobody has
    ports: list[FeaturePort] = []
    forms = list(features)  # of the features before, as they will be
    with counting(request.progress, "carried", len(own), "feature") as step:
        for feature in own:
            at = features.index(feature)
            ports += _carried(porter, feature, forms[:at], with_gaps(feature, targets, names))
            forms[at] = _serving(feature, [port for port in ports if port.feature is feature])
            step()
    ready = [port for port in ports if not port.conflicts and (accept_merged or not port.review)]
    written = write_ports(porter, features, ready, names) if write else frozenset()
    reported = tuple(
        replace(port, written=(port.feature.id, port.release) in written) for port in ports
    )
    waits = [port for port in ports if port.conflicts or (port.review and port not in ready)]
    folder = None
    ids = {port.feature.id for port in waits if port.release == targets[0]}
    if ids and place is not None and lay_out:
        features = request.authored(package) if written else features  # as they are now
        again = [
            porter.port(feature, targets[0], features[:index])
            for index, feature in enumerate(features)
            if feature.id in ids
        ]
        folder = create(place, targets[0], again, request.patches, package)
    notable = () if write else _notable(porter, features, ports, names)
    verdict = concluded(reported, targets, folder, write=write, notable=notable)
    return PortReport(verdict, reported, folder)


def expect_no_session(place: Path | None) -> None:
    """Refuse a folder that is there already."""
    if place is not None and place.exists():
        require_own_name(place)
        raise UsageError(
            f"{place}: expected no such folder, found a session of an earlier port: end it with "
            f"{command('port', '--continue', absolute(place))} or "
            f"{command('port', '--abort', absolute(place))}"
        )


def _select(request: Request, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """The features to carry: those that are named, else all that the user can write.

    Those of an installed overlay change with its next version, and whoever names folders of
    patches means these.
    """
    selection = request.select(features)
    if request.features:
        return selection
    shipped_too = _in_checkout() and not request.patches
    return tuple(feature for feature in selection if shipped_too or not feature.shipped)


def _notable(
    porter: Porter, features: Sequence[Feature], ports: Sequence[FeaturePort], names: Sequence[str]
) -> tuple[str, ...]:
    """The ids of the features of which it would be noted that upstream has them."""
    by_id = {feature.id: feature for feature in features}
    return tuple(
        id_
        for id_ in dict.fromkeys(port.feature.id for port in ports)
        if _memory(
            porter,
            [port for port in ports if port.feature.id == id_],
            features[: features.index(by_id[id_])],
            names,
        )
    )


def _serving(feature: Feature, ports: Sequence[FeaturePort]) -> Feature:
    """A feature with the releases in its range on which it lands exactly: others stand on it."""
    exact = [Version(port.release) for port in ports if port.outcome is Outcome.EXACT]
    span = feature.releases
    ends = min([span.first, *exact]), max([span.last, *exact])
    return replace(feature, releases=span._replace(first=ends[0], last=ends[1]))


def _carried(
    porter: Porter, feature: Feature, earlier: Sequence[Feature], releases: Sequence[str]
) -> Iterator[FeaturePort]:
    """A feature carried to releases, oldest first; what one of them has, the later ones have."""
    current = feature
    for release in releases:
        port = porter.port(current, release, earlier)
        if current.merged is None and (
            since := remembered(porter, port, earlier, porter.texts.names)
        ):
            current = replace(current, merged=Version(since))
        yield replace(port, feature=feature)


def known_names(targets: Sequence[str], package: Package = VLLM) -> tuple[str, ...]:
    """The known releases of a package and those that are asked about, oldest first."""
    return tuple(sorted({*package_releases.names_of(package), *targets}, key=Version))


def with_gaps(feature: Feature, targets: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The releases that are asked about, and those between them and a feature's range.

    A range is closed and has no holes: what serves 0.33.0 and 0.35.0 serves 0.34.0.
    """
    span = feature.releases
    result = set(targets)
    for name in targets:
        low, high = sorted((Version(name), span.last if Version(name) > span.last else span.first))
        if Version(name) not in span:
            result |= {other for other in names if low < Version(other) < high}
    return tuple(name for name in names if name in result)


def write_ports(
    porter: Porter, features: Sequence[Feature], ports: Sequence[FeaturePort], names: Sequence[str]
) -> frozenset[tuple[str, str]]:
    """Give the patches folders what was ported: all features of a folder in one transaction.

    :param features: all, in the order of the series; :param ports: without conflicts.
    :returns: (id, release) of what is served, or known to be upstream, since then.
    """
    changed: dict[Path, list[disk.NewFolder]] = {}
    served: set[tuple[str, str]] = set()
    for id_ in dict.fromkeys(port.feature.id for port in ports):
        own = [port for port in ports if port.feature.id == id_]
        feature, folder = own[0].feature, folder_of(own[0].feature)
        before = disk.contents(folder)
        earlier = features[: features.index(feature)]
        memory, shared = _memory(porter, own, earlier, names), feature.shared_modules()
        after = with_ports(feature, before, own, names, today(), merged=memory)
        if after != before:
            filled = list(own)
            form = check_files(id_, after, _expected(own), porter.syntax, shared)
            while between := _between(porter, form, earlier, names):
                after = with_ports(form, after, between, names, today())
                filled += between
                form = check_files(id_, after, _expected(filled), porter.syntax, shared)
            changed.setdefault(folder.parent, []).append(disk.NewFolder(id_, after))
            served |= {(id_, port.release) for port in filled if not port.covered}
    _write_folders(changed)
    return frozenset(served)


def _expected(ports: Sequence[FeaturePort]) -> list[Expected]:
    """What the patches that ports make must make of the texts that they were made on."""
    return [
        Expected(topic.topic, port.release, topic.before, topic.after)
        for port in ports
        for topic in port.topics
        if topic.new_hunks is not None and topic.before is not None and topic.after is not None
    ]


def _write_folders(changed: Mapping[Path, Sequence[disk.NewFolder]]) -> None:
    """Write the features of each patches folder, in one transaction a folder.

    Several folders may lie on several file systems, so that no one transaction can hold them.
    """
    written: list[Path] = []
    for place, folders in changed.items():
        try:
            disk.replace_features(place, folders)
        except (OverlayError, OSError) as error:
            if not written:
                raise
            rest = [path for path in changed if path not in written]
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise OverlayError(
                f"{place}: {why}. Written before that: {_folders(changed, written)}; not known "
                f"to be written: {_folders(changed, rest)}. Each folder is whole; when that is "
                "mended, run the same command again: it goes on with what is not written"
            ) from error
        written.append(place)


def _folders(changed: Mapping[Path, Sequence[disk.NewFolder]], places: Sequence[Path]) -> str:
    return ", ".join(
        f"{place} ({', '.join(folder.id for folder in changed[place])})" for place in places
    )


def _between(
    porter: Porter, feature: Feature, earlier: Sequence[Feature], names: Sequence[str]
) -> list[FeaturePort]:
    """The ports to releases inside a feature's range that no variant serves, as far as they land.

    What a person made for a later release often lands exactly on those before it.  A release that
    has the feature itself, where later ones lost it again, gets variants that say so.
    """
    holes = {hole.release for hole in holes_of(feature, names)}
    ports = [porter.port(feature, name, earlier) for name in names if name in holes]
    return [
        porter.upstreams(port) if port.evidence else port
        for port in ports
        if not (port.conflicts or port.review or port.obsolete)
    ]


def _memory(
    porter: Porter, own: Sequence[FeaturePort], earlier: Sequence[Feature], names: Sequence[str]
) -> str | None:
    """The first release from which on upstream is known to have a feature, if that is new."""
    releases = [name for port in own if (name := remembered(porter, port, earlier, names))]
    return min(releases, key=Version) if releases else None


def folder_of(feature: Feature) -> Path:
    """The folder of a feature that may be written."""
    if not feature.shipped:
        return in_home(feature.origin) / feature.id
    if not _in_checkout():
        raise UsageError(
            f"{feature.id} comes with the installed vllm-overlay: upgrade that, or port it in a "
            "checkout of vllm-overlay"
        )
    return sources.shipped_folder() / feature.id


def _in_checkout() -> bool:
    """Whether the shipped features lie in a checkout of the overlay, and may be written."""
    return (sources.shipped_folder().parent / "pyproject.toml").is_file()


# The session of what waits


def session_folder(release: str, package: Package = VLLM) -> Path:
    """The folder of a port's session in the working folder."""
    return Path(f"port-{release}" if package == VLLM else f"port-{package.distribution}-{release}")


class ForeignChange(NamedTuple):
    """A foreign change that a session keeps itself.

    :ivar notes: what becomes of it; :ivar files: below the session's folder -> bytes.
    :ivar base: path -> the text that it was made on.
    :ivar texts: path -> the file to edit, where that is not what a merge makes.
    """

    notes: Mapping[str, str]
    files: Mapping[str, bytes]
    base: Mapping[str, bytes]
    texts: Mapping[str, bytes] = MappingProxyType({})


def create(
    folder: Path,
    release: str,
    ports: Sequence[FeaturePort],
    patches: Sequence[str],
    package: Package = VLLM,
    change: ForeignChange | None = None,
) -> Path:
    """Make a session for the topics of ports that wait for a person, whole or not at all.

    A file in it is the release's with every hunk that lands, and the others between markers.

    :param change: the change of `import --onto`, which the session keeps; `None`: a feature.
    """
    texts_to_edit: dict[str, bytes] = {}
    waiting: list[Waiting] = []
    notes, files, base, own = change or ForeignChange({}, {}, {})
    for port in ports:
        id_, digest = port.feature.id, port.feature.digest
        for topic in port.topics:
            waits = topic.conflicts or topic.review or topic.path in own
            if not topic.covered and waits:
                texts = conflict(topic, release)
                data = None if texts is None else own.get(topic.path, texts.merged)
                text = "" if data is None else sha256(data)
                waiting.append(Waiting(id_, digest, topic.topic, topic.path, topic.base, text))
                if data is not None:
                    texts_to_edit[waiting[-1].name] = data
        if port.problem is not None:
            waiting.append(Waiting(id_, digest, "files", port.feature.added[0].path, "", ""))
    features, places = features_of(waiting), tuple(Path(p).absolute() for p in patches)
    session = Session(folder, SessionKind.PORT, features, release, places, package=package)
    session = replace(session, waiting=tuple(waiting), notes=notes)
    return begin(session, {**texts_to_edit, **files}, base).folder
