// What the pages' scripts share, for the lint (.ci/run scripts): a name that is not here is an error.
declare var ductile: Ductile;

interface Ductile {
  // text.js
  withThousands(value: number): string;
  asNumber(value: number): string;
  asPercent(share: number): string;
  asDuration(seconds: number): string;
  asShortDuration(value: number): string;
  // axes.js
  timeSteps: number[];
  ticks(lo: number, hi: number, count: number, steps?: number[]): { values: number[]; step: number };
  logTicks(lo: number, hi: number, count: number): number[];
  logTimeTicks(lo: number, hi: number, count: number): number[];
  tickText(v: number, step: number, unit?: string): string;
  valueText(v: number, unit?: string): string;
  scale(lo: number, hi: number, from: number, to: number, log?: boolean): Scale;
  smoothed(values: number[], weight: number): number[];
  nearest(xs: number[], x: number): number;
  ascending(xs: number[]): number[];
  extent(lists: (number | null)[][]): [number, number];
  visible(xs: number[], lo: number, hi: number): [number, number];
  ySpan(lo: number, hi: number, spec: any, log: boolean): [number, number];
  // charts.js
  element(name: string, attributes?: any, ...children: any[]): any;
  color(i: number): string;
  swatch(i: number): any;
  pageData(): any;
  chartGroup(): any;
  whenResized(box: Element, draw: () => void): void;
  lineChart(group: any, spec: any): any;
  barChart(spec: any): any;
  timeline(group: any, spec: any): any;
  choice(options: [any, string][], get: () => any, set: (value: any) => void): any;
}

interface Scale {
  lo: number;
  hi: number;
  at(v: number): number;
  value(px: number): number;
}
