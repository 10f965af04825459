"""What arrives from a box whose clock is wrong, and can the plant put it right?"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from agent_process import SITE, Feed, Spec
from broker_places import Authority, Variant, _openssl, authority, mosquitto, until
from collector import Lane, Store
from ledger import Account, account, arrived
from outages import ANYBODY, FORGETS
from scenario_places import agent, collecting

TEN_YEARS_S = 10 * 365 * 86_400.0
HOUR_S = 3_600.0


def clock_ten_years_back(folder: Path, rows: int = 60) -> Account:
    """T16: the box starts ten years back; half of the way its clock is set."""
    return _set_on_the_way(folder, -TEN_YEARS_S, rows, "clock 10 years back, then set")


def clock_an_hour_ahead(folder: Path, rows: int = 60) -> Account:
    """T16: the clock is an hour ahead and nobody vouches for it; half of the way it is set."""
    return _set_on_the_way(folder, HOUR_S, rows, "clock 1 h ahead, then set")


def _set_on_the_way(folder: Path, off_s: float, rows: int, name: str) -> Account:
    database = folder / "plant.db"
    clock = {"off_s": off_s, "set_after_rows": float(rows // 2)}
    with mosquitto(folder / "broker", FORGETS) as broker, collecting(broker.port, database):
        begun_ms = time.time_ns() // 1_000_000
        with agent(folder / "agent", Spec(broker.port, clock=clock)) as box:
            box.feed(Feed(results=rows, per_s=100.0))
            box.fed()
            arrived([box], database)
            ended_ms = time.time_ns() // 1_000_000
            lane = Lane(f"{SITE}/{box.spec.node}", box.state()["epoch"], "R")
            with closing(Store(database)) as store:
                times = [ts_ms for _, ts_ms in store.times(lane)]
                steps = store.events("e/clock_step")
            assert times == sorted(times), "the repaired times are in the order of the numbers"
            assert times[0] >= begun_ms - 1_000, "and they are the true ones"
            assert times[-1] <= ended_ms + 1_000
            assert len(steps) == 1
            error_ms = steps[0]["new_ts"] - steps[0]["old_ts"] + off_s * 1000
            assert abs(error_ms) < 1_000
            return account(name, [box], database, {"clock steps told": f"{len(steps)}"})


def tls_explained(folder: Path) -> str:
    """T16: to a clock that is behind, every certificate is of the future; return what is said."""
    ca = born_later(authority(folder / "pki"))
    server = ca.issue("broker", dates=THE_FORTIES, san="IP:127.0.0.1,DNS:localhost")
    lines = (*ANYBODY, f"certfile {server.cert}", f"keyfile {server.key}")
    with (
        mosquitto(folder / "broker", Variant(lines)) as broker,
        agent(folder / "agent", Spec(broker.port, ca_file=str(ca.cert))) as box,
    ):
        until(lambda: box.link["last_error"], "TLS fails")
        return str(box.link["last_error"])


THE_FORTIES = ("20400101000000Z", "20440101000000Z")


def born_later(ca: Authority) -> Authority:
    """Give an authority a certificate of the future, over the same key."""
    _openssl("req", "-new", "-key", str(ca.key), "-subj", "/CN=plant-ca", "-out",
             str(ca.folder / "ca.csr"))  # fmt: skip
    (ca.folder / "later.index").touch()
    config = ca.folder / "later.cnf"
    config.write_text(
        f"""[ca]
default_ca = own
[own]
database = {ca.folder}/later.index
rand_serial = yes
new_certs_dir = {ca.folder}
private_key = {ca.key}
default_md = sha256
policy = any
x509_extensions = ext
[any]
commonName = supplied
[ext]
basicConstraints = critical, CA:TRUE
subjectKeyIdentifier = hash
"""
    )
    _openssl("ca", "-batch", "-notext", "-selfsign", "-config", str(config), "-startdate",
             THE_FORTIES[0], "-enddate", THE_FORTIES[1], "-in", str(ca.folder / "ca.csr"), "-out",
             str(ca.cert))  # fmt: skip
    return ca
