"""Change a target on disk, all or nothing, whatever happens meanwhile.

``ledger`` records what was done and ``disk_state`` compares it with the files; ``changes`` decides
which writes are needed and orders them; ``transaction`` applies and reverts, ``journal`` has its
steps and the lock that keeps processes apart, ``recovery`` ends what was interrupted, and ``files``
holds every system call that writes.
"""
