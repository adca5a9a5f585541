"""What the commands of a patch's life answer, as text and as JSON."""
