// Numbers as people read them: the same as numbers.h, and held to the same answers by
// numbers_cases.json. None throws; NaN and infinite values have a text too.
"use strict";

(() => {
  const unusual = v => (Number.isNaN(v) ? "nan" : v > 0 ? "inf" : "-inf");

  // Exponents have two digits at least, as in C++.
  const exponential = (v, digits) =>
    v.toExponential(digits).replace(/e([+-])(\d)$/, (_, s, d) => `e${s}0${d}`);

  function withThousands(value) {
    if (!Number.isFinite(value)) return unusual(value);
    if (Math.abs(value) >= 1e15) return exponential(value, 2);
    if (value === 0) return "0";
    if (Math.abs(value) < 10 && value !== Math.round(value)) return value.toFixed(1);
    return value.toFixed(0).replace(/\B(?=(\d{3})+$)/g, ",");
  }

  function asNumber(value) {
    if (!Number.isFinite(value)) return unusual(value);
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e6) return exponential(value, 2);
    return value.toFixed(size < 0.1 ? 4 : size < 1 ? 3 : 2);
  }

  const asPercent = share =>
    Number.isFinite(share) ? (100 * share).toFixed(2) + " %" : unusual(share);

  const twoDigits = n => String(n).padStart(2, "0");

  function asDuration(seconds) {
    if (!Number.isFinite(seconds) || seconds < 0) return "unknown";
    if (seconds > 0 && seconds < 0.0995) return (1000 * seconds).toFixed(1) + " ms";
    if (seconds > 0 && seconds < 9.95) return seconds.toFixed(1) + " s";
    const s = Math.round(Math.min(seconds, 1e15));
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${twoDigits(s % 60)} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${twoDigits(Math.floor(s / 60) % 60)} min`;
    return `${Math.floor(s / 86400)} d ${twoDigits(Math.floor(s / 3600) % 24)} h`;
  }

  // Units by the least value shown in them: where three digits of the one below would round up.
  const units = [{ from: 172800, seconds: 86400, name: "d" }, { from: 7200, seconds: 3600, name: "h" },
    { from: 120, seconds: 60, name: "min" }, { from: 0.9995, seconds: 1, name: "s" },
    { from: 9.995e-4, seconds: 1e-3, name: "ms" }, { from: 0, seconds: 1e-6, name: "us" }];

  function asShortDuration(value) {
    if (!Number.isFinite(value)) return "unknown";
    if (value === 0) return "0 s";
    const { seconds, name } = units.find(unit => Math.abs(value) >= unit.from);
    const inUnit = value / seconds;
    if (Math.abs(inUnit) >= 999.5) return `${withThousands(inUnit)} ${name}`;
    return `${+inUnit.toPrecision(3)} ${name}`;
  }

  Object.assign(globalThis.ductile ??= /** @type {Ductile} */ ({}), {
    withThousands, asNumber, asPercent, asDuration, asShortDuration,
  });
})();
