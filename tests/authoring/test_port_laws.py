"""Laws of porting, on random histories of a module: what is written lands, once, in any order.

The numbers are those of docs/architecture.md, "Laws of a patch's life".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from overlay._features.folder import essence
from overlay._features.model import Feature, UpstreamTest, Variant
from overlay.authoring.building import derived_tests
from overlay.authoring.carry import _merged, carry
from overlay.authoring.composing import NotComposable, ScopedText, compose
from overlay.authoring.porting import Porter
from overlay.authoring.variants import base_has, remembered, with_ports
from overlay.authoring.writing import check_files, render_patch
from overlay.planning.attempt import Texts, attempt
from overlay.planning.planner import plan
from overlay.planning.scopes import Syntax
from overlay.planning.text import SourceText
from overlay.planning.upstream import evidence
from overlay.results import Outcome, State
from tests.support.patches import MemoryTree
from tests.support.port_world import HEADERS, PATH, Tree, porter

FEW = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
NAMES = ("0.20.0", "0.20.1", "0.21.0", "0.22.0", "0.23.0")
FUNCTIONS = 4
Body = tuple[str, ...]


@dataclass(frozen=True)
class History:
    """Releases of a module, and a change that was made on one of them."""

    texts: Mapping[str, bytes]
    base: str
    after: bytes


def module(bodies: Sequence[Body]) -> bytes:
    parts = []
    for number, body in enumerate(bodies):
        lines = "".join(f"    {line}\n" for line in body)
        parts.append(f"def function_{number}(value):\n{lines}    return value_{number}\n")
    return "\n\n".join(parts).encode()


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Each step edits one function somewhere; the change edits one or two."""
    bodies: list[Body] = [
        tuple(f"first_{number}_{line} = {line}" for line in range(7)) for number in range(FUNCTIONS)
    ]
    texts: dict[str, bytes] = {}
    states: dict[str, list[Body]] = {}
    for step, name in enumerate(NAMES):
        for edit in range(draw(st.integers(0, 2))):
            which = draw(st.integers(0, FUNCTIONS - 1))
            bodies[which] = _edited(draw, bodies[which], f"upstream_{step}_{edit}")
        texts[name], states[name] = module(bodies), list(bodies)
    base = draw(st.sampled_from(NAMES))
    mine = list(states[base])
    for edit in range(draw(st.integers(1, 2))):
        which = draw(st.integers(0, FUNCTIONS - 1))
        mine[which] = _edited(draw, mine[which], f"mine_{edit}")
    return History(texts, base, module(mine))


@st.composite
def merged_histories(draw: st.DrawFn) -> tuple[History, str]:
    """A change that upstream takes in a later release, and goes on working on."""
    history = draw(histories())
    base = NAMES.index(history.base)
    assume(base + 1 < len(NAMES))
    first = draw(st.integers(base + 1, len(NAMES) - 1))
    old, new = (text.split(b"\n\n\n") for text in (history.texts[history.base], history.after))
    texts = dict(history.texts)
    for name in NAMES[first:]:
        parts = texts[name].split(b"\n\n\n")
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            if before != after:  # upstream's own work on that function goes on at its end
                work = b"    later = %d\n    return value" % draw(st.integers(0, 9))
                parts[number] = after.replace(b"    return value", work)
        texts[name] = b"\n\n\n".join(parts)
    return History(texts, history.base, history.after), NAMES[first]


def _edited(draw: st.DrawFn, body: Body, word: str) -> Body:
    """A body with lines put in, or put in the place of others."""
    at = draw(st.integers(0, len(body)))
    gone = draw(st.integers(0, min(1, len(body) - at)))
    new = tuple(f"{word}_{number} = compute({number})" for number in range(draw(st.integers(1, 3))))
    return (*body[:at], *new, *body[at + gone :])


def folder(history: History) -> dict[str, bytes]:
    """The files of the feature that the change is."""
    base = history.texts[history.base]
    try:
        hunks = compose(base, history.after)
    except NotComposable:
        assume(False)
    assume(hunks)
    headers = {**HEADERS, "Base": history.base}
    if known := base_has(hunks, base):
        headers["Base-Has"] = "\n".join(known)
    span = f"{history.base}..{history.base}"
    toml = f'id = "change"\ntitle = "A change"\nwhy = "To test."\nreleases = "{span}"\n'
    patch = render_patch(headers, PATH, hunks)
    return {"feature.toml": toml.encode(), f"10-a/{span}.patch": patch.encode()}


def read(files: Mapping[str, bytes]) -> Feature:
    return check_files("change", files)


def ported(
    history: History, files: Mapping[str, bytes], order: Sequence[str], carrier: Porter
) -> dict[str, bytes]:
    """The folder after ports in an order; what conflicts is left out."""
    made = dict(files)
    for release in order:
        feature = read(made)
        port = carrier.port(feature, release)
        if not port.conflicts:
            merged = remembered(carrier, port, (), NAMES)
            made = with_ports(feature, made, [port], NAMES, "2026-11-22", merged=merged)
    return made


def meaning(feature: Feature) -> object:
    """What a feature does, headers aside."""
    return (
        str(feature.releases),
        feature.merged,
        [
            (str(v.releases), v.patch.retired, [essence(h)[:-1] for h in v.patch.hunks])
            for topic in feature.topics
            for v in topic.variants
        ],
    )


def _key(variant: Variant) -> object:
    hunks = [essence(hunk)[:-1] for hunk in variant.patch.hunks]
    return variant.patch.retired, hunks


@FEW
@given(histories())
def test_every_variant_lands_on_its_base_and_its_whole_range(history: History) -> None:
    """Law 2, first half."""
    carrier = porter(history.texts)
    feature = read(ported(history, folder(history), NAMES, carrier))
    texts = Texts(Syntax())
    for variant in feature.topics[0].variants:
        inside = [name for name in NAMES if Version(name) in variant.releases]
        assert inside
        if variant.patch.retired:
            continue
        assert variant.patch.headers["Base"] in inside
        for name in inside:
            assert attempt(variant.patch, history.texts[name], texts).after is not None


@FEW
@given(histories())
def test_no_derived_test_holds_on_the_base(history: History) -> None:
    """Law 2, second half."""
    feature = read(folder(history))
    base = history.texts[history.base]
    hunks = feature.topics[0].variants[0].patch.hunks
    tests = derived_tests([(base, PATH, hunks)])
    plain = plan([feature], MemoryTree({PATH: base}), Version(history.base))
    assert plain.features[0].state is State.PRISTINE
    source, scopes = (
        SourceText.from_bytes(base),
        Syntax().scopes(base, SourceText.from_bytes(base).lines),
    )
    for test in tests:
        held = replace(
            feature,
            upstream_tests=(UpstreamTest(test.path, test.scope, "", test.lines, test.share),),
        )
        assert not evidence(
            held,
            None,
            lambda path, scope: [source.lines[p.start : p.stop] for p in scopes.get(scope, ())],
        ).merged


@FEW
@given(histories(), st.permutations(NAMES))
def test_ports_give_the_same_ranges_in_any_order_and_a_second_time_nothing(
    history: History, order: Sequence[str]
) -> None:
    """Law 5: ranges are disjoint, maximal, and independent of the order of ports."""
    carrier = porter(history.texts)
    files = folder(history)
    forward = ported(history, files, NAMES, carrier)
    assert ported(history, forward, NAMES, carrier) == forward
    feature = read(forward)
    spans = [v.releases for v in feature.topics[0].variants]
    for name in NAMES:  # a port onto a release of the range is nothing
        inside = any(Version(name) in span for span in spans)
        assert carrier.port(feature, name).covered is (inside and Version(name) in feature.releases)
    assert not any(a.overlaps(b) for a in spans for b in spans if a is not b)
    for before, after in pairwise(feature.topics[0].variants):
        ends = str(before.releases.last), str(after.releases.first)
        if NAMES.index(ends[1]) == NAMES.index(ends[0]) + 1:
            assert _key(before) != _key(after)
    assert meaning(read(ported(history, files, order, carrier))) == meaning(feature)


@FEW
@given(histories(), st.sampled_from(NAMES))
def test_where_a_hunk_lands_exactly_the_merge_gives_the_same_bytes(
    history: History, release: str
) -> None:
    """Law 4, first half."""
    base, target = history.texts[history.base], history.texts[release]
    hunks = read(folder(history)).topics[0].variants[0].patch.hunks
    syntax = Syntax()

    def text(data: bytes) -> ScopedText:
        source = SourceText.from_bytes(data)
        return ScopedText(source, syntax.scopes(data, source.lines))

    for hunk in hunks:
        carried = carry(base, [hunk], target)
        if carried.outcome is Outcome.EXACT:
            result, merged = _merged(hunk, text(base), text(target))
            assert result.outcome is Outcome.MERGED
            assert merged is not None
            assert merged.to_bytes() == carried.after
        if carried.outcome is Outcome.UPSTREAM:
            assert carried.after == target


@FEW
@given(merged_histories(), st.permutations(NAMES))
def test_once_upstreamed_upstreamed_in_every_later_release(
    case: tuple[History, str], order: Sequence[str]
) -> None:
    """Law 6: whatever becomes of its lines, unless the memory is taken out by hand."""
    history, first = case
    carrier = porter(history.texts)
    feature = read(folder(history))
    assume(carrier.port(feature, first).evidence)
    known = read(ported(history, folder(history), order, carrier))
    assert known.merged is not None
    rewritten = {name: module([("nothing = 0",)] * FUNCTIONS) for name in NAMES}
    for name in NAMES:
        state = plan([known], Tree(name, history.texts), Version(name)).features[0].state
        later = plan([known], Tree(name, rewritten), Version(name)).features[0].state
        if Version(name) >= known.merged:
            assert state is later is State.UPSTREAMED
    assert known.merged <= Version(first) or known.releases.last >= Version(first)
    forgotten = plan([replace(known, merged=None)], Tree(NAMES[-1], rewritten), Version(NAMES[-1]))
    assert forgotten.features[0].state is not State.UPSTREAMED


@FEW
@given(histories(), st.sampled_from(NAMES))
def test_a_merge_changes_nothing_outside_the_scopes_of_its_hunks(
    history: History, release: str
) -> None:
    """Law 3, of the merge in a scope."""
    base, target = history.texts[history.base], history.texts[release]
    hunks = read(folder(history)).topics[0].variants[0].patch.hunks
    carried = carry(base, hunks, target)
    assert carried.after is not None
    scopes = {hunk.scope for hunk in hunks}
    assume("<module>" not in scopes)
    before, after = (_functions(text) for text in (target, carried.after))
    assert {n: t for n, t in before.items() if n not in scopes} == {
        n: t for n, t in after.items() if n not in scopes
    }


def _functions(text: bytes) -> dict[str, bytes]:
    parts = text.split(b"def ")[1:]
    return {part.split(b"(", 1)[0].decode(): part for part in parts}


@FEW
@given(histories(), st.sampled_from(NAMES))
def test_what_the_port_leaves_the_plan_applies(history: History, release: str) -> None:
    """What port calls exact, merged or upstream, check calls pristine or upstreamed."""
    carrier = porter(history.texts)
    feature = read(ported(history, folder(history), [release], carrier))
    port = carrier.port(feature, release)
    state = plan([feature], Tree(release, history.texts), Version(release)).features[0].state
    if not port.conflicts:
        expected = State.UPSTREAMED if port.outcome is Outcome.UPSTREAM else State.PRISTINE
        assert state is expected
    else:
        assert state not in (State.PRISTINE, State.UPSTREAMED)


@FEW
@given(histories())
def test_where_the_images_refuse_and_lines_hold_port_says_upstream(history: History) -> None:
    """Law 4, second half: nothing is written but the memory, and the range stays."""
    files = folder(history)
    feature = read(files)
    variant = feature.topics[0].variants[0]
    tests = derived_tests([(history.texts[history.base], PATH, variant.patch.hunks)])
    assume(tests)
    tested = replace(
        feature,
        upstream_tests=tuple(UpstreamTest(t.path, t.scope, "", t.lines, t.share) for t in tests),
    )
    # Upstream has the change, and put a line between any two: no image of several lines is left.
    torn = b"\n".join(
        part
        for number, line in enumerate(history.after.split(b"\n"))
        for part in (_work(line, number), line)
    )
    later = NAMES[-1]
    texts = {**history.texts, later: torn}
    assume(history.base != later)
    hunks = variant.patch.hunks
    assume(all(len(hunk.pre) > 1 and len(hunk.post) > 1 for hunk in hunks))
    found = [Texts(Syntax()).match(hunk, torn).state for hunk in hunks]
    assert State.PRISTINE not in found
    assert State.UPSTREAMED not in found
    carrier = porter(texts)
    port = carrier.port(tested, later)
    assert port.outcome is Outcome.UPSTREAM
    merged = remembered(carrier, port, (), NAMES)
    made = with_ports(tested, files, [port], NAMES, "2026-11-22", merged=merged)
    assert {name: made[name] for name in made if name != "feature.toml"} == {
        name: files[name] for name in files if name != "feature.toml"
    }
    assert str(check_files("change", made).releases) == str(feature.releases)


def _work(line: bytes, number: int) -> bytes:
    """A line of upstream's own in front of another one, indented alike."""
    indent = line[: len(line) - len(line.lstrip())]
    return indent + b"upstream_work_%d = 0" % number if line.strip() else b""
