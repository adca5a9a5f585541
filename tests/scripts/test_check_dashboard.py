"""The script that asks the dashboard's queries, with a program in the place of Prometheus."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import check_dashboard
from scripts.check_dashboard import NoAnswer, configuration, dashboard_queries, filled

#: Answers as Prometheus's HTTP API does: a series for each query without the word in FAKE_MISSING.
_PROMETHEUS = """#!{python}
import http.server, json, os, sys, urllib.parse
options = dict(word.split("=", 1) for word in sys.argv[1:])
config = open(options["--config.file"]).read()
assert 'targets: ["vllm:8123"]' in config and "scrape_interval: 0.2s" in config, config
if os.environ.get("FAKE_ENDS"):
    sys.exit("what a configuration")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        place = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(place.query)).get("query", "")
        status, data = 200, {{}}
        if place.path == "/api/v1/status/buildinfo":
            data = {{"version": "2.99.0"}}
        elif "sum_over_time(up" in query:
            data = {{"result": [{{"value": [0, os.environ.get("FAKE_SCRAPES", "2")]}}]}}
        elif place.path == "/api/v1/targets":
            data = {{"activeTargets": [{{"lastError": "connection refused"}}]}}
        elif os.environ.get("FAKE_REFUSED", "nothing") in query:
            status = 400
        elif os.environ.get("FAKE_MISSING", "nothing") in query:
            data = {{"result": []}}
        else:
            data = {{"result": [{{"metric": {{"vllm": "0.99.0"}}, "value": [0, "1"]}}]}}
        answer = {{"status": "success", "data": data}}
        if status == 400:
            answer = {{"status": "error", "errorType": "bad_data", "error": "parse error"}}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args):
        pass

host, port = options["--web.listen-address"].split(":")
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls the script: its status, and what it printed."""
    program = tmp_path / "prometheus"
    program.write_text(_PROMETHEUS.format(python=sys.executable))
    program.chmod(0o755)

    def call(*options: str) -> tuple[int, str]:
        words = ["http://vllm:8123", "--prometheus", str(program), "--interval", "0.2", *options]
        status = check_dashboard.main(words)
        told = capsys.readouterr()
        return status, told.out + told.err

    return call


@pytest.mark.slow
def test_queries_with_data_are_kept_as_evidence(ask: Any, tmp_path: Path) -> None:
    status, told = ask("--out", str(tmp_path / "out.json"))
    assert status == 0, told
    board = json.loads((check_dashboard.DEPLOY / "grafana-dashboard.json").read_text())
    number = len(dashboard_queries(board))
    assert told.endswith(f"All {number} queries have data.\n")
    kept = json.loads((tmp_path / "out.json").read_text())
    assert kept["prometheus"] == "2.99.0"
    assert [each["series"] for each in kept["queries"]] == [1] * number
    assert kept["server"][0]["vllm"] == "0.99.0"


@pytest.mark.slow
def test_a_query_without_data_is_named(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MISSING", "vllm_overlay_withdrawn")
    monkeypatch.setenv("FAKE_REFUSED", "vllm_overlay_attention")
    status, told = ask()
    assert status == 1
    (line,) = [line for line in told.splitlines() if line.startswith("no data")]
    assert "vllm_overlay_withdrawn" in line
    assert "bad_data: parse error" in told
    assert "2 of " in told.splitlines()[-1]


@pytest.mark.slow
def test_a_server_that_is_not_scraped_is_an_error(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_dashboard, "_PATIENCE", 1)
    monkeypatch.setenv("FAKE_SCRAPES", "1")
    status, told = ask()
    assert status == 2
    assert "expected 2 scrapes of the server, found fewer: connection refused" in told
    monkeypatch.setenv("FAKE_ENDS", "1")
    status, told = ask()
    assert status == 2
    assert "Prometheus ended with status 1" in told
    assert "what a configuration" in told


def test_variables_and_configurations_that_are_not_known_are_refused() -> None:
    assert filled("rate(x[$__rate_interval])", 15) == "rate(x[60s])"
    with pytest.raises(NoAnswer, match="expected the variables"):
        filled("x[$other]", 15)
    text = (check_dashboard.DEPLOY / "prometheus.yml").read_text()
    assert 'targets: ["a:1"]' in configuration(text, "a:1", 2.5)
    with pytest.raises(NoAnswer, match="expected one targets"):
        configuration(text + '      - targets: ["b:2"]\n', "a:1", 2.5)
    assert check_dashboard.main(["nowhere", "--prometheus", "/nowhere"]) == 2
