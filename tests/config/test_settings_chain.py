"""Who wins, and who said it."""

from __future__ import annotations

from pathlib import Path

from boxes import SYSTEM, USER, VENDOR, Box
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.config import toml
from edgeagent.core.nodes import node_name
from edgeagent.settings import Surroundings, load
from edgeagent.settings_layers import lines_of


def test_a_box_without_any_file_has_its_host_name_and_the_default_site(box: Box) -> None:
    box.host_name = "Edge_07.Plant"
    settings = box.load()
    assert (settings.agent.site, settings.agent.node) == ("default", "edge-07-plant")
    assert settings.mqtt.topic_prefix == "edgeagent/v1/default/edge-07-plant"
    assert settings.mqtt.client_id == "edge-07-plant"
    assert settings.mqtt.spool.path == Path("/var/lib/edgeagent/spool.db")
    assert not settings.mqtt.enabled
    assert settings.files == ()
    assert settings.origin("mqtt", "port") == "default"


def test_each_layer_wins_over_the_one_below_and_is_named(box: Box) -> None:
    box.write(VENDOR, "[agent]\nsite = 'vendor'\nruns_max_mb = 1\nruns_max_age_d = 1\n")
    box.write(SYSTEM, "[agent]\nsite = 'system'\nruns_max_mb = 2\n[mqtt]\nwindow = 2\n")
    box.write("etc/edgeagent/conf.d/50-oem.toml", "\n[mqtt]\nwindow = 5\nunreceipted = 50\n")
    box.write("etc/edgeagent/conf.d/90-site.toml", "mqtt.window = 9\n")
    box.write("etc/edgeagent/conf.d/99-old.toml.dpkg-dist", "mqtt.window = 11\n")
    box.environment["EDGEAGENT_MQTT__UNRECEIPTED"] = "60"
    box.environment["EDGEAGENT_MQTT__KEEPALIVE_S"] = "60"
    settings = box.load(assignments=["mqtt.keepalive_s=90"])
    etc = f"{box.root}/etc/edgeagent"
    said = {
        ("agent", "runs_max_age_d"): (1, f"{box.root}/{VENDOR}:4"),
        ("agent", "site"): ("system", f"{etc}/edgeagent.toml:2"),
        ("agent", "runs_max_mb"): (2, f"{etc}/edgeagent.toml:3"),
        ("mqtt", "window"): (9, f"{etc}/conf.d/90-site.toml:1"),
        ("mqtt", "unreceipted"): (60, "EDGEAGENT_MQTT__UNRECEIPTED"),
        ("mqtt", "keepalive_s"): (90, "--set mqtt.keepalive_s"),
    }
    values = dict(settings.values())
    assert {path: (values[path], settings.origin(*path)) for path in said} == said
    assert [path.name for path in settings.files] == [
        "defaults.toml",
        "edgeagent.toml",
        "50-oem.toml",
        "90-site.toml",
    ]


def test_a_key_that_nobody_said_is_a_default_also_in_a_table_that_somebody_wrote(box: Box) -> None:
    settings = box.load("[agent]\nsite = 'plant7'\n")
    assert settings.origin("agent", "node") == "default"
    assert settings.origin("agent", "site") != "default"


def test_a_box_that_turns_out_to_be_a_copy_takes_another_name_everywhere(box: Box) -> None:
    text = "[mqtt]\nclient_id = 'agent-{node}'\n[mqtt.sparkplug]\ngroup = '{site}-{node}'\n"
    mqtt = box.load(text).as_node("edge-0001-4f").mqtt
    assert mqtt.client_id == "agent-edge-0001-4f"
    assert mqtt.topic_prefix == "edgeagent/v1/default/edge-0001-4f"
    assert mqtt.sparkplug.group == "default-edge-0001-4f"


def test_arrays_replace_and_tables_merge(box: Box) -> None:
    box.write("etc/edgeagent/conf.d/10.toml", "[sweep]\nconcurrency = [2]\n")
    settings = box.load("[sweep]\nconcurrency = [1, 4]\nrepeats = 5\n")
    assert (settings.sweep.concurrency, settings.sweep.repeats) == ([2], 5)


def test_a_given_file_stands_in_for_the_whole_chain(box: Box) -> None:
    box.write(SYSTEM, "[agent]\nsite = 'system'\nrubbish = 1\n")
    own = box.write("work/own.toml", "mqtt.window = 7\n")
    box.environment["EDGEAGENT_AGENT__NODE"] = "named"
    settings = load(box.here(), Path("own.toml"))
    assert (settings.agent.site, settings.agent.node, settings.mqtt.window) == (
        "default",
        "named",
        7,
    )
    assert settings.files == (own,)


def test_an_ordinary_user_has_a_file_and_folders_of_their_own(box: Box) -> None:
    box.write(
        SYSTEM, "[agent]\nstate_dir = '/data'\nsite = 'plant7'\n[mqtt.spool]\npath = '/s.db'\n"
    )
    box.write(USER, "[mqtt]\nwindow = 3\n")
    user, service = box.load(scope="user"), box.load(scope="system")
    home = box.root / "home/ann"
    assert user.agent.state_dir == home / ".local/state/edgeagent"
    assert user.mqtt.spool.path == home / ".local/state/edgeagent/spool.db"
    assert (user.agent.site, user.mqtt.window) == ("plant7", 3)
    assert service.agent.state_dir == Path("/data")
    assert service.agent.runs_dir == Path("/data/runs")
    assert service.mqtt.spool.path == Path("/s.db")
    assert service.mqtt.window == 20


def test_a_user_may_move_their_own_folders(box: Box) -> None:
    box.write(USER, "[agent]\nstate_dir = '~/bench'\n")
    box.environment["XDG_STATE_HOME"] = "/elsewhere"
    assert box.load(scope="user").agent.runs_dir == box.root / "home/ann/bench/runs"
    (box.root / USER).unlink()
    assert box.load(scope="user").agent.state_dir == Path("/elsewhere/edgeagent")


def test_a_path_is_relative_to_the_file_that_says_it(box: Box) -> None:
    box.write(
        "etc/edgeagent/conf.d/10.toml",
        "[mqtt.tls]\nca_file = 'pki/ca.pem'\n"
        "[engines.llama]\nkind = 'llamacpp'\nmodel = 'm.gguf'\nbinary = 'llama-server'\n"
        "[engines.wrapped]\nkind = 'llamacpp'\nmodel = '/m.gguf'\ncommand = ['./wrap', 'x/y']\n"
        "[engines.there]\nkind = 'openai'\nurl = 'http://127.0.0.1:1'\nmodel = 'qwen/3'\n"
        "[sweep]\nspeculation = ['off', 'draft:d.gguf']\nprompts = '~/p.jsonl'\n",
    )
    box.environment["EDGEAGENT_MQTT__USERNAME_FILE"] = "name"
    settings = box.load(assignments=["signing.key_file=/keys/k"])
    there = box.root / "etc/edgeagent/conf.d"
    assert settings.mqtt.tls.ca_file == there / "pki/ca.pem"
    assert settings.mqtt.username_file == box.root / "work/name"
    assert settings.signing.key_file == Path("/keys/k")
    assert settings.engines["llama"].model == str(there / "m.gguf")
    assert settings.engines["llama"].binary == "llama-server"  # looked up in PATH
    assert settings.engines["wrapped"].command == [str(there / "wrap"), "x/y"]
    assert settings.engines["there"].model == "qwen/3"  # a name, at that server
    assert settings.sweep.speculation == ["off", f"draft:{there / 'd.gguf'}"]
    assert settings.sweep.prompts == str(box.root / "home/ann/p.jsonl")


def test_a_credential_is_where_systemd_puts_it(box: Box) -> None:
    text = "[mqtt.tls]\ncert_file = 'c.pem'\nkey_file = 'credential:mqtt-key'\n"
    outside = box.load(text).mqtt.tls.key_file
    assert outside == Path("/run/credentials/edgeagent.service/mqtt-key")
    inside = box.load(environment={"CREDENTIALS_DIRECTORY": "/run/credentials/x.service"})
    assert inside.mqtt.tls.key_file == Path("/run/credentials/x.service/mqtt-key")


def test_the_environment_speaks_in_the_types_of_the_keys(box: Box) -> None:
    settings = box.load(
        environment={
            "EDGEAGENT_AGENT__NODE": "42",
            "EDGEAGENT_MQTT__ENABLED": "true",
            "EDGEAGENT_MQTT__HOST": "::1",
            "EDGEAGENT_MQTT__PORT": "1883",
            "EDGEAGENT_MQTT__LIVE_INTERVAL_S": "2",
            "EDGEAGENT_MQTT__CLIENT_ID": "{node}-a",
            "EDGEAGENT_MQTT__TLS__CA_FILE": "",
            "EDGEAGENT_SWEEP__CONCURRENCY": "1,2",
            "EDGEAGENT_SWEEP__SEED": "7",
            "EDGEAGENT_SCHEDULE__WINDOWS": '["Sat 01:00-02:00", "Sun 03:00-04:00"]',
        }
    )
    assert settings.agent.node == "42"
    assert settings.mqtt.enabled
    assert (settings.mqtt.port, settings.mqtt.live_interval_s) == (1883, 2.0)
    assert settings.mqtt.client_id == "42-a"
    assert settings.mqtt.tls.ca_file is None
    assert (settings.sweep.concurrency, settings.sweep.seed) == ([1, 2], 7)
    assert settings.schedule.windows == ("Sat 01:00-02:00", "Sun 03:00-04:00")


def test_a_variable_that_is_no_setting_is_a_warning_and_names_what_was_meant(box: Box) -> None:
    settings = box.load(
        environment={
            "EDGEAGENT_MQTT__PROT": "1",
            "EDGEAGENT_MQTT_HOST": "broker",
            "EDGEAGENT_SYSROOT": "/x",
            "HOME": "/y",
        }
    )
    assert [str(warning) for warning in settings.warnings] == [
        "EDGEAGENT_MQTT_HOST is not a known key, did you mean EDGEAGENT_MQTT__HOST?",
        "EDGEAGENT_MQTT__PROT is not a known key, did you mean EDGEAGENT_MQTT__PORT?",
    ]


def test_lines_are_those_of_the_statements() -> None:
    text = (
        "# about\n"
        "top.key = 1\n"
        "\n"
        "[a.'b c'] # header\n"
        'text = """\n[not.a.header]\nkey = 2\n"""\n'
        "list = [\n  1, # one\n  2,\n]\n"
        "inside = { x = 1, y.z = 2 }\n"
        "last = 1\n"
    )
    assert lines_of(text) == {
        ("top",): 2,
        ("top", "key"): 2,
        ("a", "b c"): 4,
        ("a", "b c", "text"): 5,
        ("a", "b c", "list"): 9,
        ("a", "b c", "inside"): 13,
        ("a", "b c", "inside", "x"): 13,
        ("a", "b c", "inside", "y"): 13,
        ("a", "b c", "inside", "y", "z"): 13,
        ("a", "b c", "last"): 14,
    }


NAMES = st.text("abc-_", min_size=1, max_size=3)
VALUES = st.sampled_from(
    [
        "1",
        '"[x]"',
        "'''\n[t]\nk = 1\n'''",
        '"""a\\\n  b"""',
        "[\n1,\n# ]\n2]",
        "{ k = 'v' }",
        "true",
    ]
)
STATEMENTS = st.one_of(
    st.builds("[{}]".format, NAMES),
    st.builds("{} = {}".format, NAMES, VALUES),
    st.builds("{}.{} = {}".format, NAMES, NAMES, VALUES),
    st.sampled_from(["", "# k = 1", "   "]),
)


@given(st.lists(STATEMENTS, max_size=8))
def test_every_key_of_a_file_has_a_line_on_which_its_name_stands(statements: list[str]) -> None:
    text = "\n".join(statements)
    try:
        document = toml(text)
    except ValueError:
        return  # keys given twice
    lines = text.split("\n")
    found = lines_of(text)
    for table, below in document.items():
        assert table in lines[found[(table,)] - 1]
        if isinstance(below, dict):
            for key in below:
                assert key in lines[found[table, key] - 1]


@given(st.text(max_size=80))
def test_every_host_name_makes_a_sound_node(host_name: str) -> None:
    here = Surroundings({"EDGEAGENT_AGENT__NODE": node_name(host_name)}, "x", Path("/"), Path("/"))
    assert load(here, Path("/dev/null")).agent.node == node_name(host_name)
