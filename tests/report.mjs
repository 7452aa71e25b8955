// The page of `runner report` in a browser. `report.sh` makes the pages beside this file and starts it.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const HOSTILE = "<img src=x onerror=alert(1)>";
const VIEWS = { desktop: { width: 1280, height: 900 }, phone: { width: 390, height: 844, isMobile: true, hasTouch: true } };

let browser;
before(async () => {
  browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
});
after(() => browser.close());

/** Opens a page that fails the test on any error, dialog or request to elsewhere. */
async function open(name, view = "desktop", scheme = "light") {
  const page = await browser.newPage();
  const problems = [];
  page.on("console", (message) => ["error", "warn"].includes(message.type()) && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(error.message));
  page.on("dialog", (dialog) => { problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => /^(file|data):/.test(request.url()) || problems.push(request.url()));
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.setViewport(VIEWS[view]);
  await page.goto(new URL(`${name}.html`, import.meta.url).href);
  await page.waitForSelector("footer");
  return { page, problems };
}

const column = (page, title, table = 0) => page.evaluate((title, table) => {
  const whole = document.querySelectorAll("table")[table];
  const at = [...whole.querySelectorAll("thead th")].findIndex((head) => head.textContent === title);
  return [...whole.querySelectorAll("tbody tr")].map((row) => row.children[at].textContent);
}, title, table);

const sortButton = (page, title) => page.evaluateHandle((title) =>
  [...document.querySelectorAll("table thead button")].find((button) => button.textContent === title), title);

const sortState = (page, title) => page.evaluate((title) =>
  [...document.querySelectorAll("table thead th")].find((head) => head.textContent === title).getAttribute("aria-sort"), title);

for (const name of ["swept", "published"]) {
  for (const view of Object.keys(VIEWS)) {
    for (const scheme of ["light", "dark"]) {
      test(`${name} on ${view}, ${scheme}: no error, no overflow, accessible, charts are drawn`, async () => {
        const { page, problems } = await open(name, view, scheme);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= VIEWS[view].width, `the page is ${wide} px wide`);
        const blank = await page.evaluate(() => [...document.querySelectorAll("canvas")].filter((canvas) => {
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          return !pixels.some((value) => value > 0);
        }).length);
        assert.equal(blank, 0, "blank charts");
        const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number));
        assert.equal(ground[0] < 128, scheme === "dark", `background ${ground}`);
        await page.screenshot({ path: fileURLToPath(new URL(`${name}-${view}-${scheme}.png`, import.meta.url)), fullPage: true });
        await page.evaluate(AXE);
        const { violations } = await page.evaluate(() => axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"] }));
        const told = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 120)).join(" | ")}`);
        assert.deepEqual(told, []);
        assert.deepEqual(problems, []);
        await page.close();
      });
    }
  }
}

test("columns sort by exact numbers, in both directions, and back to the order of the file", async () => {
  const { page, problems } = await open("quickstart");
  const original = await column(page, "strategy");
  const button = await sortButton(page, "tok/s");
  const numbers = async () => (await column(page, "tok/s")).map((text) => (text.endsWith("k") ? 1000 * parseFloat(text) : parseFloat(text)));
  await button.click();
  assert.equal(await sortState(page, "tok/s"), "ascending");
  const rising = (await numbers()).filter(Number.isFinite);
  assert.deepEqual(rising, [...rising].sort((one, other) => one - other));
  assert.equal((await column(page, "tok/s")).at(-1), "OOM", "rows without a figure come last");
  await button.click();
  assert.equal(await sortState(page, "tok/s"), "descending");
  const falling = (await numbers()).filter(Number.isFinite);
  assert.deepEqual(falling, [...rising].reverse());
  await button.click();
  assert.equal(await sortState(page, "tok/s"), "none");
  assert.deepEqual(await column(page, "strategy"), original);
  await (await sortButton(page, "point")).click();
  assert.equal((await column(page, "point"))[0], "batch 4", "numbers in texts are compared as numbers");
  assert.deepEqual(problems, []);
  await page.close();
});

test("rows are filtered by text and by choice", async () => {
  const { page } = await open("quickstart");
  await page.type("input[type=search]", "recompute batch");
  assert.deepEqual(await column(page, "strategy"), ["recompute", "recompute"]);
  const select = await page.evaluateHandle(() => [...document.querySelectorAll(".tools label")].find((label) => label.textContent.startsWith("point")).querySelector("select"));
  await select.select("1");
  assert.deepEqual(await column(page, "point"), ["batch 12"]);
  assert.match(await page.$eval(".count", (count) => count.textContent), /^1 of 12 rows/);
  await page.close();
});

test("names with markup stay text", async () => {
  const { page, problems } = await open("swept");
  assert.equal(await page.$$eval("img, b, iframe, object", (found) => found.length), 0);
  assert.ok((await column(page, "strategy")).includes(HOSTILE));
  assert.equal(await page.$eval("h1", (title) => title.textContent), "<b>quickstart");
  assert.deepEqual(problems, []);
  await page.close();
});

test("the keyboard reaches tables, sorts them, and moves along the timeline", async () => {
  const { page } = await open("swept");
  const focused = () => page.evaluate(() => ({ name: document.activeElement.localName, text: document.activeElement.textContent, role: document.activeElement.getAttribute("role") }));
  const seen = [];
  for (let presses = 0; presses < 400; presses++) {
    await page.keyboard.press("Tab");
    const now = await focused();
    seen.push(now);
    if (now.name === "button" && now.text === "MiB") {
      await page.keyboard.press("Enter");
      assert.equal(await sortState(page, "MiB"), "ascending");
    }
    if (now.name === "canvas") break;
  }
  const heads = await page.$$eval("table:first-of-type thead button", (buttons) => buttons.map((button) => button.textContent));
  for (const head of new Set(heads.slice(0, 6))) assert.ok(seen.some((one) => one.name === "button" && one.text === head), head);
  assert.ok(seen.some((one) => one.role === "region"), "the scrolled table takes the focus");
  assert.equal(seen.at(-1).name, "canvas");
  const operation = async () => Number((await page.$eval(".pointed .what", (what) => what.textContent)).match(/^Operation (\d+) of/)[1]);
  const start = await operation();
  await page.keyboard.press("ArrowRight");
  assert.equal(await operation(), start + 1);
  await page.keyboard.press("PageUp");
  assert.equal(await operation(), start - 9);
  await page.close();
});

test("screen readers get names of tables, headers, plots and states", async () => {
  const { page } = await open("swept");
  const tree = await page.accessibility.snapshot({ interestingOnly: false });
  const all = [];
  const walk = (node) => { all.push(node); (node.children || []).forEach(walk); };
  walk(tree);
  const names = (role) => all.filter((node) => node.role === role).map((node) => node.name);
  assert.equal(names("table").filter((name) => /strategies compared|effects|machines|commands/.test(name)).length, 4, `${names("table")}`);
  assert.ok(names("columnheader").includes("tok/s") && names("rowheader").includes("plain"));
  const plots = await page.$$eval("canvas", (canvases) => canvases.map((canvas) => canvas.getAttribute("aria-label")));
  assert.ok(plots.every((label) => label.length > 40), `${plots}`);
  assert.ok(plots.some((label) => label.includes("plain, 28.9 MiB live")), `${plots}`);
  await page.close();
});

test("pointing at the timeline names the value there", async () => {
  const { page } = await open("swept");
  const expected = await page.evaluate(() => {
    const canvas = document.querySelector("figure[data-kind=timeline] canvas");
    canvas.scrollIntoView({ block: "center" });
    const { scales: { x, y } } = Chart.getChart(canvas);
    const box = canvas.getBoundingClientRect();
    const [timeline] = data.experiments[0].timelines;
    // Just above zero is the first value of the first role, live during the whole step.
    const first = timeline.values.find((value) => value.role === 0);
    const unit = timeline.roles.reduce((sum, role) => Math.max(sum, ...role.bytes), 0) > 2 ** 20 ? 2 ** 20 : 1;
    return { name: first.name, x: box.left + x.getPixelForValue(9.5), y: box.top + y.getPixelForValue(first.bytes / unit / 2) };
  });
  await page.mouse.move(expected.x, expected.y);
  const text = await page.$eval(".pointed", (panel) => panel.textContent);
  assert.ok(text.startsWith("Operation 10 of ") && text.includes(`${expected.name}: `), text);
  await page.click("figure[data-kind=timeline] input[value=layer]");
  assert.match(await page.$eval("figure[data-kind=timeline] h3", (title) => title.textContent), /by layer/);
  await page.close();
});

test("a table of 10,000 rows opens, and shows all of them on request", async () => {
  const began = performance.now();
  const { page, problems } = await open("large");
  assert.ok(performance.now() - began < 20_000, "it takes too long to open");
  assert.equal((await column(page, "strategy")).length, 300);
  await page.click("button.more");
  assert.equal((await column(page, "strategy")).length, 10_000);
  assert.deepEqual(problems, []);
  await page.close();
});

test("pictures for the documentation", async () => {
  const folder = process.env.PICTURES;
  const { page } = await open("quickstart");
  const picture = { type: "webp", quality: 80 };
  await page.screenshot({ ...picture, path: `${folder}/report-desktop.webp`, clip: { x: 0, y: 0, width: 1280, height: 1300 } });
  await page.close();
  const phone = await open("swept", "phone", "dark");
  await phone.page.$eval("figure[data-kind=timeline]", (figure) => figure.scrollIntoView({ block: "start" }));
  await phone.page.touchscreen.tap(170, 300);
  await phone.page.screenshot({ ...picture, path: `${folder}/report-phone.webp` });
  await phone.page.close();
});
