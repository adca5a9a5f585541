"""Patching in memory: what the plugin does inside each process of a running vLLM.

``switches`` reads the environment, ``activate`` decides, ``prepare`` plans, ``store`` keeps patched
text in a private cache, ``hook`` hands it to the import system, ``watching`` waits for modules that
stay as they are, ``caches`` keeps vLLM's own caches apart, ``evidence`` proves what runs,
``records`` and ``live`` tell of it, ``ranks`` compares processes when ``rank_watch`` sees their
groups made, ``speech`` logs, and ``process`` does all this in order.
"""
