"""Measure one vLLM server with vLLM's own client; runs in the environment of some vLLM.

``python -m overlay.proof.serving SPEC.json RESULT.json`` waits for a line on standard input, so
that whoever started it can first see to it that it ends with them.  It starts the server as a
child in its own process group, and calls the client of ``vllm bench serve`` in its own process:
importing that takes as long as many of its runs.  The spec is :class:`ServingSpec` as JSON; the
result is what ``repeats.read_served`` reads; where the server failed, with ``"problem": KIND`` and
``"text"`` beside what was measured before.  How many runs a server gets, at which load, and which
of them count, is ``measure``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from overlay.proof.engine_pool import write_result
from overlay.proof.oracle import as_asked
from overlay.proof.verify_engine import NOT_SERVED, RAISED, parser_class

#: Runs of a cell until two in a row agree, at most, and the share by which these may differ.
_MOST_RUNS, _AGREE = 5, 0.03
_SECONDS_AT_RATE = 6
_SHARE_OF_SATURATION = 0.5


#: Sends so many requests; the client's result. The pair is the client's option, and its value, that
#: says how fast it sends them.
Ask = Callable[[int, tuple[str, str]], dict[str, Any]]


class Limit:
    """The time after which no further run of the client begins.

    :param seconds: ``None``: there is none.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._began = seconds, time.monotonic()

    @property
    def reached(self) -> bool:
        """Whether the time is over."""
        return self._seconds is not None and self.spent >= self._seconds

    @property
    def spent(self) -> float:
        """Seconds since this was made."""
        return time.monotonic() - self._began


def steady(measure: Callable[[], float], limit: Limit) -> dict[str, Any] | None:
    """Measure until two runs in a row agree; these two, and whether they do.

    :return: ``None`` where the limit left no time for two.
    """
    values = list[float]()
    while len(values) < _MOST_RUNS and (len(values) < 2 or not agree(*values[-2:])):
        if limit.reached:
            break
        values.append(measure())
    if len(values) < 2:
        return None
    return {"values": values[-2:], "runs": len(values), "agreed": agree(*values[-2:])}


def agree(first: float, second: float) -> bool:
    """Whether two runs differ so little that warming up has ended."""
    return abs(first - second) <= _AGREE * max(first, second)


def measure(
    ask: Ask,
    concurrency: Sequence[int],
    rate: float | None,
    limit: Limit,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Take the throughput at each concurrency, and the time to first token at one rate.

    :param concurrency: numbers of requests at a time.
    :param rate: of requests a second; ``None``: half of what the server answered at the highest
        concurrency; 0: the time is not taken.
    :param keep: is called with all that is measured, whenever something is.
    """
    answered = [0.0]

    def throughput(size: int) -> float:
        result = ask(requests_of(size), ("--max-concurrency", str(size)))
        answered.append(float(result["request_throughput"]))
        return float(result["output_throughput"])

    cells: dict[str, Any] = {}
    figures: dict[str, Any] = {"concurrency": cells, "first_token": None}
    for size in concurrency:
        cell = steady(partial(throughput, size), limit)
        if cell is None:
            return
        cells[str(size)] = cell
        keep(figures)
    if rate is None:
        rate = half_of(statistics.fmean(answered[-2:]))
    if not rate:
        return
    values = list[float]()
    for _ in range(3):
        if limit.reached:
            return
        values.append(first_token(ask, rate))
    # The first run at this rate meets batches that were not there before.
    figures["first_token"] = {"rate": rate, "values": values[1:]}
    keep(figures)


def requests_of(size: int) -> int:
    """The requests of a run with that many at a time."""
    return max(8, 4 * size)


def requests_at(rate: float) -> int:
    """The requests of a run at a rate of so many a second."""
    return max(8, round(rate * _SECONDS_AT_RATE))


def half_of(answered: float) -> float:
    """The rate of requests that is far enough from saturation for a time to first token."""
    return round(_SHARE_OF_SATURATION * answered, 3)


def first_token(ask: Ask, rate: float) -> float:
    """The median milliseconds to the first token of one run at a rate of requests."""
    return float(ask(requests_at(rate), ("--request-rate", str(rate)))["median_ttft_ms"])


_HOST = "127.0.0.1"
#: A line of vLLM's metrics that counts what was accepted at a position.
_POSITION = re.compile(
    r'^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*?position="(\d+)".*?\} (\S+)$', re.M
)
#: Seconds in which a server that answers no more is expected to have ended.
_ENDING = 10.0


@dataclass(frozen=True)
class ServingSpec:
    """What a server is started with, and what the client asks of it.

    :ivar model: a folder, or an id on the hub; :ivar arguments: of ``vllm serve`` behind it.
    :ivar concurrency: numbers of requests at a time.
    :ivar prompt: tokens of a prompt; :ivar answer: tokens of an answer.
    :ivar rate: requests a second while the time to first token is taken; ``None``: half of what
        this server answered at the highest concurrency; 0: it is not taken.
    :ivar port: ``None`` for a free one.
    :ivar seconds: no further run begins after so many; ``None``: no limit.
    :ivar texts: a file with a list of prompts in JSON, whose answers have ``answer`` tokens at
        most; ``None``: random tokens.
    """

    model: str
    arguments: tuple[str, ...]
    concurrency: tuple[int, ...]
    prompt: int
    answer: int
    rate: float | None = None
    port: int | None = None
    seconds: float | None = None
    texts: str | None = None

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServingSpec:
        """Read what ``to_json`` wrote."""
        data = json.loads(text)
        lists = {name: tuple(data[name]) for name in ("arguments", "concurrency")}
        return cls(**{**data, **lists})


class NotServed(Exception):
    """The server did not answer as it must."""


def reserve_port(number: int | None) -> socket.socket:
    """A socket that keeps a port on which nothing listens for a server to come.

    Servers set ``SO_REUSEADDR``, too, and so may listen there; nobody else is given it by chance.
    :raises NotServed: if ``number`` is given and in use.
    """
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((_HOST, number or 0))
    except OSError as error:
        place.close()
        raise NotServed(
            f"--port {number}: expected a port that is free, found it in use "
            f"({error.strerror}): end what holds it, or leave --port out for a free one"
        ) from error
    return place


class Server:
    """A vLLM server that runs as a child of this process, in its process group.

    :ivar url: where it answers.
    """

    def __init__(self, spec: ServingSpec) -> None:
        self._port = reserve_port(spec.port)  # kept until this process ends
        port = self._port.getsockname()[1]
        self.url = f"http://{_HOST}:{port}"
        program = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
        place = ("--host", _HOST, "--port", str(port))
        self._process = subprocess.Popen(
            (*program, "--model", spec.model, *place, *spec.arguments), stdin=subprocess.DEVNULL
        )
        # The client and the questions below must not ask a proxy for this machine.
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = _HOST
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def expect_alive(self) -> None:
        """Do nothing while it runs.

        :raises NotServed: if it has ended.
        """
        if (status := self._process.poll()) is not None:
            raise NotServed(f"the server ended with status {status}; its last lines are below")

    def wait(self) -> None:
        """Wait until it answers; whoever started this process sets the limit.

        :raises NotServed: if it ends before.
        """
        while True:
            self.expect_alive()
            try:
                with self._opener.open(f"{self.url}/health", timeout=5):
                    return self.expect_alive()
            except OSError:
                time.sleep(0.2)

    def version(self) -> str:
        """The release, as the server says it.

        :raises NotServed: if it does not answer.
        """
        return str(json.loads(self._answer("/version"))["version"])

    def _answer(self, path: str) -> str:
        """What a server that has answered before says.

        :raises NotServed: if it does not, which mostly means that it is ending.
        """
        try:
            with self._opener.open(f"{self.url}{path}", timeout=30) as answer:
                return str(answer.read().decode("utf-8", errors="replace"))
        except OSError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING)
            self.expect_alive()
            raise NotServed(f"the server does not answer at {path}: {error}") from error

    def acceptance(self) -> dict[str, Any]:
        """What was accepted so far, by vLLM's counters.

        ``acceptance``: tokens an engine step and request, ``None`` without drafts; ``accepted``:
        the share of verifications that accepted each position.

        :raises NotServed: if the server does not answer.
        """
        lines = self._answer("/metrics").splitlines()
        drafts, accepted = (
            sum(float(line.split()[-1]) for line in lines if line.startswith(name))
            for name in (
                "vllm:spec_decode_num_drafts_total",
                "vllm:spec_decode_num_accepted_tokens_total",
            )
        )
        by_position = dict[int, float]()
        for place, number in _POSITION.findall("\n".join(lines)):
            by_position[int(place)] = by_position.get(int(place), 0.0) + float(number)
        shares = [round(number / drafts, 4) for _, number in sorted(by_position.items()) if drafts]
        tokens = round(1 + accepted / drafts, 3) if drafts else None
        return {"acceptance": tokens, "accepted": shares}

    def end(self) -> None:
        """End it so that it gives its GPU memory back; kill it if it does not."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Client:
    """The client of ``vllm bench serve``, for one server.

    :param folder: takes the client's JSON results.
    """

    def __init__(self, spec: ServingSpec, server: Server, folder: Path) -> None:
        self._spec, self._server, self._folder = spec, server, folder
        self._serve = importlib.import_module("vllm.benchmarks.serve")
        self._parser = parser_class()(prog="vllm bench serve")
        self._serve.add_cli_args(self._parser)
        self._runs = 0
        self._dataset: Path | None = None
        if spec.texts is not None:
            self._dataset = _write_dataset(spec.model, Path(spec.texts), folder / "dataset.json")

    def ask(self, requests: int, limit: tuple[str, str]) -> dict[str, Any]:
        """Send that many requests; the client's result.

        :param limit: the client's option, and its value, that says how fast it sends them.
        :raises NotServed: if not all were answered.
        """
        self._runs += 1
        out = self._folder / f"run-{self._runs}.json"
        run = (self._server.url, requests, self._runs, limit, out, self._dataset)
        arguments = client_arguments(self._spec, *run)
        self._serve.main(self._parser.parse_args(list(arguments)))
        result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        self._server.expect_alive()
        if result["completed"] != requests:
            raise NotServed(
                f"expected an answer to {requests} requests, found {result['completed']} "
                f"({' '.join(limit)})"
            )
        return result


def client_arguments(
    spec: ServingSpec,
    url: str,
    requests: int,
    seed: int,
    limit: tuple[str, str],
    out: Path,
    dataset: Path | None = None,
) -> tuple[str, ...]:
    """The command line of ``vllm bench serve`` for one run.

    :param seed: of the prompts: another one for each run, so that no random prompt is cached.
    :param dataset: texts, as ``_write_dataset`` writes them, which are drawn by the seed; ``None``:
        random tokens.  Answers to texts end where the model ends them.
    """
    prompts: tuple[str, ...] = (
        *("--dataset-name", "random", "--ignore-eos"),
        *("--random-input-len", str(spec.prompt), "--random-output-len", str(spec.answer)),
    )
    if dataset is not None:
        prompts = ("--dataset-name", "sharegpt", "--dataset-path", str(dataset))
        prompts = (*prompts, "--sharegpt-output-len", str(spec.answer))
    return (
        *("--base-url", url, "--model", spec.model, *prompts),
        *("--num-prompts", str(requests), *limit, "--seed", str(seed), "--temperature", "0"),
        *("--disable-tqdm", "--save-result"),
        *("--result-dir", str(out.parent), "--result-filename", out.name),
    )


def _write_dataset(model: str, texts: Path, out: Path) -> Path:
    """Write texts as the client of ``vllm bench serve`` reads conversations; ``out``.

    The client's own way to ask texts needs pandas, which vLLM does not bring.
    """
    from transformers import AutoTokenizer

    prompts = json.loads(texts.read_text(encoding="utf-8"))
    questions = as_asked(AutoTokenizer.from_pretrained(model), prompts)
    turns = [{"conversations": [{"value": text}, {"value": ""}]} for text in questions]
    out.write_text(json.dumps(turns), encoding="utf-8")
    return out


def run(spec: ServingSpec, out: Path) -> None:
    """Start the server, measure it and end it.

    :param out: takes the result, whole, whenever something is measured; the client's results lie
        beside it.
    :raises NotServed: if it does not answer.
    """
    limit = Limit(spec.seconds)
    server = Server(spec)
    try:
        client = Client(spec, server, out.parent)  # imported while the server loads its model
        server.wait()
        about: dict[str, Any] = {"vllm": server.version(), "start_s": round(limit.spent, 1)}

        def keep(figures: dict[str, Any]) -> None:
            write_result(out, {**about, **figures, **server.acceptance()})

        keep({"concurrency": {}, "first_token": None})
        measure(client.ask, spec.concurrency, spec.rate, limit, keep)
    finally:
        server.end()


def main() -> int:
    """Write the result, or the problem, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    out: Path = args.out
    if not sys.stdin.readline():
        return 3  # whoever started this is gone
    spec = ServingSpec.from_json(args.spec.read_text(encoding="utf-8"))
    try:
        run(spec, out)
    except NotServed as error:
        problem = {"problem": NOT_SERVED, "text": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever the client raises is told to the user
        traceback.print_exc()
        text = f"vLLM's client failed: {type(error).__name__}: {error}"
        problem = {"problem": RAISED, "text": text}
    else:
        return 0
    # What was measured before is kept: it may be all that is known of the server.
    measured = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    write_result(out, {**measured, **problem})
    return 1


if __name__ == "__main__":
    sys.exit(main())
