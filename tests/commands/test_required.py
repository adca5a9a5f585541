"""``--require``: what an image build or a probe relies on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import fake_vllm
from tests.support.cli import Cli, digest
from tests.support.patches import write_feature


def test_status_ends_with_1_until_it_is_applied(cli: Cli, site: Path) -> None:
    assert cli("status", site).exit == 0
    missing = cli("status", "--require", "demo", site)
    assert missing.exit == 1
    assert "demo is required and not applied" in missing.last
    assert f"run `overlay apply --feature demo {site}`" in missing.out
    cli("apply", site)
    assert cli("status", "--require", "demo", "--require", "all", site).exit == 0


def test_apply_ends_with_1_where_it_left_a_required_feature_out(cli: Cli, tmp_path: Path) -> None:
    old = fake_vllm.site_packages(tmp_path / "old", version="0.15.1")
    assert cli("apply", old).exit == 0
    for options in ([], ["--dry-run"]):
        for name in ("demo", "all"):
            refused = cli("apply", *options, "--require", name, old)
            assert (refused.exit, "demo is required and not applied" in refused.last) == (1, True)


def test_apply_of_one_requires_another(cli: Cli, site: Path) -> None:
    team = ("--patches", cli.team)
    both = cli(*team, "apply", "--feature", "demo", "--require", "all", site)
    assert both.exit == 1
    assert "But team-capture is required and not applied" in both.last
    assert cli(*team, "apply", "--require", "all", site).exit == 0
    assert cli(*team, "apply", "--dry-run", "--require", "all", site).exit == 0


def test_a_dry_run_counts_what_it_would_apply(cli: Cli, site: Path) -> None:
    before = digest(site)
    assert cli("apply", "--dry-run", "--require", "demo", site).exit == 0
    assert digest(site) == before


def test_upstreamed_satisfies_and_inapplicable_does_not_count_for_all(cli: Cli, site: Path) -> None:
    test = '[[upstreamed]]\npath = "vllm/v1/worker/gpu_model_runner.py"\n'
    test += 'scope = "GPUModelRunner"\ncontains = "captured = 0"\n'
    write_feature(cli.shipped, {}, id="merged", toml=test)
    write_feature(cli.shipped, {"files/vllm/new.py": ""}, id="later", releases="0.30.0..0.33.0")
    assert cli("apply", site).exit == 0
    assert cli("status", "--require", "merged", site).exit == 0
    assert cli("status", "--require", "all", site).exit == 0
    assert cli("status", "--require", "later", site).exit == 1


@pytest.mark.parametrize("command", ["status", "apply"])
def test_an_unknown_id_is_a_usage_error(cli: Cli, site: Path, command: str) -> None:
    result = cli(command, "--require", "demos", site)
    assert result.exit == 2
    assert "--require demos: expected all or one of demo" in result.err
    assert not (site / ".vllm-overlay").exists()
