"""Greedy verification beside the rejection sampler of a real vLLM and its kernels for CPUs."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings

vllm: Any = pytest.importorskip("vllm")  # in the environment of the engine

from vllm.platforms import current_platform

from tests.greedy_verification.test_greedy_verification import FILE, must_not_run
from tests.support.beside_vllm import put_beside_vllm
from tests.support.rejection_batches import (
    Batch,
    batches,
    plain,
    to_verify,
)
from tests.support.sampling_worlds import (
    REJECTION,
    SAMPLER,
    Modules,
    registered,
)

pytestmark = [pytest.mark.engine, pytest.mark.network]


@functools.cache
def installed() -> Any:
    """The feature's module, whose imports find the vLLM that is installed."""
    put_beside_vllm("greedy-verification")
    module = ModuleType("greedy_verification")
    with registered(module):
        exec(compile(FILE.read_text(), FILE, "exec"), vars(module))
    return module


@pytest.fixture(scope="module", autouse=True)
def _kernels_for_cpus() -> None:
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()


@settings(max_examples=200, deadline=None)
@given(batch=batches())
def test_it_samples_what_the_installed_vllm_samples(batch: Batch) -> None:
    here = Modules()
    sampler = here.module(SAMPLER).Sampler(batch.logprobs_mode)
    rejection = here.module(REJECTION).RejectionSampler(sampler)
    given = to_verify(here, batch)
    expected = rejection(given, None, batch.logits, plain(here, batch)).sampled_token_ids
    sampler.forward, rejection.verifies_greedily = must_not_run, True
    found = installed().verify_greedily(rejection, given, batch.logits, plain(here, batch))
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()
