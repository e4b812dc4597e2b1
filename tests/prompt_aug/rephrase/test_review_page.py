"""The review page in headless Chromium: keys, formulas, and text that must not become markup."""

import shutil
import subprocess
from pathlib import Path

import pytest

from prompt_aug.rephrase import review

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
)
KEYS = """<script>
const press = key => document.dispatchEvent(new KeyboardEvent("keydown", {key}));
press("a");                                  // without a name nothing is decided
document.getElementById("result").dataset.unnamed = show("done").textContent;
show("reviewer").value = "Rae";
press("a"); press("d"); press("j"); press("r"); press("k"); press("u"); press("k");
const wide = document.documentElement.scrollWidth - window.innerWidth;
Object.assign(document.getElementById("result").dataset, {
  decisions: Object.values(decisions).map(d => d.text + "=" + d.verdict).join(" "),
  wide: wide > 0, place: show("place").textContent,
  formulas: document.querySelectorAll("math").length,
});
</script>"""


def entry(text: str, verdict: str, **more: object) -> dict[str, object]:
    question = "If $\\frac{1}{x} \\le 2$, find \\(x\\)."
    own, other = review.marked(question, text)
    empty = {"reasons": [], "pass_rate": None, "path": "checks", "solver": None, "judge": None}
    shown = {"uid": "u", "text": text, "verdict": verdict, "question": own, "candidate": other}
    return empty | shown | {"answers": ["1/2"]} | more


LISTED = [
    entry(
        "Find $x$ with $\\frac{1}{x} \\le 2$.",
        "doubtful",
        solver={"right": 3, "responses": 4, "wrong": [["7", 1]]},
        reasons=[{"filter": "formulas", "verdict": "doubtful", "detail": "<b>x</b> went missing"}],
    ),
    entry(HOSTILE, "reject"),
    entry("Of which $x$ is $1/x$ at most 2?", "accept"),
]


@pytest.mark.config
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_in_a_browser(width: int, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    page = review.page(LISTED, "out.parquet")
    path.write_text(page.replace("</body>", f'<i id="result"></i>{KEYS}</body>'))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--window-size={width},900", f"--user-data-dir={tmp_path}/user", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    result = shown.partition('<i id="result"')[2].partition(">")[0]
    assert 'data-unnamed="0 decided"' in result
    assert f'data-decisions="{LISTED[0]["text"]}=accept"'.replace("\\", "\\") in result
    assert 'data-wide="false"' in result
    assert 'data-place="1 of 3"' in result
    assert 'data-formulas="0"' not in result
    assert "Solver: 3 of 4 right; wrong: 1 times 7." in shown
    assert "&lt;b&gt;x&lt;/b&gt; went missing" in shown
    assert "<title>Review of" in shown, "the hostile candidate is text"
