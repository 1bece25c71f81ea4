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
  let source;
  const connect = () => {
    source = new EventSource(box.dataset.output);
    source.onmessage = (event) => {
      const { lines = [], begin = false, end = "" } = JSON.parse(event.data);
      if (begin) { box.replaceChildren(); box.hidden = false; }
      add(lines);
      if (begin) { box.scrollTop = box.scrollHeight; box.dataset.following = "1"; }
      if (begin) say(lines.length ? "following" : "following; there is none yet");
      else if (lines.length) say("following");
      if (end) { say(end); source.close(); }
    };
    source.onerror = () => {
      source.close();
      say("the output does not come; it is tried again");
      setTimeout(connect, 5000);
    };
  };
  connect();
  addEventListener("pagehide", () => source.close());
})();
