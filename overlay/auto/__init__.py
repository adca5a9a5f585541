"""Patching in memory: what the plugin does inside each process of a running vLLM.

``switches`` reads the environment, ``activate`` decides, ``prepare`` plans, ``store`` keeps patched
text in a private cache, ``hook`` hands it to the import system, ``caches`` keeps vLLM's own caches
apart, ``evidence`` proves what runs, ``records`` and ``live`` tell of it, ``ranks`` compares
processes, ``speech`` logs, and ``process`` does all this in order.
"""
