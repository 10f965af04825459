from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edgeagent.core.delivery import Stream
from edgeagent.core.window import Key, Limits, Server, Setting, Window


def window(setting: Setting = "receipt", **limits: float) -> Window:
    made = Window(Limits(**limits), setting)  # type: ignore[arg-type]  # because each test names its own
    made.up(Server(), 0.0)
    return made


def send(made: Window, stream: Stream, seqs: Sequence[int], now_s: float = 0.0) -> None:
    for seq in seqs:
        made.sent((stream, seq), "r/run" if stream == "R" else "m/mem_1m", now_s)


def answer(made: Window, stream: Stream, seqs: Sequence[int], now_s: float = 0.0) -> None:
    for seq in seqs:
        made.answered((stream, seq), 0, now_s)


def test_nothing_may_be_sent_without_a_connection() -> None:
    assert Window(Limits(), "receipt").room("R", 0.0) == 0


def test_the_window_is_ours_or_the_brokers_whichever_is_less() -> None:
    made = window()
    assert made.room("R", 0.0) == 20
    made.up(Server(receive_maximum=7), 0.0)
    send(made, "R", [1, 2])
    assert made.room("R", 0.0) == 5
    made.up(Server(receive_maximum=65_535), 0.0)
    assert made.room("R", 0.0) == 18


def test_telemetry_leaves_a_fifth_of_what_may_be_unreceipted_to_results() -> None:
    made = window(unreceipted=100, window=500)
    assert (made.room("M", 0.0), made.room("R", 0.0)) == (80, 100)
    send(made, "M", range(1, 81))
    answer(made, "M", range(1, 81))
    assert (made.room("M", 0.0), made.room("R", 0.0)) == (0, 20)


def test_the_collector_sets_how_many_between_ten_and_five_hundred() -> None:
    made = window(window=1000)
    for asked, granted in ((50, 50), (1, 10), (9999, 500), (-3, 10)):
        made.receipt({}, 0.0, asked)
        assert made.room("R", 0.0) == granted


def test_in_puback_mode_the_brokers_answer_is_the_end_of_a_row() -> None:
    made = window("puback")
    send(made, "R", [1])
    assert made.answered(("R", 1), 0, 0.0) == "delete"
    assert made.unreceipted() == 0


def test_auto_settles_on_receipts_with_the_first_and_keeps_to_it() -> None:
    made = window("auto")
    before = made.delivery
    assert made.receipt({"R": 0}, 0.0)
    assert (before, made.delivery) == ("puback", "receipt")
    assert not made.receipt({"R": 0}, 0.0)
    assert Window(Limits(), "auto", settled="receipt").delivery == "receipt"
    assert Window(Limits(), "puback", settled="receipt").delivery == "puback"
    assert not window("puback").receipt({"R": 0}, 0.0)


def test_an_answer_for_nothing_is_unknown() -> None:
    assert window().answered(("R", 5), 0, 0.0) == "unknown"


def test_where_nobody_listens_a_kind_rests_half_a_minute_then_twice_as_long_up_to_ten() -> None:
    made = window()
    now_s, waits = 0.0, []
    for _ in range(7):
        send(made, "R", [1], now_s)
        assert made.answered(("R", 1), 0x10, now_s) == "hold"
        begin = now_s
        while made.rests("r/run", now_s):
            now_s += 1
        assert made.reopen(now_s) == ("r/run",)
        assert made.after("R") == 0
        waits.append(now_s - begin)
    assert waits == [30, 60, 120, 240, 480, 600, 600]


def test_a_whole_window_refused_at_once_is_one_refusal() -> None:
    made = window()
    send(made, "R", range(1, 21))
    for seq in range(1, 21):
        assert made.answered(("R", seq), 0x10, 0.0) == "hold"
    assert made.rests("r/run", 29.9)
    assert not made.rests("r/run", 30.0)


def test_a_row_that_gets_through_ends_the_rest_and_what_was_passed_is_read_again() -> None:
    made = window()
    send(made, "R", [1, 2])
    made.answered(("R", 1), 0x10, 0.0)
    made.answered(("R", 2), 0, 0.0)
    assert not made.rests("r/run", 0.0)
    assert made.after("R") == 0


def test_without_the_right_a_kind_rests_a_quarter_of_an_hour() -> None:
    for code in (0x87, 0x90):
        made = window()
        send(made, "R", [1])
        assert made.answered(("R", 1), code, 0.0) == "deny"
        assert made.resting(899.0) == {"r/run": "deny"}
        assert not made.rests("m/mem_1m", 0.0)
        assert made.resting(900.0) == {}


def test_a_payload_that_the_broker_calls_invalid_is_parked() -> None:
    made = window()
    send(made, "R", [1])
    assert made.answered(("R", 1), 0x99, 0.0) == "park"


def test_each_quota_doubles_the_pause_and_each_success_shortens_it() -> None:
    made = window(backfill_per_s=20)
    send(made, "R", [1])
    assert made.answered(("R", 1), 0x97, 0.0) == "slow"
    assert made.room("R", 0.04) == 0
    assert made.room("R", 0.06) == 1
    send(made, "R", [1], 0.06)
    assert made.answered(("R", 1), 0x97, 0.06) == "slow"
    assert made.room("R", 0.15) == 0
    assert made.room("R", 0.17) == 1
    now_s = 1.0
    for seq in range(2, 60):
        send(made, "R", [seq], now_s)
        answer(made, "R", [seq], now_s)
        now_s += 1.0
    assert made.room("R", now_s) == 20


def test_replays_without_receipts_go_at_their_pace_and_new_rows_at_once() -> None:
    made = Window(Limits(backfill_per_s=2), "puback")
    made.up(Server(), 0.0, backfill_after_s=5.0)
    assert made.room("R", 4.9) == 0
    assert made.room("R", 5.0) == 1
    for n in range(1, 4):  # a second's worth and one may go at once
        send(made, "R", [n], 6.0)
    assert made.room("R", 6.0) == 0
    assert made.room("R", 6.6) == 1
    made.exhausted("R")
    assert made.room("R", 6.0) == 17


def test_the_first_row_in_flight_at_three_ends_by_the_broker_is_parked() -> None:
    made = window()
    for expected in ((), (), (("R", 1),)):
        made.up(Server(), 0.0)
        send(made, "R", [1, 2])
        assert made.down("closed") == expected


def test_a_suspect_goes_alone_and_an_answer_clears_it() -> None:
    made = window()
    send(made, "R", [1, 2])
    made.down("closed")
    made.up(Server(), 0.0)
    assert made.room("R", 0.0) == 1
    send(made, "R", [1])
    assert made.room("M", 0.0) == 0
    answer(made, "R", [1])
    assert made.room("R", 0.0) == 20


def test_silence_and_our_own_end_count_against_nobody() -> None:
    made = window()
    for ending in ("silent", "ours", "silent", "ours"):
        made.up(Server(), 0.0)
        send(made, "R", [1])
        assert made.down(ending) == ()


def test_without_progress_a_stream_goes_back_and_waits_twice_as_long_each_time() -> None:
    made = window()
    send(made, "M", [1], 100.0)
    answer(made, "M", [1], 100.0)
    assert made.stalled(129.0) == ()
    assert made.stalled(130.0) == ("M",)
    assert made.unreceipted() == 0
    send(made, "M", [1], 130.0)
    answer(made, "M", [1], 130.0)
    assert made.stalled(189.0) == ()
    assert made.stalled(190.0) == ("M",)
    send(made, "M", [1], 190.0)
    answer(made, "M", [1], 190.0)
    made.receipt({"M": 1}, 191.0)
    send(made, "M", [2], 200.0)
    answer(made, "M", [2], 200.0)
    assert made.stalled(230.0) == ("M",)


def test_what_lies_below_the_watermark_waits_for_no_receipt() -> None:
    made = window()
    send(made, "R", [1, 2, 3])
    answer(made, "R", [1, 2, 3])
    made.receipt({"R": 3}, 0.0)
    send(made, "R", [2])
    assert made.answered(("R", 2), 0, 0.0) == "sent"
    assert made.unreceipted() == 0


def test_a_row_is_live_only_once_the_backlog_is_through() -> None:
    made = window()
    assert made.replay(("R", 9), 0) == "replay"
    made.exhausted("R")
    assert made.replay(("R", 9), 0) == "live"
    assert made.replay(("R", 9), 1) == "replay"
    send(made, "R", [9])
    assert made.replay(("R", 5), 0) == "replay"
    assert made.replay(("R", 9), 0) == "replay"  # a resync makes its tries none again
    assert made.replay(("R", 10), 0) == "live"


def test_a_packet_is_too_large_for_us_or_for_the_broker() -> None:
    made = window(max_payload_bytes=100)
    assert not made.too_large(100, 130)
    assert made.too_large(101, 131)
    made.up(Server(max_packet_bytes=90), 0.0)
    assert not made.too_large(60, 90)
    assert made.too_large(61, 91)


class Deliveries(RuleBasedStateMachine):
    """A spool in a dict, a broker and a collector that do as they please: all rows arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.rows: dict[Key, str] = {}
        self.last: dict[Stream, int] = {"R": 0, "M": 0}
        self.collected: set[Key] = set()
        self.in_flight: list[Key] = []
        self.connected = False

    @initialize(setting=st.sampled_from(["receipt", "puback", "auto"]))
    def begin(self, setting: Setting) -> None:
        self.window = Window(Limits(window=5, unreceipted=12), setting)

    @rule(stream=st.sampled_from(["R", "M"]), count=st.integers(1, 8))
    def commit(self, stream: Stream, count: int) -> None:
        for _ in range(count):
            self.last[stream] += 1
            self.rows[(stream, self.last[stream])] = "new"

    @rule()
    def up(self) -> None:
        if not self.connected:
            self.connected = True
            self.window.up(Server(receive_maximum=4), self.now_s)

    @rule(seconds=st.floats(0, 1000))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.window.reopen(self.now_s)
        for stream in self.window.stalled(self.now_s):
            for key, state in self.rows.items():
                if key[0] == stream and state == "sent":
                    self.rows[key] = "new"

    @rule()
    def fill(self) -> None:
        streams: tuple[Stream, ...] = ("R", "M")
        for stream in streams:
            due = sorted(
                key
                for key, state in self.rows.items()
                if key[0] == stream and state == "new" and key[1] > self.window.after(stream)
            )
            for key in due:
                if self.window.under_way(key) or self.window.rests(stream, self.now_s):
                    self.window.skip(key)
                    continue
                if not self.window.room(stream, self.now_s):
                    return
                self.window.sent(key, stream, self.now_s)
                self.in_flight.append(key)
            self.window.exhausted(stream)

    @rule(code=st.sampled_from([0, 0, 0, 0x10, 0x87, 0x97, 0x80]))
    def answer(self, code: int) -> None:
        if not self.in_flight:
            return
        key = self.in_flight.pop(0)
        verdict = self.window.answered(key, code, self.now_s)
        if verdict in {"sent", "delete"}:
            assert code == 0
            if verdict == "delete":
                self.collected.add(key)
            self.rows[key] = "sent" if verdict == "sent" else "gone"

    @rule(lost=st.booleans())
    def collect(self, lost: bool) -> None:  # noqa: FBT001  # because hypothesis hands it over
        """The collector reads what the broker has, or the broker lost it."""
        if not lost:
            self.collected |= {key for key, state in self.rows.items() if state == "sent"}
        wm: dict[Stream, int] = {"R": self.upto("R"), "M": self.upto("M")}
        if self.connected and self.collected:
            self.window.receipt(wm, self.now_s)
            for key, state in self.rows.items():
                if state == "sent" and key[1] <= wm[key[0]]:
                    self.rows[key] = "gone"

    def upto(self, stream: Stream) -> int:
        at = 0
        while (stream, at + 1) in self.collected:
            at += 1
        return at

    @rule(ending=st.sampled_from(["silent", "ours"]))
    def down(self, ending: str) -> None:
        if self.connected:
            self.connected = False
            self.in_flight.clear()
            self.window.down(ending)  # type: ignore[arg-type]  # because hypothesis hands it over

    @invariant()
    def the_window_holds(self) -> None:
        if hasattr(self, "window"):
            assert self.window.in_flight <= 4
            assert self.window.in_flight == len(self.in_flight)
            if self.window.delivery == "receipt":
                assert self.window.unreceipted() <= 12

    def teardown(self) -> None:
        """With a broker and a collector that do their duty everything arrives."""
        if not hasattr(self, "window"):
            return
        self.down("ours")
        self.up()
        for _ in range(400):
            if all(state == "gone" for state in self.rows.values()):
                return
            self.wait(1000.0)
            self.fill()
            while self.in_flight:
                self.answer(0)
            self.collect(lost=False)
        raise AssertionError(f"never arrived: {self.rows}")


Deliveries.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestDeliveries = Deliveries.TestCase
