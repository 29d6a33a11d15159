// The tree viewer: which tree, what is selected, found and collapsed, and the view of it.

import { begin } from "./charts.js";
import { SUPPORT, classes, draw, fit, hit, isVisible, point, spacing, within, zoomed } from "./drawing.js";
import { count, plural } from "./format.js";
import { layout } from "./layout.js";
import { parse, trees } from "./newick.js";

const BYTES_MAX = 64 << 20;
const element = (id) => document.getElementById(id);

/** A picture of a tree without names, for a small canvas. Throws as `parse` does. */
export function sketch(canvas, tree, colours) {
  const drawing = begin(canvas);
  if (!drawing) return;
  const scene = sceneOf(tree, { useLengths: true, colours, labels: false });
  draw(drawing, scene, fit("rectangular", drawing.width, drawing.height, scene));
}

function sceneOf(tree, { useLengths, colours, labels, collapsed = new Uint8Array(tree.count) }) {
  return {
    tree, collapsed, useLengths, colours, labels, classes: classes(tree, colours), labelWidth: 0, selected: -1, matches: new Set(), match: -1,
    places: layout(tree, collapsed, useLengths),
    farthest: tree.distance.reduce((most, value) => Math.max(most, value), 0),
  };
}

/** The viewer of the page; there is one. */
export class Viewer {
  constructor() {
    this.canvas = element("canvas");
    this.text = "";
    this.places = [];
    this.scene = null;
    this.view = null;
    this.found = [];
    this.at = -1;
    this.isDue = false;
    this.pointers = new Map();
    this.onOpen = () => {};
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    this.legend();
  }

  /** Shows the trees of a text. `keep`: the same tree has grown, so the view stays. */
  show(text, name, keep = false) {
    try {
      if (text.length > BYTES_MAX) throw new Error("the file is larger than 64 MiB");
      const places = trees(text);
      if (places.length === 0) throw new Error("the text holds no tree");
      const number = keep ? Math.min(this.number ?? 0, places.length - 1) : 0;
      const tree = parse(text.slice(...places[number]));
      [this.text, this.places, this.name, this.number] = [text, places, name, number];
      this.take(tree, keep);
    } catch (error) {
      this.say(`${name}: ${error.message}`, true);
      return false;
    }
    return true;
  }

  take(tree, keep) {
    const options = { useLengths: element("branches").value === "lengths", colours: element("colours").checked, labels: true };
    this.scene = sceneOf(tree, options);
    this.scene.labelWidth = this.widest(tree);
    element("drop").hidden = true;
    for (const id of ["find", "zoom-in", "zoom-out", "fit"]) element(id).disabled = false;
    element("number-field").hidden = this.places.length < 2;
    element("number").max = this.places.length;
    element("number").value = this.number + 1;
    element("number-name").textContent = `Tree of ${count(this.places.length)}`;
    element("tree-sum").textContent = `${this.name}, ${plural(tree.tips[0], "tip")}`;
    this.canvas.setAttribute("aria-label", `Tree of ${this.name}, ${plural(tree.tips[0], "tip")}`);
    element("legend").hidden = !(tree.hasSupport && this.scene.colours);
    const before = keep ? this.view : null;
    this.fit();
    if (before && before.shape === this.view?.shape) {
      const { zoomX, zoomY, panX, panY } = before;
      this.view = within({ ...this.view, zoomX, zoomY, panX, panY });
    }
    this.search(element("find").value);
    this.select(-1);
  }

  /** Width of the longest names, in pixels; they are estimated by their characters. */
  widest(tree) {
    let longest = 0;
    for (let node = 0; node < tree.count; node += 1) {
      if (tree.children[node] === 0) longest = Math.max(longest, tree.label[node].length);
    }
    return 12 + Math.min(longest, 40) * 6.6;
  }

  fit() {
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    if (!this.scene || width === 0) return;
    this.view = fit(element("shape").value, width, height, this.scene);
    this.redraw();
  }

  resize() {
    if (!this.view || this.view.shape !== element("shape").value) return this.fit();
    const { zoomX, zoomY, panX, panY } = this.view;
    this.fit();
    if (this.view) this.view = within({ ...this.view, zoomX, zoomY, panX, panY });
  }

  /** Draws in the next frame, once. */
  redraw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      const start = performance.now();
      const drawing = begin(this.canvas);
      if (!drawing || !this.scene || !this.view) return;
      draw(drawing, this.scene, this.view);
      // One entry, for the tests and the browser's tools; the list of entries must not grow.
      performance.clearMeasures("tree-frame");
      performance.measure("tree-frame", { start, end: performance.now() });
    });
  }

  relayout() {
    const { scene } = this;
    scene.useLengths = element("branches").value === "lengths";
    scene.places = layout(scene.tree, scene.collapsed, scene.useLengths);
    this.view = within({ ...this.view, rows: Math.max(1, scene.places.rows) });
    this.redraw();
  }

  say(text, isBad = false) {
    element("selected").textContent = text;
    element("selected").className = isBad ? "bad" : "";
  }

  select(node) {
    const { scene } = this;
    scene.selected = node;
    const button = element("collapse");
    const isClade = node >= 0 && scene.tree.children[node] > 0;
    button.disabled = !isClade;
    button.textContent = isClade && scene.collapsed[node] ? "Expand" : "Collapse";
    this.say(node < 0 ? "Nothing is selected." : this.describe(node));
    this.redraw();
  }

  describe(node) {
    const { tree, collapsed } = this.scene;
    const parts = [];
    if (tree.children[node] === 0) parts.push(tree.label[node] || "A tip without a name");
    else {
      const name = Number.isNaN(tree.support[node]) ? tree.label[node] : "";
      parts.push(`${node === 0 ? "The root" : name || "Clade"}, ${plural(tree.tips[node], "tip")}${collapsed[node] ? ", collapsed" : ""}`);
    }
    if (!Number.isNaN(tree.support[node])) parts.push(`support ${Math.round(tree.support[node] * 10) / 10} %`);
    if (!Number.isNaN(tree.length[node])) parts.push(`branch length ${Number(tree.length[node].toPrecision(4))}`);
    return parts.join(" · ");
  }

  toggle(node) {
    const { scene } = this;
    if (node < 0 || scene.tree.children[node] === 0) return;
    scene.collapsed[node] = scene.collapsed[node] ? 0 : 1;
    this.relayout();
    this.select(node);
  }

  /** Brings a node into sight, close enough for its name where `close`. */
  reveal(node, close) {
    const { scene } = this;
    for (let above = scene.tree.parent[node]; above >= 0; above = scene.tree.parent[above]) scene.collapsed[above] = 0;
    if (!isVisible(scene.places, node)) this.relayout();
    const apart = spacing(this.view, scene.places, node);
    if (close && apart < 14) this.view = zoomed(this.view, 14 / apart, this.view.width / 2, this.view.height / 2);
    const [px, py] = point(this.view, scene.places, node);
    const margin = 40;
    const isIn = px > margin && py > margin && px < this.view.width - margin && py < this.view.height - margin;
    if (!isIn) this.pan(this.view.width / 2 - px, this.view.height / 2 - py);
    this.redraw();
  }

  pan(dx, dy) {
    this.view = within({ ...this.view, panX: this.view.panX + dx, panY: this.view.panY + dy });
    this.redraw();
  }

  zoom(factor, atX = this.view.width / 2, atY = this.view.height / 2, depthAlone = false) {
    this.view = zoomed(this.view, factor, atX, atY, depthAlone);
    this.redraw();
  }

  search(words) {
    const { scene } = this;
    const wanted = words.trim().toLowerCase();
    this.found = [];
    if (wanted !== "") {
      scene.tree.label.forEach((name, node) => {
        if (name !== "" && Number.isNaN(scene.tree.support[node]) && name.toLowerCase().includes(wanted)) this.found.push(node);
      });
    }
    scene.matches = new Set(this.found);
    this.at = -1;
    scene.match = -1;
    for (const id of ["find-next", "find-previous"]) element(id).disabled = this.found.length === 0;
    element("found").textContent = wanted === "" ? "" : this.found.length === 0 ? "no match" : plural(this.found.length, "match", "matches");
    this.redraw();
  }

  step(by) {
    if (this.found.length === 0) return;
    this.at = this.at < 0 && by < 0 ? this.found.length - 1 : (this.at + by + this.found.length) % this.found.length;
    const node = this.found[this.at];
    this.scene.match = node;
    element("found").textContent = `${count(this.at + 1)} of ${count(this.found.length)}`;
    this.reveal(node, true);
    this.select(node);
  }

  /** Moves the selection as in a tree of files. */
  move(key) {
    const { tree, places, collapsed, selected } = this.scene;
    const { order } = places;
    let place = order.indexOf(selected);
    if (selected < 0 || place < 0) place = 0;
    else if (key === "ArrowDown") place = Math.min(order.length - 1, place + 1);
    else if (key === "ArrowUp") place = Math.max(0, place - 1);
    else if (key === "Home") place = 0;
    else if (key === "End") place = order.length - 1;
    else if (key === "ArrowLeft") place = tree.parent[selected] < 0 ? place : order.indexOf(tree.parent[selected]);
    else if (collapsed[selected]) return this.toggle(selected);
    else if (tree.children[selected] > 0) place += 1;
    this.reveal(order[place], false);
    this.select(order[place]);
  }

  key(event) {
    if (!this.scene || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    const pans = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    if (event.shiftKey && pans[key]) this.pan(...pans[key]);
    else if (pans[key] || key === "Home" || key === "End") this.move(key);
    else if (key === "Enter" || key === " ") this.toggle(this.scene.selected);
    else if (key === "+" || key === "=") this.zoom(1.5);
    else if (key === "-") this.zoom(1 / 1.5);
    else if (key === "0") this.fit();
    else if (key === "Escape") this.select(-1);
    else return;
    event.preventDefault();
  }

  listen() {
    const on = (id, name, act) => element(id).addEventListener(name, act);
    on("find", "input", (event) => this.scene && this.search(event.target.value));
    on("find", "keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.step(event.shiftKey ? -1 : 1);
    });
    on("find-next", "click", () => this.step(1));
    on("find-previous", "click", () => this.step(-1));
    on("shape", "change", () => this.fit());
    on("branches", "change", () => this.scene && this.relayout());
    on("colours", "change", (event) => {
      if (!this.scene) return;
      this.scene.colours = event.target.checked;
      this.scene.classes = classes(this.scene.tree, this.scene.colours);
      element("legend").hidden = !(this.scene.tree.hasSupport && this.scene.colours);
      this.redraw();
    });
    on("number", "change", (event) => this.turnTo(Number(event.target.value) - 1));
    on("fit", "click", () => this.fit());
    on("zoom-in", "click", () => this.zoom(1.5));
    on("zoom-out", "click", () => this.zoom(1 / 1.5));
    on("collapse", "click", () => this.toggle(this.scene.selected));
    on("open", "click", () => element("file").click());
    on("file", "change", (event) => {
      if (event.target.files[0]) this.read(event.target.files[0]);
      event.target.value = "";
    });
    this.listenToCanvas();
    this.listenToDrops();
  }

  turnTo(number) {
    const place = Math.min(Math.max(0, Math.floor(number) || 0), this.places.length - 1);
    try {
      const tree = parse(this.text.slice(...this.places[place]));
      this.number = place;
      this.take(tree, false);
    } catch (error) {
      this.say(`tree ${place + 1}: ${error.message}`, true);
    }
  }

  listenToCanvas() {
    const { canvas } = this;
    const at = (event) => [event.offsetX, event.offsetY];
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("wheel", (event) => {
      if (!this.view || !(event.ctrlKey || document.activeElement === canvas)) return;
      event.preventDefault();
      const turned = event.deltaMode === 1 ? event.deltaY * 30 : event.deltaY || event.deltaX;
      this.zoom(Math.exp(-turned * 0.002), ...at(event), event.shiftKey);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (!this.view || event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, { now: at(event), begun: at(event), hasMoved: false });
    });
    canvas.addEventListener("pointermove", (event) => this.drag(event, at(event)));
    canvas.addEventListener("pointerup", (event) => {
      const pointer = this.pointers.get(event.pointerId);
      this.pointers.delete(event.pointerId);
      if (pointer && !pointer.hasMoved) this.select(hit(this.scene, this.view, ...at(event)));
    });
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("dblclick", (event) => this.view && this.toggle(hit(this.scene, this.view, ...at(event))));
  }

  drag(event, now) {
    const pointer = this.pointers.get(event.pointerId);
    if (!pointer) return;
    const before = pointer.now;
    pointer.now = now;
    pointer.hasMoved ||= Math.hypot(now[0] - pointer.begun[0], now[1] - pointer.begun[1]) > 5;
    if (!pointer.hasMoved) return;
    const other = [...this.pointers.values()].find((one) => one !== pointer);
    if (!other) return this.pan(now[0] - before[0], now[1] - before[1]);
    other.hasMoved = true;
    const apart = (from) => Math.max(10, Math.hypot(from[0] - other.now[0], from[1] - other.now[1]));
    this.zoom(apart(now) / apart(before), (now[0] + other.now[0]) / 2, (now[1] + other.now[1]) / 2);
  }

  /** A file that is dropped anywhere on the page opens here, and the browser stays on the page. */
  listenToDrops() {
    const stage = element("stage");
    const isFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    addEventListener("dragover", (event) => {
      if (!isFile(event)) return;
      event.preventDefault();
      stage.classList.add("dragged");
    });
    addEventListener("dragleave", (event) => event.relatedTarget === null && stage.classList.remove("dragged"));
    addEventListener("drop", (event) => {
      stage.classList.remove("dragged");
      if (!isFile(event)) return;
      event.preventDefault();
      if (event.dataTransfer.files[0]) this.read(event.dataTransfer.files[0]);
    });
  }

  async read(file) {
    if (file.size > BYTES_MAX) return this.say(`${file.name}: the file is larger than 64 MiB`, true);
    try {
      const text = await file.text();
      if (this.show(text, file.name)) this.onOpen();
    } catch (error) {
      this.say(`${file.name}: ${error.message}`, true);
    }
    element("tree").scrollIntoView();
  }

  legend() {
    const names = SUPPORT.map((low, place) => (place + 1 < SUPPORT.length ? `${low}–${SUPPORT[place + 1]}` : `${low}–100`));
    element("legend").replaceChildren(...names.map((name, place) => {
      const item = document.createElement("li");
      const line = document.createElement("span");
      line.style.background = `var(--support-${place})`;
      item.append(line, name);
      return item;
    }));
  }
}

