"""The commands of a patch's life: from a ``Request`` to a ``Report``; nothing here prints."""
