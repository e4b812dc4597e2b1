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

// ------------------------------------------------------------------------------- figures

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888",
  "#b8a800", "#66a61e", "#882255"];
const DARK = ["#6cb6ff", "#ff8c42", "#2fd0a0", "#e79cc8", "#f2b94b", "#a8d8ff", "#b0b0b0",
  "#d8cc3a", "#8fd14f", "#e07a9b"];
const DASHES = ["solid", "dash", "dot", "dashdot"];  // a curve beyond the colors has the next one
const dark = matchMedia("(prefers-color-scheme: dark)");
// Plotly reads tags in labels.
const label = (text) => visible(text).replace(/[<>&]/g, (c) => ({ "<": "‹", ">": "›", "&": "＆" })[c]);

const LINE = 34;  // characters of a line of the legend
const wrapped = (text) => visible(text).match(new RegExp(`.{1,${LINE}}`, "gsu")).map(label).join("<br>");

const runningMean = (values, half) => values.map((_, i) => {
  const near = values.slice(Math.max(0, i - half), i + half + 1);
  return near.reduce((sum, value) => sum + value, 0) / near.length;
});

function traces(panel, window, printing) {
  const [colors, faint] = !printing && dark.matches ? [DARK, 0.6] : [LIGHT, 0.35];
  const smooth = window > 1 && !panel.stacked;
  return panel.curves.flatMap((curve, i) => {
    const dash = DASHES[Math.floor(curve.color / colors.length) % DASHES.length];
    const raw = { x: curve.x, y: curve.y, mode: "lines", line: { color: colors[curve.color % colors.length], dash, width: 1 },
      opacity: faint, hoverinfo: "skip", showlegend: false, legendgroup: i };
    const line = { ...raw, name: wrapped(curve.label || panel.title), line: { ...raw.line, width: 2 },
      y: smooth ? runningMean(curve.y, window >> 1) : curve.y, opacity: 1, hoverinfo: "all", showlegend: true,
      mode: curve.x.length < 12 && !panel.stacked ? "lines+markers" : "lines", marker: { size: 6 },
      stackgroup: panel.stacked ? "one" : undefined,
      error_y: curve.error && !smooth ? { array: curve.error, thickness: 1.2, width: 3 } : undefined };
    return smooth ? [raw, line] : [line];
  });
}

function layout(figure, panel, log, printing, width) {
  const longest = Math.max(...panel.curves.map((curve) => curve.label.length)), lines = Math.ceil(longest / LINE);
  const beside = Math.max(1, Math.floor(width / (8 * Math.min(longest, LINE) + 50)));  // legend entries in a row
  const legend = 45 + Math.max(longest && 35, 19 * lines * Math.ceil(panel.curves.length / beside));
  const style = getComputedStyle(document.body), color = (name) => style.getPropertyValue(name).trim();
  const [ink, grid] = printing ? ["#1d2430", "#dfe3e8"] : [color("--ink"), color("--line")];
  const axis = { gridcolor: grid, zeroline: false, automargin: true };
  const negative = panel.curves.some((curve) => curve.y.some((y) => y < 0));
  const large = panel.curves.some((curve) => curve.y.some((y) => Math.abs(y) >= 1000));
  return {
    ...(printing ? { width, height: 190 + legend } : { autosize: true, height: 256 + legend }),
    title: { text: label(panel.title), font: { size: 14 }, x: 0, xref: "paper" },
    font: { color: ink, size: 12 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 50, r: 10, t: 40, b: legend },
    hovermode: "x unified", hoverlabel: { bgcolor: color("--tint") }, showlegend: Boolean(panel.curves[0].label),
    legend: { orientation: "h", yref: "container", yanchor: "bottom", y: 0 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--soft"), activecolor: ink },
    xaxis: { ...axis, title: { text: label(figure.x_title) }, type: figure.log_x ? "log" : "linear",
      ...(figure.log_x ? { tickvals: panel.curves[0].x } : {}) },
    yaxis: { ...axis, title: { text: label(panel.unit) }, type: log ? "log" : "linear", exponentformat: "none",
      hoverformat: large ? ",.0f" : ".3~r", ...(panel.y_range && !log ? { range: panel.y_range } : { rangemode: negative ? "normal" : "nonnegative" }) },
  };
}

// Adds a figure to an element of the page and returns the function that draws it.
function addFigure(figure, place) {
  const places = figure.panels.map(() => make("div"));
  const longest = Math.max(...figure.panels.flatMap((p) => p.curves.map((c) => c.x.length)));
  const few = longest < 12 || figure.panels.every((p) => p.stacked || p.curves.some((c) => c.error));  // no smoothing
  const window = make("input", { type: "range", min: 1, max: Math.max(2, longest >> 1), step: 2,
    value: few ? 1 : 5, "aria-label": "smoothing, steps" });
  const width = make("output"), log = make("input", { type: "checkbox" });
  const draw = (printing = false) => {
    width.textContent = window.value;
    figure.panels.forEach((panel, i) => Plotly.react(places[i], traces(panel, Number(window.value), printing),
      layout(figure, panel, log.checked, printing, printing ? (places.length > 1 ? 335 : 680) : places[i].clientWidth),
      { responsive: true, displaylogo: false, displayModeBar: !printing, modeBarButtons: [["toImage"]],
        toImageButtonOptions: { filename: `${figure.name}-${i + 1}`, width: 1200, height: 600, scale: 2 } }));
  };
  for (const control of [window, log]) control.addEventListener("input", () => draw());
  const csv = { download: `${figure.name}.csv`, href: "data:text/csv," + encodeURIComponent(figure.csv) };
  place.append(make("figure", { id: figure.name },
    make("figcaption", {}, make("b", {}, figure.title), ": ", figure.caption),
    make("div", { class: "tools" },
      ...(few ? [] : [make("label", {}, "smoothing ", window, " ", width, " steps")]),
      make("label", {}, log, " log axis"), make("a", csv, "CSV")),
    make("div", { class: "panels" }, ...places)));
  return draw;
}

// Draws the logged metric that was chosen; its values are unpacked when one is chosen first.
async function showMetric() {
  const key = byId("metric").value, place = byId("metric-figure");
  const values = key ? (await unpacked("metric-block"))[key] : [];
  const curves = data("run-names").map((label, color) => ({ label, color, x: values[color]?.[0], y: values[color]?.[1] }))
    .filter((curve) => curve.x?.length);
  if (key !== byId("metric").value) return;
  place.replaceChildren();
  draws.delete("metric");
  if (!key) return;
  const cell = (text) => JSON.stringify(text.replace(/^[=+\-@\t\r]/, "'$&"));  // no formula of a spreadsheet
  const lines = curves.flatMap(({ label, x, y }) => x.map((step, i) => `${cell(label)},${step},${y[i]}`));
  const figure = { name: key.replace(/\W+/g, "-"), title: key, x_title: "training step",
    caption: "from metrics.jsonl; of more than 2,000 points the lowest and highest of each interval, also in the CSV",
    panels: [{ title: key, unit: "", curves }], csv: ["run,training step,value", ...lines].join("\n") };
  draws.set("metric", addFigure(figure, place));
  draws.get("metric")();
}

const draws = new Map();
async function showFigures() {
  for (const figure of data("figure-data")) {
    const first = ["accuracy", "validation"].includes(figure.name);
    draws.set(figure.name, addFigure(figure, byId(first ? "first-figure" : "figures")));
  }
  const all = (printing) => draws.forEach((draw) => draw(printing));
  await whole;
  byId("metric")?.addEventListener("change", showMetric);
  if (byId("metric")?.value) showMetric();  // a reload keeps the choice
  addEventListener("beforeprint", () => all(true));  // as wide as paper, in light colors
  addEventListener("afterprint", () => all(false));
  dark.addEventListener("change", () => all(false));
  for (const draw of draws.values()) {
    draw();
    await new Promise((resolve) => setTimeout(resolve));  // the page stays responsive
  }
}

// ------------------------------------------------------------------------------- answers

// As in pandoc: a dollar beside a space, before a digit or after a backslash is an amount.
const FORMULA = /(?<!\\)\$\$([^$]{1,2000})\$\$|(?<!\\)\$(?!\s)((?:[^$\\\n]|\\.){1,500})(?<!\s)\$(?!\d)|\\\[([\s\S]{1,2000}?)\\\]|\\\(([\s\S]{1,500}?)\\\)/g;
const MOST_FORMULAS = 300;  // of one text: some take KaTeX a millisecond
const MATHML = { output: "mathml", trust: false, strict: "ignore", maxExpand: 100, maxSize: 10 };

// `text` as nodes, with its formulas as MathML; what is no formula stays as it is written.
function typeset(text) {
  const nodes = [];
  let end = 0;
  for (const match of [...text.matchAll(FORMULA)].slice(0, MOST_FORMULAS)) {
    const place = make("span"), [, shown, inline, shown2, inline2] = match;
    try {
      const formula = (shown ?? inline ?? shown2 ?? inline2).replace(/(?<!\\)%/g, "\\%");  // no comment
      katex.render(formula, place, { ...MATHML, displayMode: Boolean(shown ?? shown2) });
    } catch { continue; }
    nodes.push(visible(text.slice(end, match.index)), place);
    end = match.index + match[0].length;
  }
  return [...nodes, visible(text.slice(end))];
}

// A gold is typeset if it is TeX. KaTeX would drop spaces of words, and the braces of a set.
const typesetGold = (gold) => typeset(/[\\^_]/.test(gold) && !gold.includes("$") ? `$${gold}$` : gold);

const index = data("sample-index"), filters = byId("filters");
const RIGHT = index.statuses.indexOf("correct"), PAGE = 50;
const checkpointName = (c) => filters.elements.checkpoint.options[c + 1].text;
let filter = {}, found = [], search = 0, block = {};

async function texts(question) {  // its prompts p and the records r of its samples
  const number = index.questions[question].k;
  if (block.number !== number) block = { number, content: await unpacked(`block-${number}`) };
  return block.content[question];
}

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
      make("p", {}, "gold: ", ...typesetGold(g), ` (${b}, ${u})`),
      folded(["as written"], () => [make("pre", {}, visible(`${t}\n\ngold: ${g}`))]),
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
apply();
showFigures();
// A table that is wider than the page says so.
const marked = new ResizeObserver((entries) => entries.forEach(({ target }) =>
  target.classList.toggle("cut", target.scrollWidth > target.clientWidth)));
for (const table of document.querySelectorAll(".scroll")) marked.observe(table);
document.body.dataset.ready = "yes";
