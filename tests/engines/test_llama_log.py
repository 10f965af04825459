"""llama-server's own books: every buffer with its device, the draft model's apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.model import ServerFacts
from edgeagent.engines.llama_log import MIB, LogBuffer, buffers, projected_bytes, with_log

NOTHING = ServerFacts()

# Cut from logs of b10434.
CPU_ONLY = """\
0.00.079.623 I load_tensors: offloaded 31/31 layers to GPU
0.00.079.627 I load_tensors:          AMX model buffer size =    95.34 MiB
0.00.079.627 I load_tensors:          CPU model buffer size =    28.82 MiB
0.00.214.536 I llama_context: kv_unified            = false
0.00.214.638 I llama_context:        CPU  output buffer size =     0.75 MiB
0.00.214.805 I llama_kv_cache:        CPU KV buffer size =    45.00 MiB
0.00.214.806 I llama_kv_cache: size =   45.00 MiB (  1024 cells,  30 layers,  2/2 seqs), K (f16)
0.00.236.980 I sched_reserve:        CPU compute buffer size =    14.01 MiB
"""
DRAFT = """\
0.00.528.057 I load_tensors: offloaded 7/13 layers to GPU
0.00.528.059 I load_tensors:   CPU_Mapped model buffer size =    10.00 MiB
0.00.622.391 I llama_context: kv_unified            = false
0.00.622.456 I llama_context:        CPU  output buffer size =     0.38 MiB
0.00.622.566 I llama_kv_cache:        CPU KV buffer size =     5.00 MiB
0.00.651.750 I sched_reserve:        CPU compute buffer size =     2.00 MiB
"""
HYBRID = """\
0.00.079.627 I load_tensors:        CUDA0 model buffer size =  1024.00 MiB
0.00.079.627 I load_tensors:   CPU_Mapped model buffer size =    64.00 MiB
0.00.214.638 I llama_context:  CUDA_Host  output buffer size =     1.00 MiB
0.00.214.700 I llama_kv_cache_iswa: creating non-SWA KV cache, size = 4096 cells
0.00.214.805 I llama_kv_cache:      CUDA0 KV buffer size =    32.00 MiB
0.00.214.810 I llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells
0.00.214.815 I llama_kv_cache:      CUDA0 KV buffer size =     8.00 MiB
0.00.214.820 I llama_memory_recurrent:      CUDA0 RS buffer size =     2.50 MiB
0.00.236.980 I sched_reserve:      CUDA0 compute buffer size =   100.00 MiB
0.00.236.981 I sched_reserve:  CUDA_Host compute buffer size =     9.00 MiB
0.00.336.980 I sched_reserve:      CUDA0 compute buffer size =   120.00 MiB
"""
TABLE = """\
0.1 I common_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |
0.1 I common_memory_breakdown_print: |   - Host               |                   88 =    28 +      45 +      14                |
0.1 I common_memory_breakdown_print: |   - AMX                |                   95 =    95 +       0 +       0                |
"""  # noqa: E501  # because the log's lines are that long
GPU_TABLE = """\
0.1 I common_memory_breakdown_print: | memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |
0.1 I common_memory_breakdown_print: |   - CUDA0 (RTX 4090)   | 24564 = 1000 + (20000 = 15000 +    4000 +    1000) +        3564 |
0.1 I common_memory_breakdown_print: |   - Host               |                  312 =   300 +       0 +      12                |
"""  # noqa: E501  # because see above


def test_layers_are_not_on_a_gpu_when_all_weights_lie_in_host_memory() -> None:
    facts = with_log(NOTHING, CPU_ONLY)
    assert (facts.offloaded_layers, facts.total_layers) == (0, 31)
    assert dict(facts.details) == {
        "kv_unified": "false",
        "kv_buffer_mib": 45.0,
        "compute_buffer_mib": 14.01,
        "output_buffer_mib": 0.75,
        "model_buffer_mib": 124.16,  # 95.34 + 28.82
        "buffers": [
            {"kind": "model", "device": "AMX", "bytes": 99_971_236},  # 95.34 MiB
            {"kind": "model", "device": "CPU", "bytes": 30_219_960},
            {"kind": "output", "device": "CPU", "bytes": 786_432},
            {"kind": "kv", "device": "CPU", "bytes": 45 * MIB},
            {"kind": "compute", "device": "CPU", "bytes": 14_690_550},
        ],
    }


@pytest.mark.parametrize("buffer", ["CUDA0", "Vulkan0", "MTL0"])
def test_layers_are_on_the_gpu_when_weights_lie_there(buffer: str) -> None:
    facts = with_log(NOTHING, CPU_ONLY.replace("     AMX", buffer).replace("31/31", "20/31"))
    assert (facts.offloaded_layers, facts.total_layers) == (20, 31)


def test_pinned_host_memory_is_not_the_gpu() -> None:
    facts = with_log(NOTHING, CPU_ONLY.replace("AMX", "CUDA_Host"))
    assert facts.offloaded_layers == 0


def test_a_log_without_memory_lines_leaves_unknown_what_is_unknown() -> None:
    facts = with_log(NOTHING, "hello\n")
    assert facts == NOTHING
    assert facts.offloaded_layers is None


def test_a_log_that_knows_no_gpu_is_kept_as_such() -> None:
    log = "0.00.001.000 W warning: no usable GPU found, --gpu-layers option will be ignored\nx\n"
    said = with_log(NOTHING, log).details["no_gpu"]
    assert said == "no usable GPU found, --gpu-layers option will be ignored"


def test_a_draft_model_follows_the_model_and_is_marked() -> None:
    facts = with_log(NOTHING, CPU_ONLY.replace("     AMX", "CUDA0") + DRAFT)
    found = facts.details["buffers"]
    assert isinstance(found, list)
    assert [b.get("of") for b in found] == [None] * 5 + ["draft"] * 4
    # The model's own offload counts, not the draft's.
    assert (facts.offloaded_layers, facts.total_layers) == (31, 31)
    assert facts.details["kv_buffer_mib"] == 50.0


def test_a_draft_that_shares_the_weights_begins_with_its_output_buffer() -> None:
    own = "\n".join(line for line in DRAFT.splitlines() if "model buffer" not in line)
    assert [b.draft for b in buffers(CPU_ONLY + own)] == [False] * 5 + [True] * 3


def test_every_kind_and_device_is_told_apart_and_a_reservation_made_anew_replaces_the_first() -> (
    None
):
    assert buffers(HYBRID) == (
        LogBuffer("model", "CUDA0", 1024 * MIB),
        LogBuffer("model", "CPU_Mapped", 64 * MIB),
        LogBuffer("output", "CUDA_Host", MIB),
        LogBuffer("kv", "CUDA0", 32 * MIB),
        LogBuffer("kv", "CUDA0", 8 * MIB),
        LogBuffer("recurrent", "CUDA0", 5 * MIB // 2),
        LogBuffer("compute", "CUDA_Host", 9 * MIB),
        LogBuffer("compute", "CUDA0", 120 * MIB),
    )


@pytest.mark.parametrize(
    ("log", "mib"),
    [
        ("", None),
        (CPU_ONLY, None),
        (
            "I common_params_fit_impl: projected to use 362 MiB of host memory vs. 24105 MiB of "
            "total host memory\n",
            362,
        ),
        (TABLE, 88 + 95),
        (GPU_TABLE, 20_000 + 312),
        (GPU_TABLE + TABLE, 88 + 95),  # the last table counts
        ("projected to use 362 MiB of host memory\n" + TABLE, 183),
        ("projected to use 362 MiB of host memory\n| memory breakdown [MiB] |\n", 362),
    ],
)
def test_what_the_engine_projects_is_read(log: str, mib: int | None) -> None:
    assert projected_bytes(log) == (None if mib is None else mib * MIB)


lines = st.sampled_from([*CPU_ONLY.splitlines(), *DRAFT.splitlines(), *GPU_TABLE.splitlines()])


@given(st.lists(lines | st.text(max_size=80), max_size=30))
def test_any_log_is_read_and_never_counts_a_buffer_twice(parts: list[str]) -> None:
    log = "\n".join(parts)
    facts = with_log(NOTHING, log)
    assert len(buffers(log)) <= log.count("buffer size")
    assert (facts.offloaded_layers is None) == (facts.total_layers is None)
    assert (projected_bytes(log) or 0) >= 0
