"""Every release's server and client take the options that ``overlay bench`` gives them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overlay.package import KNOWN_RELEASES
from overlay.proof.commands.question import BenchQuestion
from overlay.proof.serving import ServingSpec, client_arguments
from overlay.targets.releases import CachedRelease
from overlay.targets.resolution import resolve

pytestmark = [pytest.mark.network]

RUNS = (("--max-concurrency", "1"), ("--request-rate", "1.5"))
SPEC = ServingSpec("a/b", (), (1,), 8, 8)
#: What ``overlay.proof.serving`` reads of the client's result.
RESULTS = ("completed", "request_throughput", "output_throughput", "median_ttft_ms")


def sources(release: str, *, of: str) -> str:
    """The text of all modules of a release whose path matches."""
    resolve(release)  # fetches it where it is not in the cache
    kept = CachedRelease.open(release)
    found = [kept.read(path) for path in kept.paths() if re.fullmatch(of, path)]
    assert found, f"{release} has no {of}"
    return "\n".join(text.decode() for text in found if text is not None)


@pytest.mark.parametrize("release", [str(each) for each in KNOWN_RELEASES])
def test_the_client_takes_its_options_and_writes_what_is_read(release: str) -> None:
    client = sources(release, of=r"vllm/benchmarks/(serve|datasets(/\w+)?)\.py")
    assert "def add_cli_args(" in client
    assert "def main(args: argparse.Namespace)" in client
    for limit in RUNS:
        run = ("http://x", 8, 1, limit, Path("/out/run.json"))
        arguments = (*client_arguments(SPEC, *run), *client_arguments(SPEC, *run, Path("/texts")))
        options = {word for word in arguments if word.startswith("--")}
        assert [each for each in sorted(options) if f'"{each}"' not in client] == []
    assert [name for name in RESULTS if f'"{name}"' not in client and name not in client] == []
    assert '"random"' in client
    assert re.search(r"^class ShareGPTDataset\b.*?json\.load.*?output_len=", client, re.M | re.S)


@pytest.mark.parametrize("release", [str(each) for each in KNOWN_RELEASES])
def test_the_release_has_synthetic_acceptance_and_its_server_is_a_program(release: str) -> None:
    config = sources(release, of=r"vllm/config/speculative\.py")
    given = BenchQuestion().speculative
    assert given is not None
    assert [name for name in given if not re.search(rf"\b{name}\b", config)] == []
    assert "synthetic" in config
    assert '__name__ == "__main__"' in sources(
        release, of=r"vllm/entrypoints/openai/api_server\.py"
    )
    # So it may listen on the port that is kept for it.
    assert "socket.SO_REUSEADDR, 1" in sources(release, of=r"vllm/entrypoints/.*\.py")
