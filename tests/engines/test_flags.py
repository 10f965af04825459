"""Which arguments each llama-server gets, from its own `--help`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_places import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.model import EngineConfig, EngineSpec
from edgeagent.engines.flags import CONSERVATIVE, KnownFlags, choose_flags, parse_help

NEW = ("b10434", "b11434")
ALL = (*NEW, "b4000-like")
CONFIG = EngineConfig(EngineSpec("e", "llamacpp", ("llama-server",), "m.gguf"), 4, 300, "on", "off")


def known(build: str) -> KnownFlags:
    return parse_help((FIXTURES / f"help-{build}.txt").read_text(encoding="utf-8"))


def argv(build: str, config: EngineConfig, sliding_window: str = "no") -> str:
    window = {"no": False, "yes": True, "unknown": None}[sliding_window]
    return " ".join(choose_flags(config, known(build), window).argv)


def kv(kv_type: str) -> EngineConfig:
    return replace(CONFIG, engine=replace(CONFIG.engine, kv_type=kv_type))


def extra(*args: str) -> EngineConfig:
    return replace(CONFIG, engine=replace(CONFIG.engine, args=args))


# 300 tokens a slot are padded to 512 by the engine anyway; four slots have 2048.
NEW_ARGV = (
    "-np 4 -c 2048 --no-kv-unified -fit off -ngl all -lm none -fa auto -ctk f16 -ctv f16 "
    "-ctxcp 0 --cache-ram 0 --cache-prompt --metrics --slots --no-ui --offline -lv 4"
)
OLD_ARGV = "-np 4 -c 2048 -ngl 999 --no-mmap -ctk f16 -ctv f16 --metrics --slots --no-webui -lv 4"


@pytest.mark.parametrize("build", NEW)
def test_a_present_build_gets_everything_pinned(build: str) -> None:
    assert argv(build, CONFIG) == NEW_ARGV


def test_an_old_build_gets_only_what_it_knows() -> None:
    assert argv("b4000-like", CONFIG) == OLD_ARGV


@pytest.mark.parametrize("build", ALL)
def test_a_chosen_flag_is_one_that_the_binary_lists(build: str) -> None:
    for config in (CONFIG, kv("q8_0"), replace(CONFIG, speculation="ngram", prefix_cache="off")):
        for word in choose_flags(config, known(build), None).argv:
            assert not word.startswith("-") or word in known(build)


@pytest.mark.parametrize("build", NEW)
def test_without_prefix_cache_it_is_switched_off_at_launch(build: str) -> None:
    words = argv(build, replace(CONFIG, prefix_cache="off"))
    assert words == NEW_ARGV.replace("--cache-prompt", "--no-cache-prompt")


def test_an_old_build_without_the_switch_is_asked_per_request_only() -> None:
    assert argv("b4000-like", replace(CONFIG, prefix_cache="off")) == OLD_ARGV


@pytest.mark.parametrize("build", NEW)
def test_a_quantised_cache_switches_flash_attention_on(build: str) -> None:
    words = argv(build, kv("q8_0"))
    assert "-fa on -ctk q8_0 -ctv q8_0" in words


def test_an_old_build_takes_flash_attention_without_a_value() -> None:
    assert "-fa -ctk q8_0 -ctv q8_0" in argv("b4000-like", kv("q8_0"))
    assert "-fa" not in argv("b4000-like", kv("bf16")).split()


@pytest.mark.parametrize("build", ALL)
def test_the_cpu_gets_no_layer_on_a_gpu(build: str) -> None:
    assert "-ngl 0" in argv(build, replace(CONFIG, device="cpu"))


def test_the_gpu_gets_all_layers() -> None:
    assert "-ngl all" in argv("b11434", replace(CONFIG, device="gpu"))
    assert "-ngl 999" in argv("b4000-like", replace(CONFIG, device="gpu"))


@pytest.mark.parametrize(
    ("window", "cache", "expected"),
    [("no", "on", 1), ("unknown", "on", 0), ("yes", "on", 0), ("yes", "off", 1)],
)
def test_checkpoints_stay_only_for_a_warm_sliding_window(
    window: str, cache: str, expected: int
) -> None:
    config = replace(CONFIG, prefix_cache="on" if cache == "on" else "off")
    assert argv("b11434", config, window).count("-ctxcp 0") == expected


@pytest.mark.parametrize("build", NEW)
def test_speculation_is_switched_on_by_its_type(build: str) -> None:
    assert "--spec-type ngram-mod" in argv(build, replace(CONFIG, speculation="ngram"))
    words = argv(build, replace(CONFIG, speculation="draft:/m/small.gguf"))
    assert "-md /m/small.gguf --spec-type draft-simple" in words


def test_speculation_that_the_binary_lacks_is_noted() -> None:
    choice = choose_flags(replace(CONFIG, speculation="ngram"), known("b4000-like"))
    assert " ".join(choice.argv) == OLD_ARGV
    assert any("--spec-type ngram-mod" in note for note in choice.notes)


def test_an_old_build_drafts_without_a_type() -> None:
    words = argv("b4000-like", replace(CONFIG, speculation="draft:/m/small.gguf"))
    assert "-md /m/small.gguf" in words
    assert "--spec-type" not in words


def test_the_operators_arguments_come_last_and_overriding_is_noted() -> None:
    choice = choose_flags(extra("-c", "8192", "-t", "2"), known("b11434"), None)
    assert choice.argv[-4:] == ("-c", "8192", "-t", "2")
    assert choice.notes == ("-c was pinned and is overridden by the operator's argument",)


@pytest.mark.parametrize(
    ("argument", "pinned"),
    [("--ctx-size", "-c"), ("--parallel", "-np"), ("--n-gpu-layers", "-ngl"), ("-kvu", None)],
)
def test_overriding_by_another_name_of_the_same_flag_is_noted(
    argument: str, pinned: str | None
) -> None:
    choice = choose_flags(extra(argument, "1"), known("b11434"), None)
    assert any(argument in note for note in choice.notes) is (pinned is not None)


def test_a_wrapper_without_help_gets_what_every_build_knows_and_notes_the_rest() -> None:
    choice = choose_flags(CONFIG, CONSERVATIVE, None)
    assert " ".join(choice.argv) == "-np 4 -c 2048 -ngl 999 -ctk f16 -ctv f16 --metrics"
    assert any("mapped" in note for note in choice.notes)


@pytest.mark.parametrize(
    "gone", ["--draft-max", "--draft-min", "--draft", "--draft-n", "--spec-ngram-size-n"]
)
def test_flags_that_are_listed_as_removed_do_not_count(gone: str) -> None:
    assert gone not in known("b11434")


def test_the_newer_build_has_lost_the_old_memory_flags() -> None:
    assert "--no-mmap" in known("b10434")
    assert "--no-mmap" not in known("b11434")
    assert "-lm" in known("b11434")


@pytest.mark.parametrize("build", ALL)
def test_words_in_descriptions_are_not_flags(build: str) -> None:
    text = (FIXTURES / f"help-{build}.txt").read_text(encoding="utf-8")
    flags = known(build)
    assert {"-m", "--model", "--host", "--port", "--metrics", "-h"} <= flags.names
    assert not any(name.isdigit() for name in flags.names)
    # Every name stands in an entry's head, so at the left margin or after other names there.
    heads = " ".join(line for line in text.splitlines() if line.startswith("-"))
    assert all(name in heads for name in flags.names)


def test_long_heads_without_room_for_a_description_keep_all_aliases() -> None:
    text = "--a-very-long-name, -x, --another-very-long-name-of-it VALUE\n      what --it does\n"
    assert parse_help(text).names == {"--a-very-long-name", "-x", "--another-very-long-name-of-it"}


def test_a_flag_named_in_a_description_on_the_same_line_does_not_count() -> None:
    assert parse_help("--one N   see --two instead\n").names == {"--one"}


def test_nothing_is_known_of_an_empty_help() -> None:
    assert parse_help("").names == frozenset()


@given(st.text(alphabet="-ab \n,=N", max_size=200))
def test_any_text_is_read_as_help_without_failing(text: str) -> None:
    assert all(name.startswith("-") for name in parse_help(text).names)


@given(st.integers(1, 64), st.integers(1, 200_000))
def test_every_slot_holds_what_was_asked(slots: int, context: int) -> None:
    words = choose_flags(replace(CONFIG, slots=slots, context_per_slot=context), CONSERVATIVE).argv
    total = int(words[words.index("-c") + 1])
    assert total % slots == 0
    assert context <= total // slots < context + 256
    assert (total // slots) % 256 == 0
