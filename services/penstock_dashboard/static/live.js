// Keeps a page up to date: takes what the service sends about each region, and lets ages grow by themselves.
"use strict";

(() => {
  const body = document.body;
  let offset = Number(body.dataset.now) - Date.now() / 1000;
  const plain = (seconds) => {
    if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
    const hours = Math.floor(minutes / 60);
    return hours < 24 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
  };
  let frozen = body.dataset.live ? null : Number(body.dataset.now);
  const age = (root) => {
    const now = frozen ?? Date.now() / 1000 + offset;
    for (const one of root.querySelectorAll("time[data-since]")) {
      const text = plain(now - Number(one.dataset.since) + Number(one.dataset.plus || 0));
      if (one.textContent !== text) one.textContent = text;
    }
    for (const one of root.querySelectorAll("time[data-at]")) {
      if (one.dataset.local) continue;
      one.dataset.local = "1";
      one.textContent = new Date(Number(one.dataset.at) * 1000).toLocaleString();
    }
  };

  // What somebody has done to a piece before it is replaced: chosen, opened, focused.
  const kept = (old) => ({
    checked: [...old.querySelectorAll("input[type=checkbox]:checked")].map((one) => one.value),
    open: [...old.querySelectorAll("details")].map((one) => one.open),
    focus: old.contains(document.activeElement) ? [...old.querySelectorAll("a,button,input,summary")].indexOf(document.activeElement) : -1,
  });
  const restore = (piece, was) => {
    for (const one of piece.querySelectorAll("input[type=checkbox]")) one.checked = was.checked.includes(one.value);
    piece.querySelectorAll("details").forEach((one, index) => { if (was.open[index] !== undefined) one.open = was.open[index]; });
    if (was.focus >= 0) piece.querySelectorAll("a,button,input,summary")[was.focus]?.focus({ preventScroll: true });
  };
  const made = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content.firstElementChild;
  };
  const patch = (name, change) => {
    const region = document.querySelector(`[data-region="${CSS.escape(name)}"]`);
    if (!region) return;
    const there = new Map([...region.children].map((one) => [one.dataset.key, one]));
    for (const [key, html] of Object.entries(change.put ?? {})) {
      const piece = made(html);
      if (!piece) continue;
      const old = there.get(key);
      if (old) { const was = kept(old); old.replaceWith(piece); restore(piece, was); piece.classList.add("changed"); }
      there.set(key, piece);
      age(piece);
    }
    if (change.order) {
      const wanted = new Set(change.order);
      for (const [key, piece] of there) if (!wanted.has(key)) piece.remove();
      let before = region.firstElementChild;
      for (const key of change.order) {
        const piece = there.get(key);
        if (!piece) continue;
        if (piece === before) before = before.nextElementSibling;
        else region.insertBefore(piece, before);
      }
    }
    region.dispatchEvent(new CustomEvent("penstock:changed", { bubbles: true }));
  };

  const trouble = document.getElementById("trouble");
  const liveness = document.getElementById("liveness");
  const say = (text) => { if (trouble) { trouble.textContent = text; trouble.hidden = !text; } };
  let source = null;
  let again = 0;
  let look = () => {};
  const disconnect = (text) => {
    clearTimeout(again);
    source?.close();
    source = null;
    delete body.dataset.connected;
    liveness.textContent = text;
  };
  const follow = () => {
    if (!body.dataset.live || !("EventSource" in window)) return;
    let version = body.dataset.version;
    const connect = () => {
      disconnect("connecting");
      const address = new URL(body.dataset.live, location.href);
      address.searchParams.set("version", version);
      source = new EventSource(address);
      source.onopen = () => { say(""); liveness.textContent = "live"; body.dataset.connected = "1"; };
      source.onmessage = (event) => {
        const update = JSON.parse(event.data);
        version = String(update.version);
        say(update.error ?? "");
        for (const [name, change] of Object.entries(update.regions ?? {})) patch(name, change);
        body.dataset.version = version;
      };
      source.onerror = () => {
        disconnect("not live");
        say("The dashboard does not answer; this page is as it was. It tries again.");
        again = setTimeout(connect, 2000);
      };
    };
    // A browser has few connections for one host: a page that nobody sees gives its own back.
    look = () => { if (document.hidden) disconnect("not live while it is hidden"); else if (!source) connect(); };
    look();
  };
  follow();
  document.addEventListener("visibilitychange", () => look());
  addEventListener("pageshow", () => look());
  addEventListener("pagehide", () => { if (source) disconnect("not live"); });
  // The page is now about another moment: see moment.js.
  document.addEventListener("penstock:moment", () => {
    const text = liveness.textContent;
    disconnect(text);
    look = () => {};
    offset = Number(body.dataset.now) - Date.now() / 1000;
    frozen = body.dataset.live ? null : Number(body.dataset.now);
    say("");
    age(document);
    follow();
  });
  age(document);
  setInterval(() => age(document), 1000);

  // Choosing rows, and asking before something ends.
  const count = () => {
    const all = document.querySelector("input[name=all]:checked");
    const chosen = document.querySelectorAll("input[name=id]:checked").length;
    const text = all ? "all jobs that match" : chosen === 1 ? "1 chosen job" : `${chosen} chosen jobs`;
    for (const one of document.querySelectorAll("[data-chosen]")) one.textContent = text;
    return chosen;
  };
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) {
      for (const one of document.querySelectorAll("input[name=id]")) one.checked = event.target.checked;
    }
    if (event.target.matches("select[name=color]")) event.target.form.requestSubmit();
    count();
  });
  document.addEventListener("penstock:changed", count);
  // How many jobs a filter matches, only the gateway knows: it is asked before the person is.
  let agreed = null;
  const askAboutAll = async (form, submitter) => {
    const fields = new URLSearchParams(new FormData(form));
    fields.set(submitter.name, submitter.value);
    submitter.disabled = true;
    let answer;
    try {
      const response = await fetch("/act/preview", { method: "POST", body: fields });
      answer = response.ok ? await response.json() : { said: "Nothing was changed: the dashboard did not say how many jobs match. Load the page again." };
    } catch {
      answer = { said: "Nothing was changed: the dashboard does not answer." };
    }
    submitter.disabled = false;
    say(answer.said ?? "");
    if (!answer.question || !confirm(answer.question)) return;
    agreed = form;
    form.requestSubmit(submitter);
  };
  document.addEventListener("submit", (event) => {
    const verb = event.submitter?.dataset.ask;
    if (verb === undefined) return;
    const chosen = count();
    if (document.querySelector("input[name=all]:checked") && !event.submitter.dataset.what) {
      if (event.target === agreed) { agreed = null; return; }
      event.preventDefault();
      askAboutAll(event.target, event.submitter);
      return;
    }
    const what = event.submitter.dataset.what ?? (chosen === 1 ? "this job" : `these ${chosen} jobs`);
    if (!confirm(`${verb} ${what}?`)) event.preventDefault();
  });
  if (document.querySelector("[data-chosen]")) count();
})();
