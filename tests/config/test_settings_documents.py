"""The configuration explains itself: file, reference and schema say what the agent understands."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
from boxes import SYSTEM, Box

from edgeagent.config import EngineKeys, SloKeys, SweepKeys, toml
from edgeagent.settings import Settings
from edgeagent.settings_keys import KeyPath, keys
from edgeagent.settings_text import PLAN_NOTES, annotated, document, reference, schema, shown

ROOT = Path(__file__).parents[2]
ANNOTATED = ROOT / "configs/edgeagent.toml"
CHAPTER = ROOT / "docs/reference/configuration.md"

EXAMPLES: frozenset[KeyPath] = frozenset(
    {
        ("agent", "node"),
        *(("sweep", name) for name in ("context", "prompts", "requests", "seconds", "warmup")),
        *(("sweep", name) for name in ("cell_timeout", "sweep_timeout")),
        *(("sweep", "slo", name) for name in ("ttft", "tpot", "e2e")),
    }
)
"""Keys without a default that could be written: an example stands there."""


def uncommented() -> str:
    return re.sub(r"^#(?=[a-z\[])", "", ANNOTATED.read_text(), flags=re.MULTILINE)


def fixed(settings: Settings) -> dict[KeyPath, object]:
    known = {path for path, _ in keys()}
    return {path: value for path, value in settings.values() if path in known}


def test_the_annotated_file_as_it_stands_changes_nothing(box: Box) -> None:
    assert toml(ANNOTATED.read_text()).keys() == toml(uncommented()).keys() - {"engines"}
    assert fixed(box.load(ANNOTATED.read_text())) == fixed(Box(box.root / "other").load())


def test_every_key_stands_in_the_annotated_file_at_its_default(box: Box) -> None:
    other = Box(box.root / "other", host_name="another-name").load()
    full = box.load(uncommented())
    said = {path for path in full.origins if path in fixed(full)}
    assert said == set(fixed(full))
    different = {path for path, value in fixed(full).items() if value != fixed(other)[path]}
    filled_in = {("mqtt", "topic_prefix"), ("mqtt", "client_id")}  # with the example's node
    assert different == EXAMPLES | filled_in


def test_every_key_of_an_engine_stands_in_the_annotated_file() -> None:
    assert toml(uncommented())["engines"]["llamacpp"].keys() == EngineKeys.model_fields.keys()


def test_the_annotated_file_is_the_one_that_the_agent_writes() -> None:
    wanted = "edgeagent config schema --format toml > configs/edgeagent.toml"
    assert ANNOTATED.read_text() == annotated(), wanted


def test_the_reference_is_the_one_that_the_agent_writes() -> None:
    _, _, tables = CHAPTER.read_text().partition("## Keys\n\n")
    assert tables.rstrip() == reference().rstrip(), "scripts/docs --write"


def test_every_key_of_a_plan_is_explained_and_nothing_else() -> None:
    plan = {*SweepKeys.model_fields, *SloKeys.model_fields, *EngineKeys.model_fields} - {"slo"}
    assert set(PLAN_NOTES) == plan
    assert all(
        key.description or path[-1] in PLAN_NOTES
        for path, key in keys()
        if len(path) > 1 and path[-1] != "profiles"
    )


def test_the_schema_takes_what_the_agent_takes() -> None:
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    validator = jsonschema.Draft202012Validator(made)
    assert not list(validator.iter_errors(toml(uncommented())))
    assert list(validator.iter_errors({"mqtt": {"prot": 1}}))
    assert list(validator.iter_errors({"mqtt": {"port": "8883"}}))
    assert made["$defs"]["EngineKeys"]["properties"]["model"]["description"]


FULL = """
[mqtt]
host = "broker"
[mqtt.tls]
ca_file = "ca.pem"
[sweep]
repeats = 5
slo = { ttft = 1.0 }
[sweep.profiles.nightly-1]
concurrency = [1]
[sweep.profiles.nightly-1.engines."odd name"]
kind = "fake"
[engines.llama]
kind = "llamacpp"
args = ["--api-key", "hunter2", "--ctx", "4", "--hf-token=hunter2", "--no-mmap"]
env = { HF_TOKEN = "hunter2", OMP = "4" }
"""


def test_what_is_shown_is_a_configuration_with_the_same_meaning(box: Box) -> None:
    settings = box.load(FULL.replace("hunter2", "x"))
    again = Box(box.root / "again")
    again.write(SYSTEM, shown(settings))
    first, second = dict(settings.values()), dict(again.load().values())
    for path in (("engines", "llama", "args"), ("engines", "llama", "env", "HF_TOKEN")):
        assert first.pop(path) != second.pop(path)  # they are not shown
    assert second == first


def test_the_origin_stands_behind_every_value(box: Box) -> None:
    lines = shown(box.load(FULL), "with").splitlines()
    file = f"{box.root}/{SYSTEM}"
    assert f'host = "broker"  # {file}:3' in lines
    assert "port = 8883  # default" in lines
    assert f"ttft = 1.0  # {file}:8" in lines
    assert "# tpot is not set  # default" in lines
    assert f"concurrency = [1]  # {file}:10" in lines


def test_secrets_of_engines_are_not_shown(box: Box) -> None:
    settings = box.load(FULL)
    assert "hunter2" not in shown(settings, "with")
    assert "hunter2" not in str(document(settings))
    assert '"--no-mmap"' in shown(settings)
    assert 'OMP = "4"' in shown(settings)


def test_programs_get_values_origins_and_files(box: Box) -> None:
    made = document(box.load(FULL))
    assert made["files"] == [f"{box.root}/{SYSTEM}"]
    assert isinstance(made["settings"], dict)
    assert made["settings"]["mqtt"]["tls"]["ca_file"] == f"{box.root}/etc/edgeagent/ca.pem"
    assert isinstance(made["origins"], dict)
    assert made["origins"]["mqtt.host"] == f"{box.root}/{SYSTEM}:3"
    assert "mqtt.port" not in made["origins"]
