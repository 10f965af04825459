"""Recurrent, hybrid and latent models: predicted as the real llama-server allocates them."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_server import MIB, SERVER, log_of, named, predicted, reported_mib
from tiny_models import KINDS, tiny

from edgeagent.core.kv import CacheLayout

pytestmark = pytest.mark.real_engine

HALF_A_DIGIT = 0.006
"""The log has two decimals."""


@pytest.mark.parametrize("slots", [1, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_cache_and_state_are_what_the_engine_allocates(
    tmp_path: Path, kind: str, slots: int
) -> None:
    model = tmp_path / f"{kind}.gguf"
    model.write_bytes(tiny(kind))
    layout = CacheLayout(slots, 1024)
    expected, log = predicted(model, layout), log_of(named(SERVER), model, layout)
    for name, amount in (("KV", expected.kv_bytes), ("RS", expected.state_bytes)):
        assert (f"{name} buffer size" in log) == (amount > 0)
        if amount:
            assert reported_mib(log, name) == pytest.approx(amount / MIB, abs=HALF_A_DIGIT)


def test_the_tiny_models_have_what_they_are_named_for(tmp_path: Path) -> None:
    found = {}
    for kind in KINDS:
        (tmp_path / kind).write_bytes(tiny(kind))
        found[kind] = predicted(tmp_path / kind, CacheLayout(64, 1024))
    # 5 layers x 4 bytes x 32 remembered tokens x 64 wide, and 2 heads x 2 x 32 x 2 bytes a token
    assert found["hybrid"].state_bytes == 64 * 40_960
    assert found["hybrid"].kv_bytes == 64 * 1024 * 256
    # 4 layers x 4 bytes x (3 x 128 + 16 x 128)
    assert found["recurrent"].state_bytes == 64 * 38_912
    assert found["recurrent"].kv_bytes == 0
    # 3 layers x 96 elements x 2 bytes a token
    assert found["latent"].kv_bytes == 64 * 1024 * 576
