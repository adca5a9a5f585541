"""The public Python API: its examples run, its promise is kept, and the command line uses it."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import overlay
from overlay import api
from tests.support import fake_vllm
from tests.support.cli import Cli, digest, drift

FUNCTIONS = ("apply", "check", "diff", "features", "processes", "revert", "status")
PACKAGE = Path(overlay.__file__).parent


def test_the_names_of_the_package_are_those_of_the_api() -> None:
    assert set(FUNCTIONS) <= set(api.__all__)
    assert overlay.__all__ == api.__all__ == sorted(api.__all__)
    stub = (PACKAGE / "__init__.pyi").read_text()
    assert re.findall(r"^from overlay\.api import (\w+) as \1$", stub, re.MULTILINE) == api.__all__
    for name in api.__all__:
        assert getattr(overlay, name) is not None
    assert set(api.__all__) <= set(dir(overlay))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = overlay.nonsense  # type: ignore[attr-defined]  # the name is unknown on purpose


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_has_an_example_that_runs(
    cli: Cli, site: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other vLLMs of this user may run on the machine of the tests.
    monkeypatch.setattr("overlay._processes.live.processes", lambda: ())
    function = getattr(api, name)
    (example,) = doctest.DocTestFinder(recurse=False).find(
        function, name, globs={"overlay": overlay, "site": site}
    )
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_parameter_is_typed_and_described(name: str) -> None:
    function = getattr(api, name)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert f":param {parameter.name}:" in function.__doc__ or name == "features"
    assert ":raises OverlayError:" in function.__doc__


def test_a_plain_import_brings_in_nothing_of_the_package() -> None:
    code = "import sys, overlay; print(*(m for m in sys.modules if m.startswith('overlay')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert done.stdout.split() == ["overlay"]


def test_the_package_shows_the_signatures_of_its_functions() -> None:
    for name in FUNCTIONS:
        assert inspect.signature(getattr(overlay, name)) == inspect.signature(getattr(api, name))
    assert [*inspect.signature(overlay.features).parameters] == ["patches"]


def test_a_refusal_is_an_exception_that_holds_the_report(cli: Cli, site: Path) -> None:
    drift(site)
    before = digest(site)
    assert overlay.check(site).exit == 1
    for function in (overlay.apply, overlay.diff):
        with pytest.raises(overlay.PatchRefused) as refused:
            function(site)
        assert refused.value.report.exit == 1
        assert str(refused.value) == refused.value.report.verdict
        assert isinstance(refused.value, overlay.OverlayError)
    assert digest(site) == before


def test_what_cannot_be_answered_is_an_error(cli: Cli, tmp_path: Path) -> None:
    for function in (overlay.check, overlay.apply, overlay.revert, overlay.status, overlay.diff):
        with pytest.raises(overlay.OverlayError, match="no-such"):
            function(tmp_path / "no-such")
    with pytest.raises(overlay.OverlayError, match="no-such"):
        overlay.features([tmp_path / "no-such"])


def test_nothing_of_the_environment_or_of_a_project_is_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAY_PATCHES", str(cli.team))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "overlay.toml").write_text('patches = ["team"]\n')
    assert [feature.id for feature in overlay.features()] == ["demo"]
    assert [feature.id for feature in overlay.features([cli.team])] == ["demo", "team-capture"]


def test_one_feature_goes_and_the_others_stay(cli: Cli, tmp_path: Path) -> None:
    one = fake_vllm.site_packages(tmp_path / "one")
    overlay.apply(one, patches=[cli.team])
    report = overlay.revert(one, only=["demo"], patches=[cli.team])
    assert report.target.applied == ("team-capture",)
