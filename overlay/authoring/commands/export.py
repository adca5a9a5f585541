"""``overlay export``: features as a mailbox that ``git am`` takes, for one release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, NamedTuple

from packaging.version import Version

from overlay._features import sources
from overlay._features.model import Feature, packages_of
from overlay.authoring import releases as package_releases
from overlay.authoring.mailbox import KEYS, mail
from overlay.commands.output import write_output
from overlay.commands.request import Request
from overlay.errors import UsageError, command
from overlay.package import Package, Tree
from overlay.planning.planner import plan
from overlay.planning.scope_cache import Memo
from overlay.report import Report, plain
from overlay.report.codes import Code, Verdict
from overlay.report.lines import Line, count, enumeration, labelled
from overlay.report.progress import counting
from overlay.results import Change, State
from overlay.settings import in_home
from overlay.untrusted import parse_toml, read_regular


class ExportedMail(NamedTuple):
    """A feature that was written as a mail; :ivar files: how many files it changes."""

    feature: str
    title: str
    files: int


@dataclass(frozen=True)
class ExportReport(Report):
    """Features as mails.

    :ivar output: the file that was written; ``None``: standard output, or nothing was.
    :ivar warnings: what the mails do not carry.
    """

    _command: ClassVar[str] = "export"
    _key: ClassVar[str] = "export"
    release: str
    mails: tuple[ExportedMail, ...] = ()
    output: Path | None = None
    mailbox: bytes = b""
    warnings: tuple[str, ...] = ()

    @property
    def body(self) -> bytes | None:
        """The mails, where they go to standard output."""
        return self.mailbox if self.mails and self.output is None else None

    def own_lines(self, *, verbose: bool = False) -> Iterator[Line]:  # noqa: ARG002 - as the base
        """A line for each mail."""
        for each in self.mails:
            yield labelled(0, "mail:  ", f"{each.feature}, {count(each.files, 'file')}")
        for warning in self.warnings:
            yield labelled(0, "warning:  ", warning)

    def plain(self) -> dict[str, Any]:
        """The fields of the JSON; the mails themselves where they go to standard output."""
        return {
            "release": self.release,
            "mails": plain(self.mails),
            "output": None if self.output is None else str(self.output),
            "mailbox": None if self.body is None else self.body.decode("utf-8", "backslashreplace"),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }


def export(
    request: Request, ids: Sequence[str], *, release: str | None = None, output: Path | None = None
) -> ExportReport:
    """Features as a mailbox, one mail each, on each other in their order.

    :param release: default: the newest known one that all of them serve.
    """
    request = request.of_ids(ids)
    features = request.select(request.at_hand())
    packages = packages_of(features)
    if len(packages) > 1:
        titles = enumeration([each.title for each in packages])
        raise UsageError(f"expected features for one package, found some for {titles}")
    name = _release(release, features, packages[0])
    tree = package_releases.tree_of(name, packages[0], request.progress)
    mails: list[bytes] = []
    entries: list[ExportedMail] = []
    warnings: list[str] = []
    before: dict[str, Change] = {}
    with counting(request.progress, "wrote", len(features), "mail") as step:
        for number, feature in enumerate(features, 1):
            after, problem = _changes(features[:number], tree, name)
            if problem is not None:
                return ExportReport(problem, name)
            changes = [
                Change(path, before[path].after if path in before else each.before, each.after)
                for path, each in after.items()
            ]
            own = [each for each in changes if each.before != each.after]
            table = _toml(feature)
            keys = {key: table[key] for key in KEYS if key in table}
            warnings += _not_carried(feature, table)
            mails.append(mail(feature, Version(name), own, number, len(features), keys))
            entries.append(ExportedMail(feature.id, feature.title, len(own)))
            before = after
            step()
    mailbox = b"".join(mails)
    if output is not None:
        write_output("-o", output, mailbox)
    file = "FILE" if output is None else quote(str(output.absolute()))
    text = (
        f"Wrote {count(len(entries), 'mail')} for {packages[0].title} {name}: "
        f"`git -C CHECKOUT am --keep-non-patch {file}` makes commits of them."
    )
    return ExportReport(
        Verdict(Code.EXPORTED, text), name, tuple(entries), output, mailbox, tuple(warnings)
    )


def _toml(feature: Feature) -> dict[str, Any]:
    folder = sources.shipped_folder() if feature.shipped else in_home(feature.origin)
    document = sources.entries(folder)[feature.id] / "feature.toml"
    return parse_toml(read_regular(document, follow=False) or b"")


def _not_carried(feature: Feature, table: Mapping[str, Any]) -> list[str]:
    """What a feature says that its mail does not, in a sentence."""
    keys = [key for key in ("builds", "obsolete_without", "shared") if key in table]
    by_hand = any("contains" in test for test in table.get("upstreamed", ()))
    if not (keys := [*keys, *["upstreamed"] * by_hand]):
        return []
    warning = (
        f"the mail of {feature.id} does not carry {enumeration(keys)} of its feature.toml: write "
        "them again where it is imported"
    )
    return [warning]


def _release(text: str | None, features: Sequence[Feature], package: Package) -> str:
    if text is not None:
        return package_releases.version_of(text, package).public
    names = [
        name
        for name in package_releases.names_of(package)
        if all(Version(name) in feature.releases for feature in features)
    ]
    if not names:
        spans = enumeration([f"{feature.id} {feature.releases}" for feature in features])
        raise UsageError(
            f"expected a release that each of them serves, found {spans}: name one with --release, "
            "or export them one by one"
        )
    return names[-1]


def _changes(
    features: Sequence[Feature], tree: Tree, release: str
) -> tuple[dict[str, Change], Verdict | None]:
    """What features make of a release, by path; or the verdict that the last one does nothing."""
    record = getattr(tree, "record", None)
    result = plan(features, tree, Version(release), record, Memo())
    last = result.features[-1]
    if all(each.state is State.PRISTINE for each in result.features):
        return {change.path: change for change in result.changes}, None
    needy = next(each for each in reversed(result.features) if each.state is not State.PRISTINE)
    state = needy.state.value
    step = command("check", release, "--feature", needy.feature)
    beside = f" on top of {features[-2].id}" if len(features) > 1 and needy is last else ""
    text = f"Nothing was written: {needy.feature} is {state}{beside} on {release}; {step} says why."
    return {}, Verdict(Code.NEEDS_ATTENTION, text)
