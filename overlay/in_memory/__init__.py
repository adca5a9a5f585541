"""Patch a process of vLLM while it imports the patched modules.

``plugin`` runs the start of a process, ``decision`` decides and turns off what is to be off;
``preparation`` plans, ``module_cache`` keeps patched text in a private cache, ``import_hook`` hands
it to the import system, ``import_watch`` waits for modules that stay as they are, ``vllm_caches``
keeps vLLM's own caches apart, ``verification`` compares what runs with the plan, ``ranks`` compares
the ranks of an engine, and ``log`` reaches vLLM's log.
"""
