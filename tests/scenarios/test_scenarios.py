"""What is promised of delivery holds through every outage, between real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from backlogs import member_killed, week_drained
from clocks import clock_an_hour_ahead, clock_ten_years_back, tls_explained
from disks import cap_reached, disk_full, disk_read_only, head_damaged
from herds import broker_restarts
from ledger import Account
from outages import (
    AS_DEBIAN,
    ON_CHANGE,
    agent_killed,
    broker_killed,
    broker_stands_still,
    broker_with_memory_killed,
    nobody_subscribes,
    slow_consumer,
)

pytestmark = pytest.mark.scenario

DELIVERY = Path(__file__).parents[2] / "docs" / "delivery.md"


def complete(account: Account) -> bool:
    """Everything that was committed came, and no number was ever given to two rows."""
    return account.received == account.committed > 0 and not account.reused


def accounted_for(account: Account) -> bool:
    """Everything came or was declared missing."""
    return account.committed > 0 and not account.lost and not account.reused


def test_a_broker_that_is_killed_five_times_loses_nothing(tmp_path: Path) -> None:
    account = broker_killed(tmp_path)
    assert complete(account)
    assert account.duplicates < account.committed


def test_an_agent_that_is_killed_ten_times_loses_nothing_and_reuses_no_number(
    tmp_path: Path,
) -> None:
    assert complete(agent_killed(tmp_path))


def test_a_broker_that_saves_each_change_may_be_killed_without_receipts(tmp_path: Path) -> None:
    assert complete(broker_with_memory_killed(tmp_path, ON_CHANGE))


def test_a_broker_that_saves_every_half_hour_loses_what_it_acknowledged_and_we_say_so(
    tmp_path: Path,
) -> None:
    """The loss is the broker's: nothing waits with us any more, since it said that it had all."""
    account = broker_with_memory_killed(tmp_path, AS_DEBIAN)
    assert account.lost == 501
    assert account.received == 1
    told = DELIVERY.read_text()
    assert "autosave_interval 1800" in told
    assert "autosave_on_changes true" in told


def test_a_weeks_backlog_reaches_a_slow_consumer_whole(tmp_path: Path) -> None:
    account = week_drained(tmp_path)
    assert complete(account)
    assert account.committed == 11_088


def test_a_broker_that_stands_still_is_not_noticed_by_the_producer(tmp_path: Path) -> None:
    assert complete(broker_stands_still(tmp_path))


@pytest.mark.parametrize("most", [50, 200, 500])
def test_a_slow_consumer_with_a_short_queue_gets_everything(tmp_path: Path, most: int) -> None:
    assert complete(slow_consumer(tmp_path, most))


def test_rows_wait_for_the_first_subscriber(tmp_path: Path) -> None:
    assert complete(nobody_subscribes(tmp_path))


def test_a_spool_that_is_offered_too_much_keeps_the_results_and_declares_the_rest(
    tmp_path: Path,
) -> None:
    account = cap_reached(tmp_path)
    assert accounted_for(account)
    assert account.declared > 0


def test_a_full_disk_costs_no_result_and_every_gap_is_declared(tmp_path: Path) -> None:
    assert accounted_for(disk_full(tmp_path))


def test_a_damaged_spool_is_set_aside_and_the_box_goes_on(tmp_path: Path) -> None:
    assert complete(head_damaged(tmp_path))


def test_a_disk_that_goes_read_only_stops_nobody(tmp_path: Path) -> None:
    assert accounted_for(disk_read_only(tmp_path))


def test_times_of_a_clock_ten_years_back_are_put_right(tmp_path: Path) -> None:
    assert complete(clock_ten_years_back(tmp_path))


def test_times_of_a_clock_an_hour_ahead_are_put_right(tmp_path: Path) -> None:
    assert complete(clock_an_hour_ahead(tmp_path))


def test_tls_that_fails_for_the_clock_says_so(tmp_path: Path) -> None:
    said = tls_explained(tmp_path)
    assert "is not valid yet" in said
    assert "this box's clock says" in said
    assert "set the clock first" in said


def test_a_herd_comes_back_spread_over_time(tmp_path: Path) -> None:
    """40 agents: a fifth of the herd below, and the least of its spread."""
    back = broker_restarts(tmp_path, 40, 2)
    assert complete(back.account)
    assert back.most_per_s <= 20
    assert back.spread_s >= 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_herd_of_two_hundred_comes_back_without_a_stampede(tmp_path: Path) -> None:
    back = broker_restarts(tmp_path, 200, 4)
    assert complete(back.account)
    assert back.most_per_s <= 30
    assert back.all_back_s <= 150


def test_a_collector_of_several_may_die_with_messages_in_its_hands(tmp_path: Path) -> None:
    assert complete(member_killed(tmp_path))
