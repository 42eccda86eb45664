"""The HTML report: says the verdict, stands alone, is well-formed, and survives odd results."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from slipstream.measurement.report import HEADLINES, render, write_report
from slipstream.measurement.results import (
    BenchResult,
    BenchVerdict,
    DraftLengthPoint,
    Interval,
    MachineRecord,
    RowCost,
    Run,
)

VOID = {"meta", "br", "link", "img", "input", "hr"}
PLAIN_RUN = Run(
    drafter="none", kind="all", num_prompts=4, num_passes=3, num_tokens=1200, target_forwards=1200, num_drafted=0,
    num_accepted=0, tokens_per_s=11.8, tokens_per_s_interval=Interval(11.8, 11.5, 12.1),
    speedup=Interval(1.0, 1.0, 1.0), ttft_s=0.2, end_to_end_s=8.0, acceptance_rate=0.0, mean_accepted_length=1.0,
    accepted_by_position=[], draft_share=0.0, score_share=0.95, rest_share=0.05, theoretical_speedup=1.0,
    of_theoretical=1.0, read_gb_per_s=20.0, same_text=True, verdict=BenchVerdict("baseline", ""),
)  # fmt: skip
FAST_RUN = replace(
    PLAIN_RUN, drafter="suffix", speedup=Interval(1.72, 1.61, 1.84), tokens_per_s=20.3, acceptance_rate=0.63,
    mean_accepted_length=2.4, accepted_by_position=[0.8, 0.6, 0.4], draft_share=0.02, score_share=0.93,
    verdict=BenchVerdict("pays", "2.4 tokens a round"),
)  # fmt: skip
MACHINE = MachineRecord("a processor", 8, 31.3, "cpu", [], 41.2, {"slipstream": "0.1.0", "torch": "2.10"})
FULL = BenchResult(
    machine=MACHINE,
    settings={"model": "smollm2-135m", "draft": None, "temperature": 0.0, "seed": 7, "drafters": ["suffix"]},
    runs=[PLAIN_RUN, FAST_RUN, replace(PLAIN_RUN, kind="chat"), replace(FAST_RUN, kind="chat")],
    verdict=BenchVerdict("pays", "suffix is 1.7 times as fast"),
    command="slipstream bench --drafter suffix --seed 7",
    created="2026-03-07T14:22:31",
    cost_by_rows=[RowCost(1, 0.02, 1.0), RowCost(4, 0.03, 1.5), RowCost(16, 0.06, 3.0)],
    speedup_by_length=[DraftLengthPoint("suffix", n, 1.2 + n / 10, n == 4) for n in (1, 2, 4)],
    notes=["a note"],
)
FIGURES = (
    "Speed-up and verdict by kind of text", "Where the time goes", "Acceptance by position", "What one forward costs",
    "Speed-up by draft length", "Memory bandwidth reached",
)  # fmt: skip


class Balance(HTMLParser):
    """Fails on a tag that is not closed where it should be; collects what a page could load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag in {"script", "link", "img", "iframe"} or names.keys() & {"src", "href", "xlink:href"}:
            self.loads.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


def page(result: BenchResult = FULL) -> str:
    """The report, checked: balanced, alone, with unique ids and SVGs that are XML."""
    html = render(asdict(result))
    balance = Balance()
    balance.feed(html)
    assert balance.open == []
    assert balance.loads == []
    assert len(balance.ids) == len(set(balance.ids))
    assert not re.search(r"https?://|@import|url\(", html)
    for svg in svgs(html):
        assert svg.get("aria-hidden") == "true" or (svg.find("title") is not None and svg.find("desc") is not None)
    return html


def svgs(html: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_everything_is_there(tmp_path: Path) -> None:
    write_report(asdict(FULL), tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert html == page()
    said = ("Speculation pays", "suffix is 1.7 times as fast", "1.72×", "1.61–1.84", "text identical", "yes", "a note",
            "slipstream bench --drafter suffix --seed 7", "2.10", "a processor", "2026-03-07")  # fmt: skip
    for words in (*said, *FIGURES):
        assert words in html, words
    assert html.index("Speculation pays</h1>") < html.index("Speed-up and verdict by kind of text")


def rows(html: str, figure: str) -> list[str]:
    """The words of each table row of a figure."""
    start = html.index(f"<h2>{figure}")
    found = re.findall(r"<tr.*?</tr>", html[start : html.index("</figure>", start)], re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in found]


def test_each_run_has_a_row() -> None:
    slow = replace(
        FAST_RUN, drafter="draft-model", speedup=Interval(0.81, 0.74, 0.9), tokens_per_s=9.6, acceptance_rate=0.31,
        mean_accepted_length=1.8, target_forwards=2345, num_tokens=6789,
        verdict=BenchVerdict("does not pay", "too slow"),
    )  # fmt: skip
    runs = [*FULL.runs, slow, replace(slow, kind="chat", speedup=Interval(1.01, 0.9, 1.1), tokens_per_s=12.0)]
    assert rows(page(replace(FULL, runs=runs)), "Speed-up and verdict")[1:] == [
        "all kinds plain decoding: 11.8 tok/s",
        "suffix 1.72× 1.61–1.84 20.3 63% 2.40 1,200 1,200 pays : 2.4 tokens a round",
        "draft-model 0.81× 0.74–0.90 9.6 31% 1.80 2,345 6,789 does not pay : too slow",
        "chat plain decoding: 11.8 tok/s",
        "suffix 1.72× 1.61–1.84 20.3 63% 2.40 1,200 1,200 pays : 2.4 tokens a round",
        "draft-model 1.01× 0.90–1.10 12.0 31% 1.80 2,345 6,789 does not pay : too slow",
    ]


def test_the_tables_of_the_charts() -> None:
    html = page()
    assert rows(html, "Where the time goes")[1:] == [
        "plain decoding 95% 0% 95% 5% 1.00× 100% 200 ms 8.00 s",
        "suffix 93% 2% 93% 5% 1.00× 100% 200 ms 8.00 s",
    ]
    assert rows(html, "Acceptance by position") == ["position in the draft suffix", "1 80%", "2 60%", "3 40%"]
    assert rows(html, "Speed-up by draft length") == ["draft length suffix", "1 1.30×", "2 1.40×", "4 1.60× ◯"]
    assert "suffix: 1.60× at 4" in html
    costs = ["rows in one forward n rows in one forward", "1 1.00×, 20 ms", "4 1.50×, 30 ms", "16 3.00×, 60 ms ◯"]
    assert rows(html, "What one forward costs") == costs
    read = ["drafter copy: 41.2 GB/s read reached", "plain decoding 20.0 GB/s 49%", "suffix 20.0 GB/s 49%"]
    assert [row.replace("1× ", "") for row in rows(html, "Memory bandwidth reached")] == read


def test_no_word_of_a_warning_where_there_is_none() -> None:
    html = page().replace("--synthetic", "")
    assert "synthetic" not in html
    assert "partial" not in html


@pytest.mark.parametrize(("word", "headline"), HEADLINES.items())
def test_each_verdict_is_said_in_words(word: str, headline: str) -> None:
    assert f"<h1>{headline}</h1>" in page(replace(FULL, verdict=BenchVerdict(word, "why")))


def test_another_text_is_said() -> None:
    broken = replace(FAST_RUN, same_text=False, verdict=BenchVerdict("broken", "2 texts differ"))
    html = page(replace(FULL, runs=[PLAIN_RUN, broken], verdict=BenchVerdict("broken", "2 texts differ")))
    assert "Broken" in html
    assert re.search(r"text identical</dt><dd[^>]*>no ", html)
    assert "≠ text differs" in html
    assert "≠ text differs" not in page()


def test_synthetic_and_partial_are_loud() -> None:
    html = page(replace(FULL, synthetic=True, partial=True))
    assert "<strong>synthetic</strong>" in html
    assert "<strong>partial</strong>" in html
    for title in FIGURES:
        assert re.search(re.escape(title) + r'\s*<span class="tag">synthetic</span>', html), title


def test_hostile_words_are_escaped() -> None:
    evil = "</svg></style><script>alert(1)</script>\x00&\"'"
    run = replace(FAST_RUN, drafter=evil, kind=evil, verdict=BenchVerdict(evil, evil))
    html = page(
        replace(
            FULL,
            runs=[run],
            settings={evil: evil, "model": evil, "more": {evil: [evil]}},
            notes=[evil],
            command=evil,
            created=evil,
            verdict=BenchVerdict(evil, evil),
            machine=replace(MACHINE, processor=evil, versions={evil: evil}),
            speedup_by_length=[DraftLengthPoint(evil, 2, 1.5, True)],
        )
    )
    assert "<script" not in html.lower()
    assert "&lt;script&gt;" in html


def test_an_empty_result_leaves_sections_out() -> None:
    html = page(replace(FULL, runs=[], cost_by_rows=[], speedup_by_length=[], notes=[], partial=True))
    assert svgs(html) == []
    for title in (*FIGURES, "Notes"):
        assert title not in html
    assert "How it was measured" in html


def test_plain_decoding_alone() -> None:
    html = page(replace(FULL, runs=[PLAIN_RUN], verdict=BenchVerdict("baseline", ""), speedup_by_length=[]))
    assert rows(html, "Speed-up and verdict")[2:] == ["plain decoding 1.00× – 11.8 0% 1.00 1,200 1,200 baseline"]
    assert 'class="whisker"' not in html
    assert "Where the time goes" in html


def test_one_measurement_has_no_interval() -> None:
    once = replace(FAST_RUN, kind="chat", speedup=Interval(0.9, 0.9, 0.9), accepted_by_position=[0.3])
    html = page(replace(FULL, runs=[once], cost_by_rows=[RowCost(1, 0.1, 1.0)], speedup_by_length=[]))
    assert "measured once" in html
    assert "0.90–0.90" not in html


def test_figures_that_are_no_numbers_are_left_out() -> None:
    nan = float("nan")
    odd = replace(
        FAST_RUN, speedup=Interval(nan, nan, nan), acceptance_rate=nan, read_gb_per_s=nan, draft_share=nan,
        accepted_by_position=[nan], theoretical_speedup=nan, of_theoretical=nan, tokens_per_s=nan,
    )  # fmt: skip
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page(replace(FULL, runs=[PLAIN_RUN, odd])), flags=re.DOTALL)


def test_a_model_in_the_wrong_place_is_obvious() -> None:
    runs = [replace(run, read_gb_per_s=1.0) for run in FULL.runs]
    html = page(replace(FULL, runs=runs))
    assert "At most 2% of the copy bandwidth" in html
    assert "the time goes elsewhere" not in page()


@pytest.mark.parametrize("num_drafters", range(1, 9))
def test_any_number_of_drafters(num_drafters: int) -> None:
    kinds = ("all", "chat", "a very long name of a kind of text that no column could ever hold on one line")
    names = [f"drafter-{i}(option=value,another={i})" for i in range(num_drafters)]
    runs = [replace(FAST_RUN, drafter=name, kind=kind) for name in names for kind in kinds]
    html = page(replace(FULL, runs=runs))
    for name in names:
        assert name in html


def test_nothing_is_drawn_outside_its_chart() -> None:
    wide: dict[str, Any] = {"speedup": Interval(3.0, -0.2, 90.0)}
    html = page(replace(FULL, runs=[*FULL.runs, replace(FAST_RUN, kind="wild", **wide)]))
    for style in re.findall(r'style="([^"]*%[^"]*)"', html):
        shares = [float(share) for share in re.findall(r"([-\d.]+)%", style)]
        assert min(shares) >= 0
        assert sum(shares) <= 100, style
    for svg in svgs(html):
        left, top, width, height = map(float, svg.get("viewBox", "").split())
        places = [point.split(",") for line in svg.iter("polyline") for point in line.get("points", "").split()]
        places += [(box.get("x", ""), box.get("y", "")) for box in svg.iter("rect")]
        for x, y in places:
            assert left <= float(x) <= left + width
            assert top <= float(y) <= top + height
