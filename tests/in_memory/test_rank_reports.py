"""What ranks say they run: what must be equal, and what is read of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from overlay.in_memory import ranks
from overlay.in_memory.ranks import RanksDiffer
from tests.support.process_records import rank_report as report


def test_another_release_of_vllm_stops_them() -> None:
    with pytest.raises(RanksDiffer, match=r"node1 +1 +1 +0\.31\.0"):
        ranks.require_equal([report(0), report(1, vllm="0.31.0")])


def test_the_table_has_a_row_a_rank_in_order() -> None:
    lines = ranks.table([report(2), report(0), report(1)]).splitlines()
    assert [line.split()[0] for line in lines] == ["host", "node0", "node1", "node2"]


def test_another_release_of_a_further_package_stops_them() -> None:
    """Patches of one digest fit several releases, so the digest does not tell these apart."""
    old, new = (("vllm-ascend", "0.23.0"),), (("vllm-ascend", "0.23.0.post1"),)
    ranks.require_equal([report(0, others=new), report(1, others=new)])
    with pytest.raises(RanksDiffer) as stopped:
        ranks.require_equal([report(0, others=new), report(1, others=old), report(2)])
    head, *rows = str(stopped.value).splitlines()[1:5]
    assert head.split() == ["host", "rank", "pid", "vllm", "vllm-ascend", "digest", "runs"]
    assert [row.split()[4] for row in rows] == ["0.23.0.post1", "0.23.0", "-"]


@pytest.mark.parametrize(
    "said",
    [
        *(b"{", b"[" * 100_000, b"[]", b"{}", b'{"rank": 1e999}', {"rank": 1}),
        report(1)._asdict() | {"others": [1]},
    ],
    ids=["cut off", "too deep", "a list", "nothing", "endless", "too little", "no pairs"],
)
def test_a_rank_that_says_something_else_stops_them(said: Any) -> None:
    with pytest.raises(RanksDiffer, match="Install the same one on every node"):
        ranks._decoded(said)


def test_what_a_rank_says_comes_back_from_json() -> None:
    mine = report(3, others=(("vllm-ascend", "0.23.0"), ("transformers", "4.50.0")))
    sent = mine._asdict() | {"further": "a field of a later overlay"}
    assert ranks._decoded(json.dumps(sent).encode()) == ranks._decoded(sent) == mine
