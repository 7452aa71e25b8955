"use strict";
// Texts come from tables and files of others: they become text nodes, never HTML.

const data = JSON.parse(document.getElementById("data").textContent);
/** The rows that a table shows at first. */
const MOST_ROWS = 300;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== "") made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Text whose parts in backticks are code. */
const prose = (text) => text.split("`").map((part, at, all) => (at % 2 && at < all.length - 1 ? element("code", {}, part) : part));

const textOf = (cell) => (Array.isArray(cell) ? cell[0] : cell);
const plural = (n, thing) => `${n.toLocaleString("en")} ${thing}${n === 1 ? "" : "s"}`;
let ids = 0;
const newId = (name) => `${name}-${++ids}`;

/** Orders cells: numbers by their exact values, texts with numbers in them by these; missing ones last in both directions. */
function order(one, other, direction) {
  const missing = (cell) => cell === "" || cell === "-";
  if (missing(one) || missing(other)) return missing(one) - missing(other);
  const [numbered, alsoNumbered] = [Array.isArray(one), Array.isArray(other)];
  if (numbered !== alsoNumbered) return numbered ? -1 : 1;
  const found = numbered ? one[1] - other[1] : one.localeCompare(other, "en", { numeric: true });
  return direction * found;
}

const TONES = [["x", "bad"], ["-", "bad"], ["~", "doubt"], ["!", "doubt"], ["r", "doubt"], ["*", "good"]];
const toneOf = (mark) => (TONES.find(([sign]) => mark.includes(sign)) || [])[1];

function copyButton(code) {
  const button = element("button", { type: "button", "aria-label": `Copy ${code.textContent}` }, "Copy");
  button.addEventListener("click", async () => {
    const range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    // The selection stays if the browser denies access to the clipboard.
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
  });
  return button;
}

function cellElement(cell, column) {
  const text = textOf(cell);
  if (column.kind === "name") return element("th", { scope: "row", title: text }, text);
  // Other texts state why there is no command.
  if (column.kind === "code" && text.startsWith("runner ")) {
    const code = element("code", {}, text);
    return element("td", { class: "command" }, copyButton(code), code);
  }
  const kind = { number: "number", text: "text" }[column.kind] || "";
  return element("td", { class: `${kind}${text === "-" ? " none" : ""}`.trim() }, text);
}

/** A table with sortable columns, a text filter, and one for each column with few values. */
function tableSection(table) {
  const state = { column: -1, direction: 1, text: "", choices: new Map(), all: false };
  const marks = table.columns.findIndex((column) => column.title === "mark");
  const body = element("tbody");
  const count = element("span", { class: "count", role: "status" });
  const more = element("button", { type: "button", class: "more", hidden: "hidden" });
  more.addEventListener("click", () => { state.all = true; draw(); });

  const heads = table.columns.map((column, at) => {
    const button = element("button", { type: "button", title: column.help }, column.title);
    const head = element("th", { scope: "col", "aria-sort": "none", class: column.kind === "number" ? "number" : "" }, button);
    button.addEventListener("click", () => {
      if (state.column !== at) Object.assign(state, { column: at, direction: 1 });
      else if (state.direction === 1) state.direction = -1;
      else Object.assign(state, { column: -1, direction: 1 });
      draw();
    });
    return head;
  });

  function visible() {
    const wanted = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    let rows = table.rows.filter((row) => {
      for (const [at, choice] of state.choices) if (textOf(row[at]) !== choice) return false;
      const text = row.map(textOf).join("\n").toLowerCase();
      return wanted.every((word) => text.includes(word));
    });
    if (state.column >= 0) {
      rows = [...rows].sort((one, other) => order(one[state.column], other[state.column], state.direction));
    }
    return rows;
  }

  function draw() {
    const rows = visible();
    const shown = state.all ? rows : rows.slice(0, MOST_ROWS);
    body.replaceChildren(...shown.map((row) => {
      const tone = marks < 0 ? "" : toneOf(textOf(row[marks]));
      return element("tr", { class: tone }, ...row.map((cell, at) => cellElement(cell, table.columns[at])));
    }));
    heads.forEach((head, at) => {
      const sorted = state.direction === 1 ? "ascending" : "descending";
      head.setAttribute("aria-sort", at === state.column ? sorted : "none");
    });
    const of = rows.length < table.rows.length ? `${rows.length.toLocaleString("en")} of ` : "";
    const first = shown.length < rows.length ? `; the first ${shown.length} are shown` : "";
    count.textContent = `${of}${plural(table.rows.length, "row")}${first}`;
    more.hidden = shown.length === rows.length;
    more.textContent = `Show all ${rows.length.toLocaleString("en")} rows`;
  }

  const tools = element("div", { class: "tools" });
  if (table.rows.length > 1) {
    const search = element("input", { type: "search", oninput: (event) => { state.text = event.target.value; draw(); } });
    tools.append(element("label", {}, "Filter ", search));
    table.columns.forEach((column, at) => {
      const values = [...new Set(table.rows.map((row) => textOf(row[at])))];
      if (column.kind !== "choice" || values.length < 2 || values.length > 60) return;
      values.sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
      const options = values.map((value, index) => element("option", { value: String(index) }, value.trim() || "none"));
      const select = element("select", {}, element("option", { value: "all" }, "all"), ...options);
      select.addEventListener("change", () => {
        if (select.value === "all") state.choices.delete(at);
        else state.choices.set(at, values[Number(select.value)]);
        draw();
      });
      tools.append(element("label", {}, `${column.title} `, select));
    });
  }
  tools.append(count);
  draw();
  const caption = element("caption", {}, `${table.caption}. Buttons in the head sort the rows.`);
  const whole = element("table", {}, caption, element("thead", {}, element("tr", {}, ...heads)), body);
  const scroll = element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": table.caption }, whole);
  return [tools, scroll, more];
}

/** A heading with an id, for links. */
function heading(text) {
  return element("h2", { id: newId("section") }, text);
}

function verdict(name, sentences) {
  const paragraphs = sentences.map((sentence, at) => element("p", { class: at === 0 ? "first" : "" }, ...prose(sentence)));
  return element("section", { class: "verdict", "aria-label": `Verdict on ${name}` }, element("h2", {}, "Verdict"), ...paragraphs);
}

function experiment(one) {
  const facts = one.heading.map((fact, at) => (at === 0 ? fact.replace(one.name, "").trim() : fact)).filter(Boolean);
  const article = element("article", { id: newId("experiment") },
    element("h1", {}, one.name),
    element("ul", { class: "facts" }, ...facts.map((fact) => element("li", {}, fact))));
  if (one.verdict.length) article.append(verdict(one.name, one.verdict));
  const pair = [chartFigure(one.speed, "speed"), chartFigure(one.memory, "memory")].filter(Boolean);
  if (pair.length) article.append(element("div", { class: "pair" }, ...pair));
  article.append(heading("Comparison"), ...tableSection(one.comparison));
  article.append(element("p", { class: "legend" }, ...prose(one.legend.map((part) => `${part}.`).join(" "))));
  article.append(...one.notes.map((note) => element("p", { class: "note" }, ...prose(note))));
  if (one.timelines.length) {
    article.append(heading("Timeline of a step"), element("p", { class: "lead" },
      "Live memory of the device during each operation of an optimizer step, as it was measured. Point at the plot, or focus it ",
      "and press the arrow keys: the text below names the operation and the values that are live."));
    article.append(timelineFigure(one.timelines));
  }
  const loss = chartFigure(one.loss, "loss");
  if (loss) article.append(heading("Losses"), loss);
  article.append(heading("Effects"), element("p", { class: "lead" },
    "Actions of each strategy, counted while the run trained; predicted beside measured memory; an independent reading of memory."),
    ...tableSection(one.effects));
  article.append(heading("Machine"), ...tableSection(one.machines));
  article.append(heading("Repeat a row"), element("p", { class: "lead" },
    "Each command trains one row again, for a shell in the folder where this report was made."), ...tableSection(one.commands));
  return article;
}

function footer() {
  const licence = element("details", {}, element("summary", {}, "Licence of Chart.js, which draws the plots"),
    element("pre", {}, data.licence));
  return element("footer", {}, element("p", {}, `Made by runner ${data.version}. This page loads nothing from elsewhere.`), licence);
}

function start() {
  const main = document.getElementById("content");
  const articles = data.experiments.map(experiment);
  if (articles.length > 1) {
    const links = articles.map((article, at) =>
      element("li", {}, element("a", { href: `#${article.id}` }, data.experiments[at].name)));
    main.append(element("nav", { "aria-label": "Experiments" }, element("ul", {}, ...links)));
  }
  main.append(...articles, footer());
  drawAll();
}
