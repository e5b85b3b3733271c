// What the form of a new job means. Run by ctest where node is, or: node --test src/ductile/dashboard
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

// As a module, whatever this version of Node takes a .js file for.
const text = readFileSync(new URL("submission.js", import.meta.url), "utf8");
const f = await import(`data:text/javascript;base64,${Buffer.from(text).toString("base64")}`);

// The same numbers in every run: a linear congruence.
let seed = 1;
const below = n => Math.floor((seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648 * n);
const form = more => ({ ...f.kNothing, ...more });

test("a command line is read as a shell reads it, without expanding anything", () => {
  for (const [line, words] of [["", []], ["  a  b\tc\n", ["a", "b", "c"]], ["python 'my file.py' --lr=0.1", ["python", "my file.py", "--lr=0.1"]],
    ["a\\ b \"c \\\" d\" ''", ["a b", "c \" d", ""]], ["echo $HOME *", ["echo", "$HOME", "*"]], ["'a'b\"c\"", ["abc"]],
    ["'\\'", ["\\"]], ["\"\\n\"", ["\\n"]]]) {
    assert.deepEqual(f.wordsOf(line), words, line);
  }
  for (const line of ["'a", "a \"b", "x'"]) assert.throws(() => f.wordsOf(line), /not closed/, line);
});

test("any words become a line that reads as these words", () => {
  const letters = ["a", "B", "9", " ", "'", "\"", "\\", "$", "\n", "=", "-", "\u00e9", "*", "#"];
  for (let round = 0; round < 500; ++round) {
    const words = Array.from({ length: below(5) }, () => Array.from({ length: below(6) }, () => letters[below(letters.length)]).join(""));
    assert.deepEqual(f.wordsOf(f.lineOf(words)), words, JSON.stringify(words));
  }
});

test("the numbers of an array are those of ductile submit --array", () => {
  assert.deepEqual(f.indicesOf("0-3"), [0, 1, 2, 3]);
  assert.deepEqual(f.indicesOf("5, 1,3"), [1, 3, 5]);
  assert.deepEqual(f.indicesOf("10-30:10,2"), [2, 10, 20, 30]);
  assert.deepEqual(f.indicesOf("7"), [7]);
  assert.equal(f.indicesOf("0-999").length, 1000);
  for (const wrong of ["", "a", "-1", "1-", "3-1", "1,1", "1-3,2", "0-1000", "0-9:0", "1;2", "1e3", "0-99999999999999999", "1-2-3", "1,,2"]) {
    assert.throws(() => f.indicesOf(wrong), /such as 0-9/, wrong);
  }
});

test("a training job is what was written, with what was left empty left out", () => {
  assert.deepEqual(f.submissionOf(form({ job: "[train]\nepochs = 2\n", name: " trial ", least: "1", most: "4" })),
    { name: "trial", tier: "standard", kind: "train", min_devices: 1, max_devices: 4, spec: { job: "[train]\nepochs = 2\n" } });
  const ordered = f.submissionOf(form({ job: "x", after: "#3, 17 4", held: true, team: "vision", tier: "basic" }));
  assert.deepEqual([ordered.after, ordered.held, ordered.team, ordered.tier, ordered.max_devices], [[3, 17, 4], true, "vision", "basic", 1]);
  const placed = f.submissionOf(form({ job: "x", region: "eu", transfer: "1.5", stay: true }));
  assert.deepEqual([placed.region, placed.transfer, placed.movable], ["eu", 90, false]);
  for (const [wrong, why] of [[{ job: " " }, /is empty/], [{ job: "x", least: "0" }, /from 1 on/], [{ job: "x", least: "1.5" }, /whole/],
    [{ job: "x", least: "3", most: "2" }, /fewer than the least/], [{ job: "x", after: "first" }, /by their numbers/],
    [{ job: "x", array: "0-2" }, /\{index\}/]]) {
    assert.throws(() => f.submissionOf(form(wrong)), why, JSON.stringify(wrong));
  }
});

test("a command has its words, its variables and its limits; minutes become seconds", () => {
  const body = f.submissionOf(form({ kind: "command", command: "python train.py 'a b'", directory: " /home/me ",
    environment: "A=1\n\nB==x \n__proto__=y\n", retries: "3", limit: "1.5", grace: "0", gpus: "2", least: "2", most: "9" }));
  assert.deepEqual([body.min_devices, body.max_devices], [2, 2]);
  assert.deepEqual(JSON.parse(JSON.stringify(body.spec)), JSON.parse(`{"command":["python","train.py","a b"],"directory":"/home/me",
    "environment":{"A":"1","B":"=x ","__proto__":"y"},"retries":3,"time_limit":90,"grace":0,"gpus":2}`));
  for (const wrong of [{ environment: "A" }, { environment: "=x" }, { retries: "-1" }, { retries: "1.5" }, { limit: "soon" }]) {
    assert.throws(() => f.submissionOf(form({ kind: "command", command: "x", directory: "/", ...wrong })), Error, JSON.stringify(wrong));
  }
});

test("a service has a name that addresses have, and its weights", () => {
  const { spec, ...body } = f.submissionOf(form({ kind: "serve", run: " /runs/7-digits ", name: "my digits!", version: "0", batch: "8", port: "8000" }));
  assert.deepEqual(spec, { run: "/runs/7-digits", model: "my_digits_", follow: false, version: 0, max_batch: 8, port: 8000 });
  assert.equal(body.name, "my digits!");
  assert.throws(() => f.submissionOf(form({ kind: "serve", run: "/r", array: "0-3" })), /not of services/);
});

test("an array is a job for each number, which differ in what they run alone", () => {
  const train = f.submissionOf(form({ job: "seed = {index}\nname = \"s{index}\"\n", array: "3,1", name: "sweep" }));
  assert.equal(train.spec, undefined);
  assert.deepEqual(train.array, [{ index: 1, spec: { job: "seed = 1\nname = \"s1\"\n" } }, { index: 3, spec: { job: "seed = 3\nname = \"s3\"\n" } }]);
  const command = f.submissionOf(form({ kind: "command", command: "x {index}", directory: "/", array: "0-1" }));
  assert.deepEqual(command.array.map(one => [one.spec.environment.DUCTILE_ARRAY_INDEX, one.spec.command[1]]), [["0", "{index}"], ["1", "{index}"]]);
});

test("what is about to be submitted is a sentence", () => {
  const text = more => f.submissionText(f.submissionOf(form({ job: "seed = {index}", name: "a", ...more })));
  assert.equal(text({}), "The training job \"a\" on 1 device, tier standard.");
  assert.equal(text({ least: "2", most: "4", after: "1 2", held: true }),
    "The training job \"a\" on 2 to 4 devices, tier standard. To begin after #1, #2. To begin when somebody resumes it.");
  assert.equal(text({ array: "0-9" }), "10 training jobs, \"a-0\" to \"a-9\", on 1 device each, tier standard.");
  assert.equal(text({ array: "4" }), "The training job \"a-4\" on 1 device, tier standard.");
});

test("options stand in the sections that they belong to, each section once", () => {
  assert.equal(f.jobFileOf([["train.epochs", "2"], ["seed", "7"], ["optimizer.adam.beta1", "0.8"], ["train.method", "\"kakurenbo\""], ["name", "\"a\""]]),
    "seed = 7\nname = \"a\"\n\n[train]\nepochs = 2\nmethod = \"kakurenbo\"\n\n[optimizer.adam]\nbeta1 = 0.8\n");
  assert.equal(f.jobFileOf([]), "");
});

test("a job that is submitted another time is the same one", () => {
  const job = more => ({ id: 3, name: "a", team: "t", tier: "basic", min_devices: 2, max_devices: 2, ...more });
  const again = (one, options = undefined) => JSON.parse(JSON.stringify(f.submissionOf(f.formOf(one, options))));
  const command = { command: ["python", "a b.py", "--x=$y"], directory: "/home/me", environment: { PATH: "/bin", E: "" }, retries: 2,
    time_limit: 90, grace: 30, gpus: 1 };
  assert.deepEqual(again(job({ kind: "command", spec: command })),
    { name: "a", team: "t", tier: "basic", kind: "command", min_devices: 2, max_devices: 2, spec: command });
  const serve = { run: "/runs/7-digits", model: "a", follow: true, max_batch: 8, target: 0.25, version: 0, port: 8000, max_delay: 5 };
  assert.deepEqual(again(job({ kind: "serve", spec: serve, max_devices: 5 })).spec, serve);
  const train = again(job({ kind: "train", spec: { job: "all of them" }, region: "eu", transfer: 30, movable: false }),
    { options: { "train.epochs": "2", "seed": "7", "train.batch_size": "8" }, changed: ["train.epochs", "seed"] });
  assert.deepEqual([train.spec.job, train.region, train.transfer, train.movable], ["seed = 7\n\n[train]\nepochs = 2\n", "eu", 30, false]);
  assert.equal(again(job({ kind: "train", spec: {} }), { options: {}, changed: [] }).spec.job.startsWith("#"), true);
  const plans = [{ virtual_ranks: 2, shard_optimizer: true, pipelined: "micro_batches = 4\n", seconds: 0.5 },
    { virtual_ranks: 4, shard_optimizer: true, pipelined: "micro_batches = 8\n", seconds: 0.25 }];
  assert.deepEqual(again(job({ kind: "train", spec: { job: "x = 1", plans } })).spec, { job: "x = 1", plans });
});
