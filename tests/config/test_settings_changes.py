"""What does a reload bring, and what waits for a restart?"""

from __future__ import annotations

from boxes import Box

from edgeagent.settings import Changes, after_reload, changes


def test_nothing_new_is_no_change(box: Box) -> None:
    found = changes(box.load("[mqtt]\nwindow = 20\n"), box.load("# nothing\n"))
    assert found == Changes()
    assert not found


def test_each_key_says_when_it_counts(box: Box) -> None:
    old = box.load()
    new = box.load(
        "[agent]\nsite = 'plant7'\n[mqtt]\nhost = 'broker'\nwindow = 5\n"
        "[mqtt.spool]\nmax_mb = 300\n[schedule]\nmax_foreign_cpu = 0.5\n"
        "[daemon]\nsocket = '/run/x.sock'\n"
    )
    found = changes(old, new)
    assert found.live == ("mqtt.host", "mqtt.window", "schedule.max_foreign_cpu")
    assert found.restart == (
        "agent.site",
        "mqtt.topic_prefix",  # because the site is part of it
        "mqtt.spool.max_mb",
        "mqtt.sparkplug.group",
        "daemon.socket",
    )


def test_profiles_and_engines_come_and_go_live(box: Box) -> None:
    first = box.load("[sweep.profiles.a]\nrepeats = 1\n[engines.x]\nkind = 'fake'\n")
    second = box.load("[sweep.profiles.b]\nrepeats = 1\n")
    assert changes(first, second).live == (
        "sweep.profiles.a.repeats",
        "engines.x.kind",
        "sweep.profiles.b.repeats",
    )


def test_what_waits_for_a_restart_keeps_its_value(box: Box) -> None:
    old = box.load("[mqtt]\nwindow = 5\n")
    new = box.load(
        "[agent]\nsite = 'plant7'\nruns_max_mb = 9\n"
        "[mqtt]\nwindow = 6\n[mqtt.spool]\nmax_mb = 300\n[sweep.profiles.a]\n"
    )
    now = after_reload(old, new)
    assert changes(old, now) == Changes(live=changes(old, new).live)
    assert changes(now, new) == Changes(restart=changes(old, new).restart)
    assert (now.mqtt.window, now.mqtt.spool.max_mb, now.agent.site) == (6, 256, "default")
    assert now.as_node("x").mqtt.topic_prefix == "edgeagent/v1/default/x"
