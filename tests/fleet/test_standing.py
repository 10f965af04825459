from typing import Any

from edgeagent.fleet.standing import Standing, merged


def _said(state: str, session_n: int, **more: Any) -> dict[str, Any]:
    return {"state": state, "session_n": session_n, **more}


def _standing(*said: dict[str, Any]) -> Standing:
    standing = None
    for n, one in enumerate(said):
        standing = merged(standing, one, n) or standing
    assert standing is not None
    return standing


def test_a_will_of_an_earlier_connection_is_outdated() -> None:
    standing = _standing(_said("online", 5), _said("offline", 4))
    assert standing.state == "online"


def test_a_will_of_this_connection_counts_and_keeps_what_the_box_said() -> None:
    standing = _standing(
        _said("online", 5, version="0.1", spool={"rows": 7}), _said("offline", 5, reason="lwt")
    )
    assert (standing.state, standing.backlog_rows) == ("offline", 7)
    assert standing.document["version"] == "0.1"
    assert standing.document["reason"] == "lwt"


def test_a_birth_that_comes_again_after_its_will_does_not_revive_the_box() -> None:
    assert _standing(_said("online", 5), _said("offline", 5), _said("online", 5)).state == "offline"


def test_a_box_with_a_new_spool_counts_from_one_and_is_believed_by_its_clock() -> None:
    standing = _standing(_said("online", 40, ts=1_000), _said("online", 1, ts=2_000))
    assert standing.session_n == 1
    assert merged(standing, _said("online", 1, ts=1_500), 0) is None


def test_without_clocks_a_lower_count_is_outdated() -> None:
    assert _standing(_said("online", 40), _said("online", 1)).session_n == 40


def test_an_older_status_of_the_same_connection_is_outdated() -> None:
    standing = _standing(_said("online", 5, ts=2_000, health="ok"))
    assert merged(standing, _said("online", 5, ts=1_000, health="degraded"), 1) is None
