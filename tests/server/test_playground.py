"""The page at /, in a real browser: Chromium without a window, driven by Playwright. Skipped where there is none."""

from __future__ import annotations

import re
import shutil

import pytest

from outrider import LLM
from outrider.policy.costs import FREE
from tests.scripted import accepted, noisy, one_hot, script

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

api = pytest.importorskip("playwright.sync_api", reason="the playground's tests need the package playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the playground's tests need Chromium")

TOKENS = "[data-token]"


@pytest.fixture(scope="module")
def server(path, serve_once):
    """Texts are cut by a short context, so that they do not take long."""
    return serve_once(LLM(path, threads=1, costs=FREE, context_length=320))


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, server):
    """Open the page; whatever it complains of, or asks of other servers, is an error."""
    contexts = []

    def start(url=None, **options):
        context = browser.new_context(**{"viewport": {"width": 1000, "height": 700}} | options)
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.faults = []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith((url or server.url, "data:")) or page.faults.append(request.url),
        )
        page.goto(url or server.url)
        return page

    yield start
    for context in contexts:
        assert [fault for page in context.pages for fault in page.faults] == []
        context.close()


def ask(page, text="Hello", wait=True):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    if wait:
        page.wait_for_selector("#compare:not([disabled])")


def sources(page):
    return page.eval_on_selector_all(TOKENS, "tokens => tokens.map(token => token.className)")


def test_an_answer_is_coloured_by_where_its_tokens_are_from(open_page):
    page = open_page()
    ask(page)
    found = sources(page)
    assert {"plain", "accepted"} <= set(found) <= {"plain", "accepted", "recovered", "bonus"}
    colours = {
        name: page.eval_on_selector(f".{name}{TOKENS}", "token => getComputedStyle(token).backgroundColor")
        for name in set(found)
    }
    assert len(set(colours.values())) == len(colours)
    assert re.fullmatch(r"\d+ tokens/s, \d\.\d\d per step", page.inner_text("#fast-figures"))


def test_the_answer_is_the_servers(open_page, server):
    page = open_page()
    ask(page)
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 512, "temperature": 0}
    expected = server.post(**body).json()["choices"][0]["message"]["content"]
    shown = page.eval_on_selector_all(TOKENS, "tokens => tokens.map(token => token.textContent).join('')")
    assert shown == expected.rstrip("\ufffd") or shown == expected


def test_a_token_tells_its_probability_and_the_alternatives(open_page):
    page = open_page()
    ask(page)
    page.hover(f"{TOKENS} >> nth=5")
    tip = page.inner_text("#tip").splitlines()
    assert re.match(r"(plain|accepted|recovered|bonus) +\d+\.\d% \"", tip[0])
    percents = [float(re.search(r"(\d+\.\d)%", line)[1]) for line in tip[1:]]
    assert len(percents) == 5
    assert percents == sorted(percents, reverse=True)


def test_everything_can_be_done_from_the_keyboard(open_page):
    page = open_page()
    page.keyboard.type("Hello")  # the prompt has the focus
    page.keyboard.press("Enter")
    page.wait_for_selector("#compare:not([disabled])")
    page.focus("#chat")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.eval_on_selector_all(TOKENS, "tokens => tokens.findIndex(token => token.matches('.shown'))") == 1
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")
    page.focus("#speculate")
    page.keyboard.press("Space")
    assert not page.is_checked("#speculate")
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"chat", "prompt", "send", "compare", "reset", "speculate"} <= reached


def test_the_switch_turns_drafts_off(open_page):
    page = open_page()
    page.uncheck("#speculate")
    ask(page)
    assert set(sources(page)) == {"plain"}
    assert page.inner_text("#fast-figures").endswith("1.00 per step")


def test_a_plain_run_stands_beside_the_drafted_one(open_page):
    page = open_page()
    ask(page)
    page.click("#compare")
    page.wait_for_selector("article.note >> text=decoded plainly")
    assert page.inner_text("article.note").splitlines()[-1].startswith("The same text, decoded plainly")
    assert page.inner_text("#slow-figures").endswith("1.00 per step")


def test_a_plain_run_that_fails_is_compared_with_nothing(open_page):
    page = open_page()
    ask(page)
    full = {"error": {"message": "the queue is full"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, json=full))
    page.click("#compare")
    page.wait_for_selector("article.note >> text=the queue is full")
    page.wait_for_selector("#compare:not([disabled])")
    assert "text" not in page.inner_text("article.note")


def test_a_step_that_ends_the_text_within_its_draft_is_counted(open_page, scripted):
    body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "return_sources": True}
    prompt = scripted(noisy(269)).post(**body, max_tokens=1).json()["usage"]["prompt_tokens"]
    law = script([*b"abcdefghijklmnopqr", 268], 269, prompt_length=prompt)
    server = scripted(law, accepted(law, lambda request: 4, 4))
    sources = server.post(**body).json()["choices"][0]["sources"]
    assert sources[-1] == "accepted"
    steps = sum(source != "accepted" for source in sources) + 1
    page = open_page(server.url)
    ask(page)
    assert page.inner_text("#fast-figures").endswith(f"{len(sources) / steps:.2f} per step")


def test_esc_stops_an_answer_and_the_chat_goes_on(open_page, server):
    page = open_page()
    ask(page, wait=False)
    page.wait_for_selector(TOKENS)
    page.keyboard.press("Escape")
    page.wait_for_selector("#compare:not([disabled])")
    server.wait_until_idle()
    ask(page, "More")
    assert page.locator("article.assistant").count() == 2
    page.click("#reset")
    assert page.locator("article").count() == 0


def test_what_the_server_refuses_is_shown(open_page):
    page = open_page()
    page.fill("#prompt", "x" * 5000)
    page.press("#prompt", "Enter")
    page.wait_for_selector(".error")
    assert "the context of 320 leaves room" in page.inner_text(".error")


def test_a_model_that_writes_html_writes_text(open_page, scripted):
    text = b"<b>bold</b><script>document.title = 'gone'</script>"
    server = scripted(lambda path: one_hot(text[len(path) % len(text)], 269))
    page = open_page(server.url)
    ask(page)
    assert "<b>bold</b><script>" in page.inner_text("article.assistant")
    assert page.locator("article b, article script").count() == 0
    assert page.title() == "Outrider"


def test_a_key_is_asked_for_where_it_is_needed(open_page, serve_once):
    keyed = serve_once(api_key="sesame")
    page = open_page(keyed.url)
    assert page.is_hidden("#key")
    page.fill("#prompt", "Hello")
    page.press("#prompt", "Enter")
    page.wait_for_selector("#key:visible")
    page.fill("#key input", "sesame")
    ask(page)
    assert page.locator(TOKENS).count() > 0


def test_dark_mode_follows_the_system(open_page):
    def lightness(page, selector):
        colour = page.eval_on_selector(selector, "each => getComputedStyle(each).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    light, dark = open_page(color_scheme="light"), open_page(color_scheme="dark")
    assert lightness(light, "body") > 700
    assert lightness(dark, "body") < 100


@pytest.mark.parametrize("width", [320, 375])
def test_it_fits_a_phone(open_page, width):
    page = open_page(viewport={"width": width, "height": 640}, is_mobile=True, has_touch=True)
    ask(page, "a word " * 20)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("prompt", "send", "compare", "speculate"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= 640
    chat = page.locator("#chat").bounding_box()
    assert chat["height"] > 640 / 3, "the text has its share of the screen"
    page.tap(f"{TOKENS} >> nth=3")
    tip = page.locator("#tip").bounding_box()
    assert tip["x"] + tip["width"] <= width
