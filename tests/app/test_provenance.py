"""A result names what it is of, from the things themselves; what it cannot tell has a reason."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from agent import fake, result, sweep
from gguf_maker import Tensor, Value, gguf

from edgeagent.core.command import environment_without_secrets
from edgeagent.core.model import (
    EngineConfig,
    EngineIdentity,
    EngineSpec,
    ModelIdentity,
    ServerFacts,
)
from edgeagent.engines.attached import AttachedEngine
from edgeagent.engines.llamacpp import LlamaCppEngine, LlamaCppModel, hash_program
from edgeagent.engines.vllm_program import look_at
from edgeagent.models import gguf as gguf_files
from edgeagent.models import hf
from edgeagent.models.hashing import sha256
from edgeagent.probes.box import host_facts

Q4_0, Q8_0 = 2, 8
MODEL = LlamaCppModel(ModelIdentity("m", "m.gguf"))


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def identity(*command: str) -> EngineIdentity:
    spec = EngineSpec("llamacpp", "llamacpp", command, "m.gguf")
    return LlamaCppEngine(spec, MODEL, sha256, {}).identify(
        EngineConfig(spec, 1, 256, "off", "off")
    )


# ---------------------------------------------------------------------------------- a whole run


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("provenance") / "run"
    sweep(folder, fake(), "--prefix-cache=off", "--concurrency=1")
    return folder


def nulls(value: Mapping[str, Any]) -> Iterator[str]:
    return (name for name, inner in value.items() if inner is None)


def test_a_result_names_engine_flags_agent_and_box(measured: Path) -> None:
    document = result(measured)
    (engine,) = document["engines"]
    (launch,) = engine["launches"]
    assert engine["version"].startswith("0.0.0-scripted")
    assert len(engine["binary_sha256"]) == 64
    assert launch["argv"][:3] == [sys.executable, "-m", "edgeagent.engines.scripted"]
    assert {"--ttft-ms", "-np", "-c", "--no-cache-prompt"} <= set(launch["argv"])
    assert launch["effective"]["version"]
    assert launch["effective"]["slots"] == 1
    assert document["agent"]["version"]
    assert document["host"]["kernel"]
    assert "cpu_governors" in document["box"]["hygiene"]


def test_what_a_result_cannot_tell_of_its_origin_has_a_reason(measured: Path) -> None:
    document = result(measured)
    for part in (*document["engines"], *document["models"]):
        if missing := list(nulls({k: v for k, v in part.items() if k != "reason"})):
            assert part["reason"], (missing, part)
    host = document["host"]
    assert (host["power_mode"] is None) == (host["power_mode_reason"] is not None)


# --------------------------------------------------------------------------------------- engines


def test_a_llama_server_that_tells_no_version_has_a_reason_and_still_a_hash(tmp_path: Path) -> None:
    path = program(tmp_path / "llama-server", 'case "$*" in *--help*) echo "--port N";; esac')
    found = identity(str(path))
    assert (found.version, found.reason) == (
        None,
        "it does not tell its version before it is started",
    )
    assert found.binary_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_llama_server_that_tells_its_version_needs_none(tmp_path: Path) -> None:
    body = 'case "$*" in *--help*) echo "--port N";; *) echo "version: 7 (abc)";; esac'
    found = identity(str(program(tmp_path / "llama-server", body)))
    assert (found.version, found.reason) == ("7 (abc)", None)


def test_a_llama_server_in_a_container_has_no_hash_and_a_reason(tmp_path: Path) -> None:
    docker = program(tmp_path / "docker", "exit 0")
    found = identity(str(docker), "run", "image")
    assert found.binary_sha256 is None
    assert "in a container; its program was not seen" in (found.reason or "")


def test_a_library_beside_the_program_is_part_of_its_hash(tmp_path: Path) -> None:
    path = program(tmp_path / "llama-server", "exit 0")
    (tmp_path / "libggml.so").write_bytes(b"one")
    before = hash_program(path, sha256)
    (tmp_path / "libggml.so").write_bytes(b"two")
    assert hash_program(path, sha256) != before


@pytest.mark.parametrize("record", ["RECORD", None])
def test_a_vllm_is_known_by_its_version_and_the_list_of_its_files(
    tmp_path: Path, record: str | None
) -> None:
    info = tmp_path / "site" / "vllm-0.32.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.1\n")
    listed = f"{info.name}/METADATA,,\n{info.name}/RECORD,,\nvllm/engine.py,sha256=abc,3\n"
    if record:
        (info / record).write_text(listed)
    binary = program(tmp_path / "vllm", "exit 1")
    binary.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    found = look_at((str(binary),), {"PYTHONPATH": str(tmp_path / "site")}, sha256)
    hashed = listed.encode() if record else binary.read_bytes()
    assert (found.version, found.sha256) == ("0.32.1", hashlib.sha256(hashed).hexdigest())
    assert (found.reason is None) == (record is not None)


def test_an_attached_server_says_what_was_not_seen_and_what_it_does_not_tell() -> None:
    spec = EngineSpec("server", "openai", url="http://127.0.0.1:1")
    config = EngineConfig(spec, 1, 256, "off", "off")
    told = AttachedEngine(spec, ServerFacts(version="b7")).identify(config).reason or ""
    silent = AttachedEngine(spec, ServerFacts()).identify(config).reason or ""
    assert "were not seen" in told
    assert silent == f"{told}; it does not tell its version"


def test_variables_are_shown_and_secrets_among_them_are_not() -> None:
    shown = environment_without_secrets(
        [("OMP_NUM_THREADS", "2"), ("HF_TOKEN", "hf_1"), ("AWS_SECRET_ACCESS_KEY", "s"),
         ("TOKENIZERS_PARALLELISM", "false"), ("HTTPS_PROXY", "http://me:pw@proxy:3128")]
    )  # fmt: skip
    assert shown == {
        "OMP_NUM_THREADS": "2",
        "HF_TOKEN": "***",
        "AWS_SECRET_ACCESS_KEY": "***",
        "TOKENIZERS_PARALLELISM": "false",
        "HTTPS_PROXY": "http://***@proxy:3128",
    }


# ---------------------------------------------------------------------------------------- models


def test_a_misnamed_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    metadata = {"general.architecture": Value("string", "llama")}
    path = tmp_path / "model-Q4_0.gguf"
    path.write_bytes(gguf(metadata, (Tensor("w", (32, 2), Q8_0),), bytes(68)))
    assert gguf_files.identify(path, None, sha256).quantization == "Q8_0"


def test_a_misnamed_folder_is_known_by_what_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "model-AWQ-int4"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))
    assert hf.identify(folder, None, sha256).quantization == "BF16"


def test_what_a_model_does_not_say_has_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "model-Q4_0.gguf"
    path.write_bytes(gguf({}))
    found = gguf_files.identify(path, None, sha256)
    assert (found.quantization, found.architecture) == (None, None)
    assert found.reason == "the file does not say its architecture, quantization, context length"
    folder = tmp_path / "model-BF16"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert "how nor in which type" in (hf.identify(folder, None, sha256).reason or "")


# ------------------------------------------------------------------------------------------- box


def test_a_box_without_power_modes_says_so_and_a_jetson_names_its_own(tmp_path: Path) -> None:
    assert "no nvpmodel" in str(host_facts(tmp_path)["power_mode_reason"])
    status = tmp_path / "var/lib/nvpmodel/status"
    status.parent.mkdir(parents=True)
    status.write_text("pmode:0002\n")
    facts = host_facts(tmp_path)
    assert (facts["power_mode"], facts["power_mode_reason"]) == ("pmode:0002", None)
