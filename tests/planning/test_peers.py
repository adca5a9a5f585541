"""``git apply`` as a peer: equal wherever it does not guess, and where we refuse, it would have.

Both tests print what they compared (``pytest -rP tests/planning/test_peers.py``).
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import shutil
from pathlib import Path

import pytest

from overlay.errors import PackageIndexError
from overlay.package import KNOWN_RELEASES
from overlay.planning.diff import render
from overlay.results import Change
from overlay.targets.resolution import resolve
from tests.support.git_peer import PATH, Comparison, git_diff

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is the peer here")

#: Files that change in nearly every release.
REAL_FILES = """
    vllm/v1/worker/gpu_model_runner.py vllm/v1/worker/gpu_worker.py
    vllm/v1/worker/gpu_input_batch.py vllm/v1/worker/gpu/model_runner.py
    vllm/v1/worker/gpu/cudagraph_utils.py vllm/v1/spec_decode/llm_base_proposer.py
    vllm/v1/spec_decode/eagle.py vllm/v1/cudagraph_dispatcher.py vllm/v1/kv_cache_interface.py
    vllm/v1/utils.py vllm/v1/core/kv_cache_manager.py vllm/v1/core/kv_cache_utils.py
    vllm/v1/core/block_pool.py vllm/v1/core/kv_cache_coordinator.py
    vllm/v1/core/single_type_kv_cache_manager.py vllm/v1/core/sched/scheduler.py
    vllm/v1/engine/core.py vllm/v1/engine/core_client.py vllm/v1/engine/async_llm.py
    vllm/v1/engine/__init__.py vllm/v1/structured_output/__init__.py
    vllm/v1/attention/backends/flash_attn.py vllm/v1/attention/backends/flashinfer.py
    vllm/v1/attention/backends/triton_attn.py vllm/v1/attention/backends/cpu_attn.py
    vllm/v1/attention/backends/flex_attention.py vllm/v1/attention/backends/utils.py
    vllm/v1/attention/backends/registry.py vllm/v1/attention/backends/mla/indexer.py
    vllm/v1/sample/rejection_sampler.py vllm/v1/sample/ops/topk_topp_sampler.py
    vllm/compilation/cuda_graph.py vllm/compilation/backends.py vllm/forward_context.py
    vllm/config/vllm.py vllm/config/compilation.py vllm/config/speculative.py vllm/envs.py
""".split()


# Generated


def module(rng: random.Random) -> list[str]:
    """Lines that compile; some of them are repeated."""
    lines: list[str] = []
    for number in range(rng.randint(1, 6)):
        lines += [f"def f{number}(x):"]
        for at in range(rng.randint(1, 8)):
            lines.append("    " + rng.choice([f"v{number}_{at} = {at}", "y = x", "z = y", ""]))
        lines += ["    return x", "", ""]
    return lines


def mutated(rng: random.Random, lines: list[str], times: int) -> list[str]:
    """Some lines inserted, deleted or edited, so that it still compiles."""
    out = list(lines)
    for _ in range(times):
        at = rng.randrange(len(out))
        kind = rng.choice("ide") if out[at].startswith("    ") and "return" not in out[at] else "i"
        if kind == "d":
            del out[at]
        elif kind == "e":
            out[at] = "    " + rng.choice(["y = x", "w = 1", f"e = {rng.randrange(99)}"])
        elif not out[at].startswith("def"):
            indent = "    " if out[at].startswith("    ") else ""
            out.insert(at, indent + rng.choice(["y = 0", "z = 0", f"n = {rng.randrange(99)}"]))
    return out


def shaken(rng: random.Random, lines: list[str], after: list[str]) -> tuple[str, list[str]]:
    """Another release, as the patch meets it: shifted, with a scope twice, edited, or patched."""
    kind = rng.choice("same shifted shifted twice twice twice edited edited patched moved".split())
    if kind == "same":
        return kind, lines
    if kind == "shifted":
        return kind, [f"h{n} = {n}" for n in range(rng.randint(1, 9))] + lines
    if kind == "twice":
        at = rng.choice([n for n, line in enumerate(lines) if line.startswith("def")])
        return kind, lines[:at] + lines[at : at + rng.randint(2, 12)] + ["    pass"] + lines[at:]
    if kind == "edited":
        return kind, mutated(rng, lines, rng.randint(1, 4))
    return kind, (["h = 0"] if kind == "moved" else []) + after  # patched already


def to_bytes(lines: list[str], end: str, finished: bool) -> bytes:
    return (end.join(lines) + (end if finished or not lines[-1] else "")).encode()


def test_generated_patches(tmp_path: Path) -> None:
    comparison = Comparison()
    for seed in range(400):
        rng = random.Random(seed)
        end, finished = rng.choice(["\n", "\n", "\r\n"]), rng.random() < 0.8
        lines = module(rng)
        after = mutated(rng, lines, rng.randint(1, 5))
        kind, other = shaken(rng, lines, after)
        before, target = to_bytes(lines, end, finished), to_bytes(other, end, finished)
        if to_bytes(after, end, finished) == before:
            continue
        diff = git_diff(tmp_path / "diff", before, to_bytes(after, end, finished))
        comparison.add(f"seed {seed} ({kind})", tmp_path / str(seed), target, diff)
    print(comparison.report("generated patches"))
    assert sum(comparison.outcomes.values()) >= 300
    assert comparison.outcomes["same bytes"] >= 100
    assert any(outcome.startswith("git guessed") for outcome in comparison.outcomes)


# Real


@functools.cache
def source(release: str, path: str) -> bytes | None:
    """A file of a release: from OVERLAY_TEST_SOURCES (vllm-X.Y.Z/vllm/...), else fetched."""
    folder = os.environ.get("OVERLAY_TEST_SOURCES")
    if folder is None:
        return target(release).read(path)
    place = Path(folder) / f"vllm-{release}" / path
    assert place.parents[len(Path(path).parts) - 2].is_dir(), f"{folder} has no vLLM {release}"
    return place.read_bytes() if place.is_file() else None


target = functools.cache(resolve)


def real_pairs() -> list[tuple[str, str, str]]:
    """Path and two neighbouring releases between which it changed."""
    found = []
    for old, new in itertools.pairwise(KNOWN_RELEASES):
        for path in REAL_FILES:
            before, after = source(old, path), source(new, path)
            if before is not None and after is not None and before != after:
                found.append((path, old, new))
    return found


@pytest.fixture(scope="module")
def stride(pytestconfig: pytest.Config) -> int:
    """Of how many diffs one is compared: all of them take longest of all tests of planning."""
    return 1 if pytestconfig.getoption("--thorough") else 5


@pytest.fixture(scope="module")
def pairs(stride: int) -> list[tuple[str, str, str]]:
    try:
        return real_pairs()[::stride]
    except PackageIndexError as error:
        pytest.skip(f"NO REAL DIFFS WERE COMPARED: {error}")


@pytest.mark.network
@pytest.mark.slow
def test_real_diffs_on_the_release_they_were_made_from(
    tmp_path: Path, pairs: list[tuple[str, str, str]], stride: int
) -> None:
    comparison = Comparison()
    for path, old, new in pairs:
        before, after = source(old, path), source(new, path)
        assert before is not None
        assert after is not None
        diff = git_diff(tmp_path / "diff", before, after)
        comparison.add(f"{path} {old} to {new}", tmp_path / "work", before, diff)
    print(comparison.report("real diffs, on their own release, in <module>"))
    assert sum(comparison.outcomes.values()) >= 300 // stride
    assert comparison.outcomes["same bytes"] >= 100 // stride


@pytest.mark.network
@pytest.mark.slow
def test_real_diffs_on_the_release_before(
    tmp_path: Path, pairs: list[tuple[str, str, str]], stride: int
) -> None:
    comparison = Comparison()
    before_it = dict(itertools.pairwise(reversed(KNOWN_RELEASES)))
    for path, old, new in pairs[::2]:
        older = source(before_it[old], path) if old in before_it else None
        before, after = source(old, path), source(new, path)
        if older is None or before is None or after is None:
            continue
        diff = git_diff(tmp_path / "diff", before, after)
        comparison.add(f"{path} {old} to {new} on {before_it[old]}", tmp_path / "w", older, diff)
    print(comparison.report("real diffs, one release too early, in <module>"))
    assert sum(comparison.outcomes.values()) >= 150 // stride


@pytest.mark.network
@pytest.mark.slow
def test_scopes_place_what_the_file_alone_does_not(
    tmp_path: Path, pairs: list[tuple[str, str, str]], stride: int
) -> None:
    """With the headings of our own diffs, fewer hunks are ambiguous, and none goes elsewhere."""
    whole, scoped = Comparison(), Comparison()
    for path, old, new in pairs[::4]:
        before, after = source(old, path), source(new, path)
        assert before is not None
        assert after is not None
        diff = render([Change(PATH, before, after)])
        name = f"{path} {old} to {new}"
        scoped.add_scoped(name, before, after, diff)
        whole.add_scoped(name, before, after, git_diff(tmp_path / "diff", before, after))
    print(whole.report("files patched with <module> alone"))
    print(scoped.report("files patched with scopes"))
    assert whole.outcomes["we say ambiguous"] > 0
    assert scoped.outcomes["we say ambiguous"] == 0
    assert scoped.outcomes["same bytes"] > whole.outcomes["same bytes"] >= 80 // stride
