"""What is predicted is what the real llama-server reports, for a plain and a windowed model."""

from __future__ import annotations

import pytest
from real_server import MIB, PLAIN, SERVER, WINDOWED, log_of, named, predicted, reported_mib

from edgeagent.core.kv import CacheLayout, Sharing
from edgeagent.core.kv_gguf import from_gguf
from edgeagent.models.gguf import read_model

pytestmark = pytest.mark.real_engine


@pytest.mark.parametrize("sharing", ["split", "unified"])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize(
    ("variable", "context"),
    # A context far beyond the window of 512 and the batch of 512, so that windows show.
    [(PLAIN, 1000), (WINDOWED, 4096)],
    ids=["plain", "windowed"],
)
def test_the_cache_and_the_output_are_what_the_engine_allocates(
    variable: str, context: int, slots: int, kv_type: str, sharing: Sharing
) -> None:
    server, model = named(SERVER), named(variable)
    layout = CacheLayout(slots, context, kv_type, sharing)
    expected, log = predicted(model, layout), log_of(server, model, layout)
    assert expected.kv_bytes / MIB == pytest.approx(reported_mib(log, "KV"), rel=0.02)
    assert expected.output_bytes is not None
    # The log has two decimals, and one row of the plain model's logits is 0.19 MiB.
    assert expected.output_bytes / MIB == pytest.approx(reported_mib(log, "output"), abs=0.01)


def test_windows_are_what_makes_the_windowed_model_small() -> None:
    facts = read_model(named(WINDOWED))
    found = from_gguf(facts.metadata).shape
    assert found is not None
    assert found.windows
    # 15 of 18 layers look back 512 tokens: a naive sum would be 72 MiB.
    assert predicted(named(WINDOWED), CacheLayout(1, 4096)).kv_bytes == 27 * MIB
