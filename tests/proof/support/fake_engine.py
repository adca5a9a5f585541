"""An interpreter that takes the place of a vLLM environment's for ``overlay verify``.

What its engines do is in the variable ``FAKE_ENGINE``: JSON with a word for each mode.  Which model
runner they are asked for is added to the file ``FAKE_SAID``, where that is set.  They serve
what the rule of the tiny models gives, or for texts tokens of their own, unless told otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.proof.support.fake_serving import write_fake_serving
from tests.support import fake_vllm

_PROGRAM = """#!{python}
import json, os, signal, subprocess, sys, time
from pathlib import Path

if sys.argv[2] == "overlay.proof.serving":
    # The real program, with modules in the place of vLLM's own server and client.
    path = {modules!r} + os.pathsep + os.environ["PYTHONPATH"]
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {{**os.environ, "PYTHONPATH": path}})
if sys.argv[2] == "overlay.proof.step_time":
    sys.stdin.readline()
    stock = "/stock" in os.environ.get("PYTHONPATH", "")
    runner = os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "")
    engine = {{"": "stock", "0": "stock V1", "1": "V2"}}[runner] if stock else "overlay"
    plain = sys.argv[sys.argv.index("--k") + 1] == "0"
    words = json.loads(os.environ["FAKE_ENGINE"])[engine + " without drafts" * plain]
    if isinstance(words, str):
        sys.exit(words)
    graphs = {{"keys": {{"loop": 4}}}} if engine == "overlay" and not plain and runner else None
    result = {{"vllm": "0.99.0", "gpu": "FAKE", "draft_graphs": graphs, "start_s": 1.5}}
    result["runner"] = "vllm.v1.worker." + ("gpu_" if runner == "0" else "gpu.") + "model_runner"
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    result["batch1"] = {{"repeats_ms_per_step": words}}
    out.write_text(json.dumps(result))
    sys.exit(0)
if sys.argv[2] != "overlay.proof.verify_engine":
    print("what a library prints while models are made")
    sys.exit(int(os.environ.get("FAKE_WRITER", "0")))
if not sys.stdin.readline():
    sys.exit("gone")
if "FAKE_SAID" in os.environ:
    with open(os.environ["FAKE_SAID"], "a") as said:
        name = "VLLM_USE_V2_MODEL_RUNNER"
        party = os.environ.get("OVERLAY", "")
        print(f"{{name}}={{os.environ.get(name, '')}} OVERLAY={{party}}", file=said)
spec_file, out = map(Path, sys.argv[3:5])
if spec_file.parent.name == "configuration":
    runner = os.environ.get("FAKE_RUNNER", "v1")
    refused = {{"problem": "raised", "text": runner}}
    out.write_text(json.dumps({{"runner": runner}} if runner in ("v1", "v2") else refused))
    sys.exit(0)
word = json.loads(os.environ["FAKE_ENGINE"])[spec_file.parent.name.split("-")[-1]]
if word == "hangs":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["FAKE_PIDS"]).write_text(f"{{os.getpid()}} {{child.pid}}")
    time.sleep(600)
if word.startswith("says "):
    print(word[5:])
    sys.exit(3)
if word == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if word == "malformed":
    out.write_text('{{"vllm": 1}}')
    sys.exit(0)
if word.startswith("problem "):
    kind, _, text = word[8:].partition(": ")
    out.write_text(json.dumps({{"problem": kind, "text": text}}))
    sys.exit(0)

sys.path.insert(0, {root!r})
from tests.engine import expected_steps
from overlay.proof import oracle
from overlay.proof.oracle import make_rule
from overlay.proof.verify_engine import VerifySpec

spec, rule, served = VerifySpec.from_json(spec_file.read_text()), make_rule(), []
for request in spec.requests:
    prompt, count = list(request.prompt), request.tokens
    tokens = oracle.continuation(rule, prompt, count)
    made = expected_steps.undisturbed(rule, prompt, count, 5)
    steps = [[step.known, step.drafted, step.accepted] for step in made]
    served.append({{"prompt": len(prompt), "tokens": tokens, "steps": steps}})
for number, text in enumerate(spec.prompts):
    tokens = [(7 * number + place) % 100 for place in range(spec.tokens)]
    steps = [[5 + place, 3, place % 3] for place in range(0, spec.tokens, 2)]
    served.append({{"prompt": 5, "tokens": tokens, "steps": steps}})
if word == "token":
    served[2]["tokens"][4] += 1
if word == "accepted":
    served[1]["steps"][2][2] += 1
if word == "never accepts":
    for each in served:
        each["steps"] = [[known, drafted, 0] for known, drafted, _ in each["steps"]]
if word == "random":
    served[0]["tokens"][0] = time.time_ns() % 1_000_000
mode = os.environ.get("OVERLAY_DRAFT_GRAPHS", spec.mode.value)
off, later = mode == "off", {{"auto": "whole"}}.get(mode, mode)
if word == "no loop":
    later = "step"
gaps = json.loads(os.environ.get("FAKE_GAPS", "[]"))
used = {{"state": "idle" if word == "idle" else "active", "text": "why", "counts": {{"steps": 3}},
        "mends": word == "mends"}}
if word == "mends":
    used["counts"] = {{}}
rank = {{"rank": 0, "state": "idle" if off or word == "idle" else "active",
        "left": {{"1 batch": 1}},
        "text": "attention backend X is not known" if word == "idle" else "8 graphs",
        "captured": {{}} if off else {{"first": 4, later: 4}},
        "replayed": {{}} if off or word == "idle" else {{"first": 9, later: 9}}}}
result = {{"vllm": "0.99.0", "root": "/site", "device": "FAKE", "k": 5,
          "one_pass": word == "one pass", "served": served, "ranks": [rank],
          "start_s": 1.0, "serve_s": 2.0, "runner": os.environ.get("FAKE_RUNNER", "v1"),
          "features": {{"steady-scheduler": used}} if mode == "overlay" else {{}},
          "opinions": [[-1.0, -1.0 - gap] for gap in gaps] if spec.beside else []}}
out.write_text(json.dumps(result))
"""


def write_fake_environment(folder: Path) -> Path:
    """Write an environment whose vLLM is pristine; the path of its interpreter."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    fake_vllm.site_packages(folder / "lib/python3.11/site-packages")
    return write_fake_python(folder / "bin")


def install_plugin(python: Path) -> None:
    """Have an environment look as if the overlay's plugin were installed there."""
    (python.parents[1] / "lib/python3.11/site-packages/vllm_overlay-9.dist-info").mkdir()


def write_fake_python(folder: Path) -> Path:
    """Write the interpreter; its path."""
    root = str(Path(__file__).resolve().parents[3])
    program = folder / "python"
    modules = str(write_fake_serving(folder / "fake_serving"))
    text = _PROGRAM.format(python=sys.executable, root=root, modules=modules)
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    return program


def behaving(words: Mapping[str, object]) -> dict[str, str]:
    """The variable that tells the engines what to do: mode -> word."""
    return {"FAKE_ENGINE": json.dumps(dict(words))}
