"""Ask the dashboard's queries of a real Prometheus that scrapes your server.

``python3 scripts/check_dashboard.py http://HOST:PORT --prometheus PATH`` starts that Prometheus
with ``deploy/prometheus.yml``, pointed at the server, waits until it has scraped twice, and
evaluates every query of ``deploy/grafana-dashboard.json`` through Prometheus's HTTP API.  A counter
that has not counted yet has no data: send the server requests while it waits.

Exit status: 0 every query has data, 1 a query has none or is refused, 2 the server or Prometheus
did not answer.  ``--out FILE`` keeps the answers as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
#: Grafana takes at least four scrapes for a rate.
_SCRAPES_A_RATE = 4
#: Seconds that Prometheus may take to start, and for each answer.
_PATIENCE = 30
_STEP = 0.5

#: A path with its query, below the address of Prometheus -> the JSON that it answers.
Ask = Callable[[str], Any]


class NoAnswer(Exception):
    """The server or Prometheus does not do what it must."""


class Query(NamedTuple):
    """A query of the dashboard; :ivar title: of its panel."""

    title: str
    expression: str


class Answer(NamedTuple):
    """What Prometheus answered.

    :ivar series: how many time series; :ivar error: why it refused the query.
    """

    query: Query
    series: int
    error: str | None


def dashboard_queries(dashboard: Mapping[str, Any]) -> list[Query]:
    """The queries of all panels."""
    return [
        Query(panel["title"], target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def filled(expression: str, interval: float) -> str:
    """A query with the variables that Grafana fills in: all instances, the shortest rate."""
    rate = f"{max(1, round(_SCRAPES_A_RATE * interval))}s"
    made = expression.replace("$__rate_interval", rate).replace("$instance", ".*")
    if "$" in made:
        raise NoAnswer(f"expected the variables $instance and $__rate_interval, found {expression}")
    return made


def configuration(text: str, address: str, interval: float) -> str:
    """The scrape configuration with one server as its only target.

    :param address: ``HOST:PORT``; :param interval: seconds between scrapes.
    :raises NoAnswer: if it does not have one interval and one list of targets.
    """
    for key, value in (
        ("scrape_interval", f"{interval:g}s"),
        ("targets", f"[{json.dumps(address)}]"),
    ):
        parts = re.split(rf"(?<=\b{key}: ).*", text)
        if len(parts) != 2:
            raise NoAnswer(f"expected one {key} in prometheus.yml, found {len(parts) - 1}")
        text = value.join(parts)
    return text


@contextmanager
def prometheus(program: Path, config: str, folder: Path) -> Iterator[Ask]:
    """Run a Prometheus of its own on this machine, with its data below ``folder``."""
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    words = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={listen}",
    )
    log = folder / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen([program, *words], stdout=stream, stderr=stream, cwd=folder)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path: str) -> Any:
        if process.poll() is not None:
            raise NoAnswer(f"Prometheus ended with status {process.returncode}:\n{log.read_text()}")
        try:
            with opener.open(f"http://{listen}{path}", timeout=_PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:  # it says why in JSON
            return json.loads(error.read())

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def wait_for_scrapes(ask: Ask, scrapes: int, interval: float) -> None:
    """Wait until the server was scraped so often.

    :raises NoAnswer: if Prometheus or the server did not answer in time.
    """
    last = time.monotonic() + _PATIENCE + scrapes * interval
    # Of the successful scrapes only: `up` is 0 where one failed.
    count = f"sum(sum_over_time(up[{max(60, round(10 * scrapes * interval))}s]))"
    why = "it did not start"
    while time.monotonic() < last:
        try:
            values = instant(ask, count)
            if values and float(values[0]["value"][1]) >= scrapes:
                return
            targets = ask("/api/v1/targets")["data"]["activeTargets"]
            why = "; ".join(each["lastError"] or "no scrape yet" for each in targets)
        except OSError as error:
            why = str(error)
        time.sleep(_STEP)
    raise NoAnswer(f"expected {scrapes} scrapes of the server, found fewer: {why}")


def instant(ask: Ask, query: str) -> list[Any]:
    """The time series of a query now.

    :raises NoAnswer: if Prometheus refuses it.
    """
    answer = ask(f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    if answer["status"] != "success":
        raise NoAnswer(f"{answer.get('errorType')}: {answer.get('error')}")
    series: list[Any] = answer["data"]["result"]
    return series


def answers(ask: Ask, queries: list[Query], interval: float) -> list[Answer]:
    """What Prometheus answers to each query."""
    made = []
    for query in queries:
        try:
            series = instant(ask, filled(query.expression, interval))
            made.append(Answer(query, len(series), None))
        except NoAnswer as error:
            made.append(Answer(query, 0, str(error)))
    return made


def lines(told: list[Answer]) -> Iterator[str]:
    """A line for each query, and the conclusion."""
    for each in told:
        what = "no data" if each.series == 0 else f"{each.series} series"
        yield f"{each.error or what:<12}  {each.query.title}: {each.query.expression}"
    missing = [each for each in told if each.error or not each.series]
    if missing:
        yield f"{len(missing)} of {len(told)} queries have no data: see above."
    else:
        yield f"All {len(told)} queries have data."


def evidence(ask: Ask, address: str, interval: float, told: list[Answer]) -> dict[str, Any]:
    """What ``--out`` keeps."""
    build = ask("/api/v1/status/buildinfo")["data"]
    info = instant(ask, "vllm_overlay_info")
    wanted = ("vllm", "digest", "features", "way")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "prometheus": build["version"],
        "python": platform.python_version(),
        "scrape_interval_s": interval,
        "server": [
            dict(sorted({name: each["metric"].get(name) for name in wanted}.items()))
            for each in info
        ],
        "address": re.sub(r"^[^:]*", "HOST", address),
        "queries": [
            {
                "panel": each.query.title,
                "query": each.query.expression,
                "series": each.series,
                "error": each.error,
            }
            for each in told
        ],
    }


def arguments(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="of the server, such as http://localhost:8000")
    parser.add_argument("--prometheus", type=Path, required=True, metavar="PATH")
    parser.add_argument("--scrapes", type=int, default=2, help="to wait for; 2")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between scrapes; 5")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the answers as JSON")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Run Prometheus and print what it answers; the exit status."""
    args = arguments(words)
    address = urllib.parse.urlsplit(args.url).netloc
    if not address or not args.prometheus.is_file():
        print("expected http://HOST:PORT and the program prometheus; see --help", file=sys.stderr)
        return 2
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    text = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
    try:
        config = configuration(text, address, args.interval)
        with (
            tempfile.TemporaryDirectory(prefix="overlay-prometheus-") as folder,
            prometheus(args.prometheus.resolve(), config, Path(folder)) as ask,
        ):
            wait_for_scrapes(ask, args.scrapes, args.interval)
            told = answers(ask, dashboard_queries(dashboard), args.interval)
            if args.out is not None:
                kept = json.dumps(evidence(ask, address, args.interval, told), indent=1)
                args.out.write_text(kept + "\n", encoding="utf-8")
    except NoAnswer as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(lines(told)))
    return 1 if any(each.error or not each.series for each in told) else 0


if __name__ == "__main__":
    sys.exit(main())
