"""Fixtures of this folder: the command line, and a small installation of vLLM."""

from tests.commands.conftest import cli, site

__all__ = ["cli", "site"]
