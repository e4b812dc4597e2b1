"""Try the review page in a real browser: keys pressed, decisions saved, applied by the pipeline.

    pip install selenium     # and of the system: chromium, chromedriver
    python scripts/check_review_page.py SCREENSHOTS

The candidates come from a scripted endpoint; one of them is hostile HTML. Screenshots are taken at
three widths. Exit status: 0 all as it should be, 1 something is not, 77 there is no browser to try.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from rephrase_pipeline import command, lines, rephrase, write_questions
from scripted_endpoint import Reply, serving

from prompt_aug.base.commands import make_parser
from prompt_aug.rephrase import review
from prompt_aug.rephrase.__main__ import main as pipeline

SKIPPED = 77
WIDTHS = (380, 900, 1500)
DOUBTFUL = (
    "Ada owns 10 apples, and 30 apples and 10 plums are bought by her sister. Find the total."
)
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
)
REVIEWER = "Rae"


def candidates(number: int, body: dict[str, Any]) -> Reply:
    """The usual five, two of them replaced."""
    reply = rephrase(number, body)
    reply.body["choices"][2]["message"]["content"] = DOUBTFUL
    reply.body["choices"][4]["message"]["content"] = f"{HOSTILE} Ada has 10 apples and buys 30."
    return reply


def open_browser(downloads: Path) -> Any:
    """A headless Chromium that saves into `downloads`, None where there is none."""
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    try:
        from selenium import webdriver
    except ImportError:
        return None
    if not binary or not driver:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


class Page:
    """The review page in a browser."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get(f"file://{path}")

    def text(self, name: str) -> str:
        return str(self.browser.find_element("id", name).text)

    def press(self, keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(keys).perform()


def expect(what: str, found: Any, wanted: Any) -> None:
    """Print what was seen; SystemExit 1 where it is not what was wanted."""
    print(f"{'ok ' if found == wanted else 'NOT'} {what}: {found!r}")
    if found != wanted:
        sys.exit(f"error: {what} should be {wanted!r}")


def press_keys(page: Page, downloads: Path, screenshots: Path) -> None:
    """Decide with keys, save, load the page again."""
    expect("first page", page.text("place"), "1 of 1")
    page.press("a")
    expect("decided without a name", page.text("done"), "0 decided")
    page.press(f"{REVIEWER}\ue007")  # the name's field has the focus; enter
    page.press("a")
    expect("accepted the doubtful one", page.text("done"), "1 decided")
    page.press("d")
    expect("all candidates", page.text("place").split(" of ")[1], "5")
    page.browser.set_window_size(WIDTHS[-1], 900)
    page.press("k" * 9)  # to the first
    seen = []
    for _ in range(5):
        seen.append(page.text("candidate"))
        page.press("j")
    page.press("k" * 9)
    expect("hostile text is text", sum(HOSTILE in text for text in seen), 1)
    expect("title", page.browser.title.startswith("Review"), True)
    page.press("r")
    page.press("k")
    expect("rejected", page.text("decision"), "reject")
    page.press("u")
    expect("undone", page.text("decision"), "none")
    page.press("r")
    page.press("d")  # the doubtful one, with its reasons
    for width in WIDTHS:
        page.browser.set_window_size(width, 900)
        page.browser.save_screenshot(str(screenshots / f"{width}.png"))
        wide = page.browser.execute_script(
            "return document.documentElement.scrollWidth - window.innerWidth"
        )
        expect(f"nothing beyond the edge at {width}", wide <= 0, True)
    page.press("s")
    saved = downloads / "decisions.jsonl"
    for _ in range(100):
        if saved.exists():
            break
        time.sleep(0.1)
    page.browser.refresh()
    expect("kept over a reload", page.text("done"), "1 decided")
    expect("errors of the page", page.browser.get_log("browser"), [])


def check(folder: Path, screenshots: Path) -> int:
    """The whole of it in `folder`; the exit status."""
    questions, out, page = (
        write_questions(folder / "q.parquet", 1),
        folder / "o.parquet",
        folder / "p.html",
    )
    with serving(candidates) as endpoint:
        expect("pipeline", pipeline(command(questions, out, endpoint.url)), 0)
        review.main([str(questions), str(out), str(page)])
        browser = open_browser(folder)
        if browser is None:
            print("skipped: no selenium, chromium or chromedriver", file=sys.stderr)
            return SKIPPED
        try:
            press_keys(Page(browser, page), folder, screenshots)
        finally:
            browser.quit()
        arguments = command(questions, out, endpoint.url)
        arguments += ["--decisions", str(folder / "decisions.jsonl")]
        asked = len(endpoint.bodies)
        expect("pipeline with decisions", pipeline(arguments), 0)
        expect("requests for that", len(endpoint.bodies) - asked, 0)
    found = lines(out.with_name(out.name + ".candidates.jsonl"))
    decided = {c["text"]: c["verdict"] for c in found if c["reviewer"] == REVIEWER}
    expect("decided", sorted(decided.values()), ["accept", "reject"])
    expect("the doubtful one", decided.get(DOUBTFUL), "accept")
    return 0


def main() -> int:
    parser = make_parser(
        "python scripts/check_review_page.py",
        __doc__,
        example="python scripts/check_review_page.py screenshots",
    )
    parser.add_argument("screenshots", type=Path, help="a folder for them")
    options = parser.parse_args()
    options.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        return check(Path(folder), options.screenshots.resolve())


if __name__ == "__main__":
    sys.exit(main())
