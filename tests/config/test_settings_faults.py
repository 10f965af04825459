"""What is wrong is told at once, with its place, and with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from boxes import SYSTEM, Box
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import UsageError
from edgeagent.settings import SettingsError, Surroundings, _checked, _settings, examine, load
from edgeagent.settings_layers import Reading, Source

ETC = "etc/edgeagent/edgeagent.toml"


def test_all_faults_are_told_at_once_over_all_sources(box: Box) -> None:
    box.write("etc/edgeagent/conf.d/10-oem.toml", "[mqtt\n")
    box.write("etc/edgeagent/conf.d/20-site.toml", "[agent]\nsite = 'Plant 7'\n")
    faults = box.faults(
        "[mqtt]\nprot = 1\nport = '8883'\n[mqtt.tls]\nca_fil = 'x'\n[shedule]\n",
        {"EDGEAGENT_MQTT__WINDOW": "many"},
    )
    assert faults == [
        "etc/edgeagent/conf.d/10-oem.toml is not TOML "
        "(Expected ']' at the end of a table declaration (at line 1, column 6)): correct that line",
        "etc/edgeagent/conf.d/20-site.toml:2: agent.site should be 2 to 63 of a-z, 0-9 and -, "
        "and not begin with -, not 'Plant 7'",
        f"{ETC}:2: mqtt.prot is not a known key, did you mean mqtt.port?",
        f"{ETC}:3: mqtt.port should be a valid integer, not '8883'",
        f"{ETC}:5: mqtt.tls.ca_fil is not a known key, did you mean mqtt.tls.ca_file?",
        f"{ETC}:6: shedule is not a known key, did you mean schedule?",
        "EDGEAGENT_MQTT__WINDOW: mqtt.window should be a valid integer, not 'many'",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[mqtt]\nca_file = 'x'\n",
            ":2: mqtt.ca_file is not a known key, did you mean mqtt.tls.ca_file?",
        ),
        ("mqtt = 3\n", ":1: mqtt should be a table: write [mqtt] and its keys below it, not 3"),
        ("[mqtt]\ntls = 'on'\n", ":2: mqtt.tls should be a table: write [mqtt.tls] and its keys"),
        ("[mqtt]\nenabled = 1\n", ":2: mqtt.enabled should be a valid boolean, not 1"),
        (
            "[mqtt]\nprotocol = '4'\n",
            ":2: mqtt.protocol should be 'auto', '5' or '3.1.1', not '4'",
        ),
        ("[mqtt]\nwindow = 0\n", ":2: mqtt.window should be greater than or equal to 1, not 0"),
        ("[mqtt]\nhost = 'mqtt://b:1'\n", ":2: mqtt.host should be a host alone"),
        (
            "[mqtt]\ntopic_prefix = 'a/{node}/#'\n",
            ":2: mqtt.topic_prefix may hold {site} and {node}",
        ),
        ("[mqtt]\ntopic_prefix = 'a/b'\n", ":2: mqtt.topic_prefix should hold {node}"),
        ("[mqtt]\nclient_id = 'a+'\n", ":2: mqtt.client_id may hold"),
        ("[mqtt.tls]\nca_file = 3\n", ":2: mqtt.tls.ca_file should be the path of a file, not 3"),
        ("[mqtt.tls]\nca_file = 'credential:a/b'\n", ":2: mqtt.tls.ca_file names no credential"),
        ("[schedule]\nwindows = ['noon']\n", ":2: schedule.windows 'noon' is not a window"),
        ("[schedule]\nwindows = 'Mon 01:00-02:00'\n", ":2: schedule.windows should be a list"),
        (
            "[schedule]\nproduction_unit = 'vllm'\n",
            ":2: schedule.production_unit should be the name",
        ),
        (
            "[schedule]\nproduction_url = 'http://u:p@h'\n",
            ":2: schedule.production_url should be a URL",
        ),
        (
            "[sweep.profiles.night]\nrepeat = 1\n",
            ":2: sweep.profiles.night.repeat is not a known key, did you "
            "mean sweep.profiles.night.repeats?",
        ),
        (
            "[sweep.profiles.night.engines.a]\nkind = 'lama'\n",
            ":2: sweep.profiles.night.engines.a.kind should be",
        ),
        (
            "[engines.a]\nmodell = 'x'\n",
            ":2: engines.a.modell is not a known key, did you mean engines.a.model?",
        ),
        ("[sweep]\nconcurrency = [1, 0]\n", ":2: sweep.concurrency.1 should be greater"),
        ("[agent]\nruns_max_mb = nan\n", ":2: agent.runs_max_mb should be a valid integer"),
        (
            "[telemetry]\nsample_interval_s = inf\n",
            ":2: telemetry.sample_interval_s should be a finite number",
        ),
    ],
)
def test_one_fault_is_one_sentence_with_file_line_and_key(box: Box, text: str, told: str) -> None:
    (fault,) = box.faults(text)
    assert fault.startswith(f"{ETC}{told}")


@pytest.mark.parametrize(
    "text",
    [
        "[mqtt]\npassword = 'hunter2'\n",
        "[mqtt]\nPASSWORD = 'hunter2'\n",
        "[mqtt.commands]\nhmac_key = 'hunter2'\n",
        "[mqtt]\ntls = { passphrase = 'hunter2' }\n",
        "[engines.a]\napi_key = 'hunter2'\n",
        "[mqtt.password]\nvalue = 'hunter2'\n",
        "token = 'hunter2'\n",
    ],
)
def test_a_secret_in_the_configuration_is_refused_and_never_repeated(box: Box, text: str) -> None:
    (fault,) = box.faults(text)
    assert "a configuration holds none: put it into a file" in fault
    assert "hunter2" not in fault


def test_the_key_for_the_secrets_file_is_named(box: Box) -> None:
    (fault,) = box.faults("[mqtt]\npassword = 'x'\n")
    assert fault.endswith("and name that file with mqtt.password_file")


def test_a_secret_in_the_environment_is_refused_too(box: Box) -> None:
    (fault,) = box.faults("", {"EDGEAGENT_MQTT__PASSWORD": "hunter2"})
    assert fault.startswith("EDGEAGENT_MQTT__PASSWORD: mqtt.password is a secret")
    assert "hunter2" not in fault


def test_what_cannot_be_read_is_told_with_its_name(ordinary_folder: Path) -> None:
    box = Box(ordinary_folder)
    box.write(SYSTEM, "", mode=0o000)
    box.write("etc/edgeagent/conf.d/b.toml/x", "")
    (box.root / "etc/edgeagent/conf.d/c.toml").write_bytes(b"\xff")
    (box.root / "etc/edgeagent/conf.d/d.toml").symlink_to("nowhere")
    with pytest.raises(SettingsError) as caught:
        box.load()
    told = [str(fault).replace(f"{box.root}/etc/edgeagent/", "") for fault in caught.value.faults]
    advice = "make it a text file that this user may read"
    assert told == [
        f"conf.d/b.toml cannot be read (is a directory): {advice}",
        f"conf.d/c.toml cannot be read (not UTF-8 text): {advice}",
        "conf.d/d.toml does not exist: give a file that does",
        f"edgeagent.toml cannot be read (permission denied): {advice}",
    ]


def test_a_given_file_must_exist(box: Box) -> None:
    with pytest.raises(SettingsError, match=r"gone\.toml does not exist") as caught:
        load(box.here(), Path("gone.toml"))
    assert caught.value.exit_status == 78


def test_a_configuration_that_everybody_may_write_is_refused(box: Box) -> None:
    box.write(SYSTEM, "", mode=0o666)
    with pytest.raises(SettingsError, match=r"may be written by everybody: chmod o-w"):
        box.load()


def test_a_file_with_a_byte_order_mark_is_read(box: Box) -> None:
    assert box.load("\ufeff[agent]\nsite = 'plant7'\n").agent.site == "plant7"


def test_what_was_typed_wrong_is_no_fault_of_the_file(box: Box) -> None:
    with pytest.raises(SettingsError, match=r"--set mqtt\.prot: mqtt\.prot is not") as caught:
        box.load(assignments=["mqtt.prot=1"])
    assert caught.value.exit_status == 2
    with pytest.raises(UsageError, match=r"write it like --set mqtt\.host="):
        box.load(assignments=["mqtt.host"])


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["mqtt", "tls", "sweep", "profiles", "engines", "speculation", "command", "model", "windows"]
)


@given(st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=5), JSON_LIKE), max_size=4))
def test_whatever_is_written_ends_in_settings_or_in_faults(
    assignments: list[tuple[list[str], object]],
) -> None:
    reading = Reading(Surroundings({}, "box", Path("/h"), Path("/w")))
    for path, value in assignments:
        document: object = value
        for name in reversed(path):
            document = {name: document}
        assert isinstance(document, dict)
        reading.put(Source(document, "file", Path("/f")))
    assert _settings(_checked(reading), reading).agent.node == "box"


@given(
    st.dictionaries(st.from_regex(r"EDGEAGENT_[A-Z_]{0,30}", fullmatch=True), st.text(max_size=20))
)
def test_whatever_the_environment_holds_ends_in_settings_or_in_faults(
    environment: dict[str, str],
) -> None:
    settings, _ = examine(
        Surroundings(environment, "box", Path("/h"), Path("/w")), Path("/dev/null")
    )
    assert settings.agent.node
