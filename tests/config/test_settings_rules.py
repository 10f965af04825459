"""Keys that do not fit together: above all, nothing goes over a network unprotected by accident."""

from __future__ import annotations

import pytest
from boxes import Box

FILES = "[mqtt.tls]\nca_file = '/ca.pem'\n"


@pytest.mark.parametrize(
    ("text", "encrypted"),
    [
        ("host = 'broker.plant'\n", True),
        ("host = 'broker.plant'\nallow_plaintext = true\n", False),
        ("host = 'broker.plant'\nallow_plaintext = true\n" + FILES, True),
        ("host = 'broker.plant'\nport = 1883\nallow_plaintext = true\n", False),
        ("host = 'localhost'\n", False),
        ("host = '127.0.0.9'\nport = 1883\n", False),
        ("host = '[::1]'\n", False),
        ("host = 'localhost'\n" + FILES, True),
        ("host = 'localhost'\n[mqtt.tls]\nmode = 'on'\n", True),
        ("host = 'localhost.evil.example'\n", True),
        ("transport = 'unix'\nunix_socket = '/run/m.sock'\n", False),
        ("host = 'broker.plant'\nport = 1883\n[mqtt.tls]\nmode = 'on'\n", True),
        ("host = 'broker.plant'\nallow_plaintext = true\n[mqtt.tls]\nmode = 'off'\n", False),
    ],
)
def test_tls_is_spoken_unless_somebody_said_otherwise(box: Box, text: str, encrypted: bool) -> None:  # noqa: FBT001  # because it is the expected answer
    settings = box.load("[mqtt]\nenabled = true\n" + text)
    assert settings.encrypted() is encrypted


def test_plaintext_to_another_machine_is_refused_by_its_port(box: Box) -> None:
    (fault,) = box.faults("[mqtt]\nhost = '192.168.1.5'\nport = 1883\n")
    assert fault.startswith(
        "etc/edgeagent/edgeagent.toml:3: mqtt.port is 1883, the port without TLS, and 192.168.1.5 "
        "is another machine: "
    )
    assert fault.endswith("use TLS, or say allow_plaintext = true if that is meant")


def test_plaintext_to_another_machine_is_refused_by_its_mode(box: Box) -> None:
    (fault,) = box.faults("[mqtt]\nhost = 'broker'\n[mqtt.tls]\nmode = 'off'\n")
    assert fault.startswith("etc/edgeagent/edgeagent.toml:4: mqtt.tls.mode is off, and broker is")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[mqtt]\nenabled = true\n", "mqtt.host is empty, and mqtt.enabled is true"),
        (
            "[mqtt]\nenabled = true\nhost = 'x'\ntransport = 'unix'\n",
            "mqtt.unix_socket is empty, and mqtt.enabled is true",
        ),
        (
            "[mqtt.tls]\ncert_file = 'c'\n",
            "mqtt.tls.cert_file is of no use without mqtt.tls.key_file",
        ),
        (
            "[mqtt.tls]\nkey_file = 'c'\n",
            "mqtt.tls.key_file is of no use without mqtt.tls.cert_file",
        ),
        (
            "[mqtt]\npassword_file = 'c'\n",
            "mqtt.password_file is of no use without mqtt.username_file",
        ),
        ("[mqtt.spool]\nmax_mb = 100\n", "mqtt.spool.reserve_results_mb leaves telemetry nothing"),
        (
            "[mqtt]\ntransport = 'unix'\n[mqtt.tls]\nmode = 'on'\n",
            "mqtt.tls.mode is on, but a unix socket never leaves this machine",
        ),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(box: Box, text: str, told: str) -> None:
    (fault,) = box.faults(text)
    assert told in fault


def test_a_password_in_plaintext_is_a_warning(box: Box) -> None:
    settings = box.load(
        "[mqtt]\nhost = 'broker'\nallow_plaintext = true\n"
        "username_file = '/u'\npassword_file = '/p'\n"
    )
    (warning,) = settings.warnings
    assert "mqtt.password_file goes to broker without TLS" in str(warning)


@pytest.mark.parametrize("name", ["localhost", "ubuntu"])
def test_a_host_name_that_many_boxes_have_is_a_warning(box: Box, name: str) -> None:
    box.host_name = name
    (warning,) = box.load("[mqtt]\nenabled = true\nhost = 'broker'\n").warnings
    assert f"agent.node is not set, and the host name {name} is many boxes' name" in str(warning)


def test_placeholders_are_filled_in_and_the_template_is_kept(box: Box) -> None:
    settings = box.load(
        "[agent]\nsite = 'plant7'\nnode = 'press-3'\n"
        "[mqtt]\ntopic_prefix = 'acme/{site}/line/{node}/x'\n"
    )
    assert settings.mqtt.topic_prefix == "acme/plant7/line/press-3/x"
    assert settings.topic_template == "acme/{site}/line/{node}/x"
    assert settings.mqtt.sparkplug.group == "plant7"


def test_settings_do_not_change(box: Box) -> None:
    settings = box.load()
    with pytest.raises(ValueError, match="frozen"):
        settings.mqtt.port = 1
