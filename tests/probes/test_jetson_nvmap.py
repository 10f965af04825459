"""The list of nvmap clients: parsed strictly, asked for through a real socket, never waited for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.probes.nvmap import CLIENTS, Client, ClientList, Pace, held_bytes, parse_clients

LIST = """\
CLIENT                        PROCESS      PID        SIZE
user                     llama-server     4312    1610612K
user                     llama-server     4312        512M
user                  gnome shell (x)     2001         12K
user                           worker     4313          1G
total                                              3183K
"""
PATIENT = Pace(first_s=30.0)


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Helper:
    """Answers each connection in the way it is told to, on a real socket."""

    def __init__(
        self, path: Path, behave: Callable[[socket.socket, threading.Event], None]
    ) -> None:
        self.path = path
        self.asked = 0
        self.released = threading.Event()
        self._behave = behave
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self.released.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.asked += 1
            with connection, suppress(OSError):  # whoever asked may have hung up
                self._behave(connection, self.released)


def says(text: str) -> Callable[[socket.socket, threading.Event], None]:
    return lambda connection, _: connection.sendall(text.encode())


def hangs(_: socket.socket, released: threading.Event) -> None:
    released.wait()


def says_a_part_and_hangs(connection: socket.socket, released: threading.Event) -> None:
    connection.sendall(LIST[:150].encode())
    released.wait()


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Callable[..., Helper]]:
    started: list[Helper] = []

    def start(behave: Callable[[socket.socket, threading.Event], None]) -> Helper:
        started.append(Helper(tmp_path / "n.sock", behave))
        return started[-1]

    yield start
    for one in started:
        one.close()


# ------------------------------------------------------------------------------------ the list


def test_a_list_is_parsed_with_names_that_hold_spaces_and_sizes_in_any_unit() -> None:
    assert parse_clients(LIST) == (
        Client("llama-server", 4312, 1610612 * 1024),
        Client("llama-server", 4312, 512 * 1024**2),
        Client("gnome shell (x)", 2001, 12 * 1024),
        Client("worker", 4313, 1024**3),
    )


def test_a_process_with_several_rows_holds_their_sum_and_one_without_a_row_nothing() -> None:
    clients = parse_clients(LIST)

    assert held_bytes(clients, [4312]) == 1610612 * 1024 + 512 * 1024**2
    assert held_bytes(clients, [4313, 4312]) == held_bytes(clients, [4312]) + 1024**3
    assert held_bytes(clients, [1]) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a list"),
        ("cat: clients: Input/output error\n", "not a list"),
        (LIST.rpartition("total")[0], "cut short"),
        (LIST.replace("1610612K", "1610612X"), "not a size"),
        (LIST.replace("4313", "????"), "is not one of a list"),
    ],
)
def test_anything_else_is_refused_by_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_clients(text)


@given(st.text(), st.text())
def test_no_text_at_all_breaks_the_parser(before: str, after: str) -> None:
    for text in (before, before + LIST, LIST + after, LIST[: len(before)] + after):
        try:
            clients = parse_clients(text)
        except ValueError:
            continue
        assert all(client.size_bytes >= 0 and client.pid >= 0 for client in clients)


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z0-9:/ ()-]{0,13}[a-z0-9)]", fullmatch=True),
            st.integers(1, 4_194_304),
            st.integers(0, 1 << 40),
        )
    )
)
def test_a_list_of_any_processes_comes_back_as_it_was(rows: list[tuple[str, int, int]]) -> None:
    lines = [f"{'user':<18} {name:>18} {pid:>8} {kib:>10}K" for name, pid, kib in rows]
    text = "\n".join(["CLIENT PROCESS PID SIZE", *lines, "total  0K", ""])

    assert parse_clients(text) == tuple(Client(name, pid, kib * 1024) for name, pid, kib in rows)


# ---------------------------------------------------------------------------------- the helper


def test_the_first_question_is_waited_for_so_that_one_reading_is_complete(
    tmp_path: Path, helper: Callable[..., Helper]
) -> None:
    clients = ClientList(tmp_path, helper(says(LIST)).path, PATIENT)

    assert clients.poll() == parse_clients(LIST)
    assert clients.source == "helper"


def test_the_helper_is_asked_once_a_second_however_often_the_list_is_polled(
    tmp_path: Path, helper: Callable[..., Helper]
) -> None:
    hands, answering = Hands(), helper(says(LIST))
    clients = ClientList(tmp_path, answering.path, PATIENT, hands)

    assert clients.poll() is not None
    for _ in range(50):
        assert clients.poll() is None
    assert answering.asked == 1

    hands.now_s += 1.0
    while clients.poll() is None:  # the answer comes when it comes
        pass
    assert answering.asked == 2


def test_a_helper_that_hangs_costs_no_reading_any_time_and_is_given_up(
    tmp_path: Path, helper: Callable[..., Helper]
) -> None:
    hands, hanging = Hands(), helper(hangs)
    clients = ClientList(tmp_path, hanging.path, Pace(first_s=0.0), hands)

    assert clients.poll() is None
    hands.now_s += 1.9
    assert clients.poll() is None
    hands.now_s += 0.2
    assert clients.poll() == "the nvmap helper did not answer within 2 s"


def test_a_helper_that_hung_is_left_alone_for_a_while(
    tmp_path: Path, helper: Callable[..., Helper]
) -> None:
    hands, hanging = Hands(), helper(says_a_part_and_hangs)
    clients = ClientList(tmp_path, hanging.path, Pace(first_s=0.0), hands)
    clients.poll()
    hands.now_s += 2.0
    assert clients.poll() == "the nvmap helper did not answer within 2 s"

    hanging.released.set()
    for _ in range(28):
        hands.now_s += 1.0
        assert clients.poll() is None
    hands.now_s += 2.0
    while (told := clients.poll()) is None:
        pass
    assert told == "the list of nvmap clients is cut short"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "what came is not a list of nvmap clients"),
        ("\x00\xff garbage \n" * 50, "what came is not a list of nvmap clients"),
        ("x" * 3_000_000, "what came is not a list of nvmap clients"),
        (LIST[:200], "the list of nvmap clients is cut short"),
    ],
)
def test_garbage_from_the_helper_is_a_reason_and_no_number(
    tmp_path: Path, helper: Callable[..., Helper], text: str, reason: str
) -> None:
    clients = ClientList(tmp_path, helper(says(text)).path, PATIENT)

    assert clients.poll() == reason
    clients.close()


def test_without_a_helper_the_reason_names_both_ways(tmp_path: Path) -> None:
    told = ClientList(tmp_path, tmp_path / "n.sock").poll()

    assert isinstance(told, str)
    assert f"/{CLIENTS}: No such file or directory" in told
    assert f"the helper at {tmp_path}/n.sock: No such file or directory" in told


def test_a_socket_that_nobody_answers_any_more_is_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "n.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))

    told = ClientList(tmp_path, path).poll()

    assert isinstance(told, str)
    assert "Connection refused" in told


def test_a_path_too_long_for_a_socket_is_a_reason(tmp_path: Path) -> None:
    told = ClientList(tmp_path, tmp_path / ("n" * 120)).poll()

    assert isinstance(told, str)
    assert "too long" in told


def test_a_helper_that_is_installed_later_is_found(
    tmp_path: Path, helper: Callable[..., Helper]
) -> None:
    hands = Hands()
    clients = ClientList(tmp_path, tmp_path / "n.sock", Pace(first_s=0.0), hands)
    assert isinstance(clients.poll(), str)

    helper(says(LIST))
    hands.now_s += 1.0
    while (told := clients.poll()) is None:
        pass
    assert told == parse_clients(LIST)


def test_where_the_file_itself_can_be_read_nobody_is_asked(
    tmp_path: Path, helper: Callable[..., Helper]
) -> None:
    answering = helper(says("not needed"))
    file = tmp_path / CLIENTS
    file.parent.mkdir(parents=True)
    file.write_text(LIST)
    clients = ClientList(tmp_path, answering.path)

    assert clients.poll() == parse_clients(LIST)
    assert clients.source == "file"
    assert answering.asked == 0
