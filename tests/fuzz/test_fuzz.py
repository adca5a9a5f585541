"""The short run of the fuzz: features change nothing that an engine does, and bugs are seen."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engine_fixtures import overlay, private_vllm
from tests.fuzz.comparison import first_difference
from tests.fuzz.loads import Shape
from tests.fuzz.mutants import GRAPHS, HOSTS, MUTANTS
from tests.fuzz.pairs import MENDED, TESTS, Pair, Place, Report, Side, switches

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPT = TESTS / "gpu/fuzz.py"
#: Few blocks, chunked prefills, more requests than fit into a step.
HOST = Pair(
    seed=0,
    shape=Shape(seqs=17, length=96, tokens=40, blocks=30, dtype="float32"),
    variants=("host", MENDED),
    loads=(22, 1, 2),
    requests=24,
)
#: Batches beyond the largest graph, and smaller ones than the next size.
GRAPHED = Pair(
    seed=0,
    shape=Shape(
        seqs=9,
        length=96,
        tokens=64,
        blocks=34,
        block=16,
        graphs=True,
        sizes=(4, 16, 32),
        dtype="float32",
    ),
    variants=("all loop", "step"),
    loads=(1,),
    requests=14,
)
#: Bugs that show in a later load only, by its number: they are put in before it.
LATER = {
    "the bonus token is the one before it": 1,
    "tokens that must not come yet are not asked about": 1,
    "a full block is noted one block late": 2,
}
#: What is on alone beside these with ``--thorough``: features that are at work together are at
#: work, and tests of their own have each one alone.
ALONE = (
    ("steady-inputs", "greedy-verification", "batched-bookkeeping", "steady-scheduler"),
    ("loop",),
)


@dataclass
class Ran:
    """What the engines showed.

    :ivar seen: for each bug the first thing that differs; None where nothing does.
    """

    report: Report
    seen: dict[str, Any]


@pytest.fixture(scope="module")
def ran(
    engine_python: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Ran]:
    """One vLLM, before and after it is patched; a process for each in which engines are forked.

    Bugs are put into forks of the first engine of a pair with features, which has to start once.
    """
    folder = tmp_path_factory.mktemp("fuzz")
    for copy in private_vllm(engine_python, folder):
        side = Side(copy.python)
        place = Place(side, side, folder / "models", timeout=2400)
        place.write_models()
        pairs: tuple[Pair, ...] = (HOST, GRAPHED)
        if pytestconfig.getoption("--thorough"):
            pairs = tuple(
                replace(pair, variants=(*pair.variants, *alone))
                for pair, alone in zip(pairs, ALONE, strict=True)
            )
        stock = place.run(side, [place.spec(pair.shape, {}, **pair.load()) for pair in pairs])
        files = [folder / f"{number}.json" for number in range(len(pairs))]
        for file, result in zip(files, stock, strict=True):
            file.write_text(json.dumps(result), encoding="utf-8")
        overlay("apply", copy.site)
        specs = [
            place.spec(
                pair.shape,
                switches(variant, pair.shape),
                **pair.load(),
                expected=file,
                mutants={name: LATER.get(name, 0) for name in bugs if variant == pair.variants[0]},
            )
            for pair, file, bugs in zip(pairs, files, (HOSTS, GRAPHS), strict=True)
            for variant in pair.variants
        ]
        results = place.run(side, specs)
        report = Report()
        seen: dict[str, Any] = {}
        for pair, one in zip(pairs, stock, strict=True):
            others = [results.pop(0) for _ in pair.variants]
            report.add(pair, one, others)
            for name, outcomes in others[0]["mutants"].items():
                seen[name] = first_difference(one["outcomes"][LATER.get(name, 0) :], outcomes)
        yield Ran(report, seen)


def test_an_engine_with_features_does_what_a_stock_one_does(ran: Ran) -> None:
    assert not ran.report.differences, "\n".join(
        f"{variant}: {difference}" for _, variant, difference in ran.report.differences
    )
    assert not ran.report.deaths


def test_every_feature_was_at_work_and_the_cache_was_short(ran: Ran) -> None:
    assert not ran.report.idle()
    assert ran.report.figures["preemptions"] > 0
    assert ran.report.figures["steps"] > 100


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_is_seen(ran: Ran, mutant: str) -> None:
    assert ran.seen[mutant] is not None


@pytest.mark.thorough  # repeats the proof, with seeds that nobody chose
def test_a_long_run_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "result.json")]
    seed = random.randrange(1 << 30)
    ended = subprocess.run(
        [*command, "--seconds", "1200", "--seed", str(seed)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=3600,
    )
    assert ended.returncode == 0, ended.stdout
