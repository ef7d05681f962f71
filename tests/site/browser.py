# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that looks at pages of the site, and a server for it."""

import contextlib
import http.server
import json
import pathlib
import shutil
import subprocess
import tempfile
import threading
import urllib.parse

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-extensions", "--no-first-run", "--force-color-profile=srgb")
#: Before anything else of a page: what goes wrong in its scripts, and what does not load.
WATCH = b"<script>window.wrong=[];addEventListener('error',e=>wrong.push(e.message||e.target.src||e.target.href),true)</script>"
HEIGHT = 900

#: Loads each page in a frame of each width, and sends home what it sees.
LOOK = """<!doctype html><title>look</title><body style="margin:0"><iframe id="frame" style="border:0;height:%(height)dpx"></iframe><script>
const frame = document.getElementById('frame');
const loaded = () => new Promise(done => frame.onload = done);
const found = d => d.querySelectorAll('ul.search li, #search-results li');
async function until(what, ms) { for (const end = Date.now() + ms; Date.now() < end && !what(); ) await new Promise(r => setTimeout(r, 50)); }
async function see(page, width) {
  frame.style.width = width + 'px';
  const ready = loaded();
  frame.src = '/' + page;
  await ready;
  const d = frame.contentDocument;
  for (const image of d.images) image.loading = 'eager';
  await until(() => [...d.images].every(i => i.complete), 5000);
  if (page.includes('?q=')) await until(() => /found \\d+ page/.test(d.body.innerText), 30000);
  return {page, width, title: d.title, wrong: frame.contentWindow.wrong, over: d.documentElement.scrollWidth - width,
          broken: [...d.images].filter(i => i.naturalWidth === 0).map(i => i.src), text: d.body.innerText.length, found: found(d).length};
}
(async () => {
  const seen = [];
  for (const width of %(widths)s) for (const page of %(pages)s) {
    try { seen.push(await see(page, width)); } catch (error) { seen.push({page, width, wrong: [String(error)]}); }
  }
  await fetch('/__seen', {method: 'POST', body: JSON.stringify(seen)});
})();
</script>"""
SHOW = """<!doctype html><body style="margin:0"><iframe src="/%s" style="border:0;width:%dpx;height:%dpx"></iframe>"""


def chromium():
  """The path of the browser, or None."""
  return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
  """A server of a folder, and a browser for its pages."""

  def __init__(self, folder):
    self._folder, self._pages, self._seen, self._came = pathlib.Path(folder), {}, None, threading.Event()
    browser = self

    class Handler(http.server.SimpleHTTPRequestHandler):
      def __init__(self, *args):
        super().__init__(*args, directory=str(folder))

      def log_message(self, *args):
        pass

      def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        file = browser._folder / path.lstrip("/")
        if path in browser._pages:
          self._answer(browser._pages[path].encode())
        elif file.suffix == ".html" and file.is_file():
          self._answer(file.read_bytes().replace(b"<head>", b"<head>" + WATCH, 1))
        else:
          super().do_GET()

      def do_POST(self):
        browser._seen = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(b"")
        browser._came.set()

      def _answer(self, body):
        with contextlib.suppress(BrokenPipeError):  # a frame that has gone on
          self._send(body)

      def _send(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=self._server.serve_forever, daemon=True).start()
    self._url = f"http://127.0.0.1:{self._server.server_port}"

  def look(self, pages, widths):
    """What the browser sees of each page at each width: a list of dicts."""
    asked = {"height": HEIGHT, "widths": json.dumps(list(widths)), "pages": json.dumps(list(pages))}
    self._pages["/__look.html"] = LOOK % asked
    self._came.clear()
    with self._running(f"{self._url}/__look.html", "--remote-debugging-port=0", "--window-size=1400,1000") as process:
      while not self._came.wait(0.5):
        assert process.poll() is None, "the browser ended"
    return self._seen

  def picture(self, page, width, path):
    """A picture of the top of a page, as PNG."""
    self._pages["/__show.html"] = SHOW % (page, width, HEIGHT)
    with self._running(f"{self._url}/__show.html", f"--window-size={width},{HEIGHT}", f"--screenshot={path}") as process:
      process.wait(120)

  @contextlib.contextmanager
  def _running(self, url, *flags):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
      command = [chromium(), *FLAGS, f"--user-data-dir={profile}", *flags, url]
      process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
      try:
        yield process
      finally:
        process.kill()
        process.wait()

  def close(self):
    self._server.shutdown()
    self._server.server_close()
