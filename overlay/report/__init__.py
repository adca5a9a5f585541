"""Reports: what a command found and did, and its readers: text and JSON."""
