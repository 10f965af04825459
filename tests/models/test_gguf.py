"""A GGUF header is read exactly, and anything that is not one is refused in one sentence."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from gguf_maker import Tensor, Value, gguf, text
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeagent.errors import UsageError
from edgeagent.models.gguf import identify, read, read_model, read_whole, shards

Q4_0, Q8_0, F32 = 2, 8, 0

METADATA = {
    "general.architecture": Value("string", "llama"),
    "general.name": Value("string", "Plant Model"),
    "general.file_type": Value("u32", 2),
    "llama.context_length": Value("u32", 2048),
    "llama.attention.head_count_kv": Value("i32", [3, 3]),
    "tokenizer.ggml.tokens": Value("string", ["a", "b", "ö"]),
}
# 64 Q4_0 weights: 2 blocks of 18 bytes; 8 F32 weights behind them at 64: 32 bytes; 96 in all.
TENSORS = (Tensor("w", (32, 2), Q4_0), Tensor("n", (8,), F32, 64))
WHOLE = gguf(METADATA, TENSORS, bytes(96))
HEADER = len(gguf(METADATA, TENSORS))


def put(folder: Path, data: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def a_hash(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("version", [2, 3])
def test_facts_come_from_the_header(tmp_path: Path, version: int) -> None:
    facts = read(put(tmp_path, gguf(METADATA, TENSORS, bytes(96), version)))
    assert facts.architecture == "llama"
    assert facts.quantization == "Q4_0"
    assert facts.context_length == 2048
    assert facts.vocabulary == 3
    assert facts.parameters == 72
    assert dict(facts.tensor_types) == {"Q4_0": 64, "F32": 8}
    assert facts.size_bytes == HEADER + 96
    assert facts.metadata["tokenizer.ggml.tokens"] == ("a", "b", "ö")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("u8", 255), ("i8", -128), ("u16", 65535), ("i16", -32768), ("u32", 2**32 - 1),
        ("i32", -(2**31)), ("f32", 0.5), ("bool", True), ("u64", 2**64 - 1), ("i64", -(2**63)),
        ("f64", 0.1), ("string", "Überdruck"), ("string", ""),
    ],
)  # fmt: skip
def test_every_type_of_value_is_read_alone_and_in_a_list(
    tmp_path: Path, kind: str, value: object
) -> None:
    file = gguf({"one": Value(kind, value), "many": Value(kind, [value] * 3), "z": Value("u8", 7)})
    facts = read(put(tmp_path, file))
    assert dict(facts.metadata) == {"one": value, "many": (value,) * 3, "z": 7}
    assert dict(facts.lengths) == {"many": 3}


@pytest.mark.parametrize(("kind", "value"), [("f32", 1.0), ("string", "token"), ("i8", 1)])
def test_long_lists_are_counted_and_not_kept(tmp_path: Path, kind: str, value: object) -> None:
    file = gguf({"tokenizer.ggml.tokens": Value(kind, [value] * 5000), "z": Value("u8", 7)})
    facts = read(put(tmp_path, file))
    assert facts.vocabulary == 5000
    assert facts.metadata["tokenizer.ggml.tokens"] is None
    assert facts.metadata["z"] == 7


def test_the_quantisation_is_the_files_not_the_names(tmp_path: Path) -> None:
    path = put(tmp_path, WHOLE, "model-Q8_0.gguf")
    assert identify(path, None, a_hash).quantization == "Q4_0"


def test_without_its_own_word_the_commonest_type_is_the_quantisation(tmp_path: Path) -> None:
    metadata = {key: value for key, value in METADATA.items() if key != "general.file_type"}
    assert read(put(tmp_path, gguf(metadata, TENSORS, bytes(96)))).quantization == "Q4_0"
    assert read(put(tmp_path, gguf({}))).quantization is None


def test_an_identity_holds_what_a_result_needs(tmp_path: Path) -> None:
    path = put(tmp_path, WHOLE)
    got = identify(path, 12.5, a_hash)
    assert (got.id, got.path, got.format) == ("Plant Model", str(path), "gguf")
    assert (got.architecture, got.parameters, got.context_length) == ("llama", 72, 2048)
    assert (got.size_bytes, got.sha256) == (len(WHOLE), "model.gguf")
    assert got.kv_bytes_per_token == 12.5


def test_a_model_without_a_name_has_its_files(tmp_path: Path) -> None:
    assert identify(put(tmp_path, gguf({}), "x.gguf"), None, a_hash).id == "x.gguf"


def test_a_split_model_is_all_its_files(tmp_path: Path) -> None:
    first = put(tmp_path, WHOLE, "m-00001-of-00002.gguf")
    put(tmp_path, gguf({}, TENSORS, bytes(96)), "m-00002-of-00002.gguf")
    got = identify(first, None, a_hash)
    assert got.parameters == 144
    assert got.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert got.sha256 not in (None, first.name)
    assert got.architecture == "llama"


def test_a_missing_part_of_a_split_model_is_named(tmp_path: Path) -> None:
    first = put(tmp_path, WHOLE, "m-00001-of-00003.gguf")
    put(tmp_path, WHOLE, "m-00002-of-00003.gguf")
    with pytest.raises(UsageError, match=r"m-00003-of-00003\.gguf is missing"):
        identify(first, None, a_hash)


def test_any_part_of_a_split_model_stands_for_the_whole(tmp_path: Path) -> None:
    put(tmp_path, WHOLE, "m-00001-of-00002.gguf")
    second = put(tmp_path, gguf({}, TENSORS, bytes(96)), "m-00002-of-00002.gguf")
    facts = read_model(second)
    assert facts.architecture == "llama"
    assert (facts.parameters, facts.tensor_types["Q4_0"]) == (144, 128)
    assert facts.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_part_whose_name_does_not_say_so_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, gguf({**METADATA, "split.count": Value("u16", 3)}), "m.gguf")
    with pytest.raises(UsageError, match="one of 3 files"):
        read_model(path)


@pytest.mark.parametrize("name", ["m-00000-of-00000.gguf", "m-00003-of-00002.gguf"])
def test_a_name_that_only_looks_like_a_part_is_a_whole_model(tmp_path: Path, name: str) -> None:
    assert read_model(put(tmp_path, WHOLE, name)).parameters == 72


def test_a_whole_model_is_its_only_part(tmp_path: Path) -> None:
    assert shards(tmp_path / "m.gguf") == (tmp_path / "m.gguf",)


def test_an_alignment_of_its_own_is_kept(tmp_path: Path) -> None:
    metadata = {"general.alignment": Value("u32", 256)}
    file = gguf(metadata, TENSORS, bytes(96), alignment=256)
    assert read(put(tmp_path, file)).parameters == 72
    with pytest.raises(UsageError, match="its tensors need"):
        read(put(tmp_path, file[:-1]))


# ------------------------------------------------------------------------------ refused


def test_a_file_that_ends_at_any_byte_before_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for length in range(len(WHOLE)):
        path.write_bytes(WHOLE[:length])
        with pytest.raises(UsageError, match="not a whole GGUF file") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read(tmp_path / "none.gguf")


def test_a_file_as_folder_is_told(tmp_path: Path) -> None:
    path = put(tmp_path, WHOLE)
    with pytest.raises(UsageError, match="cannot be read"):
        read(path / "in it")


def test_a_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        read(tmp_path)


def test_a_pipe_as_model_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError):
        read(tmp_path / "pipe")


def test_an_unreadable_file_is_told(ordinary_folder: Path) -> None:
    path = put(ordinary_folder, WHOLE)
    path.chmod(0)
    with pytest.raises(UsageError, match="permission denied"):
        read(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hello, this is text", "does not begin with GGUF"),
        (b"", "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "format version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "format version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "metadata entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60), "bytes in one name"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 13), "type 13"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1),
            "list of the type 9",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 2**62),
            "elements in one list",
        ),
        (gguf({}, [Tensor("w", (), F32)]), "0 dimensions"),
        (gguf({}, [Tensor("w", (1,) * 9, F32)]), "9 dimensions"),
        (gguf({}, [Tensor("w", (2**63, 2**63), F32)]), "its tensors need"),
        (gguf({}, [Tensor("w", (1,), F32, 2**63)]), "its tensors need"),
        (gguf({"general.alignment": Value("u32", 2**31)}), "alignment"),
        (gguf({"general.alignment": Value("i32", -8)}), "alignment"),
    ],
)
def test_hostile_numbers_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read(put(tmp_path, data))


def test_values_of_an_unexpected_type_are_unknown_not_an_error(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": Value("u8", 1),
        "general.name": Value("bool", True),
        "general.file_type": Value("string", "Q4_0"),
    }
    got = identify(put(tmp_path, gguf(metadata, TENSORS, bytes(96))), None, a_hash)
    assert (got.architecture, got.id, got.quantization) == (None, "model.gguf", "Q4_0")
    assert got.context_length is None


def test_an_unknown_tensor_type_is_counted_under_its_number(tmp_path: Path) -> None:
    facts = read(put(tmp_path, gguf({}, [Tensor("w", (8,), 999)])))
    assert dict(facts.tensor_types) == {"type 999": 8}


def _read_or_refuse(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(UsageError):
            read(Path(file.name))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic_are_read_or_refused(data: bytes) -> None:
    _read_or_refuse(b"GGUF" + struct.pack("<I", 3) + data)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(4, HEADER - 1), st.integers(0, 255)), max_size=6))
def test_a_damaged_header_is_read_or_refused(damage: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for place, value in damage:
        data[place] = value
    _read_or_refuse(bytes(data))


def test_a_hostile_header_costs_no_more_memory_than_the_file_is_long(tmp_path: Path) -> None:
    # Lists that claim a great part of a file of holes, 64 MB long: of bytes, and of empty strings.
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k")
    for kind, count in ((0, 1 << 22), (8, 1 << 18)):
        path = put(tmp_path, head + struct.pack("<IIQ", 9, kind, count))
        os.truncate(path, 64 << 20)
        tracemalloc.start()
        try:
            read(path)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 4 << 20


@pytest.mark.real_engine
def test_the_real_models_facts(real_model: Path) -> None:
    facts = read(real_model)
    assert facts.architecture == "llama"
    assert facts.quantization == "Q4_1"
    assert facts.context_length == 8192
    assert facts.vocabulary == 49152
    assert facts.parameters == 134_515_008
    assert facts.of_architecture("block_count") == 30


@pytest.fixture
def real_model() -> Path:
    found = os.environ.get("EDGEAGENT_TEST_MODEL")
    if found:
        return Path(found)
    why = "EDGEAGENT_TEST_MODEL is not set: it names a real model"
    if os.environ.get("EDGEAGENT_REQUIRE_REAL") == "1":
        pytest.fail(why)
    pytest.skip(why)


def test_a_tool_gets_every_list_whole_and_the_place_of_every_tensor(tmp_path: Path) -> None:
    metadata = {"general.name": Value("string", "x"), "many": Value("u32", list(range(5000)))}
    path = put(tmp_path, gguf(metadata, TENSORS, bytes(96)))
    whole = read_whole(path)
    assert whole.facts.metadata["many"] == tuple(range(5000))
    begin = len(gguf(metadata, TENSORS))
    assert [(t.name, t.shape, t.type, t.begin - begin, t.size_bytes) for t in whole.tensors] == [
        ("w", (32, 2), "Q4_0", 0, 36),
        ("n", (8,), "F32", 64, 32),
    ]
    data = path.read_bytes()
    start, end = whole.entries["general.name"]
    # key, type number of a string, string
    assert data[start:end] == text("general.name") + struct.pack("<I", 8) + text("x")
