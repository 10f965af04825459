"""What an operator may say, and the one sentence that answers what they may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from edgeagent.config import EngineOptions, sweep_request, sweep_request_from_document
from edgeagent.errors import UsageError

LLAMA = EngineOptions(engines=("llamacpp",), models=("m.gguf",))


def test_engine_and_model_alone_make_a_sensible_sweep() -> None:
    spec = sweep_request(None, {}, LLAMA).spec
    assert spec.concurrency == (1, 4, 8, 16)
    assert spec.repeats == 3
    assert spec.prefix_cache == ("off", "on")
    assert spec.engines[0].command == ("llama-server",)


def test_options_override_the_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "[sweep]\nconcurrency = [2]\nrepeats = 5\nslo = {ttft = 1.5}\n"
        '[engines.mine]\nkind = "llamacpp"\ncommand = ["nice", "llama-server"]\n'
        'model = "m.gguf"\nargs = ["--threads", "4"]\nenv = {A = "1"}\nslots = 3\n'
    )
    spec = sweep_request(plan, {"repeats": 1}, EngineOptions()).spec
    assert (spec.concurrency, spec.repeats, spec.slo.ttft_s) == ((2,), 1, 1.5)
    engine = spec.engines[0]
    assert engine.command == ("nice", "llama-server")
    assert engine.args == ("--threads", "4")
    assert engine.env == (("A", "1"),)
    assert engine.slots == 3


def test_a_value_may_name_its_engine_kind() -> None:
    options = EngineOptions(
        engines=("llamacpp",), models=("llamacpp=a.gguf",), engine_args=("llamacpp=--threads=4",)
    )
    engine = sweep_request(None, {}, options).spec.engines[0]
    assert engine.model == "a.gguf"
    assert engine.args == ("--threads=4",)


def test_a_url_attaches() -> None:
    spec = sweep_request(None, {}, EngineOptions(url="http://127.0.0.1:8080")).spec
    assert spec.engines[0].attached


def test_a_request_survives_its_document() -> None:
    request = sweep_request(None, {"slo": "ttft=1,e2e=30", "seconds": "5"}, LLAMA)
    document = TypeAdapter(type(request)).dump_python(request, mode="json")
    assert sweep_request_from_document(document, "plan.json") == request


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"concurrency": "0"}, "--concurrency.*greater than or equal to 1"),
        ({"concurrency": "4,-1"}, "--concurrency.*greater than or equal to 1"),
        ({"concurrency": "four"}, "--concurrency.*'four'.*like 1,4,8"),
        ({"concurrency": "4,4"}, "--concurrency names 4 more than once"),
        ({"concurrency": ""}, "--concurrency.*like 1,4,8"),
        ({"concurrency": "100000"}, "--concurrency.*less than or equal"),
        ({"seconds": "nan"}, "--seconds.*finite"),
        ({"seconds": "5", "requests": "5"}, "one of them"),
        ({"slo": "ttff=1"}, "ttff is not a known key, did you mean ttft"),
        ({"speculation": "ngrm"}, "did you mean ngram"),
        ({"prefix_tokens": 0, "prompt_tokens": 0}, "needs a prompt"),
        ({"prompts": "/nowhere.jsonl"}, "/nowhere.jsonl cannot be read .no such file"),
        ({"timeout": 0}, "--timeout.*greater than 0"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence(sweep: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        sweep_request(None, sweep, LLAMA)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (EngineOptions(), "no engine was named"),
        (EngineOptions(engines=("llamacpp",)), "has no model"),
        (EngineOptions(engines=("llamacp",), models=("m",)), "did you mean llamacpp"),
        (EngineOptions(engines=("llamacpp", "llamacpp"), models=("m",)), "given twice"),
        (EngineOptions(engines=("llamacpp",), models=("m", "vllm=x")), "not part of this sweep"),
        (EngineOptions(url="127.0.0.1:8080"), "is not a URL"),
        (EngineOptions(url="http://127.0.0.1:99999"), "is not a URL"),
        (EngineOptions(engines=("openai",)), "give --url"),
    ],
)
def test_a_wrong_engine_is_refused_in_one_sentence(options: EngineOptions, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        sweep_request(None, {}, options)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[sweep]\nconcurency = [1]", "sweep.concurency is not a known key, did you mean conc"),
        ("[sweeps]\n", "sweeps is not a known key, did you mean sweep"),
        ('[engines.a]\nkind = "llamacpp"\nmodle = "x"', "modle is not a known key.*mean model"),
        ("[sweep\n", "is not TOML"),
        ("sweep = 3", "sweep is not a table"),
        ("[sweep]\nrepeats = 0", "plan.toml: sweep.repeats: 0 should be greater"),
        ('[engines.a]\nkind = "llamacpp"\nmodel = "m"\nbinary = "b"\ncommand = ["c"]', "both"),
    ],
)
def test_a_wrong_plan_is_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    with pytest.raises(UsageError, match=sentence) as refused:
        sweep_request(plan, {}, EngineOptions())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("", "is empty"),
        ("nonsense", "line 1 is not"),
        ('{"prompt": "fine"}\n{"prompt": 3}', "line 2 is not"),
        ('{"messages": []}', "line 1 is not"),
    ],
)
def test_wrong_traffic_names_its_line(tmp_path: Path, lines: str, sentence: str) -> None:
    prompts = tmp_path / "traffic.jsonl"
    prompts.write_text(lines)
    with pytest.raises(UsageError, match=sentence):
        sweep_request(None, {"prompts": str(prompts)}, LLAMA)
