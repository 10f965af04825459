"""What may a request to this box say?

One model a request. Everything in them is a word of a fixed list, a whole number between two
bounds, a short list of such numbers, or a name by a pattern that only ever is looked up. There is
no other text, so nothing of a request can become an argument, a path, a URL or a program.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

REQUEST_ID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
"""A UUID in small letters, as uuidgen writes it."""
SIGNATURE = r"^hmac-sha256:[0-9a-f]{64}$"

_MOST_TOKENS = 10_000_000
_MOST_MS = 1 << 53  # the largest number that every JSON reader keeps exact


def _each_once(values: list[int]) -> list[int]:
    if len(set(values)) < len(values):
        raise ValueError("name each number once")
    return values


RequestId = Annotated[str, StringConstraints(pattern=REQUEST_ID)]
Issuer = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Profile = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
Signature = Annotated[str, StringConstraints(pattern=SIGNATURE)]
Millis = Annotated[int, Field(ge=0, le=_MOST_MS)]
RowNumber = Annotated[int, Field(ge=1, le=_MOST_MS)]
Level = Annotated[int, Field(ge=1, le=1024)]
Levels = Annotated[list[Level], Field(min_length=1, max_length=32), AfterValidator(_each_once)]
Tokens = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]
SomeTokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]


class _Closed(BaseModel):
    """Somebody else's to send: a field that we do not know is refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Request(_Closed):
    id: RequestId
    issued_at: Millis
    expires_at: Millis
    issuer: Issuer
    sig: Signature | None = None


class Override(_Closed):
    """The few numbers of a profile that a request may change, within the policy's bounds."""

    concurrency: Levels | None = None
    requests: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    repeats: Annotated[int, Field(ge=1, le=1000)] | None = None
    output_tokens: SomeTokens | None = None
    prompt_tokens: Tokens | None = None
    prefix_tokens: Tokens | None = None
    context: SomeTokens | None = None
    memory_slots: Levels | None = None

    @model_validator(mode="after")
    def _one_length(self) -> Override:
        if self.requests is not None and self.seconds is not None:
            raise ValueError("give requests or seconds, not both")
        return self


class CmdSweep(_Request):
    """Run a profile that the box knows by name; `dry_run` only asks whether it would."""

    schema_: Literal["edgeagent.cmd.sweep/1"] = Field(alias="schema")
    profile: Profile
    override: Override | None = None
    dry_run: bool = False


class CmdCancel(_Request):
    """End the sweep that `target` asked for."""

    schema_: Literal["edgeagent.cmd.cancel/1"] = Field(alias="schema")
    target: RequestId


class CmdResync(_Request):
    """Send the rows `from` to `to`, inclusive, once more."""

    schema_: Literal["edgeagent.cmd.resync/1"] = Field(alias="schema")
    stream: Literal["R", "M"]
    first: RowNumber = Field(alias="from")
    last: RowNumber = Field(alias="to")

    @model_validator(mode="after")
    def _forward(self) -> CmdResync:
        if self.last < self.first:
            raise ValueError("to is less than from")
        return self


class CmdPing(_Request):
    """Answer, nothing else."""

    schema_: Literal["edgeagent.cmd.ping/1"] = Field(alias="schema")


class CmdMeta(_Request):
    """Publish the retained documents once more."""

    schema_: Literal["edgeagent.cmd.meta/1"] = Field(alias="schema")
