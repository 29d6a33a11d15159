// A tree on a canvas, rectangular or circular.
//
// What is smaller than a pixel is drawn as one line, and what is out of sight not at all: so the time of a frame
// depends on what can be seen, not on the tree's size.

import { colour } from "./charts.js";

const FONT = '12px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const ROW_LABEL = 10; // pixels a row needs to have its name next to it
const ROW_MAX = 64; // pixels of a row, at the closest
const TURN = Math.PI * 2 * 0.985; // a gap shows where the circle begins
const TINY = 1; // pixels across, below which a clade is one line
const INNER = 0.03; // radius of the root, of the whole
const PAD = 18;
const NO_LABELS = 8; // pixels around a circle without names
const FOOT = 40; // pixels for the scale of branch lengths

/** Lower bounds of the classes of support, in percent. */
export const SUPPORT = [0, 50, 70, 90, 95];

/** A view that shows all of a layout. */
export function fit(shape, width, height, scene) {
  const isCircular = shape === "circular";
  let labels = scene.labels ? Math.min(scene.labelWidth, width * (isCircular ? 0.2 : 0.32)) : 0;
  // No room for names that could not be read at this size.
  const around = (Math.min(width, height) / 2 - labels) * TURN;
  if (isCircular && scene.labels && around < scene.places.rows * ROW_LABEL) labels = NO_LABELS;
  const foot = !scene.labels ? 3 : !isCircular && scene.useLengths && scene.tree.hasLengths ? FOOT : PAD;
  return { shape, width, height, labels, foot, zoomX: 1, zoomY: 1, panX: 0, panY: 0, rows: Math.max(1, scene.places.rows) };
}

/** Where rows and depths are on the canvas. */
export function geometry(view) {
  const pad = view.labels > 0 ? PAD : 3;
  if (view.shape === "circular") {
    const radius = Math.max(10, (Math.min(view.width, view.height) / 2 - pad - view.labels) * view.zoomY);
    const [centreX, centreY] = [view.width / 2 + view.panX, view.height / 2 + view.panY];
    const turn = TURN / view.rows;
    return {
      radius, centreX, centreY, turn,
      isAtRim: view.labels > NO_LABELS, // where names are
      row: turn * radius,
      depth: radius * (1 - INNER),
      angle: (y) => (y + 0.5) * turn - Math.PI / 2,
      reach: (x) => (INNER + (1 - INNER) * x) * radius,
    };
  }
  const row = ((view.height - pad - view.foot) / view.rows) * view.zoomY;
  const depth = (view.width - 2 * pad - view.labels) * view.zoomX;
  return {
    row, depth,
    px: (x) => pad + view.panX + x * depth,
    py: (y) => pad + view.panY + (y + 0.5) * row,
  };
}

/** A node's point on the canvas. */
export function point(view, places, node) {
  const g = geometry(view);
  const [x, y] = [places.x[node], places.y[node]];
  if (view.shape !== "circular") return [g.px(x), g.py(y)];
  return [g.centreX + Math.cos(g.angle(y)) * g.reach(x), g.centreY + Math.sin(g.angle(y)) * g.reach(x)];
}

/** Pixels between a node and its neighbours. */
export function spacing(view, places, node) {
  const g = geometry(view);
  return view.shape === "circular" && !g.isAtRim ? g.turn * g.reach(places.x[node]) : g.row;
}

/** The view with another zoom, which keeps what is at (`atX`, `atY`) where it is. */
export function zoomed(view, factor, atX, atY, depthAlone = false) {
  const next = { ...view };
  if (view.shape === "circular") {
    // Twice as close as rows need: tips may be far from the rim.
    const closest = Math.max(4, (2 * ROW_MAX) / geometry({ ...view, zoomY: 1 }).row);
    next.zoomY = Math.min(closest, Math.max(0.8, view.zoomY * factor));
    const real = next.zoomY / view.zoomY;
    next.panX = atX - view.width / 2 - (atX - view.width / 2 - view.panX) * real;
    next.panY = atY - view.height / 2 - (atY - view.height / 2 - view.panY) * real;
  } else if (depthAlone) {
    next.zoomX = Math.min(50, Math.max(1, view.zoomX * factor));
    next.panX = atX - PAD - (atX - PAD - view.panX) * (next.zoomX / view.zoomX);
  } else {
    const closest = Math.max(1, ROW_MAX / geometry({ ...view, zoomY: 1 }).row);
    next.zoomY = Math.min(closest, Math.max(1, view.zoomY * factor));
    next.panY = atY - PAD - (atY - PAD - view.panY) * (next.zoomY / view.zoomY);
  }
  return within(next);
}

/** The view moved so far back that some of the tree is in sight. */
export function within(view) {
  const g = geometry(view);
  const clamp = (value, low, high) => Math.min(Math.max(value, Math.min(low, high)), Math.max(low, high));
  if (view.shape === "circular") {
    return { ...view, panX: clamp(view.panX, -g.radius, g.radius), panY: clamp(view.panY, -g.radius, g.radius) };
  }
  const free = [view.width - 2 * PAD - view.labels - g.depth, view.height - PAD - view.foot - g.row * view.rows];
  return { ...view, panX: clamp(view.panX, free[0], 0), panY: clamp(view.panY, free[1], 0) };
}

/** Draws a scene: `tree`, `places`, `collapsed`, `classes`, `labels`, `selected`, `matches`, `match`. */
export function draw({ context, width, height }, scene, view) {
  const g = geometry(view);
  context.font = FONT;
  context.textBaseline = "middle";
  if (scene.selected >= 0) shade(context, scene, view, g);
  const paths = [...SUPPORT, -1].map(() => new Path2D());
  const wedges = new Path2D();
  const names = [];
  const add = view.shape === "circular" ? addCircular : addRectangular;
  add(scene, g, { width, height }, paths, wedges, names);
  // Round ends would double the time of a frame.
  context.lineCap = "butt";
  context.lineWidth = g.row > 6 ? 1.5 : 1;
  context.fillStyle = context.strokeStyle = colour("strong-line");
  context.fill(wedges);
  paths.forEach((path, place) => {
    const isPlain = place === SUPPORT.length;
    context.strokeStyle = colour(isPlain ? "muted" : `support-${place}`);
    context.stroke(path);
  });
  marks(context, scene, view, { width, height });
  if (scene.labels) {
    write(context, scene, view, g, names);
    scale(context, scene, view, g, height);
  }
}

/** The class of each node's support, the last one for none; once a tree, not once a frame. */
export function classes(tree, useColours) {
  const found = new Uint8Array(tree.count).fill(SUPPORT.length);
  if (!useColours) return found;
  tree.support.forEach((value, node) => {
    if (!Number.isNaN(value)) found[node] = Math.max(0, SUPPORT.findLastIndex((low) => value >= low));
  });
  return found;
}

function addRectangular({ tree, places, collapsed, classes: classOf }, g, size, paths, wedges, names) {
  const { x, y, first, last, top, bottom, far, order } = places;
  const plain = paths[SUPPORT.length];
  for (let place = 0; place < order.length; ) {
    const node = order[place];
    const above = tree.parent[node];
    const [upper, lower] = [g.py(top[node] - 0.5), g.py(bottom[node] + 0.5)];
    const from = above < 0 ? g.px(x[node]) - 8 : g.px(x[above]);
    if (lower < 0 || upper > size.height) {
      place = behind(order, place, tree.end[node]);
      continue;
    }
    const at = g.py(y[node]);
    const isTiny = lower - upper < TINY && tree.children[node] > 0;
    // The colour of one clade would stand for all that are in the line.
    const path = isTiny ? plain : paths[classOf[node]];
    path.moveTo(from, at);
    path.lineTo(g.px(isTiny ? far[node] : x[node]), at);
    if (isTiny) {
      place = behind(order, place, tree.end[node]);
      continue;
    }
    place += 1;
    if (collapsed[node] === 1) {
      const half = Math.min(7, g.row * 0.42);
      wedges.moveTo(g.px(x[node]), at);
      wedges.lineTo(g.px(far[node]), at - half);
      wedges.lineTo(g.px(far[node]), at + half);
      wedges.closePath();
    }
    if (tree.children[node] === 0 || collapsed[node] === 1) {
      if (g.row >= ROW_LABEL && at > -20 && at < size.height + 20) names.push(node);
    } else {
      plain.moveTo(g.px(x[node]), Math.max(-5, g.py(first[node])));
      plain.lineTo(g.px(x[node]), Math.min(size.height + 5, g.py(last[node])));
    }
  }
}

// No arrays are made in this loop: they would take longer than the drawing.
function addCircular({ tree, places, collapsed, classes: classOf }, g, size, paths, wedges, names) {
  const { x, y, first, last, top, bottom, far, order } = places;
  const { centreX, centreY, turn, isAtRim } = g;
  const plain = paths[SUPPORT.length];
  for (let place = 0; place < order.length; ) {
    const node = order[place];
    const above = tree.parent[node];
    const rows = bottom[node] - top[node] + 1;
    const outer = g.reach(far[node]);
    const inner = above < 0 ? 0 : g.reach(x[above]);
    if (rows * turn < 1.5) {
      // A circle around the clade's sector: out of sight, with all in it?
      const middle = g.angle((top[node] + bottom[node]) / 2);
      const [out, half] = [(outer + inner) / 2, Math.min(outer, (rows * turn * outer) / 2) + (outer - inner) / 2 + 30];
      const [mx, my] = [centreX + Math.cos(middle) * out, centreY + Math.sin(middle) * out];
      if (mx < -half || my < -half || mx > size.width + half || my > size.height + half) {
        place = behind(order, place, tree.end[node]);
        continue;
      }
    }
    const isTiny = rows * turn * outer < TINY && tree.children[node] > 0;
    const own = isTiny ? outer : g.reach(x[node]);
    const angle = g.angle(y[node]);
    const cosine = Math.cos(angle);
    const sine = Math.sin(angle);
    const path = isTiny ? plain : paths[classOf[node]];
    path.moveTo(centreX + cosine * inner, centreY + sine * inner);
    path.lineTo(centreX + cosine * own, centreY + sine * own);
    if (isTiny) {
      place = behind(order, place, tree.end[node]);
      continue;
    }
    place += 1;
    if (collapsed[node] === 1) {
      const spread = Math.min(turn * 0.42, 7 / Math.max(1, outer));
      wedges.moveTo(centreX + cosine * own, centreY + sine * own);
      wedges.lineTo(centreX + Math.cos(angle - spread) * outer, centreY + Math.sin(angle - spread) * outer);
      wedges.lineTo(centreX + Math.cos(angle + spread) * outer, centreY + Math.sin(angle + spread) * outer);
      wedges.closePath();
    }
    if (tree.children[node] === 0 || collapsed[node] === 1) {
      // Without a place at the rim: tips near the middle are closer to one another.
      if ((isAtRim ? g.row : turn * own) >= ROW_LABEL) names.push(node);
    } else if (last[node] > first[node]) {
      const [begun, ended] = [g.angle(first[node]), g.angle(last[node])];
      plain.moveTo(centreX + Math.cos(begun) * own, centreY + Math.sin(begun) * own);
      // A short arc is a line to the eye, and drawn in a fraction of the time.
      if ((ended - begun) * own < 6) plain.lineTo(centreX + Math.cos(ended) * own, centreY + Math.sin(ended) * own);
      else plain.arc(centreX, centreY, own, begun, ended);
    }
  }
}

/** The place in `order` behind a subtree whose last node is before `end`; nodes are in ascending order. */
function behind(order, place, end) {
  let [low, high] = [place + 1, order.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (order[middle] < end) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The name of a tip or of a collapsed clade. */
function nameOf({ tree, collapsed }, node) {
  if (tree.children[node] > 0 && collapsed[node] === 1) {
    const name = tree.label[node];
    const isName = name !== "" && Number.isNaN(tree.support[node]);
    return `${isName ? `${name}, ` : ""}${tree.tips[node]} tips`;
  }
  return tree.label[node];
}

function write(context, scene, view, g, names) {
  const wanted = scene.match >= 0 && !names.includes(scene.match) ? [...names, scene.match] : names;
  const { places, collapsed } = scene;
  for (const node of wanted) {
    if (!isVisible(places, node)) continue;
    const isMatch = scene.matches.has(node);
    context.fillStyle = colour(isMatch ? "accent" : collapsed[node] === 1 ? "muted" : "text");
    context.font = isMatch ? `600 ${FONT}` : FONT;
    const name = nameOf(scene, node);
    const reach = g.isAtRim ? 1 : collapsed[node] === 1 ? places.far[node] : places.x[node];
    if (view.shape !== "circular") {
      context.fillText(name, g.px(reach) + 7, g.py(places.y[node]));
      continue;
    }
    const angle = g.angle(places.y[node]);
    const isLeft = Math.cos(angle) < 0;
    context.save();
    context.translate(g.centreX, g.centreY);
    context.rotate(isLeft ? angle + Math.PI : angle);
    const [tip, rim] = [g.reach(collapsed[node] === 1 ? places.far[node] : places.x[node]) + 6, g.reach(reach) + 3];
    if (rim - tip > 6) leader(context, isLeft ? -tip : tip, isLeft ? -rim : rim);
    context.textAlign = isLeft ? "right" : "left";
    context.fillText(name, (g.reach(reach) + 7) * (isLeft ? -1 : 1), 0);
    context.restore();
  }
  context.font = FONT;
}

/** A faint line from a tip to its name at the rim. */
function leader(context, from, to) {
  context.strokeStyle = colour("line");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(from, 0);
  context.lineTo(to, 0);
  context.stroke();
}

/** True for a node that is in no collapsed clade. */
export function isVisible(places, node) {
  const { order } = places;
  const place = behind(order, -1, node);
  return order[place] === node;
}

/** The selected clade's background. */
function shade(context, { places, selected, labels }, view, g) {
  if (!labels || !isVisible(places, selected)) return;
  context.fillStyle = colour("accent-soft");
  const [upper, lower] = [places.top[selected] - 0.5, places.bottom[selected] + 0.5];
  context.beginPath();
  if (view.shape === "circular") {
    const [inner, outer] = [g.reach(places.x[selected]), g.reach(places.far[selected]) + 6];
    context.arc(g.centreX, g.centreY, outer, g.angle(upper), g.angle(lower));
    context.arc(g.centreX, g.centreY, inner, g.angle(lower), g.angle(upper), true);
  } else {
    const from = g.px(places.x[selected]);
    const height = Math.max(3, g.py(lower) - g.py(upper));
    context.roundRect(from - 4, g.py(upper), Math.max(10, g.px(places.far[selected]) - from + 10 + view.labels), height, 4);
  }
  context.fill();
}

/** Dots on matches, and a ring around the selected node. */
function marks(context, { places, matches, selected, labels }, view, size) {
  if (!labels) return;
  context.fillStyle = context.strokeStyle = colour("accent");
  let left = 2000;
  for (const node of matches) {
    if (!isVisible(places, node)) continue;
    const [px, py] = point(view, places, node);
    if (px < 0 || py < 0 || px > size.width || py > size.height) continue;
    context.beginPath();
    context.arc(px, py, 3.5, 0, 7);
    context.fill();
    left -= 1;
    if (left === 0) break;
  }
  if (selected < 0 || !isVisible(places, selected)) return;
  context.lineWidth = 2;
  context.beginPath();
  context.arc(...point(view, places, selected), 5.5, 0, 7);
  context.stroke();
}

/** The bar that says how long a branch is. */
function scale(context, { tree, useLengths, farthest }, view, g, height) {
  if (!useLengths || !tree.hasLengths || !(farthest > 0)) return;
  const unit = g.depth / farthest; // pixels of a length of 1
  const raw = 90 / unit;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [5, 2, 1].find((digit) => digit * power <= raw) * power;
  const [left, at] = [PAD, height - 12];
  // Names and branches must not run through it.
  context.fillStyle = colour("card");
  if (view.foot === FOOT) context.fillRect(0, height - FOOT + 4, view.width, FOOT);
  else context.fillRect(0, height - FOOT + 4, step * unit + PAD * 2, FOOT);
  context.strokeStyle = context.fillStyle = colour("muted");
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(left, at);
  context.lineTo(left + step * unit, at);
  context.stroke();
  context.fillText(String(Number(step.toPrecision(1))), left, at - 11);
}

/** The node at a point of the canvas, or -1. */
export function hit({ tree, places, collapsed }, view, mx, my) {
  const g = geometry(view);
  let [best, nearest] = [-1, 14 * 14];
  for (const node of places.order) {
    const above = tree.parent[node];
    let [across, along, from, to] = [0, 0, 0, 0];
    if (view.shape === "circular") {
      const [dx, dy] = [mx - g.centreX, my - g.centreY];
      const reach = Math.hypot(dx, dy);
      const turned = Math.atan2(dy, dx) - g.angle(places.y[node]);
      across = Math.abs(Math.atan2(Math.sin(turned), Math.cos(turned))) * reach;
      [along, from, to] = [reach, above < 0 ? 0 : g.reach(places.x[above]), g.reach(places.x[node])];
    } else {
      across = Math.abs(my - g.py(places.y[node]));
      [along, from, to] = [mx, above < 0 ? g.px(places.x[node]) - 8 : g.px(places.x[above]), g.px(places.x[node])];
    }
    // A name and a wedge belong to their node.
    const isEnd = tree.children[node] === 0 || collapsed[node] === 1;
    const beyond = along - to - (isEnd ? view.labels + (g.depth * (places.far[node] - places.x[node])) : 0);
    const off = along < from ? from - along : Math.max(0, beyond);
    const square = across * across + off * off;
    if (square < nearest) [best, nearest] = [node, square];
  }
  return best;
}
