"""The commands that look at a feature over releases, and give it away: log, prune, export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from overlay.authoring.commands import export as exporting
from overlay.authoring.commands import log as history
from overlay.authoring.commands import prune as pruning
from overlay.authoring.commands.matrix import matrix as matrix_of
from overlay.cli import cli
from overlay.cli.options import (
    asks,
    complete_features,
    complete_releases,
    looks_or_writes,
    refuse_to_look_and_write,
    releases_option,
)
from overlay.report.progress import doing
from overlay.settings import in_home

if TYPE_CHECKING:
    from overlay.commands.request import Request
    from overlay.report import Report


@cli.command()
@click.argument("feature", metavar="[ID]", required=False, shell_complete=complete_features)
@releases_option("Only these releases, by default all")
@click.option("--matrix", is_flag=True, help="Show every feature on every release, by letters.")
@click.option(
    "--upstream",
    metavar="CHECKOUT",
    help="Look for the feature's pull request in a git checkout of vLLM: when it was merged, the "
    "first release with it, and which lines upstream merged otherwise.",
)
@click.option(
    "--variants", is_flag=True, help="Show each variant beside the one that it came from."
)
@asks
def log(
    request: Request,
    feature: str | None,
    releases: str | None,
    matrix: bool,
    upstream: str | None,
    variants: bool,
) -> Report:
    """Show the state of a feature on each release: by which means, with which variant, by whom.

    An upstreamed feature is known by memory (`merged` in feature.toml), by the lines of the
    change, or by its whole images. With --matrix, all features as letters, and where one does not
    apply, how a port would land.

    \b
    Example:
      overlay log stop-strings --patches ./our-patches
      overlay log stop-strings --upstream ~/src/vllm
      overlay log --matrix --patches ./our-patches
    """
    if (feature is None) is not matrix:
        raise click.UsageError("give the ID of a feature, or --matrix for all of them.")
    if matrix and (upstream is not None or variants):
        option = "--variants" if variants else "--upstream"
        raise click.UsageError(f"{option} speaks of one feature: give its ID, and no --matrix.")
    if feature is None:
        return matrix_of(request, releases)
    checkout = None if upstream is None else in_home(upstream)
    with doing(request.progress, f"looking for {feature}"):
        return history.log(request, feature, span=releases, upstream=checkout, variants=variants)


@cli.command()
@click.option(
    "--releases",
    metavar="RANGE",
    help="The releases that you still serve, such as 0.26.0..0.33.0: what any from the first of "
    "them on would apply stays (default: all that are known).",
    shell_complete=complete_releases,
)
@looks_or_writes("Carry out what is proposed, all of it or nothing.", "Propose; write nothing.")
@asks
def prune(request: Request, releases: str | None, write: bool, dry_run: bool) -> Report:
    """Propose what a folder of patches no longer needs, with evidence.

    Of the last folder that --patches, overlay.toml or OVERLAY_PATCHES names: features that upstream
    has in every release you serve, variants for releases that you no longer serve, a merge that is
    not noted yet, and variants of which one can serve both ranges. What any release from the first
    of --releases on would apply stays as it is, byte for byte. Without --write nothing is written.

    \b
    Example:
      overlay prune --dry-run --patches ./our-patches
      overlay prune --releases 0.26.0..0.33.0 --write --patches ./our-patches
    """
    refuse_to_look_and_write("prune", write=write, dry_run=dry_run)
    oldest = None if releases == "all" else releases
    with doing(request.progress, "looking for what is not needed"):
        return pruning.prune(request, oldest=oldest, write=write)


@cli.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_features)
@click.option(
    "--release",
    metavar="RELEASE",
    help="On the text of this release; by default the newest one known that all of them serve.",
    shell_complete=complete_releases,
)
@click.option("-o", "--output", metavar="FILE", help="Write the mailbox there (default: print it).")
@asks
def export(
    request: Request, ids: tuple[str, ...], release: str | None, output: str | None
) -> Report:
    """Write features as a mailbox: a mail each, with author, day, reason and where it comes from.

    `git am` makes commits of the mails in a checkout of that release; so does `overlay import` a
    feature. Features lie on each other in their order. What only the overlay knows (switches,
    other releases, tests of what upstream has) is in no mail.

    \b
    Example:
      overlay export stop-strings --patches ./our-patches > stop-strings.mbox
      overlay export stop-strings kv-fix --release 0.26.0 -o ours.mbox
      git -C ./vllm am --keep-non-patch "$PWD/ours.mbox"
    """
    place = None if output is None else in_home(output)
    return exporting.export(request, ids, release=release, output=place)
