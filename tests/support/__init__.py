"""What several test modules build on."""
