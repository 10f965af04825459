"""What are the nouns of a sweep?

Frozen values, from what the operator asked for (`SweepSpec`) through what will be done
(`Plan`, `Cell`, `Step`) to what was seen (`RequestTrace`, `MemorySample`) and what should be
doubted (`Finding`).

Units live in names: `_ns` is nanoseconds on the monotonic clock, `_s` seconds, `_bytes` bytes.
`None` means "not known"; zero is a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

EngineKind = Literal["llamacpp", "vllm", "openai", "fake"]
Shape = Literal["sustained", "fanout"]
Switch = Literal["on", "off"]
Endpoint = Literal["completions", "chat"]

# --------------------------------------------------------------------------- what was asked for


@dataclass(frozen=True)
class EngineSpec:
    """One engine as the operator named it: how to launch it, or where it already runs."""

    id: str
    kind: EngineKind
    command: tuple[str, ...] = ()
    """Launcher: the binary, or a wrapper and its arguments. Empty when attached."""
    model: str | None = None
    url: str | None = None
    """Set when somebody else started the server; then nothing is started or stopped."""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    kv_type: str = "f16"
    slots: int | None = None
    """Slots per launch; None means the largest concurrency of the sweep."""

    @property
    def attached(self) -> bool:
        """Whether the server belongs to somebody else."""
        return self.url is not None


@dataclass(frozen=True)
class Slo:
    """Limits that a good request keeps, in seconds; None does not limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True)
class WorkloadSpec:
    """What each request looks like and how requests arrive.

    The prompt of a request is `prefix_tokens` that open every request of a cell alike, then
    `prompt_tokens` of its own; it answers exactly `output_tokens`.
    """

    shape: Shape = "sustained"
    prefix_tokens: int = 256
    prompt_tokens: int = 64
    output_tokens: int = 64
    endpoint: Endpoint | None = None
    """None lets the engine's kind decide: completions with token ids where it is known."""
    requests: int | None = None
    """Measured requests per cell; None means max(20, 4 x concurrency)."""
    seconds: float | None = None
    """Measure for this long instead of a number of requests."""
    warmup: int | None = None
    """Warm-up requests per request shape; None means one per simultaneous request."""
    seed: int = 20260101
    prompts: tuple[Mapping[str, object], ...] = ()
    """Own traffic, one object a request, used in turn; empty means generated plant traffic."""
    prompts_sha256: str | None = None


@dataclass(frozen=True)
class Limits:
    """Deadlines, in seconds. A stream that never ends costs a request, never the sweep."""

    request_s: float = 300.0
    idle_s: float = 120.0
    """Longest silence between two token events."""
    cell_s: float | None = None
    """None means: derived from the number of requests and `request_s`."""
    sweep_s: float | None = None
    start_s: float = 600.0
    """Longest wait for an engine to become ready."""
    settle_s: float = 3.0
    """For so long memory must stay within 1 % until it counts as settled."""


@dataclass(frozen=True)
class SweepSpec:
    """The whole question, before anything was looked at."""

    engines: tuple[EngineSpec, ...]
    concurrency: tuple[int, ...] = (1, 4, 8, 16)
    prefix_cache: tuple[Switch, ...] = ("off", "on")
    speculation: tuple[str, ...] = ("off",)
    repeats: int = 3
    context: int | None = None
    """Tokens per slot; None means prompt plus output, rounded up to 256."""
    workload: WorkloadSpec = field(default_factory=WorkloadSpec)
    slo: Slo = field(default_factory=Slo)
    limits: Limits = field(default_factory=Limits)
    cooldown_s: float = 1.0
    device: Literal["auto", "cpu", "gpu"] = "auto"
    strict: bool = False
    memory_slots: tuple[int, ...] = ()
    """Slot counts at which memory is measured; empty means: chosen by the concurrencies."""
    memory_repeats: int = 2
    """Starts at each of them; 0 leaves the measurement of memory out."""
    canary: int = 5
    """Requests, one at a time, that open the sweep and close it alike; 0 leaves them out."""
    second_operator: Switch = "off"
    """Whether a second operator's long prompt is sent into a running fan-out of every launch."""
    capacity: Switch = "off"
    """Whether to look, beyond the listed levels, for the most requests that keep the SLO."""
    capacity_levels: tuple[tuple[str, int], ...] = ()
    """Levels that this search has asked for so far: engine and concurrency."""


# ------------------------------------------------------------------------- what was established


@dataclass(frozen=True)
class ModelIdentity:
    """Which weights: read from the file, not from its name."""

    id: str
    path: str
    format: str | None = None
    architecture: str | None = None
    quantization: str | None = None
    parameters: int | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    context_length: int | None = None
    kv_bytes_per_token: float | None = None
    """Attention cache of one token at the launch's kv_type; None when the file does not say."""
    reason: str | None = None
    """Why something above is null."""
    weights_digest: str | None = None
    """Equal for two files or folders that carry the same values; None when nothing proves it."""


@dataclass(frozen=True)
class EngineIdentity:
    """Which program: established before anything is started, part of every cell's digest."""

    id: str
    kind: EngineKind
    version: str | None
    binary_sha256: str | None
    argv: tuple[str, ...]
    """Launch line without what changes between identical launches (port, paths of the run)."""
    env: tuple[tuple[str, str], ...]
    attached: bool
    model: ModelIdentity | None
    reason: str | None = None


@dataclass(frozen=True)
class EngineConfig:
    """An engine with its factors set: what one launch runs with."""

    engine: EngineSpec
    slots: int
    context_per_slot: int
    prefix_cache: Switch
    speculation: str
    device: Literal["auto", "cpu", "gpu"] = "auto"


# ------------------------------------------------------------------------------ what will be done


CellPurpose = Literal["load", "canary", "memory", "arrival", "capacity"]
"""What a cell is for: an answer, a look at whether the box has changed, the cost of slots, the
cost of a newcomer, a step of the search for the most requests that are served well."""

ArrivalKind = Literal["rehearsal", "operator", "none"]
"""A window's newcomer: the first one, which is not counted; a counted one; nobody."""


@dataclass(frozen=True)
class ArrivalSpec:
    """How a second operator comes into a running fan-out: in pairs of windows, once not, once."""

    pairs: int
    first: Literal["none", "operator"]
    """Which window of every pair comes first."""
    prompt_tokens: int
    """Of the newcomer's own prompt, which shares nothing with any other."""
    wanted_prompt_tokens: int
    """What it would have had, did the context of a slot hold it."""
    output_tokens: int
    quiet_s: float
    """Least time without a newcomer before and after every window."""


@dataclass(frozen=True)
class Cell:
    """One measurement: engine configuration x concurrency x prefix cache x repeat."""

    cell_id: str
    """Digest of all that determines the cell; see core/plan.py."""
    config: EngineConfig
    concurrency: int
    repeat: int
    workload: WorkloadSpec
    requests: int | None
    """Measured requests; None when the cell is bounded by `workload.seconds`."""
    purpose: CellPurpose = "load"
    arrival: ArrivalSpec | None = None
    """Set where the purpose is `arrival`."""

    @property
    def expected_prefix_share(self) -> float:
        """Share of a prompt that the cell's requests have in common."""
        total = self.workload.prefix_tokens + self.workload.prompt_tokens
        return self.workload.prefix_tokens / total if total else 0.0


Role = Literal["warmup", "prime", "lead_in", "measured", "operator"]
"""Why a request was sent; `operator` is the newcomer, who belongs to no fan-out."""


@dataclass(frozen=True)
class Phase:
    """A run of requests that play one role within a step.

    Phases of one step follow each other without draining: the last lead-in request hands its slot
    to the first measured one (docs/metrics.md, "steady window").
    """

    role: Role
    requests: int | None
    seconds: float | None = None
    staggered: bool = False
    """Output lengths rise from output/N to output, so that slots are handed over one by one."""


LaunchRole = Literal["load", "memory"]
"""Whether cells are measured on a start, or what its slots cost in memory."""


@dataclass(frozen=True)
class StartEngine:
    """Start (or attach to) an engine; the launch is one replicate."""

    config: EngineConfig
    replicate: int
    role: LaunchRole = "load"
    kind: Literal["start"] = "start"


@dataclass(frozen=True)
class StopEngine:
    """Stop the engine and see its memory return."""

    engine_id: str
    kind: Literal["stop"] = "stop"


@dataclass(frozen=True)
class ResetCache:
    """Forget cached prefixes, where the engine can."""

    engine_id: str
    kind: Literal["reset_cache"] = "reset_cache"


@dataclass(frozen=True)
class Warmup:
    """Throw-away requests in the shape of the cell; they are recorded, never counted."""

    cell: Cell
    phases: tuple[Phase, ...]
    kind: Literal["warmup"] = "warmup"


@dataclass(frozen=True)
class Prime:
    """Put the cell's shared opening into every slot that the cell will use."""

    cell: Cell
    phases: tuple[Phase, ...]
    kind: Literal["prime"] = "prime"


@dataclass(frozen=True)
class Measure:
    """Drive the load and record it."""

    cell: Cell
    phases: tuple[Phase, ...]
    kind: Literal["measure"] = "measure"


@dataclass(frozen=True)
class MeasureArrival:
    """Keep a fan-out in flight while a second operator comes, or does not, again and again."""

    cell: Cell
    phases: tuple[Phase, ...]
    kind: Literal["arrival"] = "arrival"


@dataclass(frozen=True)
class MeasureMemory:
    """Start an engine with so many slots and read what it takes before, during and after a load."""

    cell: Cell
    waves: tuple[int, ...]
    """Requests at once, wave after wave; the last one fills every slot."""
    kind: Literal["memory"] = "memory"


@dataclass(frozen=True)
class Cooldown:
    """Leave the box alone."""

    seconds: float
    kind: Literal["cooldown"] = "cooldown"


Step: TypeAlias = (
    StartEngine
    | StopEngine
    | ResetCache
    | Warmup
    | Prime
    | Measure
    | MeasureArrival
    | MeasureMemory
    | Cooldown
)


@dataclass(frozen=True)
class Plan:
    """Everything that will be done, in order."""

    spec: SweepSpec
    identities: tuple[EngineIdentity, ...]
    """Of every configuration, in the order of `core.plan.configurations`."""
    cells: tuple[Cell, ...]
    steps: tuple[Step, ...]
    digest: str
    canaries: tuple[Cell, ...] = ()
    """The same small load at the beginning and at the end: has the box changed meanwhile?"""
    memory: tuple[Cell, ...] = ()
    """Starts at which memory is measured: `concurrency` is the number of slots."""
    arrivals: tuple[Cell, ...] = ()
    """Fan-outs into which a second operator comes; `concurrency` is the fan-out alone."""
    capacity: tuple[Cell, ...] = ()
    """Further levels, which the search for the capacity has asked for so far."""

    @property
    def every_cell(self) -> tuple[Cell, ...]:
        """Whatever is measured, for whatever purpose."""
        return (*self.cells, *self.canaries, *self.arrivals, *self.memory, *self.capacity)


# ---------------------------------------------------------------------------------- what was seen

ErrorKind = Literal[
    "connect",  # no connection could be made
    "reset",  # the connection broke
    "http_4xx",
    "http_5xx",
    "protocol",  # bytes that are not HTTP, not an event stream, not JSON
    "in_band",  # an error event inside a stream of status 200
    "no_end",  # the stream closed without its proper end or finish reason
    "short_output",  # fewer tokens than asked for, without a stop that the plan allows
    "idle",  # no token for longer than the idle limit
    "deadline",  # the request's own deadline
    "cell_deadline",  # the cell ended first
    "interrupted",  # the operator ended the sweep
    "engine_died",
    "killed_by_guard",  # the memory guard ended the engine before the box collapsed
]

TokenSource = Literal["timings", "usage", "token_ids", "chunks"]
StampSource = Literal["kernel", "monotonic"]


@dataclass(frozen=True)
class RequestTrace:
    """One request as it happened. All stamps are monotonic nanoseconds.

    `event_ns`, `event_tokens` run in parallel: arrival and number of generated tokens of every
    event that carried at least one. An event listed in `shared_events` came in the same socket
    read as the token event before it, so the two share one stamp and the earlier one is late.
    """

    cell_id: str
    attempt: str
    """Which attempt at the cell; a cell that was begun twice has requests of both."""
    index: int
    role: Role
    scheduled_ns: int
    sent_ns: int | None = None
    headers_ns: int | None = None
    first_event_ns: int | None = None
    event_ns: Sequence[int] = ()
    event_tokens: Sequence[int] = ()
    shared_events: tuple[int, ...] = ()
    first_answer_event: int | None = None
    """Index into `event_ns` of the first token event that is not reasoning."""
    finished_ns: int | None = None
    error: ErrorKind | None = None
    error_detail: str | None = None
    http_status: int | None = None
    finish_reason: str | None = None
    expected_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    """The engine's own final count; None when it gave none."""
    token_source: TokenSource | None = None
    stamp_source: StampSource = "kernel"
    late_stamps: int = 0
    """Token events stamped by the monotonic clock although kernel stamps were on."""
    draft_tokens: int | None = None
    draft_accepted: int | None = None
    wave: int | None = None
    retried: bool = False
    """The kept connection had been closed by the server; sent once more on a fresh one."""

    @property
    def ok(self) -> bool:
        """Whether the request counts as served."""
        return self.error is None

    @property
    def tokens(self) -> int:
        """Generated tokens seen in the stream."""
        return sum(self.event_tokens)

    @property
    def last_token_ns(self) -> int | None:
        """Arrival of the last token event."""
        return self.event_ns[-1] if self.event_ns else None


SamplePhase = Literal[
    # Full readings, one each around the start of an engine whose memory is measured:
    "before",  # nothing of ours runs yet
    "ready",  # the engine has started and settled; nothing was asked of it
    "loaded",  # every slot has served; what that made the engine take is still held
    "released",  # the engine has ended and its memory was waited for
    # Ordinary samples:
    "start",  # an engine starts
    "load",  # requests are being served
    "idle",  # an engine is ready and has nothing to do
]


@dataclass(frozen=True)
class MemorySample:
    """What the probes saw at one moment; see docs/metrics.md for the names of `values`."""

    at_ns: int
    late_ns: int
    """How much later than planned the sample was taken."""
    cell_id: str | None
    values: Mapping[str, float | int | None]
    absent: Mapping[str, str] = field(default_factory=dict)
    """Why a value is null, by its name."""
    phase: SamplePhase | None = None
    """What the engine was doing; None where nobody said."""


@dataclass(frozen=True)
class ClientCost:
    """What measuring cost, for the time of one cell."""

    cpu_s: float | None
    wall_s: float
    rss_bytes: int | None
    loop_lag_s: tuple[float, ...] = ()
    """Lateness of a periodic timer in the event loop."""
    clock_step_s: float = 0.0
    """Largest jump of the wall clock against the monotonic clock while measuring."""


@dataclass(frozen=True)
class ServerFacts:
    """What the running engine says of itself, read back after it became ready."""

    slots: int | None = None
    context_per_slot: int | None = None
    version: str | None = None
    model: str | None = None
    offloaded_layers: int | None = None
    total_layers: int | None = None
    speculative: bool | None = None
    prefix_cache: bool | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    """Anything else worth keeping (buffer sizes from the log, the ready line ...)."""


@dataclass(frozen=True)
class Launch:
    """One start of an engine, as it happened."""

    engine_id: str
    replicate: int
    argv: tuple[str, ...]
    slots: int
    prefix_cache: Switch
    speculation: str
    ready_s: float | None
    effective: ServerFacts
    log: str | None
    role: LaunchRole = "load"
    model_cached_fraction: float | None = None
    """Share of the model file that was in the page cache before the start."""


@dataclass(frozen=True)
class CellRecord:
    """Everything measured in one cell, as `cells.jsonl` and the raw files keep it."""

    cell: Cell
    attempt: str
    started_ns: int
    finished_ns: int
    slots: int | None
    client: ClientCost
    failure: str | None = None
    """One sentence when the cell as a whole failed (engine died, deadline); else None."""
    failure_kind: ErrorKind | None = None
    prompts_exact: bool = True
    """Whether prompts had exactly the tokens that were asked for."""
    server_cached_delta: int | None = None
    """Cached prompt tokens by the engine's own counters, where it has them."""
    server_deltas: Mapping[str, int] = field(default_factory=dict)
    """Growth of every counter that the engine has, lead-in included."""


@dataclass(frozen=True)
class Arrival:
    """One window of an arrival cell: the moment at which somebody came, or could have."""

    at_ns: int
    until_ns: int
    """The end of what belongs to this window; nobody else came before it."""
    kind: ArrivalKind


@dataclass(frozen=True)
class ArrivalRecord(CellRecord):
    """The record of an arrival cell."""

    arrivals: tuple[Arrival, ...] = ()


# --------------------------------------------------------------------------- what should be doubted

Severity = Literal["info", "warning", "suspect"]


@dataclass(frozen=True)
class Finding:
    """A doubt, as a value. `suspect` makes the cells it names suspect."""

    code: str
    severity: Severity
    text: str
    cells: tuple[str, ...] = ()
