// The page of `sidecore ui` in a real browser. scripts/check-ui runs it; each part prints a line.
//
//   node check.mjs SIMULATED [--pictures DIR] [--day]     SIMULATED: the example `simulated`, built
//
// Must stay true: a part fails where the page writes to the console, breaks its policy, or asks another origin.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [simulated, ...words] = process.argv.slice(2);
const option = (name) => (words.includes(name) ? words[words.indexOf(name) + 1] : null);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const DESKTOP = { viewport: { width: 1280, height: 860 } };
const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true };
const PATIENCE_MS = 60000;
const PAD = 18; // as in drawing.js

function must(holds, complaint) {
  if (!holds) throw new Error(complaint);
}

/** Starts the example; ends it with `end`. */
async function serve(...arguments_) {
  const child = spawn(simulated, arguments_, { stdio: ["pipe", "pipe", "inherit"] });
  const url = await new Promise((found, failed) => {
    child.stdout.once("data", (line) => found(String(line).trim().replace("ready ", "")));
    child.once("exit", (code) => failed(new Error(`the example ended with ${code}`)));
  });
  const ended = new Promise((done) => child.once("exit", done));
  return { url, child, end: () => (child.stdin.end(), ended) };
}

/** A page that keeps what goes wrong on it. */
async function open(browser, url, options) {
  const context = await browser.newContext(options);
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const wrong = [];
  const origin = new URL(url).origin;
  page.on("console", (message) => wrong.push(`console ${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.stack}`));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== origin) wrong.push(`another origin: ${request.url()}`);
  });
  await page.exposeFunction("complain", (text) => wrong.push(text));
  await page.addInitScript(() => document.addEventListener("securitypolicyviolation", (event) => window.complain(`policy: ${event.violatedDirective} ${event.blockedURI}`)));
  await page.goto(url);
  await page.waitForSelector("#link.live");
  const close = async () => {
    must(wrong.length === 0, wrong.join("\n"));
    await context.close();
  };
  return { page, wrong, close };
}

async function accessible(page, name) {
  await page.evaluate(axe);
  const { violations, passes } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const shown = violations.map((one) => `${one.id}: ${one.help}\n  ${one.nodes.map((node) => `${node.target} ${node.failureSummary}`).join("\n  ")}`);
  must(violations.length === 0, `axe, ${name}:\n${shown.join("\n")}`);
  must(passes.length > 20, "axe has looked at nothing");
}

const text = (page, selector) => page.locator(selector).innerText();

/** Everything is there, at both widths and in both themes. */
async function looks(browser, url) {
  for (const [name, options] of [["desktop", DESKTOP], ["phone", PHONE]]) {
    for (const colorScheme of ["light", "dark"]) {
      const { page, close } = await open(browser, url, { ...options, colorScheme });
      await page.waitForFunction(() => /[1-9].* [kMG]B\/s/.test(document.getElementById("images-rows").innerText));
      await page.waitForFunction(() => [...document.querySelectorAll(".search-card button")].every((button) => !button.disabled));
      must((await page.locator("#images-rows > tr").count()) === 6, "six images");
      must((await page.locator(".engines .row-of").count()) === 8, "eight engines");
      must((await page.locator("#stack-list tbody tr").count()) === 9, "nine sessions");
      must(/−\d{2,3},\d{3}\.\d\d/.test(await text(page, "#searches-list")), "a log-likelihood");
      must((await text(page, "#tree-sum")).includes("5,000 tips"), "the tree of the command");
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      must(width <= options.viewport.width, `${name}: the page is ${width} pixels wide`);
      await accessible(page, `${name}, ${colorScheme}`);
      await close();
    }
  }
}

async function nothing(browser) {
  const server = await serve("--empty");
  for (const options of [DESKTOP, PHONE]) {
    const { page, close } = await open(browser, server.url, options);
    await page.waitForSelector("#nothing:not([hidden])");
    for (const command of ["block mount", "daemon", "net up", "phylo search", "ui --tree"]) {
      must((await text(page, "main")).includes(`sidecore ${command}`), `the page names ${command}`);
    }
    await accessible(page, "nothing to show");
    await close();
  }
  await server.end();
}

/** From the address bar to a collapsed clade without a mouse. */
async function keyboard(browser, url) {
  const { page, close } = await open(browser, url, DESKTOP);
  await page.waitForSelector("#find:not([disabled])");
  const press = (...keys) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve());
  const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.innerText.split("\n")[0].trim());
  const seen = [];
  for (let count = 0; count < 40 && (await focused()) !== "find"; count += 1) {
    await press("Tab");
    const isVisible = await page.evaluate(() => {
      const style = getComputedStyle(document.activeElement);
      return style.outlineStyle !== "none" && style.outlineWidth !== "0px";
    });
    must(isVisible, `the focus on ${await focused()} cannot be seen`);
    seen.push(await focused());
  }
  must(seen[0] === "Skip to the contents", `the first stop is ${seen[0]}`);
  must(seen.includes("Tree") && seen.some((stop) => stop.startsWith("Open the tree")), `stops: ${seen}`);
  await page.keyboard.type("carex_10");
  must(/^\d+ match(es)?$/.test(await text(page, "#found")), `found: ${await text(page, "#found")}`);
  await press("Enter", "Enter", "Shift+Enter");
  must(/^1 of \d+$/.test(await text(page, "#found")), `found: ${await text(page, "#found")}`);
  must((await text(page, "#selected")).startsWith("Carex_10"), "the match is selected");
  while ((await focused()) !== "canvas") await press("Tab");
  await press("ArrowLeft", "Enter");
  must(/^Clade, \d+ tips, collapsed/.test(await text(page, "#selected")), await text(page, "#selected"));
  await press("Enter", "ArrowRight", "+", "+", "-", "0", "Shift+ArrowDown", "End", "Home");
  must((await text(page, "#selected")).startsWith("The root, 5,000 tips"), await text(page, "#selected"));
  await press("Escape");
  must((await text(page, "#selected")) === "Nothing is selected.", "Escape selects nothing");
  // Out of the canvas again: it is no trap.
  await press("Tab");
  must((await focused()) !== "canvas", "Tab leaves the tree");
  await close();
}

/** Opens files, good and bad ones. */
async function files(browser, url) {
  const { page, close } = await open(browser, url, DESKTOP);
  await page.waitForFunction(() => document.getElementById("tree-sum").textContent.includes("5,000"));
  const give = (name, contents) => page.setInputFiles("#file", { name, mimeType: "text/plain", buffer: Buffer.from(contents) });
  const shows = (selector, part) => page.waitForFunction(([where, what]) => document.querySelector(where).textContent.includes(what), [selector, part]);
  await give("three.nwk", "((a:1,'b c''s':2)0.9:1,c[a comment]:1);\n(d,e,f);(g,(h,i)90/99);");
  await shows("#tree-sum", "three.nwk, 3 tips");
  await page.fill("#find", "b c's");
  must((await text(page, "#found")) === "1 match", "a quoted name is found");
  await page.fill("#number", "3");
  await page.dispatchEvent("#number", "change");
  await shows("#number-name", "Tree of 3");
  for (const [bad, reason] of [
    ["((a,b)", "not closed"], ["a,b;", "outside"], ["(a:x,b);", "branch length"], ["", "holds no tree"],
    ["#NEXUS\nbegin trees;", "NEXUS"], ["(a,b))c;", "outside"], ["('a,b);", "quote"], ["(a b,c);", "two names"],
    ["(".repeat(300000), "not closed"], ["(".repeat(500000), "more than"],
  ]) {
    await give("bad.nwk", bad);
    await shows("#selected", reason);
    must((await text(page, "#tree-sum")).startsWith("three.nwk"), "the tree that was there stays");
  }
  await give("deep.nwk", `${"(".repeat(50000)}a${",b)".repeat(50000)};`);
  await shows("#tree-sum", "deep.nwk, 50,001 tips");
  const dropped = await page.evaluateHandle(() => {
    const data = new DataTransfer();
    data.items.add(new File(["(x,(y,z));"], "dropped.nwk"));
    return data;
  });
  await page.dispatchEvent("body", "drop", { dataTransfer: dropped });
  await shows("#tree-sum", "dropped.nwk, 3 tips");
  // A click selects, a double click collapses, and the button expands.
  await page.click("#fit");
  const box = await page.locator("#canvas").boundingBox();
  await page.mouse.dblclick(box.x + 22, box.y + PAD + ((box.height - 2 * PAD) / 3) * 1.25);
  await shows("#selected", "collapsed");
  await page.click("#collapse");
  must(!(await text(page, "#selected")).includes("collapsed"), "the button expands");
  await page.locator(".search-card button").first().click();
  await shows("#tree-sum", "vertebrates.phy");
  await close();
}

/** Times of frames while a tree of 5,000 tips is zoomed and panned. */
async function frames(browser, url) {
  const { page, close } = await open(browser, url, DESKTOP);
  await page.waitForFunction(() => document.getElementById("tree-sum").textContent.includes("5,000"));
  for (const shape of ["rectangular", "circular"]) {
    await page.selectOption("#shape", shape);
    const times = await page.evaluate(async () => {
      const canvas = document.getElementById("canvas");
      const drawn = [];
      const observer = new PerformanceObserver((list) => drawn.push(...list.getEntriesByName("tree-frame").map((entry) => entry.duration)));
      observer.observe({ type: "measure" });
      const frame = () => new Promise((done) => requestAnimationFrame(done));
      const gaps = [];
      let before = await frame();
      for (let step = 0; step < 240; step += 1) {
        // In by a factor of 60, around, and out again.
        const turned = step < 80 ? -26 : step < 160 ? 0 : 26;
        const place = { clientX: canvas.getBoundingClientRect().left + 700, clientY: canvas.getBoundingClientRect().top + 300 };
        if (turned !== 0) canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: turned, ctrlKey: true, cancelable: true, ...place }));
        else canvas.dispatchEvent(new KeyboardEvent("keydown", { key: step % 40 < 20 ? "ArrowDown" : "ArrowUp", shiftKey: true }));
        const now = await frame();
        gaps.push(now - before);
        before = now;
      }
      await frame();
      observer.disconnect();
      return { drawn, gaps };
    });
    const at = (values, share) => [...values].sort((one, two) => one - two)[Math.floor(values.length * share)].toFixed(1);
    const { drawn, gaps } = times;
    must(drawn.length > 100, `${drawn.length} frames were drawn`);
    console.log(`  ${shape}: drawn in ${at(drawn, 0.5)} ms (median), ${at(drawn, 0.95)} ms (95 %); between frames ${at(gaps, 0.5)} ms, ${at(gaps, 0.95)} ms`);
    // Generous: the machine may be busy, and draws without a graphics card.
    must(Number(at(drawn, 0.5)) < 50, "a frame takes longer than 50 ms");
  }
  await close();
}

/** Names that are markup stay text; what cannot be drawn leaves the rest as it is. */
async function hostile(browser) {
  const server = await serve("--hostile", "--tips", "20");
  const { page, close } = await open(browser, server.url, DESKTOP);
  await page.waitForFunction(() => document.querySelectorAll("#images-rows > tr").length === 7);
  await page.waitForFunction(() => document.querySelectorAll(".search-card").length === 3);
  must((await text(page, "#images-rows")).includes("<img src=x"), "markup is shown as text");
  must((await page.locator("main img, main script").count()) === 0, "markup has become elements");
  await accessible(page, "hostile names");
  await close();
  await server.end();
}

/** The page says when its server is gone. */
async function lost(browser) {
  const server = await serve("--tips", "20", "--period-ms", "200");
  const { page, wrong } = await open(browser, server.url, PHONE);
  await page.waitForSelector("#images-rows > tr");
  await server.end();
  await page.waitForSelector("#link.lost");
  must((await text(page, "#link")).includes("no answer"), await text(page, "#link"));
  // The browser itself writes a line for each failed request.
  must(wrong.every((line) => line.includes("ERR_CONNECTION")), wrong.join("\n"));
  await page.context().close();
}

/** A day of updates in ten minutes: neither the server nor the page grows. */
async function day(browser) {
  const SAMPLES = 86400;
  const server = await serve("--period-ms", "7", "--tips", "500");
  const { page, close } = await open(browser, server.url, DESKTOP);
  const session = await page.context().newCDPSession(page);
  const look = async () => {
    await session.send("HeapProfiler.collectGarbage");
    const { usedSize } = await session.send("Runtime.getHeapUsage");
    const { nodes } = await session.send("Memory.getDOMCounters");
    const status = readFileSync(`/proc/${server.child.pid}/status`, "utf8");
    const sequence = await page.evaluate(async () => (await (await fetch("api/state?since=0")).json()).sequence);
    return { sequence, heap_kib: Math.round(usedSize / 1024), nodes, server_kib: Number(/VmRSS:\s+(\d+)/.exec(status)[1]) };
  };
  let settled = null;
  for (;;) {
    await new Promise((done) => setTimeout(done, 30000));
    const now = await look();
    console.log(`  sample ${now.sequence}: page ${now.heap_kib} KiB, ${now.nodes} nodes; server ${now.server_kib} KiB`);
    // The rings and the curves are full after some minutes of simulated time.
    if (now.sequence > 8000) settled ??= now;
    if (now.sequence < SAMPLES) continue;
    must(now.heap_kib < settled.heap_kib * 1.2 + 1024, "the page has grown");
    must(now.server_kib < settled.server_kib * 1.2 + 1024, "the server has grown");
    must(now.nodes < settled.nodes * 1.2 + 100, "the document has grown");
    break;
  }
  await close();
  await server.end();
}

/** The pictures of docs/ui.md. */
async function pictures(browser, folder) {
  const server = await serve("--period-ms", "100");
  const filled = 32000;
  const take = async (name, options, prepare) => {
    const { page, close } = await open(browser, server.url, options);
    await page.waitForFunction(() => [...document.querySelectorAll(".search-card button")].every((button) => !button.disabled));
    await prepare(page);
    await page.waitForTimeout(600);
    await page.screenshot({ path: join(folder, name) });
    await close();
  };
  await new Promise((done) => setTimeout(done, filled));
  await take("ui-light.png", { viewport: { width: 1280, height: 900 }, colorScheme: "light" }, () => {});
  await take("ui-dark.png", { viewport: { width: 1280, height: 900 }, colorScheme: "dark" }, (page) => page.evaluate(() => document.getElementById("stack").scrollIntoView({ behavior: "instant" })));
  await take("ui-tree.png", { viewport: { width: 1280, height: 900 }, colorScheme: "light" }, async (page) => {
    await page.locator(".search-card button").first().click();
    await page.selectOption("#shape", "circular");
    await page.fill("#find", "carex");
    await page.keyboard.press("Enter");
    await page.click("#fit");
    await page.evaluate(() => document.getElementById("tree").scrollIntoView({ behavior: "instant" }));
  });
  await take("ui-phone.png", { ...PHONE, deviceScaleFactor: 1.5, colorScheme: "dark" }, () => {});
  await server.end();
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: process.getuid() === 0 ? ["--no-sandbox"] : [] });
let failed = 0;
const part = async (name, run) => {
  const begun = Date.now();
  try {
    await run();
    console.log(`ok    ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${error.message}`);
  }
};
if (option("--pictures")) {
  await part("pictures", () => pictures(browser, option("--pictures")));
} else if (words.includes("--day")) {
  await part("a day of updates", () => day(browser));
} else {
  const server = await serve();
  await part("1280 and 390 pixels, light and dark, axe", () => looks(browser, server.url));
  await part("nothing to show", () => nothing(browser));
  await part("keyboard alone", () => keyboard(browser, server.url));
  await part("files", () => files(browser, server.url));
  await part("5,000 tips", () => frames(browser, server.url));
  await part("hostile names", () => hostile(browser));
  await part("a server that is gone", () => lost(browser));
  await server.end();
}
await browser.close();
process.exit(failed > 0 ? 1 : 0);
