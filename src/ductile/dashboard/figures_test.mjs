// What the page of a service computes. Run by ctest where node is, or: node --test src/ductile/dashboard
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

// As a module, whatever this version of Node takes a .js file for.
const text = readFileSync(new URL("figures.js", import.meta.url), "utf8");
const f = await import(`data:text/javascript;base64,${Buffer.from(text).toString("base64")}`);

// The same numbers in every run: a linear congruence.
let seed = 1;
const below = n => Math.floor((seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648 * n);

test("a job is found by every word of the search, or by its number", () => {
  const job = { id: 17, name: "ResNet-20", owner: "tia", team: "vision", tier: "basic", phase: "queued" };
  for (const text of ["", " ", "resnet", "VISION tia", "17", "#17", "res queued"]) {
    assert.ok(f.matches(job, text), text);
  }
  for (const text of ["resnet-21", "1", "vision gpt", "##17"]) assert.ok(!f.matches(job, text), text);
});

test("the service is asked for the longest word that a name may have, and for a number", () => {
  assert.deepEqual(f.searchOf("needle in haystack"), { part: "haystack", number: 0 });
  assert.deepEqual(f.searchOf(" #17 "), { part: "", number: 17 });
  assert.deepEqual(f.searchOf("17 cancelled Premium"), { part: "17", number: 17 });
  assert.deepEqual(f.searchOf("a  bb\tc"), { part: "bb", number: 0 });
  assert.deepEqual(f.searchOf("constructor"), { part: "constructor", number: 0 });
  assert.deepEqual(f.searchOf("#x"), { part: "", number: 0 });
  assert.deepEqual(f.searchOf(""), { part: "", number: 0 });
});

test("a wish is shown where it is not what the job already is", () => {
  const wish = (phase, asked) => f.wishOf({ phase, wish: asked });
  assert.equal(wish("paused", "pause"), "");
  assert.equal(wish("running", "pause"), "pause");
  assert.equal(wish("paused", "cancel"), "cancel");
  assert.equal(wish("cancelled", "cancel"), "");
  assert.equal(wish("queued", "run"), "");
});

test("of a command or a service what is not the default is shown, and counts of one", () => {
  assert.deepEqual(f.chosen({ command: ["sh", "-c", "x"], directory: "/a", environment: {}, retries: 0, time_limit: 0, grace: 5 }),
    [["command", '["sh","-c","x"]'], ["directory", "/a"], ["grace", "5"]]);
  assert.deepEqual(f.chosen({ run: "/r", follow: true, max_batch: 32, target: 0.5 }), [["run", "/r"], ["follow", "true"]]);
  assert.deepEqual([0, 1, 2].map(n => f.counted(n, "replica")), ["0 replicas", "1 replica", "2 replicas"]);
});

test("places in line are those that the reasons name, whatever the numbers of the jobs", () => {
  const can = "waits: it can start on 2 cpu. None of 2 are free: a holds 2";
  const job = (id, reason, phase = "queued") => ({ id, reason, phase });
  const places = f.places([job(1, `${can}; 2 other waiting jobs come before it. It starts after them`),
    job(2, `${can}; 1 other waiting job comes before it. It starts when 3 more are free`),
    job(3, `${can}. It starts when 2 more are free`), job(4, "It was just submitted."),
    job(5, `${can}; 1 other waiting job comes before it.`, "running")], "ductile");
  assert.deepEqual([...places], [[1, 3], [2, 2], [3, 1]]);
  const tiers = [{ tier: "basic" }, { tier: "premium" }, { tier: "basic" }, { tier: "standard" }];
  const fifo = f.places(tiers.map((one, i) => ({ ...one, id: i + 1, reason: "", phase: "queued" })), "fifo");
  assert.deepEqual([...fifo], [[2, 1], [4, 2], [1, 3], [3, 4]]);
});

test("the rows of a timeline hold each device once, and all that is held", () => {
  for (let round = 0; round < 200; ++round) {
    // Jobs that come and go on nodes that have room for them, second by second.
    const nodes = [{ node: "a", devices: 1 + below(5) }, { node: "b", devices: 1 + below(3) }];
    const spans = [], held = { a: [], b: [] };
    for (let t = 0; t < 40; ++t) {
      for (const node of nodes) {
        held[node.node] = held[node.node].filter(span => {
          if (below(4) > 0) return true;
          span.to = t;
          return false;
        });
        const free = node.devices - held[node.node].reduce((sum, span) => sum + span.devices, 0);
        if (free === 0 || below(3) > 0) continue;
        const span = { job: spans.length, node: node.node, devices: 1 + below(free), from: t, to: null };
        held[node.node].push(span);
        spans.push(span);
      }
    }
    const bars = f.lanes(spans, nodes, 40);
    for (let t = 0; t < 40; ++t) {
      const seen = new Map();
      for (const [row, rows, from, to, job] of bars) {
        if (t + 0.5 < from || t + 0.5 > to) continue;
        for (let i = row; i < row + rows; ++i) {
          assert.ok(!seen.has(i), `row ${i} twice at ${t}`);
          seen.set(i, job);
        }
      }
      for (const span of spans) {
        if (t + 0.5 < span.from || t + 0.5 > (span.to ?? 40)) continue;
        const own = [...seen].filter(([, job]) => job === span.job).map(([row]) => row);
        assert.equal(own.length, span.devices);
        const first = span.node === "a" ? 0 : nodes[0].devices;
        const last = first + nodes[span.node === "a" ? 0 : 1].devices;
        assert.ok(own.every(row => row >= first && row < last));
      }
    }
  }
});

test("devices over time follow the events, and time never goes back", () => {
  const events = [{ kind: "submitted", time: 100, body: {} },
    { kind: "allocation", time: 110, body: { nodes: { a: 2, b: 1 } } },
    { kind: "allocation", time: 105, body: { nodes: { a: 1 } } },  // a clock that was set back
    { kind: "queued", time: 120, body: {} }];
  assert.deepEqual(f.devicesOverTime(events, 100, 130), { x: [0, 10, 10, 20, 30], y: [0, 3, 1, 0, 0] });
  events.push({ kind: "finished", time: 125, body: {} });
  assert.deepEqual(f.devicesOverTime(events, 100, 130).x, [0, 10, 10, 20, 25]);
  assert.deepEqual(f.devicesOverTime([], 100, 130), { x: [0, 30], y: [0, 0] });
});

test("speeds: the last measurement of each number of devices, the last model", () => {
  const speed = (devices, rate, model) => ({ kind: "speed", body: { devices, samples_per_second: rate, model } });
  assert.deepEqual(f.speeds([speed(2, 150, []), speed(1, 100, [100, 190]), speed(2, 180, [100, 185]), { kind: "wish" }]),
    { measured: { x: [1, 2], y: [100, 180] }, model: { x: [1, 2], y: [100, 185] } });
  assert.deepEqual(f.speeds([]), { measured: { x: [], y: [] }, model: null });
  // A job by stages runs on whole pipelines, and on fewer devices not at all.
  assert.deepEqual(f.speeds([speed(2, 16, [0, 16, 16, 30])]).model, { x: [2, 3, 4], y: [16, 16, 30] });
});

test("options that differ, also where one job lacks them", () => {
  assert.deepEqual(f.differences({ a: "1", b: "2", c: "3" }, { a: "1", b: "5", d: "4" }),
    [["b", "2", "5"], ["c", "3", ""], ["d", "", "4"]]);
});

test("accounts add up, however they are put together", () => {
  const accounts = [];
  for (let i = 0; i < 60; ++i) {
    accounts.push({ team: `t${below(4)}`, tier: `s${below(3)}`, owner: `o${below(5)}`, devices: below(4),
      device_seconds: below(1000), jobs: { running: below(3), queued: below(3), paused: below(3), failed: below(3) } });
  }
  for (const by of ["team", "tier", "owner"]) {
    const rows = f.tally(accounts, by);
    const total = pick => rows.reduce((sum, row) => sum + pick(row), 0);
    const all = pick => accounts.reduce((sum, a) => sum + pick(a), 0);
    assert.equal(total(r => r.seconds), all(a => a.device_seconds));
    assert.equal(total(r => r.devices), all(a => a.devices));
    assert.equal(total(r => r.running), all(a => a.jobs.running));
    assert.equal(total(r => r.queued), all(a => a.jobs.queued + a.jobs.paused));
    assert.equal(total(r => r.ended), all(a => a.jobs.failed));
    assert.equal(new Set(rows.map(r => r.name)).size, rows.length);
  }
});

test("what a node has is told in few words, as far as it is known", () => {
  assert.equal(f.hardwareText({}), "");
  const hardware = { cores: 2, threads: 2, numa_nodes: 1, trouble: "", gpus: [] };
  assert.equal(f.hardwareText({ gpus: 0, free_gpus: 0, hardware }), "2 cores");
  const gpu = { name: "H100", trouble: "" };
  assert.equal(f.hardwareText({ gpus: 2, free_gpus: 1, hardware: { cores: 8, threads: 16, numa_nodes: 2,
    trouble: "one is missing", gpus: [gpu, gpu, { name: "H100", trouble: "it is gone" }] } }),
  "1 of 2 GPUs free, 2 \u00d7 H100, H100 (it is gone), 8 cores with 16 hardware threads, 2 NUMA nodes, one is missing");
});

test("every event has a sentence, also one that nobody knows", () => {
  for (const kind of ["submitted", "allocation", "wish", "run", "speed", "drain", "undrain", "stopped", "running", "batch", "devices", "node",
    "nodes", "gpu", "new"]) {
    for (const body of [undefined, {}, { reason: "why" }, { nodes: { a: 1 } }, { some: ["thing"] }]) {
      assert.equal(typeof f.sentence({ kind, body }), "string");
    }
  }
  assert.equal(f.sentence({ kind: "allocation", body: { nodes: { a: 2 }, reason: "It grows." } }), "Holds 2 of a. It grows.");
  assert.equal(f.sentence({ kind: "batch", body: { batch: 96, before: 64, devices: 3 } }),
    "Trains with a batch of 96 on 3; before it was 64.");
  assert.equal(f.sentence({ kind: "devices", body: { min_devices: 2, max_devices: 6, by: "ada" } }), "ada wants it to have 2 to 6.");
  assert.equal(f.sentence({ kind: "devices", body: { min_devices: 2, max_devices: 2, by: "ada" } }), "ada wants it to have 2.");
  assert.equal(f.sentence({ kind: "node", body: { node: "a", state: "up", why: "" } }), "Node a is up.");
  assert.equal(f.sentence({ kind: "node", body: { node: "a", state: "lost", why: "It is off." } }), "Node a is lost: It is off.");
  assert.equal(f.sentence({ kind: "gpu", body: { node: "a", gpu: "0000:19:00.0", name: "H100", trouble: "it is gone" } }),
    "GPU 0000:19:00.0 (H100) of a: it is gone.");
  assert.equal(f.sentence({ kind: "nodes", body: { nodes: ["a", "b"] } }), "The nodes are a, b.");
  assert.equal(f.sentence({ kind: "submitted", body: { owner: "ada", after: [3, 4] } }), "Submitted by ada, to begin after #3, #4.");
  assert.equal(f.sentence({ kind: "after", body: { finished: 3 } }), "#3, after which it begins, has finished.");
  assert.equal(f.sentence({ kind: "new", body: { x: 1 } }), "{\"x\":1}");
});

test("what a team is entitled to is said in few words, where there is anything", () => {
  assert.deepEqual(f.entitlement(undefined), ["", ""]);
  assert.deepEqual(f.entitlement({ team: "a", devices: 1 }), ["", ""]);
  assert.deepEqual(f.entitlement({ team: "a", quota: 4 }), ["4", ""]);
  assert.deepEqual(f.entitlement({ team: "a", quota: 4, gpu_quota: 1, share: 0.5 }), ["4 and 1 GPU", "50 %"]);
  assert.deepEqual(f.entitlement({ team: "a", quota: 4, gpu_quota: 2, share: 1 / 3 }), ["4 and 2 GPUs", "33.3 %"]);
});

test("a drain that is to come, or that ends, is said; times that nobody gave are not sent", () => {
  const clock = time => `<${time}>`;
  assert.equal(f.drainText({}, clock), "");
  assert.equal(f.drainText({ drain_starts: 5 }, clock), "drains at <5>");
  assert.equal(f.drainText({ drain_starts: 5, drain_ends: 9 }, clock), "drains at <5>, until <9>");
  assert.equal(f.drainText({ drained: true, drain_ends: 9 }, clock), "until <9>");
  assert.deepEqual(f.drainBody("why", "", " "), { reason: "why" });
  assert.deepEqual(f.drainBody("", "0", "1.5"), { reason: "", in: 0, for: 90 });
});

test("the operations of a description are listed with all that they take", () => {
  const field = (name, place, description) => ({ name, in: place, description });
  const api = { paths: { "/a/{b}": { get: { summary: "Looks.", description: "Role: read.", parameters: [field("b", "path", "which")] },
    post: { summary: "Makes.", description: "Role: submit.", parameters: [],
      requestBody: { content: { "application/json": { schema: { $ref: "#/components/schemas/B" } } } } } } },
  components: { schemas: { B: { required: ["x"], properties: { x: { description: "one" }, y: { description: "two" } } } } } };
  assert.deepEqual(f.operations(api), [
    { path: "/a/{b}", method: "GET", summary: "Looks.", role: "read", takes: [["b", "path", "which"]] },
    { path: "/a/{b}", method: "POST", summary: "Makes.", role: "submit",
      takes: [["x", "body, needed", "one"], ["y", "body", "two"]] }]);
});

test("the goodput of a job is what was noted last, and nothing of a job whose batch is fixed", () => {
  const speed = (samples_per_second, efficiency, devices = 2) => ({ kind: "speed",
    body: { samples_per_second, devices, ...(efficiency === undefined ? {} : { efficiency }) } });
  assert.equal(f.goodput([]), null);
  assert.equal(f.goodput([speed(100)]), null);
  assert.deepEqual(f.goodput([speed(100, 1), speed(200, 0.75), { kind: "wish", body: {} }]),
    ["150 per second", "75 % of 200 samples per second on 2"]);
  assert.equal(f.sentence(speed(200, 0.75)), "Takes 200 samples per second on 2, of which 75 % are progress with its batch.");
  assert.equal(f.sentence(speed(200)), "Takes 200 samples per second on 2.");
});
