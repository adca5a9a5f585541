"""What does not fit into a worker's memory is left out from the largest size down, on all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decode_graph_sizes.worlds import Mode, beside, configuration, fitted, worker

pytestmark = pytest.mark.network

VARIABLE = "OVERLAY_DECODE_GRAPH_SIZES"
GIB = 1 << 30

with beside() as _world:
    memory = _world.memory


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch, as where nobody has set it."""
    monkeypatch.delenv(VARIABLE, raising=False)


SIZES = st.lists(st.integers(1, 5000), min_size=2, max_size=30, unique=True).map(sorted)


@given(
    sizes=SIZES,
    share=st.floats(0, 1),
    room=st.integers(0, 1 << 36),
    graphs=st.integers(1, 2),
    shape=st.builds(
        memory.Shape,
        layers=st.integers(1, 90),
        width=st.integers(1, 1 << 18),
        heads=st.integers(1, 128),
        head=st.integers(1, 576),
        value_bytes=st.sampled_from([1, 2, 4]),
    ),
)
def test_the_most_that_fits_is_kept(
    sizes: list[int], share: float, room: int, graphs: int, shape: Any
) -> None:
    own = sizes[: max(1, int(share * len(sizes)))]
    kept = memory.fitting(sizes, own, shape, graphs, room)
    assert kept == sizes[: len(kept)]
    assert kept[: len(own)] == own
    if len(kept) > len(own):
        assert shape.bytes_of(kept, own, graphs) <= room
    if len(kept) < len(sizes):
        assert shape.bytes_of(sizes[: len(kept) + 1], own, graphs) > room
    assert shape.bytes_of(own, own, graphs) == 0


def test_what_was_measured_is_below_what_is_reckoned() -> None:
    """18 graphs of up to 2,048 tokens of a model of 1B took 2.63 GiB on an H100 (0.26.0)."""
    shape = memory.Shape(layers=16, width=8 * 2048 + 4 * 8192, heads=32, head=64, value_bytes=2)
    reckoned = shape.token_bytes() * 2048 + 18 * 17 * memory.LAYER_BYTES
    assert 2.63 * GIB < reckoned < 2 * 2.63 * GIB


def test_all_of_them_on_an_h100() -> None:
    with fitted(worker(configuration())) as world:
        assert world.sizes == world.chosen
        assert world.largest == 1024
        assert world.votes == 0
        assert world.effect["state"] == "active"
        number = len(world.own)
        assert world.effect["text"] == (
            f"{number + 14} capture sizes up to 1024 tokens for vLLM's {number} up to 512, "
            "with up to 1.2 GiB more for graphs"
        )


@pytest.mark.parametrize("cells", [{"weights": 68}, {"cache": 76}, {"share": 0.99}])
def test_the_largest_that_fits(cells: dict[str, Any]) -> None:
    """Where all sizes are more than a share of the memory: the largest that is not."""
    with fitted(worker(configuration(), **cells), reckons="share" not in cells) as world:
        assert len(world.own) < len(world.sizes) < len(world.chosen)
        assert world.sizes == world.chosen[: len(world.sizes)]
        assert world.largest == world.sizes[-1]
        assert world.effect["state"] == "active"
        assert "up to 1024 do not fit into" in world.effect["text"]


@pytest.mark.parametrize("cells", [{"weights": 72}, {"weights": 79}, {"cache": 77}])
def test_where_nothing_fits_it_is_vllms_choice(cells: dict[str, Any]) -> None:
    with fitted(worker(configuration(), **cells)) as world:
        assert world.sizes == world.own
        assert world.largest == world.own[-1] == 512
        assert world.effect["state"] == "idle"
        assert "14 up to 1024 do not fit into 0.0 GiB" in world.effect["text"]


def room(reckons: bool, estimates: bool, **cells: Any) -> int:
    """The room of a worker, in GiB."""
    one = worker(configuration(), **cells)
    with fitted(one, reckons=reckons) as world:
        world.world.envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS = estimates
        found: int = world.world.memory._room(one)
        return found >> 30


def test_what_the_room_is_of() -> None:
    # 72 GiB asked for, 8 of which the weights have; of the other 64 an eighth.
    assert room(True, True, weights=8) == 8
    # vLLM does not reckon with graphs: they come out of the 8 GiB that it does not ask for.
    assert room(True, False, weights=8) == 4
    assert room(False, True, weights=8) == 4
    # Model runner V1 does in all releases.
    assert room(False, True, weights=8, v2=False) == 8
    # The user said what the cache has.
    assert room(True, True, weights=8, cache=62) == 5


def test_each_size_has_two_graphs_where_decodes_have_their_own() -> None:
    texts = []
    for mode in (Mode.FULL_AND_PIECEWISE, Mode.FULL):
        with fitted(worker(configuration(cudagraph_mode=mode), width=256)) as world:
            texts.append(world.effect["text"])
    assert "with up to 0.6 GiB more" in texts[0]
    assert "with up to 0.3 GiB more" in texts[1]


@settings(max_examples=10, deadline=None)
@given(others=st.lists(st.integers(20, 100), min_size=1, max_size=8))
def test_all_ranks_keep_the_same(others: list[int]) -> None:
    with fitted(worker(configuration()), others) as world:
        number = min(len(world.chosen), *(max(each, len(world.own)) for each in others))
    with fitted(worker(configuration()), [max(each, len(world.own)) for each in others]) as world:
        assert world.votes == 1
        assert world.sizes == world.chosen[:number]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"cudagraph_capture_sizes": [1, 2, 40]}, "capture sizes, or a largest one, are set"),
        ({"enforce_eager": True}, "there are no CUDA graphs"),
    ],
)
def test_what_the_user_set_is_not_touched(changed: dict[str, Any], reason: str) -> None:
    """Not even where no memory is free."""
    with fitted(worker(configuration(**changed), weights=79), [3]) as world:
        assert world.sizes == world.chosen
        assert world.votes == 0
        assert world.effect["state"] == "idle"
        assert world.effect["text"].startswith(reason)


def test_a_configuration_of_a_process_without_the_feature() -> None:
    compilation = SimpleNamespace(cudagraph_capture_sizes=[1, 2], max_cudagraph_capture_size=2)
    with beside() as world:
        config = SimpleNamespace(compilation_config=compilation)
        world.memory.fit_sizes(SimpleNamespace(vllm_config=config))
        effect = world.effects()[world.sizes.FEATURE]
        assert effect["state"] == "idle"
        assert effect["text"] == "the configuration was made where the feature is not"
    assert compilation.cudagraph_capture_sizes == [1, 2]


def test_experts_have_wide_activations() -> None:
    one = worker(configuration())
    text = one.vllm_config.model_config.hf_text_config
    with fitted(one) as world:
        dense = world.world.memory._shape(one.vllm_config).width
        text.num_experts_per_tok, text.moe_intermediate_size = 8, 768
        assert world.world.memory._shape(one.vllm_config).width == dense
        text.moe_intermediate_size = 2048
        assert world.world.memory._shape(one.vllm_config).width > dense
        one.vllm_config.model_config.hf_text_config = SimpleNamespace()
        assert world.world.memory._shape(one.vllm_config).width == dense
