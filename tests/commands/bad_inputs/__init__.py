"""The table of bad inputs: what each is, how the command ends, and a word that it has to say.

Rows are functions that make the input and return the arguments; ``row`` puts them into ``ROWS``.
The groups are those of the review that asked for the table: A targets, B damaged installations,
C the environment, D the plugin's settings, F patches folders, G versions,
H changes, sessions and features that nobody would write.  Group E (processes and
disks) needs processes of its own: it is in test_bad_processes.py, with limits and outputs that
cannot be written, in test_killed.py, test_orphans.py, test_interrupted.py and tests/on_disk.
"""

from __future__ import annotations

from tests.commands.bad_inputs import changes, environment, installations, patches_folders, targets
from tests.commands.bad_inputs.table import ROWS, Row, World

__all__ = [
    "ROWS",
    "Row",
    "World",
    "changes",
    "environment",
    "installations",
    "patches_folders",
    "targets",
]
