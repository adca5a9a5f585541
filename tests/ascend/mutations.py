"""The bugs that the twin must show: small changes of the feature, or of how graphs are updated.

Data only: `docs/appendix/mutations.md` lists them, `twin.py` puts them in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What shows it: other drafts than vLLM's, or the graph double, which refuses what would never end.
Catcher = Literal["twin", "graph double"]

#: What is done to the updates of a graph in the place of what vllm-ascend does.
Sabotage = Literal["left out", "swapped", "event first", "no event", "recorded twice"]


@dataclass(frozen=True)
class AscendMutation:
    """One bug.

    :ivar stands_for: the half of the feature, or the part of a graph, that it is about.
    :ivar shape: the attention and the mode of the twin that shows it.
    :ivar edits: of `draft_lengths.py`, each (scope, old, new) as `tests.support.code_edits` has it.
    :ivar sabotage: of the updates; nothing of the feature is edited then.
    :ivar says: a part of what the graph double must say.
    """

    name: str
    stands_for: str
    shape: tuple[str, str]
    edits: tuple[tuple[str, str, str], ...] = ()
    sabotage: Sabotage | None = None
    catcher: Catcher = "twin"
    says: str = ""


ASCEND_MUTATIONS = (
    AscendMutation(
        "the device half only, with lengths on the host",
        "Ascend, halves",
        ("dense", "full"),
        (("on_host", "...", "return"),),
    ),
    AscendMutation(
        "the host half only, with lengths on the device",
        "Ascend, halves",
        ("tensor", "full"),
        (("on_device", "...", "return common"),),
    ),
    AscendMutation(
        "lengths of the device are corrected in place, in the tensor that pass 0 reads",
        "Ascend, device",
        ("tensor", "eager"),
        (
            ("on_device", "proposer.shallow_copy_metadata(common)", "common"),
            ("on_device", "common.seq_lens.clone()", "common.seq_lens"),
        ),
    ),
    AscendMutation(
        "lengths of the host are corrected in the list of pass 0, too",
        "Ascend, host",
        ("dense", "eager"),
        (
            ("on_host", "passes[1:]", "passes"),
            ("on_host", "enumerate(owners, 1)", "enumerate(owners)"),
            ("before_pass", "_settle(passes[draft_index])", "[_settle(each) for each in passes]"),
            ("on_host", "_tell('active', ...)", "_settle(passes[0])"),
        ),
    ),
    AscendMutation(
        "a pass is settled when the one behind it is launched",
        "Ascend, host",
        ("mla", "eager"),
        (("before_pass", "passes[draft_index]", "passes[draft_index - 1]"),),
    ),
    AscendMutation(
        "the first of the later passes is updated before it is settled",
        "Ascend, host",
        ("mla", "full"),
        (
            (
                "in_order",
                "[passes[0], *map(_LaterPass, passes[1:])]",
                "[*passes[:2], *map(_LaterPass, passes[2:])]",
            ),
        ),
    ),
    AscendMutation(
        "a row that ends at the longest context keeps its filler",
        "Ascend, host",
        ("dense", "eager"),
        (
            (
                "LaterLengths.settle",
                "grown - count <= self._longest",
                "grown - count <= self._longest and length == grown",
            ),
        ),
    ),
    AscendMutation(
        "the counts are read before they have reached the host",
        "Ascend, host",
        ("dense", "full"),
        (("_Counts.wait", "self._copied.synchronize()", "pass"),),
    ),
    AscendMutation(
        "the copy of the counts is put behind the draft's graph",
        "Ascend, host",
        ("mla", "full"),
        (
            (
                "_Counts.__init__",
                "with torch.npu.stream(stream):\n    ...",
                "self._device = rejected",
            ),
            (
                "_Counts.wait",
                "self._copied.synchronize()",
                """
                side = torch.npu.Stream()
                side.wait_stream(torch.npu.current_stream.__globals__['DEVICE'].stream)
                with torch.npu.stream(side):
                    self._host.copy_(self._device, non_blocking=True)
                    self._copied.record()
                self._copied.synchronize()
                """,
            ),
        ),
        catcher="graph double",
        says="for ever",
    ),
    AscendMutation(
        "the update of one task group is left out",
        "Ascend, graph",
        ("dense", "full"),
        sabotage="left out",
    ),
    AscendMutation(
        "two task groups get each other's update",
        "Ascend, graph",
        ("dense", "full"),
        sabotage="swapped",
    ),
    AscendMutation(
        "an event is recorded before the update that it is for",
        "Ascend, graph",
        ("mla", "full"),
        sabotage="event first",
    ),
    AscendMutation(
        "an event is never recorded",
        "Ascend, graph",
        ("mla", "full"),
        sabotage="no event",
        catcher="graph double",
        says="for ever",
    ),
    AscendMutation(
        "an event is recorded twice for one replay",
        "Ascend, graph",
        ("dense", "full"),
        sabotage="recorded twice",
        catcher="graph double",
        says="its update is lost",
    ),
)
