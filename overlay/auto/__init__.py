"""Patching in memory: what the plugin does inside each process of a running vLLM.

``switches`` reads the environment, ``store`` keeps patched text in a private cache, ``hook`` hands
it to the import system, ``evidence`` proves what runs and records it, ``ranks`` compares processes.
"""
