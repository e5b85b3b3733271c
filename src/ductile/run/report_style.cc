#include "ductile/run/report_impl.h"

namespace ductile::run::report {

const std::string_view kStyle = R"css(
:root {
  --page: #f6f6f3; --card: #fdfdfc; --ink: #14140f; --soft: #52514e; --muted: #83817a;
  --line: #e3e2db; --grid: #ebeae4; --accent: #2a78d6;
  --c0: #2a78d6; --c1: #e0622d; --c2: #1a9e70; --c3: #8a5cd0; --c4: #b88a00; --c5: #c8467f;
  --good: #14713f; --good-bg: #ddf2e4; --notice: #8a5300; --notice-bg: #fbecd0;
  --bad: #b3261e; --bad-bg: #fbe1de; --plain-bg: #efeee8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f0f0e; --card: #191918; --ink: #f4f3ee; --soft: #c3c2b7; --muted: #8d8b82;
    --line: #2d2d2a; --grid: #262624; --accent: #5598e7;
    --c0: #4a93ea; --c1: #ec7543; --c2: #2bb483; --c3: #a583e3; --c4: #d3a82a; --c5: #e070a0;
    --good: #7fd6a2; --good-bg: #16301f; --notice: #f0be6a; --notice-bg: #33270f;
    --bad: #ff9b92; --bad-bg: #3a1a18; --plain-bg: #262624;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  -webkit-text-size-adjust: 100%; }
main { max-width: 1200px; margin: 0 auto; padding: 36px 28px 48px; }
header { margin-bottom: 22px; }
.eyebrow { color: var(--muted); font-size: 13px; }
.title { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 14px; }
h1 { margin: 0; font-size: 30px; line-height: 1.25; font-weight: 650; letter-spacing: -0.015em;
  overflow-wrap: anywhere; }
h2 { margin: 0 0 12px; font-size: 18px; font-weight: 620; letter-spacing: -0.005em; }
section { margin-top: 34px; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { margin: 0; overflow: auto; max-height: 460px; }
.about { margin: 6px 0 0; color: var(--soft); overflow-wrap: anywhere; }
.about code { font-size: 13px; }
.status, .kind { display: inline-block; border-radius: 6px; font-weight: 600; white-space: nowrap; }
.status { padding: 2px 10px; font-size: 13px; }
.kind { padding: 1px 8px; font-size: 12.5px; font-weight: 500; }
.plain { background: var(--plain-bg); color: var(--soft); }
.good { background: var(--good-bg); color: var(--good); }
.notice { background: var(--notice-bg); color: var(--notice); }
.bad { background: var(--bad-bg); color: var(--bad); }
.banner { margin: 0 0 10px; padding: 10px 14px; border-radius: 8px; background: var(--bad-bg);
  color: var(--bad); overflow-wrap: anywhere; }
.muted, .empty { color: var(--muted); }
.empty { margin: 0; }
.card, .tile, .panel { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.card { padding: 16px 18px; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 12px; }
.tile { flex: 1 1 calc((100% - (var(--per-row) - 1) * 12px) / var(--per-row)); min-width: 0;
  padding: 13px 16px 14px; }
.tile .label { color: var(--soft); font-size: 13px; }
.tile .value { font-size: 21px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; line-height: 1.35; font-weight: 620; letter-spacing: -0.01em;
  font-variant-numeric: tabular-nums; }
.tiles.main .value { font-size: 34px; line-height: 1.2; margin: 2px 0; }
.tile .note { color: var(--muted); font-size: 12.5px; line-height: 1.4; overflow-wrap: anywhere; }
.bar { display: flex; flex-wrap: wrap; align-items: center; justify-content: space-between;
  gap: 6px 20px; margin-bottom: 12px; }
.bar h2 { margin: 0; }
#controls { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 18px; font-size: 13px;
  color: var(--soft); }
.choice { display: inline-flex; border: 1px solid var(--line); border-radius: 7px;
  overflow: hidden; background: var(--card); }
button { font: inherit; color: var(--soft); background: var(--card); border: 1px solid var(--line);
  border-radius: 7px; padding: 3px 11px; cursor: pointer; }
.choice button { border: 0; border-radius: 0; }
.choice button + button { border-left: 1px solid var(--line); }
button[aria-pressed="true"] { background: var(--plain-bg); color: var(--ink); font-weight: 600; }
button:hover { color: var(--ink); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
label { display: inline-flex; align-items: center; gap: 7px; }
input { accent-color: var(--accent); margin: 0; }
input[type="range"] { width: 96px; }
.panels { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; }
.panel:last-child:nth-child(odd) { grid-column: 1 / -1; }
.panel { padding: 13px 16px 8px; min-width: 0; }
.panel-head { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 14px;
  align-items: baseline; min-height: 24px; }
.panel h3 { margin: 0; font-size: 14px; font-weight: 620; }
.legend { display: flex; flex-wrap: wrap; gap: 0 14px; font-size: 13px; color: var(--soft);
  font-variant-numeric: tabular-nums; }
.legend b { color: var(--ink); font-weight: 600; }
.legend i { display: inline-block; width: 12px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; }
.legend .at { color: var(--muted); }
svg { display: block; width: 100%; overflow: visible; touch-action: pan-y; }
svg text { fill: var(--muted); font-size: 11.5px; font-variant-numeric: tabular-nums; }
svg:focus { outline: none; }
svg:focus-visible { outline: 2px solid var(--accent); outline-offset: 4px; border-radius: 4px; }
.gridline { stroke: var(--grid); } .axis { stroke: var(--line); }
.curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.raw { opacity: 0.28; stroke-width: 1; }
.cross { stroke: var(--muted); stroke-width: 1; }
.target { stroke: var(--good); stroke-dasharray: 5 4; opacity: 0.8; }
svg text.target-text { fill: var(--good); }
.mark { stroke-width: 1; stroke-dasharray: 2 3; stroke: var(--muted); }
.mark.notice { stroke: var(--notice); } .mark.good { stroke: var(--good); }
.mark.bad { stroke: var(--bad); }
.mark-area { stroke: transparent; stroke-width: 9; }
#marks { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 8px 2px 0; font-size: 13px;
  color: var(--muted); }
.key::before { content: ""; display: inline-block; height: 12px; margin-right: 7px;
  border-left: 2px dotted currentColor; vertical-align: -1px; }
.key.notice::before { color: var(--notice); } .key.good::before { color: var(--good); }
.key.bad::before { color: var(--bad); }
#marks .key { background: none; color: var(--soft); }
#strip { margin-bottom: 10px; }
.session { fill: var(--c0); opacity: 0.22; }
.tick { stroke: var(--c0); stroke-width: 1.5; }
.pin.notice { fill: var(--notice); } .pin.good { fill: var(--good); }
.pin.bad { fill: var(--bad); } .pin.plain { fill: var(--c0); }
.chips { display: flex; flex-wrap: wrap; gap: 6px; margin-bottom: 8px; font-size: 13px; }
.chips button { padding: 1px 10px; }
.chips button[aria-pressed="false"] { opacity: 0.55; text-decoration: line-through; }
.scroll { overflow: auto; max-height: 460px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 500; color: var(--muted); font-size: 13px; }
td, th { padding: 5px 14px 5px 0; vertical-align: top; border-bottom: 1px solid var(--grid); }
tr:last-child td { border-bottom: 0; }
td { overflow-wrap: anywhere; }
.events thead th { position: sticky; top: 0; background: var(--card); }
.num { white-space: nowrap; font-variant-numeric: tabular-nums; text-align: right; }
td.num { color: var(--soft); }
.events td:last-child { width: 70%; }
.columns { display: grid; grid-template-columns: minmax(0, 6fr) minmax(0, 5fr); gap: 0 24px; }
.config { margin-top: 8px; }
.config td:first-child, .host td:first-child { width: 38%; color: var(--soft); }
.config .head th { padding-top: 14px; color: var(--ink); font-weight: 600;
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.config .changed td:first-child { color: var(--ink); font-weight: 600; }
.config .changed code { color: var(--accent); font-weight: 600; }
.config .muted { font-size: 12.5px; margin-left: 6px; }
.config.only-changed .same, .config.only-changed tbody:not(:has(.changed)) { display: none; }
.check { font-size: 13px; color: var(--soft); }
.command + .command { margin-top: 14px; }
.command .label { font-size: 13px; color: var(--soft); margin-bottom: 4px; }
.command .line { display: flex; gap: 8px; align-items: stretch; }
.command code { flex: 1; min-width: 0; overflow-x: auto; white-space: nowrap; padding: 6px 10px;
  background: var(--plain-bg); border-radius: 7px; }
.copy { font-size: 13px; }
footer { margin-top: 34px; color: var(--muted); font-size: 13px; }
@media (max-width: 1150px) { .tiles:not(.main) { --per-row: 3 !important; } }
@media (max-width: 860px) {
  .panels, .columns { grid-template-columns: minmax(0, 1fr); }
}
@media (max-width: 560px) {
  main { padding: 22px 14px 32px; }
  h1 { font-size: 24px; }
  .tiles { gap: 8px; }
  .tiles { margin-top: 8px; }
  .tiles:not(.main) { --per-row: 2 !important; }
  .tiles.main { --per-row: 1 !important; }
  .tile { padding: 11px 12px; }
  .tile .value { font-size: 19px; }
  .card, .panel { padding: 12px; }
  .events td, .events th { padding-right: 9px; font-size: 13px; }
  .events td:last-child { width: auto; }
}
@media print { .copy, #controls, .chips { display: none; } .scroll, pre { max-height: none; } }
)css";

}  // namespace ductile::run::report
