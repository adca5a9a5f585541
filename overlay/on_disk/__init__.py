"""Change a target on disk, all or nothing, whatever happens meanwhile.

``ledger`` records what was done and ``disk_state`` compares it with the files; ``changes`` decides
which writes are needed and ``writes`` orders them; ``transaction`` applies and reverts,
``recovery`` ends what was interrupted, ``lock`` keeps processes apart, and ``files`` holds every
system call that writes.
"""
