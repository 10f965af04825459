"""`edgeagent sweep`: plan, run, store, print.

Options only collect words; config.py judges them and app.py does the work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.cli.config import SET, add_config_option, load
from edgeagent.errors import EdgeAgentError, UsageError

if TYPE_CHECKING:
    from edgeagent.app import Job, Outcome
    from edgeagent.config import EngineOptions, SweepRequest
    from edgeagent.watching import View

_EXAMPLES = """\
examples:
  edgeagent sweep --engine llamacpp --model model.gguf
  edgeagent sweep --url http://127.0.0.1:8080 --concurrency 1,4,8
  edgeagent sweep plan.toml --repeats 5 --slo ttft=1.0,tpot=0.1
  edgeagent sweep --resume edgeagent-runs/20261130T101500Z-3f9a2c
"""

_SWEEP_KEYS = (
    "concurrency", "context", "prefix_tokens", "prompt_tokens", "output_tokens", "prompts", "chat",
    "requests", "seconds", "shape", "repeats", "warmup", "prefix_cache", "speculation", "slo",
    "timeout", "idle_timeout", "cell_timeout", "sweep_timeout", "start_timeout", "cooldown", "seed",
    "device", "strict", "memory_slots", "memory_repeats", "settle", "canary", "second_operator",
    "capacity",
)  # fmt: skip


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the command and its options on the command line."""
    sweep = commands.add_parser(
        "sweep",
        help="measure engines over a range of simultaneous requests",
        usage="edgeagent sweep [PLAN.toml] [options]",
        description="Measure one engine or several over a range of simultaneous requests, on\n"
        "this box, and keep everything that was seen in a run folder.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sweep.set_defaults(run=run)
    sweep.add_argument("plan", nargs="?", metavar="PLAN.toml", help="a plan; options override it")
    sweep.add_argument("--profile", metavar="NAME", help="a sweep of the configuration instead")
    _engine_options(sweep.add_argument_group("what to measure"))
    _load_options(sweep.add_argument_group("how to load it"))
    _question_options(sweep.add_argument_group("further questions"))
    _memory_options(sweep.add_argument_group("memory per slot, and drift"))
    _limit_options(sweep.add_argument_group("limits"))
    _output_options(sweep.add_argument_group("where results go"))
    add_config_option(sweep)


def _engine_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--engine",
        action="append",
        default=[],
        metavar="KIND",
        help="llamacpp, vllm, openai, or the name of an engine in the plan; repeatable",
    )
    add(
        "--binary",
        action="append",
        default=[],
        metavar="[KIND=]PATH",
        help="the engine's program (default: llama-server from PATH)",
    )
    add(
        "--model",
        action="append",
        default=[],
        metavar="[KIND=]PATH",
        help="GGUF file for llamacpp, model folder for vllm",
    )
    add(
        "--engine-arg",
        action="append",
        default=[],
        metavar="KIND=ARG",
        help="hand one more argument to the engine, e.g. llamacpp=--threads=4; repeatable",
    )
    add("--kv-type", metavar="TYPE", help="type of the key-value cache (default f16)")
    add("--slots", type=int, metavar="N", help="slots per launch (default: largest concurrency)")
    add("--device", choices=["auto", "cpu", "gpu"], help="where the model must run")
    add("--url", metavar="URL", help="attach to a server that runs already")
    add("--api-key-file", metavar="FILE", help="file with the key of that server")
    add("--cacert", metavar="FILE", help="certificate authority of that server")
    add("--speculation", action="append", metavar="off|ngram|draft:PATH",
        help="speculative decoding settings to measure; repeatable")  # fmt: skip


def _load_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--concurrency", metavar="1,4,8,16", help="levels of simultaneous requests")
    add(
        "--shape",
        choices=["sustained", "fanout"],
        help="N always in flight (default), or waves of N that start together",
    )
    add("--prefix-cache", choices=["on", "off", "both"], help="prefix reuse (default both)")
    add("--prefix-tokens", type=int, metavar="N", help="shared opening of every prompt (256)")
    add("--prompt-tokens", type=int, metavar="N", help="each prompt's own part (64)")
    add("--output-tokens", type=int, metavar="N", help="tokens to generate per request (64)")
    add("--prompts", metavar="FILE.jsonl", help="own traffic instead of generated prompts")
    add("--chat", action="store_true", default=None, help="use the chat endpoint")
    add("--context", type=int, metavar="N", help="tokens per slot (default: what a request needs)")
    add(
        "--requests",
        type=int,
        metavar="N",
        help="requests per cell (default: 20, or 4 per simultaneous request)",
    )
    add("--seconds", type=float, metavar="S", help="measure each cell for S seconds instead")
    add("--repeats", type=int, metavar="N", help="repeats, each on a fresh engine start (3)")
    add("--warmup", type=int, metavar="N", help="warm-up requests per engine start")
    add("--cooldown", type=float, metavar="S", help="pause between cells (1)")
    add("--seed", type=int, metavar="N", help="seed of the generated traffic")
    add("--slo", metavar="ttft=S,tpot=S,e2e=S", help="limits a good request keeps")  # fmt: skip


def _question_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--second-operator",
        action="store_true",
        default=None,
        help="also send a second operator's long prompt into a running fan-out",
    )
    add(
        "--capacity",
        action="store_true",
        default=None,
        help="also find the most simultaneous requests that keep the SLO (--slo)",
    )


def _memory_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--memory-slots",
        metavar="1,4,8",
        help="slot counts to start with (default: by the concurrencies, four at most)",
    )
    add(
        "--memory-repeats",
        type=int,
        metavar="N",
        help="starts at each of them (2); 0 leaves memory out",
    )
    add("--settle", type=float, metavar="S", help="seconds that memory must hold still (3)")
    add(
        "--canary",
        type=int,
        metavar="N",
        help="requests that open and close the sweep alike, to see drift (5); 0 leaves them out",
    )


def _limit_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--timeout", type=float, metavar="S", help="longest a request may take (300)")
    add("--idle-timeout", type=float, metavar="S", help="longest silence between tokens (120)")
    add("--cell-timeout", type=float, metavar="S", help="longest a cell may take")
    add("--sweep-timeout", type=float, metavar="S", help="longest the whole sweep may take")
    add("--start-timeout", type=float, metavar="S", help="longest wait for an engine (600)")
    add("--strict", action="store_true", default=None, help="suspect counts as failed")  # fmt: skip


def _output_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--out", metavar="DIR", help="run folder (default ./edgeagent-runs/<UTC>-<short id>)")
    add("--resume", metavar="DIR", help="measure what is missing in a run folder")
    add("--dry-run", action="store_true", help="show plan, memory and time; start nothing")
    add("--sign", metavar="KEY", help="sign the result with this private key (edgeagent keys new)")
    add("--publish", action="store_true", help="put the result into the spool for the broker")
    add("--no-report", action="store_true", help="do not write report.html at the end")
    add("--quiet", action="store_true", help="no progress, no table")
    add("--json", action="store_true", help="print result.json to standard output")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Do what the options say; returns the exit status."""
    import asyncio

    from edgeagent import app, lifeline

    lifeline.tie(os.environ)

    job = app.resume(Path(options.resume)) if options.resume else new_job(options)
    if options.resume:
        _refuse_beside_resume(options)
    key = _key(options)
    if options.dry_run:
        preview = asyncio.run(app.preview(job))
        _print(json.dumps(preview.document(), indent=2) if options.json else preview.text())
        return 0
    outcome = asyncio.run(app.sweep(job, _view(options)))
    return _conclude(outcome, options, key)


def _key(options: argparse.Namespace) -> Path | None:
    """The key to sign with, looked at before hours are spent. Raises UsageError."""
    if options.sign is None:
        return None
    from edgeagent import signing

    key = signing.find_key(options.sign)
    signing.check_private(key)
    return key


def new_job(options: argparse.Namespace) -> Job:
    """The sweep that the options ask for. Raises UsageError."""
    from edgeagent import app
    from edgeagent.config import EngineOptions, sweep_request

    engines = EngineOptions(
        engines=tuple(options.engine),
        binaries=tuple(options.binary),
        models=tuple(options.model),
        engine_args=tuple(options.engine_arg),
        kv_type=options.kv_type,
        slots=options.slots,
        url=options.url,
        api_key_file=options.api_key_file,
        cacert=options.cacert,
    )
    keys = {name: getattr(options, name) for name in _SWEEP_KEYS}
    out = Path(options.out) if options.out else None
    command = ("edgeagent", *sys.argv[1:])
    if options.profile:
        return app.Job(_of_profile(options, keys, engines), out, command=command)
    plan = Path(options.plan) if options.plan else None
    return app.Job(sweep_request(plan, keys, engines), out, command=command)


def _of_profile(
    options: argparse.Namespace, keys: dict[str, Any], engines: EngineOptions
) -> SweepRequest:
    """The sweep of a profile of the configuration; options override it."""
    from edgeagent.config import plan_request
    from edgeagent.settings import profile_plan, profile_request

    if options.plan:
        raise UsageError("a plan and --profile both say what to measure: give one of them")
    settings = load(options)
    profile_request(settings, options.profile)  # refuses an unknown name, or one with a fault
    where = f"sweep.profiles.{options.profile}"
    return plan_request(profile_plan(settings, options.profile), where, keys, engines)


def _refuse_beside_resume(options: argparse.Namespace) -> None:
    """A resumed run takes its question from its folder: another one would be another run."""
    ours = {"run", "resume", "dry_run", "quiet", "json", "no_report", "sign", "publish", "config"}
    for name, value in vars(options).items():
        if name not in ours and not name.startswith(SET) and value not in (None, [], False):
            raise UsageError(
                f"--resume takes the plan from the run folder, so --{name.replace('_', '-')} "
                "cannot be given with it: leave it out, or start a new run"
            )


def _view(options: argparse.Namespace) -> View:
    from edgeagent.report import progress

    if options.quiet:
        return progress.SilentProgress()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return progress.LiveProgress()
    return progress.PlainProgress()


def _conclude(outcome: Outcome, options: argparse.Namespace, key: Path | None) -> int:
    steps = (_sign(outcome, key), _draw(outcome, options), _publish(outcome, options))
    failed = [text for text in steps if text is not None]
    if options.json:
        _print(json.dumps(outcome.document, indent=2))
    elif not options.quiet:
        from edgeagent.report.terminal import show

        show(outcome.document, outcome.folder, sys.stdout)
    for text in (*failed, outcome.message):
        if text:
            _complain(text)
    return outcome.exit_status or (1 if failed else 0)


def _sign(outcome: Outcome, key: Path | None) -> str | None:
    """Sign what there is, also of an interrupted run; return why that did not work."""
    if key is None:
        return None
    from edgeagent import sealing

    try:
        sealing.sign(outcome.folder, key)
    except EdgeAgentError as error:
        return f"the result is not signed: {error}"
    return None


def _draw(outcome: Outcome, options: argparse.Namespace) -> str | None:
    """Draw the sheet; not having the library for it is worth a line, and no failure."""
    if options.no_report or outcome.interrupted:
        return None
    from edgeagent import reporting

    why = reporting.write_beside(outcome.folder)
    if why is not None and not options.quiet:
        _complain(f"no report.html: {why}")
    return None


def _publish(outcome: Outcome, options: argparse.Namespace) -> str | None:
    """Put the result into the spool; return why that did not work."""
    if not options.publish:
        return None
    from edgeagent.cli.service import publish_run

    try:
        told = publish_run(options, outcome.folder)
    except EdgeAgentError as error:
        return f"the result is not published: {error}"
    if not options.quiet:
        _complain(told)
    return None


def _complain(text: str) -> None:
    print(f"edgeagent: {text}", file=sys.stderr)  # noqa: T201  # because the CLI prints


def _print(text: str) -> None:
    print(text)  # noqa: T201  # because the CLI prints
