// The page of a service in a real browser, with a real service behind it whose store is filled over
// its interface. Usage: node --test dashboard_test.mjs, with DUCTILE and DUCTILE_WORKER set to the
// programs. With DUCTILE_SHOTS=FOLDER it leaves pictures of every page there.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { askByToken, asking } from "./asking.mjs";
import { Browser, chromium, until } from "./browser.mjs";

const ductile = process.env.DUCTILE || "";
const kMany = 1000;
// Were it ever markup, the page would have the attribute data-owned.
const evil = "<img src=x onerror=document.documentElement.dataset.owned=1>'\"&${1}`]]>";

if (!chromium()) {
  console.log("skipped: there is no chromium here");
  process.exit(0);
}

const folder = mkdtempSync(join(tmpdir(), "ductile-dashboard-"));
const hindrances = readFileSync(new URL("accessible.js", import.meta.url), "utf8");
let service, browser, page, port = 0;

function start() {
  service = spawn(ductile, ["up", "--folder", folder, "--devices", "4", "--policy", "fifo", "--quota", "robots=2",
    ...(port ? ["--port", String(port)] : [])], { stdio: ["ignore", "ignore", "pipe"] });
  let said = "";
  service.stderr.setEncoding("utf8").on("data", text => { said += text; });
  return until("the address of the page", async () => {
    const found = /http:\/\/127\.0\.0\.1:(\d+)\//.exec(said);
    port = found ? Number(found[1]) : port;
    return found;
  });
}
function end(signal) {
  const ended = new Promise(done => service.on("exit", done));
  service.kill(signal);
  return ended;
}
const link = () => execFileSync(ductile, ["-q", "page", "--folder", folder], { encoding: "utf8" }).trim();

const { ask, end: endAsking } = asking(folder);
const submit = (name, more = {}, options = "max_steps = 1000000") => ask("POST", "/v1/jobs", { name, team: "vision", ...more,
  spec: { job: `[train]\n${options}\nvirtual_ranks = 4\nbatch_size = 64\n[checkpoint]\nevery_steps = 50\n` } })
  .then(answer => answer.id);
const phaseOf = async id => (await ask("GET", `/v1/jobs/${id}`)).phase;
const becomes = (id, phase) => until(`job ${id} is ${phase}`, async () => await phaseOf(id) === phase);

// Where the page shows another place already, its own listener has run before this one.
async function go(hash) {
  await page.eval(`new Promise(done => {
    const before = location.hash;
    addEventListener("hashchange", () => setTimeout(done), { once: true });
    location.hash = ${JSON.stringify(hash)};
    if (location.hash === before) setTimeout(done);
  })`);
  await page.wait(`document.querySelector("h1") && document.title.includes("Ductile")`);
}
// The first click of a dialog's button with this text.
const answer = text => page.click("dialog button", text);
// Writes into inputs of the form of a new job, as typing does.
const fill = values => page.eval(`(() => { for (const [key, value] of Object.entries(${JSON.stringify(values)})) {
  const input = document.getElementById("field-" + key);
  input.value = value;
  input.dispatchEvent(new Event("input"));
  input.dispatchEvent(new Event("change"));
} })()`);
const hash = () => page.eval("location.hash");

let done = 0, first = 0;
before(async () => {
  await start();
  done = await submit("short", {}, "max_steps = 30");
  await becomes(done, "finished");
  first = await submit("first", { max_devices: 2, tier: "premium" });
  await becomes(first, "running");
  const others = [];
  const tiers = ["premium", "standard", "basic"], teams = ["vision", "text", evil, ""];
  for (let i = 0; i < kMany; ++i) {
    others.push(submit(i === 500 ? "needle in the haystack" : i % 50 === 7 ? `${evil.replace("/", "")}${i}` : `trial-${i}`,
      { tier: tiers[i % 3], team: teams[i % 4], max_devices: 1 + i % 4 }));
  }
  await Promise.all(others);
  browser = await Browser.start();
  page = await browser.page();
  await page.looks();
}, { timeout: 300000 });

after(async () => {
  endAsking();
  if (service) await end("SIGKILL");
  // Workers outlive a killed service for a while; the next one takes them over, and ends them.
  service = null;
  await start();
  await end("SIGINT");
  rmSync(folder, { recursive: true, force: true });
  await browser?.stop();  // last: whatever becomes of its folder, no process is left
}, { timeout: 120000 });

test("a link lets one browser in, and nobody else sees anything", async () => {
  const stranger = await browser.page();
  const address = `http://127.0.0.1:${port}/`;
  await stranger.open(address);
  await stranger.sees("Log in", "h1");
  const one = link();
  await page.open(one);
  await page.sees("Cluster", "h1");
  assert.equal(await page.eval("location.href.includes('login')"), false, "the code stays in the address");
  assert.equal(await page.eval("document.cookie"), "", "scripts see the cookie");
  await stranger.open(one);
  await stranger.sees("this link was used");
  assert.equal(await stranger.eval("fetch('/v1/jobs').then(a => a.status)"), 401);
  assert.equal((await stranger.eval("document.body.innerText")).includes("trial-"), false);
  // A second link, pasted.
  await stranger.click("#link");
  await stranger.type(link());
  await stranger.press("Enter");
  await stranger.sees("Cluster", "h1");
  await stranger.click("button", "Log out");
  await stranger.sees("Log in", "h1");
  assert.equal(await stranger.eval("fetch('/v1/jobs').then(a => a.status)"), 401);
  assert.deepEqual(stranger.faults, []);
});

test("no other origin gets at the page: no frame, no request", async () => {
  const other = await browser.page();
  await other.open(`http://localhost:${port}/`);
  const origin = `http://127.0.0.1:${port}`;
  assert.equal(await other.eval(`fetch("${origin}/v1/jobs", { credentials: "include" }).then(() => "read", () => "refused")`), "refused");
  const node = encodeURIComponent((await ask("GET", "/v1/nodes")).nodes[0].node);
  await other.eval(`fetch("${origin}/v1/nodes/${node}/drain", { method: "POST", mode: "no-cors", credentials: "include", body: "{}" }).catch(() => {})`);
  assert.equal((await ask("GET", "/v1/events?limit=1000")).events.some(e => e.kind === "drain"), false);
});

test("the cluster page says what is used, by whom, and what waits", async () => {
  await go("#/");
  await page.sees("4 of 4", ".tiles");
  await page.sees(`#${first} first`, "#nodes");
  await page.sees("All", "#waiting");
  assert.equal(await page.eval("document.querySelector('#timeline canvas').height > 40"), true);
});

test("a thousand jobs are listed, and only those that are seen are drawn", async () => {
  await go("#/jobs");
  await page.wait(`parseInt(document.querySelector("#count").textContent) > ${kMany}`);
  const rows = "document.querySelectorAll('.jobs tbody tr:not(.space)').length";
  assert.ok(await page.eval(rows) < 80, `${await page.eval(rows)} rows`);
  assert.ok(await page.eval("document.querySelector('.list').scrollHeight") > kMany * 30);
  await page.eval("document.querySelector('.list').scrollTop = 1e9");
  await page.wait(`document.querySelector('.jobs a[href="#/job/${first}"]')`);
  assert.ok(await page.eval(rows) < 80);
  // How long a frame takes while the list is scrolled through and searched: a figure, not a bound.
  const frames = await page.eval(`new Promise(done => {
    const list = document.querySelector(".list"), search = document.querySelector("#search"), took = [];
    let last = performance.now(), n = 0;
    const frame = now => {
      took.push(now - last);
      last = now;
      if (++n > 120) {
        search.value = "";
        search.dispatchEvent(new Event("input"));
        return done(took.slice(1).sort((a, b) => a - b));
      }
      list.scrollTop = (n % 60) * list.scrollHeight / 60;
      if (n % 20 === 0) {
        search.value = n % 40 ? "trial" : "";
        search.dispatchEvent(new Event("input"));
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  })`);
  console.log(`frames of ${kMany} jobs that are scrolled and searched: median ${frames[60].toFixed(1)} ms, longest ${frames.at(-1).toFixed(1)} ms`);
  // Each row is where it was promised to be.
  assert.equal(await page.eval(`(() => { const list = document.querySelector(".list"), out = [];
    for (const at of [0, 5000, 17000, 31000]) {
      list.scrollTop = at; list.dispatchEvent(new Event("scroll"));
    }
    return list.scrollTop; })()`) > 0, true);
});

test("jobs are found by words, by number and by phase", async () => {
  await go("#/jobs");
  await page.press("/");
  await page.type("needle hay");
  await page.wait(`document.querySelector("#count").textContent === "1 job"`);
  await page.press("Escape");
  await page.eval("document.querySelector('#search').value = ''; document.querySelector('#search').dispatchEvent(new Event('input'))");
  await page.click(".choice button", "Ended");
  await page.sees("#1 short", ".list");
  await page.wait(`document.querySelector("#count").textContent === "1 job"`);
  await page.click(".choice button", "Queued");
  const total = (await ask("GET", "/v1/overview")).jobs.queued;
  await page.wait(`document.querySelector("#count").textContent === "${total} jobs"`);
  // The first in line is the oldest of the highest tier.
  await page.eval("document.querySelector('.list').scrollTop = 1e9");
  await page.wait(`[...document.querySelectorAll(".jobs td.line")].some(td => td.textContent === "1")`);
  // What the page does not know, the service finds, by several words as well.
  await page.eval(`import("/assets/service.js").then(({ state }) => state.jobs.clear())`);
  await page.eval("document.querySelector('#search').value = 'hay needle'; document.querySelector('#search').dispatchEvent(new Event('input'))");
  await page.click(".controls button", "Search jobs that ended long ago");
  await page.wait(`document.querySelector("#count").textContent === "1 job"`);
  await page.send("Page.reload");
  await page.wait(`parseInt(document.querySelector("#count")?.textContent) > ${kMany}`);
});

test("names are text wherever they stand", async () => {
  await go("#/jobs");
  await page.eval(`document.querySelector("#search").value = "onerror"; document.querySelector("#search").dispatchEvent(new Event("input"))`);
  await page.sees("onerror", ".list");
  const list = await ask("GET", "/v1/jobs?limit=1000&part=onerror");
  await go(`#/job/${list.jobs.find(job => job.name.includes("onerror")).id}`);
  await page.sees("onerror", "h1");
  for (const hash of ["#/accounts", "#/events", "#/", `#/job/${encodeURIComponent(evil)}`, "#/job/%zz", "#/job/99999999", "#/no/such/page"]) {
    await go(hash);
    assert.equal(await page.eval("document.documentElement.dataset.owned"), undefined, hash);
    assert.equal(await page.eval("document.querySelectorAll('img, iframe, main script').length"), 0, hash);
  }
});

test("a name that turns the direction of writing turns nothing else", async () => {
  await go("#/");
  await page.wait("document.querySelector('#nodes a')");
  assert.equal(await page.eval("[...document.querySelectorAll('main a')].every(a => getComputedStyle(a).unicodeBidi === 'isolate')"), true);
});

test("a job's page: what it holds, its events, its options, its speed", async () => {
  await go(`#/job/${first}`);
  await page.sees("running", ".title");
  await page.sees("It runs on ", "#reason");
  await page.sees("Devices", ".tiles");
  await page.wait("document.querySelector('#life path')");
  await page.sees("Submitted by", "#events");
  await page.sees("train.max_steps", "#options");
  await page.sees("1000000", "#options");
  assert.equal(await page.eval("document.querySelector('#log') !== null"), true);
});

test("a job that is not there is said to be none, and nothing more is shown or asked of it", async () => {
  await go("#/job/99999999");
  await page.sees("there is no job 99999999", "#missing");
  assert.equal(await page.eval("document.querySelectorAll('main h2').length"), 0);
  assert.equal(await page.eval(`performance.getEntriesByType("resource").filter(e => e.name.includes("/99999999/")).length`), 0);
  await page.click("main a", "All jobs that are known");
  await page.wait("location.hash === '#/jobs'");
});

test("two jobs are compared: the options that differ", async () => {
  await go(`#/job/${first}`);
  await page.click("#actions button", "Compare");
  await page.click("dialog input");
  await page.type(`#${done}`);
  await answer("Compare");
  await page.sees("train.max_steps", "#comparison");
  assert.equal((await page.eval("document.querySelector('#comparison').innerText")).includes("train.batch_size"), false);
  await page.click("#comparison a", "Stop comparing");
  await page.wait("document.querySelector('#comparison').innerText === ''");
});

test("a job is resized within what it can use; what it cannot use is said in the dialog", async () => {
  const set = (label, value) => page.eval(`document.querySelector('dialog input[aria-label="${label}"]').value = ${value}`);
  const bounds = async () => {
    const job = await ask("GET", `/v1/jobs/${first}`);
    return [job.min_devices, job.max_devices];
  };
  await go(`#/job/${first}`);
  await page.click("#actions button", "Resize");
  await page.wait("document.querySelector('dialog input[aria-label=\"most devices\"]').value === '2'");
  await set("most devices", 5);
  await answer("Resize");
  await page.sees("train.virtual_ranks is 4", "dialog");
  await set("least devices", 4);
  await set("most devices", 3);
  await answer("Resize");
  await page.sees("the first must not be larger", "dialog");
  assert.deepEqual(await bounds(), [1, 2]);
  await set("least devices", 1);
  await answer("Resize");
  await page.wait("!document.querySelector('dialog')");
  assert.deepEqual(await bounds(), [1, 3]);
  await page.press("r");
  await set("most devices", 2);
  await answer("Resize");
  await page.wait("!document.querySelector('dialog')");
  await until("the bounds as before", async () => (await bounds())[1] === 2);
});

test("an array of jobs is submitted with its order, on hold; what is wrong is said first; all are cancelled at once", async () => {
  await go("#/jobs");
  await page.press("n");
  await page.sees("Submit a job", "h1");
  await fill({ name: "from the page", job: "[train]\nmax_steps = 1000000\nvirtual_ranks = 4\n", most: "4", after: `#${first}`,
    array: "0,7" });
  await page.click("#field-held");
  await page.click("main button", "Submit");
  await page.sees("{index}", "main .banner");
  await fill({ job: "seed = {index}\n[train]\nmax_steps = 1000000\nvirtual_ranks = 4\n" });
  await page.click("main button", "Submit");
  await page.sees(`2 training jobs, "from the page-0" to "from the page-7", on 1 to 4 devices each`, "dialog");
  await answer("Leave as it is");
  await page.wait("!document.querySelector('dialog')");
  const made = async () => (await ask("GET", `/v1/jobs?part=${encodeURIComponent("from the page")}`)).jobs;
  assert.deepEqual(await made(), []);
  await page.click("main button", "Submit");
  await answer("Submit");
  await page.wait("location.hash.startsWith('#/jobs?text=')");
  const jobs = (await made()).sort((a, b) => a.id - b.id);
  assert.deepEqual(jobs.map(job => job.name), ["from the page-0", "from the page-7"]);
  for (const { id } of jobs) {
    const job = await ask("GET", `/v1/jobs/${id}`);
    assert.deepEqual([job.wish, job.after, job.min_devices, job.max_devices], ["pause", [first], 1, 4]);
    assert.match(job.spec.job, id === jobs[0].id ? /^seed = 0$/m : /^seed = 7$/m);
  }
  await go(`#/job/${jobs[0].id}`);
  await page.sees(`It begins after #${first}`, "#after");
  await go(`#/jobs?text=${encodeURIComponent("from the page-")}`);
  await page.click("#together button", "Cancel all 2");
  await page.sees("from the page-7", "dialog");
  await answer("Cancel for good");
  for (const { id } of jobs) await becomes(id, "cancelled");
  await page.wait("document.querySelectorAll('#together button').length === 0");
});

test("a job is submitted another time with the same options, and refused in the service's words", async () => {
  await go(`#/job/${done}`);
  await page.click("#actions a", "Submit another");
  await page.sees(`Submit a job like #${done} short`, "h1");
  await page.wait("document.querySelector('#field-job').value.includes('max_steps = 30')");
  await fill({ name: "17" });
  await page.click("main button", "Submit");
  await answer("Submit");
  await page.sees("so its name needs a letter", "dialog");
  await page.press("Escape");
  await page.wait("!document.querySelector('dialog')");
  assert.equal(await page.eval("document.querySelector('#field-name').value"), "17");  // nothing is lost
  await fill({ name: "short again", tier: "premium" });
  await page.click("main button", "Submit");
  await answer("Submit");
  await page.sees("short again", "h1");
  const again = Number((await hash()).replace("#/job/", ""));
  assert.deepEqual(await ask("GET", `/v1/jobs/${again}/options`), await ask("GET", `/v1/jobs/${done}/options`));
  await ask("POST", `/v1/jobs/${again}/cancel`, {}).catch(() => {});  // or it has finished
});

test("a job that waits is held by a key, and a service is told to load other weights", async () => {
  await go("#/submit");
  await page.click(".choice button", "Service");
  await page.wait("document.activeElement.innerText === 'Service'");
  await fill({ run: `#${done}`, name: "digits", tier: "basic" });
  await page.click("main button", "Submit");
  await answer("Submit");
  await page.sees("digits", "h1");
  const id = Number((await hash()).replace("#/job/", ""));
  assert.equal((await ask("GET", `/v1/jobs/${id}`)).spec.run, (await ask("GET", `/v1/jobs/${done}`)).run);
  await page.press("p");
  await page.sees("It does not begin before somebody resumes it", "dialog");
  await answer("Hold");
  await becomes(id, "paused");
  await page.sees("Resume", "#actions");
  await page.press("w");
  await page.wait("document.querySelector('dialog input')");
  assert.deepEqual(await page.eval(`${hindrances}; hindrances()`), []);
  await page.eval("document.querySelector('dialog input').value = '7'");
  await answer("Reload");
  await page.sees("has no weights of step 7; there are those of the steps 30", "dialog");
  await page.eval("document.querySelector('dialog input').value = '30'");
  await answer("Reload");
  await page.sees("wants it to answer with the weights of step 30", "#events");
  await page.click("#actions button", "Reload");
  await answer("Reload");
  await page.sees("wants it to answer with the newest weights", "#events");
  await ask("POST", `/v1/jobs/${id}/cancel`, {});
  await becomes(id, "cancelled");
});

test("who may only look is offered nothing to do", async () => {
  // The page's state, not the service's: what the service refuses is tested with the service.
  const as = role => page.eval(`import("/assets/service.js").then(({ state }) => {
    globalThis.asRole = ${JSON.stringify(role)};
    if (globalThis.realOverview) return;
    globalThis.realOverview = { value: state.overview };
    Object.defineProperty(state, "overview", { get: () => globalThis.asRole
      ? { ...realOverview.value, role: globalThis.asRole, principal: "somebody", team: "vision" } : realOverview.value,
      set: value => { realOverview.value = value; } });
  })`);
  await as("read");
  await go("#/submit");
  await page.sees("Your role is \"read\"");
  assert.equal(await page.eval("document.querySelectorAll('main input, main button, main textarea').length"), 0);
  await go("#/jobs?text=trial");
  await page.wait("document.querySelectorAll('.list tbody a').length > 2");
  assert.equal(await page.eval("document.querySelectorAll('#submit, #together button').length"), 0);
  await go(`#/job/${first}`);
  await page.sees("Compare", "#actions");
  assert.equal(await page.eval("document.querySelectorAll('#actions button, #actions a').length"), 1);
  await go("#/accounts");
  await page.sees("Tiers");
  assert.equal(await page.eval("document.querySelectorAll('#tokens button').length"), 0);
  await as("submit");
  await go("#/submit");
  await page.wait("document.querySelector('#field-tier')");
  assert.deepEqual(await page.eval("[...document.querySelectorAll('.choice button, #field-tier option')].map(e => e.innerText)"),
    ["Training", "Service", "standard", "basic"]);
  await go(`#/job/${first}`);  // of the team
  await page.sees("Pause", "#actions");
  await as("");
});

test("pause, resume, cancel ask first, are carried out, and are seen without a reload", async () => {
  await go(`#/job/${first}`);
  await page.click("#actions button", "Pause");
  await answer("Leave as it is");
  await page.wait("!document.querySelector('dialog')");
  assert.equal((await ask("GET", `/v1/jobs/${first}`)).wish, "run");
  await page.press("p");
  await answer("Pause");
  await becomes(first, "paused");
  await page.sees("paused", ".title");
  await page.click("#actions button", "Resume");
  await answer("Resume");
  await page.wait("/queued|running/.test(document.querySelector('.title')?.innerText)");
  await page.click("#actions button", "Cancel");
  // Somebody else was faster: the page says what the service says.
  await ask("POST", `/v1/jobs/${first}/cancel`, {});
  await becomes(first, "cancelled");
  await answer("Cancel for good");
  await page.sees("is cancelled already", "dialog");
  await page.press("Escape");
  await page.sees("cancelled", ".title");
  await page.wait("document.querySelectorAll('#actions button').length === 1");
});

test("a job that is submitted, runs and ends is seen without a reload", async () => {
  await go("#/events");
  const id = await submit("comes and goes", { tier: "premium" }, "max_steps = 20");
  await page.sees("comes and goes", "table");
  await ask("POST", `/v1/jobs/${id}/cancel`, {});
  await page.sees("It was cancelled.", "table");
});

test("a node is drained with a reason, and taken back", async () => {
  await go("#/");
  await page.click("#nodes button", "Drain");
  await page.click("dialog input");
  await page.type("a new fan");
  await answer("Drain");
  await page.sees("a new fan", "#nodes");
  assert.equal((await ask("GET", "/v1/nodes")).nodes[0].reason, "a new fan");
  await page.click("#nodes button", "Take back");
  await answer("Take back");
  await page.wait("!document.querySelector('#nodes').innerText.includes('a new fan')");
  assert.equal((await ask("GET", "/v1/nodes")).nodes[0].drained, false);
});

test("a drain that is to come is asked for, shown, and taken back", async () => {
  await go("#/");
  await page.click("#nodes button", "Drain");
  await page.eval(`document.querySelector('dialog input[aria-label="begins in minutes"]').value = "600";
    document.querySelector('dialog input[aria-label="lasts minutes"]').value = "30"`);
  const asked = Date.now() / 1000;
  await answer("Drain");
  await page.sees("drains at ", "#nodes");
  const node = (await ask("GET", "/v1/nodes")).nodes[0];
  assert.equal(node.drained, false);
  assert.ok(Math.abs(node.drain_starts - asked - 36000) < 60, `${node.drain_starts - asked}`);
  assert.ok(Math.abs(node.drain_ends - node.drain_starts - 1800) < 1, `${node.drain_ends - node.drain_starts}`);
  await page.click("#nodes button", "Take back");
  await answer("Take back");
  await page.wait("!document.querySelector('#nodes').innerText.includes('drains at')");
  assert.equal((await ask("GET", "/v1/nodes")).nodes[0].drain_starts, undefined);
});

test("every route of the service stands on the page of its interface", async () => {
  await go("#/api");
  await page.sees("Submits a job.", "#routes");
  const api = await ask("GET", "/v1/openapi.json");
  const named = await page.eval("[...document.querySelectorAll('#routes h2')].map(h => h.innerText)");
  assert.deepEqual(named, Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map(method => `${method.toUpperCase()} ${path}`)));
  assert.ok(named.length > 20);
});

test("accounts add up to what the store says", async () => {
  await go("#/accounts");
  await page.sees("Tiers");
  const accounts = (await ask("GET", "/v1/accounts")).accounts;
  const waits = accounts.filter(a => a.tier === "premium").reduce((sum, a) => sum + (a.jobs.queued || 0) + (a.jobs.paused || 0), 0);
  await page.wait(`[...document.querySelectorAll("[aria-label=tier] tr")].some(tr => tr.cells[0].innerText === "premium" && Math.abs(tr.cells[2].innerText - ${waits}) < 5)`);
  // A team with a quota is there before its first job.
  assert.deepEqual(await page.eval(`[...document.querySelectorAll("[aria-label=team] tr")].map(tr => [...tr.cells].map(c => c.innerText))
    .find(cells => cells[0] === "robots")?.slice(0, 7)`), ["robots", "0", "0", "0", "0", "2", ""]);
});

test("an admin makes a token, which is shown once, and revokes it", async () => {
  await go("#/accounts");
  await page.click("#tokens button", "Make a token");
  await page.wait("document.querySelector('dialog select')");
  assert.deepEqual(await page.eval(`${hindrances}; hindrances()`), []);
  await page.eval(`document.querySelector('dialog input[aria-label=name]').value = "ann";
    document.querySelector('dialog input[aria-label=days]').value = "2"`);
  await answer("Make it");
  await page.sees("shown once", "dialog");
  const access = JSON.parse(await page.eval("document.querySelector('dialog pre').textContent"));
  const known = await askByToken(port, access.token, "/v1/overview");
  assert.deepEqual([known.status, known.role, known.principal], [200, "read", "ann"]);
  await answer("Close");
  await page.wait("!document.querySelector('dialog')");
  assert.equal((await page.eval("document.body.innerText")).includes(access.token), false);
  assert.ok(Math.abs((await ask("GET", "/v1/tokens")).tokens.find(token => token.name === "ann").expires - Date.now() / 1000 - 172800) < 600);
  await page.click("#tokens button", "Revoke");
  await answer("Revoke");
  await page.sees("revoked", "#tokens");
  assert.equal((await askByToken(port, access.token, "/v1/overview")).status, 401);
});

test("everything can be done by keys", async () => {
  await go("#/");
  for (const [key, title] of [["2", "Jobs"], ["3", "Accounts"], ["4", "Events"], ["5", "API"], ["1", "Cluster"]]) {
    await page.press(key);
    await page.sees(title, "h1");
  }
  await page.press("?");
  await page.sees("the next job of the list", "dialog");
  await page.press("3");  // a dialog takes all keys
  await page.press("Escape");
  await page.sees("Cluster", "h1");
  await page.press("2");
  await page.sees("Jobs", "h1");
  await page.wait("document.querySelectorAll('.list tbody a').length > 2");
  await page.press("j");
  await page.press("j");
  await page.press("k");
  const chosen = await page.eval("document.activeElement.getAttribute('href')");
  assert.match(chosen, /^#\/job\/\d+$/);
  await page.press("Enter");
  await page.wait(`location.hash === ${JSON.stringify(chosen)}`);
  // The order of Tab is that of the page: the skip link, the pages, then the content.
  await go("#/");
  await page.eval("document.activeElement.blur(); getSelection().removeAllRanges(); document.querySelector('.skip').focus()");
  const order = [];
  for (let i = 0; i < 12; ++i) {
    order.push(await page.eval("document.activeElement.innerText.split('\\n')[0]"));
    await page.press("Tab");
  }
  assert.deepEqual(order.slice(0, 8), ["Skip to the content", "Cluster", "Jobs", "Accounts", "Events", "API", "?", "Log out"]);
  // Letters can be switched off.
  await page.press("?");
  await page.click("dialog input[type=checkbox]");
  await page.press("Escape");
  await page.press("2");
  assert.equal(await page.eval("location.hash"), "#/");
  await page.eval("localStorage.removeItem('ductile-letters')");
});

test("nothing hinders people: contrast, names, headings, width, in light and dark, wide and narrow", async () => {
  const shots = process.env.DUCTILE_SHOTS || "";
  if (shots) mkdirSync(shots, { recursive: true });
  const pages = { cluster: "#/", jobs: "#/jobs", job: `#/job/${done}`, job_running: "#/job/3", accounts: "#/accounts", events: "#/events", api: "#/api",
    submit: "#/submit", submit_like: `#/submit?like=${done}`, compared: `#/job/${done}?with=${first}` };
  const faults = [];
  for (const [name, hash] of Object.entries(pages)) {
    for (const [look, how] of Object.entries({ light: {}, dark: { dark: true }, phone: { width: 390, height: 844, phone: true },
      phone_dark: { width: 390, height: 844, phone: true, dark: true } })) {
      await page.looks(how);
      await go(hash);
      await page.wait("document.querySelectorAll('main h1').length === 1");
      await page.wait(name.startsWith("job_") || name === "job" ? "document.querySelector('#life path')" : name === "compared"
        ? "document.querySelector('#comparison table')" : name === "api" ? "document.querySelector('#routes table')" : "true");
      for (const fault of await page.eval(`${hindrances}; hindrances()`)) faults.push(`${name}, ${look}: ${fault}`);
      for (const { role, name: called, focusable } of await page.accessible()) {
        if (focusable && !called && !["RootWebArea", "main"].includes(role)) faults.push(`${name}, ${look}: a ${role} without a name`);
      }
      if (shots) writeFileSync(join(shots, `${name}_${look}.png`), await page.screenshot());
    }
  }
  await page.looks();
  await page.press("?");
  for (const fault of await page.eval(`${hindrances}; hindrances()`)) faults.push(`help: ${fault}`);
  await page.press("Escape");
  assert.deepEqual([...new Set(faults)], []);
});

test("the page says that the service is away, and goes on when it is back", async () => {
  const here = `#/job/${done}`;
  await go(here);
  await end("SIGKILL");
  await page.sees("The service does not answer", "#away");
  await page.sees("#1 short", "h1");  // what was known stays
  await start();
  await page.sees("Log in", "h1");  // passes end with the service
  await page.click("#link");
  await page.type(link());
  await page.press("Enter");
  await page.sees("#1 short", "h1");
  assert.equal(await page.eval("location.hash"), here);
  await page.wait("document.querySelector('#away').hidden");
  await go("#/jobs");
  await page.wait(`parseInt(document.querySelector("#count").textContent) > ${kMany - 10}`);
});

test("no script failed, and the page's policy refused nothing", () => {
  assert.deepEqual(page.faults, []);
});
