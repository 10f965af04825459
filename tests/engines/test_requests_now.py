"""How busy the plant's own engine is, asked of small servers that answer like engines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from edgeagent.engines.requests_now import requests_now


@contextlib.contextmanager
def serving(pages: Mapping[str, str]) -> Iterator[str]:
    """A server with these pages; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # because the base class has it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.mark.parametrize(
    ("pages", "count"),
    [
        (
            {
                "/metrics": 'vllm:num_requests_running{engine="0"} 3.0\n'
                'vllm:num_requests_waiting{engine="0"} 2.0\n'
            },
            5,
        ),
        ({"/metrics": "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"}, 1),
        ({"/slots": '[{"is_processing": true}, {"is_processing": false}]'}, 1),
        ({"/metrics": "vllm:num_requests_running 0\n"}, 0),
    ],
)
def test_an_engine_tells_how_many_requests_it_has(pages: dict[str, str], count: int) -> None:
    with serving(pages) as url:
        found = requests_now(url, 10)
    assert (found.count, found.reason) == (count, None)


@pytest.mark.parametrize("pages", [{}, {"/slots": "{}"}, {"/metrics": "up 1\n"}])
def test_an_engine_that_does_not_tell_is_not_taken_for_idle(pages: dict[str, str]) -> None:
    with serving(pages) as url:
        found = requests_now(url, 10)
    assert found.count is None
    assert "neither by /metrics nor by /slots" in (found.reason or "")


@pytest.mark.parametrize("pages", [{"/slots": "not json"}])
def test_nonsense_is_not_taken_for_idle(pages: dict[str, str]) -> None:
    with serving(pages) as url:
        assert requests_now(url, 10).count is None


def test_an_engine_that_is_away_is_not_taken_for_idle() -> None:
    with serving({}) as url:
        pass
    found = requests_now(url, 5)
    assert found.count is None
    assert "does not answer" in (found.reason or "")
