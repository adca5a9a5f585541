"""vllm-overlay: source patches for an installed vLLM, applied by their anchors."""

__version__ = "0.1.0"
