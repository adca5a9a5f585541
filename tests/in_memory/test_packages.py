"""The plugin where features are for several packages: one decision, one digest, all or nothing."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.in_memory.boxes import FEATURE, HUNK, PROPOSER, Box
from tests.support import fake_vllm
from tests.support.patches import hunk, patch_text

ASCEND = "vllm_ascend"
RELEASE = "0.23.0.post1"
RANGE = "0.20.2rc1..0.30.0rc2"

#: What runs in a process: vLLM's proposer, and that of the other package.
BOTH = """
register()
def ascend():
    from vllm_ascend.v1.spec_decode.proposer import SpecDecodeBaseProposer as P
    p = P(1); p.model = lambda tokens: 'pristine'
    return p.propose(None)[0]
found = runs(), ascend()
"""


def of_ascend(text: str) -> str:
    """A text about vLLM as one about the other package."""
    return text.replace("vllm", ASCEND)


class Pair:
    """A box in which vllm_ascend is installed, too, with a feature for it."""

    def __init__(self, box: Box, folder: Path) -> None:
        self.box, self.site = box, folder
        initial = {f"{ASCEND}/__init__.py": f"__version__ = '{RELEASE}'\n".encode()}
        fake_vllm.site_packages(
            folder, RELEASE, initial, distribution="vllm-ascend", package=ASCEND
        )
        feature = box.patches / "lengths"
        (feature / "10-first").mkdir(parents=True)
        toml = FEATURE.replace("demo", "lengths").replace("0.25.0..0.26.0", RANGE)
        (feature / "feature.toml").write_text(f'{toml}package = "{ASCEND}"\n')
        lines = [op + of_ascend(text) for op, text in HUNK.lines]
        patch = patch_text(of_ascend(PROPOSER), hunk(lines, HUNK.scope))
        (feature / f"10-first/{RANGE}.patch").write_text(patch)
        added = feature / f"files/{ASCEND}/v1/spec_decode/added.py"
        added.parent.mkdir(parents=True)
        added.write_text("MARK = 'lengths'\n")
        before = box.environment["PYTHONPATH"]
        if folder != box.site:
            box.environment["PYTHONPATH"] = f"{folder}{os.pathsep}{before}"

    def finds(self, *expected: str, **changes: str) -> str:
        """Require what vLLM's proposer and the other one's give; returns the log."""
        code = f"import vllm\n{BOTH}assert found == {expected!r}, found\n"
        return self.box.run(code, **changes)


@pytest.fixture(params=["one folder", "two folders"])
def pair(request: pytest.FixtureRequest, box: Box, tmp_path: Path) -> Pair:
    return Pair(box, box.site if request.param == "one folder" else tmp_path / "vllm-ascend")


def digest_in(log: str) -> str:
    """The digest that a process says it runs."""
    found = re.search(r"patch set (\w+)", log)
    assert found is not None, log
    return found[1]


def test_both_are_patched_in_memory(pair: Pair) -> None:
    before = pair.box.fingerprint()
    for _ in ("cold", "warm"):
        log = pair.finds("patched", "lengths")
        assert "has the patches demo, lengths (memory) on vLLM 0.26.0" in log
    assert pair.box.fingerprint() == before


def test_on_disk_and_in_memory_have_one_digest(pair: Pair) -> None:
    memory = digest_in(pair.finds("patched", "lengths"))
    pair.box.overlay("apply")
    log = pair.finds("patched", "lengths")
    assert "has the patches demo, lengths (disk)" in log
    assert digest_in(log) == memory
    only = digest_in(pair.finds("patched", "lengths", OVERLAY_FEATURES="demo,lengths"))
    assert only != memory  # a switch that ranks have to agree on


def test_one_on_disk_and_the_other_in_memory(pair: Pair) -> None:
    memory = digest_in(pair.finds("patched", "lengths"))
    for first, second in (("demo", "lengths"), ("lengths", "demo")):
        pair.box.overlay("apply", "--feature", first)
        log = pair.finds("patched", "lengths")
        assert "(disk and memory)" in log
        assert digest_in(log) == memory
        pair.box.overlay("revert", "--feature", first)
        assert second in log


def test_ranks_compare_the_release_of_each_patched_package(pair: Pair) -> None:
    """In memory and on disk."""
    saying = "from overlay.in_memory import plugin\nprint(plugin._process.rank_report(0).others)\n"
    code = f"import vllm\nregister()\n{saying}"
    one, none = f"(('vllm-ascend', '{RELEASE}'),)\n", "()\n"
    assert pair.box.attempt(code).stdout == one
    assert pair.box.attempt(code, OVERLAY_FEATURES="demo").stdout == none  # compared as vLLM alone
    pair.box.overlay("apply")
    assert pair.box.attempt(code).stdout == one


def test_nothing_is_on_disk_where_the_other_package_changed(pair: Pair) -> None:
    pair.box.overlay("apply")
    for path in (f"{ASCEND}/v1/spec_decode/added.py", ".vllm_ascend-overlay/ledger.json"):
        place = pair.site / path
        text = place.read_bytes()
        place.write_bytes(text + b"\n# changed\n")
        done = pair.box.attempt("register()")
        assert "has the patches demo, lengths (disk)" not in done.stderr, path
        place.write_bytes(text)
        assert "has the patches demo, lengths (disk)" in pair.finds("patched", "lengths")


def test_the_other_package_comes_and_goes(pair: Pair) -> None:
    pair.box.overlay("apply")
    kept = pair.site.parent / "kept"
    kept.mkdir()
    for place in [*pair.site.glob("vllm_ascend*"), pair.site / ".vllm_ascend-overlay"]:
        place.rename(kept / place.name)
    log = pair.box.run("register(); assert runs() == 'patched', runs()\n")
    assert "has the patches demo (disk)" in log
    assert "lengths" not in log.replace("lengths (", "")
    for place in kept.iterdir():
        place.rename(pair.site / place.name)
    assert "has the patches demo, lengths (disk)" in pair.finds("patched", "lengths")


def test_a_package_that_is_not_there_is_silent(box: Box, tmp_path: Path) -> None:
    alone = box.run("register(); assert runs() == 'patched', runs()\n")
    pair = Pair(box, tmp_path / "elsewhere")
    shutil.rmtree(pair.site)
    log = box.run("register(); assert runs() == 'patched', runs()\n")
    assert "lengths" not in log
    assert digest_in(log) == digest_in(alone)


@pytest.mark.parametrize("how", ["twice", "archive"])
def test_a_package_that_cannot_be_patched_keeps_all_from_it(pair: Pair, how: str) -> None:
    """Half of what was asked for would be worse than nothing, and is not brought about."""
    if how == "twice":
        fake_vllm.site_packages(pair.site, "1.0", distribution="ascend-mine", package=ASCEND)
        shutil.rmtree(next(pair.site.glob("ascend_mine*")))
        info = pair.site / "vllm_ascend_mine-1.dist-info"
        shutil.copytree(next(pair.site.glob("vllm_ascend-*.dist-info")), info)
    else:
        archive = fake_vllm.wheel(
            pair.site.parent, RELEASE, distribution="vllm-ascend", package=ASCEND
        )
        pair.box.environment["PYTHONPATH"] = (
            f"{archive}{os.pathsep}{pair.box.environment['PYTHONPATH']}"
        )
    log = pair.box.run("register(); assert runs() == 'pristine', runs()\n")
    assert "nothing is patched in memory, and nothing on disk verified" in log
    assert ASCEND in log
    done = pair.box.attempt("register()", OVERLAY_REQUIRED="demo")
    assert done.returncode != 0


def test_what_is_required_of_the_other_package(pair: Pair) -> None:
    pair.finds("patched", "lengths", OVERLAY_REQUIRED="demo,lengths")
    proposer = pair.site / of_ascend(PROPOSER)
    proposer.write_text(proposer.read_text().replace("return self.model", "return  self.model"))
    done = pair.box.attempt("register()", OVERLAY_REQUIRED="lengths")
    assert done.returncode != 0
    assert "lengths is drifted" in done.stderr
    log = pair.box.run("register(); assert runs() == 'patched', runs()\n")
    assert "lengths is left out (drifted)" in log


def test_disk_only(pair: Pair) -> None:
    pair.finds("pristine", "pristine", OVERLAY="disk")
    pair.box.overlay("apply")
    log = pair.finds("patched", "lengths", OVERLAY="disk")
    assert "has the patches demo, lengths (disk)" in log


def test_off_says_what_is_on_disk_in_both(pair: Pair) -> None:
    assert "off (OVERLAY=off)" in pair.finds("pristine", "pristine", OVERLAY="off")
    pair.box.overlay("apply", "--feature", "lengths")
    log = pair.finds("pristine", "lengths", OVERLAY="off")
    assert "patched code is on disk: lengths" in log


def test_an_interrupted_transaction_in_the_other_package(pair: Pair) -> None:
    folder = pair.site / ".vllm_ascend-overlay"
    folder.mkdir()
    (folder / "journal.json").write_text("{}")
    log = pair.box.run("register(); assert runs() == 'pristine', runs()\n")
    assert "is running or was interrupted" in log
