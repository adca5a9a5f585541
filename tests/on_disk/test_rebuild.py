"""A ledger that is lost or damaged: what can be proven is reverted, the rest is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from overlay import untrusted as hashing
from overlay._features.model import Feature
from overlay.errors import LedgerError
from overlay.on_disk import ledger
from overlay.on_disk import transaction as commit
from overlay.on_disk.rebuild import rebuild
from overlay.package import VLLM, parse_release
from overlay.planning import planner as planning
from overlay.targets import Target
from overlay.targets.resolution import resolve
from tests.support import one_package, transactions
from tests.support.patches import MemoryTree, feature, hunk
from tests.support.transactions import PROPOSER, RUNNER, Site, snapshot

RELEASE = parse_release("0.26.0")
MODULE = "vllm/v1/drafts/module.py"
FIRST = feature(
    (
        PROPOSER,
        [
            hunk(
                [
                    "     def propose(self, tokens):",
                    "-        drafts = [self._first(tokens)]",
                    "+        drafts = [self._first(tokens)]  # patched",
                    "+        self.count = len(drafts)",
                ],
                "SpecDecodeBaseProposer.propose",
            ),
            hunk(["         self.num_tokens = num_tokens", "+        self.count = 0"]),
        ],
    ),
    (RUNNER, [hunk(["         captured = 0", "+        captured += 0"])]),
    id="first",
    added={MODULE: b"MODULE = 1\n"},
)
#: Stacked on the first one: it needs a line that only that brings.
SECOND = feature(
    (RUNNER, [hunk(["-        captured += 0", "+        captured += 00"])]), id="second"
)
FEATURES = (FIRST, SECOND)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return transactions.installed(tmp_path / "site")


def apply(site: Site, features: tuple[Feature, ...] = FEATURES) -> None:
    target = resolve(str(site.root))
    plan = planning.plan(features, target, RELEASE, target.record)
    assert plan.changes
    one_package.apply(site.root, plan, features, release="0.26.0", record_file=site.record)


def revert(site: Site, features: tuple[Feature, ...] = FEATURES) -> commit.TransactionResult:
    target: Target = resolve(str(site.root))
    return one_package.revert(
        site.root,
        release="0.26.0",
        record_file=target.record_file,
        rebuild=lambda: rebuild(features, target, target.release, target.record),
    )


LOSSES: dict[str, Callable[[Site], object]] = {
    "damaged": lambda site: (site.root / VLLM.ledger_path).write_bytes(b"{"),
    "gone": lambda site: (site.root / VLLM.ledger_path).unlink(),
    "all of it gone": lambda site: shutil.rmtree(site.root / VLLM.state_folder),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("features", [(FIRST,), FEATURES], ids=["one", "stacked"])
def test_what_can_be_proven_is_reverted(
    site: Site, features: tuple[Feature, ...], lose: Callable[[Site], object]
) -> None:
    before = snapshot(site.root)
    apply(site, features)
    lose(site)
    outcome = revert(site)
    assert outcome.changed == (MODULE, PROPOSER, RUNNER)
    assert any("reconstructed from RECORD" in warning for warning in outcome.warnings)
    assert snapshot(site.root) == before
    assert not revert(site).wrote


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("path", [PROPOSER, RUNNER, MODULE])
def test_what_was_edited_is_named_and_left_alone(
    site: Site, path: str, lose: Callable[[Site], object]
) -> None:
    apply(site)
    with (site.root / path).open("ab") as file:
        file.write(b"# by hand\n")
    lose(site)
    before = snapshot(site.root)
    with pytest.raises(LedgerError, match="own files") as caught:
        revert(site)
    assert path in str(caught.value)
    assert "reinstall vLLM" in str(caught.value)
    assert snapshot(site.root) == before


def test_other_patches_than_those_at_hand_are_refused(site: Site) -> None:
    apply(site, (FIRST,))
    LOSSES["gone"](site)
    topic = FIRST.topics[1]._replace(variants=())
    with pytest.raises(LedgerError, match=PROPOSER):
        revert(site, (replace(FIRST, topics=(topic,)), SECOND, feature((PROPOSER, []), id="x")))


def test_nothing_stands_but_the_state_folder(site: Site) -> None:
    """vLLM was reinstalled by something that does not know RECORD."""
    before = snapshot(site.root)
    apply(site)
    for path in (PROPOSER, RUNNER):
        (site.root / path).write_bytes(site.pristine[path])
    (site.root / MODULE).unlink()
    (site.root / MODULE).parent.rmdir()
    LOSSES["damaged"](site)
    outcome = revert(site)
    assert outcome.changed == ()
    assert snapshot(site.root) == before


def test_a_checkout_has_nothing_to_prove_it_with(tmp_path: Path) -> None:
    site = transactions.checkout(tmp_path / "checkout")
    apply(site)
    LOSSES["damaged"](site)
    before = snapshot(site.root)
    with pytest.raises(LedgerError, match="git checkout -- vllm"):
        revert(site)
    assert snapshot(site.root) == before


def test_other_commands_say_that_the_ledger_is_gone(site: Site) -> None:
    apply(site)
    LOSSES["gone"](site)
    with pytest.raises(LedgerError, match=r"ledger\.json is gone.*overlay revert"):
        ledger.load(site.root)


lines = st.lists(st.sampled_from(["a = 1", "b = 2", "c = 3", "d = 4"]), max_size=6)


@settings(deadline=None)
@given(before=lines, removed=lines, added=lines, after=lines)
def test_a_rebuilt_ledger_tells_the_truth_or_nothing(
    before: list[str], removed: list[str], added: list[str], after: list[str]
) -> None:
    """Law: whatever is applied, its ledger is rebuilt with the very pristine bytes, or refused."""
    path = "vllm/module.py"
    pristine = "".join(f"{line}\n" for line in [*before, *removed, *after]).encode()
    context = [f" {line}" for line in before[-2:]]
    assume(context or removed)  # the format knows no hunk without a pre-image
    one = feature(
        (path, [hunk([*context, *(f"-{x}" for x in removed), *(f"+{x}" for x in added)])])
    )
    plan = planning.plan((one,), MemoryTree({path: pristine}), RELEASE)
    assume(plan.changes)
    patched = MemoryTree({path: plan.changes[0].after or b""})
    record = {path: hashing.sha256(pristine)}
    try:
        found = rebuild((one,), patched, RELEASE, record)
    except LedgerError:
        event("refused")
        return
    event("rebuilt")
    (entry,) = found.ledger.entries
    assert entry.before is not None
    assert found.pristine[entry.before] == pristine


_RUN = "GPUModelRunner.capture_model"
#: Each changes a line of the other's context; one line stands between them.
NEIGHBOURS = (
    feature(
        (
            RUNNER,
            [
                hunk(
                    [
                        "-        captured = 0",
                        "+        captured = 1",
                        "         for size in (1, 2, 4):",
                        "             captured += self._capture(size)",
                        "         return captured",
                    ],
                    _RUN,
                )
            ],
        ),
        id="left",
    ),
    feature(
        (
            RUNNER,
            [
                hunk(
                    [
                        "         captured = 0",
                        "         for size in (1, 2, 4):",
                        "-            captured += self._capture(size)",
                        "+            captured += 2 * self._capture(size)",
                        "         return captured",
                        "+        # twice",
                    ],
                    _RUN,
                )
            ],
        ),
        id="right",
    ),
)


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_neighbours_are_undone_without_a_ledger(
    site: Site, lose: Callable[[Site], object], order: tuple[int, int]
) -> None:
    """What lies around the lines of each is not as it was made on."""
    before = snapshot(site.root)
    features = tuple(NEIGHBOURS[number] for number in order)
    apply(site, features)
    text = (site.root / RUNNER).read_text()
    assert "captured = 1\n" in text
    assert "captured += 2 * self" in text
    lose(site)
    assert revert(site, features).changed
    assert snapshot(site.root) == before


def test_an_edit_beside_neighbours_is_not_taken_for_theirs(site: Site) -> None:
    apply(site, NEIGHBOURS)
    runner = site.root / RUNNER
    runner.write_text(runner.read_text().replace("(1, 2, 4)", "(1, 2)"))
    (site.root / VLLM.ledger_path).unlink()
    before = snapshot(site.root)
    with pytest.raises(LedgerError, match="does not give the release's own files"):
        revert(site, NEIGHBOURS)
    assert snapshot(site.root) == before
