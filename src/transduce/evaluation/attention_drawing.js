
// The drawings: colours, small pictures, the matrix and the lines of the large view.
const CELLS = [6, 9, 12, 15, 18, 22, 26, 30, 36, 44]; // pixels
const LINE_HEIGHT = 24, MOST_LINES = 3000, LONGEST_LABEL = 18, WITH_NUMBERS = 26, PAPER_WIDTH = 640;
const dark = matchMedia("(prefers-color-scheme: dark)");
// cell: the size of a cell, null for the best one; thresholds in per cent; row, column: the selection.
const state = { form: "matrix", thresholds: { matrix: 0, lines: 2 }, cell: null, row: null, column: null };
let colours; // of the codes 0 to 255, as pixels
let place; // the large view: its kind, values and threshold, and the elements and positions of its drawing

function setColours() {
  const stops = DATA.ramps[dark.matches && !state.print ? 1 : 0];
  const parts = stops.map(stop => [1, 3, 5].map(i => parseInt(stop.slice(i, i + 2), 16)));
  colours = Uint32Array.from({ length: 256 }, (_, code) => {
    const at = code / 255 * (parts.length - 1), i = Math.min(Math.floor(at), parts.length - 2);
    const [r, g, b] = parts[i].map((part, c) => Math.round(part + (at - i) * (parts[i + 1][c] - part)));
    return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  });
  paint($("colours"), Float32Array.from({ length: 256 }, (_, i) => (i / 255) ** 2), 1, 256, 0);
}

function paint(canvas, values, rows, columns, limit) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) {
    pixels[i] = values[i] < limit ? colours[0] : colours[Math.round(255 * Math.sqrt(values[i]))];
  }
  context.putImageData(image, 0, 0);
}

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function drawText(x, y, text, attributes = {}) {
  return draw("text", { x, y, "dominant-baseline": "central", ...attributes }, text);
}

function short(label) {
  const characters = [...label];
  return characters.length > LONGEST_LABEL ? characters.slice(0, LONGEST_LABEL - 1).join("") + "…" : label;
}

function widest(labels, size) {
  const context = widest.context ??= make("canvas").getContext("2d");
  context.font = "bold " + size + "px " + getComputedStyle(document.body).fontFamily;
  return Math.ceil(Math.max(...labels.map(label => context.measureText(short(label)).width)));
}

// The width in which the large view should fit.
function room() {
  return (state.print ? PAPER_WIDTH : $("stage").clientWidth) - 12;
}

// ---- the matrix ---------------------------------------------------------------------------------------------------

function fittingCell(labels) {
  const width = room() - labels;
  if (state.print) return Math.min(CELLS.at(-1), width / place.kind.m);
  return CELLS.findLast(cell => cell * place.kind.m <= width && cell >= 15) ?? 15;
}

function drawMatrix() {
  const { kind, values, limit } = place, { n, m } = kind;
  const cell = state.cell && !state.print ? state.cell : fittingCell(Math.max(widest(kind.rows.labels, 13) + 12, 76));
  const size = Math.max(4, Math.min(13, cell - 2)), [width, height] = [m * cell, n * cell];
  const left = Math.max(widest(kind.rows.labels, size) + 12, 76);
  const above = Math.max(widest(kind.columns.labels, size) + 12, 44);
  const field = make("div", { class: "field" }), canvas = make("canvas");
  field.style.width = width + "px";
  field.style.height = height + "px";
  paint(canvas, values, n, m, limit);
  field.append(canvas, draw("svg", { width, height }, ...marks(cell), draw("g", { id: "selection" })));
  const end = { "text-anchor": "end" };
  const rows = kind.rows.labels.map((label, i) => drawText(left - 7, (i + 0.5) * cell, short(label), end));
  const columns = kind.columns.labels.map((label, i) => drawText(0, 0, short(label),
    { transform: "translate(" + (i + 0.5) * cell + " " + (above - 7) + ") rotate(-90)" }));
  const corner = [drawText(left - 7, 12, kind.titles[1] + " →", { class: "faint", ...end }),
    drawText(left - 7, above - 12, kind.titles[0] + " ↓", { class: "faint", ...end })];
  $("sheet").className = "matrix";
  $("sheet").replaceChildren(
    draw("svg", { class: "corner", width: left, height: above, "font-size": 12 }, ...corner),
    draw("svg", { class: "above", width, height: above, "font-size": size }, ...columns),
    draw("svg", { class: "left", width: left, height, "font-size": size }, ...rows), field);
  Object.assign(place, { cell, rows, columns, field });
}

// The numbers of a matrix with large cells; otherwise a dot on the strongest column of each row.
function marks(cell) {
  const { kind: { n, m }, values, limit } = place, dots = { weak: "", strong: "" }, numbers = [];
  const size = Math.min(12, cell * 0.38);
  for (let i = 0; i < n; i++) {
    const best = strongest(values, i * m, (i + 1) * m);
    for (let j = 0; j < m; j++) {
      const weight = values[i * m + j], kind = Math.sqrt(weight) > 0.52 ? "strong" : "weak";
      const [x, y] = [(j + 0.5) * cell, (i + 0.5) * cell];
      if (j === best) dots[kind] += "M" + x + " " + y + "h0";
      if (cell < WITH_NUMBERS || weight < Math.max(limit, 0.005)) continue;
      const style = { "text-anchor": "middle", "font-size": size, "font-weight": j === best ? 700 : 400 };
      numbers.push(drawText(x, y, Math.round(100 * weight), { class: kind, ...style }));
    }
  }
  if (cell >= WITH_NUMBERS) return numbers;
  const width = Math.max(1.5, cell * 0.3);
  return Object.entries(dots).map(([kind, d]) => draw("path", { class: "dots " + kind, d, "stroke-width": width }));
}

// ---- the lines ----------------------------------------------------------------------------------------------------

function drawLines() {
  const { kind } = place, left = widest(kind.rows.labels, 14) + 14, right = widest(kind.columns.labels, 14) + 70;
  const gap = Math.max(90, Math.min(340, room() - left - right)), top = 30, ends = left + gap;
  const middle = i => top + (i + 0.5) * LINE_HEIGHT;
  const texts = (x, side, anchor) =>
    side.labels.map((label, i) => drawText(x, middle(i), short(label), { "text-anchor": anchor }));
  const rows = texts(left - 7, kind.rows, "end"), columns = texts(ends + 7, kind.columns, "start");
  const { links, count } = strongestLinks();
  const paths = links.map(i => {
    const y1 = middle(Math.floor(i / kind.m)), y2 = middle(i % kind.m), half = left + gap / 2, weight = place.values[i];
    const d = ["M", left, y1, "C", half, y1, half, y2, ends, y2].join(" ");
    return draw("path", { d, "stroke-width": 0.6 + 5.4 * weight, "stroke-opacity": 0.15 + 0.85 * Math.sqrt(weight) });
  });
  const titles = [drawText(left - 7, 12, kind.titles[0], { class: "faint", "text-anchor": "end", "font-size": 12 }),
    drawText(ends + 7, 12, kind.titles[1], { class: "faint", "font-size": 12 })];
  const height = top + Math.max(kind.n, kind.m) * LINE_HEIGHT + 6;
  const drawing = draw("svg", { width: ends + right, height, "font-size": 14 },
    draw("g", { class: "links" }, ...paths), ...titles, ...rows, ...columns);
  $("sheet").className = "lines";
  $("sheet").replaceChildren(drawing);
  Object.assign(place, { rows, columns, links, paths, left, ends, top, drawing, count });
}

// Return the places of the weights that reach the threshold, at most MOST_LINES, and the number of all of them.
function strongestLinks() {
  const { values, limit } = place, links = [];
  for (let i = 0; i < values.length; i++) if (values[i] > 0 && values[i] >= limit) links.push(i);
  const count = links.length;
  if (count > MOST_LINES) links.sort((a, b) => values[b] - values[a]).length = MOST_LINES;
  return { links, count };
}
