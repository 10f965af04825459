"""llama-server: found, started, asked, believed or refused, and quoted when it fails."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from engine_places import MODEL, SERVER, llama, no_hash, place, real_config, weights

from edgeagent.core.model import EngineConfig, EngineSpec, ServerFacts
from edgeagent.engines import llamacpp
from edgeagent.engines.fake import COMMAND, FakeEngine
from edgeagent.engines.llama_log import with_log
from edgeagent.engines.llamacpp import LlamaCppEngine, believed, find_program
from edgeagent.engines.process import last_words
from edgeagent.errors import DeviceMismatchError, EngineError, UsageError
from edgeagent.ports import Ask, Prompt

SPEC = EngineSpec("e", "llamacpp", ("llama-server",), "m.gguf")
CONFIG = EngineConfig(SPEC, 4, 512, "on", "off")
GOOD = ServerFacts(slots=4, context_per_slot=512)


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


# ------------------------------------------------------------------------- its last words

# Cut from the logs of b10434; after the cause it always writes several lines that say less.
TRUNCATED = """\
0.00.004.936 W srv  llama_server: -----------------
0.00.016.386 E llama_model_load: error loading model: tensor 'blk.11.ffn_up.weight' data is not within the file bounds, model is corrupted or incomplete
0.00.016.416 E llama_model_load_from_file_impl: failed to load model
0.00.016.437 E srv    load_model: failed to load model, '/m.gguf'
0.00.016.812 E srv  llama_server: exiting due to model loading error
"""  # noqa: E501  # because the log's lines are that long
TAKEN = """\
0.00.003.564 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18942
0.00.003.633 E srv  llama_server: exiting due to HTTP server error
"""
NO_MEMORY = """\
0.04.015.801 E ggml_aligned_malloc: insufficient memory (attempted to allocate 878906.25 MB)
0.04.015.829 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 92160
0.04.056.412 E llama_init_from_model: failed to initialize the context: failed to allocate buffer
0.04.057.205 E srv  llama_server: exiting due to model loading error
"""
BAD_VALUE = """\
error while handling argument "-c": stoi

usage:
-c,    --ctx-size N                     size of the prompt context

to show complete usage, run with -h
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            TRUNCATED,
            "llama_model_load: error loading model: tensor 'blk.11.ffn_up.weight'",
        ),
        (TAKEN, "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18942"),
        (NO_MEMORY, "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer"),
        (BAD_VALUE, 'error while handling argument "-c": stoi'),
        ("error: invalid argument: --x\nusage: ...\n", "error: invalid argument: --x"),
        ("0.00.002.094 I srv  llama_server: initializing ...\n", "srv llama_server: initializing"),
    ],
)
def test_the_cause_is_quoted_not_the_line_after_it(log: str, cause: str) -> None:
    assert (last_words(log) or "").startswith(cause)


# ------------------------------------------------------------------------- believed or refused


@pytest.mark.parametrize(
    ("config", "facts", "words"),
    [
        (CONFIG, replace(GOOD, slots=2), "asked for 4 slots, it has 2"),
        (CONFIG, replace(GOOD, slots=8), "asked for 4 slots, it has 8"),
        (CONFIG, replace(GOOD, context_per_slot=511), "asked for 512 tokens per slot, it has 511"),
    ],
)
def test_another_question_than_asked_is_refused(
    config: EngineConfig, facts: ServerFacts, words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        believed(config, facts)


@pytest.mark.parametrize(
    ("device", "facts", "words"),
    [
        ("gpu", replace(GOOD, offloaded_layers=0), "no layer of the model is on one"),
        ("gpu", GOOD, "does not say that any layer is on one"),
        (
            "gpu",
            with_log(GOOD, "W warning: no usable GPU found, --gpu-layers option will be ignored\n"),
            'its log says "no usable GPU found, --gpu-layers option will be ignored"',
        ),
        ("cpu", replace(GOOD, offloaded_layers=31), "the CPU was asked for and 31 layers"),
    ],
)
def test_another_device_than_asked_is_a_mismatch(
    device: Literal["cpu", "gpu"], facts: ServerFacts, words: str
) -> None:
    with pytest.raises(DeviceMismatchError, match=words) as caught:
        believed(replace(CONFIG, device=device), facts)
    assert str(caught.value).startswith("device_mismatch: ")
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(
    ("config", "facts", "words"),
    [
        (replace(CONFIG, speculation="ngram"), replace(GOOD, speculative=False), "not speculate"),
        (CONFIG, replace(GOOD, offloaded_layers=3, total_layers=31), "only 3 of 31 layers"),
        (CONFIG, replace(GOOD, details={"kv_unified": "true"}), "share one pool"),
    ],
)
def test_what_only_weakens_the_answer_is_a_difference(
    config: EngineConfig, facts: ServerFacts, words: str
) -> None:
    differences = believed(config, facts).details["differences"]
    assert isinstance(differences, list)
    assert len(differences) == 1
    assert words in differences[0]


@pytest.mark.parametrize(
    "facts",
    [
        GOOD,
        replace(GOOD, context_per_slot=768),
        replace(GOOD, slots=None, context_per_slot=None),
        replace(GOOD, offloaded_layers=0, total_layers=31),
        replace(GOOD, offloaded_layers=31, total_layers=31),
    ],
)
def test_what_was_asked_for_is_believed(facts: ServerFacts) -> None:
    assert believed(CONFIG, facts).details["differences"] == []


# ------------------------------------------------------------------------- the program


def test_a_missing_program_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        find_program(str(tmp_path / "none"))


def test_a_program_that_is_not_in_path_is_told() -> None:
    with pytest.raises(UsageError, match="PATH"):
        find_program("no-such-llama-server")


def test_a_folder_as_program_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        find_program(str(tmp_path))


def test_a_file_that_is_not_executable_is_told(tmp_path: Path) -> None:
    plain = tmp_path / "llama-server"
    plain.write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="not executable"):
        find_program(str(plain))


def test_a_program_in_path_is_found() -> None:
    assert find_program("sh").is_absolute()


@pytest.mark.parametrize(("body", "said"), [("exit 0", "it said nothing"), ("echo hi", "hi")])
def test_another_program_than_llama_server_is_told(tmp_path: Path, body: str, said: str) -> None:
    program = script(tmp_path / "other", body)
    with pytest.raises(UsageError, match=f"did not answer like a llama-server: {said}"):
        llama((str(program),), "m").identify(CONFIG)


def test_a_program_for_another_machine_is_told(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    # The head of an ELF file for machine 0xF3 (RISC-V), which no machine of ours is.
    program.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf3\x00" + bytes(44))
    program.chmod(0o755)
    with pytest.raises(UsageError, match="cannot run here"):
        llama((str(program),), "m").identify(CONFIG)


def test_a_changed_library_beside_the_program_is_another_program(tmp_path: Path) -> None:
    program = script(tmp_path / "llama-server", "exit 0")
    library = tmp_path / "libllama.so.0"
    library.write_text("one", encoding="utf-8")

    def content(path: Path) -> str:
        return path.read_text(encoding="utf-8")

    before = llamacpp.hash_program(program, content)
    assert before == llamacpp.hash_program(program, content)
    library.write_text("two", encoding="utf-8")
    assert llamacpp.hash_program(program, content) != before
    library.unlink()
    assert llamacpp.hash_program(program, content) == content(program)


# ------------------------------------------------------------------------- on the wire


def body(ask: Ask) -> tuple[str, dict[str, object]]:
    wanted = llamacpp.request(ask)
    return wanted.path, json.loads(wanted.body)


def test_token_ids_go_to_completions_with_everything_exact() -> None:
    assert body(Ask(Prompt(token_ids=(1, 2, 3)), 7, use_cache=False, slot=2)) == (
        "/v1/completions",
        {
            "stream": True,
            "stream_options": {"include_usage": True},
            "timings_per_token": True,
            "max_tokens": 7,
            "temperature": 0.0,
            "seed": 1,
            "ignore_eos": True,
            "cache_prompt": False,
            "id_slot": 2,
            "prompt": [1, 2, 3],
        },
    )


def test_messages_go_to_chat_and_text_to_completions() -> None:
    messages = ({"role": "user", "content": "ö"},)
    path, sent = body(Ask(Prompt(messages=messages), 7, use_cache=True))
    assert (path, sent["messages"]) == ("/v1/chat/completions", list(messages))
    assert "id_slot" not in sent
    path, sent = body(Ask(Prompt(text="ö"), 7, use_cache=True))
    assert (path, sent["prompt"]) == ("/v1/completions", "ö")


def test_counters_are_read_and_nonsense_is_not() -> None:
    text = (
        "# HELP llamacpp:prompt_tokens_total x\nllamacpp:prompt_tokens_total 12\n"
        "llamacpp:tokens_predicted_total nonsense\nother 3\nllamacpp:requests_deferred 1\n"
    )
    assert llamacpp.counters(text) == {"prompt_tokens": 12.0}


# ------------------------------------------------------------------------- starts that fail


@pytest.fixture
async def engines() -> AsyncIterator[list[LlamaCppEngine]]:
    started: list[LlamaCppEngine] = []
    yield started
    for engine in started:
        await engine.stop()


def wrapped_fake(folder: Path, before: str) -> FakeEngine:
    """The scripted server behind a shell script that does something first."""
    run = shlex.join(COMMAND)
    path = script(
        folder / "wrapper",
        f'case "$*" in *--help*|*--version*) exec {run} "$@";; esac\n{before}\nexec {run} "$@"',
    )
    return FakeEngine(EngineSpec("fake", "fake", (str(path),)))


@pytest.mark.anyio
async def test_a_port_that_was_taken_meanwhile_is_tried_again(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    mark = tmp_path / "mark"
    taken = "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1"
    engine = wrapped_fake(tmp_path, f'[ -e {mark} ] || {{ touch {mark}; echo "{taken}"; exit 1; }}')
    engines.append(engine)
    server = await engine.start(replace(CONFIG, slots=2), tmp_path / "log", 30)
    assert mark.exists()
    assert server.death() is None


@pytest.mark.anyio
async def test_a_port_that_stays_taken_is_told(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    tries = tmp_path / "tries"
    taken = "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1"
    engine = wrapped_fake(tmp_path, f'echo x >> {tries}; echo "{taken}"; exit 1')
    engines.append(engine)
    with pytest.raises(EngineError, match="couldn't bind"):
        await engine.start(CONFIG, tmp_path / "log", 30)
    assert tries.read_text(encoding="utf-8") == "x\n" * 3


@pytest.mark.anyio
async def test_another_failure_is_not_tried_again(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    tries = tmp_path / "tries"
    engine = wrapped_fake(tmp_path, f'echo x >> {tries}; echo "no luck"; exit 4')
    engines.append(engine)
    with pytest.raises(EngineError, match='exit status 4; its last words were "no luck"'):
        await engine.start(CONFIG, tmp_path / "log", 30)
    assert tries.read_text(encoding="utf-8") == "x\n"


@pytest.mark.anyio
async def test_an_engine_that_does_not_get_ready_is_given_up(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    engine = FakeEngine(EngineSpec("fake", "fake", args=("--load-s", "600")))
    engines.append(engine)
    with pytest.raises(EngineError, match="not ready after"):
        await engine.start(replace(CONFIG, engine=engine._spec), tmp_path / "log", 0.5)
    assert engine._process is None


@pytest.mark.anyio
async def test_fewer_slots_than_asked_for_are_refused_and_nothing_is_left(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    engine = FakeEngine(EngineSpec("fake", "fake", args=("-np", "2")))
    engines.append(engine)
    # The operator's own argument comes last and wins; what the server then is, counts.
    config = replace(CONFIG, engine=engine._spec)
    with pytest.raises(EngineError, match="asked for 4 slots, it has 2"):
        await engine.start(config, tmp_path / "log", 30)
    assert engine._process is None
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("device", "words"), [("none", "no usable GPU found"), ("CPU", "no layer")]
)
async def test_a_healthy_server_on_the_wrong_device_is_refused_and_ended(
    tmp_path: Path, engines: list[LlamaCppEngine], device: str, words: str
) -> None:
    engine = FakeEngine(EngineSpec("fake", "fake", args=("--log-device", device)))
    engines.append(engine)
    config = replace(CONFIG, engine=engine._spec, device="gpu")
    with pytest.raises(DeviceMismatchError, match=words):
        await engine.start(config, tmp_path / "log", 30)
    assert engine._process is None
    assert "listening" in (tmp_path / "log").read_text(encoding="utf-8")


@pytest.mark.anyio
async def test_a_server_on_the_gpu_that_was_asked_for_is_believed(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    engine = FakeEngine(EngineSpec("fake", "fake", args=("--log-device", "CUDA0")))
    engines.append(engine)
    config = replace(CONFIG, engine=engine._spec, device="gpu")
    server = await engine.start(config, tmp_path / "log", 30)
    assert server.facts.offloaded_layers == 30


# ------------------------------------------------------------------------- the real one


@pytest.mark.real_engine
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("damage", "words"),
    [("truncated", "not within the file bounds"), ("text", "error loading model")],
)
async def test_the_real_engines_own_words_explain_a_bad_model(
    tmp_path: Path, engines: list[LlamaCppEngine], damage: str, words: str
) -> None:
    model = tmp_path / "bad.gguf"
    whole = Path(place(MODEL)).read_bytes()
    model.write_bytes(whole[:20_000_000] if damage == "truncated" else b"hello\n")
    command = (place(SERVER),)
    engine = llama(command, str(model))
    engines.append(engine)
    with pytest.raises(EngineError, match=words) as caught:
        await engine.start(real_config(command), tmp_path / "log", 60)
    assert "\n" not in str(caught.value)


@pytest.mark.real_engine
@pytest.mark.anyio
async def test_the_real_engines_own_words_explain_an_impossible_context(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    command = (place(SERVER),)
    engine = llama(command, place(MODEL))
    engines.append(engine)
    # 23 kB a token: 460 GB, more than a test machine has.
    config = real_config(command, slots=1, context=20_000_000)
    with pytest.raises(EngineError, match="failed to allocate"):
        await engine.start(config, tmp_path / "log", 60)


@pytest.mark.real_engine
@pytest.mark.anyio
async def test_the_real_engine_without_a_gpu_is_refused_where_one_was_asked_for(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    command = (place(SERVER),)
    # Whatever the test machine has, it may use nothing of it.
    spec = replace(real_config(command).engine, args=("-t", "1", "-dev", "none"))
    engine = LlamaCppEngine(spec, weights(place(MODEL)), no_hash)
    engines.append(engine)
    config = replace(real_config(command), engine=spec, device="gpu")
    with pytest.raises(DeviceMismatchError, match="device_mismatch"):
        await engine.start(config, tmp_path / "log", 60)


@pytest.mark.real_engine
@pytest.mark.anyio
async def test_the_real_engines_buffers_are_read_from_its_log(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    command = (place(SERVER),)
    engine = llama(command, place(MODEL))
    engines.append(engine)
    server = await engine.start(real_config(command, slots=2, context=1024), tmp_path / "log", 60)
    found = server.facts.details["buffers"]
    assert isinstance(found, list)
    sizes = {kind: [b for b in found if b["kind"] == kind] for kind in ("kv", "compute", "output")}
    assert [len(each) for each in sizes.values()] == [1, 1, 1]
    # 30 layers x 2 (K and V) x 3 heads x 64 x 2 bytes x 2 slots x 1024 cells.
    assert sizes["kv"][0] == {"kind": "kv", "device": "CPU", "bytes": 45 << 20}
    weights_bytes = sum(b["bytes"] for b in found if b["kind"] == "model")
    assert weights_bytes > 90 << 20


@pytest.mark.real_engine
@pytest.mark.anyio
async def test_an_unknown_argument_is_explained(
    tmp_path: Path, engines: list[LlamaCppEngine]
) -> None:
    command = (place(SERVER),)
    spec = replace(real_config(command).engine, args=("--no-such-flag",))
    engine = LlamaCppEngine(spec, weights(place(MODEL)), no_hash)
    engines.append(engine)
    with pytest.raises(EngineError, match="invalid argument: --no-such-flag"):
        await engine.start(replace(real_config(command), engine=spec), tmp_path / "log", 60)


@pytest.mark.real_engine
@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["nice", "exec script", "child script", "python"])
async def test_a_wrapper_starts_the_real_engine_and_all_of_it_ends(
    tmp_path: Path, engines: list[LlamaCppEngine], kind: str
) -> None:
    program = place(SERVER)
    quoted = shlex.quote(program)
    child = f"import subprocess, sys; sys.exit(subprocess.call([{program!r}, *sys.argv[1:]]))"
    command = {
        "nice": ("nice", "-n", "1", program),
        "exec script": (str(script(tmp_path / "run", f'exec {quoted} "$@"')),),
        "child script": (str(script(tmp_path / "run", f'{quoted} "$@" & wait')),),
        "python": (sys.executable, "-c", child),
    }[kind]
    engine = llama(command, place(MODEL))
    engines.append(engine)
    config = real_config(command)
    assert engine.identify(config).argv[: len(command)] == command
    server = await engine.start(config, tmp_path / "log", 60)
    assert server.facts.slots == 2
    pids = server.pids()
    assert pids
    await engine.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
