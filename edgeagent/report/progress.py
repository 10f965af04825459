"""How far is the sweep, and what does it see right now?

Three displays with the same methods: `LiveProgress` redraws a few lines on a terminal,
`PlainProgress` writes a line per step and per cell into a log, `SilentProgress` says nothing.
`update` is cheap and may be called at every token; drawing happens at most `REDRAWS_PER_S` times a
second, because the box that draws is the box that is measured.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

REDRAWS_PER_S = 2
"""Measured: a redraw takes about 1.4 ms, so two cost 0.3 % of a core and four 0.6 %."""

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class ProgressState:
    """What is going on at one moment; None is "not known" or "does not apply"."""

    what: str
    """The step in the operator's words: "measuring", "starting the engine" ..."""
    step: int
    """Number of the step, from 1."""
    steps: int
    cell: str | None = None
    """What tells this cell from the others: "llamacpp, cache on, 8 at once, repeat 2 of 3"."""
    requests_done: int | None = None
    requests_planned: int | None = None
    elapsed_s: float = 0.0
    left_s: float | None = None
    tokens_per_s: float | None = None
    engine_bytes: int | None = None
    host_available_bytes: int | None = None
    failures: int = 0


class SilentProgress:
    """Says nothing."""

    def update(self, state: ProgressState) -> None:
        """Take note of nothing."""

    def note(self, text: str) -> None:
        """Keep quiet."""

    def close(self) -> None:
        """Nothing to end."""


class PlainProgress:
    """One line when a step begins, one when its requests are done; nothing is redrawn."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._last: ProgressState | None = None

    def update(self, state: ProgressState) -> None:
        """Write the end of the last step and the beginning of this one, if it is another."""
        last = self._last
        self._last = state
        if last is not None and last.step == state.step:
            return
        if last is not None:
            self._conclude(last)
        self._say(headline(state))

    def note(self, text: str) -> None:
        """Write one line."""
        self._say(text)

    def close(self) -> None:
        """Write the end of the last step; safe to call twice."""
        if self._last is not None:
            self._conclude(self._last)
            self._last = None

    def _conclude(self, state: ProgressState) -> None:
        if state.requests_done:
            self._say(f"    {', '.join([requests(state), *figures(state)])}")

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class LiveProgress:
    """A few lines on a terminal that redraw themselves; notes scroll away above them."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live: Live | None = None
        self._state: ProgressState | None = None
        self._at_s = 0.0
        self._glyphs = glyphs_for(getattr(self._stream, "encoding", None))

    def update(self, state: ProgressState) -> None:
        """Show `state` at the next redraw."""
        self._state = state
        self._at_s = time.monotonic()
        if self._live is None:
            self._live = self._started()

    def note(self, text: str) -> None:
        """Write one line above the display."""
        if self._live is None:
            print(text, file=self._stream, flush=True)
        else:
            self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Draw once more and leave the display standing; safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _started(self) -> Live:
        # Imported here because rich takes several MB, and a quiet or piped sweep never draws.
        from rich.console import Console
        from rich.live import Live

        live = Live(
            console=Console(file=self._stream),
            get_renderable=self._picture,
            refresh_per_second=REDRAWS_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start()
        return live

    def _picture(self) -> RenderableType:
        """Return the lines; the time goes on by itself while nothing is reported."""
        from rich.text import Text

        state, live = self._state, self._live
        picture = Text(no_wrap=True, overflow="crop", end="")
        if state is None or live is None:
            return picture
        idle_s = time.monotonic() - self._at_s
        for line in panel(state, idle_s, live.console.width, self._glyphs):
            picture.append(line.text + "\n", style=line.style)
        picture.rstrip()
        return picture


# ------------------------------------------------------------------------------------- the wording


@dataclass(frozen=True)
class Line:
    """A line of the display and how it is to look."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Glyphs:
    """The characters of the bar, and of a cut."""

    done: str
    left: str
    cut: str


UNICODE = Glyphs("━", "─", "…")
ASCII = Glyphs("#", "-", "~")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return what a terminal of this encoding can show."""
    try:
        "━─…".encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return UNICODE


def panel(
    state: ProgressState, idle_s: float, width: int, glyphs: Glyphs = UNICODE
) -> tuple[Line, ...]:
    """Return the display's lines, none wider than `width`; `idle_s` is the age of `state`."""
    facts = "   ".join(filter(None, [requests(state), *figures(state)]))
    trouble = "red" if state.failures else ""
    lines = (
        Line(_cut(headline(state), width, glyphs), "bold"),
        Line(_bar_and_times(state, idle_s, width, glyphs), "cyan"),
        Line(_cut(facts, width, glyphs), trouble),
    )
    return tuple(line for line in lines if line.text)


def headline(state: ProgressState) -> str:
    """Return step, activity and cell in one line."""
    cell = f": {state.cell}" if state.cell else ""
    return f"[{state.step}/{state.steps}] {state.what}{cell}"


def requests(state: ProgressState) -> str:
    """Return how many requests are done, of how many; empty when the step has none."""
    if state.requests_done is None:
        return ""
    of = f" of {state.requests_planned}" if state.requests_planned is not None else ""
    return f"{state.requests_done}{of} requests"


def figures(state: ProgressState) -> list[str]:
    """Return what is known of speed, memory and failures, each in a few words."""
    found = []
    if state.tokens_per_s is not None:
        found.append(f"{state.tokens_per_s:.1f} tokens/s")
    if state.engine_bytes is not None:
        found.append(f"engine {size(state.engine_bytes)}")
    if state.host_available_bytes is not None:
        found.append(f"{size(state.host_available_bytes)} free")
    if state.failures:
        found.append(f"{state.failures} failed")
    return found


def share_done(state: ProgressState) -> float:
    """Return the share of the steps that is behind us, 0 to 1; the present one counts in part."""
    within = 0.0
    if state.requests_planned and state.requests_done is not None:
        within = min(1.0, state.requests_done / state.requests_planned)
    return min(1.0, max(0.0, (state.step - 1 + within) / state.steps)) if state.steps else 0.0


def times(state: ProgressState, idle_s: float) -> str:
    """Return how long it has taken, and about how long it will still take where that is known."""
    gone = duration(state.elapsed_s + idle_s)
    if state.left_s is None:
        return gone
    left_s = state.left_s - idle_s
    return f"{gone}, {f'about {duration(left_s)}' if left_s >= 1 else 'a moment'} left"


def duration(seconds: float) -> str:
    """Return seconds as m:ss, or h:mm:ss from an hour on."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, seconds_left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


def size(amount_bytes: float) -> str:
    """Return bytes as MiB below one GiB and as GiB from there on."""
    if amount_bytes >= GIB:
        return f"{amount_bytes / GIB:.2f} GiB"
    return f"{amount_bytes / MIB:.0f} MiB"


def _bar_and_times(state: ProgressState, idle_s: float, width: int, glyphs: Glyphs) -> str:
    said = times(state, idle_s)
    room = width - len(said) - 2
    if room < 4:  # noqa: PLR2004  # because a shorter bar shows nothing
        return _cut(said, width, glyphs)
    filled = round(share_done(state) * room)
    return f"{glyphs.done * filled}{glyphs.left * (room - filled)}  {said}"


def _cut(text: str, width: int, glyphs: Glyphs) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + glyphs.cut
