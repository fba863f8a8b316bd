#!/usr/bin/env python3
"""Opens a page in headless Chromium as a reader would, and prints as JSON what happened.

Usage: browser_check.py PAGE [--shots FOLDER]
The page is opened in light and dark, on a wide screen and on a phone's; it is hovered, zoomed and printed. With --shots
screenshots are left in FOLDER. Chromium speaks the DevTools protocol over a pipe, so no package and no port is needed.
Prints {"console": [...], "requests": [...], "views": {"light": {"charts": [{"pixels", ...}], ...}, ...}, ...}; what that has
to be is for the caller to say. Exit code 3: there is no chromium here.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

SIZES = {"wide": (1280, 900, False), "phone": (360, 780, True)}

# What is on the canvases: pixels with a colour, and how many different colours.
PROBE = """(() => {
  const charts = Array.from(document.querySelectorAll('.chart')).map(box => {
    const canvas = box.querySelector('canvas');
    if (!canvas || !canvas.width) return {pixels: 0, colours: 0};
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let pixels = 0;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) {
      if (data[i + 3] < 40) continue;
      ++pixels;
      seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
    }
    const title = box.closest('figure').querySelector('h3').textContent;
    return {title: title, pixels: pixels, colours: seen.size, width: box.getBoundingClientRect().width};
  });
  const style = getComputedStyle(document.body);
  return {charts: charts, ground: style.backgroundColor, ink: style.color,
    page_width: document.documentElement.scrollWidth, window_width: window.innerWidth,
    headings: Array.from(document.querySelectorAll('h2')).map(h => h.textContent),
    findings: document.querySelectorAll('.finding').length, tables: document.querySelectorAll('table').length,
    text: document.body.innerText.length};
})()"""


class Browser:
    def __init__(self, program, profile):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # Chromium reads descriptor 3 and writes descriptor 4; a shell puts them there.
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--disable-extensions", "--disable-background-networking", "--no-first-run", "--force-color-profile=srgb",
                   f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(["sh", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "sh", *command],
                                        pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.into, self.out = ours_out, ours_in
        self.buffer, self.number, self.events = b"", 0, []
        self.session = None

    def message(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.out], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.out, 1 << 16)
            if not piece:
                raise RuntimeError(f"the browser ended with code {self.process.wait()}")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, timeout=60, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.into, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self.message(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, event, timeout=60):
        deadline = time.monotonic() + timeout
        while not any(e.get("method") == event for e in self.events):
            self.events.append(self.message(deadline))

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def close(self):
        self.session = None
        try:
            self.call("Browser.close", timeout=5)
        except (TimeoutError, RuntimeError, OSError):
            self.process.kill()
        self.process.wait()


def look(browser, size, scheme):
    width, height, phone = SIZES[size]
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
    browser.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 200)))")
    return browser.evaluate(PROBE)


def shot(browser, folder, name, whole):
    if not folder:
        return
    size = browser.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight, innerWidth, innerHeight]")
    clip = {"x": 0, "y": 0, "width": size[2], "height": size[1] if whole else size[3], "scale": 1}
    data = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
    with open(os.path.join(folder, name + ".png"), "wb") as file:
        file.write(base64.b64decode(data))


def pointer(browser, kind, x, y, **more):
    browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def use(browser):
    """Hovers over the first chart, zooms into it by dragging, and resets."""
    browser.evaluate("document.querySelector('.chart') && document.querySelector('.chart').scrollIntoView({block: 'center'})")
    box = browser.evaluate("(() => { const b = document.querySelector('.chart'); if (!b) return null;"
                           " const r = b.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()")
    if not box:
        return {}
    x, y = box[0] + box[2] / 2, box[1] + box[3] / 2
    pointer(browser, "mouseMoved", x, y)
    at = "document.querySelector('figcaption .at').textContent"
    hovered = browser.evaluate(at)
    ranges = "Charts.all.map(c => c.graph.xAxisRange())"
    before = browser.evaluate(ranges)
    pointer(browser, "mousePressed", x, y, button="left", clickCount=1)
    for k in range(1, 11):
        pointer(browser, "mouseMoved", x + k * 10, y, button="left", buttons=1)
    pointer(browser, "mouseReleased", x + 100, y, button="left", clickCount=1)
    zoomed = browser.evaluate(ranges)
    for count in (1, 2):
        pointer(browser, "mousePressed", x, y, button="left", clickCount=count)
        pointer(browser, "mouseReleased", x, y, button="left", clickCount=count)
    return {"hover": hovered, "before": before, "zoomed": zoomed, "reset": browser.evaluate(ranges)}


def check(program, page, shots):
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(program, profile)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                browser.call(domain + ".enable")
            browser.events.clear()
            started = time.monotonic()
            browser.call("Page.navigate", url="file://" + os.path.abspath(page))
            browser.wait_for("Page.loadEventFired")
            loaded = time.monotonic() - started
            views = {}
            for name, size, scheme in (("light", "wide", "light"), ("dark", "wide", "dark"), ("phone", "phone", "light")):
                views[name] = look(browser, size, scheme)
                shot(browser, shots, name, True)
            views["phone-dark"] = look(browser, "phone", "dark")
            shot(browser, shots, "phone-dark", False)
            look(browser, "wide", "light")
            browser.evaluate("document.getElementById('theme').click(); document.getElementById('theme').click()")
            views["switched"] = look(browser, "wide", "light")  # auto, light, dark
            browser.evaluate("document.getElementById('theme').click()")
            used = use(browser)
            pdf = base64.b64decode(browser.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"])
            if shots:
                with open(os.path.join(shots, "print.pdf"), "wb") as file:
                    file.write(pdf)
            views["after-print"] = look(browser, "wide", "light")
            console, requests = [], []
            for event in browser.events:
                method, params = event.get("method"), event.get("params", {})
                if method == "Runtime.exceptionThrown":
                    details = params["exceptionDetails"]
                    console.append(details.get("exception", {}).get("description") or details.get("text"))
                if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                    console.append(str(params["args"])[:300])
                if method == "Log.entryAdded":
                    console.append(params["entry"]["text"])
                if method == "Network.requestWillBeSent":
                    requests.append(params["request"]["url"][:200])
            return {"console": console, "requests": requests, "views": views, "use": used, "pdf_bytes": len(pdf), "load_s": loaded}
        finally:
            browser.close()


def main():
    words = sys.argv[1:]
    shots = None
    if "--shots" in words:
        at = words.index("--shots")
        shots = words[at + 1]
        del words[at:at + 2]
        os.makedirs(shots, exist_ok=True)
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        print("no chromium on this machine", file=sys.stderr)
        sys.exit(3)
    print(json.dumps(check(program, words[0], shots)))


if __name__ == "__main__":
    main()
