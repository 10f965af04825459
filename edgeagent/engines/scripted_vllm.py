"""What would a vLLM look like whose every number is known?

A server of ours with vLLM's surface: nothing listens until it is ready, streams count tokens as
they go, the pool is divided into blocks, and three processes make one engine. It stands in where
no vLLM is installed, and fails on request (`--fail KIND`) in vLLM's words.

    python -m edgeagent.engines.scripted_vllm --model M --port 8000 --max-model-len 256 --itl-ms 5

What a sequence takes of the pool is in scripted_pool.py, how HTTP is spoken in scripted_line.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgeagent.engines.scripted_line import Line
from edgeagent.engines.scripted_pool import Blocks, Sequences
from edgeagent.engines.scripted_slots import tokenize
from edgeagent.engines.scripted_stream import BadRequestError, Route, Wanted, wanted

VERSION = "0.32.0"
BYTES_PER_TOKEN = 256
"""Of its cache: two layers, one head of 32, in 16 bits."""

_PLENTY = 1024
_DEVELOPMENT = "VLLM_SERVER_DEV_MODE"
_ROUTES: Mapping[str, Route] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
}
_STAGES = (
    "non-default args: {}",
    "Initializing a V1 LLM engine (v0.32.0) with config: device_config=cpu",
    "Starting to load model scripted...",
    "Loading weights took 0.01 seconds",
    "CPU KV cache size: 2,048 tokens, Maximum concurrency for 256 tokens per request: 8.00x",
    "init engine (profile, create kv cache, warmup model) took 0.02 s",
)
_FAILURES: Mapping[str, tuple[str, ...]] = {
    "memory": (
        "ValueError: Available memory on node 0 (21.59/23.54 GiB) on kv cache allocation is less "
        "than requested memory for kv (40.0 GiB). Decrease --kv-cache-memory-bytes.",
        "RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {}",
    ),
    "race": (
        "AssertionError: Error in memory profiling. Initial free memory 21.0 GiB, current free "
        "memory 22.0 GiB. This happens when other processes release GPU memory.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ),
    "port": ("OSError: [Errno 98] Address already in use",),
}
_DIES_AFTER_S = 0.3
"""How long its API server outlives its engine."""

_CORE = """
import os, signal, subprocess, sys, time
worker = subprocess.Popen(["VLLM::Worker", "-c", sys.argv[1]], executable=sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
while worker.poll() is None:
    time.sleep(0.02)
"""
_WORKER = """
import os, time
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.02)
"""


@dataclass(frozen=True)
class Settings:
    """How the server behaves."""

    model: str
    host: str
    port: int
    length: int
    sequences: int
    block_tokens: int
    blocks: int
    pool_bytes: int | None
    prefix_cache: bool
    details: bool
    """Whether usage says how many prompt tokens were cached."""
    speculation: Mapping[str, object] | None
    shutdown_s: float
    start_s: float
    ttft_s: float
    itl_s: float
    development: bool


class ScriptedVllm:
    """The server; `run` returns when it has been told to end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._blocks = Blocks(settings.blocks, settings.block_tokens)
        self._sequences = Sequences(settings.sequences)
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self._streams = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket, core: subprocess.Popen[bytes]) -> int:
        """Get ready, serve until SIGTERM or the engine's end; the exit status."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        for text in _STAGES:
            _log(text)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), self._settings.start_s / len(_STAGES))
        listener.listen(256)
        listener.setblocking(False)
        accepting = loop.create_task(self._accept(listener))
        _log(f"Starting vLLM server on http://{self._settings.host}:{self._settings.port}")
        while not ended.is_set() and core.poll() is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), 0.02)
        if not ended.is_set():
            _log("EngineDeadError: EngineCore encountered an issue. See stack trace (above).")
            await asyncio.sleep(_DIES_AFTER_S)
            return 0
        accepting.cancel()
        listener.close()
        core.terminate()
        await self._drained()
        return 0

    async def _drained(self) -> None:
        """Wait for open streams; without a limit as long as they please."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self._settings.shutdown_s or None)

    # -------------------------------------------------------------------------- connections

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listener)
            task = loop.create_task(self._serve_until_gone(Line(sock)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve_until_gone(self, line: Line) -> None:
        try:
            while True:
                head, body = await line.request()
                method, target, *_ = head.decode("latin-1").split(" ")
                await self._answer(line, f"{method} {target.partition('?')[0]}", body)
        except (OSError, EOFError):
            pass
        finally:
            line.close()

    async def _answer(self, line: Line, asked: str, body: bytes) -> None:
        method, _, path = asked.partition(" ")
        if method == "POST" and path in _ROUTES:
            await self._generate(line, _ROUTES[path], _mapping(body))
        elif asked == "GET /health":
            line.send(200, "text/plain", b"")
        elif asked == "GET /version":
            line.json(200, {"version": VERSION})
        elif asked == "GET /v1/models":
            model = self._settings.model
            entry = {"id": model, "root": model, "max_model_len": self._settings.length}
            line.json(200, {"object": "list", "data": [entry]})
        elif asked == "GET /metrics":
            line.send(200, "text/plain; version=0.0.4", self._metrics().encode())
        elif asked == "POST /tokenize":
            tokens = tokenize(str(_mapping(body).get("prompt", "")))
            line.json(200, {"count": len(tokens), "tokens": tokens, "token_strs": None})
        elif asked == "POST /reset_prefix_cache" and self._settings.development:
            # Status 200 either way, as vLLM does.
            line.json(200, {"success": self._blocks.forget()})
        elif asked == "GET /server_info" and self._settings.development:
            line.json(200, {"vllm_config": self._config()})
        else:
            line.json(404, {"detail": "Not Found"})

    def _config(self) -> dict[str, object]:
        return {
            "model_config": {"dtype": "torch.bfloat16", "enforce_eager": True},
            "scheduler_config": {"max_num_seqs": self._settings.sequences},
            "device_config": {"device": "cpu"},
            "speculative_config": self._settings.speculation,
        }

    def _metrics(self) -> str:
        settings = self._settings
        gauges = {
            "num_requests_running": self._sequences.running,
            "num_requests_waiting": self._sequences.waiting,
            "kv_cache_usage_perc": self._blocks.used / (settings.blocks - 1),
        }
        hidden = () if settings.speculation else ("spec_decode_",)
        lines = [
            f'vllm:{name}{{engine="0",model_name="{settings.model}"}} {float(value)}'
            for name, value in {**self._counters, **gauges}.items()
            if not name.startswith(hidden)
        ]
        # Of every counter also the moment it was made, which is no count.
        lines += [f'vllm:{n.removesuffix("_total")}_created{{engine="0"}} 1.7e9' for n in _COUNTERS]
        labels = {
            "block_size": settings.block_tokens,
            "cache_dtype": "auto",
            "enable_prefix_caching": settings.prefix_cache,
            "engine": 0,
            "kv_cache_memory_bytes": settings.pool_bytes,
            "num_gpu_blocks": settings.blocks,
        }
        written = ",".join(f'{name}="{value}"' for name, value in labels.items())
        return "\n".join([*lines, f"vllm:cache_config_info{{{written}}} 1.0", ""])

    # ---------------------------------------------------------------------------- generating

    async def _generate(self, line: Line, route: Route, body: Mapping[str, object]) -> None:
        try:
            ask = wanted(route, body)
        except BadRequestError as error:
            _refuse(line, str(error))
            return
        settings = self._settings
        if len(ask.prompt) >= settings.length:
            _refuse(
                line,
                f"This model's maximum context length is {settings.length} tokens. However, your "
                f"prompt contains {len(ask.prompt)} input tokens.",
            )
            return
        salt = str(body.get("cache_salt", ""))
        line.begin_stream()  # its headers come at once, also for a request that has to wait
        self._streams += 1
        self._idle.clear()
        try:
            async with self._sequences.seat(), self._blocks.sequence() as held:
                cached = held.admit(ask.prompt, salt) if settings.prefix_cache else 0
                held.hold(len(ask.prompt))
                await self._write(line, _Stream(self._settings, ask, cached), held.hold)
            line.end_stream()
        finally:
            self._streams -= 1
            if not self._streams:
                self._idle.set()

    async def _write(self, line: Line, stream: _Stream, hold: Callable[[int], None]) -> None:
        settings, ask = self._settings, stream.ask
        self._counters["prompt_tokens_total"] += len(ask.prompt)
        if settings.prefix_cache:
            self._counters["prefix_cache_queries_total"] += len(ask.prompt)
            self._counters["prefix_cache_hits_total"] += stream.cached
        loop = asyncio.get_running_loop()
        due = loop.time() + settings.ttft_s
        limit = min(ask.max_tokens, settings.length - len(ask.prompt))
        if ask.route == "chat":
            line.chunk(stream.role())
        for number in range(1, limit + 1):
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += settings.itl_s
            if not line.alive():
                raise ConnectionResetError
            hold(len(ask.prompt) + number - 1)  # the newest token has no entry yet
            self._counters["generation_tokens_total"] += 1
            if settings.speculation and number > 1:
                self._counters["spec_decode_num_drafts_total"] += 1
                self._counters["spec_decode_num_draft_tokens_total"] += 4
                self._counters["spec_decode_num_accepted_tokens_total"] += 1
            line.chunk(stream.token(number, "length" if number == limit else None))
        line.chunk(stream.end(limit))


@dataclass(frozen=True)
class _Stream:
    """The events of one request."""

    settings: Settings
    ask: Wanted
    cached: int

    def role(self) -> bytes:
        """What opens a chat and is no token."""
        return self._event({"delta": {"role": "assistant", "content": ""}}, 0, None)

    def token(self, number: int, finish: str | None) -> bytes:
        """The event of the how-manyeth token."""
        text = f" w{number % 500}"
        content = {"delta": {"content": text}} if self.ask.route == "chat" else {"text": text}
        return self._event(content, number, finish)

    def end(self, tokens: int) -> bytes:
        """The final counts, and the stream's end."""
        usage: dict[str, object] = self._usage(tokens)
        if self.settings.details:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return _data({"model": self.settings.model, "choices": [], "usage": usage}) + (
            b"data: [DONE]\n\n"
        )

    def _event(self, content: Mapping[str, object], tokens: int, finish: str | None) -> bytes:
        choice = {"index": 0, **content, "finish_reason": finish}
        model = self.settings.model
        return _data({"model": model, "choices": [choice], "usage": self._usage(tokens)})

    def _usage(self, tokens: int) -> dict[str, object]:
        prompt = len(self.ask.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
        }


_COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)


def _data(value: Mapping[str, object]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _refuse(line: Line, message: str) -> None:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    line.json(400, {"error": error})


def _mapping(body: bytes) -> Mapping[str, object]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# ------------------------------------------------------------------------------- as a program


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="api_server.py", add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add("words", nargs="*")
    for name in ("model", "host", "kv-cache-dtype", "generation-config", "speculative-config"):
        add(f"--{name}")
    add("--per-request-spec-decode-metrics")
    add("--fail")
    for name in ("port", "max-model-len", "max-num-seqs", "kv-cache-memory-bytes", "block-size"):
        add(f"--{name}", type=int)
    for name in ("shutdown-timeout", "start-s", "ttft-ms", "itl-ms"):
        add(f"--{name}", type=float)
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    for name in ("enable-prompt-tokens-details", "enable-per-request-metrics", "enforce-eager"):
        add(f"--{name}", action="store_true")
    add("--disable-uvicorn-access-log", action="store_true")
    return parser


def settings_of(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """What a command line asks for; ends the process in vLLM's words when not understood."""
    args = _parser().parse_args(arguments)
    block = args.block_size or 128
    size = args.kv_cache_memory_bytes
    speculation = json.loads(args.speculative_config) if args.speculative_config else None
    return Settings(
        model=args.model or (args.words[-1] if args.words else "scripted"),
        host=args.host or "127.0.0.1",
        port=args.port or 8000,
        length=args.max_model_len or 16_384,
        sequences=args.max_num_seqs or 128,
        block_tokens=block,
        blocks=size // (block * BYTES_PER_TOKEN) if size else _PLENTY,
        pool_bytes=size,
        prefix_cache=args.enable_prefix_caching,
        details=args.enable_prompt_tokens_details,
        speculation=speculation,
        shutdown_s=args.shutdown_timeout or 0.0,
        start_s=args.start_s or 0.0,
        ttft_s=(10.0 if args.ttft_ms is None else args.ttft_ms) / 1e3,
        itl_s=(5.0 if args.itl_ms is None else args.itl_ms) / 1e3,
        development=environment.get(_DEVELOPMENT) == "1",
    )


def _log(text: str) -> None:
    sys.stderr.write(f"(APIServer pid={os.getpid()}) INFO 01-01 00:00:00 [scripted.py:1] {text}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM; the exit status."""
    if "--version" in arguments:
        sys.stdout.write(f"{VERSION}\n")
        return 0
    settings = settings_of(arguments, os.environ)
    failing = _parser().parse_args(arguments).fail
    if failing:
        for text in _FAILURES[failing]:
            sys.stderr.write(f"(EngineCore pid=1) ERROR 01-01 00:00:00 [core.py:1] {text}\n")
        return 1
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        # Bound from the beginning, listening when ready: until then connections are refused.
        listener.bind((settings.host, settings.port))
    except OSError as error:
        sys.stderr.write(f"OSError: [Errno {error.errno}] {error.strerror}\n")
        return 1
    core = subprocess.Popen(
        ["VLLM::EngineCore", "-c", _CORE, _WORKER, sys.executable],  # noqa: S607  # because it is a title; the program is named below
        executable=sys.executable,
        stdout=subprocess.PIPE,
    )
    assert core.stdout is not None  # noqa: S101  # because it was asked for as a pipe
    core.stdout.readline()  # both processes stand before anybody looks at them
    return asyncio.run(ScriptedVllm(settings).run(listener, core))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
