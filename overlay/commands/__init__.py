"""One module a command: from a ``Request`` to a ``Report``; nothing here prints."""
