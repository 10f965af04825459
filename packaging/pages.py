"""What do edgeagent(1), edgeagent.toml(5) and the shells' completions say?

All of it is made from the command line's parser and from the keys of the configuration, at build
time: nothing is written by hand, so nothing can drift.

    packaging/pages.py FOLDER      (edgeagent and what it needs must be importable)
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import shtab

from edgeagent import __version__
from edgeagent.cli.main import parser
from edgeagent.settings_text import annotated

SHELLS = {"bash": "edgeagent", "zsh": "_edgeagent", "fish": "edgeagent.fish"}

_FILES = """\
.SH FILES
.TP
.I /etc/edgeagent/edgeagent.toml, /etc/edgeagent/conf.d/*.toml
The configuration: see
.BR edgeagent.toml (5).
.TP
.I /var/lib/edgeagent
The service's state: run folders, and what waits for the plant's broker.
.TP
.I /usr/share/edgeagent
Examples for brokers, dashboards and systemd.
.TP
.I /usr/share/doc/edgeagent
The manual, a page a subject.
"""
_ORDER = """\
.SH DESCRIPTION
TOML. These are read one after the other; tables are merged key by key, and the last word counts:
.IP 1. 4
.I /usr/lib/edgeagent/defaults.toml
.IP 2. 4
.I /etc/edgeagent/edgeagent.toml
.IP 3. 4
.I /etc/edgeagent/conf.d/*.toml
by name: an OEM drops
.IR 50-oem.toml ,
a site
.IR 90-site.toml .
.IP 4. 4
.I ~/.config/edgeagent/edgeagent.toml
of an ordinary user
.IP 5. 4
variables:
.B EDGEAGENT_MQTT__HOST
is
.B mqtt.host
.IP 6. 4
.B \\-\\-set mqtt.host=...
on the command line
.PP
.B edgeagent config check
finds mistakes,
.B edgeagent config show \\-\\-origin
says who said what.
"""


def write(folder: Path) -> None:
    """Write the pages to man/ and the completions to completion/ below a folder."""
    top = parser()
    (folder / "man").mkdir(parents=True, exist_ok=True)
    (folder / "completion").mkdir(exist_ok=True)
    (folder / "man/edgeagent.1").write_text("".join(_commands(top)), encoding="utf-8")
    (folder / "man/edgeagent.toml.5").write_text("".join(_keys()), encoding="utf-8")
    for shell, name in SHELLS.items():
        (folder / "completion" / name).write_text(shtab.complete(top, shell), encoding="utf-8")


# ------------------------------------------------------------------------------ page of the command


def _commands(top: argparse.ArgumentParser) -> Iterator[str]:
    yield _head("EDGEAGENT", "1", "User Commands")
    yield ".SH NAME\nedgeagent \\- measures local LLM servers on an edge box\n"
    yield ".SH SYNOPSIS\n.B edgeagent\n.I COMMAND\n[options]\n.br\n"
    yield ".B edgeagent\n.I COMMAND\n.B \\-\\-help\n"
    yield f".SH DESCRIPTION\n{_prose(top.description)}"
    yield ".SH OPTIONS\n"
    yield from _options(top, level=".SS")
    yield ".SH COMMANDS\n"
    for name, about, one in _below(top):
        yield from _command(f"{top.prog} {name}", about, one)
    yield _epilog(top.epilog)
    yield _FILES
    yield ".SH SEE ALSO\n.BR edgeagent.toml (5),\n.I file:///usr/share/doc/edgeagent/\n"


def _command(name: str, about: str, one: argparse.ArgumentParser) -> Iterator[str]:
    yield f".SS {_words(name)}\n"
    below = list(_below(one))
    if not below:
        usage = " ".join(one.format_usage().removeprefix("usage: ").split())
        yield f".I {_words(usage)}\n.PP\n"
    yield _prose(one.description or about)
    yield from _options(one, level=".PP")
    yield _epilog(one.epilog)
    for inner, said, further in below:
        yield from _command(f"{name} {inner}", said, further)


def _below(
    one: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for action in one._actions:  # noqa: SLF001  # because argparse shows its parts to nobody else
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # because it is so named
            said = {each.dest: each.help or "" for each in action._get_subactions()}  # noqa: SLF001  # because the one-line help is nowhere else
            for name, inner in action.choices.items():
                yield name, said.get(name, ""), inner


def _options(one: argparse.ArgumentParser, level: str) -> Iterator[str]:
    for group in one._action_groups:  # noqa: SLF001  # because argparse shows its parts to nobody else
        shown = [
            action
            for action in group._group_actions  # noqa: SLF001  # because of the same
            if action.help != argparse.SUPPRESS
            and not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)  # noqa: SLF001  # because of the same
        ]
        if not shown:
            continue
        if group.title and group.title not in {"options", "positional arguments"}:
            title = _words(group.title[0].upper() + group.title[1:])
            yield f".SS {title}\n" if level == ".SS" else f".PP\n{title}:\n"
        for action in shown:
            yield f".TP\n{_name(action)}\n{_prose(_help(one, action)) or '.br' + chr(10)}"


def _name(action: argparse.Action) -> str:
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    value = " ".join(value) if isinstance(value, tuple) else str(value)
    if not action.option_strings:
        return f"\\fI{_words(value)}\\fR"
    names = ", ".join(f"\\fB{_words(name)}\\fR" for name in action.option_strings)
    return names if action.nargs == 0 else f"{names} \\fI{_words(value)}\\fR"


def _help(one: argparse.ArgumentParser, action: argparse.Action) -> str:
    return one._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001  # because it fills in the defaults


def _epilog(text: str | None) -> str:
    """Examples and tables stand as they were laid out."""
    if not text:
        return ""
    return f".PP\n.nf\n{_words(text.strip(chr(10)))}\n.fi\n"


# ------------------------------------------------------------------------ page of the configuration


def _keys() -> Iterator[str]:
    yield _head("EDGEAGENT.TOML", "5", "File Formats")
    yield ".SH NAME\nedgeagent.toml \\- configuration of edgeagent\n"
    yield ".SH SYNOPSIS\n.I /etc/edgeagent/edgeagent.toml\n.br\n.I /etc/edgeagent/conf.d/*.toml\n"
    yield _ORDER
    yield ".SH KEYS\nEvery key, at its default or with an example.\n"
    for block in annotated().split("\n\n")[1:]:
        yield from _table(block.splitlines())
    yield ".SH SEE ALSO\n.BR edgeagent (1),\n.I file:///usr/share/doc/edgeagent/configuration.md\n"


def _table(lines: Sequence[str]) -> Iterator[str]:
    """One table of the annotated file: comments, its name, then comments and keys."""
    said: list[str] = []
    for line in lines:
        if line.startswith("# "):
            said.append(line.removeprefix("# "))
        elif line.lstrip("#").startswith("["):
            yield f".SS {_words(line.lstrip('#'))}\n{_prose(' '.join(said))}"
            said = []
        else:
            yield f".TP\n.B {_words(line.removeprefix('#'))}\n{_prose(' '.join(said))}"
            said = []


# ---------------------------------------------------------------------------------------- troff


def _head(title: str, section: str, manual: str) -> str:
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    made = dt.datetime.fromtimestamp(epoch, dt.timezone.utc)
    return f'.TH {title} {section} "{made:%Y-%m-%d}" "edgeagent {__version__}" "{manual}"\n'


def _words(text: str) -> str:
    """Text as troff prints it as it is, also at the beginning of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("^", "\\(ha")
    text = text.replace("~", "\\(ti").replace("'", "\\(aq").replace('"', "\\(dq")
    return re.sub(r"(?m)^\.", r"\\&.", text)


def _prose(text: str | None) -> str:
    """Paragraphs, filled."""
    parts = re.split(r"\n\s*\n", (text or "").strip())
    return "".join(
        f"{'.PP' + chr(10) if n else ''}{_words(' '.join(part.split()))}\n"
        for n, part in enumerate(parts)
        if part
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
