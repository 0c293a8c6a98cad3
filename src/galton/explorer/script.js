// Draws the explorer's page from the results in it. Figures are looked up at a point of the grid, never interpolated.
"use strict";
const results = JSON.parse(document.getElementById("results").textContent);
const axes = results.axes;
const NAMES = ["deltas", "bins", "epochs", "epsilons"];
const state = results.start;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

// Numbers as people write them, as in the report of a plan.
const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
function short(value, digits = 3) {
  if (value === 0) return "0";
  if (value >= 1e-3 && value < 1e6) {
    return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits });
  }
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const ten = "10" + [...String(Number(exponent))].map((character) => SUPERSCRIPTS[character]).join("");
  return Number(mantissa) === 1 ? ten : `${Number(mantissa)}\u00a0×\u00a0${ten}`;
}
const times = (ratio, digits = 1) => (ratio >= 10 ? Math.round(ratio).toLocaleString("en") : ratio.toFixed(digits));
const plural = (count, word, many) => `${count.toLocaleString("en")} ${count === 1 ? word : many}`;

// The place of a point in a series: epsilons are innermost (galton.explorer.results.Axes.runs).
function at(series, field, point = state) {
  const place = NAMES.reduce((before, name) => before * axes[name].length + point[name], 0);
  return series[field][place];
}
const value = (name) => axes[name][state[name]];
const known = () => results.series.filter((series) => at(series, "rmse") !== null);

function make(tag, attributes = {}, ...children) {
  const element = tag in SVG_TAGS ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [key, text] of Object.entries(attributes)) element.setAttribute(key, text);
  element.append(...children);
  return element;
}
const SVG_TAGS = { svg: 1, g: 1, line: 1, path: 1, circle: 1, rect: 1, text: 1, title: 1, desc: 1 };

function sample(series) {
  const line = make("line", { x1: 1, x2: 25, y1: 6, y2: 6, stroke: `var(--${series.colour})`, "stroke-width": 3 });
  if (series.dashed) line.setAttribute("stroke-dasharray", "5 3");
  return make("svg", { class: "sample", viewBox: "0 0 26 12", "aria-hidden": "true" }, line);
}
function nameCell(series) {
  const cell = make("th", { scope: "row" }, sample(series), " ", series.label);
  cell.append(make("small", {}, series.note));
  return cell;
}
function barCell(text, note, share, series) {
  const bar = make("span", { class: "bar" });
  bar.style.width = `${Math.max(1, 100 * share)}%`;
  bar.style.background = `var(--${series.colour})`;
  const figure = make("span", { class: "figure" }, text, make("small", {}, note));
  return make("td", {}, figure, make("span", { class: "track" }, bar));
}

function drawErrors() {
  const most = Math.max(...known().map((series) => at(series, "rmse")));
  const least = Math.min(...known().map((series) => at(series, "rmse")));
  byId("error-rows").replaceChildren(
    ...results.series.map((series) => {
      const error = at(series, "rmse");
      if (error === null) return make("tr", {}, nameCell(series), make("td", { colspan: 2 }, missing()));
      const memory = at(series, "memory");
      const note = error === least ? "the least" : `${times(error / least, 2)} × the least`;
      return make(
        "tr",
        error === least ? { class: "own" } : {},
        nameCell(series),
        barCell(short(error), note, error / most, series),
        make("td", { class: "number" }, memory === 0 ? "none" : memory.toLocaleString("en")),
      );
    }),
  );
}
function missing() {
  return value("epochs") === 1
    ? "with one epoch the same as drawn once"
    : "not computed for so many batches: it takes long. It may well be lower";
}

function drawPieces() {
  const [plain, poisson, correlated, cyclic, bins, redrawn] = results.series.map((series) => at(series, "rmse"));
  const best = Math.min(bins, redrawn === null ? bins : redrawn, cyclic);
  const cell = (error) => make("td", {}, make("strong", {}, short(error)), make("small", {}, ratio(plain / error)));
  const ratio = (factor) => (factor === 1 ? "the most" : `${times(factor)} times less`);
  byId("piece-rows").replaceChildren(
    make("tr", {}, make("th", { scope: "row" }, "independent noise"), cell(plain), cell(poisson)),
    make("tr", {}, make("th", { scope: "row" }, "correlated noise"), cell(correlated), cell(best)),
  );
  const saved = Math.round(100 * (1 - best / Math.min(poisson, correlated)));
  const words = [
    `Secret batches alone make the error ${times(plain / poisson)} times less, correlated noise alone `,
    `${times(plain / correlated)} times, both together ${times(plain / best)} times: `,
    saved > 0 ? `${saved}% less than the better of the two.` : "at these numbers, no less than the better of the two.",
  ];
  byId("both-words").textContent = words.join("");
  return { plain, poisson, correlated, cyclic, best };
}

function drawSummary({ plain, poisson, correlated, cyclic, best }) {
  const run = `${plural(value("epochs"), "epoch", "epochs")} of ${plural(value("bins"), "batch", "batches")}`;
  const less = (other) => {
    const percent = Math.round(100 * (1 - best / other));
    return percent > 0 ? `${percent}% less than` : "no less than";
  };
  byId("summary").textContent =
    `At ε = ${short(value("epsilons"))}, δ = ${short(value("deltas"))} and ${run}, correlated noise with secret batches ` +
    `has an error of ${short(best)}: ${times(plain / best)} times less than DP-SGD whose batches are known, ` +
    `${less(poisson)} DP-SGD with Poisson batches, ${less(cyclic)} BandMF with cyclic Poisson batches, and ` +
    `${less(correlated)} correlated noise alone.`;
}

function drawLeaks() {
  const epsilon = value("epsilons");
  const most = Math.max(...known().map((series) => at(series, "epsilon_if_known")));
  const share = (leaked) => (most <= epsilon * 1.001 ? 0.5 : Math.log(leaked / epsilon) / Math.log(most / epsilon));
  byId("leak-rows").replaceChildren(
    ...known().map((series) => {
      const leaked = at(series, "epsilon_if_known");
      const nothing = leaked <= epsilon * 1.001;
      const note = nothing ? "nothing to lose" : `${times(leaked / epsilon)} × the promised`;
      const text = short(nothing ? epsilon : leaked);
      return make("tr", {}, nameCell(series), barCell(text, note, nothing ? 0 : share(leaked), series));
    }),
  );
}

// A plot of a field against an axis, at the other sliders' values.
const WIDTH = 360, HEIGHT = 250, LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 40, INSET = 9;
function plot(svg, name, field, label, title) {
  const values = axes[name];
  const lines = results.series.map((series) => ({
    series,
    points: values.map((_, index) => at(series, field, { ...state, [name]: index })),
  }));
  const all = lines.flatMap((line) => line.points).filter((figure) => figure !== null);
  const low = Math.log(Math.min(...all)) - 0.15, high = Math.log(Math.max(...all)) + 0.15;
  const x = (index) =>
    values.length === 1
      ? (LEFT + WIDTH - RIGHT) / 2
      : LEFT + INSET + ((WIDTH - LEFT - RIGHT - 2 * INSET) * index) / (values.length - 1);
  const y = (figure) => TOP + ((HEIGHT - TOP - BOTTOM) * (high - Math.log(figure))) / (high - low);
  const parts = [make("title", {}, title), make("desc", {}, describe(lines, name))];
  for (const tick of ticks(Math.exp(low), Math.exp(high))) {
    parts.push(make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }));
    parts.push(make("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
  }
  values.forEach((figure, index) => {
    parts.push(make("text", { x: x(index), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, short(figure)));
  });
  parts.push(make("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, label));
  const here = x(state[name]);
  parts.push(make("line", { x1: here, x2: here, y1: TOP, y2: HEIGHT - BOTTOM, class: "here" }));
  for (const { series, points } of lines) {
    let path = "";
    points.forEach((figure, index) => {
      if (figure === null) return;
      path += `${index && points[index - 1] !== null ? "L" : "M"}${x(index).toFixed(1)} ${y(figure).toFixed(1)}`;
      const radius = index === state[name] ? 5 : 3;
      parts.push(make("circle", { cx: x(index), cy: y(figure), r: radius, fill: `var(--${series.colour})` }));
    });
    const line = make("path", { d: path, fill: "none", stroke: `var(--${series.colour})`, "stroke-width": 2 });
    if (series.dashed) line.setAttribute("stroke-dasharray", "6 4");
    if (path) parts.push(line);
  }
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.replaceChildren(...parts);
}
function describe(lines, name) {
  const texts = lines.map(({ series, points }) => {
    const figures = points.map((figure, index) =>
      figure === null ? "" : `${short(figure)} at ${short(axes[name][index])}`,
    );
    return `${series.label}: ${figures.filter(Boolean).join(", ")}`;
  });
  return texts.join("; ");
}
function ticks(low, high) {
  const steps = high / low > 300 ? [1] : high / low > 30 ? [1, 3] : [1, 2, 5];
  const marks = [];
  for (let ten = Math.floor(Math.log10(low)); ten <= Math.ceil(Math.log10(high)); ten += 1) {
    marks.push(...steps.map((step) => step * 10 ** ten).filter((mark) => mark >= low && mark <= high));
  }
  return marks;
}

function drawCurves() {
  const field = document.querySelector("input[name=field]:checked").value;
  const words = { rmse: "error", noise_multiplier: "noise multiplier" }[field];
  byId("field-words").textContent =
    field === "rmse"
      ? "Error: root mean square over the rounds of the noise in the sum of all gradients so far, clip norm 1."
      : "Noise multiplier, for C scaled to sensitivity 1 over the run. Between mechanisms with different C it does " +
        "not tell which is better; the error does.";
  for (const [name, label] of Object.entries({ epsilons: "ε", deltas: "δ", bins: "batches per epoch", epochs: "epochs" })) {
    const svg = byId(`curve-${name}`);
    if (svg !== null) plot(svg, name, field, label, `${words} against ${label}`);
  }
}

function drawControls() {
  const examples = Number(byId("examples").value);
  const size = examples / value("bins");
  const usable = Number.isInteger(examples) && examples >= value("bins");
  for (const name of NAMES) {
    const text = short(value(name));
    byId(`${name}-value`).textContent = text;
    const slider = byId(name);
    if (slider !== null) slider.setAttribute("aria-valuetext", text);
  }
  const total = examples.toLocaleString("en");
  byId("bins-hint").textContent = usable ? `batch size ${short(size, 4)}, of ${total} examples` : "";
  byId("batch-size").textContent = usable
    ? `make batches of ${short(size, 4)}.`
    : `: must be a whole number of at least ${value("bins")}.`;
  byId("command").textContent = usable
    ? `galton plan --examples ${examples} --batch-size ${Number(size.toPrecision(6))} --epochs ${value("epochs")} ` +
      `--epsilon ${value("epsilons")} --delta ${value("deltas").toExponential()} -o plan/`
    : "";
}

function draw() {
  drawControls();
  drawErrors();
  drawSummary(drawPieces());
  drawCurves();
  drawLeaks();
}

for (const name of NAMES) {
  const slider = byId(name);
  if (slider === null) continue;
  slider.value = state[name];
  slider.addEventListener("input", () => {
    state[name] = Number(slider.value);
    draw();
  });
}
byId("examples").addEventListener("input", drawControls);
for (const choice of document.querySelectorAll("input[name=field]")) choice.addEventListener("change", drawCurves);
byId("legend").replaceChildren(
  ...results.series.map((series) => make("li", {}, sample(series), " ", series.label)),
);
draw();
