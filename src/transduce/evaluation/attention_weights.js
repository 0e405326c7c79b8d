
"use strict";
// The weights of the page: from text to bytes to matrices. A view is a kind (encoder, decoder, cross), a layer and a
// head, "mean" or "rollout". Layers and heads count from 1, as on the page.
const $ = id => document.getElementById(id);
const DATA = JSON.parse($("data").textContent);
const SIDES = { encoder: ["source", "source"], decoder: ["target", "target"], cross: ["target", "source"] };
const WEIGHTS = Float32Array.from({ length: 256 }, (_, code) => Math.sin(Math.PI / 2 * code / 255) ** 2);

// Each kind with its rows and columns: n and m pieces, their labels and words.
const kinds = DATA.kinds.filter(kind => kind.layers.length).map(kind => {
  const [rows, columns] = SIDES[kind.name].map(side => DATA[side]);
  const titles = SIDES[kind.name].map(side => side === "target" ? "output" : side);
  return { ...kind, rows, columns, titles, n: rows.labels.length, m: columns.labels.length };
});
const cache = new Map();
let bytes;

async function unpack() {
  const packed = atob($("weights").textContent), array = new Uint8Array(packed.length);
  for (let i = 0; i < array.length; i++) array[i] = packed.charCodeAt(i);
  const stream = new Blob([array]).stream().pipeThrough(new DecompressionStream("deflate"));
  bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let begin = 0;
  for (const kind of kinds) {
    kind.begin = begin;
    begin += kind.layers.length * kind.heads * kind.n * kind.m;
  }
}

function nameOf(kind, layer, head) {
  return kind.name + " " + layer + "." + head;
}

function columnsOf(kind) {
  const heads = Array.from({ length: kind.heads }, (_, i) => i + 1);
  return [...heads, ...(kind.heads > 1 ? ["mean"] : []), ...(DATA.rollout ? ["rollout"] : [])];
}

// Return the weights of a view, (n,m) in one array. Each row sums to 1.
function weights(kind, layer, head) {
  const key = nameOf(kind, layer, head);
  if (!cache.has(key)) {
    const compute = { mean, rollout }[head] ?? single;
    cache.set(key, compute(kind, layer, head));
  }
  return cache.get(key);
}

function single(kind, layer, head) {
  const size = kind.n * kind.m, begin = kind.begin + (kind.layers.indexOf(layer) * kind.heads + head - 1) * size;
  return Float32Array.from(bytes.subarray(begin, begin + size), code => WEIGHTS[code]);
}

function mean(kind, layer) {
  const size = kind.n * kind.m, begin = kind.begin + kind.layers.indexOf(layer) * kind.heads * size;
  const result = new Float32Array(size);
  for (let i = begin; i < begin + kind.heads * size; i += size) {
    for (let j = 0; j < size; j++) result[j] += WEIGHTS[bytes[i + j]] / kind.heads;
  }
  return result;
}

// As in attention_view.py: half of each position stays in place, and cross-attention is multiplied by the encoder's.
function rollout(kind, layer) {
  if (kind.name === "cross") {
    const encoder = kinds[0];
    return product(mean(kind, layer), weights(encoder, encoder.layers.at(-1), "rollout"), kind.n, kind.m);
  }
  const own = mean(kind, layer).map((weight, i) => 0.5 * weight + (i % (kind.n + 1) === 0 ? 0.5 : 0));
  return product(own, layer === 1 ? null : weights(kind, layer - 1, "rollout"), kind.n, kind.n);
}

// Return a (n,m) times b (m,m), null for the identity, with rows that sum to 1.
function product(a, b, n, m) {
  const result = b === null ? a : new Float32Array(n * m);
  for (let row = 0; row < n; row++) {
    const out = result.subarray(row * m, (row + 1) * m);
    for (let k = 0; b !== null && k < m; k++) {
      const weight = a[row * m + k];
      for (let j = 0; weight > 0 && j < m; j++) out[j] += weight * b[k * m + j];
    }
    const sum = out.reduce((x, y) => x + y, 0);
    for (let j = 0; j < m; j++) out[j] /= sum;
  }
  return result;
}

function strongest(values, begin, end) {
  let best = begin;
  for (let i = begin; i < end; i++) if (values[i] > values[best]) best = i;
  return best - begin;
}

// Return the weights of words on words, [row][column]: the mean over the pieces of a row, the sum over the source's.
function byWords(kind, values) {
  return kind.rows.words.map(([top, bottom]) => kind.columns.words.map(([left, right]) => {
    let sum = 0;
    for (let i = top; i < bottom; i++) for (let j = left; j < right; j++) sum += values[i * kind.m + j];
    return sum / (bottom - top);
  }));
}

// The probability of the least likely piece of an output word.
function probability(begin, end) {
  return Math.min(...DATA.probabilities.slice(begin, end));
}

function percent(weight) {
  return (100 * weight).toFixed(1) + " %";
}
