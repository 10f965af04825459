"""What are the tokenizer files of a GGUF's tokenizer?

tokenizer.json is plain JSON, so no library is needed to write it. The rules by which llama.cpp
splits text before it merges have names in a GGUF, not regular expressions; those known here were
compared with the real llama-server (tests/app/test_real_pair.py). Others are refused by name:
another rule gives other token ids for the same text, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeagent.errors import UsageError

Json = Mapping[str, object]

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_LONGEST = 1 << 12
"""Characters in a token; real ones have some hundred at most."""
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"

_BYTE_LEVEL: Json = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_MAPPED_ONLY: Json = {**_BYTE_LEVEL, "use_regex": False}


def _split(pattern: str) -> Json:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            },
            _MAPPED_ONLY,
        ],
    }


_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _split(_WORDS % r"\p{N}{1,3}")
_QWEN2 = _split(_WORDS % r"\p{N}")
_SMOLLM: Json = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
}

_SPLITTERS: Mapping[str, Json] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
_WHOLE_WORDS_FIRST = {"llama-bpe"}
"""A word that is a token is not merged (llama.cpp's `ignore_merges`)."""
_BEGIN_BY_DEFAULT = {"llama-bpe"}


@dataclass(frozen=True)
class _Vocabulary:
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    ids: Mapping[str, int]


def files(metadata: Mapping[str, object]) -> Mapping[str, Json]:
    """tokenizer.json, tokenizer_config.json and special_tokens_map.json. Raises UsageError."""
    kind = metadata.get("tokenizer.ggml.model")
    vocabulary = _vocabulary(metadata)
    if kind == "gpt2":
        tokenizer = _pairs_of_bytes(metadata, vocabulary)
    elif kind == "llama":
        tokenizer = _pieces(metadata, vocabulary)
    else:
        raise UsageError(
            f"the GGUF file's tokenizer {str(kind)[:40]!r} cannot be written for vLLM, known are "
            "gpt2 and llama: give another model"
        )
    special = _special(metadata, vocabulary)
    template = metadata.get("tokenizer.chat_template")
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds(metadata, "bos", kind),
        "add_eos_token": _adds(metadata, "eos", kind),
        **special,
    }
    if isinstance(template, str):
        settings["chat_template"] = template
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": _added(vocabulary),
            "post_processor": _post_processor(metadata, vocabulary, kind),
            **tokenizer,
        },
        "tokenizer_config.json": settings,
        "special_tokens_map.json": special,
    }


def _vocabulary(metadata: Mapping[str, object]) -> _Vocabulary:
    tokens = metadata.get("tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, tuple) or not all(_is_token(token) for token in tokens):
        raise _lacking("tokenizer.ggml.tokens")
    if not isinstance(types, tuple) or len(types) != len(tokens):
        raise _lacking("tokenizer.ggml.token_type")
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise UsageError(
            "two tokens of the GGUF file have the same text, which a tokenizer for vLLM cannot "
            "keep: give another model"
        )
    return _Vocabulary(tokens, types, ids)


def _is_token(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST


def _lacking(key: str) -> UsageError:
    return UsageError(f"the GGUF file has no usable {key}: give a model with its tokenizer")


def _pairs_of_bytes(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> Json:
    """Merges over bytes, as GPT-2 began it."""
    rule = metadata.get("tokenizer.ggml.pre")
    splitter = _SPLITTERS.get(rule) if isinstance(rule, str) else None
    if splitter is None:
        raise UsageError(
            f"the GGUF file splits text by the rule {str(rule)[:40]!r}, known are "
            f"{', '.join(_SPLITTERS)}: give another model"
        )
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, tuple):
        raise _lacking("tokenizer.ggml.merges")
    pairs = [_pair(merge, vocabulary) for merge in merges]
    return {
        "normalizer": None,
        "pre_tokenizer": splitter,
        "decoder": _BYTE_LEVEL,
        "model": {
            **_model(vocabulary, pairs),
            "ignore_merges": rule in _WHOLE_WORDS_FIRST,
        },
    }


def _pair(merge: object, vocabulary: _Vocabulary) -> list[str]:
    """The two tokens of a merge: `left right`. No token of bytes holds a space."""
    pair = merge.split(" ") if isinstance(merge, str) else []
    if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.ids.keys():  # noqa: PLR2004  # because a pair is two
        raise _lacking("tokenizer.ggml.merges")
    return pair


def _model(vocabulary: _Vocabulary, pairs: list[list[str]]) -> dict[str, object]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary.ids,
        "merges": pairs,
    }


def _pieces(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> Json:
    """SentencePiece: the best-scored neighbours are joined first; bytes where no piece fits."""
    scores = metadata.get("tokenizer.ggml.scores")
    if (
        not isinstance(scores, tuple)
        or len(scores) != len(vocabulary.tokens)
        or not all(isinstance(score, float) for score in scores)
    ):
        raise _lacking("tokenizer.ggml.scores")
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    unknown = [
        token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind == _UNKNOWN
    ]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            **_model(vocabulary, _joins(vocabulary, scores)),
            "unk_token": unknown[0] if unknown else None,
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def _joins(vocabulary: _Vocabulary, scores: tuple[float, ...]) -> list[list[str]]:
    """Every way to join two pieces to a third, the best-scored third first."""
    joins: list[tuple[float, int, int, int]] = []
    for number, token in enumerate(vocabulary.tokens):
        if vocabulary.types[number] in {_CONTROL, _UNKNOWN, _BYTE}:
            continue
        for at in range(1, len(token)):
            left = vocabulary.ids.get(token[:at])
            right = vocabulary.ids.get(token[at:])
            if left is not None and right is not None:
                joins.append((-scores[number], number, left, right))
    joins.sort()
    return [[vocabulary.tokens[left], vocabulary.tokens[right]] for _, _, left, right in joins]


def _added(vocabulary: _Vocabulary) -> list[Json]:
    """Tokens that are found in a text before it is split."""
    return [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for number, (token, kind) in enumerate(
            zip(vocabulary.tokens, vocabulary.types, strict=True)
        )
        if kind in {_CONTROL, _USER_DEFINED, _UNKNOWN} and token
    ]


def _special(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> dict[str, object]:
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    found: dict[str, object] = {}
    for name, short in names.items():
        number = token_id(metadata, name)
        if number is not None:
            found[f"{short}_token"] = vocabulary.tokens[number]
    return found


def token_id(metadata: Mapping[str, object], name: str) -> int | None:
    """The id of `bos`, `eos`, `padding`, … or None. Raises UsageError for one that is no token."""
    key = f"tokenizer.ggml.{name}_token_id"
    number = metadata.get(key)
    if number is None:
        return None
    tokens = metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, tuple) else 0
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
        raise _lacking(key)
    return number


def _adds(metadata: Mapping[str, object], name: str, kind: object) -> bool:
    """Whether a text gets the token that begins or ends it."""
    value = metadata.get(f"tokenizer.ggml.add_{name}_token")
    if isinstance(value, bool):
        return value
    rule = metadata.get("tokenizer.ggml.pre")
    return name == "bos" and (kind == "llama" or rule in _BEGIN_BY_DEFAULT)


def _post_processor(
    metadata: Mapping[str, object], vocabulary: _Vocabulary, kind: object
) -> Json | None:
    """What is put around a text."""
    ends = {
        name: number
        for name in ("bos", "eos")
        if _adds(metadata, name, kind) and (number := token_id(metadata, name)) is not None
    }
    if not ends:
        return {**_BYTE_LEVEL, "trim_offsets": False} if kind == "gpt2" else None
    around = {name: vocabulary.tokens[number] for name, number in ends.items()}

    def template(parts: list[str]) -> list[Json]:
        out: list[Json] = []
        for number, part in enumerate(parts):
            if "bos" in around:
                out.append({"SpecialToken": {"id": around["bos"], "type_id": number}})
            out.append({"Sequence": {"id": part, "type_id": number}})
            if "eos" in around:
                out.append({"SpecialToken": {"id": around["eos"], "type_id": number}})
        return out

    return {
        "type": "TemplateProcessing",
        "single": template(["A"]),
        "pair": template(["A", "B"]),
        "special_tokens": {
            around[name]: {"id": around[name], "ids": [number], "tokens": [around[name]]}
            for name, number in ends.items()
        },
    }
