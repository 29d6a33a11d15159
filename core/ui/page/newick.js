// Trees in Newick format, as arrays: node 0 is the root, and each node comes before its children.
//
// Texts are anybody's: no recursion, and bounds on what is read.

export const NODES_MAX = 400000;
export const TREES_MAX = 10000;

/** Where each tree of a text begins and ends, without reading it. */
export function trees(text) {
  const found = [];
  let begun = 0;
  let at = 0;
  while (at < text.length && found.length < TREES_MAX) {
    const letter = text[at];
    if (letter === "'") at = endOf(text, at + 1, "'");
    else if (letter === "[") at = endOf(text, at + 1, "]");
    else if (letter === ";") {
      if (text.slice(begun, at).trim() !== "") found.push([begun, at]);
      begun = at + 1;
    }
    at += 1;
  }
  // The last semicolon is often forgotten.
  if (found.length < TREES_MAX && text.slice(begun).trim() !== "") found.push([begun, text.length]);
  return found;
}

function endOf(text, from, mark) {
  const end = text.indexOf(mark, from);
  return end < 0 ? text.length : end;
}

/** Reads one tree. Throws an Error with a line for people. */
export function parse(text) {
  const parent = [];
  const label = [];
  const length = [];
  const reader = { text, at: 0 };
  const open = []; // the clades that are not closed yet
  let node = -1; // the node that a label and a length belong to
  const add = () => {
    if (parent.length >= NODES_MAX) throw new Error(`the tree has more than ${NODES_MAX} nodes`);
    parent.push(open.length > 0 ? open[open.length - 1] : -1);
    label.push("");
    length.push(NaN);
    return parent.length - 1;
  };
  blank(reader);
  if (text.slice(reader.at, reader.at + 6).toUpperCase() === "#NEXUS") throw new Error("this is a NEXUS file; sidecore ui --tree FILE reads it");
  while (reader.at < text.length) {
    const letter = text[reader.at];
    if (letter === "(") {
      if (node >= 0) fail(reader, "a clade cannot begin");
      if (parent.length > 0 && open.length === 0) fail(reader, "a second tree begins without `;`");
      open.push(add());
      reader.at += 1;
    } else if (letter === "," || letter === ")") {
      if (open.length === 0) fail(reader, `\`${letter}\` is outside of all parentheses`);
      if (node < 0) add(); // a tip without a name
      reader.at += 1;
      node = letter === ")" ? open.pop() : -1;
    } else if (letter === ":") {
      if (node < 0) node = add();
      reader.at += 1;
      blank(reader);
      const word = plainWord(reader);
      const value = Number(word);
      if (word === "" || !Number.isFinite(value)) fail(reader, `\`${word.slice(0, 20)}\` is no branch length`);
      length[node] = value;
    } else {
      const word = letter === "'" ? quoted(reader) : plainWord(reader);
      if (node < 0) {
        if (parent.length > 0 && open.length === 0) fail(reader, "a second tree begins without `;`");
        node = add();
      }
      if (label[node] !== "") fail(reader, "two names in a row");
      label[node] = word;
    }
    blank(reader);
  }
  if (open.length > 0) fail(reader, `${open.length} parentheses are not closed`);
  if (parent.length === 0) throw new Error("the text holds no tree");
  return finish(parent, label, length);
}

function fail(reader, reason) {
  throw new Error(`character ${reader.at + 1}: ${reason}`);
}

/** Passes blanks and comments over. */
function blank(reader) {
  for (;;) {
    const letter = reader.text[reader.at];
    if (letter === "[") reader.at = endOf(reader.text, reader.at, "]") + 1;
    else if (letter !== undefined && letter <= " ") reader.at += 1;
    else return;
  }
}

const END = /[()[\]:;,'\s]/g;

function plainWord(reader) {
  END.lastIndex = reader.at;
  const end = END.exec(reader.text)?.index ?? reader.text.length;
  if (end === reader.at) fail(reader, `\`${reader.text[reader.at] ?? "the end"}\` is unexpected`);
  const word = reader.text.slice(reader.at, end);
  reader.at = end;
  return word;
}

function quoted(reader) {
  let word = "";
  let from = reader.at + 1;
  for (;;) {
    const end = reader.text.indexOf("'", from);
    if (end < 0) fail(reader, "a quote is not closed");
    word += reader.text.slice(from, end);
    reader.at = end + 1;
    if (reader.text[reader.at] !== "'") return word;
    word += "'";
    from = reader.at + 1;
  }
}

/** The tree's arrays, with what follows from them. */
function finish(parents, label, lengths) {
  const count = parents.length;
  const parent = Int32Array.from(parents);
  const length = Float32Array.from(lengths);
  const children = new Int32Array(count);
  const end = new Int32Array(count); // one behind the last node of the subtree
  const tips = new Int32Array(count);
  const height = new Int32Array(count);
  for (let node = count - 1; node >= 0; node -= 1) {
    if (children[node] === 0) tips[node] = 1;
    end[node] = Math.max(end[node], node + 1);
    const above = parent[node];
    if (above < 0) continue;
    children[above] += 1;
    tips[above] += tips[node];
    height[above] = Math.max(height[above], height[node] + 1);
    end[above] = Math.max(end[above], end[node]);
  }
  const distance = new Float32Array(count);
  let hasLengths = false;
  for (let node = 1; node < count; node += 1) {
    const own = length[node];
    if (own > 0) hasLengths = true;
    distance[node] = distance[parent[node]] + (own > 0 ? own : 0);
  }
  const support = supports(label, children);
  return { count, parent, label, length, children, end, tips, height, distance, hasLengths, ...support };
}

/** Support in percent, of labels such as `98`, `0.98` and `98/100`; NaN where there is none. */
function supports(label, children) {
  const support = new Float32Array(label.length).fill(NaN);
  let largest = 0;
  let hasSupport = false;
  for (let node = 1; node < label.length; node += 1) {
    if (children[node] === 0 || label[node] === "") continue;
    const value = Number(label[node].split("/")[0]);
    if (!(value >= 0)) continue;
    support[node] = value;
    largest = Math.max(largest, value);
    hasSupport = true;
  }
  if (largest <= 1) support.forEach((value, node) => (support[node] = value * 100));
  return { support, hasSupport };
}
