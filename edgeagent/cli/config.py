"""`edgeagent config check`, `show`, `schema`; and `--config` for every command."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.errors import ConfigError

if TYPE_CHECKING:
    from edgeagent.settings import Settings
    from edgeagent.settings_faults import Fault

_ABOUT = """\
The configuration is read from /usr/lib/edgeagent/defaults.toml,
/etc/edgeagent/edgeagent.toml, /etc/edgeagent/conf.d/*.toml in the order of
their names, an ordinary user's ~/.config/edgeagent/edgeagent.toml, variables
EDGEAGENT_SECTION__KEY and --set. The last one wins.
"""

SET = "set of "
"""What `--set` is kept under begins so."""


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Put `--config` and `--set` on a command; `load` finds them there."""
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,  # so that it may stand before and behind the command
        help="this configuration file instead of those in /etc/edgeagent and of the user",
    )
    group.add_argument(
        "--set",
        dest=f"{SET}{parser.prog}",  # of its own, so that those behind add to those before
        metavar="KEY=VALUE",
        action="append",
        default=argparse.SUPPRESS,
        help="one key of the configuration, like mqtt.port=1883 (repeatable)",
    )


def load(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for. Raises SettingsError with every fault."""
    # Imported here, not above: the parser needs none of it.
    from edgeagent.settings_faults import SettingsError

    settings, faults = examined(options)
    if faults:
        raise SettingsError(faults)
    return settings


def sound_part(options: argparse.Namespace) -> Settings:
    """The settings as far as they are sound; for what has to be done in any case."""
    return examined(options)[0]


def examined(options: argparse.Namespace) -> tuple[Settings, tuple[Fault, ...]]:
    """The settings as far as they are sound, and what is wrong with the rest."""
    from edgeagent.settings import examine, surroundings

    here = surroundings(getattr(options, "scope", None))
    if root := getattr(options, "root", None):
        here = replace(here, root=Path(root))
    file = getattr(options, "config", None)
    given = [
        text for name, texts in vars(options).items() if name.startswith(SET) for text in texts
    ]
    return examine(here, Path(file) if file else None, given)


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the command and its options on the command line."""
    config = commands.add_parser(
        "config",
        help="check and explain the configuration",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = config.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_check(kinds)
    _add_show(kinds)
    schema = kinds.add_parser(
        "schema",
        help="what may be written into a configuration",
        description="Print the JSON Schema of a configuration, or a file with every key.",
    )
    schema.add_argument(
        "--format",
        choices=["json", "toml", "markdown"],
        default="json",
        help="JSON Schema, a file with every key at its default, or the keys' tables (json)",
    )
    schema.set_defaults(run=run_schema)


def _add_check(kinds: argparse._SubParsersAction[Any]) -> None:
    check = kinds.add_parser(
        "check",
        help="find every mistake (exit status 78)",
        description="Find every mistake in the configuration and in the files that it names.",
    )
    check.add_argument("file", nargs="?", metavar="FILE", help="this file instead of the chain")
    check.add_argument("--json", action="store_true", help="the faults on standard output")
    check.add_argument("--user", metavar="NAME", help="on whose behalf files are looked at")
    _add_scope(check)
    check.set_defaults(run=run_check)


def _add_show(kinds: argparse._SubParsersAction[Any]) -> None:
    show = kinds.add_parser(
        "show",
        help="what is in force",
        description="Print the configuration that is in force, as TOML.",
    )
    show.add_argument("--origin", action="store_true", help="with the origin of every value")
    show.add_argument("--json", action="store_true", help="as JSON, with origins")
    _add_scope(show)
    show.set_defaults(run=run_show)


def _add_scope(parser: argparse.ArgumentParser) -> None:
    add_config_option(parser)
    parser.add_argument("--root", metavar="DIR", help="look for the system's files below DIR")
    parser.add_argument(
        "--system",
        action="store_const",
        const="system",
        dest="scope",
        help="the service's configuration, without this user's own file and folders",
    )


def run_check(options: argparse.Namespace) -> int:
    """Say what is wrong, or that nothing is."""
    from edgeagent import settings_check

    if options.file:
        options.config = options.file
    reader = settings_check.service(options.user) if options.user else settings_check.myself()
    settings, wrong = examined(options)
    faults = (*wrong, *settings.warnings, *settings_check.check(settings, reader))
    if options.json:
        _print(json.dumps(_document(settings.files, faults), indent=2, ensure_ascii=False))
        return 0 if _is_sound(faults) else ConfigError.exit_status
    return _say(settings.files, faults)


def _is_sound(faults: tuple[Fault, ...]) -> bool:
    return not any(fault.severity == "error" for fault in faults)


def _document(files: tuple[Path, ...], faults: tuple[Fault, ...]) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "sound": _is_sound(faults),
        "files": [str(path) for path in files],
        "faults": [asdict(fault) for fault in faults],
    }


def _say(files: tuple[Path, ...], faults: tuple[Fault, ...]) -> int:
    from edgeagent.settings_faults import SettingsError

    for fault in faults:
        if fault.severity == "warning":
            _print(f"warning: {fault}")
    if not _is_sound(faults):
        raise SettingsError([fault for fault in faults if fault.severity == "error"])
    read = ", ".join(str(path) for path in files) or "no file: everything is at its default"
    _print(f"the configuration is sound ({read})")
    return 0


def run_show(options: argparse.Namespace) -> int:
    """Print what is in force."""
    from edgeagent import settings_text

    settings = load(options)
    if options.json:
        _print(json.dumps(settings_text.document(settings), indent=2, ensure_ascii=False))
        return 0
    for fault in settings.warnings:
        print(f"warning: {fault}", file=sys.stderr)  # noqa: T201  # because the CLI prints
    text = settings_text.shown(settings, "with" if options.origin else "without")
    _print(text.rstrip("\n"))
    return 0


def run_schema(options: argparse.Namespace) -> int:
    """Print what may be written."""
    from edgeagent import settings_text

    if options.format == "json":
        _print(json.dumps(settings_text.schema(), indent=2, ensure_ascii=False))
    else:
        made = {"toml": settings_text.annotated, "markdown": settings_text.reference}
        _print(made[options.format]().rstrip("\n"))
    return 0


def _print(text: str) -> None:
    print(text)  # noqa: T201  # because the CLI prints
