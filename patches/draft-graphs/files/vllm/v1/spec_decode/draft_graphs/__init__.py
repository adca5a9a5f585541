# SPDX-License-Identifier: Apache-2.0
"""The drafter of speculative decoding in full CUDA graphs, on vLLM's V1 model runner.

vLLM calls `hooks`, the methods of `draft_graphs.DraftGraphs`, and `keys`.

Import the submodules by name: this file imports nothing, because vLLM's dispatcher imports `keys`
before most of vLLM exists.
"""
