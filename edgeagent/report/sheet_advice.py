"""What can be done about each finding?

The one place of this advice inside the program; a test keeps docs/findings.md in step with it.
"""

from __future__ import annotations

from collections.abc import Mapping

ADVICE: Mapping[str, str] = {
    "failed_requests": (
        "read error_detail in requests.jsonl and the engine's log; lower the concurrency, "
        "or raise --timeout when the kind is deadline"
    ),
    "engine_died": (
        "its last words are in the text and in engine-*.log; often memory: fewer slots, a "
        "shorter context"
    ),
    "cell_deadline": "fewer requests, shorter outputs, or a longer limit",
    "too_few_samples": "--requests 20 or more; 100 for a p99",
    "no_steady_window": "more --requests",
    "cache_contradicts_label": (
        "cold: look for another client of this server; warm: see whether prefix reuse is "
        "on, and whether slots are kept between requests"
    ),
    "cache_unproven": (
        'use an engine, or a version, that does; until then "cold" and "warm" are assumptions'
    ),
    "token_count_mismatch": "tokens per second are uncertain; report it with the raw file",
    "chunk_counted": "tell the engine to report usage while streaming, if it can",
    "prompt_size_approximate": "compare prompt_tokens, which is the engine's count",
    "stamps_fallback": "measure over plain HTTP on the same box",
    "shared_reads": "gaps around them are left out of itl_s; look at gap_max_s and tpot_s instead",
    "clock_stepped": "measure again once time is synchronised",
    "late_samples": "peaks may be missed; leave a core to the agent",
    "client_bound": "fewer simultaneous requests, or leave a core to the agent",
    "inflight_below_concurrency": (
        "look at client and at failed requests: the load is not the one it says"
    ),
    "queueing_beyond_slots": (
        "--slots; until then time to first token includes the wait for a slot (headers_s "
        "shows it for llama-server)"
    ),
    "engine_differs_from_request": (
        "read the text; correct the plan, the engine's arguments, or its build (a GPU "
        "that was asked for and is not used)"
    ),
    "speculation_never_drafted": "another draft model, longer outputs, or leave it off",
    "preempted": "a larger pool, a shorter context, or fewer simultaneous requests",
    "killed_by_guard": (
        "fewer slots, a shorter context, a smaller cache type (--kv-type), or a box with "
        "more memory"
    ),
    "device_mismatch": (
        "look at its log: a build without GPU support, a driver that was not ready, a "
        "sandbox without the device"
    ),
    "memory_not_resolved": (
        "more starts (--memory-repeats), slot counts further apart, a longer context"
    ),
    "memory_unexplained": (
        "look at what the engine reports part by part (memory[].reported); tell us the model"
    ),
    "co_tenant": (
        "end the other program, or take the figures by process and leave those of the device"
    ),
    "engine_memory_grows": (
        "watch it over a longer run: the box may fill up; report it to the engine's makers"
    ),
    "throttled": "cool it, give it a stronger supply, or let it rest with a longer cool-down",
    "memory_pressure": "end what else needs memory, or use fewer slots or a shorter context",
    "power_mode_changed": "set it once, before measuring",
    "power_saver": "set it to performance, or quote the numbers with it",
    "power_mode_limited": "quote the numbers with it",
    "foreign_cpu": "end them, or read the numbers as of a shared box",
    "foreign_gpu": "end it, or read the numbers as of a shared GPU",
    "hot_start": "a longer --cooldown, better cooling",
    "host_tainted": "end what else needs memory",
    "canary_drift": (
        "all numbers of the run are in doubt: look for heat, a power limit, another load, "
        "and measure again"
    ),
    "unstable_over_repeats": "look for other work on the box, repeat more often",
    "trend_over_repeats": (
        "the box warms up, fills up, or another load grows: a longer warm-up or cool-down"
    ),
    "first_repeat_stands_out": "warm up longer (--warmup), or leave it out",
}
"""By the code of the finding."""

UNKNOWN = "no advice is known for this code: it is of another version"
