// Shows a job's output as it comes: the last lines, with new ones below as long as the reader is at the end.
"use strict";

(() => {
  const MOST = 2000;
  const box = document.querySelector("[data-output]");
  const state = document.getElementById("output-state");
  if (!box || !("EventSource" in window)) return;
  const say = (text) => { if (state) state.textContent = text; };
  const shown = ([rank, stream, text, note], ranks) => {
    const line = document.createElement("p");
    if (note) line.className = "missing";
    else if (stream === "stderr") line.className = "stderr";
    if (ranks) {
      const which = document.createElement("b");
      which.textContent = `${rank} `;
      line.append(which);
    }
    line.append(text || " ");
    return line;
  };
  let ranks = false;
  const add = (lines) => {
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
    ranks ||= lines.some(([rank]) => rank > 0);
    box.append(...lines.slice(-MOST).map((line) => shown(line, ranks)));
    while (box.childElementCount > MOST) box.firstElementChild.remove();
    if (atEnd) box.scrollTop = box.scrollHeight;
  };
  let source = null;
  let again = 0;
  let over = false;
  const disconnect = () => { source?.close(); source = null; clearTimeout(again); };
  const connect = () => {
    disconnect();
    source = new EventSource(box.dataset.output);
    source.onmessage = (event) => {
      const { lines = [], begin = false, end = "", wait = "" } = JSON.parse(event.data);
      if (begin) box.replaceChildren();
      if (lines.length) box.hidden = false;
      add(lines);
      if (begin) { box.scrollTop = box.scrollHeight; say(lines.length ? "following" : "following; there is none yet"); }
      if (wait) say(wait);
      if (end) { over = true; disconnect(); say(end); }
    };
    source.onerror = () => {
      disconnect();
      say("the output does not come; it is tried again");
      again = setTimeout(connect, 5000);
    };
  };
  // As the page itself: what nobody sees is not followed.
  const look = () => { if (document.hidden) disconnect(); else if (!source && !over) connect(); };
  document.addEventListener("visibilitychange", look);
  addEventListener("pageshow", look);
  addEventListener("pagehide", disconnect);
  look();
})();
