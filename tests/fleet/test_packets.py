"""A broker's bytes are taken apart into what was sent, wherever they are cut."""

import struct

from hypothesis import example, given
from hypothesis import strategies as st
from paho.mqtt import _packet
from paho.mqtt.enums import MQTTProtocolVersion

from edgeagent.fleet.packets import Found, Published, found

PINGRESP = b"\xd0\x00"
SUBACK = b"\x90\x04\x00\x01\x00\x01"
EXPIRY = b"\x05\x02\x00\x00\x00\x09"
"""A message expiry interval, as the broker of a request with one sends it on."""

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
messages = st.builds(
    Published, names, st.binary(max_size=300), st.integers(0, 1), st.just(0), st.booleans()
).flatmap(
    lambda one: (
        st.just(one)
        if one.qos == 0
        else st.integers(1, 65_535).map(lambda mid: one._replace(mid=mid))
    )
)


def length(number: int) -> bytes:
    made = b""
    while True:
        number, byte = number >> 7, number & 0x7F
        made += bytes([byte | (0x80 if number else 0)])
        if not number:
            return made


def packet(message: Published, version: int, properties: bytes = b"\x00") -> bytes:
    topic = message.topic.encode()
    body = struct.pack("!H", len(topic)) + topic
    body += struct.pack("!H", message.mid) if message.qos else b""
    body += (properties if version == 5 else b"") + message.payload
    return bytes([0x30 | message.qos << 1 | message.retained]) + length(len(body)) + body


@given(st.lists(st.one_of(messages, st.sampled_from([PINGRESP, SUBACK]))), st.sampled_from([4, 5]))
def test_messages_and_other_packets_come_apart_in_their_order(
    sent: list[Published | bytes], version: int
) -> None:
    data = b"".join(one if isinstance(one, bytes) else packet(one, version) for one in sent)
    assert found(data, version) == Found(
        [one for one in sent if not isinstance(one, bytes)],
        b"".join(one for one in sent if isinstance(one, bytes)),
        b"",
    )


@given(st.lists(messages, min_size=1), st.data())
def test_it_does_not_matter_where_the_bytes_are_cut(
    sent: list[Published], cuts: st.DataObject
) -> None:
    data = b"".join(packet(one, 5) for one in sent)
    places = sorted(cuts.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    got, rest = [], b""
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        part = found(rest + data[start:end], 5)
        assert part.others == b""
        got += part.messages
        rest = part.rest
    assert (got, rest) == (sent, b"")


@given(messages)
def test_paho_reads_the_same(message: Published) -> None:
    whole = packet(message, 5, EXPIRY)
    (read,), others, rest = found(whole, 5)
    theirs = _packet.decode_publish(
        whole[0], whole[1 + len(length(len(whole) - 2)) :], MQTTProtocolVersion.MQTTv5
    )
    assert (others, rest) == (b"", b"")
    assert (theirs.topic.decode(), bytes(theirs.payload)) == (read.topic, read.payload)
    assert (theirs.qos, theirs.mid, theirs.retain) == (read.qos, read.mid, read.retained)
    assert read == message


@given(st.binary(max_size=200), st.sampled_from([4, 5]))
@example(b"\x30\xff\xff\xff\xff\xff", 5)
@example(b"\x30\x02\xff\xff", 4)
@example(b"\x32\x03\x00\x00\x01", 5)
def test_whatever_comes_is_a_message_or_goes_on_to_paho(data: bytes, version: int) -> None:
    got = found(data, version)
    held = sum(len(one.payload) for one in got.messages)
    assert held + len(got.others) + len(got.rest) <= len(data)
    if not got.messages:
        assert got.others + got.rest == data


def test_what_is_no_sound_message_goes_on_as_it_came() -> None:
    topic_too_long = b"\x30\x03\x00\x09a"
    of_qos_2 = b"\x34\x06\x00\x01a\x00\x01\x00"
    properties_too_long = b"\x30\x04\x00\x01a\x7f"
    for bad in (topic_too_long, of_qos_2, properties_too_long):
        assert found(bad + PINGRESP, 5) == Found([], bad + PINGRESP, b"")


def test_a_topic_that_is_no_text_is_empty() -> None:
    assert found(b"\x30\x05\x00\x01\xff\x00x", 5).messages == [Published("", b"x", 0, 0, False)]
