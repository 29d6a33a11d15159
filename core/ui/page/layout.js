// Places of a tree's nodes: `x` is the depth, 0 to 1; `y` is a row, counted in tips.
//
// A collapsed clade takes one row. Nodes inside it have no place and are not in `order`.

/** Places of all visible nodes; `collapsed` has a 1 for each collapsed node. */
export function layout(tree, collapsed, useLengths) {
  const { count, parent, children, end } = tree;
  const x = depths(tree, useLengths);
  const y = new Float32Array(count);
  const first = new Float32Array(count).fill(Infinity); // rows of the first and the last child
  const last = new Float32Array(count).fill(-Infinity);
  const top = new Float32Array(count); // rows that the subtree covers
  const bottom = new Float32Array(count);
  const far = new Float32Array(count); // the largest depth in the subtree
  const order = new Int32Array(count);
  let visible = 0;
  let rows = 0;
  for (let node = 0; node < count; ) {
    order[visible] = node;
    visible += 1;
    far[node] = x[node];
    if (children[node] === 0 || collapsed[node] === 1) {
      y[node] = top[node] = bottom[node] = rows;
      rows += 1;
      for (let inner = node + 1; inner < end[node]; inner += 1) far[node] = Math.max(far[node], x[inner]);
      node = end[node];
    } else {
      top[node] = Infinity;
      bottom[node] = -Infinity;
      node += 1;
    }
  }
  for (let place = visible - 1; place >= 0; place -= 1) {
    const node = order[place];
    if (children[node] > 0 && collapsed[node] !== 1) y[node] = (first[node] + last[node]) / 2;
    const above = parent[node];
    if (above < 0) continue;
    first[above] = Math.min(first[above], y[node]);
    last[above] = Math.max(last[above], y[node]);
    top[above] = Math.min(top[above], top[node]);
    bottom[above] = Math.max(bottom[above], bottom[node]);
    far[above] = Math.max(far[above], far[node]);
  }
  return { x, y, first, last, top, bottom, far, rows, order: order.subarray(0, visible) };
}

function depths(tree, useLengths) {
  const { count, distance, height } = tree;
  const x = new Float32Array(count);
  if (useLengths && tree.hasLengths) {
    let farthest = 0;
    for (let node = 0; node < count; node += 1) farthest = Math.max(farthest, distance[node]);
    for (let node = 0; node < count; node += 1) x[node] = distance[node] / farthest;
  } else {
    const levels = Math.max(1, height[0]);
    for (let node = 0; node < count; node += 1) x[node] = 1 - height[node] / levels;
  }
  return x;
}
