"""Authoring: turn changes into features, and carry features to other releases.

What a user has to mend is an ``OverlayError`` (``UsageError`` among them), or an ``OSError`` of
what cannot be written: it goes up to the command line, which prints it.  Docstrings name those
that a caller handles, or that leave something behind.

Parameters that mean one thing everywhere: ``context``, how many lines of context the hunks keep
(``None``: as many as they need); ``earlier``, the features that are applied before one, in order;
``files``, path below a feature's folder -> bytes; ``names``, the known releases, oldest first;
``patches``, the folder that a feature is written to; ``syntax``, answers about texts, which may be
remembered from elsewhere; ``texts``, the releases that a feature may serve; ``today``,
``YYYY-MM-DD``; ``update``, replace a feature of that id.
"""
