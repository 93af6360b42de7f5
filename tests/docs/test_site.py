"""The built documentation: words find their page, and pages fit a dark theme and a phone."""

import fcntl
import functools
import html
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sphinx", reason="the documentation is built by the extra docs")

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = os.environ.get("FUNCAOT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
in_a_browser = pytest.mark.skipif(
    BROWSER is None, reason="no headless Chromium (Debian: chromium); FUNCAOT_BROWSER names one"
)
PAGES = ("index", "benchmarks", "limits", "troubleshooting", "generated/tutorial-force-matching")
# Each with its width and the theme that furo is told.
VIEWS = {"light": (1200, "light"), "dark": (1200, "dark"), "phone": (400, "dark")}
WORDS = {
    "recompile": {"recompilation", "troubleshooting", "generated/limits-values"},
    "slow": {"troubleshooting"},
    "debug": {"troubleshooting"},
    "cuda": {"cuda"},
    "notebook": {"notebooks"},
    "double backward": {"faq", "generated/limits-derivatives"},
    "install": {"install"},
    "out of memory": {"troubleshooting"},
    "wrong gradient": {"troubleshooting"},
}
# Loads a page at a width and with a theme, and says how wide it became and what sticks out of it.
FRAME = """<!doctype html><meta charset="utf-8"><body style="margin:0">
<iframe id="frame" style="border:0"></iframe><script>
const asked = new URLSearchParams(location.search), width = +asked.get("width");
frame.width = width; frame.height = +asked.get("height");
localStorage.setItem("theme", asked.get("theme"));
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument, whole = page.documentElement;
  const scrolls = (element) => {
    for (let at = element; at; at = at.parentElement)
      if (["auto", "scroll", "hidden"].includes(frame.contentWindow.getComputedStyle(at).overflowX))
        return true;
    return false;
  };
  const out = [...page.querySelectorAll("article *")].filter(
    (each) => each.getBoundingClientRect().right > width + 1 && !scrolls(each));
  document.body.dataset.found = JSON.stringify({
    theme: page.body.dataset.theme, scroll: whole.scrollWidth, height: whole.scrollHeight,
    out: out.slice(0, 5).map((each) => each.tagName + ": " + each.textContent.slice(0, 60)),
  });
}, 200);
frame.src = asked.get("page") + ".html";
</script>"""

# What the tests below have to notice.
PLANTED = """<!doctype html><meta charset="utf-8"><body data-theme="dark" style="background:#111">
<article><div style="width:2000px;height:90px;background:#fff">a white figure</div>
</article>"""

pytestmark = pytest.mark.slow


def built():
    """The pages that ``make docs`` built, if nothing has changed since."""
    folder = ROOT / "docs" / "_build" / "html"
    index = folder / "searchindex.js"
    sources = [*ROOT.glob("docs/*.*"), *ROOT.glob("funcaot/**/*.py"), *ROOT.glob("scripts/*.py")]
    sources += ROOT.glob("docs/*/*.svg")
    if index.exists() and index.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return folder
    return None


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages, built where they aren't yet, with a frame for each of them."""
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Several workers need them, one builds.
        if built() is None:
            target = str(ROOT / "docs" / "_build" / "html")
            command = [
                sys.executable,
                "-m",
                "sphinx",
                "-q",
                "-b",
                "html",
                str(ROOT / "docs"),
                target,
            ]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            subprocess.run(command, check=True, env=environment)
        folder = tmp_path_factory.mktemp("site") / "html"
        shutil.copytree(ROOT / "docs" / "_build" / "html", folder)
    return with_frame(folder)


def with_frame(folder):
    (folder / "_frame.html").write_text(FRAME)
    (folder / "_planted.html").write_text(PLANTED)
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Where the pages are served, on this machine only."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def browse(url, *options):
    """What the browser prints."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--disable-dev-shm-usage"]
    command += ["--virtual-time-budget=6000", *options, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def framed(address, page, width, theme, height=900):
    return f"{address}/_frame.html?page={page}&width={width}&theme={theme}&height={height}"


def found_in(dom):
    """What the frame's script noted, out of the page's text."""
    return json.loads(html.unescape(dom.partition('data-found="')[2].partition('"')[0]))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("view", ["light", "phone"])
@in_a_browser
def test_a_page_is_as_wide_as_the_window(address, page, view):
    width, theme = VIEWS[view]
    found = found_in(browse(framed(address, page, width, theme), "--dump-dom"))
    assert found["theme"] == theme
    assert found["out"] == []
    assert found["scroll"] <= width


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("view", VIEWS)
@in_a_browser
def test_a_screenshot_has_no_box_of_the_other_theme(address, page, view, tmp_path):
    width, theme = VIEWS[view]
    white = whiteness(address, page, width, theme, tmp_path)
    if theme == "dark":
        assert white.max() < 0.6, f"a white box at {np.argwhere(white >= 0.6)[0] * 24}"
    else:
        assert white.mean() > 0.5, "a light page is light"


@in_a_browser
def test_a_wide_page_and_a_white_box_are_seen(address, tmp_path):
    found = found_in(browse(framed(address, "_planted", 400, "dark"), "--dump-dom"))
    assert found["scroll"] >= 2000
    assert found["out"] == ["DIV: a white figure"]
    assert whiteness(address, "_planted", 400, "dark", tmp_path).max() > 0.9


def whiteness(address, page, width, theme, folder, height=4000):
    """How much of each square of a screenshot is nearly white."""
    from matplotlib.image import imread

    picture = folder / "page.png"
    options = (f"--screenshot={picture}", f"--window-size={max(width, 500)},{height}")
    browse(framed(address, page, width, theme, height), *options)
    pixels = imread(picture)[:, :width, :3]
    assert pixels.std() > 0.01, "an empty picture"
    return (tiled(pixels, 24) > 0.92).all(-1).mean((1, 3))


def tiled(pixels, size):
    """Squares of a picture: rows, lines, columns, dots, colours."""
    rows, columns = (length // size for length in pixels.shape[:2])
    cut = pixels[: rows * size, : columns * size]
    return cut.reshape(rows, size, columns, size, 3)


@pytest.mark.parametrize("words", WORDS)
def test_a_heading_has_the_words_that_people_search(site, words):
    """Sphinx ranks pages whose headings have the words before all others."""
    text = (site / "searchindex.js").read_text()
    index = json.loads(text.partition("(")[2].rpartition(")")[0])
    found = {
        index["docnames"][number]
        for title, places in index["alltitles"].items()
        if all(word[:7] in title.lower() for word in words.split())
        for number, _ in places
    }
    assert found & WORDS[words]


@pytest.mark.parametrize("words", WORDS)
@in_a_browser
def test_a_search_finds_the_page(address, words):
    dom = browse(f"{address}/search.html?q={words.replace(' ', '+')}", "--dump-dom")
    _, _, results = dom.partition('class="search">')
    links = [part.partition('"')[0] for part in results.split('href="')[1:]]
    first = [link.partition(".html")[0] for link in links[:6]]
    assert WORDS[words] & set(first), first
