"""How are an engine's small endpoints asked?

JSON over HTTP for health, facts and tokenizing; the measured requests go another way (load/).
"""

from __future__ import annotations

import json
import ssl
from types import TracebackType
from typing import Literal

import httpx

from edgeagent.errors import UnreachableError, UsageError


class Answer:
    """An answer that came, whatever its status."""

    def __init__(self, status: int, text: str, content_type: str) -> None:
        self.status = status
        self.text = text
        self.content_type = content_type

    def json(self) -> object:
        """The body as JSON; None when it is not."""
        try:
            value: object = json.loads(self.text)
        except (ValueError, RecursionError):  # the latter from brackets by the thousand
            return None
        return value

    def mapping(self) -> dict[str, object]:
        """The body as a JSON object; empty when it is not one."""
        value = self.json()
        return value if isinstance(value, dict) else {}


class Rest:
    """A client for one server's JSON endpoints. Use as an async context manager, or close it."""

    def __init__(
        self, url: str, api_key: str | None = None, cacert: str | None = None, timeout_s: float = 30
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        verify = _trust(cacert) if self.url.startswith("https") else False
        try:
            # A proxy between us and an engine on this box would be measured as the engine.
            self._client = httpx.AsyncClient(
                base_url=self.url,
                headers=headers,
                timeout=timeout_s,
                trust_env=False,
                verify=verify,
            )
        except httpx.InvalidURL as error:
            raise UsageError(
                f"{self.url} is not an address ({error}): give one like http://127.0.0.1:8080"
            ) from error

    async def __aenter__(self) -> Rest:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def get(self, path: str) -> Answer:
        """Ask; raises UnreachableError when no answer comes."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: object) -> Answer:
        """Ask with a JSON body; raises UnreachableError when no answer comes."""
        return await self._ask("POST", path, body)

    async def _ask(self, method: Literal["GET", "POST"], path: str, body: object) -> Answer:
        try:
            response = await self._client.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = str(error) or type(error).__name__
            raise UnreachableError(
                f"{self.url} was asked for {path} and did not answer ({why}): "
                "check that the server runs and that the address is right"
            ) from error
        return Answer(response.status_code, response.text, response.headers.get("content-type", ""))


def _trust(cacert: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cacert)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"--cacert {cacert} cannot be used ({error}): give a PEM file with the authority's "
            "certificate"
        ) from error
