// Uses a page: points at each chart, drags, turns every control; then says on <html> that it got to
// the end, and how many charts drew something.
setTimeout(() => {
  const root = document.documentElement;
  const fire = (node, type, share, down = 0.5) => {
    const at = node.getBoundingClientRect();
    node.dispatchEvent(new PointerEvent(type, { bubbles: true,
      clientX: at.left + share * at.width, clientY: at.top + down * at.height }));
  };
  const charts = () => [...document.querySelectorAll("svg.chart, svg.picture, canvas")];
  const drawn = node => node.tagName === "CANVAS" ? node.height > 20 :
    node.querySelector("path, rect:not(clipPath rect)") !== null;
  root.dataset.charts = String(charts().filter(drawn).length);
  for (const node of charts()) {
    for (let i = 0; i < 100; ++i) fire(node, "pointermove", 0.1 * (i % 10), 0.1 * Math.floor(i / 10));
    fire(node, "pointerdown", 0.3);
    fire(node, "pointermove", 0.6);
    fire(node, "pointerup", 0.6);
    fire(node, "pointermove", 0.4);
    for (const key of ["ArrowLeft", "ArrowRight", "Escape"]) {
      node.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    }
    fire(node, "dblclick", 0.5);
    fire(node, "pointerleave", 0.5);
  }
  // Dragging zooms, and the button undoes it.
  const all = [...document.querySelectorAll("button")].find(b => b.textContent === "Show all");
  if (all) {
    const chart = document.querySelector("#panels svg, #curves svg");
    fire(chart, "pointerdown", 0.3);
    fire(chart, "pointermove", 0.6);
    fire(chart, "pointerup", 0.6);
    if (all.hidden) throw new Error("a drag does not zoom");
    all.click();
    if (!all.hidden) throw new Error("the button does not show all");
  }
  for (const input of document.querySelectorAll("input")) {
    input.type === "checkbox" ? input.click() : input.dispatchEvent(new Event("input"));
  }
  for (const select of document.querySelectorAll("select")) {
    select.selectedIndex = 1;
    select.dispatchEvent(new Event("change"));
  }
  const buttons = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("button:not(.copy)"));
  for (const button of buttons) button.click();
  setTimeout(() => { root.dataset.used = "yes"; }, 500);
}, 1000);
