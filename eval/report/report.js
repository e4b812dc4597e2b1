"use strict";
// The page's own script. Texts of models are hostile: they reach the page as text nodes only.

const data = (id) => JSON.parse(document.getElementById(id).textContent);
// Resolved when all of the file is read: the libraries and the samples follow this script.
const whole = new Promise((resolve) => addEventListener("DOMContentLoaded", resolve));
const dark = matchMedia("(prefers-color-scheme: dark)");
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888",
  "#b8a800", "#66a61e", "#882255"];

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (typeof value === "boolean") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Control and direction-changing characters spelled out: they could reorder or hide what follows.
function visible(text) {
  return text.replace(/[^\P{C}\n\t]/gu, (character) =>
    "\\u" + character.codePointAt(0).toString(16).padStart(4, "0"));
}

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// ------------------------------------------------------------------------------- figures

function runningMean(values, window) {
  const sums = [0];
  for (const value of values) sums.push(sums[sums.length - 1] + value);
  return values.map((_, i) => {
    const low = Math.max(0, i - (window >> 1)), high = Math.min(values.length, i + (window >> 1) + 1);
    return Number(((sums[high] - sums[low]) / (high - low)).toPrecision(10));
  });
}

// Plotly reads tags in labels; a name has none.
const label = (text) => visible(text).replace(/[<>&]/g, (c) => ({ "<": "‹", ">": "›", "&": "＆" })[c]);

function traces(panel, window) {
  const smooth = window > 1 && !panel.stacked;
  return panel.curves.flatMap((curve, i) => {
    const raw = { x: curve.x, y: curve.y, mode: "lines", line: { color: COLOURS[i % COLOURS.length], width: 1 },
      opacity: 0.35, hoverinfo: "skip", showlegend: false, legendgroup: i };
    const line = { ...raw, name: label(curve.label || panel.title), line: { ...raw.line, width: 2 },
      y: smooth ? runningMean(curve.y, window) : curve.y, opacity: 1, hoverinfo: "all", showlegend: true,
      mode: curve.x.length < 12 && !panel.stacked ? "lines+markers" : "lines", marker: { size: 6 },
      stackgroup: panel.stacked ? "one" : undefined,
      error_y: curve.error && !smooth ? { array: curve.error, thickness: 1.2, width: 3 } : undefined };
    return smooth ? [raw, line] : [line];
  });
}

function layout(figure, panel, logY, printing) {
  const style = getComputedStyle(document.body), colour = (name) => style.getPropertyValue(name).trim();
  const ink = printing ? "#1d2430" : colour("--ink");
  const axis = { gridcolor: printing ? "#dfe3e8" : colour("--line"), zeroline: false, automargin: true };
  const large = panel.curves.some((curve) => curve.y.some((y) => Math.abs(y) >= 1000));
  return {
    ...(printing ? { width: figure.panels.length > 1 ? 335 : 680, height: 270 } : { autosize: true }),
    title: { text: label(panel.title), font: { size: 14 }, x: 0, xref: "paper" },
    font: { color: ink, size: 12 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 50, r: 10, t: 40, b: panel.curves.length > 1 ? 80 : 45 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--tint") },
    showlegend: panel.curves.length > 1,
    legend: { orientation: "h", yref: "container", yanchor: "bottom", y: 0 },
    xaxis: { ...axis, title: { text: label(figure.x_title) }, type: figure.log_x ? "log" : "linear",
      ...(figure.log_x ? { tickvals: panel.curves[0].x } : {}) },
    yaxis: { ...axis, title: { text: label(panel.unit) }, type: logY ? "log" : "linear", exponentformat: "none",
      hoverformat: large ? ",.0f" : ".3~r", ...(figure.y_range && !logY ? { range: figure.y_range } : {}) },
  };
}

function csv(figure) {
  const cell = (value) => /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value;
  const lines = [["panel", "unit", "curve", figure.x_title, "value", "standard error"]];
  for (const panel of figure.panels)
    for (const curve of panel.curves)
      curve.x.forEach((x, i) => lines.push(
        [panel.title, panel.unit, curve.label, x, curve.y[i], curve.error ? curve.error[i] : ""]));
  return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
}

function picture(figure, places) {
  places.forEach((place, i) => Plotly.downloadImage(place, {
    format: "png", width: 1200, height: 600, scale: 2,
    filename: places.length > 1 ? `${figure.name}-${i + 1}` : figure.name,
  }));
}

function figureElement(figure) {
  const places = figure.panels.map(() => make("div"));
  const longest = Math.max(...figure.panels.flatMap((p) => p.curves.map((c) => c.x.length)));
  const smooth = make("input", { type: "range", min: "1", value: longest < 12 ? "1" : "5",
    max: String(Math.max(2, longest >> 1)), step: "2", "aria-label": "smoothing, steps" });
  const width = make("output", {}, smooth.value);
  const log = make("input", { type: "checkbox" });
  const draw = (printing = false) => {
    width.textContent = smooth.value;
    figure.panels.forEach((panel, i) => Plotly.react(
      places[i], traces(panel, Number(smooth.value)), layout(figure, panel, log.checked, printing),
      { responsive: true, displayModeBar: false }));
  };
  smooth.addEventListener("input", () => draw());
  log.addEventListener("change", () => draw());
  const smoothing = longest < 12 ? [] : [make("label", {}, "smoothing ", smooth, " ", width, " steps")];
  const element = make("figure", { id: figure.name },
    make("figcaption", {}, make("b", {}, figure.title), ": ", figure.caption),
    make("div", { class: "tools" }, ...smoothing, make("label", {}, log, " log axis"),
      make("button", { type: "button", click: () => picture(figure, places) }, "PNG"),
      make("button", { type: "button",
        click: () => save(`${figure.name}.csv`, "text/csv", csv(figure)) }, "CSV")),
    make("div", { class: "panels" }, ...places));
  return [element, draw];
}

async function showFigures() {
  const draws = data("figure-data").map((figure) => {
    const [element, draw] = figureElement(figure);
    document.getElementById(figure.name === "accuracy" ? "first-figure" : "figures").append(element);
    return draw;
  });
  const all = (printing) => draws.forEach((draw) => draw(printing));
  await whole;
  addEventListener("beforeprint", () => all(true));  // as wide as paper, in its colours
  addEventListener("afterprint", () => all(false));
  dark.addEventListener("change", () => all(false));
  for (const draw of draws) {
    draw();
    await new Promise((resolve) => setTimeout(resolve));  // the page stays responsive
  }
}

// ------------------------------------------------------------------------------- formulas

const SPAN = /\$\$([^$]{1,2000})\$\$|\$([^$\n]{1,500})\$|\\\[([\s\S]{1,2000}?)\\\]|\\\(([\s\S]{1,500}?)\\\)/g;
const MOST_FORMULAS = 300;  // of one text: KaTeX takes a millisecond for some

// `text` as nodes, its formulas as MathML. KaTeX reads them; it trusts nothing and expands little.
function typeset(text) {
  const nodes = [];
  let end = 0, count = 0;
  for (const match of text.matchAll(SPAN)) {
    if (++count > MOST_FORMULAS) break;
    const place = make("span");
    try {
      katex.render(match[1] ?? match[2] ?? match[3] ?? match[4], place, {
        output: "mathml", displayMode: Boolean(match[1] ?? match[3]), throwOnError: true,
        trust: false, strict: "ignore", maxExpand: 100, maxSize: 10,
      });
    } catch { continue; }  // what is no formula stays as it is written
    nodes.push(visible(text.slice(end, match.index)), place);
    end = match.index + match[0].length;
  }
  nodes.push(visible(text.slice(end)));
  return nodes;
}

// ------------------------------------------------------------------------------- samples

const index = data("sample-index");
index.first = [0];
for (const count of index.count) index.first.push(index.first[index.first.length - 1] + count);
const RIGHT = index.statuses.indexOf("correct");
const PAGE = 50;
const given = new URLSearchParams(location.search);  // the filters, so that a reload or a link keeps them
const state = { page: Number(given.get("page")), matches: null, run: 0 };
const blocks = new Map();

async function block(number) {
  await whole;
  if (!blocks.has(number)) {
    const packed = atob(document.getElementById(`block-${number}`).textContent);
    const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    if (blocks.size > 8) blocks.delete(blocks.keys().next().value);
    blocks.set(number, JSON.parse(await new Response(stream).text()));
  }
  return blocks.get(number);
}

function shares(question) {
  const right = index.checkpoints.map(() => 0), all = index.checkpoints.map(() => 0);
  for (let i = index.first[question]; i < index.first[question + 1]; i++) {
    all[index.c[i]]++;
    if (index.s[i] === RIGHT) right[index.c[i]]++;
  }
  return all.map((count, c) => count ? right[c] / count : null);
}

function wanted(i) {
  if (state.checkpoint !== "" && index.c[i] !== Number(state.checkpoint)) return false;
  if (state.status === "") return true;
  return state.status === "wrong" ? index.s[i] !== RIGHT : index.statuses[index.s[i]] === state.status;
}

function fits(question) {
  const entry = index.questions[question];
  if (state.benchmark && entry.b !== state.benchmark) return false;
  if (state.differ && new Set(shares(question).filter((x) => x !== null)).size < 2) return false;
  if (state.text && !(state.matches && state.matches.has(question)) &&
    !`${entry.t}\n${entry.g}\n${entry.u}`.toLowerCase().includes(state.text.toLowerCase())) return false;
  if (!state.status && state.checkpoint === "") return true;
  for (let i = index.first[question]; i < index.first[question + 1]; i++) if (wanted(i)) return true;
  return false;
}

const checkpointName = (c) => {
  const { run, step } = index.checkpoints[c];
  const several = new Set(index.checkpoints.map((point) => point.run)).size > 1;
  return (several ? `${run}, ` : "") + (step ? `step ${step}` : "start");
};

function sampleElement(i, prompt, [, response, extracted, finish]) {
  const right = index.s[i] === RIGHT, status = index.statuses[index.s[i]];
  const element = make("details", { class: "sample" }, make("summary", {},
    make("span", { class: right ? "right" : "wrong" }, right ? "right" : "wrong"),
    make("span", {}, checkpointName(index.c[i])), make("span", {}, `sample ${index.n[i]}`),
    make("span", { class: "status" }, status), make("span", { class: "soft" }, `${index.t[i]} tokens`),
    make("span", { class: "question" }, visible(extracted ?? ""))));
  element.addEventListener("toggle", () => {
    if (element.open && element.childElementCount === 1)
      element.append(make("p", { class: "soft" }, `ended by: ${finish}`),
        make("details", {}, make("summary", {}, "prompt"), make("pre", { class: "prompt" }, visible(prompt))),
        make("pre", {}, ...(response ? typeset(response) : ["(empty response)"])),
        make("details", {}, make("summary", {}, "as written"), make("pre", {}, visible(response))));
  });
  return element;
}

async function openQuestion(question, element) {
  await whole;
  const entry = index.questions[question];
  element.append(make("pre", {}, ...typeset(entry.t)),
    make("p", {}, "gold: ", ...typeset(entry.g.includes("$") ? entry.g : `$${entry.g}$`), ` (${entry.b}, ${entry.u})`));
  const { p, r } = (await block(entry.k))[question];
  for (let i = index.first[question]; i < index.first[question + 1]; i++) {
    const record = r[i - index.first[question]];
    if (wanted(i)) element.append(sampleElement(i, p[record[0]], record));
  }
}

function questionElement(question) {
  const entry = index.questions[question];
  const bars = shares(question).map((share, c) => make("i", { style: `--right: ${100 * (share ?? 0)}%`,
    title: `${checkpointName(c)}: ${share === null ? "not asked" : (100 * share).toFixed(0) + " % right"}` }));
  const element = make("details", {}, make("summary", {},
    make("span", { class: "bars" }, ...bars), make("span", { class: "soft" }, entry.b),
    make("span", { class: "question" }, visible(entry.t.slice(0, 140)))));
  element.addEventListener("toggle", () => {
    if (element.open && element.childElementCount === 1) openQuestion(question, element);
  });
  return make("li", {}, element);
}

const list = make("ul", { class: "questions" }), told = make("output", { class: "soft" });
const back = make("button", { type: "button", click: () => turn(-1) }, "previous");
const forth = make("button", { type: "button", click: () => turn(1) }, "next");

function turn(by) {
  state.page += by;
  show();
}

function show() {
  const found = [...index.questions.keys()].filter(fits);
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  state.page = Math.max(0, Math.min(state.page, pages - 1));
  list.replaceChildren(...found.slice(state.page * PAGE, (state.page + 1) * PAGE).map(questionElement));
  told.textContent = `${found.length} of ${index.questions.length} questions, ` +
    `${index.c.length} answers; page ${state.page + 1} of ${pages}`;
  back.disabled = state.page === 0;
  forth.disabled = state.page === pages - 1;
  const { matches, run, ...filters } = state;
  const kept = new URLSearchParams(Object.entries(filters).filter(([, value]) => value));
  history.replaceState(null, "", `?${kept}${location.hash}`);
}

// Looks into every response, block by block; a newer search ends this one.
async function searchResponses() {
  const run = ++state.run;
  state.matches = null;
  if (!state.deep || !state.text) return show();
  state.matches = new Set();
  for (let number = 0, last = -1; number < index.questions.length; number++) {
    const entry = index.questions[number];
    const { r } = (await block(entry.k))[number];
    if (run !== state.run) return;
    if (r.some((record) => record[1].toLowerCase().includes(state.text.toLowerCase()))) state.matches.add(number);
    if (entry.k !== last) { last = entry.k; told.textContent = `searching: question ${number}`; }
  }
  show();
}

let waiting = 0;

// An element that sets a filter; it begins with what the address says.
function control(name, tag, attributes, ...children) {
  const element = make(tag, { "aria-label": name, input: () => {
    state[name] = element[property];
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.page = 0; searchResponses(); }, 250);
  }, ...attributes }, ...children);
  const property = element.type === "checkbox" ? "checked" : "value";
  if (given.has(name)) element[property] = given.get(name);
  state[name] = element[property];
  return element;
}

const select = (name, options) =>
  control(name, "select", {}, ...options.map(([value, text]) => make("option", { value }, text)));

function showSamples() {
  if (!index.questions.length) {
    document.getElementById("samples").append(make("p", {}, "No checkpoint is evaluated yet."));
    return;
  }
  const names = [...new Set(index.questions.map((entry) => entry.b))];
  const others = index.statuses.filter((status) => status !== "correct" && status !== "wrong");
  document.getElementById("samples").append(
    make("div", { class: "tools" },
      control("text", "input", { type: "search", placeholder: "search questions, golds, ids" }),
      make("label", {}, control("deep", "input", { type: "checkbox" }), " also in responses"),
      select("status", [["", "right and wrong"], ["correct", "right"], ["wrong", "not right"],
        ...others.map((status) => [status, status.replaceAll("_", " ")])]),
      select("benchmark", [["", "all benchmarks"], ...names.map((name) => [name, name])]),
      select("checkpoint", [["", "all checkpoints"],
        ...index.checkpoints.map((_, c) => [String(c), checkpointName(c)])]),
      make("label", {}, control("differ", "input", { type: "checkbox" }), " checkpoints disagree")),
    list, make("div", { class: "tools" }, back, forth, told));
  searchResponses();
}

showSamples();
showFigures();
document.body.dataset.ready = "yes";
