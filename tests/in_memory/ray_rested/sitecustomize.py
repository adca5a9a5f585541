"""Imported by every Python of a Ray cluster."""

import rested_at_start  # noqa: F401 - for what it does
