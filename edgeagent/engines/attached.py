"""What answers at this URL, and how is it asked?

A server that somebody else started is never started, stopped or reconfigured. Its kind is found
out (`/props` is llama-server, `/version` is vLLM, anything else with `/v1/models` is "some
OpenAI-compatible server"), and what cannot be known of it stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgeagent.core.model import (
    EngineConfig,
    EngineIdentity,
    EngineKind,
    EngineSpec,
    ModelIdentity,
    ServerFacts,
)
from edgeagent.engines import llamacpp, vllm_facts, vllm_wire, wire
from edgeagent.engines.rest import Answer, Rest
from edgeagent.errors import EngineError, UnreachableError
from edgeagent.ports import Ask, HttpRequest

_OK = 200
_REFUSED = (401, 403)


async def detect(
    spec: EngineSpec, api_key: str | None, cacert: str | None, *, asked: EngineKind | None
) -> tuple[EngineKind, ServerFacts]:
    """The kind of server at the URL and what it says of itself. Raises UnreachableError."""
    async with Rest(spec.url or "", api_key, cacert, timeout_s=10) as rest:
        kind = asked or await _kind(rest)
        if kind == "llamacpp":
            if asked:
                await _llama_server(rest)
            return kind, await llamacpp.facts_of(rest)
        model = await _models(rest)
        if kind == "vllm":
            return kind, await vllm_facts.facts_of(rest)
        return kind, _openai_facts(model)


async def _kind(rest: Rest) -> EngineKind:
    props = _allowed(rest, await rest.get("/props"))
    if "default_generation_settings" in props.mapping():
        return "llamacpp"
    version = await rest.get("/version")
    if version.status == _OK and "version" in version.mapping():
        return "vllm"
    await _models(rest)
    return "openai"


async def _llama_server(rest: Rest) -> None:
    """Raises UnreachableError when what answers is no llama-server."""
    props = _allowed(rest, await rest.get("/props"))
    if "default_generation_settings" not in props.mapping():
        what = props.content_type.split(";")[0] or "nothing"
        raise UnreachableError(
            f"{rest.url}/props was asked and answered {props.status} with {what}, not like a "
            "llama-server: check the URL, or leave --engine out to have its kind found out"
        )


def _allowed(rest: Rest, answer: Answer) -> Answer:
    """The answer, unless it says that we may not come in. Raises UnreachableError."""
    if answer.status in _REFUSED:
        raise UnreachableError(
            f"{rest.url} was asked and answered {answer.status}: it wants a key, give it with "
            "--api-key-file FILE"
        )
    return answer


async def _models(rest: Rest) -> dict[str, object]:
    """The first model of /v1/models. Raises UnreachableError when there is no such list."""
    answer = _allowed(rest, await rest.get("/v1/models"))
    listed = answer.mapping().get("data")
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        return listed[0]
    what = answer.content_type.split(";")[0] or "nothing"
    raise UnreachableError(
        f"{rest.url}/v1/models was asked and answered {answer.status} with {what}, not a list of "
        "models: give the base URL of an OpenAI-compatible server"
    )


def _openai_facts(model: Mapping[str, object]) -> ServerFacts:
    length, name = model.get("max_model_len"), model.get("id")
    return ServerFacts(
        context_per_slot=length if isinstance(length, int) else None,
        model=name if isinstance(name, str) else None,
    )


_NOT_SEEN = "attached: started by somebody else, program and launch line were not seen"
_NO_VERSION = "it does not tell its version"


class AttachedEngine:
    """A server that runs already. `detect` must have looked at it before."""

    def __init__(
        self,
        spec: EngineSpec,
        facts: ServerFacts,
        api_key: str | None = None,
        cacert: str | None = None,
    ) -> None:
        self._spec = spec
        self._facts = facts
        self._api_key = api_key
        self._cacert = cacert
        self._rest: Rest | None = None

    def identify(self, config: EngineConfig) -> EngineIdentity:  # noqa: ARG002  # because the port has it
        """What could be found out; a program that we did not start has no hash."""
        name = self._facts.model
        model = None
        if name is not None:
            model = ModelIdentity(
                id=name, path=name, reason="the server was attached to; its file was not seen"
            )
        return EngineIdentity(
            id=self._spec.id,
            kind=self._spec.kind,
            version=self._facts.version,
            binary_sha256=None,
            argv=(),
            env=(),
            attached=True,
            model=model,
            reason=_NOT_SEEN if self._facts.version else f"{_NOT_SEEN}; {_NO_VERSION}",
        )

    async def start(self, config: EngineConfig, log: Path, timeout_s: float) -> AttachedServer:  # noqa: ARG002  # because the port has them
        """Look at it again and attach. Raises EngineError when it cannot take the load."""
        asked: EngineKind = self._spec.kind
        _, facts = await detect(self._spec, self._api_key, self._cacert, asked=asked)
        context = facts.context_per_slot
        if context is not None and context < config.context_per_slot:
            raise EngineError(
                f"{self._spec.url} offers {context} tokens per request, this sweep needs "
                f"{config.context_per_slot}: shorten the requests, or start it with more context"
            )
        facts = replace(
            facts, details={**facts.details, "differences": _differences(config, facts)}
        )
        self._rest = Rest(self._spec.url or "", self._api_key, self._cacert)
        return AttachedServer(self._spec.kind, self._rest, facts)

    async def stop(self) -> None:
        """Detach; the server stays as it is."""
        if self._rest is not None:
            await self._rest.aclose()
            self._rest = None

    def pids(self) -> tuple[int, ...]:
        """None: somebody else's processes are not ours to watch."""
        return ()

    def starting(self) -> str | None:
        """Nothing: it runs already."""
        return None

    def kill(self, why: str) -> None:
        """Nothing: somebody else's server is not ours to end."""


def _differences(config: EngineConfig, facts: ServerFacts) -> list[str]:
    found = []
    if facts.slots is not None and facts.slots < config.slots:
        found.append(f"it has {facts.slots} slots, the sweep goes up to {config.slots}")
    if facts.prefix_cache is False and config.prefix_cache == "on":
        found.append("asked for prefix caching on, it is off")
    return found


class AttachedServer(llamacpp.LlamaCppServer):
    """A server of somebody else's: asked in its own form, never judged by its process."""

    def __init__(self, kind: EngineKind, rest: Rest, facts: ServerFacts) -> None:
        super().__init__(rest, facts)
        self._kind = kind

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Token ids where the kind has a tokenizer endpoint."""
        if self._kind == "llamacpp":
            return await super().tokenize(text)
        if self._kind != "vllm":
            return None
        return await vllm_facts.tokens_of(self._rest, self._facts.model or "", text)

    def request(self, ask: Ask) -> HttpRequest:
        """The wire form of the server's kind."""
        if self._kind == "llamacpp":
            return llamacpp.request(ask)
        model = self._facts.model or ""
        if self._kind == "vllm":
            return vllm_wire.request(ask, model)
        return _openai_request(ask, model)

    async def reset_cache(self) -> bool:
        """Not ours to reset, except llama-server's slots where it offers that."""
        return await super().reset_cache() if self._kind == "llamacpp" else False

    async def counters(self) -> Mapping[str, float]:
        """Counters where we know their names."""
        if self._kind == "vllm":
            return await vllm_facts.read_counters(self._rest)
        return await super().counters() if self._kind == "llamacpp" else {}


def _openai_request(ask: Ask, model: str) -> HttpRequest:
    """Only what the OpenAI interface itself defines: others refuse unknown fields."""
    messages = ask.prompt.messages or ({"role": "user", "content": ask.prompt.text or ""},)
    body = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": ask.max_tokens,
        "temperature": 0.0,
    }
    return wire.post("/v1/chat/completions", body)
