"""A container launcher of ours: what it runs is no child of whoever asked.

    stand_in_docker.py daemon SOCKET        starts, stops and knows the containers
    stand_in_docker.py run --name N IMAGE   as `docker run`: waits, and passes the output on
    stand_in_docker.py stop|kill|rm|inspect ... N
    stand_in_docker.py ps ...               the names of those that have a label

The socket is named by STAND_IN_SOCKET; an image is a python module. Every request is written to
SOCKET.calls; words in STAND_IN_BROKEN name the commands that fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

containers: dict[str, subprocess.Popen[bytes]] = {}
labels: dict[str, str] = {}


def run(asked: dict[str, object], name: str) -> int:
    command, inside = asked["command"], asked["environment"]
    assert isinstance(command, list)
    assert isinstance(inside, dict)
    labels[name] = str(asked["label"])
    with Path(str(asked["output"])).open("ab") as output:
        containers[name] = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, **inside},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return containers[name].wait()


def answer(asked: dict[str, object]) -> object:
    what, name = asked["what"], str(asked["name"])
    if what == "run":
        return run(asked, name)
    if what == "ps":
        return "\n".join(labels)
    container = containers.get(name)
    if container is None:
        return None
    if what == "inspect" and "Labels" in str(asked["words"]):
        return labels[name].partition("=")[2]
    if what == "inspect":
        return container.pid if container.poll() is None else 0
    if what == "stop":
        container.terminate()
        deadline = time.monotonic() + float(str(asked["grace"]))
        while container.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    if container.poll() is None:
        os.killpg(container.pid, signal.SIGKILL)
        container.wait()
    if what == "rm":
        labels.pop(name, None)
    return 0


def daemon(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener, Path(f"{path}.calls").open("a") as calls:
        listener.bind(path)
        listener.listen()
        while True:
            client, _ = listener.accept()
            with client.makefile("r") as read:
                asked = json.loads(read.readline())
            calls.write(" ".join(asked["words"]) + "\n")
            calls.flush()

            def serve(client: socket.socket = client, asked: dict[str, object] = asked) -> None:
                said = answer(asked)
                with contextlib.suppress(OSError):
                    client.sendall(json.dumps(said).encode())
                client.close()

            threading.Thread(target=serve, daemon=True).start()


def ask(asked: dict[str, object]) -> object:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["STAND_IN_SOCKET"])
        server.sendall(json.dumps(asked).encode() + b"\n")
        with server.makefile("r") as read:
            said: object = json.loads(read.read() or "null")
            return said


def client(words: list[str]) -> int:
    what, *rest = words
    if what in os.environ.get("STAND_IN_BROKEN", "").split():
        return 1
    asked: dict[str, object] = {"what": what, "words": words, "environment": {}, "grace": 10}
    asked["label"] = ""
    environment: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("--name", "--label", "-e", "-t", "-f", "--network") and (
            what == "run" or option != "-f"
        ):
            value = rest.pop(0)
            if option in ("--name", "--label"):
                asked[option.strip("-")] = value
            elif option == "-e":
                key, _, text = value.partition("=")
                environment[key] = text
            elif option == "-t":
                asked["grace"] = value
        elif option == "-f" and what == "inspect":
            rest.pop(0)
    if what == "run":
        asked |= {"command": rest, "environment": environment}
        asked["output"] = str(Path("/proc/self/fd/1").readlink())
        status = ask(asked)
        return status if isinstance(status, int) and status >= 0 else 137
    said = ask({**asked, "name": rest[-1] if rest else ""})
    if said is None:
        return 1
    print(said)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        daemon(sys.argv[2])
    sys.exit(client(sys.argv[1:]))
