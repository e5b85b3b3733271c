// The arithmetic of the pages' scripts. Run by ctest where node is, or: node --test src/ductile/page
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import "./text.js";
import "./axes.js";
import "./charts.js";

const d = globalThis.ductile;

// The same numbers in every run: a linear congruence, from 0 to 1.
let seed = 1;
const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
const whole = (lo, hi) => lo + Math.floor(random() * (hi - lo + 1));
const times = (n, f) => { for (let i = 0; i < n; ++i) f(); };

test("numbers read as they do in C++", () => {
  const functions = { with_thousands: d.withThousands, as_number: d.asNumber,
    as_percent: d.asPercent, as_duration: d.asDuration, as_short_duration: d.asShortDuration };
  const special = { nan: NaN, inf: Infinity, "-inf": -Infinity };
  const cases = JSON.parse(readFileSync(new URL("numbers_cases.json", import.meta.url), "utf8"));
  assert.deepEqual(Object.keys(cases).sort(), Object.keys(functions).sort());
  for (const [name, list] of Object.entries(cases)) {
    for (const [value, text] of list) {
      assert.equal(functions[name](value in special ? special[value] : value), text,
        `${name} of ${value}`);
    }
  }
});

test("every number has a text", () => {
  const values = [0, -0, 1e300, -1e300, 5e-324, NaN, Infinity, -Infinity];
  times(200, () => values.push((random() - 0.5) * Math.pow(10, whole(-20, 20))));
  for (const v of values) {
    for (const f of [d.withThousands, d.asNumber, d.asPercent, d.asDuration, d.asShortDuration]) {
      assert.match(f(v), /\S/);
    }
    for (const unit of ["percent", "duration", "count", "step", "epoch", "number", undefined]) {
      assert.match(d.valueText(v, unit), /\S/);
    }
  }
});

test("a legend shows a large whole number as one", () => {
  assert.deepEqual([31908, -4096, 31908.5, 64, 2e6].map(v => d.valueText(v, "number")),
    ["31,908", "-4,096", "31908.50", "64.00", "2.00e+06"]);
});

test("ticks are round, even, inside, and tell each other apart", () => {
  times(2000, () => {
    const lo = (random() - 0.3) * Math.pow(10, whole(-3, 5));
    const hi = lo + random() * Math.pow(10, whole(-2, 5)) + 1e-3;
    const count = whole(2, 12);
    const { values, step } = d.ticks(lo, hi, count);
    assert.ok(values.length <= 2 * count + 2, `${values.length} ticks for ${count}`);
    assert.ok(values.length >= Math.floor(count / 2.5) - 1);
    assert.ok([1, 2, 5].some(m => Math.abs(Math.log10(step / m) - Math.round(Math.log10(step / m))) < 1e-9));
    values.forEach((v, i) => {
      assert.ok(v >= lo - step * 1e-6 && v <= hi + step * 1e-6);
      if (i > 0) assert.ok(Math.abs(v - values[i - 1] - step) < step * 1e-6);
    });
  });
  for (const [lo, hi, unit] of [[0, 1, "percent"], [0.91, 0.93, "percent"], [0, 468, "step"],
    [0, 12000, "number"], [0, 3e7, "number"], [0, 0.004, "number"], [0.2, 0.24, "number"],
    [0, 2.1e-4, "number"], [9e-5, 1.1e-4, "number"], [123450, 123470, "step"],
    [5123450, 5123470, "step"], [0.2701, 0.27018, "number"], [-3e-4, 1e-4, "number"]]) {
    const { values, step } = d.ticks(lo, hi, 5);
    const texts = values.map(v => d.tickText(v, step, unit));
    assert.equal(new Set(texts).size, texts.length, texts.join(" | "));
  }
  const { values, step } = d.ticks(0, 2e-4, 4);
  assert.deepEqual(values.map(v => d.tickText(v, step, "number")),
    ["0", "5e-5", "1e-4", "1.5e-4", "2e-4"]);
});

test("ticks of time stand at times that people name", () => {
  const texts = (lo, hi, count) => {
    const { values, step } = d.ticks(lo, hi, count, d.timeSteps);
    return values.map(v => d.tickText(v, step, "duration"));
  };
  assert.deepEqual(texts(0, 200, 4), ["0", "60 s", "2 min", "3 min"]);
  assert.deepEqual(texts(0, 3 * 3600, 6), ["0", "30 min", "60 min", "90 min", "2 h", "2.5 h", "3 h"]);
  assert.deepEqual(texts(0, 5 * 86400, 5), ["0", "24 h", "2 d", "3 d", "4 d", "5 d"]);
});

test("an axis of nothing has one tick", () => {
  assert.deepEqual(d.ticks(3, 3, 5).values, [3]);
  assert.deepEqual(d.ticks(0, Infinity, 5).values, [0]);
  assert.deepEqual(d.ticks(0, NaN, 5).values, [0]);
});

test("logarithmic ticks lie inside and are few", () => {
  times(500, () => {
    const lo = Math.pow(10, whole(-9, 6) + random()), hi = lo * (1.5 + random() * Math.pow(10, whole(0, 9)));
    for (const values of [d.logTicks(lo, hi, 5), d.logTimeTicks(lo, hi, 5)]) {
      assert.ok(values.length <= 7);
      for (const v of values) assert.ok(v >= lo * 0.998 && v <= hi * 1.002);
      assert.deepEqual(values, [...values].sort((a, b) => a - b));
    }
  });
  for (const [lo, hi] of [[0.58, 0.93], [2.2, 4.4], [0.25, 0.45], [1.1e-5, 1.3e-5]]) {
    const values = d.logTicks(lo, hi, 5);
    assert.ok(values.length >= 2, `${values.length} from ${lo} to ${hi}`);
    const texts = values.map(v => d.tickText(v, values[1] - values[0], "number"));
    assert.equal(new Set(texts).size, texts.length, texts.join(" | "));
  }
  assert.deepEqual(d.logTicks(0.1, 10, 5), [0.1, 0.2, 0.5, 1, 2, 5, 10]);
  assert.deepEqual(d.logTimeTicks(1, 1e5, 8), [1, 10, 60, 300, 1800, 7200, 36000, 86400]);
});

test("a scale and its inverse agree", () => {
  times(500, () => {
    const log = random() < 0.5, lo = log ? Math.pow(10, whole(-5, 5)) : (random() - 0.5) * 1e4;
    const s = d.scale(lo, lo + random() * 1e4 + 1e-3, whole(0, 60), whole(200, 900), log);
    const v = s.lo + random() * (s.hi - s.lo);
    assert.ok(Math.abs(s.value(s.at(v)) - v) <= 1e-9 * (Math.abs(v) + s.hi - s.lo));
  });
  const s = d.scale(5, 5, 0, 100, false);  // no length
  assert.ok(Number.isFinite(s.at(5)));
});

test("smoothing is the weighted mean of all before", () => {
  const values = Array.from({ length: 50 }, random);
  for (const weight of [0, 0.6, 0.98]) {
    const slow = values.map((_, i) => {
      let sum = 0, norm = 0;
      for (let k = 0; k <= i; ++k) {
        sum += values[k] * Math.pow(weight, i - k);
        norm += Math.pow(weight, i - k);
      }
      return sum / norm;
    });
    d.smoothed(values, weight).forEach((v, i) => assert.ok(Math.abs(v - slow[i]) < 1e-12));
  }
  assert.deepEqual(d.smoothed([3, 3, 3], 0.9).map(v => +v.toFixed(12)), [3, 3, 3]);
});

test("the nearest point and the visible ones are those that a search of all finds", () => {
  times(500, () => {
    const xs = Array.from({ length: whole(1, 30) }, () => whole(0, 40)).sort((a, b) => a - b);
    const x = random() * 50 - 5;
    const least = Math.min(...xs.map(v => Math.abs(v - x)));
    assert.equal(Math.abs(xs[d.nearest(xs, x)] - x), least);
    const lo = random() * 40, hi = lo + random() * 10;
    const [begin, end] = d.visible(xs, lo, hi);
    // All inside are among them, with at most one more at each side.
    xs.forEach((v, i) => { if (v >= lo && v <= hi) assert.ok(i >= begin && i < end); });
    assert.ok(xs.slice(begin + 1, end).every(v => v >= lo));
    assert.ok(xs.slice(begin, end - 1).every(v => v <= hi));
  });
});

test("of values that go back those of the last way stay", () => {
  assert.deepEqual(d.ascending([1, 2, 3, 2, 2.5, 4]), [0, 1, 3, 4, 5]);
  assert.deepEqual(d.ascending([1, 1, 2]), [0, 1, 2]);
  assert.deepEqual(d.ascending([]), []);
});

test("the y axis holds every value, and the target", () => {
  times(500, () => {
    const a = (random() - 0.3) * 100, lo = Math.min(a, a * random()), hi = Math.max(a, lo);
    const target = random() < 0.5 ? (random() - 0.3) * 100 : undefined;
    const [from, to] = d.ySpan(lo, hi, { target, zero: random() < 0.5 }, false);
    assert.ok(from <= lo && to >= hi && from < to);
    if (target !== undefined) assert.ok(from <= target && to >= target);
  });
  assert.deepEqual(d.ySpan(0.2, 0.9, { range: [0, 1] }, false), [0, 1]);
  const [, top] = d.ySpan(0.5, 0.999, { unit: "percent" }, false);
  assert.equal(top, 1);  // no more than all of it
});

test("least and greatest leave out what is no number", () => {
  assert.deepEqual(d.extent([[3, null, 1], [], [2]]), [1, 3]);
  assert.deepEqual(d.extent([]), [Infinity, -Infinity]);
});
