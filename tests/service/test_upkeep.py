"""Files that others look after: read when they have changed, and told when they run out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_places import authority
from daemon_places import write_config, write_policy
from spool_places import opened

from edgeagent.core.delivery import Entry, Stamp
from edgeagent.publish.spool import Spool
from edgeagent.service.troubles import Troubles
from edgeagent.service.upkeep import Certificate, PolicyOnDisk
from edgeagent.settings import Settings, load, surroundings

DAY_MS = 86_400_000
ENDS_MS = 2_335_219_200_000  # 2044-01-01


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def troubles(told: list[str]) -> Troubles:
    return Troubles(lambda _event, fields: told.append(str(fields["text"])))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(surroundings("system"), write_config(tmp_path, 1883))


@pytest.fixture
def policy(settings: Settings, troubles: Troubles) -> PolicyOnDisk:
    return PolicyOnDisk(lambda: settings, {os.geteuid()}, troubles)


def test_a_policy_counts_from_the_moment_it_is_changed(
    tmp_path: Path, policy: PolicyOnDisk
) -> None:
    assert "ping" in policy.now().policy.operations
    before = policy.latest.sha256
    write_policy(tmp_path, ('"ping", ', ""))
    assert "ping" not in policy.now().policy.operations
    assert policy.latest.sha256 != before


def test_one_with_a_fault_allows_nothing_until_it_is_put_right(
    tmp_path: Path, policy: PolicyOnDisk, troubles: Troubles
) -> None:
    write_policy(tmp_path, ("max_runs_per_day", "max_runs_a_day"))
    assert policy.now().policy.operations == ()
    assert "max_runs_a_day" in troubles.sentences()[0]
    write_policy(tmp_path)
    assert policy.now().policy.operations
    assert troubles.sentences() == ()


def test_one_that_others_can_write_allows_nothing(
    tmp_path: Path, policy: PolicyOnDisk, troubles: Troubles
) -> None:
    assert policy.now().policy.operations
    (tmp_path / "commands.toml").chmod(0o666)
    assert policy.now().policy.operations == ()
    assert "chmod 0644" in troubles.sentences()[0]


def test_one_that_is_gone_allows_nothing(
    tmp_path: Path, policy: PolicyOnDisk, troubles: Troubles
) -> None:
    (tmp_path / "commands.toml").unlink()
    assert policy.now().policy.operations == ()
    assert troubles.sentences()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = opened(tmp_path / "spool.db")
    yield made
    made.close()


def test_a_certificate_is_told_of_at_30_7_and_1_days_each_once(
    tmp_path: Path, spool: Spool, troubles: Troubles
) -> None:
    path = authority(tmp_path / "pki").issue("edge-0001").cert
    left = [40]
    entries: list[Entry] = []

    def stamp() -> Stamp:
        return Stamp(ENDS_MS - left[-1] * DAY_MS, "b00t", 1, "sync")

    certificate = Certificate(spool, stamp, entries.append, troubles)
    counted = []
    for days in (40, 29, 20, 6, 5, 1, 0):
        left.append(days)
        certificate.look(path)
        counted.append(len(entries))
    assert counted == [0, 1, 1, 2, 2, 3, 3]
    assert entries[0].value["days_left"] == 29
    assert "2044-01-01" in troubles.sentences()[0]
    certificate.look(None)
    assert (troubles.sentences(), certificate.not_after_ms) == ((), None)
