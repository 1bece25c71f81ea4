// The timeline: says what is below the pointer or has the focus, moves the window by keys, and tells time as people do.
"use strict";

(() => {
  const say = (text) => {
    const detail = document.getElementById("detail");
    if (!detail) return;
    detail.textContent = text;
    detail.hidden = !text;
  };
  const labelOf = (target) => target.closest?.(".drawing a")?.getAttribute("aria-label") ?? "";
  document.addEventListener("pointerover", (event) => { say(labelOf(event.target)); });
  document.addEventListener("focusin", (event) => { say(labelOf(event.target)); });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,select,textarea,.scroll")) return;
    const key = event.key === "=" ? "+" : event.key;
    const link = document.querySelector(`a[data-move="${CSS.escape(key)}"]`);
    if (!link) return;
    event.preventDefault();
    link.click();
  });

  const local = () => {
    const ticks = [...document.querySelectorAll("text[data-tick]")];
    const days = ticks.length > 1 && Number(ticks[1].dataset.tick) - Number(ticks[0].dataset.tick) >= 86400;
    const seconds = ticks.length > 1 && Number(ticks[1].dataset.tick) - Number(ticks[0].dataset.tick) < 60;
    const form = days ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hour12: false, ...(seconds ? { second: "2-digit" } : {}) };
    for (const tick of ticks) {
      const text = new Date(Number(tick.dataset.tick) * 1000).toLocaleString(undefined, form);
      if (tick.textContent !== text) tick.textContent = text;
    }
    // Where there is little room, each time that would be written over the one before it is left out.
    let end = -Infinity;
    for (const tick of ticks) {
      tick.removeAttribute("visibility");
      const place = tick.getBoundingClientRect();
      if (place.left < end + 6) tick.setAttribute("visibility", "hidden");
      else end = place.right;
    }
    document.querySelector("svg.axis-drawing")?.setAttribute("aria-label", "Time");
  };
  document.addEventListener("penstock:changed", local);
  addEventListener("resize", local);
  document.addEventListener("penstock:moment", local);
  document.addEventListener("click", (event) => {
    if (event.target.closest("a[href='#as-table']")) document.getElementById("as-table").open = true;
  });
  local();
})();
