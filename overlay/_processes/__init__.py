"""Processes: what each running process of vLLM says it runs."""
