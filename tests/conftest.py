"""Plugins of the whole test suite."""

pytest_plugins = ["engine_fixtures", "pytester"]
