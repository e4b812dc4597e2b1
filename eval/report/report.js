"use strict";
// The page's own script. Model texts are hostile: they reach the page as text nodes only.

const byId = (id) => document.getElementById(id);
const data = (id) => JSON.parse(byId(id).textContent);
// Resolves when the whole file is read: the libraries and the samples follow this script.
const whole = new Promise((resolve) => addEventListener("DOMContentLoaded", resolve));

async function unpacked(id) {  // the value of a compressed block
  await whole;
  const packed = Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A closed element whose content is made when it is first opened.
function folded(summary, fill, name = "") {
  const element = make("details", { class: name }, make("summary", {}, ...summary));
  element.addEventListener("toggle", async () => element.append(...await fill()), { once: true });
  return element;
}

// Spells out control and direction characters, which could reorder or hide what follows.
const visible = (text) => text.replace(/[^\P{C}\n\t]/gu, (character) =>
  "\\u" + character.codePointAt(0).toString(16).padStart(4, "0"));

// ------------------------------------------------------------------------------- metrics

const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888"];
const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A line per run, [steps, values] each, with the ends of both axes and the names of the runs.
function curves(series, names) {
  const [width, height, left, below] = [900, 300, 80, 40];
  const [xs, ys] = [0, 1].map((axis) => series.flatMap((points) => points[axis]));
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const place = (x, y) => [left + (width - left - 10) * (x - x0) / (x1 - x0 || 1),
    (height - below) - (height - below - 20) * (y - y0) / (y1 - y0 || 1)].join();
  const lines = series.map(([steps, values], run) => draw("polyline", { fill: "none", "stroke-width": 2,
    stroke: COLORS[run % COLORS.length], points: steps.map((x, i) => place(x, values[i])).join(" ") }));
  const text = (x, y, words, fill = "currentColor", anchor = "start") =>
    draw("text", { x, y, fill, "font-size": 14, "text-anchor": anchor }, words);
  const labels = names.map((name, run) => text(left + 200 * run, 14, visible(name), COLORS[run % COLORS.length]));
  return draw("svg", { viewBox: `0 0 ${width} ${height}` }, ...lines, ...(names.length > 1 ? labels : []),
    text(0, 25, y1.toPrecision(3)), text(0, height - below, y0.toPrecision(3)),
    text(left, height - 15, `step ${x0}`), text(width - 10, height - 15, `step ${x1}`, "currentColor", "end"));
}

// Draws the logged metric that was chosen; its values are unpacked when one is chosen first.
async function showMetric() {
  const key = byId("metric").value;
  const series = key ? (await unpacked("metric-block"))[key] : [];
  if (key !== byId("metric").value) return;
  byId("metric-figure").replaceChildren(...(key ? [curves(series, data("run-names"))] : []));
}

// ------------------------------------------------------------------------------- answers

const FORMULA = /\$\$([^$]{1,2000})\$\$|\$([^$\n]{1,500})\$|\\\[([\s\S]{1,2000}?)\\\]|\\\(([\s\S]{1,500}?)\\\)/g;
const MOST_FORMULAS = 300;  // of one text: some take KaTeX a millisecond
const MATHML = { output: "mathml", trust: false, strict: "ignore", maxExpand: 100, maxSize: 10 };

// `text` as nodes, with its formulas as MathML; what is no formula stays as it is written.
function typeset(text) {
  const nodes = [];
  let end = 0;
  for (const match of [...text.matchAll(FORMULA)].slice(0, MOST_FORMULAS)) {
    const place = make("span"), [, shown, inline, shown2, inline2] = match;
    try {
      katex.render(shown ?? inline ?? shown2 ?? inline2, place, { ...MATHML, displayMode: Boolean(shown ?? shown2) });
    } catch { continue; }
    nodes.push(visible(text.slice(end, match.index)), place);
    end = match.index + match[0].length;
  }
  return [...nodes, visible(text.slice(end))];
}

const index = data("sample-index"), filters = byId("filters");
const RIGHT = index.statuses.indexOf("correct"), PAGE = 50;
const checkpointName = (c) => filters.elements.checkpoint.options[c + 1].text;
let filter = {}, found = [], search = 0;
const texts = (question) => unpacked(`block-${question}`);  // its prompts p and its samples' records r

function shares(question) {  // of right samples, by checkpoint; null: not asked
  return index.checkpoints.map((_, c) => {
    const own = question.s.filter((sample) => sample[0] === c);
    return own.length ? own.filter((sample) => sample[2] === RIGHT).length / own.length : null;
  });
}

const contains = (text) => text.toLowerCase().includes(filter.text.toLowerCase());
const wanted = ([checkpoint, , status]) =>
  (!filter.checkpoint || checkpoint === Number(filter.checkpoint)) &&
  (!filter.status || (filter.status === "not right" ? status !== RIGHT : index.statuses[status] === filter.status));

async function fits(number) {
  const question = index.questions[number], { b, t, g, u, s } = question;
  if ((filter.benchmark && b !== filter.benchmark) || !s.some(wanted)) return false;
  if (filter.differ && new Set(shares(question).filter((x) => x !== null)).size < 2) return false;
  return !filter.text || contains(`${t}\n${g}\n${u}`) ||
    Boolean(filter.deep) && (await texts(number)).r.some(([, response]) => contains(response));
}

const ENDS = { stop: "end of the turn, or a stop string", length: "limit of tokens" };
function sampleElement([checkpoint, sample, status, tokens], prompts, [prompt, response, extracted, finish]) {
  const verdict = status === RIGHT ? "right" : "wrong";
  const summary = [[verdict, verdict], ["", checkpointName(checkpoint)], ["", `sample ${sample}`],
    ["status", index.statuses[status].replaceAll("_", " ")], ["soft", `${tokens ?? "?"} tokens`],
    ["question", extracted ? `answer: ${visible(extracted)}` : ""]].filter(([name, text]) => name !== "status" || !["correct", "wrong"].includes(text));
  return folded(summary.map(([name, text]) => make("span", { class: name }, text)), () => [
    make("p", { class: "soft" }, `ended by: ${ENDS[finish] ?? finish}`),
    folded(["prompt"], () => [make("pre", { class: "prompt" }, visible(prompts[prompt]))]),
    make("pre", {}, ...(response ? typeset(response) : ["(empty response)"])),
    folded(["as written"], () => [make("pre", {}, visible(response))])], "sample");
}

function questionElement(number) {
  const question = index.questions[number], { b, t, g, u, s } = question;
  const bars = shares(question).map((share, c) => make("i", { style: `--right: ${100 * (share ?? 0)}%`,
    title: `${checkpointName(c)}: ${share === null ? "not asked" : (100 * share).toFixed(0) + " % right"}` }));
  const summary = [make("span", { class: "bars" }, ...bars), make("span", { class: "soft" }, b),
    make("span", { class: "question" }, visible(t.slice(0, 140)))];
  return make("li", {}, folded(summary, async () => {
    const { p, r } = await texts(number);
    return [make("pre", {}, ...typeset(t)),
      make("p", {}, "gold: ", ...typeset(g.includes("$") ? g : `$${g}$`), ` (${b}, ${u})`),
      ...s.flatMap((sample, i) => wanted(sample) ? [sampleElement(sample, p, r[i])] : [])];
  }));
}

function showMore() {
  const list = byId("questions"), { length } = list.children;
  list.append(...found.slice(length, length + PAGE).map(questionElement));
  byId("found").textContent = `${list.children.length} of ${found.length} questions found, ${index.questions.length} in all`;
  byId("more").hidden = list.children.length === found.length;
}

// Applies the filters; a search in responses reads all blocks and ends when a newer one starts.
async function apply() {
  const run = ++search, fitting = [];
  filter = Object.fromEntries(new FormData(filters));
  for (const number of index.questions.keys()) {
    if (await fits(number)) fitting.push(number);
    if (run !== search) return;
    if (filter.deep && number % 50 === 0) byId("found").textContent = `searching: question ${number}`;
  }
  found = fitting;
  byId("questions").replaceChildren();
  showMore();
  // A reload or a link keeps the filters.
  const kept = Object.entries(filter).filter(([, value]) => value);
  history.replaceState(null, "", `?${new URLSearchParams(kept)}${location.hash}`);
}

for (const [name, value] of new URLSearchParams(location.search)) {
  const field = filters.elements.namedItem(name);
  if (field) field[field.type === "checkbox" ? "checked" : "value"] = value;
}
let waiting = 0;
filters.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(apply, 250);
});
filters.addEventListener("submit", (event) => event.preventDefault());
byId("more").addEventListener("click", showMore);
byId("metric")?.addEventListener("change", showMetric);
if (byId("metric")?.value) showMetric();  // a reload keeps the choice
apply();
document.body.dataset.ready = "yes";
