"""Modules in the place of vLLM's server and of its client, for ``overlay.proof.serving``.

What an engine's server does is in the variable ``FAKE_ENGINE`` under the engine's name and
``serving``: tokens a second, one for each run, or a word.
"""

from __future__ import annotations

from pathlib import Path

_BEHAVIOUR = """
import json, os, sys

sys.path.append({root!r})

def engine():
    stock = "/stock" in os.environ.get("PYTHONPATH", "")
    runner = os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "")
    return {{"": "stock", "0": "stock V1", "1": "V2"}}[runner] if stock else "overlay"

def word():
    return json.loads(os.environ["FAKE_ENGINE"])[f"{{engine()}} serving"]
"""
_SERVER = """
import argparse, http.server, os, subprocess, sys, time
from pathlib import Path
from vllm.behaviour import word

parser = argparse.ArgumentParser()
for option in ("model", "host", "port", "load-format", "max-model-len", "max-num-seqs",
               "gpu-memory-utilization", "kv-cache-memory-bytes", "compilation-config",
               "speculative-config"):
    parser.add_argument(f"--{option}")
args = parser.parse_args()
said = word()
if isinstance(said, str) and said.startswith("says "):
    sys.exit(said[5:])
if said in ("hangs", "ignores the end"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["FAKE_PIDS"]).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/dies":
            os._exit(7)
        text = {
            "/health": "",
            "/version": '{"version": "0.99.0"}',
            "/metrics": 'vllm:spec_decode_num_drafts_total{engine="0"} 10.0\\n'
                        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 15.0\\n'
                        'vllm:spec_decode_num_accepted_tokens_per_pos_total'
                        '{engine="0",position="1"} 6.0\\n'
                        'vllm:spec_decode_num_accepted_tokens_per_pos_total'
                        '{engine="0",position="0"} 9.0\\n',
        }[self.path]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass

http.server.ThreadingHTTPServer((args.host, int(args.port)), Handler).serve_forever()
"""
_CLIENT = """
import json, os, time, urllib.request
from pathlib import Path
from vllm.behaviour import word

RUNS = []

def add_cli_args(parser):
    for option in ("base-url", "model", "dataset-name", "random-input-len", "random-output-len",
                   "dataset-path", "sharegpt-output-len", "num-prompts", "max-concurrency",
                   "request-rate", "seed", "temperature", "result-dir", "result-filename"):
        parser.add_argument(f"--{option}")
    for flag in ("ignore-eos", "disable-tqdm", "save-result"):
        parser.add_argument(f"--{flag}", action="store_true")

def main(args):
    said, requests = word(), int(args.num_prompts)
    RUNS.append(args.seed)
    assert len(set(RUNS)) == len(RUNS), "prompts of a seed are in the cache"
    assert args.ignore_eos is (args.dataset_name == "random")
    if args.dataset_name == "sharegpt":
        turns = json.loads(Path(args.dataset_path).read_text())
        assert all(len(each["conversations"]) == 2 for each in turns)
        print("asks", turns[0]["conversations"][0]["value"])
    if said == "dies":
        try:
            urllib.request.urlopen(args.base_url + "/dies")
        except OSError:
            pass
    if said == "answers no client":
        Path(os.environ["FAKE_PIDS"]).write_text(f"{os.getpid()} {os.getppid()}")
        time.sleep(600)
    if said == "client fails":
        raise ValueError("what a client")
    speeds = said if isinstance(said, list) else [100.0]
    speed = speeds[min(len(RUNS) - 1, len(speeds) - 1)]
    result = {"completed": requests - (said == "loses one"), "request_throughput": speed / 10,
              "output_throughput": speed, "median_ttft_ms": 1000 / speed}
    Path(args.result_dir, args.result_filename).write_text(json.dumps(result))
"""
_TOKENIZER = """
class Tokenizer:
    chat_template, bos_token = "a form", "<s>"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return f"<s>[{messages[0]['content']}]"

class AutoTokenizer:
    @staticmethod
    def from_pretrained(model):
        return Tokenizer()
"""
_PARSER = """
from argparse import ArgumentParser as FlexibleArgumentParser
"""


def write_fake_serving(folder: Path) -> Path:
    """Write the modules into a new folder for an import path; the folder."""
    modules = {
        "behaviour": _BEHAVIOUR.format(root=str(Path(__file__).resolve().parents[3])),
        "entrypoints/openai/api_server": _SERVER,
        "benchmarks/serve": _CLIENT,
        "utils/argparse_utils": _PARSER,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "transformers.py").write_text(_TOKENIZER, encoding="utf-8")
    for name, text in modules.items():
        place = folder / "vllm" / f"{name}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        for package in place.relative_to(folder).parents:
            if package.name:
                (folder / package / "__init__.py").touch()
    return folder
