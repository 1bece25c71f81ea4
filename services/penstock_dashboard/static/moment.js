// The slider over the log: shows the page as it was at the moment to which it is moved, without loading it anew.
"use strict";

(() => {
  const body = document.body;
  const WAIT_MS = 120;
  const words = (seconds) => new Date(seconds * 1000).toLocaleString();
  const loadedAt = Date.now();
  let timer;
  let asked;

  const slider = () => document.getElementById("slider");
  const dress = () => {
    const one = slider();
    if (!one) return;
    one.hidden = false;
    one.setAttribute("aria-valuetext", body.dataset.live ? "now" : words(Number(one.value)));
  };

  const addressAt = (at) => {
    const address = new URL(location.href);
    address.searchParams.delete("said");
    if (at) address.searchParams.set("at", at);
    else address.searchParams.delete("at");
    return address;
  };

  // Scripts of one page set it up when it is loaded; those with data-moves cope with a page that moves in time.
  const movesInPlace = () => !document.querySelector("head script:not([data-moves])");
  const leave = (address) => {
    if (document.activeElement === slider()) sessionStorage.setItem("slider", "1");
    location.assign(address);
  };

  // Puts what another moment's page has in place of what is here; what the visitor holds on to stays.
  const show = (html, address, pushes) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    const old = { bar: document.getElementById("moment"), main: document.getElementById("content") };
    const fresh = { bar: page.getElementById("moment"), main: page.getElementById("content") };
    if (!old.bar || !old.main || !fresh.bar || !fresh.main) { leave(address); return; }
    for (const name of ["live", "version", "now"]) {
      if (page.body.dataset[name] === undefined) delete body.dataset[name];
      else body.dataset[name] = page.body.dataset[name];
    }
    const held = document.activeElement === slider() ? "slider" : "";
    const [here, there] = [slider(), fresh.bar.querySelector("#slider")];
    // The slider itself stays in the page: whoever drags it goes on dragging.
    if (here && there) {
      for (const name of ["min", "max", "step"]) here.setAttribute(name, there.getAttribute(name));
      if (!here.dataset.moving) here.value = there.value;
      there.replaceWith(here);
    }
    old.bar.replaceWith(fresh.bar);
    if (held) slider()?.focus({ preventScroll: true });
    const links = (root) => root.querySelectorAll("header nav a");
    const anew = [...links(page)];
    links(document).forEach((one, at) => { if (anew[at]) one.href = anew[at].getAttribute("href"); });
    const scroll = [scrollX, scrollY];
    old.main.innerHTML = fresh.main.innerHTML;
    scrollTo(...scroll);
    document.getElementById("liveness").textContent = page.getElementById("liveness").textContent;
    document.title = page.title;
    if (pushes) history.pushState({ moment: true }, "", address);
    else history.replaceState({ moment: true }, "", address);
    dress();
    document.dispatchEvent(new CustomEvent("penstock:moment"));
  };

  const load = async (address, pushes) => {
    asked?.abort();
    asked = new AbortController();
    const own = asked;
    document.getElementById("moment")?.classList.add("busy");
    try {
      const answer = await fetch(address, { signal: own.signal, headers: { Accept: "text/html" } });
      const html = await answer.text();
      if (own === asked) show(html, answer.redirected ? answer.url : address, pushes);
    } catch (error) {
      if (error.name !== "AbortError") location.assign(address);
    } finally {
      document.getElementById("moment")?.classList.remove("busy");
    }
  };

  const move = (one) => {
    const now = Number(one.max) + (body.dataset.live ? (Date.now() - loadedAt) / 1000 : 0);
    const isNow = Number(one.value) + Number(one.step) > Number(one.max);  // no step leads nearer to it
    one.setAttribute("aria-valuetext", isNow ? "now" : words(Number(one.value)));
    return addressAt(isNow ? "" : Math.min(Number(one.value), now).toFixed(3));
  };
  document.addEventListener("input", (event) => {
    if (event.target.id !== "slider") return;
    event.target.dataset.moving = "1";
    const address = move(event.target);
    clearTimeout(timer);
    timer = setTimeout(() => load(address, false), WAIT_MS);
  });
  document.addEventListener("change", (event) => {
    if (event.target.id !== "slider") return;
    delete event.target.dataset.moving;
    const address = move(event.target);
    clearTimeout(timer);
    timer = setTimeout(() => (movesInPlace() ? load(address, address.href !== location.href) : leave(address)), WAIT_MS);
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-moment]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    if (!movesInPlace()) return;
    event.preventDefault();
    load(new URL(link.href), true);
  });
  addEventListener("popstate", () => (movesInPlace() ? load(new URL(location.href), false) : location.reload()));
  dress();
  if (sessionStorage.getItem("slider")) {
    sessionStorage.removeItem("slider");
    slider()?.focus({ preventScroll: true });
  }
})();
