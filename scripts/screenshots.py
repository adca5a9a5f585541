"""Take pictures of a page of ``overlay report`` or ``overlay bench`` in a real browser.

``python3 scripts/screenshots.py PAGE.html --browser PATH --out FOLDER`` opens the page in a
headless Chromium or Chrome: light and dark on a wide screen, and both on a phone of 390 pixels.
Each picture is of the whole page.  The pictures are for people to look at; what a program can see,
it says: whether the page is wider than the screen, whether it loaded anything, and what the console
was told.

Exit status: 0 nothing of that, 1 something, 2 the browser did not answer.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

#: Seconds that the browser may take for an answer.
_PATIENCE = 60
#: The browser reads commands here and writes answers there (``--remote-debugging-pipe``).
_READS, _WRITES = 3, 4
#: Without a sandbox of its own: in containers it has no right to make one, and the page is ours.
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    "--hide-scrollbars",  # a picture is as wide as the screen
)


class NoAnswer(Exception):
    """The browser does not do what it must."""


class View(NamedTuple):
    """A screen; :ivar width: in CSS pixels."""

    name: str
    width: int
    scheme: str


VIEWS = (
    View("light", 1100, "light"),
    View("dark", 1100, "dark"),
    View("phone-light", 390, "light"),
    View("phone-dark", 390, "dark"),
)


class Browser:
    """A browser that answers on a pair of pipes.

    :ivar events: what it told without being asked, of the page that is attached.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._unread, self._number = b"", 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """What a method of the DevTools protocol answers.

        :raises NoAnswer: if it fails, or nothing comes.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": arguments}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise NoAnswer(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, event: str) -> None:
        """Wait until the page tells an event.

        :raises NoAnswer: if it does not.
        """
        while all(each.get("method") != event for each in self.events):
            self.events.append(self._next(event))

    def _next(self, wanted: str) -> dict[str, Any]:
        last = time.monotonic() + _PATIENCE
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0, last - time.monotonic()))
            read = os.read(self._answers, 1 << 20) if ready else b""
            if not read:
                raise NoAnswer(f"expected an answer of the browser to {wanted}, found none")
            self._unread += read
        text, _, self._unread = self._unread.partition(b"\0")
        told: dict[str, Any] = json.loads(text)
        return told


@contextmanager
def started(program: Path) -> Iterator[Browser]:
    """Run a browser with a profile of its own."""
    with tempfile.TemporaryDirectory(prefix="overlay-browser-", ignore_cleanup_errors=True) as home:
        theirs_in, commands = os.pipe()
        answers, theirs_out = os.pipe()
        # The shell gives the pipes the numbers that the browser wants.
        words = f'exec "$0" "$@" {_READS}<&{theirs_in} {_WRITES}>&{theirs_out}'
        options = ("--remote-debugging-pipe", f"--user-data-dir={home}", *_OPTIONS)
        process = subprocess.Popen(
            ["bash", "-c", words, str(program), *options],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(commands, answers)
        finally:
            os.close(commands)
            os.close(answers)
            process.terminate()
            process.wait(_PATIENCE)


def picture(browser: Browser, page: Path, view: View) -> tuple[bytes, list[str]]:
    """A picture of the page on a screen, and what is wrong with it there."""
    browser.session, browser.events = None, []
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
    browser.session = attached["sessionId"]
    for domain in ("Page", "Network", "Log"):
        browser.call(f"{domain}.enable")
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=view.width,
        height=844,
        deviceScaleFactor=1,
        mobile=view.width < 600,
    )
    scheme = {"name": "prefers-color-scheme", "value": view.scheme}
    browser.call("Emulation.setEmulatedMedia", features=[scheme])
    address = page.resolve().as_uri()
    browser.call("Page.navigate", url=address)
    browser.wait_for("Page.loadEventFired")
    width = browser.call(
        "Runtime.evaluate", expression="document.documentElement.scrollWidth", returnByValue=True
    )["result"]["value"]
    shot = browser.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
    problems = [f"it is {width} pixels wide, and the screen {view.width}"] * (width > view.width)
    return base64.b64decode(shot["data"]), problems + list(told(browser.events, address))


def told(events: list[dict[str, Any]], address: str) -> Iterator[str]:
    """What a page loaded besides itself, and what its console was told."""
    for event in events:
        if event.get("method") == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if url != address:
                yield f"it loads {url}"
        elif event.get("method") == "Log.entryAdded":
            yield f"the console says: {event['params']['entry']['text']}"


def main(words: list[str] | None = None) -> int:
    """Take the pictures and say what is wrong; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--browser", type=Path, required=True, metavar="PATH")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args(words)
    for place in (args.page, args.browser):
        if not place.is_file():
            print(f"{place}: expected a file, found none", file=sys.stderr)
            return 2
    args.out.mkdir(parents=True, exist_ok=True)
    wrong = 0
    try:
        with started(args.browser.resolve()) as browser:
            for view in VIEWS:
                data, problems = picture(browser, args.page, view)
                file = args.out / f"{args.page.stem}-{view.name}.png"
                file.write_bytes(data)
                print(f"{file}: {'; '.join(problems) or 'nothing wrong'}")
                wrong += bool(problems)
    except (NoAnswer, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{wrong} of {len(VIEWS)} pictures show a problem; look at all of them.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
