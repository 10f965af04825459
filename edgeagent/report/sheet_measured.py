"""What exactly was measured: which engines, which weights, on which box, with which load?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from edgeagent.report.sheet_values import (
    Absent,
    At,
    Code,
    Column,
    Facts,
    Html,
    Line,
    Row,
    Shown,
    Table,
    Words,
)

_NOT_SEEN = "its file was not seen"


@dataclass(frozen=True)
class Measured:
    """The things behind the numbers."""

    engines: tuple[Facts, ...]
    box: Facts
    load: Facts


def measured(run: At) -> Measured:
    """What a run says of engines, models, box and load."""
    return Measured(
        engines=tuple(_engine(run, engine) for engine in (run / "engines").each()),
        box=_box(run / "host"),
        load=_load(run / "workload"),
    )


def _engine(run: At, engine: At) -> Facts:
    model = model_of(run, engine)
    why = (engine / "reason").word or "the engine did not say"
    attached = (engine / "attached").value is True
    program = "it ran already: its program was not seen" if attached else _NOT_SEEN
    weights = (model / "reason").word or (engine / "reason").word or _NOT_SEEN
    return Facts(
        (engine / "id").text(),
        (
            ("Engine", Line(((engine / "kind").fact(why), _startedby(engine)), ", ")),
            ("Version", (engine / "version").fact(why)),
            ("Program, SHA-256", _code(engine / "binary_sha256", why if not attached else program)),
            ("Context of a slot", _amount(engine / "context_per_slot", "tokens", why)),
            ("Model", (model / "id").fact(weights)),
            ("Quantization", (model / "quantization").fact(weights)),
            ("Parameters", _amount(model / "parameters", "", weights)),
            ("Format", _either(model / "format", model / "architecture", weights)),
            ("Size", _size(model / "size_bytes", weights)),
            ("Weights, SHA-256", _code(model / "sha256", weights)),
            ("File", _code(model / "path", weights)),
        ),
    )


def _startedby(engine: At) -> Html:
    attached = (engine / "attached").value is True
    return Words("attached to a server that ran already" if attached else "started by edgeagent")


def model_of(run: At, engine: At) -> At:
    """The entry of `models` that this engine ran; an empty place where it is not known."""
    sha, models = (engine / "model_sha256").word, list((run / "models").each())
    by_hash = [model for model in models if sha and (model / "sha256").word == sha]
    names = {
        (cell / "model").word
        for cell in (run / "cells").each()
        if (cell / "engine").word == (engine / "id").word
    }
    by_name = [model for model in models if (model / "id").word in names]
    return next(iter(by_hash or by_name), At(None, ""))


def _box(host: At) -> Facts:
    gpus = list((host / "gpus").each())
    no_gpu = "no GPU was seen on this box"
    return Facts(
        Words("Box"),
        (
            ("Host name", (host / "hostname").fact("the box has none")),
            ("Board", (host / "board").fact("the firmware does not name one")),
            ("Class", (host / "class").fact("the box was not recognised")),
            ("Processor", (host / "cpu").fact("the kernel does not name it")),
            ("Cores", _amount(host / "cores", "", "not read")),
            ("Memory", _size(host / "memory_total_bytes", "not read")),
            ("Swap", _size(host / "swap_total_bytes", "not read")),
            ("GPU", _gpus(gpus) if gpus else Absent(no_gpu, words=True)),
            ("GPU driver", (host / "gpu_driver").fact("no driver was read" if gpus else no_gpu)),
            ("Power mode", (host / "power_mode").fact("this box does not report one")),
            ("Operating system", (host / "os").fact("not read")),
            ("Kernel", (host / "kernel").fact("not read")),
        ),
    )


def _gpus(gpus: list[At]) -> Html:
    return Line(tuple(_gpu(gpu) for gpu in gpus), "; ")


def _gpu(gpu: At) -> Html:
    if isinstance(gpu.value, str):
        return gpu.text()
    for key in ("name", "model", "id", "uuid"):
        if (gpu / key).known:
            return (gpu / key).text()
    return Absent("a GPU without a name", gpu.pointer)


def _load(work: At) -> Facts:
    own = (work / "own_traffic").value is True
    slo = work / "slo"
    limits = [
        Line((Words(words), (slo / key).figure("s"), Words("s")))
        for key, words in (
            ("ttft_s", "first token"),
            ("tpot_s", "time a token"),
            ("e2e_s", "whole answer"),
        )
        if (slo / key).known
    ]
    traffic: Html = Words("the operator's own" if own else "made for this measurement")
    return Facts(
        Words("Load"),
        (
            ("Traffic", traffic),
            ("Shape", (work / "shape").fact("not in the result")),
            ("Shared opening", _amount(work / "prefix_tokens", "tokens", "not in the result")),
            ("Own part of a prompt", _amount(work / "prompt_tokens", "tokens", "own traffic")),
            ("Answer", _amount(work / "output_tokens", "tokens", "own traffic")),
            ("At once", _list(work / "concurrency")),
            ("Repeats", _amount(work / "repeats", "starts of each engine", "not in the result")),
            (
                "Prefix cache",
                Line(tuple(one.text() for one in (work / "prefix_cache").each()), ", "),
            ),
            ("Limits (SLO)", Line(tuple(limits), ", ") if limits else Words("none were set")),
        ),
    )


def _list(place: At) -> Html:
    found = tuple(one.figure("count") for one in place.each())
    return Line(found, ", ") if found else Absent("not in the result", place.pointer, words=True)


def _amount(place: At, unit: str, reason: str) -> Html:
    if not place.known:
        return Absent(reason, place.pointer, words=True)
    return Line((place.figure("count"), Words(unit))) if unit else place.figure("count")


def _size(place: At, reason: str) -> Html:
    return place.figure("size") if place.known else Absent(reason, place.pointer, words=True)


def _either(first: At, second: At, reason: str) -> Html:
    known = [one.text() for one in (first, second) if one.known]
    return Line(tuple(known), ", ") if known else Absent(reason, first.pointer, words=True)


def _code(place: At, reason: str) -> Html:
    found = place.fact(reason)
    return Code(found) if isinstance(found, Shown) else found


# ---------------------------------------------------------------------------------- provenance


def files(run: At) -> Table:
    """The files of the run and their hashes."""
    return Table(
        "Files of the run",
        (Column("File", "", "key"), Column("SHA-256", "", "text")),
        tuple(
            Row((Code(Shown(name, f"{place.pointer}#")), Code(place.text())))
            for name, place in (run / "files").items()
        ),
    )


def starts(run: At) -> tuple[Html, ...]:
    """The command line of each different start, ready to be copied into a shell."""
    seen: dict[str, Html] = {}
    for engine in (run / "engines").each():
        for launch in (engine / "launches").each():
            words = [one.word for one in (launch / "argv").each()]
            if words:
                line = shlex.join(words)
                seen.setdefault(_without_port(words), Shown(line, f"{(launch / 'argv').pointer}#"))
    return tuple(seen.values())


def _without_port(words: list[str]) -> str:
    """The same start at another port is the same start."""
    places = {index + 1 for index, word in enumerate(words) if word == "--port"}
    return shlex.join(word for index, word in enumerate(words) if index not in places)


def missing(run: At) -> tuple[Html, ...]:
    """Every level that was planned and has fewer repeats than it should, or none."""
    return tuple(_missing(run))


def _missing(run: At) -> Iterator[Html]:
    work = run / "workload"
    repeats = work / "repeats"
    found = {
        tuple((level / key).word for key in ("engine", "prefix_cache", "concurrency")): level
        for level in (run / "levels").each()
    }
    for engine in (run / "engines").each():
        for cache in (work / "prefix_cache").each():
            for at_once in (work / "concurrency").each():
                level = found.get(((engine / "id").word, cache.word, at_once.word))
                name = (
                    (engine / "id").text(),
                    Line((Words("prefix cache"), cache.text())),
                    Line((at_once.figure("count"), Words("at once"))),
                )
                if level is None:
                    yield Line((*name, Words("was not measured")), ", ")
                elif (level / "replicates").word != repeats.word and repeats.known:
                    had = (level / "replicates").figure("count")
                    had = Line((had, Words("of"), repeats.figure("count"), Words("repeats")))
                    yield Line((*name, had), ", ")
