// Small pictures on canvases: spark lines, strips of an engine's time, the curve of a search.
//
// Colours come from the sheet, so both themes have one source. Nothing here keeps what it drew.

const dark = matchMedia("(prefers-color-scheme: dark)");
let colours = null;

/** Calls back when the theme changes, after which everything is to be drawn anew. */
export function onTheme(redraw) {
  dark.addEventListener("change", () => {
    colours = null;
    redraw();
  });
}

/** A colour of the sheet by its name, such as `accent`. */
export function colour(name) {
  colours ??= getComputedStyle(document.documentElement);
  return colours.getPropertyValue(`--${name}`).trim();
}

/** The canvas's context in CSS pixels, cleared; null where it is not shown. */
export function begin(canvas) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (width === 0 || height === 0) return null;
  const scale = Math.min(window.devicePixelRatio || 1, 3);
  const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** An area below a line: `values`, the newest last, of `room` places; `top` is the value at the upper edge. */
function area({ context, width, height }, values, room, top, base) {
  const step = width / (room - 1);
  const x = (place) => width - (values.length - 1 - place) * step;
  const y = (value) => base - Math.min(1, value / top) * (base - 2);
  context.beginPath();
  values.forEach((value, place) => context.lineTo(x(place), y(value)));
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.strokeStyle = colour("accent");
  context.stroke();
  context.lineTo(width, base);
  context.lineTo(x(0), base);
  context.closePath();
  context.fillStyle = colour("accent-soft");
  context.fill();
  return { width, height };
}

/** A spark line, scaled to its own largest value. */
export function spark(canvas, values, room) {
  const drawing = begin(canvas);
  if (!drawing) return;
  const { context, width, height } = drawing;
  context.fillStyle = colour("line");
  context.fillRect(0, height - 1, width, 1);
  if (values.length > 1) area(drawing, values, room, Math.max(1, ...values) * 1.08, height - 1);
}

/** An engine's busy share over time, 0 to 1. */
export function strip(canvas, values, room) {
  const drawing = begin(canvas);
  if (!drawing) return;
  const { context, width, height } = drawing;
  context.fillStyle = colour("hover");
  context.beginPath();
  context.roundRect(0, 0, width, height, 4);
  context.fill();
  if (values.length > 1) area(drawing, values, room, 1, height);
}

/** Log-likelihood over time: points `[seconds, value]`, up to `until` seconds. */
export function curve(canvas, points, until) {
  const drawing = begin(canvas);
  if (!drawing || points.length === 0) return;
  const { context, width, height } = drawing;
  const [first, last] = [points[0], points[points.length - 1]];
  const [begun, ended] = [first[0], Math.max(until, last[0], first[0] + 1)];
  const values = points.map((point) => point[1]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (seconds) => ((seconds - begun) / (ended - begun)) * (width - 4);
  const y = (value) => height - 6 - (high === low ? 1 : (value - low) / (high - low)) * (height - 12);
  context.fillStyle = colour("line");
  context.fillRect(0, height - 1, width, 1);
  context.beginPath();
  points.forEach(([seconds, value]) => context.lineTo(x(seconds), y(value)));
  context.lineTo(x(ended), y(last[1]));
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.strokeStyle = colour("accent");
  context.stroke();
  context.beginPath();
  context.arc(x(ended), y(last[1]), 3, 0, 7);
  context.fillStyle = colour("accent");
  context.fill();
}
