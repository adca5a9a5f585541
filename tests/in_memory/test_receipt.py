"""A process that has nothing to plan reads one receipt; whatever it rests on, a change is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.in_memory.boxes import PROPOSER, REPO, Box
from tests.in_memory.test_on_disk import UPSTREAMED, another

#: What decides; a process with a receipt imports none of it.
DECIDES = {
    "overlay.features.folder",
    "overlay.in_memory.preparation",
    "overlay.on_disk.ledger",
    "overlay.planning.planner",
    "overlay.targets.installations",
}
SHOW = f"""
import vllm, json, logging, sys
before = set(sys.modules)
register()
from overlay.in_memory import plugin
activation = plugin._process.activation
print(json.dumps([
    sorted({DECIDES!r} & set(sys.modules) - before),
    activation.way,
    activation.digest,
    [[each.id, each.state.value, each.active, each.why] for each in activation.features],
]))
"""


def decided(box: Box, **changes: str) -> tuple[set[str], list[object]]:
    """What a process imported to decide, and what it decided."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD.format(empty=str(box.empty)) + SHOW],
        env=box.environment | changes,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported, *decision = json.loads(done.stdout)
    return set(imported), decision


HEAD = """
from pathlib import Path
import overlay.features.sources
overlay.features.sources.shipped_folder = lambda: Path({empty!r})
from overlay.plugin import register
"""


def receipts(box: Box) -> list[Path]:
    return sorted((box.cache / "receipts").glob("*.json"))


SWITCH = """
[[switches]]
name = "OVERLAY_DEMO"
values = ["off", "on"]
default = "on"
text = "whether it runs"
deprecated = { "0" = "off" }
"""


@pytest.fixture
def applied(box: Box) -> Box:
    """A box whose feature, which declares a switch, is on disk; apply has left a receipt."""
    document = box.patches / "demo/feature.toml"
    document.write_text(document.read_text() + SWITCH)
    another(box, "other", UPSTREAMED)
    box.overlay("apply", str(box.site))
    assert len(receipts(box)) == 1
    return box


def test_apply_writes_the_receipt_that_the_plugin_writes(applied: Box) -> None:
    (receipt,) = receipts(applied)
    text = receipt.read_bytes()
    receipt.unlink()
    imported, first = decided(applied)
    assert "overlay.on_disk.ledger" in imported
    assert receipts(applied) == [receipt]
    assert receipt.read_bytes() == text
    assert decided(applied) == (set(), first)


def test_the_first_process_after_apply_decides_nothing(applied: Box) -> None:
    imported, decision = decided(applied)
    assert imported == set()
    assert decision[0] == "disk"


def test_an_apply_with_nothing_to_do_leaves_the_receipt_alone(applied: Box) -> None:
    (receipt,) = receipts(applied)
    before = receipt.stat()
    applied.overlay("apply", str(applied.site))
    assert receipt.stat() == before


@pytest.mark.parametrize("argument", ["--dry-run", "--json"])
def test_only_an_apply_that_may_write_leaves_a_receipt(box: Box, argument: str) -> None:
    box.overlay("apply", str(box.site), argument)
    assert len(receipts(box)) == (0 if argument == "--dry-run" else 1)


def test_the_receipt_of_apply_holds_for_every_value_of_a_switch(applied: Box) -> None:
    digests = set()
    for value in ("on", "off", "0"):
        imported, decision = decided(applied, OVERLAY_DEMO=value)
        assert imported == set(), value
        digests.add(decision[1])
    assert len(digests) == 3, "ranks compare the values of switches by the digest"
    done = applied.attempt("import vllm; register()", OVERLAY_DEMO="loud")
    assert done.returncode != 0
    assert "OVERLAY_DEMO='loud': expected one of off, on" in done.stderr
    assert "OVERLAY_DEMO=0 is deprecated" in applied.run(
        "import vllm; register()", OVERLAY_DEMO="0"
    )
    assert "did you mean OVERLAY_DEMO" in applied.run("import vllm; register()", OVERLAY_DEMOS="on")


@pytest.mark.parametrize("mode", ["auto", "disk"])
def test_what_is_on_disk_is_decided_once(applied: Box, mode: str) -> None:
    _, first = decided(applied, OVERLAY=mode)
    imported, second = decided(applied, OVERLAY=mode)
    assert imported == set()
    assert first == second
    assert first[0] == "disk"


@pytest.mark.parametrize("mode", ["auto", "disk"])
def test_where_there_is_nothing_to_do_it_is_decided_once(box: Box, mode: str) -> None:
    document = box.patches / "demo/feature.toml"
    document.write_text(document.read_text().replace("0.25.0..0.26.0", "0.27.0..0.28.0"))
    patch = box.patches / "demo/10-first/0.25.0..0.26.0.patch"
    patch.rename(patch.with_name("0.27.0..0.28.0.patch"))
    _, first = decided(box, OVERLAY=mode)
    imported, second = decided(box, OVERLAY=mode)
    assert imported == set()
    assert first == second
    assert first[0] == "none"


def test_what_is_patched_in_memory_has_no_receipt(box: Box) -> None:
    for _ in range(2):
        _, decision = decided(box)
        assert decision[0] == "memory"
    assert receipts(box) == []


def edit(path: str) -> Callable[[Box], object]:
    return lambda box: (box.site / path).write_text((box.site / path).read_text() + "# more\n")


def journal(box: Box) -> None:
    (box.site / ".vllm-overlay/journal.json").write_text("{}")


def further_feature(box: Box) -> None:
    another(box, "second")


def edit_feature(box: Box) -> None:
    file = box.patches / "demo/files/vllm/v1/spec_decode/added.py"
    file.write_text("MARK = 'changed'\n")


def open_to_others(box: Box) -> None:
    box.patches.chmod(0o777)


def other_release(box: Box) -> None:
    (metadata,) = box.site.glob("vllm-*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("0.26.0", "0.26.1"))


def damage(box: Box) -> None:
    (receipt,) = receipts(box)
    receipt.write_text(receipt.read_text().replace('"disk"', '"both"', 1)[:-7])


def nest(box: Box) -> None:
    (receipt,) = receipts(box)
    receipt.write_text("[" * 200_000)


def let_others_write_the_receipts(box: Box) -> None:
    (box.cache / "receipts").chmod(0o777)


CHANGES = {
    "a patched file": edit(PROPOSER),
    "an added file": edit("vllm/v1/spec_decode/added.py"),
    "the ledger": lambda box: (box.site / ".vllm-overlay/ledger.json").open("a").write("\n"),
    "a journal": journal,
    "a further feature": further_feature,
    "a feature": edit_feature,
    "whose the patches are": open_to_others,
    "the release": other_release,
    "a damaged receipt": damage,
    "a receipt with deep brackets": nest,
    "receipts that others can write": let_others_write_the_receipts,
}


@pytest.mark.parametrize("what", CHANGES)
def test_after_a_change_it_is_decided_again(applied: Box, what: str) -> None:
    assert decided(applied)[0] == set()
    CHANGES[what](applied)
    imported, _ = decided(applied)
    assert imported, f"{what} was not seen"


@pytest.mark.parametrize(
    "changes",
    [{"OVERLAY_FEATURES": "demo"}, {"OVERLAY_UNTESTED": "on"}, {"OVERLAY_REQUIRED_PRESENT": "all"}],
)
def test_other_variables_have_a_receipt_of_their_own(applied: Box, changes: dict[str, str]) -> None:
    assert decided(applied, **changes)[0]
    assert decided(applied, **changes)[0] == set()
    assert decided(applied)[0] == set()


def test_a_required_feature_is_refused_with_a_receipt_at_hand(applied: Box) -> None:
    decided(applied)
    done = applied.attempt("import vllm; register()", OVERLAY_REQUIRED="nobody")
    assert done.returncode != 0
    assert "nobody is not active" in done.stderr


def test_a_cache_that_cannot_be_written_costs_time_only(box: Box) -> None:
    box.cache.mkdir(exist_ok=True)
    (box.cache / "receipts").write_text("a file")
    box.overlay("apply", str(box.site))
    for _ in range(2):
        assert decided(box)[1][0] == "disk"


def test_what_reading_a_receipt_imports() -> None:
    """The budget of a process that has nothing to plan; what is added here, each one pays for."""
    show = "import sys, overlay.on_disk.receipt; print(*sorted(m for m in sys.modules "
    show += "if m.startswith('overlay')))"
    done = subprocess.run(
        [sys.executable, "-c", show], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        "overlay",
        "overlay.cache",
        "overlay.errors",
        "overlay.features",
        "overlay.features.sources",
        "overlay.on_disk",
        "overlay.on_disk.receipt",
        "overlay.untrusted",
    ]
