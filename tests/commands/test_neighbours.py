"""Features that are apart, on disk: what is applied does not depend on the way to it."""

from __future__ import annotations

import shutil
from itertools import permutations
from pathlib import Path

import pytest

from tests.support.cli import RUNNER, Cli, digest
from tests.support.patches import hunk, patch_text, write_feature

RUN = "GPUModelRunner.capture_model"
AROUND = [
    "         captured = 0",
    "         for size in (1, 2, 4):",
    "             captured += self._capture(size)",
    "         return captured",
]
IDS = ("our-a", "our-b")


@pytest.fixture
def ours(cli: Cli) -> Path:
    """Two features, each of which changes what lies around the lines of the other."""
    folder = cli.team.parent / "ours"
    first = ["-" + AROUND[0][1:], "+        captured = 1", *AROUND[1:]]
    line = "+            captured += 2 * self._capture(size)"
    second = [*AROUND[:2], "-" + AROUND[2][1:], line, AROUND[3]]
    for id_, lines in zip(IDS, (first, second), strict=True):
        text = patch_text(RUNNER, hunk(lines, RUN))
        write_feature(folder, {"10-own/0.20.0..0.33.0.patch": text}, id=id_)
    return folder


def words(ours: Path, *ids: str) -> list[str | Path]:
    return ["--patches", ours, *(word for id_ in ids for word in ("--feature", id_))]


def test_every_way_to_a_set_of_features_gives_the_same_bytes(
    cli: Cli, site: Path, ours: Path
) -> None:
    sets: list[tuple[str, ...]] = [IDS, IDS[:1], IDS[1:]]
    pristine = digest(site)
    expected = {}
    for ids in sets:
        assert cli("check", site, *words(ours, *ids)).exit == 0
        assert cli("apply", site, *words(ours, *ids)).exit == 0
        expected[ids] = digest(site)
        assert cli("revert", site).exit == 0
        assert digest(site) == pristine
    assert len({text[RUNNER] for text in (*expected.values(), pristine)}) == 4
    for first, other in permutations(IDS):
        for ids in ((first,), (other,)):
            assert cli("apply", site, *words(ours, *ids)).exit == 0
        assert digest(site) == expected[IDS]
        assert cli("revert", site, *words(ours, first)).exit == 0
        assert digest(site) == expected[(other,)]
        assert cli("revert", site).exit == 0
        assert digest(site) == pristine


def test_neighbours_are_taken_over_without_a_ledger(cli: Cli, site: Path, ours: Path) -> None:
    pristine = digest(site)
    assert cli("apply", site, *words(ours, *IDS)).exit == 0
    patched = digest(site)
    shutil.rmtree(site / ".vllm-overlay")
    assert "applied without the overlay" in cli("check", site, *words(ours, *IDS)).out
    assert cli("adopt", site, "--patches", ours).exit == 0
    assert digest(site) == patched
    assert cli("revert", site).exit == 0
    assert digest(site) == pristine


def test_a_stack_on_a_module_of_its_own_is_taken_over(cli: Cli, site: Path) -> None:
    """Laid by hand: a module, an edit of it, and two neighbours of that."""
    folder, path = cli.team.parent / "stack", "vllm/utils/ours.py"
    pristine = digest(site)
    module = "def scale(x):\n    a = x\n    b = a\n    c = b\n    return c * 2\n"
    write_feature(folder, {f"files/{path}": module}, id="s-1")
    edits = [("a = x", "a = x + 1"), ("c = b", "c = b + 1"), ("return c * 2", "return c * 3")]
    context = ["     " + line.strip() for line in module.splitlines()[1:]]
    for number, (old, new) in enumerate(edits, 2):
        at = context.index("     " + old)
        lines = [*context[:at], f"-    {old}", f"+    {new}", *context[at + 1 :]]
        text = patch_text(path, hunk(lines, "scale"))
        write_feature(folder, {"10-own/0.20.0..0.33.0.patch": text}, id=f"s-{number}")
    ids = [f"s-{number}" for number in range(1, 5)]
    answer = cli("check", site, *words(folder, *ids))
    assert (answer.exit, answer.last.count("s-3 and s-4 clash")) == (1, 1)
    ids.remove("s-4")
    assert cli("apply", site, *words(folder, *ids)).exit == 0
    patched = digest(site)
    shutil.rmtree(site / ".vllm-overlay")
    record = next(site.glob("vllm-*.dist-info")) / "RECORD"
    record.write_text("".join(
        line for line in record.read_text().splitlines(keepends=True)
        if "utils/ours.py" not in line and ".vllm-overlay" not in line
    ))  # fmt: skip
    shutil.rmtree(folder / "s-4")
    answer = cli("adopt", site, "--patches", folder)
    assert answer.exit == 0, answer.err
    assert digest(site)[path] == patched[path]
    assert cli("revert", site).exit == 0
    assert digest(site).keys() == pristine.keys()
