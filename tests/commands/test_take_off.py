"""``revert --feature``: what is left is what applying the others alone makes, byte for byte."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay._features.model import Hunk
from tests.support import fake_vllm
from tests.support.cli import PROPOSER, RUNNER, Cli, digest, edit
from tests.support.patches import hunk, patch_text, write_feature

PACKAGE = "vllm/v1/spec_decode/extra"


def _features(folder: Path) -> None:
    """Four features: two in one file, one in another, two that share an added package."""
    first = patch_text(PROPOSER, _insert("self.model = None", "a"))
    write_feature(folder, {"10-a/0.20.0..0.33.0.patch": first}, id="aa")
    second = patch_text(PROPOSER, _insert("self.model = target.draft()", "b", "load_model"))
    write_feature(folder, {"10-b/0.20.0..0.33.0.patch": second}, id="bb")
    third = hunk(["         captured = 0", "+        extra = 1"], "GPUModelRunner.capture_model")
    write_feature(
        folder,
        {
            "10-c/0.20.0..0.33.0.patch": patch_text(RUNNER, third),
            f"files/{PACKAGE}/__init__.py": "",
            f"files/{PACKAGE}/c.py": "C = 1\n",
        },
        id="cc",
    )
    write_feature(
        folder,
        {f"files/{PACKAGE}/__init__.py": "", f"files/{PACKAGE}/deep/d.py": "D = 1\n"},
        id="dd",
    )


def _insert(line: str, name: str, method: str = "__init__") -> Hunk:
    scope = f"SpecDecodeBaseProposer.{method}"
    return hunk([f"         {line}", f"+        self.{name} = 1"], scope)


IDS = ("aa", "bb", "cc", "dd")


@pytest.fixture
def several(cli: Cli) -> Cli:
    shutil.rmtree(cli.shipped)
    _features(cli.shipped)
    return cli


def only(ids: tuple[str, ...]) -> list[str]:
    return list(itertools.chain.from_iterable(("--feature", name) for name in ids))


@given(data=st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_left_is_what_the_others_alone_make(
    several: Cli, tmp_path: Path, data: st.DataObject
) -> None:
    applied = tuple(data.draw(st.lists(st.sampled_from(IDS), min_size=1, unique=True)))
    going = tuple(data.draw(st.lists(st.sampled_from(applied), min_size=1, unique=True)))
    installed = data.draw(st.booleans())
    make = fake_vllm.site_packages if installed else fake_vllm.tree
    for name in ("one", "two"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    one, two = make(tmp_path / "one"), make(tmp_path / "two")
    for step in range(data.draw(st.integers(1, 2))):  # in one go, or one after the other
        names = applied if step == 0 else applied[::-1]
        assert several("apply", *only(names), one).exit == 0
    result = several("revert", *only(going), one)
    assert result.exit == 0, result
    left = tuple(name for name in applied if name not in going)
    if left:
        assert several("apply", *only(left), two).exit == 0
    assert digest(one) == digest(two)
    modes = [{p.relative_to(r): p.stat().st_mode for p in r.rglob("*")} for r in (one, two)]
    assert modes[0] == modes[1]


def test_it_says_what_went_and_what_is_left(several: Cli, site: Path) -> None:
    several("apply", site)
    result = several("revert", "--feature", "aa", site)
    assert result.last == ("Took aa out of vLLM 0.26.0, 1 file written; bb, cc and dd are left.")
    assert several("status", site).last == ("bb, cc and dd are applied to vLLM 0.26.0; aa is not.")
    again = several("revert", "--feature", "aa", site)
    assert (again.exit, again.last) == (0, "Nothing to revert: aa is not applied to vLLM 0.26.0.")
    last = several("revert", *only(("bb", "cc", "dd")), site)
    assert last.last.endswith("nothing of the overlay is left there.")
    assert not (site / ".vllm-overlay").exists()


def test_a_feature_that_needs_the_one_that_goes_stays_as_it_is(cli: Cli, site: Path) -> None:
    on_top = hunk(
        ["         drafts = [self._first(tokens)]  # patched", "+        more = 1"],
        "SpecDecodeBaseProposer.propose",
    )
    write_feature(cli.shipped, {"10-e/0.20.0..0.33.0.patch": patch_text(PROPOSER, on_top)}, id="ee")
    assert cli("apply", site).exit == 0
    before = digest(site)
    result = cli("revert", "--feature", "demo", site)
    assert (result.exit, result.last) == (
        1,
        "Nothing was written to vLLM 0.26.0: without demo, ee has drifted.",
    )
    assert digest(site) == before


def test_what_stays_has_to_be_at_hand_as_it_was_applied(cli: Cli, site: Path) -> None:
    cli("--patches", cli.team, "apply", site)
    before = digest(site)
    result = cli("revert", "--feature", "demo", site)
    assert (result.exit, "team-capture (from" in result.last) == (1, True)
    toml = cli.team / "team-capture/feature.toml"
    toml.write_text(toml.read_text().replace("To test.", "Another form."))
    patch = cli.team / "team-capture/10-capture/0.20.0..0.33.0.patch"
    patch.write_text(patch.read_text().replace("(1, 2, 4, 8)", "(1, 2, 4, 16)"))
    result = cli("revert", "--feature", "demo", "--patches", cli.team, site)
    assert (result.exit, "was applied in another form" in result.last) == (1, True)
    assert digest(site) == before
    # What goes does not have to be at hand.
    assert cli("revert", "--feature", "team-capture", site).exit == 0
    assert cli("status", site).last == "demo is applied to vLLM 0.26.0."


def test_an_edit_is_never_lost(several: Cli, site: Path) -> None:
    several("apply", site)
    edit(site, RUNNER, "extra = 1", "extra = 2")
    before = digest(site)
    result = several("revert", "--feature", "aa", site)
    assert (result.exit, f"{RUNNER} was edited" in result.last) == (1, True)
    assert digest(site) == before


def test_an_unknown_feature_is_a_usage_error(several: Cli, site: Path) -> None:
    result = several("revert", "--feature", "zz", site)
    assert result.exit == 2
    assert "--feature zz: expected one of aa, bb, cc, dd" in result.err
