"""The commands of the proof: from a question to a report; nothing here prints."""
