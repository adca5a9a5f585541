"""What metadata builders of attention backends do: the appendix about them, from the readings.

``python -m tests.draft_graphs.backend_readings`` writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overlay.untrusted import parse_toml

PAGE = Path(__file__).parents[2] / "docs/appendix/backend-builders.md"
READINGS = Path(__file__).with_name("backend_readings.toml")
TOP = """\
<!-- Written by tests/draft_graphs/backend_readings.py; a test compares. -->

# Attention backends: what their metadata builders do

Read in the sources of vLLM 0.20.0 to 0.33.0. A draft graph holds the work of a builder, so that a
replay does it again; what a builder asks of the host is a constant of the graph, or refuses one.
Drafters call `build_for_drafting`, which is `build(fast_build=True)` unless overridden.
[Platforms](../platforms.md#draft-graphs) has a row for each backend with what shows it; "all
roles" are those of the drafter. Rows that this project did not test are granted with
`OVERLAY_DRAFT_GRAPHS_UNTRIED=on`, except FlashAttention 4 and FLASHMLA with an FP8 cache, which
are granted without it.

"""
LATENT_TOP = """
## Latent attention (MLA)

A builder splits each batch on the host: requests of up to `reorder_batch_threshold` tokens are
decodes, the others prefills, which are planned from lengths on the host. A graph's batch is
uniform, so that the split is a constant of its key; where K+1 tokens are a prefill, the first pass
runs as upstream's and later ones in graphs. The drafter has builders of its own, so that no buffer
is shared with the target's graphs; each pass writes them before it reads them, on one stream.

"""


def _table(head: tuple[str, ...], rows: list[dict[str, Any]], keys: tuple[str, ...]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(row[key] for key in keys) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def render() -> str:
    """The page."""
    readings = parse_toml(READINGS.read_text(encoding="utf-8"))
    head = ("backend", "0.20.0 to 0.31.0", "0.32.0, 0.33.0", "verdict")
    latent = ("backend", "decodes of up to", "what a build does", "what a replay does again")
    return (
        TOP
        + _table(head, readings["backends"], ("name", "until", "later", "verdict"))
        + LATENT_TOP
        + _table(
            (*latent, "verdict"),
            readings["latent"],
            ("name", "decodes", "build", "replay", "verdict"),
        )
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
