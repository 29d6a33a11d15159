// The page: asks for the newest samples as often as they are taken, keeps the last minutes, and shows them.
//
// Must stay true: what is kept is bounded (`samples_max` values a track, and only of servers that the answer
// names); a page that is hidden asks nothing, and catches up when it is seen again.

import { onTheme } from "./charts.js";
import { plural } from "./format.js";
import { show } from "./sections.js";
import { parse } from "./newick.js";
import { Viewer } from "./viewer.js";

const ANSWER_MS_MAX = 10000;
const PAUSE_MS_MIN = 4;
const element = (id) => document.getElementById(id);

const viewer = new Viewer();
const servers = new Map();
let sequence = 0;
let periodMs = 1000;
let failures = 0;
let timer = 0;
let followed = null; // the search whose tree the viewer shows
let hasLoadedFile = false;
let names = null;

async function ask(path, options = {}) {
  const signal = AbortSignal.timeout(ANSWER_MS_MAX);
  const answer = await fetch(path, { signal, ...options });
  if (!answer.ok && answer.status !== 304) throw new Error(`${answer.status}`);
  return answer;
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  const begun = performance.now();
  try {
    const answer = await ask(`api/state?since=${sequence}`);
    if (answer.status !== 204) take(await answer.json());
    failures = 0;
    connected(true);
  } catch (error) {
    failures += 1;
    // The command may have been started again meanwhile: another one has another token.
    if (failures > 1) connected(false, error);
  }
  clearTimeout(timer);
  const pause = failures > 0 ? 1000 * Math.min(5, failures) : periodMs - (performance.now() - begun);
  timer = setTimeout(poll, Math.max(PAUSE_MS_MIN, pause));
}

function connected(isLive, error) {
  const link = element("link");
  const text = isLive ? "live" : error?.message === "403" ? "refused: open the new address" : "no answer: has sidecore ui ended?";
  link.classList.toggle("live", isLive);
  link.classList.toggle("lost", !isLive);
  if (element("link-text").textContent !== text) element("link-text").textContent = text;
}

/** Takes an answer in: values that are new go behind those that are here. */
function take(state) {
  const isWhole = state.since === 0;
  const seen = new Set();
  for (const news of state.servers) {
    const before = isWhole ? undefined : servers.get(news.id);
    const tracks = news.tracks.map((values, place) => {
      const all = [...(before?.tracks[place] ?? []), ...values];
      return all.slice(-state.samples_max);
    });
    const kept = before ? { curve: before.curve, tree: before.tree, tree_shown: before.tree_shown, drawn: before.drawn } : {};
    servers.set(news.id, { ...kept, ...news, tracks, room: state.samples_max });
    seen.add(news.id);
  }
  for (const id of servers.keys()) if (!seen.has(id)) servers.delete(id);
  sequence = state.sequence;
  periodMs = state.period_ms;
  element("version").textContent = `Sidecore ${state.version}.`;
  element("nothing").hidden = servers.size > 0 || state.tree_file !== null;
  element("left-out").hidden = state.left_out === 0;
  element("left-out").textContent = `${plural(state.left_out, "more server")} run; this page shows the first ${servers.size}.`;
  if (state.tree_file !== null && !hasLoadedFile) {
    hasLoadedFile = true;
    openFile(state.tree_file);
  }
  announce();
  render();
  fetchTrees();
}

function render() {
  show([...servers.values()], openSearch);
}

/** Says which servers came and went: to those that hear the page, and not at its start. */
function announce() {
  const now = new Map([...servers.values()].filter((one) => !one.is_ended).map((one) => [one.id, one.image || one.alignment || one.name]));
  if (names !== null) {
    const came = [...now].filter(([id]) => !names.has(id)).map(([, name]) => `${name} started`);
    const went = [...names].filter(([id]) => !now.has(id)).map(([, name]) => `${name} ended`);
    const news = [...came, ...went].slice(0, 3).join(", ");
    if (news !== "") element("news").textContent = news;
  }
  names = now;
}

async function openFile(name) {
  try {
    const answer = await ask("api/tree/file");
    viewer.show(await answer.text(), name);
  } catch (error) {
    viewer.say(`${name}: ${error.message}`, true);
  }
}

/** Gets the trees of searches that have a newer one, each in every second period at most. */
async function fetchTrees() {
  for (const server of servers.values()) {
    if (server.kind !== "search" || server.tree_version === null || server.tree_version === server.tree_shown) continue;
    const now = performance.now();
    if (now - (asked.get(server.id) ?? -Infinity) < 2 * periodMs) continue;
    asked.set(server.id, now);
    try {
      const answer = await ask(`api/tree/${server.id}`);
      const text = await answer.text();
      const current = servers.get(server.id);
      if (!current) continue;
      current.tree = parse(text.trim().replace(/;$/, ""));
      current.tree_shown = server.tree_version;
      if (followed === server.id) viewer.show(text, current.alignment || current.name, true);
    } catch {
      // It ended meanwhile, or has a tree that cannot be read: its card goes on without.
    }
  }
  for (const id of asked.keys()) if (!servers.has(id)) asked.delete(id);
  render();
}

const asked = new Map();

async function openSearch(server) {
  followed = server.id;
  try {
    const answer = await ask(`api/tree/${server.id}`);
    viewer.show(await answer.text(), server.alignment || server.name);
  } catch (error) {
    viewer.say(`${server.alignment}: ${error.message}`, true);
  }
  element("tree").scrollIntoView();
  element("canvas").focus({ preventScroll: true });
}

viewer.onOpen = () => {
  followed = null;
};
document.addEventListener("visibilitychange", () => document.hidden || poll());
addEventListener("resize", render);
onTheme(() => {
  for (const server of servers.values()) server.drawn = null;
  render();
  viewer.redraw();
});
poll();
