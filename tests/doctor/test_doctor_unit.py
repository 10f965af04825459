"""What the service's unit closes to the service, read from its files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.doctor import unit

SHIPPED = Path(__file__).parents[2] / "systemd/edgeagent.service"


def installed(root: Path, text: str, **drop_ins: str) -> unit.Unit:
    folder = root / "usr/lib/systemd/system"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "edgeagent.service").write_text(text)
    for name, said in drop_ins.items():
        place = root / "etc/systemd/system/edgeagent.service.d"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.conf").write_text(said)
    found = unit.find(root)
    assert found is not None
    return found


def test_the_shipped_unit_hides_homes_and_closes_all_but_its_own_folders(tmp_path: Path) -> None:
    found = installed(tmp_path, SHIPPED.read_text())

    assert found.user == "edgeagent"
    assert set(found.words("SupplementaryGroups")) == {"video", "render"}
    assert found.hides(Path("/home/anna/llama-server")) == "ProtectHome=yes"
    assert found.hides(Path("/root/vllm/bin/vllm")) == "ProtectHome=yes"
    assert found.hides(Path("/usr/../home/anna/x")) == "ProtectHome=yes"
    assert found.hides(Path("/tmp/llama-server")) == "PrivateTmp=yes"  # noqa: S108  # because it hides just these
    assert found.hides(Path("/opt/llama.cpp/llama-server")) is None
    assert found.hides(Path("/homestead/llama-server")) is None
    assert found.closes(Path("/var/lib/edgeagent/runs")) is None
    assert found.closes(Path("/srv/runs")) == "ProtectSystem=strict"
    assert found.makes(Path("/var/lib/edgeagent"))
    assert not found.makes(Path("/srv/runs"))


@pytest.mark.parametrize("key", ["BindReadOnlyPaths", "BindPaths"])
def test_a_drop_in_that_binds_a_folder_opens_it(tmp_path: Path, key: str) -> None:
    bound = f"[Service]\n{key}=-/home/anna/models /data/engines:/home/engines:rbind\n"
    found = installed(tmp_path, SHIPPED.read_text(), models=bound)

    assert found.hides(Path("/home/anna/models/a.gguf")) is None
    assert found.hides(Path("/home/engines/llama-server")) is None
    assert found.hides(Path("/home/anna/other")) == "ProtectHome=yes"


def test_the_last_word_counts_and_an_empty_one_starts_a_list_anew(tmp_path: Path) -> None:
    main = "[Service]\nProtectHome=yes\nReadWritePaths=/a /b\nProtectSystem=strict\n"
    later = "[Unit]\nProtectHome=yes\n[Service]\n# ProtectHome=yes\n"
    emptied = "ReadWritePaths=\nReadWritePaths=/c\n"
    found = installed(tmp_path, main, a="[Service]\nProtectHome=no\n", b=later + emptied)

    assert found.hides(Path("/home/anna")) is None
    assert found.closes(Path("/a/x")) == "ProtectSystem=strict"
    assert found.closes(Path("/c/x")) is None


def test_a_unit_in_etc_stands_before_that_of_the_package(tmp_path: Path) -> None:
    installed(tmp_path, SHIPPED.read_text())
    own = tmp_path / "etc/systemd/system/edgeagent.service"
    own.parent.mkdir(parents=True)
    own.write_text("[Service]\nUser=somebody\nEnvironment=A=b PATH=/opt/bin\n")

    found = unit.find(tmp_path)

    assert found is not None
    assert (found.user, found.path) == ("somebody", "/opt/bin")


def test_a_masked_unit_is_known_as_such_and_none_is_none(tmp_path: Path) -> None:
    assert unit.find(tmp_path) is None
    own = tmp_path / "etc/systemd/system"
    own.mkdir(parents=True)
    (own / "edgeagent.service").symlink_to("/dev/null")

    found = unit.find(tmp_path)

    assert found is not None
    assert found.masked
