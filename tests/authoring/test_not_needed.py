"""What a person takes out of a feature for a release is not called upstream's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from overlay._features.folder import load
from overlay._features.model import Feature, PortedWay
from overlay.authoring.commands.matrix import MatrixCell
from overlay.authoring.commands.port_report import PortReport, concluded
from overlay.authoring.porting import FeaturePort, TopicPort
from overlay.authoring.pruning import Pruner, ServedFeature
from overlay.authoring.variants import remembered, with_ports
from overlay.authoring.writing import check_files
from overlay.planning.planner import plan
from overlay.results import Outcome, State
from tests.authoring.test_porting import PATH, files, port
from tests.support import port_world as world
from tests.support.patches import MemoryTree

#: A second step, in a function of its own.
SECOND = world.PATCHED.replace(b"first * 2", b"first * 4")
TEXTS = {"0.21.0": world.BASE, "0.22.0": world.OTHER_FUNCTION, "0.23.0": world.OTHER_FUNCTION}


def without_second(ported: FeaturePort, *, not_needed: bool) -> FeaturePort:
    """A port of which the second topic is not applied: a person said so, or upstream has it."""

    def retired(topic: TopicPort) -> TopicPort:
        hunks = tuple(replace(each, outcome=Outcome.UPSTREAM, merge=None) for each in topic.hunks)
        return replace(
            topic, hunks=hunks, new_hunks=None, after=topic.before, not_needed=not_needed
        )

    first, second = ported.topics
    return replace(ported, topics=(first, retired(second)))


def written(*releases: tuple[str, bool]) -> Feature:
    """A feature that was ported to releases, not needed there or upstream's."""
    made = files(world.BASE, world.PATCHED, SECOND)
    ports = [
        without_second(port(made, TEXTS, release), not_needed=not_needed)
        for release, not_needed in releases
    ]
    feature = check_files("change", made)
    return check_files("change", with_ports(feature, made, ports, tuple(TEXTS), "2026-11-26"))


def test_it_is_written_and_noted_as_what_it_is() -> None:
    feature = written(("0.22.0", True))
    (own, other) = feature.topics[1].variants
    assert (own.patch.ported, other.patch.ported) == (None, PortedWay.NOT_NEEDED)
    assert other.patch.retired
    tree = MemoryTree({PATH: TEXTS["0.22.0"]})
    (result,) = plan([feature], tree, Version("0.22.0")).features
    assert result.state is State.PRISTINE
    assert result.reason is not None
    assert "20-step is not needed in this release" in result.reason.text
    assert "upstream" not in result.reason.text


def test_it_is_not_joined_with_what_upstream_has() -> None:
    feature = written(("0.22.0", True), ("0.23.0", False))
    ways = [variant.patch.ported for variant in feature.topics[1].variants]
    assert ways == [None, PortedWay.NOT_NEEDED, PortedWay.UPSTREAM]


def test_a_port_from_there_says_the_same() -> None:
    feature = written(("0.22.0", True))
    ported = world.porter(TEXTS).port(feature, "0.23.0")
    assert ported.topics[1].retired_as is PortedWay.NOT_NEEDED


def test_the_matrix_has_a_letter_for_it() -> None:
    assert MatrixCell("0.22.0", State.PRISTINE, None, True).letter == "n"
    assert MatrixCell("0.22.0", State.PRISTINE).letter == "P"


#: A release that a person looked at, and one behind it, both with another text.
OTHER = world.IN_THE_WAY.replace(b"first * 2", b"first * 3")


def test_neither_a_port_nor_prune_calls_it_upstreams(tmp_path: Path) -> None:
    """Where nothing of a feature is needed, nothing is there either, and no merge is noted."""
    texts = {"0.21.0": world.BASE, "0.22.0": OTHER, "0.23.0": OTHER}
    world.write(tmp_path)
    (made,) = load([tmp_path])
    folder = tmp_path / made.id
    before = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    ported = world.porter(texts).port(made, "0.22.0")
    (topic,) = ported.topics
    hunks = tuple(replace(each, outcome=Outcome.UPSTREAM) for each in topic.hunks)
    given = replace(topic, hunks=hunks, new_hunks=None, after=topic.before, not_needed=True)
    names, day = tuple(texts), "2026-11-26"
    after = with_ports(made, before, [replace(ported, topics=(given,))], names, day)
    feature = check_files(made.id, after)
    assert len(feature.topics[0].variants) == 2

    porter = world.porter(texts)
    port = porter.port(feature, "0.23.0")
    assert "is not needed in this release" in port.evidence
    assert "are in it" not in port.evidence
    assert remembered(porter, port, (), names) is None
    assert remembered(porter, replace(port, by_hand=True), (), names) == "0.23.0"
    report = PortReport(concluded((port,), ["0.23.0"], None, write=False), (port,), None)
    text = "".join(str(line) for line in report.own_lines())
    assert "nothing to do" in text
    assert "upstream" not in text

    pruner = Pruner(porter.texts, names)
    assert pruner.propose([ServedFeature(feature, after)]) == ()
    (proposal,) = Pruner(porter.texts, names[1:]).propose([ServedFeature(feature, after)])
    assert proposal.text == f"remove {feature.id}"
    assert "0.22.0..0.23.0 leaves it anything to do: 10-runner is not needed" in proposal.evidence
    (both,) = Pruner(porter.texts, names[1:]).propose(
        [ServedFeature(replace(feature, merged=Version("0.22.0")), after)]
    )
    assert both.evidence == "upstream has it in every release of 0.22.0..0.23.0"
