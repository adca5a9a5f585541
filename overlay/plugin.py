"""The plugin that vLLM loads in each of its processes (entry point of ``vllm.general_plugins``).

Nothing happens at import, since vLLM swallows what a plugin raises while it is imported; the
function does the work, and what it raises stops the process.  It is a module of its own, small as
it is: the entry point names it, and installed metadata must stay true when other modules move.
"""


def register() -> None:
    """Patch this process, or verify that it is patched; see ``overlay.in_memory.plugin``."""
    from overlay.in_memory.plugin import start

    start()
