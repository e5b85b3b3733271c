// A headless Chromium, driven by its own protocol over a pipe: no package, no port.
import { spawn } from "node:child_process";
import { accessSync, constants, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";

const kDeadline = 60000;

/** The program, or "" where there is none. */
export function chromium() {
  for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
    for (const folder of (process.env.PATH || "").split(delimiter)) {
      try {
        accessSync(join(folder, name), constants.X_OK);
        return join(folder, name);
      } catch { /* not there */ }
    }
  }
  return "";
}

export const sleep = ms => new Promise(done => setTimeout(done, ms));

/** Asks until the answer is one; throws what was waited for after a minute. */
export async function until(what, ask) {
  const end = Date.now() + kDeadline;
  let last;
  while (Date.now() < end) {
    last = await ask().catch(error => { last = error; });
    if (last) return last;
    await sleep(50);
  }
  throw new Error(`waited in vain for: ${what}${last instanceof Error ? ` (${last.message})` : ""}`);
}

export class Browser {
  #next = 1;
  #waiting = new Map();
  #rest = "";
  #hear = new Map();  // by session

  static async start() {
    const browser = new Browser();
    browser.folder = mkdtempSync(join(tmpdir(), "ductile-browser-"));
    browser.process = spawn(chromium(), ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
      "--remote-debugging-pipe", "--no-first-run", `--user-data-dir=${browser.folder}`, "about:blank"],
    { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"], detached: true });
    browser.process.stdio[4].setEncoding("utf8");
    browser.process.stdio[4].on("data", text => browser.#read(text));
    browser.process.on("exit", () => {
      for (const { fail } of browser.#waiting.values()) fail(new Error("the browser ended"));
    });
    await browser.send("Browser.getVersion");
    return browser;
  }

  #read(text) {
    const parts = (this.#rest + text).split("\0");
    this.#rest = parts.pop();
    for (const part of parts) {
      const message = JSON.parse(part);
      const waiting = this.#waiting.get(message.id);
      if (waiting) {
        this.#waiting.delete(message.id);
        if (message.error) waiting.fail(new Error(`${waiting.method}: ${message.error.message}`));
        else waiting.done(message.result);
      } else if (message.method) {
        this.#hear.get(message.sessionId)?.(message.method, message.params);
      }
    }
  }

  send(method, params = {}, sessionId = undefined) {
    const id = this.#next++;
    return new Promise((done, fail) => {
      this.#waiting.set(id, { done, fail, method });
      this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  /** A page of a profile of its own: it shares no cookie with other ones. */
  async page() {
    const { browserContextId } = await this.send("Target.createBrowserContext");
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank", browserContextId });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId);
    this.#hear.set(sessionId, (method, params) => page.heard(method, params));
    for (const domain of ["Page", "Runtime", "Network", "Log", "DOM", "Accessibility"]) {
      await page.send(`${domain}.enable`);
    }
    return page;
  }

  async stop() {
    const ended = new Promise(done => this.process.on("exit", done));
    process.kill(-this.process.pid, "SIGKILL");  // with its children, which write
    await ended;
    // They outlive it for a moment; a file that one makes behind the removal stops it.
    await until("the browser's folder is removed", async () => {
      rmSync(this.folder, { recursive: true, force: true });
      return true;
    });
  }
}

export class Page {
  faults = [];  // errors of scripts, and what the page's policy refused

  constructor(browser, session) {
    this.browser = browser;
    this.session = session;
  }

  send(method, params = {}) {
    return this.browser.send(method, params, this.session);
  }

  heard(method, params) {
    if (method === "Runtime.exceptionThrown") {
      const { exception, text } = params.exceptionDetails;
      this.faults.push(exception?.description || text);
    }
    if (method === "Log.entryAdded" && params.entry.level === "error") {
      const { text, url, source } = params.entry;
      // The service may be away, or refuse: the page says so itself.
      if (source !== "network") this.faults.push(`${text} ${url || ""}`);
    }
    if (method === "Runtime.consoleAPICalled" && params.type === "error") {
      this.faults.push(params.args.map(arg => arg.value || arg.description).join(" "));
    }
  }

  async open(url) {
    await this.send("Page.navigate", { url });
    await this.wait("document.readyState === 'complete'");
  }

  /** The value of an expression in the page. */
  async eval(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate",
      { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) {
      throw new Error(`${expression}: ${exceptionDetails.exception?.description || exceptionDetails.text}`);
    }
    return result.value;
  }

  wait(expression) {
    return until(expression, () => this.eval(expression));
  }

  /** Waits until the text stands somewhere in the page as people see it. */
  sees(text, within = "body") {
    return this.wait(`document.querySelector(${JSON.stringify(within)})?.innerText.includes(${JSON.stringify(text)})`);
  }

  /** Clicks in the middle of the first element that is seen; with `text`, of one that has this text. */
  async click(selector, text = "") {
    // A page that follows events may draw anew at any time: the element is found, and its place taken,
    // in one step, once nothing else lies there.
    const at = await this.wait(`(() => {
      const e = [...document.querySelectorAll(${JSON.stringify(selector)})].find(e => e.getClientRects().length &&
        e.innerText.includes(${JSON.stringify(text)}));
      if (!e) return false;
      e.scrollIntoView({ block: "center" });
      const r = e.getBoundingClientRect(), x = r.left + r.width / 2, y = r.top + r.height / 2;
      const there = document.elementFromPoint(x, y);
      return there && (e.contains(there) || there.contains(e)) && { x, y };
    })()`);
    for (const type of ["mouseMoved", "mousePressed", "mouseReleased"]) {
      await this.send("Input.dispatchMouseEvent", { type, ...at, button: "left", clickCount: 1 });
    }
  }

  async type(text) {
    await this.send("Input.insertText", { text });
  }

  async press(key) {
    const named = { Enter: 13, Escape: 27, Tab: 9, ArrowLeft: 37, ArrowRight: 39, End: 35, Home: 36 };
    const code = named[key] || key.toUpperCase().charCodeAt(0);
    const text = key.length === 1 ? key : key === "Enter" ? "\r" : undefined;
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", key, text, windowsVirtualKeyCode: code });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", key, windowsVirtualKeyCode: code });
  }

  async looks({ dark = false, width = 1280, height = 900, phone = false } = {}) {
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: phone });
    await sleep(200);
  }

  async screenshot(whole = false) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png", captureBeyondViewport: whole });
    return Buffer.from(data, "base64");
  }

  /** What a screen reader is told: { role, name } of each node that is not ignored. */
  async accessible() {
    const { nodes } = await this.send("Accessibility.getFullAXTree");
    return nodes.filter(node => !node.ignored).map(node => ({ role: node.role?.value, name: node.name?.value || "",
      focusable: node.properties?.some(p => p.name === "focusable" && p.value.value) || false }));
  }
}
