
// The page: the choice of a head and a token by pointer or keyboard, the status line for screen readers, and the table.

// ---- the large view -----------------------------------------------------------------------------------------------

function show() {
  const { kind, layer, head, form } = state;
  place = { kind, values: weights(kind, layer, head), limit: state.thresholds[form] / 100 };
  $("name").textContent = $("which").textContent = nameOf(kind, layer, head);
  $("threshold").value = state.thresholds[form];
  $("limit").textContent = state.thresholds[form] + " %";
  $("zoom").hidden = $("scale").hidden = form !== "matrix";
  $("stage").setAttribute("aria-roledescription", form === "matrix" ? "matrix of weights" : "two columns with lines");
  form === "matrix" ? drawMatrix() : drawLines();
  select(state.row, state.column);
  fillStrongest();
}

// Select a row, a column, both (a cell), or none: null.
function select(row, column) {
  Object.assign(state, { row, column });
  place.rows.forEach((text, i) => text.setAttribute("class", i === row ? "on" : ""));
  place.columns.forEach((text, i) => text.setAttribute("class", i === column ? "on" : ""));
  state.form === "matrix" ? selectCell() : selectLinks();
  $("line").textContent = describe();
}

function selectCell() {
  const { cell, kind: { n, m } } = place, { row, column } = state, shapes = [];
  const add = (kind, x, y, width, height) => shapes.push(draw("rect", { class: kind, x, y, width, height }));
  if (row !== null) add("line", 0, row * cell, m * cell, cell);
  if (column !== null) add("line", column * cell, 0, cell, n * cell);
  if (shapes.length === 2) add("cell", column * cell, row * cell, cell, cell);
  $("selection").replaceChildren(...shapes);
}

function selectLinks() {
  const { links, paths, kind: { m, columns }, values } = place, { row, column } = state;
  const isFree = row === null && column === null;
  paths.forEach((path, i) => {
    const from = Math.floor(links[i] / m), to = links[i] % m;
    path.style.display = isFree || from === row || (row === null && to === column) ? "" : "none";
    path.setAttribute("class", from === row && to === column ? "on" : "");
  });
  place.columns.forEach((text, j) => {
    const weight = row === null ? 0 : values[row * m + j];
    text.replaceChildren(short(columns.labels[j]));
    if (weight >= 0.005) text.append(draw("tspan", { class: "faint", dx: 10, "font-size": 12 }, percent(weight)));
  });
}

function describe() {
  const { kind, values } = place, { row, column } = state, { n, m } = kind;
  if (row === null && column === null) return hint();
  const rows = row === null ? Array.from({ length: n }, (_, i) => i) : [row];
  const columns = column === null ? Array.from({ length: m }, (_, j) => j) : [column];
  const cells = rows.flatMap(i => columns.map(j => [values[i * m + j], i, j])).sort((a, b) => b[0] - a[0]).slice(0, 3);
  const isolate = label => "\u2068" + label + "\u2069"; // a label from right to left leaves the rest in order
  const texts = cells.filter(([weight], i) => i === 0 || weight >= 0.001).map(
    ([weight, i, j]) => isolate(kind.rows.labels[i]) + " ← " + isolate(kind.columns.labels[j]) + " " + percent(weight));
  const isBest = row !== null && column !== null && strongest(values, row * m, (row + 1) * m) === column;
  const end = isBest ? ", the strongest of the row" : "";
  return nameOf(kind, state.layer, state.head) + ": " + texts.join(", ") + end;
}

function hint() {
  if (state.form === "lines" && !place.count) return "No weight reaches the threshold. Lower it to see lines.";
  if (state.form === "lines" && place.count > MOST_LINES) {
    return "The " + MOST_LINES + " strongest of " + place.count + " lines. Raise the threshold to see fewer.";
  }
  return "Point at a word or a cell, or use the arrow keys.";
}

function move(key) {
  const { kind: { n, m }, values } = place, isNew = state.row === null || state.column === null;
  const i = state.row ?? 0, j = state.column ?? 0;
  const targets = {
    ArrowUp: [i - 1, j], ArrowDown: [i + 1, j], ArrowLeft: [i, j - 1], ArrowRight: [i, j + 1],
    PageUp: [i - 10, j], PageDown: [i + 10, j], Home: [i, 0], End: [i, m - 1],
    Enter: [i, strongest(values, i * m, (i + 1) * m)],
  };
  if (key === "Escape") select(null, null);
  else if (key === "+" || key === "-") zoom(key === "+" ? 1 : -1);
  else if (key in targets) {
    const [row, column] = isNew && key !== "Enter" ? [i, j] : targets[key];
    select(Math.max(0, Math.min(n - 1, row)), Math.max(0, Math.min(m - 1, column)));
    reveal();
  } else return false;
  return true;
}

// Scroll the stage until the selected cell or word is visible.
function reveal() {
  const stage = $("stage"), { row, column } = state;
  if (state.form === "lines") return place.rows[row].scrollIntoView({ block: "nearest" });
  const { cell, field } = place, before = 2 * cell, after = 3 * cell;
  const keep = (now, at, start, room) => Math.max(Math.min(now, at - before), at + start + after - room);
  stage.scrollLeft = keep(stage.scrollLeft, column * cell, field.offsetLeft, stage.clientWidth);
  stage.scrollTop = keep(stage.scrollTop, row * cell, field.offsetTop, stage.clientHeight);
}

// Return the row and the column under the pointer.
function pointed(event) {
  const { kind: { n, m } } = place, within = (i, count) => i >= 0 && i < count ? i : null;
  if (state.form === "matrix") {
    const box = place.field.getBoundingClientRect(), at = offset => Math.floor(offset / place.cell);
    return [within(at(event.clientY - box.top), n), within(at(event.clientX - box.left), m)];
  }
  const box = place.drawing.getBoundingClientRect(), x = event.clientX - box.left;
  const i = Math.floor((event.clientY - box.top - place.top) / LINE_HEIGHT);
  return [x < place.left ? within(i, n) : null, x > place.ends ? within(i, m) : null];
}

function zoom(steps) {
  const at = CELLS.findIndex(cell => cell >= place.cell);
  state.cell = CELLS[Math.max(0, Math.min(CELLS.length - 1, at + steps))];
  if (state.form === "matrix") show();
}

// ---- the words ----------------------------------------------------------------------------------------------------

function fillSentences() {
  $("source").textContent = DATA.source.words.slice(0, -1).map(([, , text]) => text).join("").trim();
  $("output").replaceChildren(...DATA.target.words.slice(0, -1).flatMap(([begin, end, text], i) => {
    const word = text.trimStart(), sure = probability(begin, end);
    const kind = sure < 0.4 ? "doubtful" : sure < 0.7 ? "unsure" : "sure";
    const span = make("span", { class: kind, title: "probability " + percent(sure) }, word);
    return [i === 0 ? "" : text.slice(0, -word.length), span];
  }));
}

function fillStrongest() {
  const { kind, values } = place, isOutput = kind.rows === DATA.target, table = byWords(kind, values);
  const title = (text, name = "") => make("th", { scope: "col", class: name }, text);
  const word = text => make("bdi", {}, text.trim());
  const ranks = ["strongest", "second", "third"].flatMap(rank => [title("weight", "number"), title(rank)]);
  const lines = kind.rows.words.map(([begin, end, text], i) => {
    const order = table[i].map((_, j) => j).sort((a, b) => table[i][b] - table[i][a]).slice(0, 3);
    const sources = order.flatMap(j => [
      make("td", { class: "number" }, percent(table[i][j])), make("td", {}, word(kind.columns.words[j][2]))]);
    const sure = isOutput ? [make("td", {}, percent(probability(begin, end)))] : [];
    return make("tr", {}, make("th", { scope: "row" }, word(text)), ...sure, ...sources);
  });
  const first = [title(kind.titles[0]), ...(isOutput ? [title("probability")] : [])];
  $("strongest").replaceChildren(make("thead", {}, make("tr", {}, ...first, ...ranks)), make("tbody", {}, ...lines));
}

// ---- all heads ----------------------------------------------------------------------------------------------------

function fillHeads() {
  const { kind } = state, names = columnsOf(kind);
  const titles = names.map(name => make("th", { scope: "col" }, name === "rollout" ? "roll" : String(name)));
  const cell = (layer, head) => {
    const worth = DATA.worth?.[nameOf(kind, layer, head)];
    const label = nameOf(kind, layer, head) + (worth === undefined ? "" : ", worth " + worth.toFixed(4));
    const button = make("button", { type: "button", "aria-label": label, title: label }, make("canvas"));
    if (worth !== undefined) button.append(worthBar(worth));
    button.addEventListener("click", () => choose(kind, layer, head));
    Object.assign(button.dataset, { layer, head });
    return make("td", {}, button);
  };
  const lines = kind.layers.map(layer =>
    make("tr", {}, make("th", { scope: "row" }, String(layer)), ...names.map(name => cell(layer, name))));
  $("heads").className = Math.max(kind.n, kind.m) > 40 ? "fine" : "";
  $("heads").replaceChildren(make("thead", {}, make("tr", {}, make("td"), ...titles)), make("tbody", {}, ...lines));
  const path = kind.name === "cross" ? "the layer, followed back through the whole encoder"
    : "all layers up to this one, multiplied";
  const rollout = ", and rollout (roll): the mean weights of " + path
    + ", where half of each word stays in place (Abnar and Zuidema, 2020)";
  const bars = " Bars: what a head is worth, the loss of a token in nats that the model gains without it; the length is"
    + " the square root.";
  $("about").textContent = "Rows: layers. Columns: heads, their mean" + (DATA.rollout ? rollout : "") + "."
    + (DATA.worth ? bars : "");
  markHead();
  return paintHeads();
}

// A bar below a head, as long as the square root of what the head is worth against the head that is worth most.
function worthBar(worth) {
  const bar = make("i", { class: "worth" });
  const most = Math.max(...Object.values(DATA.worth));
  bar.style.width = 100 * Math.sqrt(Math.max(0, worth) / most || 0) + "%";
  return bar;
}

// Paint the small pictures; the rollout, which takes longest, after the others are on the screen.
async function paintHeads() {
  const { kind } = state, buttons = [...$("heads").querySelectorAll("button")];
  const isLate = button => button.dataset.head === "rollout";
  for (const button of [...buttons.filter(button => !isLate(button)), ...buttons.filter(isLate)]) {
    if (isLate(button)) await new Promise(resolve => setTimeout(resolve));
    if (!button.isConnected) return;
    const { layer, head } = button.dataset;
    paint(button.firstChild, weights(kind, Number(layer), Number(head) || head), kind.n, kind.m, 0);
  }
}

function markHead() {
  for (const button of $("heads").querySelectorAll("button")) {
    const isChosen = button.dataset.layer === String(state.layer) && button.dataset.head === String(state.head);
    button.tabIndex = isChosen ? 0 : -1;
    button.setAttribute("aria-pressed", isChosen);
  }
}

function choose(kind, layer, head) {
  const isOther = kind !== state.kind;
  Object.assign(state, { kind, layer, head }, isOther ? { row: null, column: null } : {});
  show();
  if (!isOther) return markHead();
  $("panel").setAttribute("aria-label", kind.name);
  [...$("kinds").children].forEach((tab, i) => {
    tab.setAttribute("aria-selected", kinds[i] === kind);
    tab.tabIndex = kinds[i] === kind ? 0 : -1;
  });
  return fillHeads();
}

// ---- start --------------------------------------------------------------------------------------------------------

function addTabs() {
  $("kinds").append(...kinds.map(kind => {
    const name = kind.name[0].toUpperCase() + kind.name.slice(1);
    const tab = make("button", { type: "button", role: "tab", "aria-controls": "panel" }, name);
    tab.addEventListener("click", () => {
      const heads = columnsOf(kind), layer = kind.layers.includes(state.layer) ? state.layer : kind.layers.at(-1);
      choose(kind, layer, heads.includes(state.head) ? state.head : heads[0]);
    });
    return tab;
  }));
}

function isPlain(event) {
  return !event.ctrlKey && !event.altKey && !event.metaKey;
}

// Move the focus by arrow keys among elements in lines of `width`, and click what gets it.
function moveFocus(event, elements, width) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width };
  const ends = { Home: 0, End: elements.length - 1 };
  const next = elements[ends[event.key] ?? elements.indexOf(document.activeElement) + steps[event.key]];
  if (!(event.key in steps || event.key in ends) || !isPlain(event)) return;
  event.preventDefault();
  if (next) next.click(), next.focus();
}

function listen() {
  const stage = $("stage");
  $("kinds").addEventListener("keydown", event => moveFocus(event, [...$("kinds").children], 1));
  $("heads").addEventListener("keydown", event => {
    moveFocus(event, [...$("heads").querySelectorAll("button")], columnsOf(state.kind).length);
  });
  for (const radio of document.getElementsByName("form")) {
    radio.addEventListener("change", () => { state.form = radio.value; show(); });
  }
  $("threshold").addEventListener("input", () => {
    state.thresholds[state.form] = Number($("threshold").value);
    show();
  });
  $("smaller").addEventListener("click", () => zoom(-1));
  $("larger").addEventListener("click", () => zoom(1));
  stage.addEventListener("keydown", event => { if (isPlain(event) && move(event.key)) event.preventDefault(); });
  stage.addEventListener("pointerdown", event => select(...pointed(event)));
  stage.addEventListener("pointermove", event => { // a page that scrolls under a resting pointer also sends this event
    if (event.movementX || event.movementY) select(...pointed(event));
  });
  stage.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") select(null, null); });
  addEventListener("resize", () => { if (!state.cell) show(); });
  dark.addEventListener("change", recolour);
  addEventListener("beforeprint", () => { state.print = true; recolour(); });
  addEventListener("afterprint", () => { state.print = false; recolour(); });
}

function recolour() {
  setColours();
  show();
  paintHeads();
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    $("problem").textContent = "This page needs a newer browser: Chrome 80, Firefox 113, Safari 16.4 or later.";
    return;
  }
  await unpack();
  $("problem").hidden = true;
  $("page").hidden = false;
  addTabs();
  listen();
  fillSentences();
  fillInside();
  setColours();
  const [name, layer, head] = DATA.first;
  await choose(kinds.find(kind => kind.name === name), layer, head);
  document.documentElement.dataset.ready = Math.round(performance.now()); // milliseconds, for the tests
}

start();
