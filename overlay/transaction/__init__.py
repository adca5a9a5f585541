"""How a target is changed: all or nothing, whatever happens meanwhile.

``commit`` applies and reverts, ``recovery`` ends what was interrupted, ``ledger`` remembers what
was done, ``lock`` keeps processes apart, ``files`` holds every system call that writes, and
``reading`` those that only read.
"""
