"""The ranges of variants follow from what each release gets, and so does ``feature.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import Feature, Hunk
from overlay.authoring.composing import whole_file
from overlay.authoring.locating import ReleaseTexts
from overlay.authoring.porting import FeaturePort, Porter
from overlay.authoring.variants import (
    base_has,
    patch_file,
    remembered,
    serving,
    with_base_has,
    with_merged,
    with_ports,
    with_releases,
)
from overlay.authoring.writing import patch_bytes
from overlay.errors import UsageError
from overlay.package import VLLM, ReleaseRange
from overlay.planning.planner import plan
from overlay.results import Outcome, State
from tests.support import port_world
from tests.support.patches import MemoryTree, hunk, write_feature

PATH = "vllm/a.py"
HEADERS = {"Description": "A test", "Origin": "the tests", "Last-Update": "2026-11-20"}
TEXT = "def f(x):\n    start(x)\n    return x\n"
#: With the lines of the hunk where they do nothing.
DEAD = f"{TEXT}\n    first_new(x, 1)\n    second_new(x, 1)\n"
MINE = hunk(
    ["     start(x)", "+    first_new(x, 1)", "+    second_new(x, 1)", "     return x"], "f"
)
#: The same with more context.
WIDE = MINE._replace(lines=((" ", "def f(x):"), *MINE.lines))
LINES = ["first_new(x, 1)", "second_new(x, 1)"]
Releases = Mapping[str, str | bytes]


def patch(base: str, *hunks: Hunk, path: str = PATH, **more: str) -> bytes:
    """A patch file that was made on a release."""
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    return patch_bytes({**HEADERS, "Base": base, **headers}, path, hunks or (MINE,))


class World:
    """Releases of one file, and a feature in a folder."""

    def __init__(
        self, folder: Path, releases: Releases, files: Mapping[str, bytes], span: str
    ) -> None:
        self.folder = folder
        data = {name: t if isinstance(t, bytes) else t.encode() for name, t in releases.items()}
        self.path = PATH
        first = next(iter(files.values()))
        if b"vllm/x.bin" in first:
            self.path = "vllm/x.bin"
        self.trees = {name: MemoryTree({self.path: text}) for name, text in data.items()}
        self.texts = ReleaseTexts(tuple(data), self.trees.__getitem__)
        self.place = write_feature(folder, files, "demo", span)

    @property
    def feature(self) -> Feature:
        (feature,) = load([self.folder])
        assert feature.malformed == ()
        return feature

    @property
    def files(self) -> dict[str, bytes]:
        """The files of its folder."""
        every = (path for path in self.place.rglob("*") if path.is_file())
        return {path.relative_to(self.place).as_posix(): path.read_bytes() for path in every}

    def states(self) -> list[State]:
        """Its state on each release."""
        return [
            plan([self.feature], tree, Version(name)).features[0].state
            for name, tree in self.trees.items()
        ]

    def port(self, *releases: str) -> list[FeaturePort]:
        porter = Porter(self.texts)
        return [porter.port(self.feature, name) for name in releases]

    def write(self, *ports: FeaturePort, merged: str | None = None) -> list[str]:
        """Write ports; the names of its patch files."""
        today, names = "2026-11-27", self.texts.names
        after = with_ports(self.feature, self.files, ports, names, today, merged=merged)
        for name in self.files.keys() - after.keys():
            (self.place / name).unlink()
        for name, data in after.items():
            (self.place / name).write_bytes(data)
        return sorted(name for name in after if name.endswith(".patch"))


def test_variants_with_equal_hunks_that_know_other_bases_stay_apart(tmp_path: Path) -> None:
    """What one text had of the lines is no reason for them to be in the other one."""
    world = World(
        tmp_path,
        {"0.20.0": DEAD, "0.21.0": TEXT, "0.22.0": f"{TEXT}k = 1\n"},
        {
            "10-a/0.20.0..0.20.0.patch": patch("0.20.0", Base_Has="\n".join(LINES)),
            "10-a/0.21.0..0.21.0.patch": patch("0.21.0"),
        },
        "0.20.0..0.21.0",
    )
    assert world.states() == [State.PRISTINE] * 3
    (port,) = world.port("0.22.0")
    assert port.outcome is Outcome.EXACT
    assert world.write(port) == ["10-a/0.20.0..0.20.0.patch", "10-a/0.21.0..0.22.0.patch"]
    assert world.states() == [State.PRISTINE] * 3


def test_what_a_person_puts_in_where_its_lines_stand_already_is_put_in(tmp_path: Path) -> None:
    """Its hunks are those of the variant beside it, which does not land there."""
    world = World(
        tmp_path,
        {"0.20.0": DEAD, "0.21.0": TEXT},
        {"10-a/0.21.0..0.21.0.patch": patch("0.21.0")},
        "0.21.0..0.21.0",
    )
    (port,) = world.port("0.20.0")
    assert port.outcome is not Outcome.EXACT
    (topic,) = port.topics
    resolved = replace(topic, new_hunks=(MINE,), before=DEAD.encode(), by_hand=True)
    written = world.write(replace(port, topics=(resolved,), evidence=""))
    assert written == ["10-a/0.20.0..0.20.0.patch", "10-a/0.21.0..0.21.0.patch"]
    assert world.states() == [State.PRISTINE] * 2
    text = world.files["10-a/0.20.0..0.20.0.patch"].decode()
    for line in ("Base: 0.20.0", "Last-Update: 2026-11-27", "Ported-From: 0.21.0 by-hand"):
        assert line in text.splitlines()
    assert b'\nreleases = "0.20.0..0.21.0"\n' in world.files["feature.toml"]


def test_data_files_of_one_text_become_what_each_release_gets(tmp_path: Path) -> None:
    path = "vllm/x.bin"
    one, two = (whole_file(b"\0old", after) for after in (b"\0one", b"\0two"))
    world = World(
        tmp_path,
        {"0.20.0": b"\0old", "0.21.0": b"\0old", "0.22.0": b"\0old"},
        {
            "10-x/0.20.0..0.20.0.patch": patch("0.20.0", one, path=path),
            "10-x/0.21.0..0.21.0.patch": patch("0.21.0", two, path=path),
        },
        "0.20.0..0.21.0",
    )
    (port,) = world.port("0.22.0")
    assert world.write(port) == ["10-x/0.20.0..0.20.0.patch", "10-x/0.21.0..0.22.0.patch"]
    made = [
        plan([world.feature], world.trees[name], Version(name)).changes[0] for name in world.trees
    ]
    assert [change.after for change in made] == [b"\0one", b"\0two", b"\0two"]


def test_what_lands_exactly_widens_a_range_and_keeps_the_file(tmp_path: Path) -> None:
    names = {f"0.{20 + at}.0": f"{TEXT}k = {at}\n" for at in range(5)}
    first = patch("0.22.0")
    world = World(tmp_path, names, {"10-a/0.22.0..0.22.0.patch": first}, "0.22.0..0.22.0")
    assert world.write(*world.port("0.24.0", "0.23.0", "0.21.0")) == ["10-a/0.21.0..0.24.0.patch"]
    assert world.files["10-a/0.21.0..0.24.0.patch"] == first
    assert world.write(*world.port("0.22.0")) == ["10-a/0.21.0..0.24.0.patch"]
    assert world.write() == ["10-a/0.21.0..0.24.0.patch"]


def test_a_release_that_is_known_and_not_served_ends_a_range(tmp_path: Path) -> None:
    names = {f"0.{20 + at}.0": f"{TEXT}k = {at}\n" for at in range(4)}
    world = World(tmp_path, names, {"10-a/0.20.0..0.20.0.patch": patch("0.20.0")}, "0.20.0..0.20.0")
    ports = world.port("0.22.0", "0.23.0")
    after = with_ports(world.feature, world.files, ports, world.texts.names, "2026-11-27")
    patches = {name: data for name, data in after.items() if name.endswith(".patch")}
    assert sorted(patches) == ["10-a/0.20.0..0.20.0.patch", "10-a/0.22.0..0.23.0.patch"]
    new = patches["10-a/0.22.0..0.23.0.patch"].decode()
    assert "Base: 0.22.0" in new.splitlines()
    assert "Last-Update: 2026-11-27" in new.splitlines()
    assert "Ported-From" not in new


def test_the_newest_of_the_files_that_are_there_is_kept(tmp_path: Path) -> None:
    names = {f"0.{20 + at}.0": TEXT for at in range(4)}
    files = {
        "10-a/0.20.0..0.20.0.patch": patch("0.20.0"),
        "10-a/0.21.0..0.21.0.patch": patch("0.21.0"),
    }
    world = World(tmp_path, names, files, "0.20.0..0.21.0")
    assert world.write(*world.port("0.22.0")) == ["10-a/0.20.0..0.22.0.patch"]
    assert b"\nBase: 0.21.0\n" in world.files["10-a/0.20.0..0.22.0.patch"]


def test_a_release_that_has_it_gets_a_variant_that_does_nothing(tmp_path: Path) -> None:
    """Its file says so by its header, and is not one of a text."""
    names = {"0.20.0": TEXT, "0.21.0": TEXT, "0.22.0": TEXT}
    base = patch("0.20.0", Base_Has="start(x)")
    world = World(tmp_path, names, {"10-a/0.20.0..0.20.0.patch": base}, "0.20.0..0.20.0")
    (port,) = world.port("0.21.0")
    (topic,) = port.topics
    gone = replace(topic, new_hunks=None, hunks=())
    for way, not_needed in (("upstream", False), ("not-needed", True)):
        retired = replace(port, topics=(replace(gone, not_needed=not_needed),))
        after = with_ports(world.feature, world.files, [retired], world.texts.names, "2026-11-27")
        assert after["10-a/0.20.0..0.20.0.patch"] == base
        text = after["10-a/0.21.0..0.21.0.patch"].decode().splitlines()
        assert f"Ported-From: 0.20.0 {way}" in text
        assert "Last-Update: 2026-11-27" in text
        assert not any(line.startswith("Base") for line in text)
    assert world.write(retired) == ["10-a/0.20.0..0.20.0.patch", "10-a/0.21.0..0.21.0.patch"]
    assert world.states() == [State.PRISTINE, State.UPSTREAMED, State.UPSTREAMED]
    assert len(world.write(*world.port("0.22.0"))) == 3  # where it lands, it is another text
    assert world.states() == [State.PRISTINE, State.UPSTREAMED, State.PRISTINE]


def bare(*hunks: Hunk, **more: str) -> bytes:
    """A patch of which nobody knows what it was made on."""
    headers = {**HEADERS, **{name.replace("_", "-"): value for name, value in more.items()}}
    return patch_bytes(headers, PATH, hunks or (MINE,))


def test_a_variant_that_does_nothing_is_none_of_its_neighbours(tmp_path: Path) -> None:
    """Though its hunks are theirs; two that do nothing for one reason are one."""
    names = {f"0.{20 + at}.0": TEXT for at in range(5)}
    gone = bare(Ported_From="0.20.0 upstream")
    world = World(
        tmp_path,
        names,
        {
            "10-a/0.20.0..0.20.0.patch": bare(),
            "10-a/0.21.0..0.21.0.patch": gone,
            "10-a/0.22.0..0.22.0.patch": bare(Ported_From="0.20.0 not-needed"),
            "10-a/0.23.0..0.23.0.patch": gone,
        },
        "0.20.0..0.23.0",
    )
    (port,) = world.port("0.24.0")
    (topic,) = port.topics
    again = replace(port, topics=(replace(topic, new_hunks=None, hunks=()),))
    assert world.write(again) == [
        "10-a/0.20.0..0.20.0.patch",
        "10-a/0.21.0..0.21.0.patch",
        "10-a/0.22.0..0.22.0.patch",
        "10-a/0.23.0..0.24.0.patch",
    ]
    assert world.files["10-a/0.23.0..0.24.0.patch"] == gone  # what was there before stays


@pytest.mark.parametrize("text", [TEXT, DEAD])
def test_what_a_person_resolves_to_the_text_beside_it_is_that_text(
    tmp_path: Path, text: str
) -> None:
    """Also beside a variant that was merged, and where the base has lines of the change."""
    there = {"Base_Has": "\n".join(LINES)} if text == DEAD else {}
    merged = patch("0.21.0", Ported_From="0.20.0 merged", **there)
    world = World(
        tmp_path,
        {"0.20.0": text, "0.21.0": text},
        {"10-a/0.21.0..0.21.0.patch": merged},
        "0.21.0..0.21.0",
    )
    (port,) = world.port("0.20.0")
    (topic,) = port.topics
    made = replace(topic, new_hunks=(MINE,), before=text.encode(), by_hand=True)
    assert world.write(replace(port, topics=(made,), evidence="")) == ["10-a/0.20.0..0.21.0.patch"]
    assert world.files["10-a/0.20.0..0.21.0.patch"] == merged


def test_releases_are_in_the_order_of_versions(tmp_path: Path) -> None:
    names = dict.fromkeys(("0.9.0", "0.10.0", "0.11.0", "0.100.0"), TEXT)
    world = World(tmp_path, names, {"10-a/0.10.0..0.10.0.patch": patch("0.10.0")}, "0.10.0..0.10.0")
    assert world.write(*world.port("0.9.0", "0.11.0")) == ["10-a/0.9.0..0.11.0.patch"]
    assert world.write(*world.port("0.100.0")) == ["10-a/0.9.0..0.100.0.patch"]


def test_each_topic_has_the_ranges_of_its_own_texts(tmp_path: Path) -> None:
    """A topic that serves the release already stays, and so do files that are no variants."""
    other = hunk(["     begin(y)", "+    third_new(y, 1)", "     return y"], "g")
    rest = "\n\ndef g(y):\n    begin(y)\n    return y\n"
    moved = rest.replace("begin(y)", "begin_other(y)")
    world = World(
        tmp_path,
        {"0.20.0": TEXT + rest, "0.21.0": TEXT + moved},
        {
            "10-a/0.20.0..0.20.0.patch": patch("0.20.0"),
            "20-b/0.20.0..0.20.0.patch": patch("0.20.0", other),
            "files/vllm/new.py": b"x = 1\n",
            "origin/01.patch": b"as it came\n",
        },
        "0.20.0..0.20.0",
    )
    (port,) = world.port("0.21.0")
    first, second = port.topics
    mine = hunk(["     begin_other(y)", "+    third_new(y, 1)", "     return y"], "g")
    resolved = replace(second, new_hunks=(mine,), by_hand=True)
    after = with_ports(
        world.feature,
        world.files,
        [replace(port, topics=(first, resolved))],
        world.texts.names,
        "2026-11-27",
    )
    assert sorted(after) == [
        "10-a/0.20.0..0.21.0.patch",
        "20-b/0.20.0..0.20.0.patch",
        "20-b/0.21.0..0.21.0.patch",
        "feature.toml",
        "files/vllm/new.py",
        "origin/01.patch",
    ]
    served = [
        (topic.name, patch_file(each)) for topic, each in serving(world.feature, Version("0.20.0"))
    ]
    assert served == [
        ("10-a", "10-a/0.20.0..0.20.0.patch"),
        ("20-b", "20-b/0.20.0..0.20.0.patch"),
    ]
    assert serving(world.feature, Version("0.21.0")) == []


def test_what_is_idle_or_served_changes_nothing(tmp_path: Path) -> None:
    names = {"0.20.0": TEXT, "0.21.0": TEXT}
    world = World(tmp_path, names, {"10-a/0.20.0..0.20.0.patch": patch("0.20.0")}, "0.20.0..0.20.0")
    before = world.files
    (port,) = world.port("0.21.0")
    for each in (replace(port, covered=True), replace(port, evidence="has it")):
        assert with_ports(world.feature, before, [each], world.texts.names, "x") == before
    noted = with_ports(world.feature, before, [], world.texts.names, "x", merged="0.21.0")
    assert b'\nmerged = "0.21.0"\n' in noted.pop("feature.toml")
    assert noted.items() <= before.items()


# What is remembered


def world_port(texts: Mapping[str, bytes], folder: Path, release: str) -> str | None:
    """What a port of the feature of the world to a release remembers."""
    feature = port_world.write(folder)
    porter = port_world.porter(texts)
    return remembered(porter, porter.port(feature, release), (), tuple(texts))


def test_the_release_that_has_a_feature_is_remembered_but_where_upstream_took_it_back(
    tmp_path: Path,
) -> None:
    base, merged = port_world.BASE, port_world.MERGED
    has = {"0.21.0": base, "0.22.0": merged, "0.23.0": port_world.REWORKED}
    assert world_port(has, tmp_path, "0.22.0") == "0.22.0"
    assert world_port({**has, "0.23.0": base}, tmp_path, "0.22.0") is None
    assert world_port({"0.20.0": base, **has}, tmp_path, "0.22.0") == "0.22.0"
    assert world_port({**has, "0.22.0": base}, tmp_path, "0.22.0") is None


def test_a_memory_or_a_later_variant_says_more_than_a_port(tmp_path: Path) -> None:
    feature = port_world.write(tmp_path)
    porter = port_world.porter()
    port = porter.port(feature, "0.25.0")
    assert port.evidence

    def told(given: Feature = feature, **changes: object) -> str | None:
        # No type says which fields a test replaces.
        changed = replace(port, feature=given, **changes)  # type: ignore[arg-type]
        return remembered(porter, changed, (), porter.texts.names)

    assert told() == "0.25.0"
    assert told(evidence="") is None
    for since, expected in (("0.24.0", None), ("0.25.0", None), ("0.26.0", "0.25.0")):
        assert told(replace(feature, merged=Version(since))) == expected
    for last, expected in (("0.24.0", "0.25.0"), ("0.25.0", None), ("0.26.0", None)):
        span = ReleaseRange.parse(f"0.21.0..{last}", VLLM)
        assert told(replace(feature, releases=span)) == expected
        (topic,) = feature.topics
        variants = tuple(each._replace(releases=span) for each in topic.variants)
        topics = (topic._replace(variants=variants),)
        assert told(replace(feature, topics=topics)) == expected


def test_what_lands_on_the_features_before_it_alone_was_taken_back_too(tmp_path: Path) -> None:
    """Upstream took back what the feature before it changes, and this one with it."""
    first = port_world.BASE.replace(b"        count = len(sizes)\n", b"        count = 1\n")
    both = first.replace(b"self.note_begin(count)", b"self.note_begin(count, warm=True)")
    port_world.write(tmp_path, port_world.BASE, first, id="a-first")
    port_world.write(tmp_path, first, both, id="b-second")
    earlier, feature = load([tmp_path])
    span = ReleaseRange.parse("0.21.0..0.23.0", VLLM)
    (topic,) = earlier.topics
    variants = tuple(each._replace(releases=span) for each in topic.variants)
    earlier = replace(earlier, releases=span, topics=(topic._replace(variants=variants),))
    texts = {"0.21.0": port_world.BASE, "0.22.0": both, "0.23.0": port_world.BASE}
    porter = port_world.porter(texts)
    port = porter.port(feature, "0.22.0", (earlier,))
    assert port.evidence
    assert porter.port(feature, "0.23.0", (earlier,)).outcome is Outcome.EXACT
    assert porter.port(feature, "0.23.0").outcome is not Outcome.EXACT
    assert remembered(porter, port, (earlier,), tuple(texts)) is None
    assert remembered(porter, port, (), tuple(texts)) == "0.22.0"


def test_a_person_is_believed_whatever_a_later_release_takes(tmp_path: Path) -> None:
    texts = {"0.21.0": port_world.BASE, "0.22.0": port_world.MERGED, "0.23.0": port_world.BASE}
    feature = port_world.write(tmp_path)
    porter = port_world.porter(texts)
    port = replace(porter.port(feature, "0.22.0"), by_hand=True)
    assert remembered(porter, port, (), tuple(texts)) == "0.22.0"


# feature.toml

SPAN = ReleaseRange.parse("0.22.0..0.23.0", VLLM)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('releases = "0.20.0..0.21.0"\n', 'releases = "{}"\n'),
        ('releases="0.20.0..0.21.0"  # so far\n', 'releases="{}"  # so far\n'),
        ('releases = "0.20.0..0.21.0"\r\nid = "a"\r\n', 'releases = "{}"\r\nid = "a"\r\n'),
        ('releases = "0.20.0..0.21.0"', 'releases = "{}"'),
        (
            'releases = "0.20.0..0.21.0"\n[[a]]\nreleases = "0.1.0..0.2.0"\n',
            'releases = "{}"\n[[a]]\nreleases = "0.1.0..0.2.0"\n',
        ),
    ],
)
def test_a_range_changes_and_nothing_else(before: str, after: str) -> None:
    assert with_releases(before.encode(), SPAN) == after.format(SPAN).encode()


@pytest.mark.parametrize(
    "toml",
    [
        'id = "a"\n',
        "releases = '0.20.0..0.21.0'\n",
        'why = """\nreleases = "none"\n"""\nreleases = "0.20.0..0.21.0"\n',
    ],
)
def test_a_range_that_is_written_otherwise_is_refused(toml: str) -> None:
    with pytest.raises(UsageError, match=r"^feature\.toml: expected .*releases"):
        with_releases(toml.encode(), SPAN)
    with pytest.raises(UsageError, match=r"^feature\.toml: expected .*releases"):
        with_merged(toml.encode(), "0.30.0")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}\n", '{}\nmerged = "0.30.0"\n'),
        ("{}", '{}\nmerged = "0.30.0"'),
        (
            '{}\n[[a]]\nreleases = "0.1.0..0.2.0"\n',
            '{}\nmerged = "0.30.0"\n[[a]]\nreleases = "0.1.0..0.2.0"\n',
        ),
        ('merged = "0.31.0"\n{}\n', '{}\nmerged = "0.30.0"\n'),
        ('{}\nmerged = "0.31.0"\nid = "a"\n', '{}\nmerged = "0.30.0"\nid = "a"\n'),
        ('{}\nmerged = "0.31.0"', '{}\nmerged = "0.30.0"\n'),
        ('{}  # so far\nmerged="0.31.0"\n', '{}  # so far\nmerged = "0.30.0"\n'),
    ],
)
def test_a_memory_is_written_behind_the_range_in_the_place_of_another(
    before: str, after: str
) -> None:
    releases = 'releases = "0.20.0..0.21.0"'
    made = with_merged(before.replace("{}", releases).encode(), "0.30.0")
    assert made.decode() == after.replace("{}", releases)


def test_a_memory_in_a_text_of_several_lines_is_refused() -> None:
    toml = b'why = """\nmerged = so\n"""\nreleases = "0.20.0..0.21.0"\n'
    with pytest.raises(UsageError, match="expected releases and merged on lines of their own"):
        with_merged(toml, "0.30.0")


# What a base has


def test_a_base_has_the_lines_of_its_scope_and_definitions_of_its_names() -> None:
    assert base_has([MINE], DEAD.encode()) == LINES
    assert base_has([MINE], TEXT.encode()) == []
    known = MINE._replace(base_has=tuple(LINES))  # of another base
    assert base_has([known], DEAD.encode()) == LINES
    elsewhere = f"{TEXT}\n\ndef g(x):\n    first_new(x, 1)\n"
    assert base_has([MINE], elsewhere.encode()) == []
    adds = hunk([" k = 1", "+def a_name(x):", "+    return 2", " j = 1"])
    twin = b"k = 1\nj = 1\n\n\ndef a_name(y):\n    return 3\n"
    assert base_has([adds], twin) == ["def a_name(y):"]
    assert base_has([MINE, adds], twin) == ["def a_name(y):"]
    assert base_has([whole_file(b"a", b"b"), MINE], DEAD.encode()) == []
    table = hunk([" row (", "+first-new-row 1", " end"], "<file>")
    assert base_has([table], b"row (\nend\nfirst-new-row 1\n") == ["first-new-row 1"]


def test_headers_say_what_a_base_has_and_nothing_of_another_one() -> None:
    old = {"Base": "0.20.0", "Base-Has": "no_more()", "Tells-Nothing": "nor_this()"}
    assert with_base_has(old, [MINE], TEXT.encode()) == {"Base": "0.20.0"}
    assert with_base_has(old, [MINE], DEAD.encode()) == {
        "Base": "0.20.0",
        "Base-Has": "\n".join(LINES),
    }
