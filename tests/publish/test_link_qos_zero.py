"""What comes with QoS 0 is no reason for the broker to throw us out.

An acknowledgement of a message that wants none carries the number 0, which is a protocol error.
"""

from __future__ import annotations

import json
from pathlib import Path

import paho.mqtt.client as paho
from broker_places import mosquitto, until
from paho.mqtt.enums import CallbackAPIVersion
from pump_places import TOPICS, quick, real_rig

from edgeagent.publish.link import Broker


def test_receipts_and_commands_of_qos_zero_cost_no_connection(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "b") as broker:
        place = Broker("127.0.0.1", broker.port, "edge-0001", commands="heard")
        with real_rig(tmp_path, place, quick(setting="auto")) as rig:
            until(lambda: rig.pump.state().connection == "up", "connected")
            other = paho.Client(CallbackAPIVersion.VERSION2)
            other.connect("127.0.0.1", broker.port)
            other.loop_start()
            try:
                receipt = json.dumps({"epoch": rig.spool.epoch, "wm": {"R": 0, "M": 0}})
                for _ in range(3):
                    other.publish(TOPICS.receipts, receipt, qos=0)
                    other.publish(TOPICS.full("cmd/ping/x"), b"{}", qos=0)
                until(lambda: len(rig.commands) == 3, "the commands are heard")
                for command in rig.commands:
                    rig.pump.stored(command)
                until(lambda: rig.noted("mqtt_receipts"), "the receipts are heard")
                rig.settled(5)
                assert "protocol error" not in broker.log()
                assert rig.pump.state().reconnects == 0
                assert rig.pump.state().connection == "up"
            finally:
                other.disconnect()
                other.loop_stop()
