"""What the commands of the proof answer, as text, JSON and a page of HTML."""
