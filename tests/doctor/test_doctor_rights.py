"""What another user may do is tried in that user's rights, and a look that hangs ends."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import pytest

from edgeagent.core.diagnosis import Check
from edgeagent.doctor import accounts, files, rights
from edgeagent.doctor.accounts import Account
from edgeagent.doctor.bounded import Errand, OverdueError, within
from edgeagent.doctor.examination import Findings, subject_of
from edgeagent.probes.surroundings import place
from edgeagent.settings import Settings, Surroundings, load

STRANGER = Account("edgeagent", 54_321, frozenset({54_321, 54_322}), 54_321)


def as_stranger(path: Path) -> str | None:
    """Why the stranger may not read a file; only root can find that out."""
    found = rights.look(STRANGER, lambda: files.refusal(path, os.R_OK), 30.0)
    assert found is None or isinstance(found, str)
    return found


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder of root's that everybody may enter, which pytest's own is not."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp(prefix="edgeagent-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_file_for_root_alone_is_closed_to_the_service(open_folder: Path) -> None:
    key = open_folder / "node.key"
    key.write_text("key")
    key.chmod(0o400)

    assert as_stranger(key) == "mode 0400 and owner do not allow it"
    os.chown(key, STRANGER.uid, STRANGER.gid)
    assert as_stranger(key) is None


def test_a_group_of_the_service_opens_what_its_group_may_read(open_folder: Path) -> None:
    model = open_folder / "model.gguf"
    model.write_text("weights")
    model.chmod(0o640)
    os.chown(model, 0, 54_322)

    assert as_stranger(model) is None


def test_a_closed_folder_on_the_way_is_named(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir()
    (closed / "model.gguf").write_text("weights")
    closed.chmod(0o700)

    assert as_stranger(closed / "model.gguf") == f"the folder {closed} is closed to it"


def test_what_is_not_there_is_not_called_closed(open_folder: Path) -> None:
    assert as_stranger(open_folder / "nothing") == "no such file or directory"


def test_a_child_that_hangs_is_given_up_and_ended() -> None:
    def hang() -> None:
        while True:
            time.sleep(60)

    before = children()
    with pytest.raises(OverdueError, match=r"0\.2 s"):
        rights.look(None, hang, 0.2)

    assert children() == before


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_child_with_a_bug_says_so() -> None:
    def broken() -> None:
        raise ValueError("a bug")

    with pytest.raises(rights.CannotLookError, match="ValueError: a bug"):
        rights.look(None, broken, 30.0)


def test_a_child_that_is_killed_says_so() -> None:
    with pytest.raises(rights.CannotLookError, match="ended early"):
        rights.look(None, lambda: os.kill(os.getpid(), 9), 30.0)


def test_nothing_of_the_child_comes_back_into_ours() -> None:
    assert rights.look(None, os.getpid, 30.0) != os.getpid()


# ----------------------------------------------------------------------------------------- accounts


def listed(root: Path, passwd: str, group: str) -> Path:
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text(passwd)
    (root / "etc/group").write_text(group)
    return root


def test_below_another_root_its_own_files_name_users_and_groups(tmp_path: Path) -> None:
    root = listed(
        tmp_path,
        "root:x:0:0::/root:/bin/sh\nedgeagent:x:998:997::/:/usr/sbin/nologin\nbroken:x:a:b:::\n",
        "edgeagent:x:997:\nvideo:x:44:edgeagent,anna\nrender:x:105:anna\nnonsense\n",
    )

    assert accounts.account(root, "edgeagent") == Account(
        "edgeagent", 998, frozenset({997, 44}), 997
    )
    assert accounts.account(root, "broken") is None
    assert accounts.account(root, "nobody-here") is None
    assert accounts.group(root, "render") == 105
    assert accounts.group(root, "gone") is None
    assert accounts.group_name(root, 44) == "video"
    assert accounts.group_name(root, 4711) == "4711"


def test_this_system_is_asked_itself() -> None:
    root = accounts.account(Path("/"), "root")

    assert root is not None
    assert root.uid == 0
    assert accounts.account(Path("/"), "no-such-user-here") is None
    assert accounts.myself().uid == os.geteuid()


# ------------------------------------------------------------------------------------------ bounded


def test_work_that_is_done_gives_its_result_and_work_that_fails_its_error() -> None:
    def broken() -> int:
        raise ValueError("no")

    assert within(30.0, lambda: 7) == 7
    with pytest.raises(ValueError, match="no"):
        within(30.0, broken)


def test_errands_run_beside_each_other_and_late_ones_are_left() -> None:
    late = Errand(lambda: time.sleep(3600), 0.2)
    done = Errand(lambda: "done", 30.0)

    assert done.result() == "done"
    with pytest.raises(OverdueError):
        late.result()


# ------------------------------------------------------------------------------ on whose behalf


def with_service(root: Path, uid: int) -> Path:
    return listed(root, f"edgeagent:x:{uid}:{uid}::/:/usr/sbin/nologin\n", f"edgeagent:x:{uid}:\n")


def scoped(scope: Literal["system", "user"]) -> Settings:
    return load(Surroundings({}, "box", Path("/nowhere"), Path("/"), scope))


def test_root_looks_as_the_services_user_and_that_user_as_itself(tmp_path: Path) -> None:
    other = subject_of(with_service(tmp_path, os.geteuid() + 7), scoped("system"))
    shutil.rmtree(tmp_path / "etc")
    own = subject_of(with_service(tmp_path, os.geteuid()), scoped("system"))

    assert other.may_become == ("can" if os.geteuid() == 0 else "cannot")
    assert other.whose == "user edgeagent"
    assert own.may_become == "self"


def test_an_ordinary_user_cannot_look_as_the_service_and_is_told_so(ordinary_folder: Path) -> None:
    root = with_service(ordinary_folder, os.geteuid() + 7)

    assert subject_of(root, scoped("system")).may_become == "cannot"
    own = subject_of(root, scoped("user"))
    assert own.may_become == "self"
    assert own.asks_for_others


def test_what_only_the_service_has_to_read_is_no_fault_of_an_ordinary_users(
    ordinary_folder: Path,
) -> None:
    subject = subject_of(with_service(ordinary_folder, os.geteuid() + 7), scoped("user"))
    findings = Findings()
    findings.take_of_others([Check("files", "fault", "closed", "chmod")], subject)

    (found,) = findings.checks
    assert (found.state, "sudo edgeagent doctor" in str(found.hint)) == ("unasked", True)


def test_without_a_service_everything_is_the_askers_own(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, scoped("system"))

    assert (subject.service, subject.may_become) == (None, "self")
    assert not subject.asks_for_others


def test_a_place_in_a_closed_folder_cannot_be_written(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir()
    closed.chmod(0o700)

    found = rights.look(STRANGER, lambda: asdict(place(closed / "state/runs")), 30.0)

    assert found["writable"] is False
