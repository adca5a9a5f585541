"""TARGET: what the user names, and the tree of files that it names.

A target is nothing (the vLLM that this Python would import), a folder that holds ``vllm/``, a wheel
or sdist file, or a release, which is fetched from the configured package index.  Nothing of a
target is ever executed.
"""
