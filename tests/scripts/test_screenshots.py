"""The script that takes pictures of pages, with a program in the place of the browser."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import screenshots

#: Speaks the DevTools protocol on its pipes; its width and what it tells are variables.
_BROWSER = """#!{python}
import base64, json, os, sys
if os.environ.get("FAKE_ENDS"):
    sys.exit(1)
assert "--remote-debugging-pipe" in sys.argv
unread, url, dark = b"", "", False

def say(message):
    os.write(4, json.dumps(message).encode() + b"\\0")

while True:
    read = os.read(3, 65536)
    if not read:
        break
    unread += read
    while b"\\0" in unread:
        text, _, unread = unread.partition(b"\\0")
        asked = json.loads(text)
        method, given, result = asked["method"], asked["params"], {{}}
        if method == "Target.createTarget":
            result = {{"targetId": "t"}}
        elif method == "Target.attachToTarget":
            result = {{"sessionId": "s"}}
        elif method == "Emulation.setEmulatedMedia":
            dark = given["features"][0]["value"] == "dark"
        elif method == "Emulation.setDeviceMetricsOverride":
            width = given["width"]
        elif method == "Page.navigate":
            if os.environ.get("FAKE_REFUSES"):
                say({{"id": asked["id"], "error": {{"message": "no such page"}}}})
                continue
            loads = [given["url"], *filter(None, [os.environ.get("FAKE_LOADS")])]
            for url in loads:
                request = {{"request": {{"url": url}}}}
                say({{"method": "Network.requestWillBeSent", "params": request}})
        elif method == "Runtime.evaluate":
            result = {{"result": {{"value": max(width, int(os.environ.get("FAKE_WIDTH", "1")))}}}}
        elif method == "Page.captureScreenshot":
            picture = f"{{width}} {{'dark' if dark else 'light'}}".encode()
            result = {{"data": base64.b64encode(picture).decode()}}
        say({{"id": asked["id"], "result": result}})
        if method == "Page.navigate":
            say({{"method": "Page.loadEventFired", "params": {{}}}})
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The script's arguments."""
    browser, page = tmp_path / "browser", tmp_path / "page.html"
    browser.write_text(_BROWSER.format(python=sys.executable))
    browser.chmod(0o755)
    page.write_text("<h1>page</h1>")
    return [str(page), "--browser", str(browser), "--out", str(tmp_path / "out")]


@pytest.mark.slow
def test_every_screen_gets_a_picture(words: list[str], tmp_path: Path) -> None:
    assert screenshots.main(words) == 0
    made = {file.stem: file.read_text() for file in (tmp_path / "out").iterdir()}
    assert made == {
        "page-light": "1100 light",
        "page-dark": "1100 dark",
        "page-phone-light": "390 light",
        "page-phone-dark": "390 dark",
    }


@pytest.mark.slow
def test_what_is_wrong_is_said(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_WIDTH", "500")
    assert screenshots.main(words) == 1
    told = capsys.readouterr().out
    assert told.count("it is 500 pixels wide, and the screen 390") == 2
    assert "2 of 4 pictures show a problem" in told
    monkeypatch.setenv("FAKE_LOADS", "https://example.com/a.js")
    assert screenshots.main(words) == 1
    assert capsys.readouterr().out.count("it loads https://example.com/a.js") == 4


@pytest.mark.slow
def test_a_browser_that_does_not_answer_is_an_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert screenshots.main(["/nowhere", *words[1:]]) == 2
    monkeypatch.setenv("FAKE_REFUSES", "1")
    assert screenshots.main(words) == 2
    assert "Page.navigate: no such page" in capsys.readouterr().err
    monkeypatch.setenv("FAKE_ENDS", "1")
    assert screenshots.main(words) == 2
