"""Files that the configuration names: there, readable to whom it concerns, and to nobody else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from boxes import Box

from edgeagent.errors import ConfigError
from edgeagent.settings import SettingsError
from edgeagent.settings_check import Reader, check, file_faults, require_files, service

ME = Reader(os.geteuid(), frozenset({os.getegid()}), trusted=frozenset({0, os.geteuid()}))
STRANGER = 54_321


def told(box: Box, text: str, reader: Reader = ME) -> list[str]:
    return [str(fault).replace(f"{box.root}/", "") for fault in file_faults(box.load(text), reader)]


def test_a_box_that_names_no_file_has_no_fault(box: Box) -> None:
    assert told(box, "") == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o444])
def test_a_secret_that_others_may_read_is_refused(box: Box, mode: int) -> None:
    box.write("etc/edgeagent/pw", "x", mode)
    box.write("etc/edgeagent/user", "x")
    (fault,) = told(box, "[mqtt]\nusername_file = 'user'\npassword_file = 'pw'\n")
    assert fault == (
        f"etc/edgeagent/edgeagent.toml:3: mqtt.password_file names etc/edgeagent/pw, "
        f"which others may read (mode {mode:04o}): chmod 0400 etc/edgeagent/pw"
    )


@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_a_secret_of_our_own_is_fine(box: Box, mode: int) -> None:
    box.write("etc/edgeagent/key", "x", mode)
    assert told(box, "[signing]\nkey_file = 'key'\n") == []


def test_every_kind_of_secret_is_looked_at(box: Box) -> None:
    box.write("etc/edgeagent/s", "x", 0o644)
    text = (
        "[mqtt]\nusername_file = 's'\npassword_file = 's'\n"
        "[mqtt.tls]\ncert_file = 's'\nkey_file = 's'\n"
        "[mqtt.commands]\nhmac_key_file = 's'\n[signing]\nkey_file = 's'\n"
        "[engines.a]\napi_key_file = 's'\n[sweep.profiles.p.engines.b]\napi_key_file = 's'\n"
    )
    named = [fault.split(": ")[1].split(" ")[0] for fault in told(box, text)]
    assert named == [
        "mqtt.password_file",
        "mqtt.tls.key_file",
        "mqtt.commands.hmac_key_file",
        "signing.key_file",
        "engines.a.api_key_file",
        "sweep.profiles.p.engines.b.api_key_file",
    ]


def test_a_file_that_is_not_there_or_no_file_is_named(box: Box) -> None:
    box.write("etc/edgeagent/folder/x", "")
    faults = told(box, "[mqtt.tls]\nca_file = 'gone'\ncrl_file = 'folder'\n")
    assert [fault.split(" names ")[1] for fault in faults] == [
        "etc/edgeagent/gone, which cannot be looked at (no such file or directory): put it there",
        "etc/edgeagent/folder, which is no file: name a file",
    ]


def test_a_credential_is_guarded_by_systemd(box: Box) -> None:
    box.write("credentials/key", "x", 0o440)
    box.environment["CREDENTIALS_DIRECTORY"] = f"{box.root}/credentials"
    text = "[signing]\nkey_file = 'credential:key'\n"
    assert told(box, text, replace(ME, credentials=box.root / "credentials")) == []


def test_a_credential_is_no_fault_while_the_service_does_not_run(box: Box) -> None:
    assert told(box, "[signing]\nkey_file = 'credential:key'\n") == []


def test_on_behalf_of_the_service_modes_and_owners_count(box: Box) -> None:
    box.write("etc/edgeagent/key", "x", 0o400)
    stranger = replace(ME, uid=STRANGER, gids=frozenset(), name="user edgeagent")
    box.root.chmod(0o755)
    (fault,) = [
        fault
        for fault in told(box, "[signing]\nkey_file = 'key'\n", stranger)
        if "which user edgeagent may not read" in fault
    ]
    assert fault.startswith("etc/edgeagent/edgeagent.toml:2: signing.key_file")


def test_a_secret_of_somebody_else_is_refused(box: Box) -> None:
    box.write("etc/edgeagent/key", "x", 0o400)
    reader = Reader(STRANGER, trusted=frozenset({STRANGER}))
    faults = told(box, "[signing]\nkey_file = 'key'\n", reader)
    assert any("belongs to somebody else" in fault for fault in faults)


COMMANDS = "[mqtt.commands]\nenabled = true\npolicy_file = 'policy/commands.toml'\n"
POLICY = "etc/edgeagent/policy/commands.toml"


def test_the_policy_is_looked_at_once_commands_are_listened_to(box: Box) -> None:
    assert told(box, COMMANDS.replace("true", "false")) == []
    (fault,) = told(box, COMMANDS)
    assert fault.startswith(f"{POLICY} does not exist, but mqtt.commands is enabled")


def test_a_policy_that_root_alone_may_write_is_fine(box: Box) -> None:
    box.write(POLICY, "")
    assert told(box, COMMANDS) == []


def test_every_fault_of_the_policy_is_told(box: Box) -> None:
    box.write(POLICY, "operation = []\nwhen_busy = 'run'\n")
    faults = told(box, COMMANDS)
    assert [fault.startswith(f"{POLICY}: ") for fault in faults] == [True, True]


def test_a_policy_that_others_may_write_is_refused(box: Box) -> None:
    box.write(POLICY, "", 0o664)
    (fault,) = told(box, COMMANDS)
    assert "has mode 0664" in fault


def test_a_policy_that_others_may_replace_is_refused(box: Box) -> None:
    box.write(POLICY, "").parent.chmod(0o775)
    (fault,) = told(box, COMMANDS)
    assert fault.startswith("etc/edgeagent/policy may be written by others than root")


def test_a_policy_that_is_not_roots_is_refused(box: Box) -> None:
    box.write(POLICY, "")
    (fault,) = told(box, COMMANDS, replace(ME, trusted=frozenset({STRANGER})))
    assert "is not the word of this box's owner" in fault


def test_a_policy_for_what_is_not_configured_is_a_warning(box: Box) -> None:
    box.write(POLICY, "profiles = ['nightlly']\nproduction_units = ['a.service']\n")
    text = f"{COMMANDS}[schedule]\nproduction_unit = 'b.service'\n[sweep.profiles.nightly]\n"
    faults = file_faults(box.load(text), ME)
    assert {fault.severity for fault in faults} == {"warning"}
    assert (
        "nightlly is allowed, and there is no [sweep.profiles.nightlly], did you mean nightly?"
        in str(faults[0])
    )
    assert "is b.service, which production_units of" in str(faults[1])


def test_a_profile_that_cannot_be_a_plan_is_a_fault(box: Box) -> None:
    settings = box.load(
        "[sweep.profiles.night]\nconcurrency = [2, 2]\n[engines.a]\nkind = 'fake'\n"
    )
    (fault,) = check(settings, ME)
    assert "sweep.profiles.night" in str(fault)
    assert "names 2 more than once" in str(fault)


def test_a_model_that_the_service_cannot_see_is_a_warning(box: Box) -> None:
    model = box.write("home/model.gguf", "x")
    settings = box.load(
        f"[sweep.profiles.night]\n[engines.a]\nkind = 'llamacpp'\nmodel = '{model}'\n"
        "[engines.b]\nkind = 'llamacpp'\nmodel = '/home/ann/m.gguf'\n"
    )
    faults = check(settings, replace(ME, home_hidden="hidden"))
    assert {fault.severity for fault in faults} == {"warning"}
    assert "the service cannot look into home: move it to /var/lib/edgeagent/models" in str(
        faults[0]
    )
    assert "uses /home/ann/m.gguf, which cannot be looked at" in str(faults[1])
    assert len(faults) == 2


def test_a_secret_in_an_engines_environment_is_a_warning(box: Box) -> None:
    text = "[sweep.profiles.n]\n[engines.a]\nkind = 'fake'\nenv = { HF_TOKEN = 'hunter2' }\n"
    (fault,) = check(box.load(text), ME)
    assert (fault.severity, "HF_TOKEN" in fault.text) == ("warning", True)
    assert "hunter2" not in str(fault)


def test_who_needs_the_files_is_stopped_by_all_of_them_at_once(box: Box) -> None:
    settings = box.load("[mqtt.tls]\nca_file = 'a'\ncrl_file = 'b'\n")
    with pytest.raises(SettingsError, match=r"has 2 faults:\n.*ca_file.*\n.*crl_file"):
        require_files(settings, ME)


def test_a_user_that_this_box_lacks_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="user no-such-user does not exist here"):
        service("no-such-user")


def test_a_folder_that_lets_nobody_in_hides_its_file(ordinary_folder: Path) -> None:
    box = Box(ordinary_folder)
    box.write("etc/edgeagent/shut/ca.pem", "x")
    stranger = Reader(STRANGER, name="user edgeagent")
    text = "[mqtt.tls]\nca_file = 'shut/ca.pem'\n"
    faults = [told(box, text, stranger)]
    ordinary_folder.chmod(0o755)
    faults.append(told(box, text, stranger))
    assert [len(found) for found in faults] == [1, 0]
