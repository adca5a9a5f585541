"""What to do about a patch or an added module that does not fit.

The answer depends on whose patch it is (shipped, or somebody's own), on what is wrong with it, and
on whether the file is the release's own: reinstalling vLLM helps only where it is not."""

from __future__ import annotations

from packaging.version import Version

from overlay._features.model import Feature, Hunk, Patch
from overlay.errors import Command, command
from overlay.package import Package
from overlay.planning.telling import REVIEW
from overlay.results import Clash, Reason, State


def unrecorded(package: Package) -> Reason:
    """Why a change that is there is not counted as upstream's; one cause for many files."""
    return Reason(
        "the change is there already, in a file that is not the release's own, and no ledger says "
        "that the overlay made it: it was patched in another way, or the ledger is lost",
        f"put the release's own files back: reinstall {package.title} (where RECORD proves that "
        f"the change is the overlay's, {command('revert')}, then {command('adopt')} takes it over)",
    )


def lost(package: Package) -> Reason:
    """Why a file that the release's RECORD lists does not count as removed by upstream."""
    return Reason(
        "expected the release's own file, which its RECORD lists, found none: somebody removed it",
        f"put it back: reinstall {package.title}",
    )


def for_malformed(feature: Feature) -> str:
    """What to do about a feature whose files cannot be used."""
    return f"correct them, or go on without it: {command('apply', '--without', feature.id)}"


def another_variant(listing: Command) -> str:
    """What to do where no variant of a shipped patch fits a release.

    :param listing: the command that shows the ranges of the variants.
    """
    return (
        "upgrade vllm-overlay, or give the patch a variant for this release "
        f"({listing} shows the ranges)"
    )


def for_hunk(
    feature: Feature,
    patch: Patch,
    hunk: Hunk,
    state: State,
    *,
    misplaced: bool,
    original: bool | None,
    release: Version | None = None,
    less: int | None = None,
) -> str | None:
    """What to do about a hunk that does not fit; ``None`` where its state alone tells it.

    More context ends an ambiguity; a port finds what was renamed, merges what was edited, and
    retires what upstream has in another form.

    :param misplaced: its lines are in the file, but in another scope.
    :param original: whether the file is the release's own; ``None`` where that is not known.
    :param release: the release of the target; ``None`` where it is not known.
    :param less: the lines of context with which it would land; ``None`` where it would not.
    """
    place = f"{patch.name}:{hunk.patch_line}"
    if feature.shipped:
        if original is None:
            return None
        step = another_variant(command("list", "-v"))
    elif state is State.AMBIGUOUS:
        step = f"give the hunk in {place} more context lines, or a narrower scope"
    elif state is State.MISSING or misplaced:
        port = _port(feature, patch, release)
        step = f"where the release has renamed or moved the scope, {port}"
        if _made_for(feature, patch, release):
            step = f"correct the scope in {place}; {step}"
    else:
        step = _port(feature, patch, release)
        if less is not None:
            lines = {0: "no line", 1: "1 line"}.get(less, f"{less} lines")
            edit = command("edit", feature.id, "--context", str(less))
            step = f"with {lines} of context it would land here: {edit}; otherwise {step}"
        if release is not None and not release.is_prerelease and not _before_base(patch, release):
            step += (
                "; where upstream has the change in another form, "
                f'merged = "{release.public}" in feature.toml retires it'
            )
    if original is False:
        return f"if somebody edited this file, reinstall {feature.package.title}; otherwise {step}"
    return step


def clash(first: str, its_place: str, second: str, place: str) -> Clash:
    """Why two features are not applied together, and what to do: each way out is one command.

    :param its_place: the hunk or file of the first; :param place: of the second, or empty.
    """
    own = f"{second} ({place})" if place else second
    return Clash(
        f"{first} ({its_place}) and {own} touch the same lines and cannot be applied together",
        f"{_ways_apart(first, second)}make one patch of both",
        f"{first} and {second} touch the same lines",
    )


def two_places(first: str, its_place: str, second: str, place: str) -> Clash:
    """Why a feature that lands in two ways beside another one is not applied with it.

    :param its_place: the file of the first; :param place: the hunk of the second.
    """
    return Clash(
        f"{second} ({place}) lands at one place of the release's own text, and at another one of "
        f"what {first} ({its_place}) makes of it, so it cannot be told which is meant",
        f"{_ways_apart(first, second)}give the hunk more context",
        f"{second} lands at two places beside {first}",
    )


def _ways_apart(first: str, second: str) -> str:
    """The commands that leave one of two features out."""
    ways = [str(command("apply", "--without", id_)) for id_ in dict.fromkeys((first, second))]
    return f"leave one of them out, {' or '.join(ways)}, or " if len(ways) > 1 else ""


def for_part(feature: Feature, release: Version | None) -> str | None:
    """What to do where a release has some hunks of a feature and could take the others."""
    if feature.shipped:
        return "upgrade vllm-overlay: this version of it has no variant for what is left"
    if release is None or release.is_prerelease:
        return None
    port = command("port", feature.id, "--releases", str(release))
    return f"{port} makes a variant of what is left"


def for_review(feature: Feature, release: Version | None) -> str:
    """What to do where a release has much of a change, and not all of it."""
    if feature.shipped:
        return "upgrade vllm-overlay: this version of it has no variant for what is left"
    part = for_part(feature, release)
    return REVIEW if part is None else f"{REVIEW} ({part})"


def for_missing_file(feature: Feature, patch: Patch, release: Version | None = None) -> str | None:
    """What to do about a patch of a file that is not there.

    :param release: the release of the target; ``None`` where it is not known.
    """
    if feature.shipped:
        return None
    step = f"where the release has moved the file, {_port(feature, patch, release)}"
    made_for = _made_for(feature, patch, release)
    return f"correct the path in {patch.name}; {step}" if made_for else step


def _port(feature: Feature, patch: Patch, release: Version | None) -> str:
    """How a variant for a release is made."""
    if release is None or release.is_prerelease:
        return "give the patch a variant for this release"
    port = f"{command('port', feature.id, '--releases', release.public)} carries it there"
    if _made_for(feature, patch, release):
        # A port leaves what a range promises already as it is.
        edge = "begin after" if _before_base(patch, release) else "end before"
        return f"let the range of {patch.name} {edge} {release.public}; then {port}"
    return port


def _made_for(feature: Feature, patch: Patch, release: Version | None) -> bool:
    """Whether a patch says that it fits a release; where that is not known it may be wrong too.

    One that does not say so is right as it is, for the releases of its range.
    """
    ranges = [
        variant.releases
        for topic in feature.topics
        for variant in topic.variants
        if variant.patch is patch
    ]
    return release is None or any(release in releases for releases in ranges)


def _before_base(patch: Patch, release: Version) -> bool:
    """Whether a release is older than the one that the text of a patch was made on.

    ``merged`` on such a release would retire the feature on its base as well, where it applies.
    """
    base = patch.headers.get("Base")
    return base is not None and release < Version(base)


def for_module(feature: Feature, path: str) -> str:
    """What to do about an added module that does not compile."""
    if feature.shipped:
        return "reinstall vllm-overlay; if that does not help, report this as a bug in it"
    return f"correct {module_file(feature, path)}"


def for_taken_name(feature: Feature, path: str) -> str | None:
    """What to do about an added module whose name a file of vLLM has already."""
    if feature.shipped:
        return None
    return f"give {module_file(feature, path)} another name"


def for_result(feature: Feature, label: str) -> str:
    """What to do about a patch whose result would not do.

    :param label: the patch, or the added module, relative to its patches folder.
    """
    if feature.shipped:
        return "upgrade vllm-overlay; if that does not help, report this as a bug in it"
    return f"correct {label} in {feature.origin}"


def module_file(feature: Feature, path: str) -> str:
    """The file of an added module in its patches folder."""
    return f"{feature.origin}/{feature.file_of(path)}"
