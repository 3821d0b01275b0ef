"""The page in a real browser: what a reader clicks works, nothing fails, and nothing is fetched."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
from flat_rows import write_summary
from PIL import Image
from suite_runs import ENVIRONMENT, short_protocol, suite_run
from test_pictures import LABELS, twenty_one
from test_race import COLOURS, race_run
from test_report import EVIL, FID, flat, make_run

from lanternbench import experiment as results
from lanternbench import report
from lanternbench.report.labels import Box, overlap
from lanternbench.suite import leaderboard
from lanternbench.suite.protocol import submission, write

BROWSER = next(
    (path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))),
    None,
)
QUIET = [
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-sync",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ),
]
WATCH = """<script>
window.failures = [];
addEventListener("error", event => failures.push(String(event.message)));
addEventListener("securitypolicyviolation", event => failures.push("fetches " + event.blockedURI));
for (const kind of ["error", "warn"]) console[kind] = (...words) => failures.push(words.join(" "));
</script>"""
ASK = """<script>
const seen = (() => { %s })();
seen.failures = failures;
seen.fetched = performance.getEntriesByType("resource").map(entry => entry.name)
  .filter(name => !name.startsWith("data:"));
const out = document.createElement("pre");
out.id = "seen"; out.textContent = JSON.stringify(seen); document.body.append(out);
</script></body>"""

NARROWEST = 500  # pixels of a window
PHONE = """<!doctype html><iframe style="border: 0; width: %dpx; height: 900px" srcdoc="%s"
  onload="document.body.append(this.contentDocument.getElementById('seen').cloneNode(true))"></iframe>"""


@pytest.fixture
def browse(tmp_path):
    """Runs JavaScript on a page in a window of some width; returns the object that it returns."""
    if BROWSER is None:
        pytest.skip("NO BROWSER: install chromium to check the page; nothing of it was checked")

    def run(page: Path, script: str, width: int = 1200) -> dict:
        text = (
            page.read_text()
            .replace("<head>", "<head>" + WATCH, 1)
            .replace("</body>", ASK % script)
        )
        if width < NARROWEST:  # a phone: a frame of that width, whose answer comes out of it
            text = PHONE % (width, html.escape(text))
        (tmp_path / "watched.html").write_text(text)
        flags = [flag.replace("\u00a0", " ") for flag in QUIET]
        command = [
            BROWSER,
            *flags,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900",
            "--dump-dom",
            "--virtual-time-budget=20000",
        ]
        done = subprocess.run(
            [*command, f"file://{tmp_path / 'watched.html'}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
        assert found, "the script did not finish"
        seen = json.loads(html.unescape(found[1]))
        assert (seen["failures"], seen["fetched"]) == ([], [])
        return seen

    return run


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    rows = [flat(fidelity_loss=0.0, **FID), flat("sjd", "sjd", 1.4, fidelity_loss=0.0, **FID),
            flat("cool-sd λ=2", "cool-sd", 2.0, fidelity_loss=0.4, lossless=False, **FID)]  # fmt: skip
    return report(
        [make_run(tmp_path_factory.mktemp("page") / "run", rows)], published=True, formats=["html"]
    ).files[-1]


def test_a_heading_sorts_by_number_and_a_second_click_reverses(browse, page):
    seen = browse(page, """
        const table = document.querySelector("table.sortable"), heads = [...table.tHead.rows[0].cells];
        const head = heads.find(cell => cell.textContent.startsWith("speedup"));
        const order = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
        head.firstChild.click(); const up = order(); head.firstChild.click();
        return { up, down: order(), state: head.getAttribute("aria-sort") };""")  # fmt: skip
    assert seen["up"] == ["ar", "sjd", "cool-sd λ=2"]
    assert seen["down"] == seen["up"][::-1]
    assert seen["state"] == "descending"


def test_another_quality_axis_shows_another_plot(browse, page):
    seen = browse(page, """
        const chooser = document.getElementById("metric"), plots = [...document.querySelectorAll(".first figure.plot")];
        const shown = () => plots.filter(plot => plot.offsetHeight > 0).map(plot => plot.dataset.key);
        const first = shown(); chooser.value = "3"; chooser.dispatchEvent(new Event("change"));
        return { first, then: shown(), keys: plots.map(plot => plot.dataset.key) };""")  # fmt: skip
    assert seen["first"] == ["speed"]
    assert seen["then"] == seen["keys"][3:]
    assert set(seen["keys"][1:]) == {"pareto-fidelity_loss", "pareto-clip-tiny", "pareto-fid-tiny"}


def test_a_point_of_the_plot_tells_its_figures(browse, page):
    seen = browse(page, """
        const plot = document.querySelector('[data-key="pareto-fidelity_loss"]');
        const points = [...plot.querySelectorAll(".point")];
        const point = points.find(one => one.textContent.includes("cool-sd"));
        plot.hidden = false; point.focus(); return { said: plot.querySelector(".said").textContent };""")  # fmt: skip
    assert "cool-sd λ=2: speedup over AR 2.00×" in seen["said"]
    assert "fidelity loss 0.400" in seen["said"]


GEOMETRY = """
    const chooser = document.getElementById("metric"), found = [];
    for (let i = 0; i < (chooser ? chooser.options.length : 0); i++) {
      chooser.value = String(i); chooser.dispatchEvent(new Event("change"));
      for (const plot of document.querySelectorAll("figure.plot")) {
        const svg = [...plot.querySelectorAll("svg")].find(one => one.getBoundingClientRect().width > 0);
        if (!svg || (i && !plot.closest(".first"))) continue;
        const frame = svg.getBoundingClientRect();
        const boxes = [...svg.querySelectorAll("text")].map(text => {
          const box = text.getBoundingClientRect();
          return [text.textContent, box.left - frame.left, box.top - frame.top, box.right - frame.left,
                  box.bottom - frame.top, text.className.baseVal, getComputedStyle(text).visibility];
        });
        const letters = parseFloat(getComputedStyle(svg.querySelector("text")).fontSize);
        const scale = frame.width / svg.viewBox.baseVal.width;
        found.push({ key: plot.dataset.key, width: frame.width, height: frame.height, boxes, size: letters * scale });
      }
    }
    return { found, page: document.documentElement.scrollWidth, window: innerWidth };"""


@pytest.fixture(scope="module")
def page_of_21(tmp_path_factory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("21") / "run", twenty_one())
    return report([folder], formats=["html"]).files[-1]


@pytest.mark.parametrize("width", [390, 1280])
def test_every_label_of_21_methods_is_there_and_none_touches_another(browse, page_of_21, width):
    seen = browse(page_of_21, GEOMETRY, width)
    assert seen["page"] <= seen["window"]
    assert {one["key"] for one in seen["found"]} == {
        "speed",
        "pareto-fidelity_loss",
        "pareto-clip-tiny",
        "acceptance",
    }
    for one in seen["found"]:
        assert one["size"] > 9.5, one["key"]  # pixels on the screen
        letters = re.sub(r"\W", "", "".join(box[0] for box in one["boxes"]))
        assert [label for label in LABELS if re.sub(r"\W", "", label) not in letters] == [], one[
            "key"
        ]
        # without line spacing
        places = [
            (box[0], Box(box[1], box[2] + 2, box[3], box[4] - 2)) for box in one["boxes"] if box[0]
        ]
        touching = [(a, b) for (a, p), (b, q) in combinations(places, 2) if overlap(p, q) > 1]
        assert touching == [], one["key"]
        cut = [
            a
            for a, (x0, y0, x1, y1) in places
            if x0 < -1 or y0 < -1 or x1 > one["width"] + 1 or y1 > one["height"] + 1
        ]
        assert cut == [], one["key"]


def test_a_column_is_shown_when_the_reader_asks_for_it(browse, page):
    seen = browse(page, """
        const boxes = [...document.querySelectorAll("[data-column]")];
        const box = boxes.find(one => one.parentNode.textContent.includes("latency (s)"));
        const head = document.querySelector("table.sortable").tHead.rows[0].cells[Number(box.dataset.column)];
        const before = head.offsetWidth; box.click();
        return { before, after: head.offsetWidth };""")  # fmt: skip
    assert seen["before"] == 0 < seen["after"]


def test_an_image_opens_beside_ar_s_and_the_keyboard_goes_on_to_the_next(browse, page):
    seen = browse(page, """
        const cell = [...document.querySelectorAll("button.cell")].find(one => one.dataset.label === "sjd");
        const detail = document.getElementById("detail"), cut = document.getElementById("cut");
        const title = () => document.getElementById("detail-title").textContent;
        cell.click(); const open = detail.open, first = title();
        const images = document.querySelectorAll("#compare img").length;
        cut.value = 30; cut.dispatchEvent(new Event("input"));
        const clip = getComputedStyle(document.querySelector("#compare .over")).clipPath;
        const press = key => detail.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        press("ArrowRight"); const next = title(); press("ArrowLeft"); press("ArrowLeft");
        const base = title(), alone = cut.hidden;
        detail.querySelector(".close").click();
        return { open, first, images, clip, next, base, alone, closed: !detail.open };""")  # fmt: skip
    assert (seen["open"], seen["first"], seen["images"]) == (True, "sjd", 2)
    assert seen["clip"] in ("inset(0px calc(70%) 0px 0px)", "inset(0px 70% 0px 0px)")
    assert (seen["next"], seen["base"], seen["alone"], seen["closed"]) == (
        "cool-sd λ=2",
        "ar",
        True,
        True,
    )


def test_the_maps_are_shown_on_demand(browse, page):
    seen = browse(page, """
        document.querySelector('[data-show="accept"]').click();
        const cell = document.querySelector("button.cell"), legend = document.querySelector(".for-accept").offsetHeight;
        const shown = [...cell.children].filter(one => one.offsetHeight > 0);
        return { shown: shown.map(one => one.className), legend };""")  # fmt: skip
    assert seen["shown"] == ["accept"]
    assert seen["legend"] > 0


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_is_as_wide_as_its_window_and_its_tables_fit(browse, page, width):
    seen = browse(page, """
        const room = document.querySelector(".sheet .scroll"), page = document.documentElement.scrollWidth;
        return { page, window: innerWidth, table: room.scrollWidth, room: room.clientWidth };""",
        width)  # fmt: skip
    assert seen["page"] <= seen["window"]
    assert seen["table"] <= seen["room"] + 1


def test_hostile_names_and_captions_are_text_in_the_browser(browse, tmp_path):
    bad = f"{EVIL} <a href='javascript:alert(1)'>x</a>"
    rows = [
        flat(),
        flat(bad, bad, 2.0, fidelity_loss=0.1, target=bad, **{bad: 1.0, f"{bad}_lo": 1.0}),
    ]
    folder = make_run(tmp_path / "evil", rows, caption=bad, run_id=bad)
    write_summary(folder, rows, [bad])
    seen = browse(report([folder], published=True, formats=["html"]).files[-1], """
        document.querySelector("button.cell").click();
        const handlers = document.querySelectorAll("[onerror]").length;
        return { scripts: document.scripts.length, links: document.links.length, handlers };""")  # fmt: skip
    assert (seen["links"], seen["handlers"]) == (0, 0)
    assert seen["scripts"] == 3  # the page's own, and the two of this test


RACE = """
    const queue = []; window.requestAnimationFrame = frame => queue.push(frame);
    const race = document.querySelector(".race"), [play, restart] = race.querySelectorAll("button");
    const slider = race.querySelector("input"), canvases = [...race.querySelectorAll("canvas")];
    const drawn = () => canvases.map(canvas => {
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return [0, 1, 2, 3].filter(cell => pixels[4 * cell + 3] === 0).join("");
    });
    const said = () => [...race.querySelectorAll("figcaption span")].map(span => span.textContent);
    const seek = time => { slider.value = time; slider.dispatchEvent(new Event("input")); return drawn(); };
    const still = drawn(), result = said(), first = seek(0), middle = seek(500), last = seek(1000);
    restart.click(); const begun = [drawn().join(""), play.textContent];
    queue.pop()(performance.now() + 2700); const later = drawn();
    play.click(); const paused = play.textContent;
    dispatchEvent(new Event("beforeprint"));
    const images = [...race.querySelectorAll("img")].map(image => image.src);
    const room = canvases.every((canvas, i) => canvas.offsetWidth === race.querySelectorAll("img")[i].offsetWidth);
    return { still, result, first, middle, last, begun, later, paused, printed: drawn(), images, room,
      wide: document.documentElement.scrollWidth - innerWidth };"""


@pytest.mark.parametrize("width", [390, 1280])
def test_a_race_begins_empty_is_won_by_the_fast_and_ends_with_the_images(browse, tmp_path, width):
    """It is a still of the final images until a reader starts it, and in print."""
    folder = race_run(tmp_path / "run")
    seen = browse(report([folder], formats=["html"]).files[-1], RACE, width)
    assert seen["still"] == seen["last"] == seen["printed"] == ["0123"] * 3
    assert seen["result"] == ["3.00 s, 4 steps", "1.00 s, 2 steps", "1.50 s, 3 steps"]
    assert seen["first"] == ["", "", ""]
    assert seen["middle"] == ["01", "0123", "0123"]  # after 1.5 s
    assert seen["begun"] == ["", "Pause"]
    assert seen["later"] == ["01", "0123", "023"]  # a bit over a second of the run
    assert seen["paused"] == "Play"
    colours = []
    for uri in seen["images"]:
        with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
            colours.append(image.convert("RGB").getcolors())
    assert colours == [[(64 * 64, colour)] for colour in COLOURS.values()]
    assert seen["room"]
    assert seen["wide"] <= 0


@pytest.mark.slow
def test_a_page_of_32_prompts_by_13_methods_is_under_5_mb(tmp_path):
    import numpy as np

    rows = [
        flat("ar" if i == 0 else f"m{i}", "sjd", 1 + 0.1 * i, fidelity_loss=0.01 * i, **FID)
        for i in range(13)
    ]
    folder = make_run(tmp_path / "run", rows, prompts=1)
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(
        json.dumps(info | {"target": {"name": "t", "grid": [24, 24]}})
    )
    rng, lines = np.random.default_rng(0), []
    first = json.loads((folder / "samples.jsonl").read_text().splitlines()[0])
    smooth = rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)
    for prompt in range(32):
        for row in rows:
            lengths = [1, *rng.integers(1, 6, 200).tolist()]
            fields = {"key": f"{prompt}|{row['label']}|0", "prompt_id": str(prompt), "label": row["label"],
                      "accept_lengths": lengths, "tree_depths": rng.integers(0, 9, 201).tolist(), "steps": 201,
                      "tokens": sum(lengths), "image": f"images/{prompt}.png"}  # fmt: skip
            lines.append(json.dumps(first | fields))
        picture = Image.fromarray(np.roll(smooth, prompt, 0)).resize(
            (384, 384), Image.Resampling.BICUBIC
        )
        pixels = np.clip(np.asarray(picture) + rng.normal(0, 12, (384, 384, 3)), 0, 255).astype(
            np.uint8
        )
        Image.fromarray(pixels).save(folder / "images" / f"{prompt}.png")
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")
    assert len(results.read_samples(folder)) == 32 * 13
    (file,) = report([folder], formats=["html"]).files
    assert file.read_text().count('<img class="image"') == 32 * 13
    assert file.stat().st_size < 5_000_000


@pytest.mark.parametrize("width", [1200, 390])
def test_a_leaderboard_fits_any_screen_and_sorts(browse, tmp_path, monkeypatch, width):
    found = short_protocol(monkeypatch, tmp_path)
    folder = tmp_path / "board"
    folder.mkdir()
    for name in ("One CPU", "Another CPU"):
        run = suite_run(tmp_path / name, found, environment=ENVIRONMENT | {"cpu": name})
        write(submission(run), folder / f"{name.partition(' ')[0]}.json")
    entries, refused = leaderboard.read_folder(folder)
    assert not refused
    (folder / "leaderboard.html").write_text(leaderboard.html_page(leaderboard.boards(entries)))
    seen = browse(
        folder / "leaderboard.html",
        """
        const heads = [...document.querySelector("thead tr").cells].filter(c => !c.classList.contains("folded"));
        heads[1].firstChild.click();
        return {
          wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
          headings: [...document.querySelectorAll("h2")].map(h => h.textContent),
          heads: heads.map(h => h.textContent), sorted: heads[1].getAttribute("aria-sort"),
          row: document.querySelector("tbody tr").cells[0].textContent,
        };""",
        width,
    )
    assert seen["wide"] <= 0
    assert seen["headings"] == ["v1/tiny, Another CPU", "v1/tiny, One CPU"]
    assert seen["heads"][:3] == ["method", "rank", "speedup ↑"]
    assert (seen["sorted"], seen["row"]) == ("ascending", "eagle-1")
