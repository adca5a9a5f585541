"""The command line and the fake installation of the core's command tests."""

from tests.commands.conftest import cli, site

__all__ = ("cli", "site")
