"""Authoring: turn changes into features, and carry features to other releases."""
