"""Plugins and settings of the whole test suite."""

from hypothesis import settings

pytest_plugins = ["engine_fixtures", "pytester"]

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
