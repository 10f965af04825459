"""Does the daemon in this container do its work?

    python3 -I health.py

Asks it over its own socket, whose answer comes from the thread that decides everything. Exit status
0 and a sentence when it answers, 1 and the reason when it does not. A broker that is away is no
reason to be ended: what waits for it is safe, and nothing would be better after a restart.
"""

import json
import os
import socket
import sys

SOCKET = os.environ.get("EDGEAGENT_DAEMON__SOCKET", "/run/edgeagent/control.sock")
PATIENCE_S = 10.0


def state() -> dict[str, object]:
    """What the daemon says of itself. Raises OSError, ValueError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(SOCKET)
        connection.sendall(b'{"op": "status"}\n')
        with connection.makefile("rb") as lines:
            for line in lines:
                answer = json.loads(line)
                if "schema" in answer:
                    return dict(answer)
    raise ValueError("it has closed the connection without an answer")


def main() -> int:
    """Ask, and say in one line what was found."""
    try:
        found = state()
    except (OSError, ValueError) as error:
        sys.stdout.write(f"the daemon does not answer at {SOCKET}: {error}\n")
        return 1
    troubles = found.get("troubles")
    count = len(troubles) if isinstance(troubles, list) else 0
    sys.stdout.write(f"edgeagent {found.get('version')} answers; {count} troubles\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
