"""The page of the faults is what the features say, and what mends cost."""

from __future__ import annotations

import json
import re

from scripts import render_faults
from tests.support.shipped_features import MENDS, RETIRED


def test_the_page_is_what_the_features_and_the_table_say() -> None:
    assert render_faults.PAGE.read_text(encoding="utf-8") == render_faults.render()


def test_no_mend_takes_half_a_percent_of_a_step() -> None:
    (name,) = re.findall(r"results/(cpu-mend-costs[^)]*)", render_faults.HEAD)
    costs = json.loads((render_faults.ROOT / "bench/results" / name).read_text(encoding="utf-8"))
    shares = costs["percent_of_a_step"]
    assert {*MENDS, *RETIRED} <= {*shares, *costs["in_no_step"]}
    assert shares["all"] <= 0.5
    dearest = max(costs["added"][each]["median_us"] for each in shares if each != "all")
    most = max(share for each, share in shares.items() if each != "all")
    head = " ".join(render_faults.HEAD.split())
    assert f"{dearest} microseconds of the host in the median, {most:.2f} % of" in head
    assert f"all together {shares['all']:.2f} %" in head
