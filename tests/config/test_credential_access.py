"""A credential of systemd 254 and later is root's, and an access list lets the service read it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.settings import Surroundings, load
from edgeagent.settings_check import file_faults, myself, service

NOBODY = 65534
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER, _READ, _NONE = 1, 2, 4, 16, 32, 4, 0xFFFFFFFF


def let_in(path: Path, uid: int) -> None:
    """What systemd does: mode 0440 to look at, and one more user who may read."""
    rows = ((_USER_OBJ, _READ, _NONE), (_USER, _READ, uid), (_GROUP_OBJ, 0, _NONE),
            (_MASK, _READ, _NONE), (_OTHER, 0, _NONE))  # fmt: skip
    packed = b"".join(struct.pack("<HHI", *row) for row in rows)
    os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + packed)


@pytest.fixture
def credentials(ordinary_folder: Path) -> Iterator[Path]:
    """systemd's folder, while this process is in the place of the service's user."""
    if os.getuid() != 0:
        pytest.skip("only root can make a file that is root's")
    folder = ordinary_folder / "credentials"
    os.seteuid(0)
    folder.mkdir(mode=0o755)
    key = folder / "commands-key"
    key.write_text("0123456789abcdef" * 2)
    key.chmod(0o400)
    try:
        let_in(key, NOBODY)
    except OSError as error:
        pytest.skip(f"this file system takes no access lists: {error}")
    assert key.stat().st_mode & 0o777 == 0o440
    os.seteuid(NOBODY)
    os.environ["CREDENTIALS_DIRECTORY"] = str(folder)
    yield folder
    del os.environ["CREDENTIALS_DIRECTORY"]


def box(root: Path) -> Surroundings:
    return Surroundings(dict(os.environ), "box", root, root, "system", root)


KEY = ("mqtt.commands.hmac_key_file=credential:commands-key",)


def test_the_service_reads_its_credential(credentials: Path) -> None:
    settings = load(box(credentials.parent), None, KEY)
    assert file_faults(settings, myself()) == ()


def test_one_that_it_may_not_read_is_told(credentials: Path) -> None:
    os.seteuid(0)
    let_in(credentials / "commands-key", NOBODY - 1)
    os.seteuid(NOBODY)
    settings = load(box(credentials.parent), None, KEY)
    (fault,) = file_faults(settings, myself())
    assert "may not read" in fault.text


def test_on_behalf_of_the_service_a_credential_is_not_judged(credentials: Path) -> None:
    name = "nobody"
    del os.environ["CREDENTIALS_DIRECTORY"]
    settings = load(box(credentials.parent), None, KEY)
    assert file_faults(settings, service(name)) == ()
    os.environ["CREDENTIALS_DIRECTORY"] = str(credentials)
