"""No secret of this box is in what the doctor says, wherever it comes from."""

from __future__ import annotations

import json
import string
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from edgeagent.doctor import redaction
from edgeagent.doctor.redaction import HIDDEN, known_secrets, redacted
from edgeagent.settings import Surroundings, examine

LETTERS = string.ascii_letters + string.digits + "-_.+/"
secrets = st.text(LETTERS, min_size=8, max_size=40).filter(lambda word: word.strip("-_.+/") == word)

CONFIG = """\
[mqtt]
enabled = true
host = "127.0.0.1"
password = "{0}"
password_file = "{folder}/password"
username_file = "{folder}/user"
[mqtt.tls]
cert_file = "{folder}/cert"
key_file = "{folder}/key"
[signing]
key_file = "{folder}/signing"
[engines.mine]
kind = "llamacpp"
args = ["--api-key", "{1}", "--hf-token={2}"]
env = {{ HF_TOKEN = "{3}", CUDA_VISIBLE_DEVICES = "0" }}
[engines.other]
url = "http://anna:{4}@127.0.0.1:8080"
[sweep.profiles.nightly]
concurrency = [1]
[sweep.profiles.nightly.engines.mine]
model = "/m.gguf"
env = {{ API_KEY = "{5}" }}
"""


@given(st.lists(secrets, min_size=9, max_size=9, unique=True))
@effort(max_examples=30)
def test_whatever_is_configured_as_a_secret_appears_nowhere(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "edgeagent.toml").write_text(CONFIG.format(*words, folder=folder))
        for index, file in ((6, "password"), (7, "key"), (8, "signing")):
            (folder / file).write_text(f"{words[index]}\n")
        (folder / "cert").write_text("a certificate\n")
        (folder / "user").write_text("edge-0001\n")
        here = Surroundings({}, "box", folder, folder)
        settings, _ = examine(here, folder / "edgeagent.toml")
        found = known_secrets(settings, [folder / "edgeagent.toml"], {"MY_TOKEN": words[0]})

    said = {
        "checks": [{"name": "engine", "text": f"it said {w} and more", "hint": w} for w in words],
        "joined": "".join(words),
    }
    told = json.dumps(redacted(said, found))

    for word in words:
        assert word not in told


@pytest.mark.parametrize(
    "text",
    [
        "http://anna:s3cr3t-word@broker:1883/x",
        "mqtts://s3cr3t-word@broker",
        "Authorization: Bearer s3cr3t-word",
        "it was started with --api-key s3cr3t-word --port 1",
        "HF_TOKEN=s3cr3t-word llama-server",
        '{"password": "s3cr3t-word"}',
        "url?access_token=s3cr3t-word&x=1",
        "-----BEGIN EC PRIVATE KEY-----\ns3cr3t-word\n-----END EC PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\ns3cr3t-word, and cut off",
    ],
)
def test_what_looks_like_a_secret_is_left_out_though_nobody_knows_it(text: str) -> None:
    (cleaned,) = redacted([text], frozenset())

    assert "s3cr3t-word" not in cleaned
    assert HIDDEN in cleaned


@pytest.mark.parametrize(
    "text",
    [
        "set mqtt.password_file, or allow anonymous",
        "mqtt.password is a secret, and a configuration holds none",
        "https://docs.example.com/a@b",
        "mqtt.tls.key_file /etc/edgeagent/pki/node.key may be read by others (mode 0644)",
        "tokens/s 33.4; token counts match",
    ],
)
def test_what_names_a_secret_without_telling_it_stays(text: str) -> None:
    assert redacted(text, frozenset()) == text


def test_structure_numbers_and_names_stay() -> None:
    document = {"schema": "a/1", "name": "ok-word", "n": 3, "none": None, "list": [True, "ok-word"]}

    assert redacted(document, frozenset({"ok-word"})) == {
        **document,
        "list": [True, HIDDEN],
    }


def test_a_configuration_that_is_no_toml_keeps_its_secret_too(tmp_path: Path) -> None:
    path = tmp_path / "edgeagent.toml"
    path.write_text('[mqtt\npassword = "hunter2hunter2"\n')
    settings, faults = examine(Surroundings({}, "box", tmp_path, tmp_path), path)

    assert faults
    assert "hunter2hunter2" in known_secrets(settings, [path], {})


def test_a_secret_of_a_few_letters_is_none() -> None:
    assert redaction.SHORTEST == 4
    settings, _ = examine(Surroundings({}, "box", Path("/"), Path("/")))

    assert known_secrets(settings, [], {"A_TOKEN": "abc", "B_TOKEN": "abcd"}) == {"abcd"}
