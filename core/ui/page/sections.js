// The sections of live servers: each list keeps its elements and changes their texts.
//
// What servers say is foreign text: it goes into text nodes only.

import { curve, spark, strip } from "./charts.js";
import { about, count, duration, logLikelihood, percent, plural, rate, size, time } from "./format.js";
import { sketch } from "./viewer.js";

const SESSIONS_SHOWN = 24;

/** Makes an element: `make("td", { class: "n" }, "text")`. */
function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Sets a text, if it is another one: what does not change costs no layout. */
function put(place, text, mood = "") {
  if (place.textContent !== text) place.textContent = text;
  if (place.dataset.mood !== mood) {
    place.dataset.mood = mood;
    place.classList.remove("warn", "bad", "zero");
    if (mood) place.classList.add(mood);
  }
}

/** Has one child of `parent` for each item, in their order; `create` gives `{ element, update }`. */
function reconcile(parent, items, keyOf, create) {
  const known = (parent.parts ??= new Map());
  const keys = new Set();
  items.forEach((item, place) => {
    const key = keyOf(item);
    keys.add(key);
    let part = known.get(key);
    if (!part) known.set(key, (part = create(item)));
    if (parent.children[place] !== part.element) parent.insertBefore(part.element, parent.children[place] ?? null);
    part.update(item);
  });
  for (const [key, part] of known) {
    if (keys.has(key)) continue;
    part.element.remove();
    known.delete(key);
  }
}

const last = (values) => (values.length > 0 ? values[values.length - 1] : 0);
const byId = (server) => server.id;
const element = (id) => document.getElementById(id);

function ended(server) {
  return server.is_ended ? " · ended" : server.is_silent ? " · does not answer" : "";
}

/** Shows a section's count and sum, and its line where there is nothing. */
function head(id, number, sum, card) {
  put(element(`${id}-count`), number > 0 ? count(number) : "");
  put(element(`${id}-sum`), sum);
  element(`${id}-empty`).hidden = number > 0;
  if (card) element(card).hidden = number === 0;
}

function imageRow() {
  const name = make("span");
  const place = make("span", { class: "name-line" });
  const picture = make("canvas", { class: "spark", "aria-hidden": "true" });
  const speed = make("output");
  const cell = (title) => make("td", { class: "n", role: "cell", "data-name": title });
  const [hits, fetched, retries, damaged, dirty, memory] = ["Hits", "Fetched", "Retries", "Damaged", "Overlay", "Memory"].map(cell);
  const row = make("tr", { role: "row" },
    make("th", { scope: "row", role: "rowheader", class: "name" }, name, place),
    make("td", { class: "wide", role: "cell" }, make("div", { class: "speed" }, picture, speed)),
    hits, fetched, retries, damaged, dirty, memory);
  const update = (server) => {
    put(name, server.image || server.name);
    put(place, `${server.way} · ${server.where} · ${size(server.size_bytes)}${ended(server)}`);
    const asked = server.cache_hits + server.cache_misses;
    put(speed, server.is_ended ? "ended" : rate(last(server.tracks[0])), server.is_ended ? "zero" : "");
    put(hits, asked === 0 ? "–" : percent(server.cache_hits / asked), asked === 0 ? "zero" : "");
    put(fetched, size(server.fetched_bytes), server.fetched_bytes === 0 ? "zero" : "");
    put(retries, count(server.retries), server.retries > 0 ? "warn" : "zero");
    put(damaged, count(server.damaged_frames), server.damaged_frames > 0 ? "bad" : "zero");
    put(dirty, size(server.overlay_dirty_bytes), server.overlay_dirty_bytes === 0 ? "zero" : "");
    put(memory, size(server.memory_bytes));
    spark(picture, server.tracks[0], server.room);
  };
  return { element: row, update };
}

function images(servers) {
  const live = servers.filter((server) => !server.is_ended);
  const total = live.reduce((sum, server) => sum + last(server.tracks[0]), 0);
  head("images", servers.length, servers.length === 0 ? "" : `${rate(total)} in all`, "images-card");
  reconcile(element("images-rows"), servers, byId, imageRow);
}

function engineRow() {
  const name = make("span");
  const picture = make("canvas", { class: "strip", "aria-hidden": "true" });
  const share = make("span", { class: "share" });
  const row = make("li", { class: "row-of" }, name, picture, share);
  const update = ({ engine, track, room }) => {
    put(name, `engine ${engine.id}${engine.cpu === null ? "" : `, cpu ${engine.cpu}`}`);
    put(share, percent(last(track)));
    strip(picture, track, room);
  };
  return { element: row, update };
}

function daemonCard() {
  const title = make("h3");
  const sub = make("p", { class: "sub" });
  const list = make("ul", { class: "engines" });
  const axis = make("p", { class: "sub hidden" });
  const card = make("article", { class: "card" }, title, sub, list, axis);
  const update = (server) => {
    put(title, server.name);
    const total = server.tracks.map(last).reduce((sum, share) => sum + share, 0);
    put(sub, `${plural(server.engines.length, "engine")}, ${total.toFixed(1)} busy · ${plural(server.clients, "client")} · ${about(server.jobs_total)} jobs · pid ${server.pid}${ended(server)}`);
    const engines = server.engines.map((engine, place) => ({ engine, track: server.tracks[place] ?? [], room: server.room }));
    reconcile(list, engines, (row) => row.engine.id, engineRow);
    put(axis, "The strips show each engine's busy share of the last five minutes; the newest is on the right.");
  };
  return { element: card, update };
}

function engines(servers) {
  const number = servers.reduce((sum, server) => sum + server.engines.length, 0);
  head("engines", number, number === 0 ? "" : "busy share of the last five minutes");
  element("engines-empty").hidden = servers.length > 0;
  reconcile(element("engines-list"), servers, byId, daemonCard);
}

function sessionRow() {
  const cell = (title) => make("td", { class: "n", role: "cell", "data-name": title });
  const name = make("th", { scope: "row", role: "rowheader", class: "name" });
  const [state, received, sent, trip, window_, again] = ["State", "In", "Out", "RTT", "Window", "Retransmits"].map(cell);
  state.classList.remove("n");
  const row = make("tr", { role: "row" }, name, state, received, sent, trip, window_, again);
  const update = (session) => {
    put(name, session.remote || session.local);
    put(state, session.state, session.state.toLowerCase() === "established" ? "" : "zero");
    put(received, rate(session.rx_bytes_per_s), session.rx_bytes_per_s === 0 ? "zero" : "");
    put(sent, rate(session.tx_bytes_per_s), session.tx_bytes_per_s === 0 ? "zero" : "");
    put(trip, session.rtt_us > 0 ? time(session.rtt_us) : "–");
    put(window_, size(session.window_bytes));
    put(again, count(session.retransmits), session.retransmits > 0 ? "warn" : "zero");
  };
  return { element: row, update };
}

function flowPart(name) {
  const picture = make("canvas", { class: "spark", "aria-hidden": "true" });
  const value = make("dd");
  return { picture, value, element: make("div", {}, make("dt", {}, name), make("dd", {}, picture), value) };
}

function stackCard() {
  const title = make("h3");
  const sub = make("p", { class: "sub" });
  const [received, sent] = [flowPart("In"), flowPart("Out")];
  const drops = make("dd");
  const flow = make("dl", { class: "flow" }, received.element, sent.element, make("div", {}, make("dt", {}, "Drops"), drops));
  const heads = ["Remote", "State", "In", "Out", "RTT", "Window", "Retransmits"];
  const columns = heads.map((name, place) => make("th", { scope: "col", class: place > 1 ? "n" : "" }, name));
  const body = make("tbody", { role: "rowgroup" });
  const caption = make("caption", { class: "hidden" });
  const table = make("table", { class: "cards" }, caption, make("thead", {}, make("tr", {}, ...columns)), body);
  const card = make("article", { class: "card" }, title, sub, flow, make("div", { class: "inner" }, table));
  const update = (server) => {
    put(title, server.address || server.name);
    const shown = [...server.sessions].sort((one, two) => speed(two) - speed(one)).slice(0, SESSIONS_SHOWN);
    const of = shown.length < server.sessions_total ? `, the ${shown.length} busiest below` : "";
    put(sub, `${plural(server.sessions_total, "session")}${of} · pid ${server.pid}${ended(server)}`);
    put(caption, `Sessions of ${server.address || server.name}`);
    [received, sent].forEach((part, place) => {
      const track = server.tracks[place] ?? [];
      put(part.value, rate(last(track)));
      spark(part.picture, track, server.room);
    });
    put(drops, count(server.drops), server.drops > 0 ? "warn" : "zero");
    table.hidden = shown.length === 0;
    // In the order of their names: rows that change places every second cannot be read.
    shown.sort((one, two) => (one.remote < two.remote ? -1 : 1));
    reconcile(body, shown, (session) => `${session.local} ${session.remote}`, sessionRow);
  };
  return { element: card, update };
}

const speed = (session) => session.rx_bytes_per_s + session.tx_bytes_per_s;

function stacks(servers) {
  const number = servers.reduce((sum, server) => sum + server.sessions_total, 0);
  head("stack", number, servers.length === 0 ? "" : plural(number, "session"));
  element("stack-empty").hidden = servers.length > 0;
  reconcile(element("stack-list"), servers, byId, stackCard);
}

function searchCard(openTree) {
  const title = make("h3");
  const sub = make("p", { class: "sub" });
  const value = make("p", { class: "value" });
  const name = make("p", { class: "value-name" }, "log-likelihood");
  const picture = make("canvas", { class: "curve", "aria-hidden": "true" });
  const small = make("canvas", { class: "sketch", "aria-hidden": "true" });
  const of = make("span", { class: "hidden" });
  const button = make("button", { type: "button" }, "Open the tree", of);
  const left = make("div", {}, title, sub, value, name, picture, button);
  const card = make("article", { class: "card search-card" }, left, small);
  let current = null;
  button.addEventListener("click", () => openTree(current));
  const update = (server) => {
    current = server;
    put(title, server.alignment || server.name);
    put(sub, `${server.model} · ${server.step} · ${duration(server.elapsed_s)}${ended(server)}`);
    put(value, logLikelihood(server.log_likelihood));
    curve(picture, server.curve ?? [], server.elapsed_s);
    button.disabled = !server.tree;
    put(of, ` of ${server.alignment || server.name}`);
    if (server.tree && (server.drawn !== server.tree || small.width !== Math.round(small.clientWidth * Math.min(devicePixelRatio, 3)))) {
      sketch(small, server.tree, false);
      server.drawn = server.tree;
    }
  };
  return { element: card, update };
}

function searches(servers, openTree) {
  head("searches", servers.length, servers.length === 0 ? "" : plural(servers.filter((one) => !one.is_ended).length, "search runs", "searches run"));
  reconcile(element("searches-list"), servers, byId, () => searchCard(openTree));
}

/** Shows all servers. */
export function show(servers, openTree) {
  const of = (kind) => servers.filter((server) => server.kind === kind);
  images(of("image"));
  engines(of("daemon"));
  stacks(of("stack"));
  searches(of("search"), openTree);
}
