"""Proof on the user's own machine: models with a known answer, engine runs, and timing.

No module here imports vLLM or PyTorch before it is asked to: what starts an engine runs where there
is neither.
"""
