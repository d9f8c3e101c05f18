"""The page of ``astra serve`` in Chromium, as somebody uses it: each question is a scene, its answer what was seen."""

from __future__ import annotations

import io
import json
import shutil
import sys
import traceback
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import axe_playwright_python
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
ANSWERED = "#result:not([aria-busy]) #answer-title"
PATIENCE_MS = 300_000  # a busy machine is no mistake of the page


class Scene:
    """One tab, with what went wrong in it."""

    def __init__(
        self, browser: Browser, base: str, *, width: int = 1300, scheme: str = "light", query: str = "", **options: Any
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True, **options
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.wrong = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda line: self.wrong.append(line.text) if "Content Security" in line.text else None)
        self.page.on(
            "request", lambda sent: None if sent.url.startswith((base, "blob:")) else self.wrong.append(sent.url)
        )
        self.base = base
        self.page.goto(base + query)

    def answered(self) -> str:
        self.page.wait_for_selector(f"{ANSWERED}, #error:not([hidden])")
        return self.status()

    def settled(self) -> str:
        """The answer to all that was typed: a page's timers end in their order, so that ours does after its own."""
        self.page.evaluate("() => new Promise((done) => setTimeout(done, 800))")
        return self.answered()

    def status(self) -> str:
        return self.page.text_content("#status")

    def until_other(self, before: str) -> str:
        self.page.wait_for_function(
            "before => document.querySelector('#status').textContent !== before"
            " && !document.querySelector('#result').hasAttribute('aria-busy')",
            arg=before,
        )
        return self.status()

    def error(self) -> str:
        self.page.wait_for_selector("#error:not([hidden])")
        return self.page.text_content("#error")

    def kept(self, selector: str) -> tuple[str, bytes]:
        with self.page.expect_download() as download:
            self.page.click(selector)
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()


Seen = tuple[Scene, dict[str, Any]]


def opened(browser: Browser, base: str, **_: Any) -> Seen:
    """How soon the form and its first answer can be used, by the page's own clock."""
    scene = Scene(browser, base)
    scene.page.wait_for_selector(".timeline svg", state="attached")
    status = scene.status()
    asked = scene.page.evaluate(
        "() => performance.getEntriesByType('resource').map((one) => [one.name, one.startTime])"
    )
    return scene, {
        # The step of the first plan is drawn as soon as everything else is there.
        "seconds": next(start for name, start in asked if name.endswith("/api/trace")) / 1000,
        "asked": sorted({name.rpartition("/")[2] for name, _ in asked if "/api/" in name}),
        "status": status,
        "cards": scene.page.locator("article").count(),
    }


def moved(browser: Browser, base: str, **_: Any) -> Seen:
    """A control moved by keys, and the page loaded again from its address."""
    scene = Scene(browser, base)
    first = scene.answered()
    scene.page.focus("[data-moves=batch]")
    scene.page.keyboard.press("ArrowLeft")
    second = scene.until_other(first)
    batch = scene.page.input_value("#batch")
    for _ in range(6):  # faster than answers come
        scene.page.keyboard.press("ArrowLeft")
    last = scene.until_other(second)
    settled, address = scene.settled(), scene.page.url
    scene.page.reload()
    scene.answered()
    return scene, {
        "first": first, "second": second, "batch": batch, "last": last, "settled": settled, "address": address,
        "reloaded": scene.status(), "batches": scene.page.input_value("#batch"),
    }  # fmt: skip


def filled(browser: Browser, base: str, **_: Any) -> Seen:
    """The form filled in, several pools and a network of one's own among it."""
    scene = Scene(browser, base)
    status = scene.answered()
    page = scene.page
    page.fill("#model", "llama-2-7b")
    one = scene.until_other(status)
    page.fill("#fleet [data-part=count]", "16")
    two = scene.until_other(one)
    page.click("#add-pool")
    page.locator("#fleet [data-part=count]").nth(1).fill("16")
    scene.until_other(two)
    three = scene.settled()
    page.locator("#fleet [data-part=links]").nth(0).fill("5")
    four = scene.settled()
    page.reload()
    scene.answered()
    return scene, {"one": one, "two": two, "three": three, "four": four, "reloaded": scene.status(),
                   "links": page.locator("#fleet [data-part=links]").nth(0).input_value()}  # fmt: skip


def studied(browser: Browser, base: str, **_: Any) -> Seen:
    """Why a plan is as it is, a sweep, what a budget buys, and what joins two pools."""
    scene = Scene(browser, base)
    scene.answered()
    page = scene.page
    page.locator("[data-do=explain]").first.click()
    page.wait_for_selector("#compared:not([hidden])")
    why = page.text_content("#compared")
    page.fill("#model", "llama-2-7b")
    page.check("input[name=verb][value=sweep]")
    page.fill("#over", "gpus=8..32")
    page.wait_for_function("() => document.querySelector('#status').textContent.includes('3 points')")
    page.reload()
    page.wait_for_function("() => document.querySelector('#status').textContent.includes('3 points')")
    charts = page.locator("#result svg").count()
    page.check("input[name=verb][value=afford]")
    page.fill("#budget", "100")
    page.fill("#rent-gpus", "H100")
    page.fill("#max-gpus", "8")
    page.wait_for_function("() => document.querySelector('#status').textContent.includes(' models')")
    bought = page.text_content("#result")
    page.goto(base + "?model=llama-2-7b&pool=8xH100-SXM5-80GB&pool=8xA100-SXM4-80GB&between=1")
    slow = scene.answered()
    page.fill("#between", "50")
    quick = scene.until_other(slow)
    return scene, {"why": why, "charts": charts, "bought": bought, "slow": slow, "quick": quick, "address": page.url}


def compared(browser: Browser, base: str, **_: Any) -> Seen:
    """Two plans of an answer, and then one of another answer with the first."""
    scene = Scene(browser, base)
    status = scene.answered()
    page = scene.page
    page.locator("[data-do=compare]").nth(0).click()
    pressed = page.locator("[data-do=compare]").nth(0).get_attribute("aria-pressed")
    page.locator("[data-do=compare]").nth(1).click()
    page.wait_for_selector("#compared:not([hidden])")
    text = page.text_content("#compared")
    page.fill("#batch", "2048")
    scene.until_other(status)
    page.locator("[data-do=compare]").nth(0).click()
    page.wait_for_function("before => document.querySelector('#compared').textContent !== before", arg=text)
    return scene, {"pressed": pressed, "text": text, "other": page.text_content("#compared")}


def kept(browser: Browser, base: str, **_: Any) -> Seen:
    """Report, record and files."""
    scene = Scene(browser, base)
    scene.answered()
    report, page = scene.kept("[data-keep=report]")
    record, plan = scene.kept("[data-keep=record]")
    scene.page.select_option("#target", "megatron")
    scene.page.select_option("#pick", "2")
    name, packed = scene.kept("[data-keep=export]")
    files = zipfile.ZipFile(io.BytesIO(packed)).namelist()
    return scene, {"report": report, "begins": page[:15].decode(), "record": record, "plan": json.loads(plan),
                   "name": name, "files": files}  # fmt: skip


def wrong(browser: Browser, base: str, **_: Any) -> Seen:
    """A sentence for what cannot be, at the control it is about, and gone when it is mended."""
    scene = Scene(browser, base)
    scene.answered()
    scene.page.fill("#batch", "-3")
    sentence = scene.error()
    marked = scene.page.get_attribute("#batch", "aria-invalid")
    scene.page.fill("#batch", "512")
    scene.page.wait_for_selector("#error", state="hidden")
    mended = scene.page.get_attribute("#batch", "aria-invalid")
    scene.page.fill("#model", "lama-2-70b")
    return scene, {"sentence": sentence, "marked": marked, "mended": mended, "model": scene.error(),
                   "address": Scene(browser, base, query="?batch=-3").error()}  # fmt: skip


def front(browser: Browser, base: str, **_: Any) -> Seen:
    """What to rent: a point looked at, followed by keys, and its GPUs planned on."""
    scene = Scene(browser, base, query="?verb=rent&model=llama-2-7b&tokens=100B&rent-gpus=H100,A100-80&max-gpus=64")
    scene.answered()
    page = scene.page
    points = page.locator("#result svg a")
    count = points.count()
    points.nth(0).hover()
    pointed = page.text_content("#pointed")
    points.nth(1).focus()
    page.keyboard.press("Enter")
    aimed = page.evaluate("document.querySelector('.card:target h3').textContent")
    address = page.url
    before = scene.status()
    page.locator(".card:target [data-do=plan]").click()
    after = scene.until_other(before)
    return scene, {"points": count, "pointed": pointed, "aimed": aimed, "address": address, "after": after}


def dropped(browser: Browser, base: str, config: str, **_: Any) -> Seen:
    """A config.json of one's own, which the address holds too."""
    scene = Scene(browser, base)
    status = scene.answered()
    scene.page.set_input_files(
        "#config", files=[{"name": "config.json", "mimeType": "application/json", "buffer": config.encode()}]
    )
    own = scene.until_other(status)
    note = scene.page.text_content("#model-note")
    scene.page.reload()
    scene.answered()
    again = scene.status()
    scene.page.set_input_files("#config", files=[{"name": "x.json", "mimeType": "application/json", "buffer": b"{"}])
    return scene, {"own": own, "note": note, "again": again, "broken": scene.error()}


def tried(browser: Browser, base: str, **_: Any) -> Seen:
    """The strategy of a card, changed by hand."""
    scene = Scene(browser, base)
    status = scene.answered()
    scene.page.locator("[data-do=edit]").nth(0).click()
    scene.page.wait_for_selector("#result > .cards > article:only-child")
    words = scene.page.input_value("#strategy")
    same = scene.status()
    scene.page.fill("#strategy", "tp8 pp2 dp4 mbs1 sp zero1")
    return scene, {"before": status, "words": words, "same": same, "after": scene.until_other(same)}


def accessible(
    browser: Browser, base: str, query: str, scheme: str, width: int, panels: bool = False, **_: Any
) -> Seen:
    """What axe-core finds, and whether the page is wider than its window."""
    scene = Scene(browser, base, query=query, scheme=scheme, width=width, bypass_csp=True)
    scene.answered()
    if not query:
        scene.page.locator("[data-do=compare]").nth(0).click()
        scene.page.locator("[data-do=compare]").nth(1).click()
        scene.page.wait_for_selector("#compared:not([hidden])")
    if panels:
        scene.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        if scene.page.locator("[data-do=explain]:visible").count():
            scene.page.locator("[data-do=explain]").first.click()
            scene.page.wait_for_selector("#compared:not([hidden])")
    scene.settled()
    return scene, audited(scene)


def audited(scene: Scene) -> dict[str, Any]:
    """What axe-core says of a page as it is now, and how wide it is."""
    scene.page.evaluate(AXE)
    found = scene.page.evaluate("axe.run()")
    serious = [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]
               if one["impact"] in ("serious", "critical")]  # fmt: skip
    wide = scene.page.evaluate("document.documentElement.scrollWidth")
    return {"serious": serious, "passed": len(found["passes"]), "wide": wide}


def reported(browser: Browser, base: str, scheme: str, width: int, **_: Any) -> Seen:
    """A report in a file, with all that is folded opened, and what is wider than a sheet of A4 when it is printed."""
    scene = Scene(browser, base, scheme=scheme, width=width, bypass_csp=True)
    scene.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    seen = audited(scene)
    cut = (
        "() => [...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > innerWidth)"
    )
    # A row of many columns is a list on a phone: whatever is moved sideways there is a picture or a line of a program.
    hidden = (
        "() => [...document.querySelectorAll('.wide')]"
        ".filter((one) => one.scrollWidth > one.clientWidth + 1 && !one.querySelector('svg'))"
    )
    seen["sideways"] = scene.page.evaluate(f"({hidden})().map((one) => one.textContent.slice(0, 80))")
    scene.page.set_viewport_size({"width": 673, "height": 1000})  # A4 between its margins
    scene.page.emulate_media(media="print", color_scheme=scheme)
    seen["cut"] = scene.page.evaluate(f"({cut})().map((one) => one.outerHTML.slice(0, 120))")
    seen["paper"] = scene.page.evaluate("getComputedStyle(document.body).backgroundColor")
    seen["folded"] = scene.page.evaluate(
        "() => [...document.querySelectorAll('summary')].filter((one) => !one.offsetHeight).length"
    )
    return scene, seen


STOPS = "button, select, textarea, summary, a[href], [tabindex='0'], input:not([type=radio])"


def by_keys(browser: Browser, base: str, **_: Any) -> Seen:
    """The page by keys alone: every control is reached, no key is caught, a plan is compared."""
    scene = Scene(browser, base)
    scene.answered()
    page = scene.page
    page.wait_for_selector(".timeline svg", state="attached")
    page.keyboard.press("Tab")
    first = page.evaluate("document.activeElement.textContent")
    page.evaluate(f"""() => {{
      window.unreached = new Set([...document.querySelectorAll("{STOPS}")].filter((one) => one.checkVisibility()));
      document.addEventListener("focusin", (event) => unreached.delete(event.target));
      unreached.delete(document.activeElement);
    }}""")
    unseen = 0
    for _step in range(200):
        page.keyboard.press("Tab")
        outline = (
            "() => document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle"
        )
        shown = page.evaluate(outline)
        if shown is True:
            break
        unseen += shown == "none"
    unreached = page.evaluate("[...unreached].map((one) => one.outerHTML.slice(0, 120))")
    for place in (0, 1):
        page.locator("[data-do=compare]").nth(place).focus()
        page.keyboard.press("Enter")
    page.wait_for_selector("#compared:not([hidden])")
    page.wait_for_function("() => document.activeElement.id === 'compared'")
    return scene, {"first": first, "unreached": unreached, "unseen": unseen, "left": shown is True,
                   "focus": page.evaluate("document.activeElement.id")}  # fmt: skip


SCENES = {scene.__name__: scene for scene in (
    opened, moved, filled, studied, compared, kept, wrong, front, dropped, tried, accessible, reported,
    by_keys)}  # fmt: skip


def main() -> None:
    """Play scenes until nobody asks for one."""
    versions = {name: version(name) for name in ("playwright", "axe-playwright-python")}
    if CHROMIUM is None:
        print(json.dumps({**versions, "missing": "chromium"}), flush=True)
        return
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS)
        print(json.dumps({**versions, "chromium": browser.version}), flush=True)
        for line in sys.stdin:
            case = json.loads(line)
            try:
                scene, seen = SCENES[case.pop("scene")](browser, **case)
                print(json.dumps({**seen, "wrong": scene.wrong}), flush=True)
            except Exception:  # a scene that broke off must not end the others
                print(json.dumps({"wrong": [traceback.format_exc()[-2500:]]}), flush=True)
            for context in browser.contexts:
                context.close()


main()
