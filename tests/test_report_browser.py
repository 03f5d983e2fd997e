"""The report in a real browser: it renders, filters, stays silent, and nothing that an episode says can do anything."""

import base64
import contextlib
import json
import random
import shutil
import time
from importlib.util import find_spec

import pytest
import report_run
from report_run import episode, evaluation, lines

from bmrl import report
from bmrl.atomic import write_json
from bmrl.run_folder import RESOLVED

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed"),
    pytest.mark.skipif(find_spec("selenium") is None, reason="selenium is not installed"),
]

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<!--",
    "]]> {{ 7 * 7 }} {% raw %} &lt;b&gt; &#x202e;",
    "' onmouseover='window.hacked = 1' \" autofocus onfocus=\"window.hacked = 1\"",
    "javascript:window.hacked = 1",
    "\u202e txet eht nrut \u2066 مرحبا بالعالم",
    "nul \0 bell \a escape \x1b[31m delete \x7f",
    "half \ud800 and other half \udfff",
    "__proto__",
    "w" * 300_000,
]


class Page:
    """A tab of headless Chromium."""

    def __init__(self):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.command_executor.client_config.timeout = 600  # a busy machine is no failure
        self.driver.set_page_load_timeout(300)
        self.driver.set_script_timeout(300)

    def open(self, path, *, width=1280, height=900, dark=False, media=""):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
        self.driver.get_log("performance"), self.driver.get_log("browser")
        self.driver.get(path.as_uri())
        until = time.monotonic() + 300
        while self.js("return document.documentElement.dataset.ready") != "yes":
            assert time.monotonic() < until, "the page was never ready"
            time.sleep(0.05)
        return self

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def requests(self):
        """Addresses that the page asked for since it was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def choose(self, **values):
        self.js("document.querySelector('#filters').reset()")
        for name, value in values.items():
            self.js(
                "const one = document.querySelector('#filters').elements[arguments[0]]; one.value = arguments[1];"
                "one.dispatchEvent(new Event('input', {bubbles: true}));",
                name,
                value,
            )
        return self.js("return document.querySelector('#count').textContent")


@pytest.fixture(scope="module")
def browser():
    page = Page()
    yield page
    with contextlib.suppress(Exception):
        page.driver.quit()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A report whose every text is hostile."""
    run = report_run.make(tmp_path_factory.mktemp("hostile"))
    recipe = json.loads((run / RESOLVED).read_text())
    recipe |= {"name": f"demo {HOSTILE[1]}", "model": {"name": HOSTILE[2]}, HOSTILE[0]: HOSTILE[3:8]}
    write_json(run / RESOLVED, recipe)
    write_json(run / "eval" / "other.json", evaluation(3, (0, 0, 0), split=HOSTILE[1]))
    said = [
        episode(text, [(text, text), {"observation": text, "action": text, "valid": False, "reward": 1.0}], **rest)
        for text in HOSTILE
        for rest in ({"final_observation": text, "error": text, "reason": "env_error"}, {"reason": "failure"})
    ]
    lines(run / "eval" / "step-000010.jsonl", [*said, episode("one", []), episode("two", [])])
    write_json(run / "eval" / "step-000010.json", evaluation(10, (0.1, 0.4, 1.0), tasks=14))
    write_json(run / "eval" / "step-000000.json", evaluation(0, (0.1, 0.4, 1.0), tasks=13))
    (path, *_) = report.write(report.read([run]))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    (path, *_) = report.write(report.read([report_run.make(tmp_path_factory.mktemp("plain"))]))
    return path


def test_it_renders_and_filters_without_a_word_or_a_request(browser, plain):
    browser.open(plain)
    assert browser.js("return document.querySelectorAll('figure svg').length") == 7
    assert browser.js("return document.querySelector('#count').textContent") == "24 of 24 episodes, 1 of them solved"
    # Of the run: two episodes of each of two evaluations and of each of ten steps, with budgets 4 and 8.
    assert browser.choose(reason="success").startswith("1 of 24")
    assert browser.choose(**{"from": "training"}).startswith("20 of 24")
    assert browser.choose(**{"from": "evaluation, step 10"}).startswith("2 of 24")
    assert browser.choose(step="3").startswith("2 of 24")
    assert browser.choose(step="3", budget="8").startswith("1 of 24")
    assert browser.choose(task="TWO", budget="30").startswith("2 of 24")
    assert browser.choose(task="nowhere").startswith("0 of 24")
    assert browser.js("return document.querySelectorAll('#list > li').length") == 0
    browser.js("document.querySelector('#filters button[type=reset]').click()")
    time.sleep(0.3)
    assert browser.js("return document.querySelector('#count').textContent").startswith("24 of 24")
    assert browser.requests() == [plain.as_uri()] and browser.complaints() == []


def test_an_episode_is_read_by_keyboard_turn_by_turn(browser, plain):
    from selenium.webdriver.common.keys import Keys

    browser.open(plain)
    browser.js("document.querySelector('#filters button').focus()")
    browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    focused = browser.js(
        "const one = document.activeElement; return [one.tagName, getComputedStyle(one).outlineStyle, "
        "parseFloat(getComputedStyle(one).outlineWidth)]"
    )
    assert focused[0] == "SUMMARY" and focused[1] == "solid" and focused[2] >= 2
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    time.sleep(0.3)
    turns = browser.js(
        "return [...document.querySelectorAll('#list details[open] .turns > li')].map((one) => one.innerText)"
    )
    assert len(turns) == 5
    shown = [line for line in turns[1].split("\n") if line]
    assert shown == ["place 1", "go 1", "turn 2 · 28 left · log-probability -0.25 (3 tokens)"]
    unlabelled = browser.js(
        "return [...document.querySelectorAll('input, select, button')].filter((one) => !one.labels?.length && "
        "!one.textContent.trim()).length"
    )
    assert unlabelled == 0


def test_a_hostile_episode_does_nothing(browser, hostile):
    browser.open(hostile)
    scripts = browser.js("return document.scripts.length")
    browser.js("for (const one of document.querySelectorAll('#list summary, details.card summary')) one.click()")
    time.sleep(1)
    assert browser.js("return typeof window.hacked") == "undefined"
    assert browser.js("return document.scripts.length") == scripts == 2
    assert (
        browser.js(
            "return document.querySelectorAll('img, iframe, object, [onerror], [onfocus], [onmouseover]').length"
        )
        == 0
    )
    shown = browser.js(
        "return [...document.querySelectorAll('#list .said, #list .act code')].map((one) => one.textContent)"
    )
    for text in HOSTILE[:8]:
        assert text in shown
    assert any("nul ␀ bell ␇ escape ␛[31m delete ␡" in text for text in shown)
    assert any("half \ufffd and other half \ufffd" in text for text in shown)
    assert max(map(len, shown)) < 10_000
    assert browser.requests() == [hostile.as_uri()] and browser.complaints() == []


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_nothing_is_wider_than_the_screen(browser, hostile, width):
    browser.open(hostile, width=width, height=800)
    browser.js("for (const one of document.querySelectorAll('summary')) one.click()")
    time.sleep(1)
    assert browser.js("return document.documentElement.scrollWidth") <= width
    wide = browser.js(
        "return [...document.querySelectorAll('.tiles dd, .tiles dt, h1, h4, .rows dd, .task, figcaption, button')]"
        ".filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== 'inline')"
        ".map((one) => one.textContent.slice(0, 40))"
    )
    assert wide == []


CONTRAST = """
const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parts = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
function ground(one) {
  for (; one; one = one.parentElement) {
    const colour = parts(getComputedStyle(one).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
}
const weak = {};
for (const one of document.querySelectorAll('body *')) {
  const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(one.tagName) || !one.getClientRects().length) continue;
  const style = getComputedStyle(one);
  const ink = light(parts(one instanceof SVGElement ? style.fill : style.color)), paper = light(ground(one));
  const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  if (ratio < 4.5) weak[one.tagName + '.' + (one.className.baseVal ?? one.className)] = ratio;
}
return weak;
"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_read_in_the_light_and_in_the_dark(browser, plain, dark):
    browser.open(plain, dark=dark)
    browser.js("for (const one of document.querySelectorAll('summary')) one.click()")
    time.sleep(0.5)
    assert browser.js(CONTRAST) == {}
    ground = browser.js("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(20, 23, 26)") == dark


def test_it_prints_on_white_without_what_only_a_screen_needs(browser, plain):
    browser.open(plain, dark=True, media="print")
    assert browser.js("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.js("return getComputedStyle(document.querySelector('#filters')).display") == "none"
    assert browser.js(CONTRAST) == {}
    pdf = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
    assert pdf.startswith(b"%PDF") and len(pdf) > 20_000


def test_colours_are_not_all_that_tells_lines_apart(plain):
    page = plain.read_text(encoding="utf-8")
    assert page.count("stroke-dasharray") > 5 and "pattern" in page


def test_five_thousand_episodes_open_at_once(tmp_path):
    run = report_run.make(tmp_path / "runs")
    recipe = json.loads((run / RESOLVED).read_text())
    write_json(run / RESOLVED, {**recipe, "env": {"name": "elsewhere"}})
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3000)]

    def text(count):
        return " ".join(rng.choices(words, k=count))

    # About 75,000 turns of 30 words that come only once, as no game repeats less.
    for step in range(1, 51):
        played = [
            episode(f"task {n}", [(text(25), text(5)) for _ in range(rng.randint(5, 25))], step=step)
            for n in range(100)
        ]
        lines(run / "episodes" / f"step-{step:06d}.jsonl", played)
    (path, *_) = report.write(report.read([run]))
    assert path.stat().st_size < 15e6
    browser = Page()  # a process of its own: its time is that of this page
    browser.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "timeTicks"})
    browser.open(path)
    measured = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    # Time of the processor: that on the clock is also what other programs make of it.
    process_s = next(one["value"] for one in measured if one["name"] == "ProcessTime")
    shown = browser.js("return document.querySelector('#count').textContent")
    clock_s = browser.js("return performance.now()") / 1000
    opened = f"{path.stat().st_size / 1e6:.1f} MB, {process_s:.2f} s of the processor, {clock_s:.2f} s by the clock"
    rows = browser.js("return document.querySelectorAll('#list > li').length")
    browser.driver.quit()
    assert shown.startswith("5,000 of 5,000") and rows == 50
    assert process_s < 3, opened
