"""The commands of the core: from a ``Request`` to a ``Report``; nothing here prints.

A module has a command's name, and its report where no other command has that; beside them stands
what several commands share (request, scene, assess, target_report, required, ways_on).
"""
