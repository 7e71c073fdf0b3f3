"""The cache that follows tensors, without kernels: keys, versions, checksums, eviction, lifetimes, threads."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from spconv_compiler.arrays import as_array
from spconv_compiler.tensor_cache import TensorCache


class Value:
    """Something that can be weakly referenced."""


def digest(array: Any) -> int:
    return hash(np.asarray(array.source).tobytes())


def look(cache: TensorCache[Value], source: Any, extra: Any = None) -> Value:
    return cache.get(source, as_array(source, "x"), extra, digest, Value)


def test_values_are_kept_by_what_they_depend_on() -> None:
    cache, x = TensorCache[Value](8), torch.zeros(3)
    assert look(cache, x, "a") is look(cache, x, "a")
    assert look(cache, x, "a") is not look(cache, x, "b")
    assert len(cache) == 2


def test_the_least_recently_used_goes_first() -> None:
    cache, tensors = TensorCache[Value](2), [torch.zeros(3) for _ in range(3)]
    first, second = look(cache, tensors[0]), look(cache, tensors[1])
    assert look(cache, tensors[0]) is first
    look(cache, tensors[2])
    assert look(cache, tensors[0]) is first
    assert look(cache, tensors[1]) is not second


def test_a_cache_holds_at_least_one() -> None:
    with pytest.raises(ValueError, match="size is 0"):
        TensorCache[Value](0)


def test_nothing_is_kept_of_a_failed_build() -> None:
    cache, x = TensorCache[Value](8), torch.zeros(3)

    def fail() -> Value:
        raise MemoryError

    with pytest.raises(MemoryError):
        cache.get(x, as_array(x, "x"), None, digest, fail)
    assert len(cache) == 0
    kept = look(cache, x)
    x.numpy()[0] = 1
    with pytest.raises(MemoryError):
        cache.get(x, as_array(x, "x"), None, digest, fail)
    x.numpy()[0] = 0
    assert look(cache, x) is kept, "what was right before is right again"


def test_the_value_of_a_dead_owner_is_freed() -> None:
    cache, x = TensorCache[Value](8), torch.zeros(3)
    value = weakref.ref(look(cache, x))
    del x
    assert value() is None


def test_a_cache_may_die_before_its_tensors() -> None:
    cache, x = TensorCache[Value](8), torch.zeros(3)
    look(cache, x)
    del cache
    gc.collect()
    del x


def test_the_checksum_sees_what_no_version_shows() -> None:
    cache, x = TensorCache[Value](8), torch.zeros(3)
    first, version = look(cache, x), x._version
    x.data[1] = 5
    assert x._version == version
    assert look(cache, x) is not first


def test_the_version_counts_even_when_the_checksum_is_blind() -> None:
    cache, x = TensorCache[Value](8), torch.zeros(3)
    array = as_array(x, "x")
    first = cache.get(x, array, None, lambda _: 0, Value)
    x += 1
    assert cache.get(x, array, None, lambda _: 0, Value) is not first


def test_threads_may_use_one_cache() -> None:
    cache, tensors, failures = TensorCache[Value](5), [torch.zeros(3) for _ in range(8)], []

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).integers(0, 8, 400)
        try:
            for index in order:
                look(cache, tensors[index])
                look(cache, torch.ones(2))  # dies at once: entries are dropped while others look
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(cache) <= 5
