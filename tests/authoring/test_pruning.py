"""Law 10: prune removes nothing that a release which is still served would apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import Feature
from overlay.authoring import pruning
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.pruning import (
    Proposal,
    Prune,
    Pruner,
    ServedFeature,
    clip,
    groups_of,
)
from overlay.authoring.pruning import _Answer as Answer
from overlay.authoring.writing import check_files
from overlay.errors import PatchFormatError, PatchFormatErrors
from overlay.package import VLLM, ReleaseRange
from overlay.planning.planner import plan
from overlay.results import Change, State
from tests.support import port_world
from tests.support.patches import MemoryTree, hunk, patch_text, write_feature
from tests.support.patches import feature as feature_of

NAMES = ("0.20.0", "0.21.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0")
PATH = "vllm/v1/a.py"
HEADERS = "Description: A test\nOrigin: the tests\nLast-Update: 2026-11-20\nBase: {base}\n\n"


@dataclass(frozen=True)
class World:
    """Releases and features over them.

    :ivar versions: function -> the number in its text on each release.
    :ivar upstream: function -> the index of the first release that has its change, or ``None``.
    :ivar features: function -> the ranges of its variants, as indices with the kind of context; and
        whether its feature.toml holds tests.
    :ivar oldest: index of the oldest release that is still served.
    """

    versions: tuple[tuple[int, ...], ...]
    upstream: tuple[int | None, ...]
    features: tuple[tuple[tuple[tuple[int, int, bool], ...], bool], ...]
    oldest: int

    def read(self, release: str) -> bytes:
        """The file of a release."""
        at = NAMES.index(release)
        text = []
        for number, versions in enumerate(self.versions):
            since = self.upstream[number]
            has = [added(number)] if since is not None and at >= since else []
            text += [f"def f{number}():", f"    base = {versions[at]}", *has]
            text += ["    return base", ""]
        return ("\n".join(text) + "\n").encode()

    def write(self, folder: Path) -> None:
        """The features' folders."""
        for number, (variants, tested) in enumerate(self.features):
            place = folder / f"f{number}"
            first, last = variants[0][0], variants[-1][1]
            toml = f'id = "f{number}"\ntitle = "t"\nwhy = "w"\n'
            toml += f'releases = "{NAMES[first]}..{NAMES[last]}"\n'
            if tested:
                toml += f'[[upstreamed]]\npath = "{PATH}"\nscope = "f{number}"\n'
                toml += f'lines = ["{added(number).strip()}"]\nshare = 0.6\n'
            (place / "10-a").mkdir(parents=True)
            (place / "feature.toml").write_text(toml)
            for begin, end, wide in variants:
                context = f"     base = {self.versions[number][begin]}" if wide else None
                lines = [f"+{added(number)}", "     return base"]
                text = patch_text(
                    PATH,
                    hunk([context, *lines] if context else lines, f"f{number}"),
                    headers=HEADERS.format(base=NAMES[begin]),
                )
                (place / f"10-a/{NAMES[begin]}..{NAMES[end]}.patch").write_text(text)


def added(number: int) -> str:
    return f"    worked_more_often({number})"


@dataclass(frozen=True)
class Tree:
    """One release."""

    world: World
    release: str

    def read(self, path: str) -> bytes | None:
        return self.world.read(self.release) if path == PATH else None


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 3))
    versions, upstream, features = [], [], []
    for _ in range(count):
        steps = draw(st.lists(st.booleans(), min_size=len(NAMES), max_size=len(NAMES)))
        versions.append(tuple(sum(steps[: at + 1]) for at in range(len(NAMES))))
        upstream.append(draw(st.none() | st.integers(0, len(NAMES))))
        ends = sorted(draw(st.sets(st.integers(0, len(NAMES) - 1), min_size=1, max_size=4)))
        begins = [draw(st.integers(0, ends[0])), *(end + 1 for end in ends[:-1])]
        variants = tuple((b, e, draw(st.booleans())) for b, e in zip(begins, ends, strict=True))
        features.append((variants, draw(st.booleans())))
    oldest = draw(st.integers(0, len(NAMES) - 1))
    return World(tuple(versions), tuple(upstream), tuple(features), oldest)


Applied = dict[str, tuple[State, tuple[Change, ...]]]


def applied(features: Sequence[Feature], world: World, release: str) -> Applied:
    """What each feature does on a release, alone and with the others."""
    tree, version = Tree(world, release), Version(release)
    found: Applied = {}
    for feature in features:
        alone = plan([feature], tree, version)
        found[feature.id] = alone.features[0].state, alone.changes
    joint = plan(features, tree, version)
    found["all"] = State.PRISTINE, joint.changes
    return found


def files(folder: Path, feature: Feature) -> dict[str, bytes]:
    place = folder / feature.id
    return {
        p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*") if p.is_file()
    }


def proposals(world: World, folder: Path) -> tuple[Proposal, ...]:
    texts = ReleaseTexts(NAMES, lambda name: Tree(world, name))
    served = [ServedFeature(feature, files(folder, feature)) for feature in load([folder])]
    return Pruner(texts, NAMES[world.oldest :]).propose(served)


def carry_out(made: Sequence[Proposal], folder: Path) -> None:
    from overlay.authoring.commands.prune import _carry_out

    _carry_out(folder, tuple(made))


#: Variants for two old releases, two of the same text, and a merge in 0.24.0.
TYPICAL = World(
    versions=((0, 0, 1, 1, 1, 1),),
    upstream=(4,),
    features=((((0, 1, True), (2, 2, False), (3, 3, False)), True),),
    oldest=2,
)


@settings(deadline=None, max_examples=60)
@given(worlds())
@example(TYPICAL)
def test_nothing_that_a_served_release_applies_is_removed(world: World) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        world.write(folder)
        names = NAMES[world.oldest :]
        before = {name: applied(load([folder]), world, name) for name in names}
        made = proposals(world, folder)
        carry_out(made, folder)
        left = load([folder])
        for name in names:
            after = applied(left, world, name)
            for id_, was in before[name].items():
                if id_ in after:
                    assert after[id_] == was
                else:
                    assert was == (State.UPSTREAMED, ())
        assert proposals(world, folder) == ()


def test_what_is_proposed_has_evidence(tmp_path: Path) -> None:
    TYPICAL.write(tmp_path)
    made = proposals(TYPICAL, tmp_path)
    assert [(proposal.kind, proposal.text) for proposal in made] == [
        (Prune.MERGED, 'note merged = "0.24.0"'),
        (Prune.VARIANTS, "remove 1 variant (0.20.0..0.21.0), and begin its range at 0.22.0"),
        (Prune.UNITE, "unite 10-a 0.22.0..0.22.0 and 0.23.0..0.23.0"),
    ]
    assert made[0].evidence == "0.24.0 and every later release up to 0.25.0 has it"
    carry_out(made, tmp_path)
    (feature,) = load([tmp_path])
    assert (str(feature.releases), str(feature.merged)) == ("0.22.0..0.23.0", "0.24.0")
    assert sorted(path.name for path in (tmp_path / "f0/10-a").iterdir()) == [
        "0.22.0..0.23.0.patch"
    ]


def test_what_upstream_has_everywhere_goes_and_what_drifts_stays(tmp_path: Path) -> None:
    world = World(
        versions=((0, 0, 0, 0, 0, 0), (0, 1, 2, 3, 4, 5)),
        upstream=(2, None),
        features=((((0, 1, True),), True), (((0, 0, True), (1, 5, True)), False)),
        oldest=2,
    )
    world.write(tmp_path)
    made = proposals(world, tmp_path)
    assert [(p.feature, p.kind) for p in made if p.kind is Prune.FEATURE] == [("f0", Prune.FEATURE)]
    carry_out(made, tmp_path)
    assert [feature.id for feature in load([tmp_path])] == ["f1"]


#: Release -> the files that have the change of the same letter.
HAS = {"0.20.0": "", "0.21.0": "ab", "0.22.0": "a"}


@pytest.mark.parametrize("last", ["0.20.0", "0.22.0"])
def test_a_merge_is_not_noted_where_upstream_took_a_part_of_it_back(
    tmp_path: Path, last: str
) -> None:
    """There a file would be patched again, whatever the other one has."""
    text = "def f(x):\n    start(x)\n    return x\n"
    work = {name: f"    work_{name}(x, 1)" for name in "ab"}
    patches = {
        f"10-{name}/0.20.0..{last}.patch": patch_text(
            f"vllm/{name}.py",
            hunk(["     start(x)", f"+{line}", "     return x"], "f"),
            headers=HEADERS.format(base="0.20.0"),
        )
        for name, line in work.items()
    }
    write_feature(tmp_path, patches, "demo", f"0.20.0..{last}")
    (feature,) = load([tmp_path])
    trees = {
        release: MemoryTree(
            {
                f"vllm/{name}.py": text.replace(
                    "    return", f"{line}\n    return" if name in has else "    return"
                ).encode()
                for name, line in work.items()
            }
        )
        for release, has in HAS.items()
    }
    served = [ServedFeature(feature, files(tmp_path, feature))]

    def proposed(*names: str) -> list[str]:
        texts = ReleaseTexts(names, trees.__getitem__)
        return [p.text for p in Pruner(texts, names).propose(served)]

    assert proposed(*HAS) == []
    assert proposed("0.20.0", "0.21.0") == [
        'note merged = "0.21.0"' + (", and end its range at 0.20.0" if last == "0.22.0" else "")
    ]


def test_a_variant_gets_a_release_candidate_as_its_base(tmp_path: Path) -> None:
    """Where a package's releases are candidates, those that are served are nothing else."""
    names = ("0.23.0rc1", "0.23.0", "0.24.0rc1", "0.25.1rc1", "0.26.0rc1")
    path = "vllm_ascend/a.py"
    change = hunk(["     start(x)", "+    work(x, 1)", "     return x"], "f")
    wide = change._replace(lines=((" ", "def f(x):"), *change.lines))
    patches = {
        f"10-a/{span}.patch": patch_text(path, each, headers=HEADERS.format(base=span[:9]))
        for span, each in (("0.23.0rc1..0.23.0", wide), ("0.24.0rc1..0.26.0rc1", change))
    }
    toml = 'package = "vllm_ascend"'
    write_feature(tmp_path, patches, "demo", f"{names[0]}..{names[-1]}", toml)
    (feature,) = load([tmp_path])
    text = MemoryTree({path: b"def f(x):\n    start(x)\n    return x\n"})
    texts = ReleaseTexts(names, lambda _: text)
    pruner = Pruner(texts, names[3:])
    made = pruner.propose([ServedFeature(feature, files(tmp_path, feature))])
    assert [p.text for p in made] == [
        "remove 1 variant (0.23.0rc1..0.23.0), and begin its range at 0.25.1rc1"
    ]
    assert pruner.holds == {}
    carry_out(made, tmp_path)
    (patch,) = (tmp_path / "demo/10-a").iterdir()
    assert patch.name == "0.25.1rc1..0.26.0rc1.patch"
    assert "Base: 0.25.1rc1" in patch.read_text()


def test_a_merge_is_noted_though_upstream_rewrote_the_lines_later(tmp_path: Path) -> None:
    """Once upstreamed, upstreamed in every later release; where it would land it is not."""
    base = b"def f(x):\n    start(x)\n    return x\n"
    merged = base.replace(b"    return", b"    first = work(1)\n    second = work(2)\n    return")
    rewritten = b"def f(x):\n    return begin(x)\n"
    port_world.write(tmp_path, base, merged, base="0.20.0")

    def proposed(*texts: bytes) -> list[str]:
        releases = dict(zip(("0.20.0", "0.21.0", "0.22.0"), texts, strict=True))
        (feature,) = load([tmp_path])
        served = [ServedFeature(feature, files(tmp_path, feature))]
        trees = ReleaseTexts(tuple(releases), lambda name: port_world.Tree(name, releases))
        return [f"{p.text}: {p.evidence}" for p in Pruner(trees, tuple(releases)).propose(served)]

    assert proposed(base, merged, rewritten) == [
        'note merged = "0.21.0": 0.21.0 has it, and no later release up to 0.22.0 would take it'
    ]
    assert proposed(base, merged, base) == []
    assert proposed(base, rewritten, rewritten) == []


def test_a_variant_whose_base_is_not_served_gets_another_base(tmp_path: Path) -> None:
    """What one variant was made on keeps no other variant that no release needs."""
    world = World(((0, 0, 0, 0, 0, 0),), (None,), ((((0, 0, True), (1, 4, True)), False),), 2)
    world.write(tmp_path)
    made = proposals(world, tmp_path)
    assert [p.text for p in made] == [
        "remove 1 variant (0.20.0..0.20.0), and begin its range at 0.22.0"
    ]
    carry_out(made, tmp_path)
    (place,) = (tmp_path / "f0/10-a").iterdir()
    assert place.name == "0.22.0..0.24.0.patch"
    assert "Base: 0.22.0" in place.read_text()


def test_the_variant_is_named_that_keeps_what_no_release_needs(tmp_path: Path) -> None:
    world = World(((0, 0, 1, 1, 1, 1),), (None,), ((((0, 0, True), (1, 4, True)), False),), 2)
    world.write(tmp_path)
    texts = ReleaseTexts(NAMES, lambda name: Tree(world, name))
    served = [ServedFeature(feature, files(tmp_path, feature)) for feature in load([tmp_path])]
    pruner = Pruner(texts, NAMES[2:])
    assert pruner.propose(served) == ()
    assert pruner.holds == {
        "f0": "10-a/0.21.0..0.24.0.patch is made on 0.21.0, and its hunks do not land by "
        "themselves on a release of 0.22.0..0.24.0"
    }


@pytest.mark.parametrize(
    ("versions", "where", "port"),
    [
        ((0, 0, 1, 1, 1, 1), "no later release takes it", "0.22.0"),
        ((0, 0, 1, 0, 1, 1), "it lands on 0.23.0 untested", "0.23.0"),
    ],
)
def test_a_feature_whose_range_ends_before_what_is_served_is_named(
    tmp_path: Path, versions: tuple[int, ...], where: str, port: str
) -> None:
    """Whether it lands by content on a served release or on none."""
    world = World((versions,), (None,), ((((0, 1, True),), False),), 2)
    world.write(tmp_path)
    texts = ReleaseTexts(NAMES, lambda name: Tree(world, name))
    served = [ServedFeature(feature, files(tmp_path, feature)) for feature in load([tmp_path])]
    pruner = Pruner(texts, NAMES[2:])
    assert pruner.propose(served) == ()
    assert f"ends before 0.22.0, and {where}" in pruner.holds["f0"]
    assert f"overlay port f0 --releases {port}" in pruner.holds["f0"]


def pruned(world: World, folder: Path, *, oldest: int = 0) -> tuple[Pruner, tuple[Proposal, ...]]:
    """What is proposed for the features of a world, and by whom."""
    world.write(folder)
    texts = ReleaseTexts(NAMES, lambda name: Tree(world, name))
    served = [ServedFeature(feature, files(folder, feature)) for feature in load([folder])]
    pruner = Pruner(texts, NAMES[oldest:])
    return pruner, pruner.propose(served)


def test_a_feature_toml_that_is_written_otherwise_holds_its_own_feature_alone(
    tmp_path: Path,
) -> None:
    """It is named, and the others are pruned."""
    variants = (((0, 5, True),), False)
    world = World(((0,) * 6, (0,) * 6), (3, 3), (variants, variants), 0)
    world.write(tmp_path)
    toml = tmp_path / "f0/feature.toml"
    toml.write_text(toml.read_text().replace('releases = "0.20.0..0.25.0"', RELEASES))
    texts = ReleaseTexts(NAMES, lambda name: Tree(world, name))
    served = [ServedFeature(feature, files(tmp_path, feature)) for feature in load([tmp_path])]
    pruner = Pruner(texts, NAMES)
    assert [p.feature for p in pruner.propose(served)] == ["f1"]
    assert "feature.toml: expected a line releases" in pruner.holds["f0"]


#: A range as TOML has it, too.
RELEASES = "releases = '0.20.0..0.25.0'"


def test_a_merge_is_not_noted_where_a_hunk_of_a_file_would_land_again(tmp_path: Path) -> None:
    base = b"def f(x):\n    start(x)\n    return x\n\n\ndef g(x):\n    begin(x)\n    return x\n"
    first = base.replace(b"start(x)\n", b"start(x)\n    one_more(x, 1)\n")
    both = first.replace(b"begin(x)\n", b"begin(x)\n    two_more(x, 2)\n")
    port_world.write(tmp_path, base, both, base="0.20.0")
    (feature,) = load([tmp_path])
    releases = {"0.20.0": base, "0.21.0": both, "0.22.0": first}
    trees = ReleaseTexts(tuple(releases), lambda name: port_world.Tree(name, releases))
    served = [ServedFeature(feature, files(tmp_path, feature))]
    assert Pruner(trees, tuple(releases)).propose(served) == ()
    (made,) = Pruner(trees, ("0.20.0", "0.21.0")).propose(served)
    assert made.text == 'note merged = "0.21.0"'
    assert made.plain().keys() == {"feature", "kind", "text", "evidence"}


def test_features_of_other_folders_are_planned_and_left(tmp_path: Path) -> None:
    variants = (((0, 5, True),), False)
    world = World(((0,) * 6, (0,) * 6), (0, 0), (variants, variants), 0)
    world.write(tmp_path)
    first, second = load([tmp_path])
    texts = ReleaseTexts(NAMES, lambda name: Tree(world, name))
    steps: list[int] = []
    pruner = Pruner(texts, NAMES)
    served = [ServedFeature(first), ServedFeature(second, files(tmp_path, second))]
    (made,) = pruner.propose(served, lambda: steps.append(1))
    assert (made.feature, made.files, steps) == ("f1", None, [1])
    assert made.evidence == "upstream has it in every release of 0.20.0..0.25.0"


def proposed(
    world: World, folder: Path, releases: str, header: tuple[str, str]
) -> tuple[Proposal, ...]:
    """What is proposed for a world, one header of which a person has replaced by another."""
    world.write(folder)
    place = folder / f"f0/10-a/{releases}.patch"
    place.write_text(place.read_text().replace(*header))
    texts = ReleaseTexts(NAMES, lambda name: Tree(world, name))
    served = [ServedFeature(feature, files(folder, feature)) for feature in load([folder])]
    return Pruner(texts, NAMES).propose(served)


@pytest.mark.parametrize("oldest", [0, 1])
def test_a_base_behind_the_end_of_a_range_is_replaced(tmp_path: Path, oldest: int) -> None:
    """By the first release of the range that takes the hunks, which keep their lines."""
    world = World(((oldest, 0, 0, 0, 0, 0),), (4,), ((((1, 5, True),), False),), 0)
    (made,) = proposed(world, tmp_path, "0.21.0..0.25.0", ("Base: 0.21.0", "Base: 0.25.0"))
    assert made.text == 'note merged = "0.24.0", and end its range at 0.23.0'
    carry_out([made], tmp_path)
    text = (tmp_path / "f0/10-a/0.21.0..0.23.0.patch").read_text()
    assert "Base: 0.21.0" in text
    assert "@@ -2,2 +2,3 @@ f0" in text


def test_a_release_that_does_not_take_the_hunks_is_no_base(tmp_path: Path) -> None:
    world = World(((0, 0, 1, 0, 0, 0),), (None,), ((((0, 0, True), (1, 4, True)), False),), 2)
    _, (made,) = pruned(world, tmp_path, oldest=2)
    assert made.kind is Prune.VARIANTS
    carry_out([made], tmp_path)
    assert "Base: 0.23.0" in (tmp_path / "f0/10-a/0.22.0..0.24.0.patch").read_text()


def test_variants_go_though_the_last_release_of_a_range_is_the_oldest(tmp_path: Path) -> None:
    variants = ((0, 0, True), (1, 1, False), (2, 2, True))
    world = World(((0, 0, 1, 1, 1, 1),), (None,), ((variants, False),), 2)
    pruner, (made,) = pruned(world, tmp_path, oldest=2)
    assert made.text == (
        "remove 2 variants (0.20.0..0.20.0, 0.21.0..0.21.0), and begin its range at 0.22.0"
    )
    assert pruner.holds == {}


def test_all_neighbours_are_united_that_can_be(tmp_path: Path) -> None:
    """Two that drift apart between others do not end the search."""
    versions = (0, 0, 1, 1, 1, 1)
    variants = ((0, 1, True), (2, 2, True), (3, 3, True), (4, 5, True))
    world = World((versions,), (None,), ((variants, False),), 0)
    _, made = pruned(world, tmp_path)
    assert [p.text for p in made] == [
        "unite 10-a 0.22.0..0.22.0 and 0.23.0..0.23.0",
        "unite 10-a 0.22.0..0.23.0 and 0.24.0..0.25.0",
    ]


def test_a_variant_that_does_nothing_is_united_with_none(tmp_path: Path) -> None:
    """Though upstream has its lines, so that the other one would say the same."""
    world = World(((0,) * 6,), (3,), ((((0, 2, True), (3, 5, True)), False),), 0)
    world.write(tmp_path)
    place = tmp_path / "f0/10-a/0.23.0..0.25.0.patch"
    place.write_text(place.read_text().replace("Base: 0.23.0", "Ported-From: 0.20.0 upstream"))
    (feature,) = load([tmp_path])
    texts = ReleaseTexts(NAMES, lambda name: Tree(world, name))
    served = [ServedFeature(replace(feature, merged=Version("0.23.0")), files(tmp_path, feature))]
    assert Prune.UNITE not in [p.kind for p in Pruner(texts, NAMES).propose(served)]


def test_features_without_a_file_in_common_are_planned_apart() -> None:
    change = [hunk(["-a = 1", "+a = 2"])]
    paths = {"a": "1", "b": "2", "c": "13", "d": "4", "e": "34", "f": "2"}
    made = [
        feature_of(*((f"vllm/m{number}.py", change) for number in numbers), id=id_)
        for id_, numbers in paths.items()
    ]
    groups = [[each.id for each in group] for group in groups_of(made)]
    assert sorted(groups) == [["a", "c", "d", "e"], ["b", "f"]]


@pytest.mark.parametrize("base", ["0.21.0", "0.22.0", "0.24.0", "0.20.0", "0.25.0"])
def test_a_variant_keeps_its_file_where_its_base_stays(tmp_path: Path, base: str) -> None:
    """Those that a range does not touch are no part of what changes."""
    world = World(((0,) * 6,), (None,), ((((0, 0, True), (1, 5, True)), False),), 0)
    world.write(tmp_path)
    place = tmp_path / "f0/10-a/0.21.0..0.25.0.patch"
    place.write_text(place.read_text().replace("Base: 0.21.0", f"Base: {base}"))
    (made,) = load([tmp_path])
    span = ReleaseRange.parse("0.20.0..0.24.0", VLLM)
    clipped = clip(made, files(tmp_path, made), span)
    data = place.read_bytes()
    expected = {"10-a/0.21.0..0.25.0.patch": None, "10-a/0.21.0..0.24.0.patch": data}
    inside = base not in ("0.20.0", "0.25.0")
    assert clipped == (expected if inside else None)
    everything = clip(made, files(tmp_path, made), made.releases)
    assert everything == {}


def test_what_does_nothing_ends_no_search_for_neighbours(tmp_path: Path) -> None:
    variants = ((0, 1, True), (2, 3, True), (4, 5, True))
    world = World(((0,) * 6,), (None,), ((variants, False),), 0)
    header = ("Base: 0.20.0", "Ported-From: 0.22.0 not-needed")
    (made,) = proposed(world, tmp_path, "0.20.0..0.21.0", header)
    assert made.text == "unite 10-a 0.22.0..0.23.0 and 0.24.0..0.25.0"


@pytest.mark.parametrize("last", [0, 2, 4])
def test_the_range_of_what_is_for_nothing_ends_with_the_last_release_that_it_is_for(
    tmp_path: Path, last: int
) -> None:
    """Its base lies behind that, and is replaced."""
    text = b"def f(x):\n    start(x)\n    return x\n"
    change = hunk(["     start(x)", "+    work(x, 1)", "     return x"], "f")
    name = f"10-a/{NAMES[0]}..{NAMES[-1]}.patch"
    data = patch_text(PATH, change, headers=HEADERS.format(base=NAMES[-1]))
    toml = 'obsolete_without = ["vllm/b.py"]'
    write_feature(tmp_path, {name: data}, "demo", f"{NAMES[0]}..{NAMES[-1]}", toml)
    trees = {
        release: MemoryTree({PATH: text, **({"vllm/b.py": b""} if at <= last else {})})
        for at, release in enumerate(NAMES)
    }
    (feature,) = load([tmp_path])
    pruner = Pruner(ReleaseTexts(NAMES, trees.__getitem__), NAMES)
    (made,) = pruner.propose([ServedFeature(feature, files(tmp_path, feature))])
    assert (made.kind, made.text) == (Prune.OBSOLETE, f"end its range at {NAMES[last]}")
    assert made.evidence == (
        "vLLM has no vllm/b.py any more, which the feature is for, from "
        f"{NAMES[last + 1]} up to {NAMES[-1]}"
    )
    carry_out([made], tmp_path)
    (patch,) = (tmp_path / "demo/10-a").iterdir()
    assert patch.name == f"{NAMES[0]}..{NAMES[last]}.patch"
    assert f"Base: {NAMES[0]}" in patch.read_text()
    gone = Pruner(ReleaseTexts(NAMES, trees.__getitem__), NAMES[last + 1 :])
    (removed,) = gone.propose([ServedFeature(feature, files(tmp_path, feature) | {name: b""})])
    assert removed.kind is Prune.FEATURE


def test_a_proposal_that_leaves_a_hole_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the range cannot end, the merge alone is noted."""
    world = World(((0,) * 6,), (4,), ((((0, 5, True),), False),), 0)
    usual, calls = check_files, list[str]()

    def check(id_: str, *words: Any, **more: Any) -> Feature:
        calls.append(id_)
        if len(calls) == 1:
            raise PatchFormatErrors([PatchFormatError("x", 1, "a hole")])
        return usual(id_, *words, **more)

    monkeypatch.setattr(pruning, "check_files", check)
    _, (made,) = pruned(world, tmp_path)
    assert made.text == 'note merged = "0.24.0"'


def test_a_variant_that_drifts_is_not_united_with_one_that_upstream_has(tmp_path: Path) -> None:
    """A person has to look at it: what it adds is not what upstream has."""
    text = "def f(x):\n    start(x)\n    return x\n"
    has = text.replace("    return", "    other_work(x, 2)\n    return")
    trees = {"0.21.0": has.replace("start", "begin"), "0.22.0": text}
    patches = {
        f"10-a/{name}..{name}.patch": patch_text(
            PATH,
            hunk(["     start(x)", f"+    {line}", "     return x"], "f"),
            headers=HEADERS.format(base=name),
        )
        for name, line in (("0.21.0", "work(x, 1)"), ("0.22.0", "other_work(x, 2)"))
    }
    write_feature(tmp_path, patches, "demo", "0.21.0..0.22.0")
    (feature,) = load([tmp_path])
    texts = ReleaseTexts(tuple(trees), lambda name: MemoryTree({PATH: trees[name].encode()}))
    pruner = Pruner(texts, tuple(trees))
    assert pruner.propose([ServedFeature(feature, files(tmp_path, feature))]) == ()


@pytest.mark.parametrize("listed", [True, False])
def test_a_file_that_is_missing_ends_no_range(tmp_path: Path, listed: bool) -> None:
    """Whether the release's own RECORD says that it is there, or the variant for the release."""
    text = b"def f(x):\n    start(x)\n    return x\n"
    change = hunk(["     start(x)", "+    work(x, 1)", "     return x"], "f")
    other = "vllm/b.py" if listed else PATH
    name = f"10-a/{NAMES[0]}..{NAMES[-1]}.patch"
    data = patch_text(PATH, change, headers=HEADERS.format(base=NAMES[0]))
    toml = f'obsolete_without = ["{other}"]'
    write_feature(tmp_path, {name: data}, "demo", f"{NAMES[0]}..{NAMES[-1]}", toml)
    (feature,) = load([tmp_path])

    class Recorded(MemoryTree):
        record: Mapping[str, str] = {"vllm/b.py": "0" * 64}

    whole = MemoryTree({PATH: text, "vllm/b.py": b""})
    lacking = Recorded({PATH: text}) if listed else MemoryTree({"vllm/b.py": b""})
    trees = [whole, whole, whole, lacking, lacking, lacking]
    texts = ReleaseTexts(NAMES, dict(zip(NAMES, trees, strict=True)).__getitem__)
    served = [ServedFeature(feature, files(tmp_path, feature))]
    assert Pruner(texts, NAMES).propose(served) == ()
    assert Pruner(texts, NAMES[3:]).propose(served) == ()


def test_nothing_changes_only_where_nothing_changes() -> None:
    """Every part of an answer counts, whatever the others say."""
    change = Change(PATH, b"a", b"b")

    def answer(state: State = State.PRISTINE, *, joint: bool = True, alone: bool = True) -> Answer:
        changes = (change,) if alone else ()
        return Answer(
            {"f": state}, frozenset({change} if joint else ()), {"f": (state, changes)}, frozenset()
        )

    nothing = Answer({}, frozenset({change}), {}, frozenset())
    upstream, drifted = answer(State.UPSTREAMED), answer(State.DRIFTED)
    assert answer().kept_by(answer())
    assert not answer().kept_by(answer(joint=False))
    assert not answer().kept_by(answer(alone=False))
    assert not answer().kept_by(nothing)
    assert upstream.kept_by(nothing)
    assert not answer().kept_by(upstream)
    assert not answer().kept_by(upstream, "f")
    assert drifted.kept_by(upstream, "f")
    assert not drifted.kept_by(answer(), "f")
    assert not drifted.kept_by(upstream)
    both = Answer(
        {"f": State.DRIFTED, "g": State.PRISTINE},
        frozenset(),
        {"f": (State.DRIFTED, ()), "g": (State.PRISTINE, (change,))},
        frozenset(),
    )
    healed = replace(both, alone={**both.alone, "f": (State.UPSTREAMED, ())})
    assert both.kept_by(healed, "f")
    assert not both.kept_by(replace(healed, alone={**healed.alone, "g": (State.DRIFTED, ())}), "f")
    other = replace(both, states={**both.states, "g": State.DRIFTED})
    assert not both.kept_by(other)


def test_a_feature_with_a_module_that_others_share_is_pruned_too(tmp_path: Path) -> None:
    """That module lies beside the feature's folder."""
    world = World(((0,) * 6,), (None,), ((((0, 1, True), (2, 5, True)), False),), 0)
    world.write(tmp_path)
    module = tmp_path / "shared/files/vllm/v1/shared_by_two.py"
    module.parent.mkdir(parents=True)
    module.write_text("SHARED = 1\n")
    toml = tmp_path / "f0/feature.toml"
    line = 'shared = ["vllm/v1/shared_by_two.py"]\nreleases ='
    toml.write_text(toml.read_text().replace("releases =", line))
    texts = ReleaseTexts(NAMES, lambda name: Tree(world, name))
    served = [ServedFeature(feature, files(tmp_path, feature)) for feature in load([tmp_path])]
    (made,) = Pruner(texts, NAMES).propose(served)
    assert made.text == "unite 10-a 0.20.0..0.21.0 and 0.22.0..0.25.0"
