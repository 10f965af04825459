"""What would an engine look like whose true times are known?

A server of ours on real sockets with the surface of llama-server: it stands in for an engine where
none is installed, misbehaves on request, and writes down the monotonic moment of every token it
sent (`--stamps FILE`, one line a request), so that a client's own stamps can be judged.

    python -m edgeagent.engines.scripted --port 0 -np 4 -c 16384 --ttft-ms 100 --itl-ms 20

In a test: `async with ScriptedServer(Script(slots=2)) as server: ... server.url`.
The rules of slots and cache are in scripted_slots.py, those of streams in scripted_stream.py, what
memory it takes in scripted_memory.py, and how HTTP is spoken in scripted_line.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn

from edgeagent.engines.scripted_line import Line
from edgeagent.engines.scripted_memory import MOST_GROWTH_BYTES, Memory, MemoryScript, spawn
from edgeagent.engines.scripted_slots import Slot, Slots, Stalls, common_prefix, tokenize
from edgeagent.engines.scripted_stream import (
    FINGERPRINT,
    MODEL,
    BadRequestError,
    Beat,
    Route,
    Served,
    Tempo,
    Wanted,
    beats,
    wanted,
    whole_answer,
)

_ROUTES: Mapping[str, Route] = {
    "/v1/completions": "completions",
    "/completions": "native",
    "/completion": "native",
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
}
_PUBLIC = ("/health", "/v1/health")
_OPTIONAL = {"/metrics": "--metrics", "erase": "--slot-save-path"}


@dataclass(frozen=True)
class Script:
    """How the server behaves."""

    host: str = "127.0.0.1"
    port: int = 0
    slots: int = 4
    context: int = 16_384
    """Tokens over all slots."""
    load_s: float = 0.0
    """How long it says that it is loading."""
    tempo: Tempo = field(default_factory=Tempo)
    fault: str | None = None
    """Words of scripted_stream.py for every `fault_every`-th request."""
    fault_every: int = 1
    stamps: Path | None = None
    api_key: str | None = None
    speculative: bool = False
    cache_prompt: bool = True
    absent: frozenset[str] = frozenset()
    """Of `/metrics` and `erase`, those that were not switched on."""
    keep_alive: int = 100
    """Answers on one connection before it is closed."""
    idle_s: float = 5.0
    """How long a connection may wait for its next request."""
    memory: MemoryScript = field(default_factory=MemoryScript)
    stall_s: float = 0.0
    """For so long every stream stands still once a slot takes a long prompt."""
    stall_tokens: int = 256
    """A prompt is long that has so many tokens which the slot does not hold."""


class ScriptedServer:
    """The server; an async context manager that listens while it is open."""

    def __init__(self, script: Script, *, may_die: bool = False) -> None:
        """`may_die` lets the fault of that name end the process."""
        self._script = script
        self._may_die = may_die
        self._slots = Slots(script.slots)
        self._requests = 0
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._stamps: IO[str] | None = None
        self._loading = False
        self._stalls = Stalls()

    async def __aenter__(self) -> ScriptedServer:
        script = self._script
        self._memory = Memory(script.memory, script.slots)
        family = socket.AF_INET6 if ":" in script.host else socket.AF_INET
        listener = socket.create_server((script.host, script.port), family=family, backlog=256)
        listener.setblocking(False)
        self._listener = listener
        self._start(self._accept(listener))
        if script.stamps is not None:
            self._stamps = script.stamps.open("a", encoding="utf-8", buffering=1)
        growing = script.memory.growth_bytes_per_s > 0
        self._loading = growing or script.load_s > 0
        if growing:
            self._start(self._grow())  # it starts until it is ended
        elif self._loading:
            asyncio.get_running_loop().call_later(script.load_s, self._loaded)
        return self

    def _loaded(self) -> None:
        self._loading = False

    async def _grow(self) -> None:
        for wait_s in self._memory.grow():
            await asyncio.sleep(wait_s)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        if self._stamps is not None:
            self._stamps.close()

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._listener is not None  # noqa: S101  # because asked before it is open
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        host = f"[{self._script.host}]" if ":" in self._script.host else self._script.host
        return f"http://{host}:{self.port}"

    # -------------------------------------------------------------------------- connections

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listener)
            self._start(self._serve_until_gone(Line(sock)))

    async def _serve_until_gone(self, line: Line) -> None:
        try:
            await self._serve(line)
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # gone, idle for too long, or the server is closing
        finally:
            line.close()

    async def _serve(self, line: Line) -> None:
        answers = 0
        while True:
            head, body = await asyncio.wait_for(line.request(), self._script.idle_s)
            answers += 1
            line.last = answers >= self._script.keep_alive
            method, path, key = _read_head(head)
            await self._answer(line, f"{method} {path}", key, body)
            if line.last:
                return

    async def _answer(self, line: Line, asked: str, key: str | None, body: bytes) -> None:
        method, _, target = asked.partition(" ")
        path = target.partition("?")[0]
        if self._loading:
            line.error(503, "Loading model", "unavailable_error")
        elif self._script.api_key not in (None, key) and path not in _PUBLIC:
            line.error(401, "Invalid API Key", "authentication_error")
        elif method == "POST" and path in _ROUTES:
            await self._generate(line, _ROUTES[path], body)
        elif method == "POST":
            self._post(line, target, body)
        else:
            self._get(line, path)

    # ----------------------------------------------------------------------- small endpoints

    def _get(self, line: Line, path: str) -> None:
        script = self._script
        per_slot = script.context // script.slots
        if path in _PUBLIC:
            line.json(200, {"status": "ok"})
        elif path == "/props":
            line.json(
                200,
                {
                    "total_slots": script.slots,
                    "default_generation_settings": {"n_ctx": per_slot},
                    "model_path": MODEL,
                    "build_info": FINGERPRINT,
                },
            )
        elif path == "/slots":
            line.json(200, [self._slot(slot, per_slot) for slot in self._slots.all])
        elif path == "/v1/models":
            meta = {"n_ctx": per_slot, "n_ctx_train": script.context, "n_vocab": 40_100}
            line.json(200, {"object": "list", "data": [{"id": MODEL, "meta": meta}]})
        elif path == "/metrics" and path not in script.absent:
            line.send(200, "text/plain; version=0.0.4", self._metrics().encode())
        elif path == "/metrics":
            line.error(501, "This server does not support metrics endpoint.", "not_supported_error")
        else:
            line.error(404, "File Not Found", "not_found_error")

    def _slot(self, slot: Slot, per_slot: int) -> dict[str, object]:
        return {
            "id": slot.id,
            "n_ctx": per_slot,
            "speculative": self._script.speculative,
            "is_processing": slot.busy,
            "n_prompt_tokens": len(slot.tokens),
            "n_prompt_tokens_processed": slot.prompt_tokens - slot.cached_tokens,
            "n_prompt_tokens_cache": slot.cached_tokens,
        }

    def _metrics(self) -> str:
        busy = sum(slot.busy for slot in self._slots.all)
        values = {
            **self._counters,
            "requests_processing": busy,
            "requests_deferred": self._slots.waiting,
        }
        return "".join(
            f"# TYPE llamacpp:{name} {'counter' if name in _COUNTERS else 'gauge'}\n"
            f"llamacpp:{name} {value}\n"
            for name, value in values.items()
        )

    def _post(self, line: Line, target: str, body: bytes) -> None:
        path, _, query = target.partition("?")
        if path == "/tokenize":
            content = _mapping(body).get("content")
            line.json(200, {"tokens": tokenize(content if isinstance(content, str) else "")})
        elif path.startswith("/slots/") and query == "action=erase":
            self._erase(line, path.removeprefix("/slots/"))
        else:
            line.error(404, "File Not Found", "not_found_error")

    def _erase(self, line: Line, number: str) -> None:
        if "erase" in self._script.absent:
            line.error(501, "This server does not support slots action.", "not_supported_error")
        elif number.isdigit() and int(number) < len(self._slots.all):
            slot = self._slots.all[int(number)]
            held, slot.tokens = len(slot.tokens), []
            line.json(200, {"id_slot": slot.id, "n_erased": held})
        else:
            line.error(400, "Invalid slot ID", "invalid_request_error")

    # ---------------------------------------------------------------------------- generating

    async def _generate(self, line: Line, route: Route, body: bytes) -> None:
        self._requests += 1
        try:
            ask = wanted(route, _mapping(body))
        except BadRequestError as error:
            line.error(400, str(error), "invalid_request_error")
            return
        script = self._script
        if script.fault is not None and self._requests % script.fault_every == 0:
            ask = replace(ask, words=ask.words | set(script.fault.split(",")))
        if _instead(line, ask.words):
            return
        per_slot = script.context // script.slots
        if len(ask.prompt) >= per_slot:
            line.too_long(len(ask.prompt), per_slot)
            return
        # Generation ends where the slot's context does.
        ask = replace(ask, max_tokens=min(ask.max_tokens, per_slot - len(ask.prompt)))
        slot = await self._slots.acquire(ask.prompt, ask.slot, line.alive)
        self._memory.request(slot.id)
        served = Served(self._cached(slot, ask), draft=script.speculative)
        try:
            if ask.stream:
                await self._stream(line, ask, served)
            else:
                line.json(200, whole_answer(ask, served))
        finally:
            self._account(slot, ask, served)
            self._slots.release(slot)

    def _cached(self, slot: Slot, ask: Wanted) -> int:
        """Prompt tokens that the slot holds already; one is always evaluated anew."""
        if not (ask.use_cache and self._script.cache_prompt):
            return 0
        return max(0, min(common_prefix(slot.tokens, ask.prompt), len(ask.prompt) - 1))

    def _account(self, slot: Slot, ask: Wanted, served: Served) -> None:
        slot.tokens = [*ask.prompt, *served.ids]
        slot.prompt_tokens, slot.cached_tokens = len(ask.prompt), served.cached
        counters = self._counters
        counters["prompt_tokens_total"] += len(ask.prompt) - served.cached
        counters["prompt_tokens_cached_total"] += served.cached
        counters["tokens_predicted_total"] += len(served.ids)
        if served.draft:
            counters["spec_decode_num_draft_tokens_total"] += len(served.ids)
            counters["spec_decode_num_accepted_tokens_total"] += len(served.ids) // 2

    async def _stream(self, line: Line, ask: Wanted, served: Served) -> None:
        loop = asyncio.get_running_loop()
        begun = self._stalls.begin(loop.time())
        if len(ask.prompt) - served.cached >= self._script.stall_tokens:
            self._stalls.add(loop.time(), self._script.stall_s)
        line.begin_stream()
        written: list[int] = []
        try:
            for beat in beats(ask, served, self._script.tempo):
                # Again after each sleep: everything may have come to a stand meanwhile.
                while (wait_s := begun.due(beat.due_s) - loop.time()) > 0:  # noqa: ASYNC110  # because nothing else tells the time
                    await asyncio.sleep(wait_s)
                if not line.alive():
                    raise ConnectionResetError
                if beat.tokens:
                    written.append(time.monotonic_ns())
                if beat.data:
                    line.chunk(beat.data)
                if beat.then != "go_on":
                    await self._break(line, beat)
            line.end_stream()
        finally:
            self._note(line, ask, written)

    async def _break(self, line: Line, beat: Beat) -> NoReturn:
        if beat.then == "hang":
            await line.gone()
        elif beat.then == "die" and self._may_die:
            sys.stderr.write("0.00.000.000 E scripted: the request asked for the end, ending\n")
            sys.stderr.flush()
            os._exit(1)
        elif beat.then != "cut":
            line.reset()
        raise ConnectionResetError

    def _note(self, line: Line, ask: Wanted, written: Sequence[int]) -> None:
        if self._stamps is not None:
            entry = {"tag": ask.tag, "arrived_ns": line.arrived_ns, "written_ns": written}
            self._stamps.write(json.dumps(entry) + "\n")


_COUNTERS = (
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "tokens_predicted_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)


def _instead(line: Line, words: frozenset[str]) -> bool:
    """Answer with something that is no stream, if a fault says so."""
    if "http_500" in words:
        line.error(500, "the script says so", "server_error")
    elif "http_401" in words:
        line.error(401, "Invalid API Key", "authentication_error")
    elif "html" in words:
        line.send(200, "text/html", b"<html><body>It works!</body></html>")
    elif "garbage" in words:
        line.raw(b"SSH-2.0-scripted\r\n\r\n")
        line.last = True
    else:
        return False
    return True


def _read_head(head: bytes) -> tuple[str, str, str | None]:
    """Method, target and API key of a request."""
    lines = head.decode("latin-1").split("\r\n")
    method, target, *_ = [*lines[0].split(" "), "", ""]
    key = None
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "authorization":
            key = value.strip().removeprefix("Bearer ")
    return method, target, key


def _mapping(body: bytes) -> Mapping[str, object]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# ------------------------------------------------------------------------------- as a program

_TAKEN = (
    ("-m,    --model FNAME", "model path; taken as a name, nothing is loaded"),
    ("--host HOST", "address to listen on (default: 127.0.0.1)"),
    ("--port PORT", "port to listen on, 0 for a free one (default: 8080)"),
    ("-np,   --parallel N", "number of server slots (default: 4)"),
    ("-c,    --ctx-size N", "context over all slots (default: 16384)"),
    ("--api-key KEY", "key that requests must give"),
    ("--cache-prompt", "keep prompts in their slots (default)"),
    ("--no-cache-prompt", "keep no prompts"),
    ("--metrics", "offer /metrics"),
    ("--slot-save-path PATH", "offer the slots' actions"),
    ("--spec-type TYPE", "pretend to speculate unless none"),
    ("--load-s SECONDS", "say for so long that the model is loading"),
    ("--ttft-ms MS", "time to first token (default: 100)"),
    ("--itl-ms MS", "time between tokens (default: 20)"),
    ("--prefill-scaled", "cached prompt tokens shorten the time to first token"),
    ("--tokens-per-event N", "tokens of one event (default: 1)"),
    ("--fault WORDS", "what goes wrong: see edgeagent/engines/scripted_stream.py"),
    ("--fault-every N", "with every N-th request (default: 1)"),
    ("--stall-ms MS", "every stream stands still so long when a slot takes a long prompt"),
    ("--stall-tokens N", "which has so many tokens that the slot does not hold (default: 256)"),
    ("--stamps FNAME", "append the true times of every request to this file"),
    ("--map-bytes N", "map a file of N bytes and read all of it"),
    ("--slot-bytes N", "take N bytes a slot"),
    ("--compute-bytes N", "take N bytes a slot with its first request, and keep them"),
    ("--growth-bytes-per-s N", "never get ready, and take more and more memory instead"),
    ("--growth-limit-bytes N", "but no more than this (default and most: 1 GiB)"),
    ("--children N", "start N children (64 at most)"),
    ("--deserter", "leave a grandchild in a session of its own that ignores SIGTERM"),
    ("--log-device NAME", "report buffers on this device: CPU, CUDA0, none"),
)
_IGNORED = (
    ("--slots", "accepted, always on"),
    ("--no-kv-unified", "accepted, does nothing"),
    ("--no-ui", "accepted, does nothing"),
    ("--offline", "accepted, does nothing"),
    ("-fit,  --fit VALUE", "accepted, does nothing"),
    ("-ngl,  --gpu-layers N", "accepted, does nothing"),
    ("-fa,   --flash-attn VALUE", "accepted, does nothing"),
    ("-lm,   --load-mode VALUE", "accepted, does nothing"),
    ("-cram, --cache-ram N", "accepted, does nothing"),
    ("-ctxcp, --ctx-checkpoints N", "accepted, does nothing"),
    ("-ctk,  --cache-type-k TYPE", "accepted, does nothing"),
    ("-ctv,  --cache-type-v TYPE", "accepted, does nothing"),
    ("-md,   --model-draft FNAME", "accepted, does nothing"),
    ("-lv,   --verbosity N", "accepted, does nothing"),
    ("-t,    --threads N", "accepted, does nothing"),
    ("-b,    --batch-size N", "accepted, does nothing"),
    ("-ub,   --ubatch-size N", "accepted, does nothing"),
)


def _help() -> str:
    lines = ["----- scripted server -----", ""]
    lines += ["-h,    --help, --usage                  print usage and exit"]
    lines += [f"{'--version':40}show version and build info"]
    lines += [f"{names:40}{text}" for names, text in (*_TAKEN, *_IGNORED)]
    return "\n".join(lines) + "\n"


class _Parser(argparse.ArgumentParser):
    """argparse that fails in llama-server's words."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: invalid argument: {message}\n")
        sys.exit(1)


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for entry, _ in (*_TAKEN, *_IGNORED):
        names = [word.rstrip(",") for word in entry.split() if word.startswith("-")]
        takes_value = not entry.split()[-1].startswith("-")
        parser.add_argument(*names, action="store" if takes_value else "store_true")
    return parser


def script_of(arguments: Sequence[str]) -> Script:
    """The script that a command line asks for; ends the process when it is not understood."""
    parser = _parser()
    args = parser.parse_args(arguments)
    absent = {name for name, flag in _OPTIONAL.items() if not getattr(args, _attribute(flag))}
    tempo = Tempo(
        ttft_s=float(args.ttft_ms or 100) / 1e3,
        itl_s=float(20 if args.itl_ms is None else args.itl_ms) / 1e3,
        tokens_per_event=int(args.tokens_per_event or 1),
        prefill_scaled=args.prefill_scaled,
    )
    slots = int(args.parallel or 4)
    memory = _memory_of(args)
    if (excess := memory.excess(slots)) is not None:
        parser.error(excess)
    return Script(
        host=args.host or "127.0.0.1",
        port=int(args.port or 8080) if args.port != "0" else 0,
        slots=slots,
        context=int(args.ctx_size or 16_384),
        load_s=float(args.load_s or 0),
        tempo=tempo,
        fault=args.fault,
        fault_every=int(args.fault_every or 1),
        stamps=Path(args.stamps) if args.stamps else None,
        api_key=args.api_key,
        speculative=args.spec_type not in (None, "none"),
        cache_prompt=not args.no_cache_prompt,
        absent=frozenset(absent),
        memory=memory,
        stall_s=float(args.stall_ms or 0) / 1e3,
        stall_tokens=int(args.stall_tokens or 256),
    )


def _memory_of(args: argparse.Namespace) -> MemoryScript:
    return MemoryScript(
        map_bytes=int(args.map_bytes or 0),
        slot_bytes=int(args.slot_bytes or 0),
        compute_bytes=int(args.compute_bytes or 0),
        growth_bytes_per_s=int(args.growth_bytes_per_s or 0),
        growth_limit_bytes=int(args.growth_limit_bytes or MOST_GROWTH_BYTES),
        children=int(args.children or 0),
        deserter=args.deserter,
        device=args.log_device,
    )


def _attribute(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


async def _run(script: Script) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    for line in script.memory.log_lines(script.slots):
        sys.stderr.write(f"0.00.000.000 I {line}\n")
    sys.stderr.flush()  # whoever sees it ready must find these in its log
    try:
        async with ScriptedServer(script, may_die=True) as server:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), script.load_s or 0.001)
            if not ended.is_set():
                if not script.memory.growth_bytes_per_s:
                    _log_ready(script, server.url)
                await ended.wait()
    except OSError:
        _log(f"couldn't bind HTTP server socket, hostname: {script.host}, port: {script.port}")
        return 1
    return 0


def _log_ready(script: Script, url: str) -> None:
    per_slot = script.context // script.slots
    _log(
        f"load_model: initializing, n_slots = {script.slots}, n_ctx_slot = {per_slot}, "
        "kv_unified = 'false'"
    )
    _log("model loaded")
    _log(f"listening on {url}")


def _log(text: str) -> None:
    sys.stderr.write(f"0.00.000.000 I srv  scripted: {text}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM; the exit status."""
    if {"-h", "--help", "--usage"} & set(arguments):
        sys.stdout.write(_help())
        return 0
    if "--version" in arguments:
        sys.stderr.write("version: 0.0.0-scripted (build 0, commit scripted)\n")
        return 0
    script = script_of(arguments)
    spawn(script.memory)
    return asyncio.run(_run(script))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
