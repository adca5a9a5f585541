"""Capture sizes cover the widest batch of decodes, where nobody set any."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.package import KNOWN_RELEASES
from tests.decode_graph_sizes.worlds import Mode, Platform, beside, chosen, configuration, stock

RELEASES = [str(release) for release in KNOWN_RELEASES]
#: Of each text of vLLM's choice, one release.
TEXTS = ["0.20.0", "0.23.0", "0.26.0", "0.28.0", "0.29.0", "0.31.0", "0.33.0"]
VARIABLE = "OVERLAY_DECODE_GRAPH_SIZES"

with beside() as _world:
    wide_sizes = _world.sizes.wide_sizes
    WASTE, CHOICE = _world.sizes.WASTE, _world.sizes.CHOICE


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch, as where nobody has set it."""
    monkeypatch.delenv(VARIABLE, raising=False)


def check_law(own: list[int], sizes: list[int], query: int, requests: int, tokens: int) -> None:
    """The law of the sizes: vLLM's stay, each wider decode has one, little of it is wasted."""
    assert sizes[: len(own)] == own
    assert sizes == sorted(set(sizes))
    widest = min(requests, tokens // query) * query
    assert sizes[-1] == max(own[-1], widest)
    added = sizes[len(own) :]
    assert all(size % query == 0 for size in added)
    for number in range(own[-1] // query + 1, widest // query + 1):
        decode = number * query
        size = next(size for size in added if size >= decode)
        assert (size - decode) * WASTE <= size


@given(
    own=st.lists(st.integers(1, 600), min_size=1, max_size=20, unique=True).map(sorted),
    query=st.integers(1, 20),
    requests=st.integers(1, 600),
    tokens=st.integers(1, 9000),
)
def test_every_decode_has_a_size_of_which_it_leaves_little_empty(
    own: list[int], query: int, requests: int, tokens: int
) -> None:
    check_law(own, wide_sizes(own, query, requests, tokens), query, requests, tokens)


@pytest.mark.parametrize("query", [1, 2, 3, 4, 6, 8, 17])
@pytest.mark.parametrize("requests", [256, 512, 1024])
def test_few_sizes_are_added(query: int, requests: int) -> None:
    """As many as the waste asks for, and up to a half more for the stride."""
    sizes = wide_sizes([512], query, requests, 1 << 20)
    at_least, size = 0, 512.0
    while size < sizes[-1]:
        at_least, size = at_least + 1, size * WASTE / (WASTE - 1)
    assert len(sizes) - 1 <= at_least * 1.5 + 1


def test_the_sizes_of_an_h100() -> None:
    assert wide_sizes([512], 4, 256, 8192) == [*range(512, 897, 32), 960, 1024]
    further = [544, 576, 608, 648, 688, 728, 776, 824, 880, 936, 992, 1024]
    assert wide_sizes([512], 1, 1024, 8192) == [512, *further]


@pytest.mark.network
@pytest.mark.parametrize("release", RELEASES)
def test_each_release_covers_the_widest_decode(release: str) -> None:
    for drafts, requests, tokens in (
        (3, 256, 8192),
        (2, 300, 8192),
        (0, 1024, 8192),
        (7, 512, 2048),
    ):
        own = stock(release, configuration(drafts, requests, tokens)).cudagraph_capture_sizes
        compilation = chosen(release, configuration(drafts, requests, tokens))
        check_law(own, compilation.cudagraph_capture_sizes, 1 + drafts, requests, tokens)
        assert compilation.cudagraph_capture_sizes != own
        assert compilation.max_cudagraph_capture_size == compilation.cudagraph_capture_sizes[-1]
        assert getattr(compilation, CHOICE) == (tuple(own), None)


def plain(compilation: SimpleNamespace) -> dict[str, Any]:
    """What upstream chose of a compilation configuration."""
    return {
        name: value
        for name, value in vars(compilation).items()
        if name not in (CHOICE, "post_init_cudagraph_sizes", "pass_config")
    }


#: What keeps vLLM's own choice, and a word of the reason.
REASONS: dict[str, tuple[dict[str, Any], str]] = {
    "sizes": ({"cudagraph_capture_sizes": [1, 2, 40]}, "set already"),
    "largest": ({"max_cudagraph_capture_size": 512}, "set already"),
    "eager": ({"enforce_eager": True}, "no CUDA graphs"),
    "none": ({"cudagraph_mode": Mode.NONE}, "no CUDA graphs"),
    "pooling": ({"runner_type": "pooling"}, "does not decode"),
    "diffusion": ({"diffusion_config": SimpleNamespace()}, "diffusion"),
    "micro-batches": ({"use_ubatching": True}, "micro-batches"),
    "elastic": ({"enable_elastic_ep": True}, "come later"),
    "narrow": ({"max_num_seqs": 128}, "hold every batch of decodes"),
    "tokens": ({"max_num_batched_tokens": 512}, "hold every batch of decodes"),
}


@pytest.mark.network
@pytest.mark.parametrize("release", TEXTS)
@pytest.mark.parametrize("reason", REASONS)
def test_vllms_choice_stays(release: str, reason: str) -> None:
    changed, words = REASONS[reason]
    own = stock(release, configuration(**copy.deepcopy(changed)))
    compilation = chosen(release, configuration(**copy.deepcopy(changed)))
    assert plain(compilation) == plain(own)
    sizes, why = getattr(compilation, CHOICE)
    assert words in why
    assert list(sizes) == compilation.cudagraph_capture_sizes


@pytest.mark.network
def test_another_platform_keeps_vllms_choice() -> None:
    own = stock("0.33.0", configuration())
    compilation = chosen("0.33.0", configuration(), platform=Platform("rocm"))
    assert plain(compilation) == plain(own)
    assert "CUDA alone" in getattr(compilation, CHOICE)[1]


@pytest.mark.network
def test_switched_off_it_is_vllms_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    compilation = chosen("0.33.0", configuration())
    assert plain(compilation) == plain(stock("0.33.0", configuration()))
    assert getattr(compilation, CHOICE)[1] == f"{VARIABLE}=off"


@pytest.mark.network
def test_an_unknown_value_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ValueError, match=f"{VARIABLE} is 'yes'; set it to on or off"):
        chosen("0.33.0", configuration())


@pytest.mark.network
@pytest.mark.parametrize("release", TEXTS)
def test_sizes_to_compile_follow(release: str) -> None:
    """Whoever has each capture size compiled gets the new ones, too."""
    compilation = chosen(release, configuration(compile_sizes=["cudagraph_capture_sizes", 4096]))
    assert sorted(compilation.compile_sizes) == [*compilation.cudagraph_capture_sizes, 4096]


@pytest.mark.network
def test_a_configuration_that_is_made_again_keeps_its_sizes() -> None:
    with beside("0.33.0") as world:
        world.sizes.cover_decodes()
        world.sizes.cover_decodes()
        config = configuration()
        world.config._set_cudagraph_sizes(config)
        before = copy.deepcopy(plain(config.compilation_config))
        choice = getattr(config.compilation_config, CHOICE)
        world.config._set_cudagraph_sizes(config)
        assert plain(config.compilation_config) == before
        assert getattr(config.compilation_config, CHOICE) == choice


@pytest.mark.network
def test_a_process_without_the_feature_can_read_a_configuration() -> None:
    config = configuration()
    choice = getattr(chosen("0.33.0", config), CHOICE)
    assert b"decode_graph_sizes" not in pickle.dumps(choice)
    assert pickle.loads(pickle.dumps(choice)) == choice
