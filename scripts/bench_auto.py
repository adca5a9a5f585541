"""What auto-apply costs a process of vLLM: ``python3 scripts/bench_auto.py [--write]``.

Starts the engine's environment (see ``environment.py``) with the overlay beside it, imports what a
process of vLLM has imported when it loads its plugins, and forks once for each sample, so that each
begins where the plugin begins.  A sample is the entry point's import and its call.  What the hook
adds while the targets are imported (finding, verifying, reading, comparing, writing the record) is
measured in processes of their own and counted in full, although Python's own way of reading a
module is no longer taken then.  The case that is applied on disk runs in a private copy of vLLM.

``--write`` puts the result into ``bench/results/auto-<date>.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = 15
#: name -> (environment, limit in ms or None)
CASES: dict[str, tuple[dict[str, str], float | None]] = {
    "off": ({"OVERLAY": "off"}, 30.0),
    "nothing to do (disk, nothing applied)": ({"OVERLAY": "disk"}, 30.0),
    "nothing to do (auto, no feature fits)": ({"BENCH_EMPTY": "1"}, 30.0),
    # The shipped features are looked at, and the release has what is asked for.
    "nothing to do (auto, upstreamed)": ({"OVERLAY_FEATURES": "active-lora-graphs"}, 30.0),
    "patches, warm cache": ({}, 150.0),
}
ON_DISK: dict[str, tuple[dict[str, str], float | None]] = {"applied on disk": ({}, 30.0)}


def sample() -> tuple[float, float]:
    """Wall and CPU milliseconds of loading and calling the plugin, here and now."""
    if os.environ.pop("BENCH_EMPTY", None):
        from overlay import shipped

        empty = Path(tempfile.gettempdir()) / "bench-auto-no-features"
        empty.mkdir(exist_ok=True)
        shipped.shipped_folder = lambda: empty
    wall, cpu = time.perf_counter(), time.process_time()
    from overlay.plugin import register

    register()
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def forked(work: Any) -> Any:
    """What ``work`` returns in a fork of this process, as JSON can say it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = json.dumps(work())
        except BaseException as error:  # noqa: BLE001 - a fork must never run on as its parent
            text = json.dumps({"error": repr(error)})
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    found = json.loads(data)
    if isinstance(found, dict) and "error" in found:
        raise RuntimeError(found["error"])
    return found


def importing() -> float:
    """Milliseconds that the hook takes while the targets are imported."""
    import importlib

    from overlay.auto import hook, process
    from overlay.plugin import register

    spent = 0.0

    def timed(function: Any) -> Any:
        def around(*arguments: Any, **named: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                spent += time.perf_counter() - began

        return around

    finder, loader = hook.PatchFinder, hook.PatchedLoader
    for owner, names in (
        (finder, ("_require_planned",)),
        (loader, ("get_code", "_show_source")),
        (process, ("_after_exec",)),
    ):
        for name in names:
            setattr(owner, name, timed(getattr(owner, name)))
    register()
    for name in (
        "vllm.v1.worker.gpu_model_runner",
        "vllm.v1.cudagraph_dispatcher",
        "vllm.v1.spec_decode.llm_base_proposer",
        "vllm.v1.sample.rejection_sampler",
    ):
        importlib.import_module(name)
    return spent * 1e3


def way() -> str:
    """By which way a process here is patched."""
    from overlay.auto import process
    from overlay.plugin import register

    register()
    assert process._process is not None
    return process._process.activation.way


def inside(on_disk: bool) -> dict[str, Any]:
    """The cases of an engine that is patched on disk or is not, in its own Python."""
    import vllm.engine.arg_utils

    cases: dict[str, Any] = {}
    started = dict(os.environ)
    expected = "disk" if on_disk else "memory"
    if (found := forked(way)) != expected:
        raise RuntimeError(
            f"expected a process that is patched by way of {expected}, found {found}"
        )
    for name, (changes, limit) in (ON_DISK if on_disk else CASES).items():
        os.environ.clear()
        os.environ.update(started | changes)
        forked(sample)  # makes the cache, and the bytecode of the overlay
        taken = [forked(sample) for _ in range(SAMPLES)]
        cases[name] = {
            "wall_ms": {
                "min": round(min(wall for wall, _ in taken), 1),
                "median": round(statistics.median(wall for wall, _ in taken), 1),
            },
            "cpu_ms": {
                "min": round(min(cpu for _, cpu in taken), 1),
                "median": round(statistics.median(cpu for _, cpu in taken), 1),
            },
            "limit_ms": limit,
        }
    if not on_disk:
        cases["patches, warm cache"]["while_importing_ms"] = round(
            min(forked(importing) for _ in range(3)), 1
        )
    return {"vllm": vllm.__version__, "cases": cases}


def measured(python: Path, environment: dict[str, str], *more: str) -> dict[str, Any]:
    """What ``inside`` finds with an interpreter."""
    done = subprocess.run(
        [str(python), str(Path(__file__).resolve()), "--inside", *more],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=500,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def outside() -> dict[str, Any]:
    """Start ``inside`` with the overlay beside the engine, and add what the machine is."""
    sys.path.insert(0, str(ROOT))
    import environment

    from tests.auto.installed import install_beside

    python = environment.engine_python()
    with tempfile.TemporaryDirectory(prefix="bench-auto-") as name:
        folder = Path(name)
        beside = install_beside(folder)
        (folder / "run").mkdir(mode=0o700)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OVERLAY", "PYTHON"))}
        told = kept | {
            "PYTHONPATH": str(beside),
            "OVERLAY_CACHE": str(folder / "cache"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
        }
        make = [sys.executable, str(ROOT / "tests/engine/private_copy.py"), str(python)]
        made = subprocess.run(
            [*make, str(folder / "engine")], stdout=subprocess.PIPE, text=True, check=True
        )
        patched, site = made.stdout.split()
        apply = [sys.executable, "-m", "overlay", "apply", site]
        subprocess.run(apply, cwd=folder, env=told, stdout=sys.stderr, check=True, timeout=100)
        load = os.getloadavg()[0]
        found = measured(python, told)
        found["cases"] |= measured(Path(patched), told, "--on-disk")["cases"]
    return {
        "date": datetime.date.today().isoformat(),  # noqa: DTZ011  (the day here)
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, load {load:.1f} before",
        "samples": SAMPLES,
        **found,
    }


def main() -> int:
    """Measure and print; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--on-disk", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        print(json.dumps(inside(asked.on_disk)))
        return 0
    found = outside()
    text = json.dumps(found, indent=2)
    print(text)
    if asked.write:
        place = ROOT / "bench" / "results" / f"auto-{found['date']}.json"
        place.write_text(text + "\n", encoding="utf-8")
    late = [
        name
        for name, case in found["cases"].items()
        if case["limit_ms"] is not None
        # The fastest sample: on a machine that others use, the slower ones measure them.
        and case["wall_ms"]["min"] + case.get("while_importing_ms", 0) > case["limit_ms"]
    ]
    for name in late:
        print(f"too slow: {name}")
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
