"""Which index is configured: what pip says, completed by uv's variables."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest

from overlay.errors import PackageIndexError
from overlay.targets import pip_config
from overlay.targets.pip_config import IndexConfig, read_config


@pytest.fixture
def configured(tmp_path: Path):
    """Read the configuration of a pip whose only configuration file has the given text."""

    def read(text: str = "", **variables: str) -> IndexConfig:
        file = tmp_path / "pip.conf"
        file.write_text(text)
        home = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), "PATH": os.environ["PATH"]}
        return read_config({**home, "PIP_CONFIG_FILE": str(file), **variables})

    return read


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch):
    """Let pip say the given things instead of running it."""

    def say(settings: str, help_text: str = "", uv_help: str | None = None) -> None:
        def run(command: list[str], environ: object) -> str:
            if command[0].endswith("uv"):
                return uv_help or ""
            return settings if command[-2:] == ["config", "list"] else help_text

        monkeypatch.setattr(pip_config, "_run", run)
        monkeypatch.setattr(pip_config, "_pip", lambda: ["pip"])
        monkeypatch.setattr(
            pip_config.shutil, "which", lambda name: "/bin/uv" if uv_help and name == "uv" else None
        )

    return say


def test_a_configuration_file_is_read_by_pip_itself(configured, tmp_path: Path) -> None:
    found = configured(
        "[global]\nindex-url = https://one.example/simple\n"
        "extra-index-url = https://two.example/simple\n  https://three.example/simple\n"
        f"find-links = {tmp_path}\ncert = /some/bundle.pem\ntimeout = 7\n"
        "trusted-host = two.example\nproxy = http://proxy.example:3128\n"
        "[download]\nextra-index-url = https://four.example/simple\n"
    )

    assert found == IndexConfig(
        indexes=("https://one.example/simple", "https://four.example/simple"),
        find_links=(tmp_path.as_uri(),),
        cert="/some/bundle.pem",
        proxy="http://proxy.example:3128",
        timeout=7.0,
        trusted_hosts=frozenset({"two.example"}),
    )


def test_variables_come_before_files(configured) -> None:
    text = "[global]\nindex-url = https://file.example/simple\n"

    assert configured(text).indexes == ("https://file.example/simple",)
    uv = {"UV_DEFAULT_INDEX": "https://uv.example/simple"}
    assert configured(text, **uv).indexes == ("https://uv.example/simple",)
    pip = {"PIP_INDEX_URL": "https://pip.example/simple"}
    assert configured(text, **uv, **pip).indexes == ("https://pip.example/simple",)


def test_the_built_in_default_is_the_one_of_pip(configured) -> None:
    code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("this Python has no pip to compare with")

    assert [url.rstrip("/") for url in configured().indexes] == [done.stdout.strip().rstrip("/")]


def test_no_index_leaves_the_links(configured, tmp_path: Path) -> None:
    found = configured(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), PIP_EXTRA_INDEX_URL="x")

    assert (found.indexes, found.find_links) == ((), (tmp_path.as_uri(),))


def test_a_broken_configuration_file_is_an_error(configured) -> None:
    with pytest.raises(PackageIndexError, match="Repair pip's configuration"):
        configured("index-url = without a section\n")


def test_the_variables_of_uv(spoken) -> None:
    spoken(
        ":env:.index-url='https://pip.example/simple'\n:env:.extra-index-url='https://b.example'"
    )

    found = read_config(
        {
            "UV_INDEX": "corp=https://c.example/simple https://d.example/simple?x=1",
            "UV_EXTRA_INDEX_URL": "https://e.example/simple https://b.example",
            "UV_FIND_LINKS": "/some/wheels, https://f.example/links.html",
        }
    )

    assert found.indexes == (
        "https://pip.example/simple",
        "https://b.example",
        "https://c.example/simple",
        "https://d.example/simple?x=1",
        "https://e.example/simple",
    )
    assert found.find_links == ("file:///some/wheels", "https://f.example/links.html")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("UV_DEFAULT_INDEX", "https://uv.example/simple"),
        ("UV_DEFAULT_INDEX", "corp=https://uv.example/simple"),
        ("UV_INDEX_URL", "https://uv.example/simple"),
    ],
)
def test_the_default_index_of_uv(spoken, variable: str, value: str) -> None:
    spoken("")

    assert read_config({variable: value}).indexes == ("https://uv.example/simple",)


def test_a_query_in_the_url_is_kept(spoken) -> None:
    spoken("")

    found = read_config({"UV_DEFAULT_INDEX": "https://uv.example/simple?token=a=b"})

    assert found.indexes == ("https://uv.example/simple?token=a=b",)


def test_the_default_is_read_from_the_help_of_pip_or_else_of_uv(spoken) -> None:
    pip_help = "  -i, --index-url <url>  Base URL of the index (default https://p.example/s). More"
    uv_help = "--default-index <D>\n  The URL (by default: <https://u.example/s>).\n --index <I>"

    spoken("", pip_help, uv_help)
    assert read_config({}).indexes == ("https://p.example/s",)
    spoken("", "nothing of interest", uv_help)
    assert read_config({}).indexes == ("https://u.example/s",)
    spoken("", "nothing of interest")
    with pytest.raises(PackageIndexError, match="Set PIP_INDEX_URL"):
        read_config({})


def test_without_any_pip_the_variables_are_read(spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken("global.index-url='https://never.example'")
    monkeypatch.setattr(pip_config, "_pip", lambda: None)

    found = read_config({"PIP_INDEX_URL": "https://a.example", "PIP_DEFAULT_TIMEOUT": "3"})

    assert (found.indexes, found.timeout) == (("https://a.example",), 3.0)
    with pytest.raises(PackageIndexError, match="neither pip nor uv"):
        read_config({})


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_certificates(spoken, variable: str) -> None:
    spoken("global.index-url='https://a.example'")
    assert read_config({variable: "/bundle"}).cert == "/bundle"
    spoken("global.index-url='https://a.example'\nglobal.cert='/own'")
    assert read_config({variable: "/bundle"}).cert == "/own"


def test_a_timeout_that_is_no_number(spoken) -> None:
    spoken("global.index-url='https://a.example'\n:env:.timeout='soon'")

    with pytest.raises(PackageIndexError, match="found 'soon'"):
        read_config({})


def test_what_pip_prints_is_understood_or_refused(spoken) -> None:
    spoken("just a line\nglobal.index-url=https://unquoted.example")

    with pytest.raises(PackageIndexError, match="unquoted"):
        read_config({})


def test_the_bundled_pip_serves_where_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pip" else original(name)
    )
    command = pip_config._pip()
    if command is None or "_bundled" not in command[-1]:
        pytest.skip("this Python bundles no pip")

    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)

    assert done.stdout.startswith("pip ")


def test_a_module_named_pip_that_no_import_made_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``find_spec`` raises ValueError for a loaded module whose ``__spec__`` is ``None``."""
    module = types.ModuleType("pip")
    assert module.__spec__ is None
    monkeypatch.setitem(sys.modules, "pip", module)
    command = pip_config._pip()
    assert command is None or command[1:] != ["-I", "-m", "pip"]


def test_what_pip_says_of_a_broken_file_is_shown_without_passwords(configured) -> None:
    with pytest.raises(PackageIndexError, match="config list to tell which package") as raised:
        configured("index-url = https://u:s3cret@one.example/simple\n")
    assert "one.example" in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_line_that_pip_prints_in_another_form_is_shown_without_passwords(spoken) -> None:
    spoken("global.index-url=https://u:s3cret@one.example/simple\n")
    with pytest.raises(PackageIndexError, match=r"found the line .global") as raised:
        read_config({})
    assert "s3cret" not in str(raised.value)


def test_pip_is_asked_once_for_many_releases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each time takes half a second; another variable may name another index."""
    asked: list[str] = []

    def read(environ: Mapping[str, str]) -> IndexConfig:
        asked.append(environ["PIP_INDEX_URL"])
        return IndexConfig((asked[-1],))

    monkeypatch.setattr(pip_config, "read_config", read)
    for url in ("https://a.example", "https://b.example"):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        assert [pip_config.configured().indexes for _ in range(3)] == [(url,)] * 3
    assert asked == ["https://a.example", "https://b.example"]
