"""Lists of lengths as `draft_lengths` corrects them: laws, without torch or an NPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from overlay._features.sources import shipped_folder

FILE = "ascend-draft-lengths/files/vllm_ascend/spec_decode/draft_lengths.py"
LONGEST = 40


@pytest.fixture(scope="module")
def lengths() -> Any:
    """The module, over stubs of what it imports."""
    torch, logger = ModuleType("torch"), ModuleType("vllm.logger")
    vars(torch)["Tensor"] = object
    vars(logger)["logger"] = SimpleNamespace(info=lambda *text: said.append(text[-1]))
    said: list[str] = []
    module = ModuleType("draft_lengths")
    source = Path(shipped_folder(), FILE).read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name, stub in (("torch", torch), ("vllm", ModuleType("vllm")), ("vllm.logger", logger)):
            patch.setitem(sys.modules, name, stub)
        exec(compile(source, FILE, "exec", dont_inherit=True), vars(module))
    vars(module)["said"] = said
    return module


class Counts:
    """Counts that have reached the host; how often somebody waited for them."""

    def __init__(self, counts: list[int]) -> None:
        self.counts, self.waits = counts, 0

    def wait(self) -> list[int]:
        self.waits += 1
        return self.counts


@some.composite
def drafts(draw: some.DrawFn) -> tuple[int, list[int], list[int], int]:
    """A pass from 1 on, lengths of pass 0, counts of rejected tokens below them, padded rows."""
    base = draw(some.lists(some.integers(1, LONGEST), min_size=1, max_size=6))
    counts = [draw(some.integers(0, length - 1)) for length in base]
    return draw(some.integers(1, 9)), base, counts, draw(some.integers(0, 3))


def grown(base: list[int], draft_index: int, padded: int) -> list[int]:
    """What vllm-ascend has in a later pass: a filler from the longest context on."""
    rows = [length + draft_index for length in base]
    return [row if row <= LONGEST else 1 for row in rows] + [0] * padded


@given(drafts())
def test_a_pass_ends_behind_the_last_accepted_token(
    lengths: Any, draft: tuple[int, list[int], list[int], int]
) -> None:
    draft_index, base, counts, padded = draft
    before = grown(base, draft_index, padded)
    given_counts = Counts(counts)
    later = lengths.LaterLengths(before, draft_index, base, LONGEST, given_counts)
    assert list(later) == before
    later.settle()
    later.settle()
    assert given_counts.waits == 1
    exact = [length - count + draft_index for length, count in zip(base, counts, strict=True)]
    rows = [row if row <= LONGEST else old for row, old in zip(exact, before, strict=False)]
    assert list(later) == rows + [0] * padded


@given(drafts(), some.integers(1, 5))
def test_a_row_of_another_kind_is_left_alone(
    lengths: Any, draft: tuple[int, list[int], list[int], int], more: int
) -> None:
    draft_index, base, counts, padded = draft
    before = [row + more for row in grown(base, draft_index, padded)]
    later = lengths.LaterLengths(before, draft_index, base, LONGEST, Counts(counts))
    later.settle()
    for row, length in enumerate(base):
        if length + draft_index < LONGEST:
            assert later[row] == before[row]
            assert any("is left as vllm-ascend makes it" in line for line in lengths.said)
    assert len(set(lengths.said)) == len(lengths.said), "each line is said once"


def metadata(lengths: Any, counts: Counts, draft_index: int) -> Any:
    owner = SimpleNamespace(seq_lens_list=[9 + draft_index])
    if draft_index:
        owner.seq_lens_list = lengths.LaterLengths([9 + draft_index], draft_index, [9], 40, counts)
    # MLA's is one level down.
    return owner if draft_index % 2 else SimpleNamespace(decode=owner)


@pytest.mark.parametrize("ask", ["[]", "get", "values", "items"])
def test_metadata_of_a_replay_is_settled_when_it_is_asked_for(lengths: Any, ask: str) -> None:
    counts = Counts([2])
    passes = [{"layer": metadata(lengths, counts, index)} for index in range(4)]
    ordered = lengths.in_order(passes)
    assert ordered[0]["layer"] is passes[0]["layer"]
    # The keys of all passes are listed before the first update.
    assert [list(layers) for layers in ordered] == [["layer"]] * 4
    assert counts.waits == 0
    value = {
        "[]": lambda layers: layers["layer"],
        "get": lambda layers: layers.get("layer"),
        "values": lambda layers: next(iter(layers.values())),
        "items": lambda layers: next(iter(layers.items()))[1],
    }[ask](ordered[1])
    assert value.seq_lens_list == [8]
    assert passes[2]["layer"].decode.seq_lens_list == [11], "the pass behind it is not"
    assert lengths.in_order(None) is None


def test_tasks_are_settled_when_their_turn_comes(lengths: Any) -> None:
    counts = Counts([2])
    lists = [[9], *(lengths.LaterLengths([9 + i], i, [9], 40, counts) for i in (1, 2))]
    tasks = [SimpleNamespace(kwargs={"actual_seq_lengths_kv": each}) for each in lists]
    turns = lengths.tasks_in_order(tasks)
    assert next(turns) is tasks[0]
    assert counts.waits == 0
    assert next(turns).kwargs["actual_seq_lengths_kv"] == [8]
    assert lists[2] == [11]
    assert [task.kwargs["actual_seq_lengths_kv"] for task in turns] == [[9]]


@pytest.mark.parametrize(("value", "expected"), [("", "on"), ("off", "off"), ("device", "device")])
def test_an_empty_switch_is_an_unset_one(
    lengths: Any, monkeypatch: pytest.MonkeyPatch, value: str, expected: str
) -> None:
    monkeypatch.setenv(lengths.SWITCH, value)
    assert lengths.chosen() == expected


def test_another_value_is_refused(lengths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lengths.SWITCH, "host")
    with pytest.raises(ValueError, match="expected off, device or on, found 'host'"):
        lengths.chosen()
    rejected = object()
    with pytest.raises(ValueError, match="expected off"):
        lengths.on_host(None, [], 1, rejected)
    monkeypatch.setenv(lengths.SWITCH, "off")
    assert lengths.on_device(None, "common", 1, rejected) == "common"


@pytest.mark.parametrize(
    ("configuration", "half"),
    [
        ({"parallel_drafting": True}, "both"),
        ({"dcp_size": 2}, "both"),
        ({"pcp_size": 2}, "both"),
        ({"use_compress": True}, "both"),
        ({"enable_enpu": True}, "host"),
        ({"draft_window_size": 8}, "host"),
        ({"constant_draft_positions": True}, "host"),
    ],
)
def test_where_lengths_mean_something_else_they_are_left_and_the_log_says_why(
    lengths: Any, monkeypatch: pytest.MonkeyPatch, configuration: dict[str, Any], half: str
) -> None:
    monkeypatch.setenv(lengths.SWITCH, "on")
    plain = {"parallel_drafting": False, "dcp_size": 1, "use_compress": False, "enable_enpu": False}
    proposer = SimpleNamespace(**{**plain, **configuration})
    passes = [{"layer": SimpleNamespace(seq_lens_list=[9])} for _ in range(2)]
    lengths._told.clear()
    lengths.said.clear()
    lengths.on_host(proposer, passes, 1, object())
    assert type(passes[1]["layer"].seq_lens_list) is list
    assert [line for line in lengths.said if line.startswith("idle, ")], lengths.said
    if half == "both":
        assert lengths.on_device(proposer, "common", 1, object()) == "common"


class Lengths(list[int]):
    """A tensor of lengths, as far as they are corrected."""

    def clone(self) -> Lengths:
        return Lengths(self)

    def __getitem__(self, rows: Any) -> Any:
        return Column(super().__getitem__(rows))


class Column(list[int]):
    """Some rows of a tensor."""

    def __sub__(self, other: list[int]) -> Column:
        return Column(mine - theirs for mine, theirs in zip(self, other, strict=True))


@pytest.mark.parametrize(
    ("switch", "host_lists", "told"),
    [
        ("off", True, [("idle", "OVERLAY_ASCEND_DRAFT_LENGTHS=off")]),
        ("device", True, [("active", "lengths on the device leave rejected tokens out")]),
        ("on", False, [("active", "lengths on the device leave rejected tokens out")]),
    ],
)
def test_each_choice_tells_once_what_it_does(
    lengths: Any,
    monkeypatch: pytest.MonkeyPatch,
    switch: str,
    host_lists: bool,
    told: list[tuple[str, str]],
) -> None:
    states = watched_effects(lengths, monkeypatch, switch)
    proposer = SimpleNamespace(
        parallel_drafting=False,
        dcp_size=1,
        use_compress=False,
        shallow_copy_metadata=lambda common: SimpleNamespace(**vars(common)),
    )
    common = SimpleNamespace(seq_lens=Lengths([9, 5]))
    layer = SimpleNamespace(seq_lens_list=[10]) if host_lists else SimpleNamespace()
    for _ in range(2):
        corrected = lengths.on_device(proposer, common, 2, Lengths([2, 0]))
        lengths.on_host(proposer, [{"layer": layer}] * 2, 1, Lengths([2]))
    assert list(common.seq_lens) == [9, 5], "pass 0 reads these"
    assert list(corrected.seq_lens) == ([9, 5] if switch == "off" else [7, 5])
    assert [(state, text.partition(" (")[0]) for state, text in states] == told


def test_a_release_that_reads_the_device_right_and_no_lists_is_idle(
    lengths: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = watched_effects(lengths, monkeypatch, "on")
    lengths.on_host(None, [{"layer": SimpleNamespace()}] * 2, 1, object())
    assert states == [("idle", "no later pass reads lengths on the host")]


def watched_effects(
    lengths: Any, monkeypatch: pytest.MonkeyPatch, switch: str
) -> list[tuple[str, str]]:
    """The states that the module reports from now on, with the switch set."""
    states: list[tuple[str, str]] = []

    def report(state: str) -> Any:
        return lambda _, text: states.append((state, text))

    monkeypatch.setenv(lengths.SWITCH, switch)
    monkeypatch.setattr(lengths, "_told", set())
    monkeypatch.setattr(
        lengths, "effects", SimpleNamespace(active=report("active"), idle=report("idle"))
    )
    return states
