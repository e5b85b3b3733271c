// The axes of charts: ticks, scales and what lies between them. Pure functions of numbers.
"use strict";

(() => {
  const { withThousands, asNumber, asPercent, asDuration, asShortDuration } = globalThis.ductile;

  // Round values within [lo, hi], about `count` of them; their distance is one of `steps` where
  // given and long enough, else 1, 2 or 5 times a power of ten.
  function ticks(lo, hi, count, steps) {
    const rough = (hi - lo) / Math.max(count, 1);
    if (!(rough > 0) || !Number.isFinite(rough)) return { values: [lo], step: 1 };
    let step = steps && steps.find(s => s >= rough * 0.999);
    if (!step) {
      const power = Math.pow(10, Math.floor(Math.log10(rough)));
      step = [1, 2, 5, 10].find(m => m * power >= rough * 0.999) * power;
    }
    const values = [];
    const end = Math.floor(hi / step + 1e-9);
    for (let i = Math.ceil(lo / step - 1e-9); i <= end; ++i) values.push(i * step || 0);
    return { values, step };
  }

  // 1, 2 and 5 times powers of ten within [lo, hi]; fewer where there are many, even distances where
  // these are not two. lo > 0.
  function logTicks(lo, hi, count) {
    let values = [];
    for (let p = Math.floor(Math.log10(lo)); p <= Math.ceil(Math.log10(hi)); ++p) {
      for (const m of [1, 2, 5]) {
        const v = +`${m}e${p}`;
        if (v >= lo * 0.999 && v <= hi * 1.001) values.push(v);
      }
    }
    if (values.length < 2) return ticks(lo, hi, count).values;
    while (values.length > count + 2) values = values.filter((_, i) => i % 2 === 0);
    return values;
  }

  const timeSteps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600,
    43200, 86400, 172800, 604800, 2592000];

  // The same for seconds on a logarithmic axis.
  function logTimeTicks(lo, hi, count) {
    let values = [1, 10, 60, 300, 1800, 7200, 36000, 86400, 604800, 2592000]
      .filter(v => v >= lo * 0.999 && v <= hi * 1.001);
    if (values.length < 2) values = logTicks(lo, hi, count);
    while (values.length > count + 2) values = values.filter((_, i) => i % 2 === 0);
    return values;
  }

  // A tick's label; `step` is the distance to the next.
  function tickText(v, step, unit) {
    if (unit === "duration") return v === 0 ? "0" : asShortDuration(v);
    if (unit === "percent") {
      const digits = Math.max(0, -Math.floor(Math.log10(step * 100) + 1e-9));
      return `${+(v * 100).toFixed(digits)} %`;
    }
    const size = Math.abs(v);
    if (size === 0) return "0";
    // As many as tell it from the next.
    const needed = Math.floor(Math.log10(size)) - Math.floor(Math.log10(step)) + 1;
    const digits = Math.min(Math.max(needed || 0, 4), 15);
    if (size >= 1e6) return `${+(v / 1e6).toPrecision(digits)} M`;
    if (size >= 1e4 || (step >= 1000 && size >= 1000)) return `${+(v / 1e3).toPrecision(digits)} k`;
    if (size < 1e-3) return (+v.toPrecision(digits)).toExponential();
    return String(+v.toPrecision(digits));
  }

  // A value as the legend names it.
  function valueText(v, unit) {
    if (unit === "percent") return asPercent(v);
    if (unit === "duration") return asDuration(v);
    if (unit === "count") return withThousands(v);
    if (unit === "step") return `step ${withThousands(v)}`;
    if (unit === "epoch") return `epoch ${v.toFixed(2)}`;
    // Of a number that is large and whole the digits behind the point say nothing.
    const isLarge = Math.abs(v) >= 1e3 && Math.abs(v) < 1e6;
    return isLarge && Number.isInteger(v) ? withThousands(v) : asNumber(v);
  }

  // Maps [lo, hi] to the pixels [from, to], and back.
  function scale(lo, hi, from, to, log) {
    const f = log ? Math.log : v => v;
    const length = f(hi) - f(lo) || 1;
    return {
      lo, hi,
      at: v => from + (f(v) - f(lo)) / length * (to - from),
      value: px => {
        const v = f(lo) + (px - from) / (to - from) * length;
        return log ? Math.exp(v) : v;
      },
    };
  }

  // Exponential average without the bias of its start, over the drawn points.
  function smoothed(values, weight) {
    const out = [];
    let sum = 0, norm = 0;
    for (const v of values) {
      sum = sum * weight + v * (1 - weight);
      norm = norm * weight + (1 - weight);
      out.push(sum / norm);
    }
    return out;
  }

  // The place of the value nearest to x in ascending values.
  function nearest(xs, x) {
    let lo = 0, hi = xs.length - 1;
    while (hi - lo > 1) {
      const mid = (lo + hi) >> 1;
      if (xs[mid] <= x) lo = mid; else hi = mid;
    }
    return Math.abs(xs[hi] - x) < Math.abs(xs[lo] - x) ? hi : lo;
  }

  // The places of the values that no later one lies below: of x values that went back, those of the
  // way that was taken in the end.
  function ascending(xs) {
    const out = [];
    let least = Infinity;
    for (let i = xs.length - 1; i >= 0; --i) {
      if (!(xs[i] <= least)) continue;
      least = xs[i];
      out.push(i);
    }
    return out.reverse();
  }

  // Least and greatest of numbers; [Infinity, -Infinity] of none.
  function extent(lists) {
    let lo = Infinity, hi = -Infinity;
    for (const list of lists) {
      for (const v of list) {
        if (v === null) continue;
        if (v < lo) lo = v;
        if (v > hi) hi = v;
      }
    }
    return [lo, hi];
  }

  // The first and one past the last point that a chart from `lo` to `hi` needs: one more at each
  // side than lies inside, so that lines run on to the edge.
  function visible(xs, lo, hi) {
    let begin = 0, end = xs.length;
    while (begin + 1 < end && xs[begin + 1] < lo) ++begin;
    while (end - 1 > begin && xs[end - 2] > hi) --end;
    return [begin, end];
  }

  // What the y axis spans for the values `lo` to `hi`: [lo, hi] of the axis.
  function ySpan(lo, hi, spec, log) {
    if (spec.range) return spec.range;
    if (spec.target !== undefined && !(log && spec.target <= 0)) {
      lo = Math.min(lo, spec.target);
      hi = Math.max(hi, spec.target);
    }
    if (spec.zero) lo = Math.min(lo, 0);
    if (lo === hi) {
      const d = Math.abs(lo) * 0.1 || 1;
      hi += d;
      if (!spec.zero) lo -= d;
    }
    if (log) return [lo * 0.95, hi * 1.05];
    const margin = (hi - lo) * 0.04;
    if (!spec.zero) lo = lo >= 0 ? Math.max(lo - margin, 0) : lo - margin;
    hi = spec.unit === "percent" && hi <= 1 ? Math.min(hi + margin, 1) : hi + margin;
    return [lo, hi];
  }

  Object.assign(globalThis.ductile, {
    ascending, extent, logTicks, logTimeTicks, nearest, scale, smoothed, tickText, ticks, timeSteps, valueText,
    visible, ySpan,
  });
})();
