"""Which prompt does request number i of a cell send?

Agent fan-out on a plant: every request of a cell opens with the same system prompt and tool
definitions, then has a part of its own. Text is generated from a seed and turned into tokens once,
by the engine's own tokenizer; every prompt is then cut from those tokens, exact to the token.

No accidental cache hits. A nonce of token ids stands at the very front of a prompt: where the
cache is meant to be cold, each request has its own; where it is meant to be warm, each cell has
one. It is drawn from the cell, the attempt and the request, so neither another cell, nor a repeat,
nor yesterday's run on the same server shares a first token block with it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from edgeagent.core.model import Cell, Endpoint, Role
from edgeagent.ports import Ask, Prompt

NONCE_TOKENS = 8
"""With 500 different ids to draw from, 8 make an accidental match impossible in practice."""

_CHARS_PER_TOKEN = 3.2
"""For servers without a tokenizer endpoint: technical English, rather too long than too short."""

_SITES = ("north hall", "press line 4", "paint shop", "boiler house", "packing cell", "dock 7")
_MACHINES = ("extruder", "compressor", "conveyor", "robot arm", "chiller", "spindle", "mixer")
_SIGNALS = ("bearing temperature", "oil pressure", "vibration", "motor current", "flow rate")
_STATES = ("above limit", "drifting", "back to normal", "sensor lost", "acknowledged", "rising")
_VERBS = ("read_sensor", "list_alarms", "open_ticket", "get_trend", "set_setpoint", "page_shift")
_UNITS = ("degC", "bar", "mm/s", "A", "l/min", "%")


def plant_text(rng: random.Random, characters: int) -> str:
    """At least `characters` of alarms, tool schemas and sensor tables, the same for a seed."""
    parts: list[str] = []
    length = 0
    while length < characters:
        part = rng.choice((_alarm, _tool, _table, _order))(rng)
        parts.append(part)
        length += len(part)
    return "".join(parts)


def _alarm(rng: random.Random) -> str:
    return (
        f"[{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}] "
        f"ALARM {rng.randrange(100, 999)} {rng.choice(_SITES)}, {rng.choice(_MACHINES)} "
        f"{rng.randrange(1, 40)}: {rng.choice(_SIGNALS)} {rng.choice(_STATES)} "
        f"({rng.randrange(5, 900) / 10} {rng.choice(_UNITS)})\n"
    )


def _tool(rng: random.Random) -> str:
    verb = rng.choice(_VERBS)
    return (
        f'{{"name": "{verb}", "description": "Use on the {rng.choice(_MACHINES)} in the '
        f'{rng.choice(_SITES)}", "parameters": {{"type": "object", "properties": '
        f'{{"tag": {{"type": "string"}}, "limit": {{"type": "number", "maximum": '
        f"{rng.randrange(10, 500)}}}}}}}}}\n"
    )


def _table(rng: random.Random) -> str:
    rows = "".join(
        f"| {rng.choice(_MACHINES)} {rng.randrange(1, 40)} | {rng.choice(_SIGNALS)} | "
        f"{rng.randrange(5, 900) / 10} {rng.choice(_UNITS)} |\n"
        for _ in range(3)
    )
    return f"| unit | signal | value |\n{rows}"


def _order(rng: random.Random) -> str:
    return (
        f"Work order {rng.randrange(10_000, 99_999)}: inspect the {rng.choice(_MACHINES)} in the "
        f"{rng.choice(_SITES)}, compare {rng.choice(_SIGNALS)} with last shift and report.\n"
    )


def corpus_characters(cell: Cell) -> int:
    """How much text to hand to the tokenizer so that every prompt can be cut from it."""
    work = cell.workload
    # Six characters a token is more than any tokenizer needs for this text; the own parts are
    # windows into the rest, so some variety is wanted beyond the longest.
    return 6 * (work.prefix_tokens + 2 * work.prompt_tokens) + 4_000


@dataclass(frozen=True)
class Prompts:
    """Makes the prompts of a launch. `tokens` is the tokenized corpus, or None without tokenizer.

    `text` is the corpus itself, for engines that take only text.
    """

    tokens: tuple[int, ...] | None
    text: str
    endpoint: Endpoint

    @cached_property
    def _alphabet(self) -> tuple[int, ...]:
        """Every id of the corpus once: a nonce drawn evenly from it is harder to hit by chance."""
        return tuple(sorted(set(self.tokens or ())))

    @property
    def exact(self) -> bool:
        """Whether prompts have exactly the number of tokens that was asked for."""
        return self.tokens is not None and self.endpoint == "completions"

    @property
    def chars_per_token(self) -> float:
        """How long a token of this corpus is, measured where there is a tokenizer."""
        return len(self.text) / len(self.tokens) if self.tokens else _CHARS_PER_TOKEN

    def ask(self, job: Job) -> Ask:
        """The request for `job`; the same job always gives the same request."""
        cell = job.cell
        cached = cell.config.prefix_cache == "on"
        return Ask(
            prompt=self._prompt(job),
            max_tokens=job.output_tokens,
            use_cache=cached,
            slot=job.index if job.role == "prime" else None,
        )

    def _prompt(self, job: Job) -> Prompt:
        own = job.cell.workload.prompts
        if own and job.role != "operator":
            return _own_prompt(own[job.index % len(own)])
        if self.exact:
            return Prompt(token_ids=self._token_ids(job))
        text = self._text(job)
        if self.endpoint == "chat":
            return Prompt(messages=({"role": "user", "content": text},))
        return Prompt(text=text)

    def _token_ids(self, job: Job) -> tuple[int, ...]:
        assert self.tokens is not None  # noqa: S101  # because `exact` has just said so
        prefix, length = job.prompt_tokens
        shared, own = job.rngs()
        opening = self._nonce(shared, prefix)
        opening += _window(self.tokens, 0, prefix - len(opening))
        part = self._nonce(own, length)
        start = own.randrange(len(self.tokens))
        return opening + part + _window(self.tokens, start, length - len(part))

    def _nonce(self, rng: random.Random, room: int) -> tuple[int, ...]:
        """As many random ids as fit into `room`, NONCE_TOKENS at most."""
        return tuple(rng.choice(self._alphabet) for _ in range(min(NONCE_TOKENS, room)))

    def _text(self, job: Job) -> str:
        prefix, length = job.prompt_tokens
        shared, own = job.rngs()
        per_token = self.chars_per_token
        opening = _text_with_nonce(self.text, shared, 0, int(prefix * per_token))
        start = own.randrange(len(self.text))
        return opening + _text_with_nonce(self.text, own, start, int(length * per_token))


@dataclass(frozen=True)
class Job:
    """One request to be sent: whose, in which role, the how-manyeth."""

    cell: Cell
    attempt: str
    role: Role
    index: int
    output_tokens: int
    wave: int | None = None

    @property
    def prompt_tokens(self) -> tuple[int, int]:
        """Length of the opening that belongs to the cell, and of the request's own part.

        A second operator shares nothing with anybody.
        """
        if self.role == "operator" and self.cell.arrival is not None:
            return 0, self.cell.arrival.prompt_tokens
        return self.cell.workload.prefix_tokens, self.cell.workload.prompt_tokens

    def rngs(self) -> tuple[random.Random, random.Random]:
        """Randomness of the opening and of the own part.

        With a warm cache the opening belongs to the cell, so that priming it helps; with a cold
        one it belongs to the request.
        """
        whole = f"{self.cell.cell_id}/{self.attempt}"
        single = f"{whole}/{self.role}/{self.index}"
        warm = self.cell.config.prefix_cache == "on"
        # Not for secrets: the same run must be able to say which prompts it sent.
        opening = random.Random(whole if warm else single)  # noqa: S311
        return opening, random.Random(f"{single}/own")  # noqa: S311


def _window(tokens: Sequence[int], start: int, length: int) -> tuple[int, ...]:
    """`length` ids from `start` on, round the end if need be."""
    return tuple(tokens[(start + i) % len(tokens)] for i in range(length))


def _text_with_nonce(text: str, rng: random.Random, start: int, length: int) -> str:
    """About `length` characters that start with a random word, then the corpus from `start` on."""
    if length <= 0:
        return ""
    nonce = f"{rng.getrandbits(64):016x} "
    rest = max(0, length - len(nonce))
    doubled = text[start:] + text
    while len(doubled) < rest:
        doubled += text
    return nonce + doubled[:rest] + "\n"


def _own_prompt(entry: object) -> Prompt:
    """A prompt out of the operator's file; its shape was checked when the file was read."""
    assert isinstance(entry, dict)  # noqa: S101  # because config.py checks every line
    if "messages" in entry:
        return Prompt(messages=tuple(entry["messages"]))
    return Prompt(text=str(entry["prompt"]))
