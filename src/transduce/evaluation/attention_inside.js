
// The tables of `--lens`: what each layer would answer, and what each head changes in the answer.
const MOST_HEADS = 20;

function fillInside() {
  const { inside } = DATA;
  if (!inside) return;
  $("inside").hidden = false;
  fillLens(inside);
  fillEffects(inside);
}

// A row is a token of the output. A cell has the most likely answer of a layer; its tooltip has the others.
function fillLens({ answers, probabilities, target }) {
  const last = answers.length - 1;
  const title = text => make("th", { scope: "col" }, text);
  const titles = answers.map((_, layer) => title(layer ? "layer " + layer : "embedding"));
  const cell = (layer, t) => {
    const texts = answers[layer][t].map((label, k) => label + " " + percent(probabilities[layer][t][k]));
    const hint = texts.join(", ") + "; " + DATA.target.labels[t] + " " + percent(target[layer][t]);
    const kind = answers[layer][t][0] === answers[last][t][0] ? "answer" : "other";
    return make("td", { class: kind, title: hint }, make("bdi", {}, answers[layer][t][0]), " "
      + percent(probabilities[layer][t][0]));
  };
  const rows = DATA.target.labels.map((label, t) =>
    make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, label)), ...answers.map((_, layer) => cell(layer, t))));
  $("lens").replaceChildren(make("thead", {}, make("tr", {}, title("output"), ...titles)), make("tbody", {}, ...rows));
}

// A row is a head, those with the largest change of a token first.
function fillEffects({ effects, note }) {
  const signed = change => (change < 0 ? "−" : "+") + Math.abs(change).toFixed(3);
  const largest = changes => changes.reduce((best, change, t) => Math.abs(change) > Math.abs(changes[best]) ? t : best, 0);
  const size = ({ changes }) => Math.abs(changes[largest(changes)]);
  const rows = [...effects].sort((a, b) => size(b) - size(a)).slice(0, MOST_HEADS).map(({ head, changes }) => {
    const t = largest(changes), sum = changes.reduce((x, y) => x + y, 0);
    const word = make("td", {}, make("bdi", {}, DATA.target.labels[t]));
    return make("tr", {}, make("th", { scope: "row" }, head), make("td", { class: "number" }, signed(sum)), word,
      make("td", { class: "number" }, signed(changes[t])));
  });
  const titles = ["head", "whole output", "most changed", "by"].map(text => make("th", { scope: "col" }, text));
  $("effects").replaceChildren(make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...rows));
  $("patched").textContent = note;
}
