"""Law: what a plan says of a release, ``port`` and ``prune`` say, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.model import Feature
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import Porter
from overlay.authoring.pruning import Proposal, Prune, Pruner, ServedFeature
from overlay.authoring.writing import check_files
from overlay.planning.planner import plan
from overlay.results import Outcome, State
from overlay.untrusted import sha256
from tests.support.patches import hunk, patch_text

NAMES = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
ADDED, PATCHED, OTHER = "vllm/v1/mine.py", "vllm/v1/run.py", "vllm/v1/other.py"
MINE = b"def mine(x):\n    y = x + 1\n    return y\n"
LATER = b"import os\n\n\n" + MINE + b"\n\ndef more():\n    return os\n"
TEXT = b"def run(x):\n    y = first(x)\n    return y\n"
TAKEN = TEXT.replace(b"    return", b"    z = second(y)\n    return")
PATCH = patch_text(
    PATCHED,
    hunk(["     y = first(x)", "+    z = second(y)", "     return y"], "run"),
    headers="Description: d\nOrigin: o\nLast-Update: 2026-11-20\nBase: 0.30.0\n\n",
)


@dataclass(frozen=True)
class Tree:
    """One release, with the RECORD that its wheel has."""

    files: Mapping[str, bytes]
    record: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        rows = {path: sha256(data) for path, data in self.files.items()}
        object.__setattr__(self, "record", rows)

    def read(self, path: str) -> bytes | None:
        """See ``overlay.package.Tree``."""
        return self.files.get(path)


def files(
    *, topics: bool, modules: bool = True, last: str = NAMES[-1], toml: str = ""
) -> dict[str, bytes]:
    """A feature's folder, whose patch is made for all of its range."""
    text = f'id = "mine"\ntitle = "t"\nwhy = "w"\nreleases = "{NAMES[0]}..{last}"\n{toml}'
    made = {"feature.toml": text.encode()}
    if modules:
        made[f"files/{ADDED}"] = MINE
    if topics:
        made[f"10-run/{NAMES[0]}..{last}.patch"] = PATCH.encode()
    return made


def texts_of(trees: Mapping[str, Tree]) -> ReleaseTexts:
    return ReleaseTexts(tuple(trees), trees.__getitem__)


def planned(feature: Feature, name: str, tree: Tree) -> State:
    return plan([feature], tree, Version(name), tree.record).features[0].state


#: What a release has of the module, of the patched file, and of what the feature is for.
TREES = st.builds(
    lambda mine, run, runner: Tree({**mine, **run, **runner}),
    st.sampled_from([{}, {ADDED: MINE}, {ADDED: LATER}, {ADDED: b"value = 1\n"}]),
    st.sampled_from([{PATCHED: TEXT}, {PATCHED: TAKEN}, {}]),
    st.sampled_from([{RUNNER: b"one = 1\n"}, {}]),
)


@given(
    trees=st.lists(TREES, min_size=len(NAMES), max_size=len(NAMES)),
    topics=st.booleans(),
    for_v1=st.booleans(),
    last=st.sampled_from(NAMES),
)
@example(  # the newest release of the range lacks the file, the next one has all of the feature
    trees=[
        Tree({PATCHED: TEXT, RUNNER: b"one = 1\n"}),
        Tree({PATCHED: TEXT, RUNNER: b"one = 1\n"}),
        Tree({RUNNER: b"one = 1\n"}),
        Tree({ADDED: MINE, PATCHED: TAKEN, RUNNER: b"one = 1\n"}),
    ],
    topics=True,
    for_v1=False,
    last=NAMES[2],
)
def test_port_retires_what_a_plan_retires_in_a_range_and_behind_it(
    trees: list[Tree], topics: bool, for_v1: bool, last: str
) -> None:
    toml = 'model_runner = "v1"\n' if for_v1 else ""
    feature = check_files("mine", files(topics=topics, last=last, toml=toml))
    trees[0] = Tree({**trees[0].files, PATCHED: TEXT})  # the release that it was made on
    known = dict(zip(NAMES, trees, strict=True))
    porter = Porter(texts_of(known))
    for name, tree in known.items():
        state, port = planned(feature, name, tree), porter.port(feature, name)
        assert port.covered == (Version(name) <= Version(last))
        assert bool(port.evidence) == (state is State.UPSTREAMED)
        assert bool(port.obsolete) == (state is State.INAPPLICABLE)
        assert (port.outcome is Outcome.UPSTREAM) == (
            state in (State.UPSTREAMED, State.INAPPLICABLE)
        )


@given(trees=st.lists(TREES, min_size=len(NAMES), max_size=len(NAMES)), topics=st.booleans())
def test_prune_ends_a_range_and_removes_only_where_a_plan_has_nothing_to_do(
    trees: list[Tree], topics: bool
) -> None:
    made = files(topics=topics, toml='model_runner = "v1"\n')
    feature = check_files("mine", made)
    known = dict(zip(NAMES, trees, strict=True))
    states = {name: planned(feature, name, tree) for name, tree in known.items()}
    for proposal in Pruner(texts_of(known), NAMES).propose([ServedFeature(feature, made)]):
        if proposal.files is None:
            assert set(states.values()) <= {State.UPSTREAMED, State.INAPPLICABLE}
        elif proposal.kind is Prune.OBSOLETE:
            left = check_files("mine", carried_out(made, proposal))
            assert left.releases.last < feature.releases.last
            for name, tree in known.items():
                assert planned(left, name, tree) is states[name]


def carried_out(made: Mapping[str, bytes], proposal: Proposal) -> dict[str, bytes]:
    left = {**made, **(proposal.files or {})}
    return {path: data for path, data in left.items() if data is not None}


def with_v1_until(last: str | None) -> dict[str, Tree]:
    """Releases of which those behind one have no model runner V1."""
    known = {}
    for name in NAMES:
        there = {} if last is None or Version(name) > Version(last) else {RUNNER: b"one = 1\n"}
        known[name] = Tree({PATCHED: TEXT, **there})
    return known


@pytest.mark.parametrize("topics", [True, False])
def test_the_range_of_what_is_obsolete_ends(topics: bool) -> None:
    made = files(topics=topics, toml='model_runner = "v1"\n')
    known = texts_of(with_v1_until("0.31.0"))
    (proposal,) = Pruner(known, NAMES).propose([ServedFeature(check_files("mine", made), made)])
    assert (proposal.kind, proposal.text) == (Prune.OBSOLETE, "end its range at 0.31.0")
    assert proposal.evidence == "vLLM has no model runner V1 any more, from 0.32.0 up to 0.33.0"
    left = carried_out(made, proposal)
    feature = check_files("mine", left)
    assert str(feature.releases) == "0.30.0..0.31.0"
    assert Pruner(known, NAMES).propose([ServedFeature(feature, left)]) == ()


def test_what_is_obsolete_on_every_release_that_is_served_goes() -> None:
    made = files(topics=True, toml='model_runner = "v1"\n')
    known = texts_of(with_v1_until("0.31.0"))
    (proposal,) = Pruner(known, NAMES[2:]).propose([ServedFeature(check_files("mine", made), made)])
    assert (proposal.kind, proposal.files) == (Prune.FEATURE, None)
    assert proposal.evidence == (
        "no release of 0.32.0..0.33.0 leaves it anything to do: vLLM has no model runner V1 any "
        "more"
    )


def test_what_is_for_later_releases_stays() -> None:
    """The file that it is for has not come yet."""
    made = files(topics=False, toml=f'obsolete_without = ["{OTHER}"]\n')
    made["feature.toml"] = made["feature.toml"].replace(b"0.30.0..", b"0.33.0..")
    served = [ServedFeature(check_files("mine", made), made)]
    assert Pruner(texts_of(with_v1_until("0.31.0")), NAMES[:3]).propose(served) == ()


def test_a_port_to_a_release_without_what_a_feature_is_for_leaves_nothing_to_do() -> None:
    made = files(topics=True, last="0.31.0", toml='model_runner = "v1"\n')
    known = with_v1_until("0.31.0")
    known["0.32.0"] = Tree({})
    port = Porter(texts_of(known)).port(check_files("mine", made), "0.32.0")
    assert (port.conflicts, port.evidence) == (False, "")
    assert port.obsolete == "vLLM has no model runner V1 any more"


@pytest.mark.parametrize(
    ("release", "outcome"),
    [
        ({}, Outcome.EXACT),
        ({ADDED: LATER}, Outcome.PARTLY),
        ({ADDED: b"a = 1\n"}, Outcome.CONFLICT),
    ],
)
def test_modules_count_in_the_outcome_of_a_port(
    release: dict[str, bytes], outcome: Outcome
) -> None:
    known = {"0.30.0": Tree({PATCHED: TEXT}), "0.31.0": Tree({PATCHED: TEXT, **release})}
    feature = check_files("mine", files(topics=True, last="0.30.0"))
    assert Porter(texts_of(known)).port(feature, "0.31.0").outcome is outcome
