"""The fleet's page: what stands on it, in which order, and that nothing on it can be scripted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fleet_made import NOW_MS, BoxMade, boxes, one_healthy, stored

from edgeagent.cli import main
from edgeagent.fleet import views
from edgeagent.fleet.queries import Chosen
from edgeagent.fleet.store import open_store

_TIMES = "\N{MULTIPLICATION SIGN}"
_VOID = {"meta", "link", "input", "br"}


@dataclass
class _Section:
    text: str = ""
    rows: list[list[str]] = field(default_factory=list)


class Read(HTMLParser):
    """The page as somebody reads it: sections by id, rows of their tables; every element seen."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: dict[str, _Section] = {}
        self.elements: set[str] = set()
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self._section = ""
        self._cell: list[str] | None = None
        self.feed(page)
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = dict(attrs).get("id") or ""
            self.sections[self._section] = _Section()
        if tag == "tr" and self._section:
            self.sections[self._section].rows.append([])
        if tag in {"td", "th"}:
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self._open.pop() == tag
        if tag in {"td", "th"} and self._cell is not None and self._section:
            words = " ".join("".join(self._cell).split())
            self.sections[self._section].rows[-1].append(words)
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._section:
            self.sections[self._section].text += data
        if self._cell is not None:
            self._cell.append(data)


def page_of(tmp_path: Path, made: Sequence[BoxMade], *, hostile: bool = False) -> str:
    store = open_store(f"sqlite://{tmp_path}/fleet.db", "collect")
    stored(store, made, hostile)
    page = views.page(store, Chosen(), NOW_MS)
    store.close()
    return page


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Read:
    return Read(page_of(tmp_path_factory.mktemp("thirty"), boxes(30)))


def rows(read: Read, section: str, first: str) -> list[list[str]]:
    return [row for row in read.sections[section].rows if row and row[0] == first]


def test_boxes_that_differ_come_first_and_only_they(thirty: Read) -> None:
    own = thirty.sections["first"].rows
    until = next(n for n, row in enumerate(own[1:], start=1) if row[0] == "Box")
    assert {row[0] for row in own[1:until]} == {"edge-0003", "edge-0012", "edge-0018"}
    slow = next(row for row in own[1:until] if row[0] == "edge-0003")
    assert re.search(rf"0\.7\d{_TIMES} output tokens/s", slow[2])
    assert slow[3].startswith("\N{EN DASH}")


def test_a_box_that_was_faster_before_differs_from_its_own_past(thirty: Read) -> None:
    drifting = rows(thirty, "first", "edge-0012")[0]
    assert re.search(rf"0\.8\d{_TIMES} output tokens/s", drifting[3])
    assert "among 5 runs" in drifting[3]


def test_boxes_in_trouble_are_listed_the_worst_first(thirty: Read) -> None:
    own = thirty.sections["first"].rows
    begin = next(n for n, row in enumerate(own[1:], start=1) if row[0] == "Box") + 1
    listed = [row[0] for row in own[begin:]]
    assert listed[:4] == ["edge-0026", "edge-0007", "edge-0010", "edge-0024"]
    assert "edge-0001" not in listed


def test_each_class_says_which_engine_leads_from_where_on(thirty: Read) -> None:
    text = " ".join(thirty.sections["classes"].text.split())
    assert "uma-nvgpu: llamacpp leads at 1 (" in text
    assert "vllm leads from 4 to 32 (" in text


def test_throughput_at_1_4_8_and_16_and_memory_a_slot_stand_in_one_row(thirty: Read) -> None:
    header = thirty.sections["classes"].rows[0]
    assert [word for word in header if "at once" in word and "token" in word][:4] == [
        f"{n} at onceoutput tokens/s" for n in (1, 4, 8, 16)
    ]
    (llamacpp, vllm) = rows(thirty, "classes", "cpu")[:2]
    assert (llamacpp[1], vllm[1]) == ("llamacpp", "vllm")
    assert "MiB" in llamacpp[-2]


def test_a_crossing_has_its_bounds_and_how_many_boxes_found_it(thirty: Read) -> None:
    found = [row for row in rows(thirty, "classes", "uma-nvgpu") if row[1] == "output tokens/s"]
    ((_, _, count, words, between),) = found
    assert words == f"llamacpp better at few, vllm at many ({count})"
    assert re.fullmatch(r"\d\.\d\d to \d\.\d\d", between)


def test_every_box_has_its_row_and_what_is_unknown_is_said(thirty: Read) -> None:
    names = [row[0] for row in thirty.sections["boxes"].rows if row[0].startswith("edge-")]
    assert {f"edge-{n:04}" for n in range(1, 31)} <= set(names)
    silent = rows(thirty, "boxes", "edge-0024")[0]
    assert silent[3] == "unknown"
    never = rows(thirty, "boxes", "edge-0028")[0]
    assert "none yet" in never[6]


def test_what_was_lost_and_what_results_doubt_is_counted(thirty: Read) -> None:
    assert ["edge-0026", "plant7-hall-b", "telemetry", "evicted", "1,204", "1"] in (
        thirty.sections["gaps"].rows
    )
    assert any(
        row[0] == "throttled" and row[1] == "suspect" for row in thirty.sections["doubts"].rows
    )


def test_ids_are_unique_and_nothing_runs(thirty: Read) -> None:
    assert len(thirty.ids) == len(set(thirty.ids))
    assert thirty.elements.isdisjoint({"script", "img", "iframe", "object", "form", "base"})
    assert thirty.handlers == []


def test_one_box_has_no_peers_and_the_page_says_so(tmp_path: Path) -> None:
    read = Read(page_of(tmp_path, one_healthy()))
    text = " ".join(read.sections["first"].text.split())
    assert "0 of them have the 4 peers that a comparison takes, 0 as many earlier runs" in text
    assert "fewer than 4 peers" in rows(read, "boxes", "edge-0001")[0][7]


def test_an_empty_store_makes_a_page_as_well(tmp_path: Path) -> None:
    read = Read(page_of(tmp_path, []))
    assert "Nothing has been measured" in read.sections["classes"].text


def test_what_boxes_send_stays_text_within_its_cell(tmp_path: Path) -> None:
    wicked = Read(page_of(tmp_path, boxes(12, runs=2), hostile=True))
    assert wicked.elements.isdisjoint({"script", "img", "iframe", "object", "form", "base"})
    assert wicked.handlers == []
    assert set(wicked.sections) == {
        "first", "classes", "plots", "boxes", "doubts", "gaps", "method",
    }  # fmt: skip
    names = [row[0] for row in wicked.sections["boxes"].rows if row[0].startswith("edge-")]
    assert {f"edge-{n:04}" for n in range(1, 13)} <= set(names)
    for section in wicked.sections.values():
        lengths = {len(row) for row in section.rows}
        assert 0 not in lengths
        assert not re.search(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", section.text
        )


def test_the_style_has_no_word_of_a_box(tmp_path: Path) -> None:
    page = page_of(tmp_path, boxes(12, runs=1), hostile=True)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert "struck" not in style
    assert "uma-nvgpu" not in style


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite://{tmp_path}/fleet.db"
    store = open_store(url, "collect")
    stored(store, boxes(2, runs=1))
    store.close()
    page = tmp_path / "fleet.html"
    assert main.main(["fleet", "report", "--store", url, "-o", str(page)]) == 0
    assert "2 boxes at 2 sites" in page.read_text(encoding="utf-8")
    assert main.main(["fleet", "report", "--store", url, "--site", "plant9-paint", "-o", "-"]) == 0
    assert "0 boxes" in capsys.readouterr().out


def test_the_most_memory_of_the_last_day_stands_beside_a_box(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/fleet.db", "collect")
    stored(store, boxes(1, runs=1))
    for hours_ago, most in ((3, 8 << 30), (30, 12 << 30)):
        store.change(
            "INSERT INTO telemetry_hour (node, kind, hour_ms, name, n, min, mean, max)"
            " VALUES ('edge-0001', 'mem_1m', ?, 'ram_used_bytes', 60, 1.0, 2.0, ?)",
            (NOW_MS - hours_ago * 3_600_000, float(most)),
        )
    read = Read(views.page(store, Chosen(), NOW_MS))
    store.close()
    assert "8.00 GiB" in rows(read, "boxes", "edge-0001")[0]
