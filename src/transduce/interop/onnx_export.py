"""Export a model as two ONNX graphs with dynamic lengths, which run without torch and without transduce.

    OUT/   encoder.onnx     ids (rows, source), with EOS, padded by 0 -> source_mask, and for each layer of the decoder
                            cross.0.keys and cross.0.values
           decoder.onnx     ids (rows), the last token of each output, BOS at first; the outputs of the encoder; and
                            past.0.keys (rows, heads, past, d_k) and past.0.values of the earlier tokens, none at first
                            -> logits (rows, vocabulary), and present.0.keys and present.0.values, the next past
           translate.py     greedy search with only onnxruntime and numpy (`transduce.interop.onnx_translate`), if the
                            tokenizer is of the kind bpe, whose rules it has
           transduce.json, tokenizer.json, README.md

Before the export writes OUT, onnxruntime and our model score the same random sentences (`transduce.interop.parity`).
The graphs have no operators of their own, and no trick: a cache grows by Concat, and a length is the shape of an input.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from transduce.config.files import to_json
from transduce.config.schema import ModelConfig
from transduce.console import in_markdown
from transduce.data.batches import collate
from transduce.data.vocabulary import PAD
from transduce.errors import UserError
from transduce.interop.ctranslate2_files import position_rows
from transduce.interop.onnx_file import Graph
from transduce.interop.parity import SentenceIds, check_package, compare, require_transformer, search_differences
from transduce.storage.atomic_folder import write_folder
from transduce.storage.model_folder import LoadedModel, load_model
from transduce.training.weights import weights

# Settings of our search, and what translate.py does instead.
DIFFERENCES: dict[str, str] = dict.fromkeys(
    ("min_tokens", "no_repeat_ngram", "repetition_penalty"), "translate.py does not have it"
)
MASKED = -1e9  # added to the score of a position that is padding: its weight is then 0


def export_onnx(model: Path, out: Path) -> str:
    """Write the model folder `model` as a folder `out` of ONNX graphs, and return the difference of the two models.

    The result also has a line for each setting of the search that translate.py lacks.
    Raises UserError for other models than Transformers, or without onnxruntime, and ArithmeticError if the scores of
    the graphs differ. In both cases it writes nothing.
    """
    if out.exists():
        raise UserError(f"{out}: expected a new folder; give another name")
    loaded = load_model(model)
    require_transformer(loaded)
    network = _Network(loaded)
    graphs = {"encoder.onnx": network.encoder(), "decoder.onnx": network.decoder()}
    check_package("onnxruntime", "onnx")
    lines = [compare("onnxruntime", loaded, partial(_log_probs, graphs))]
    if loaded.tokenizer.kind == "bpe":
        lines += search_differences(loaded.config.search, DIFFERENCES)
    files = {
        **graphs,
        "tokenizer.json": loaded.tokenizer.to_json().encode(),
        "transduce.json": to_json(loaded.config).encode(),
        "README.md": _card(model, lines).encode(),
    }
    if loaded.tokenizer.kind == "bpe":
        files["translate.py"] = Path(__file__).with_name("onnx_translate.py").read_bytes()
    write_folder(out, {name: [content] for name, content in files.items()})
    return "\n".join(lines)


class _Network:
    """The layers of a model as nodes of a graph. Letters in shapes as in `transduce.model.transformer`."""

    def __init__(self, loaded: LoadedModel) -> None:
        network = require_transformer(loaded)
        self.config: ModelConfig = loaded.config.model
        self.arrays = {name: values.detach().float().numpy() for name, values in weights(network).items()}
        self.positions = network.positions(0, position_rows(loaded.config)).detach().numpy()
        self.widths = [
            width or self.config.d_model // self.config.n_heads for width in (self.config.d_k, self.config.d_v)
        ]
        self.graph = Graph("")

    def encoder(self) -> bytes:
        """Return encoder.onnx."""
        graph = self.graph = Graph("encoder")
        ids = graph.input("ids", "int64", "rows", "source")
        is_padding = graph.add(
            "Unsqueeze",
            graph.add("Equal", ids, graph.array("pad", np.array(PAD, np.int64))),
            graph.array("axes", [1, 2]),
        )
        scores = self._number("masked", MASKED), self._number("visible", 0.0)
        mask = graph.add("Where", is_padding, *scores, name="source_mask")
        length = graph.add("Slice", graph.add("Shape", ids), *(graph.array(str(i), [i]) for i in (1, 2)))
        table = graph.array("positions", self.positions)
        x = self._embedded("src_embedding.weight", ids, graph.add("Slice", table, graph.array("0", [0]), length))
        for i in range(self.config.depths[0]):
            name = f"encoder.{i}."
            x = self._residual(
                x,
                name + "residuals.0",
                lambda y, n=name + "self_attention.": self._attention(n, y, self._keys_values(n, y), mask),
            )
            x = self._residual(x, name + "residuals.1", lambda y, n=name + "feed_forward.": self._feed_forward(n, y))
        memory = self._norm(x, "encoder_norm") if self.config.norm == "pre" else x
        graph.output(mask, "float32", "rows", 1, 1, "source")
        for i in range(self.config.depths[1]):
            self._keys_values(f"decoder.{i}.cross_attention.", memory, f"cross.{i}.")
            self._declare(graph.output, f"cross.{i}.", "source")
        return graph.model()

    def decoder(self) -> bytes:
        """Return decoder.onnx."""
        graph = self.graph = Graph("decoder")
        ids = graph.input("ids", "int64", "rows")
        mask = graph.input("source_mask", "float32", "rows", 1, 1, "source")
        length = graph.add("Slice", graph.add("Shape", "past.0.keys"), *(graph.array(str(i), [i]) for i in (2, 3)))
        position = graph.add("Gather", graph.array("positions", self.positions), length)
        column = graph.add("Unsqueeze", ids, graph.array("1", [1]))
        table = "tgt_embedding.weight" if "tgt_embedding.weight" in self.arrays else "src_embedding.weight"
        x = self._embedded(table, column, position)
        for i in range(self.config.depths[1]):
            self._declare(graph.input, f"cross.{i}.", "source")
            self._declare(graph.input, f"past.{i}.", "past")
            x = self._decoder_layer(x, i, mask)
        x = self._norm(x, "decoder_norm") if self.config.norm == "pre" else x
        inputs = [graph.add("Squeeze", x, graph.array("1", [1])), self._weights("output.weight", table)]
        inputs += [self._weights("output.bias")] if self.config.output_bias else []
        graph.output(graph.add("Gemm", *inputs, name="logits", transB=1), "float32", "rows", "vocabulary")
        for i in range(self.config.depths[1]):
            self._declare(graph.output, f"present.{i}.", "present")
        return graph.model()

    def _decoder_layer(self, x: str, i: int, mask: str) -> str:
        name = f"decoder.{i}."

        def attend_self(y: str) -> str:
            new = self._keys_values(name + "self_attention.", y)
            pairs = zip(("keys", "values"), new, strict=True)
            so_far = [self.graph.add("Concat", f"past.{i}.{n}", v, name=f"present.{i}.{n}", axis=2) for n, v in pairs]
            return self._attention(name + "self_attention.", y, so_far)

        def attend_cross(y: str) -> str:
            return self._attention(name + "cross_attention.", y, [f"cross.{i}.keys", f"cross.{i}.values"], mask)

        x = self._residual(x, name + "residuals.0", attend_self)
        x = self._residual(x, name + "residuals.1", attend_cross)
        return self._residual(x, name + "residuals.2", lambda y: self._feed_forward(name + "feed_forward.", y))

    def _declare(self, declare: Callable[..., Any], prefix: str, length: str) -> None:
        """Declare keys and values, (rows, heads, length, width), as inputs or outputs."""
        for name, width in zip(("keys", "values"), self.widths, strict=True):
            declare(prefix + name, "float32", "rows", self.config.n_heads, length, width)

    def _number(self, name: str, value: float) -> str:
        return self.graph.array(name, np.array(value, np.float32))

    def _weights(self, name: str, otherwise: str = "") -> str:
        name = name if name in self.arrays else otherwise  # of a tied matrix
        return self.graph.array(name, self.arrays[name])

    def _embedded(self, name: str, ids: str, positions: str) -> str:
        rows = self.graph.add("Gather", self._weights(name), ids)
        scaled = self.graph.add("Mul", rows, self._number("sqrt(d_model)", math.sqrt(self.config.d_model)))
        return self.graph.add("Add", scaled, positions)

    def _linear(self, name: str, x: str) -> str:
        product = self.graph.add("MatMul", x, self.graph.array(name + ".weight", self.arrays[name + ".weight"].T))
        bias = name + ".bias"
        return self.graph.add("Add", product, self._weights(bias)) if bias in self.arrays else product

    def _norm(self, x: str, name: str) -> str:
        scale_and_bias = self._weights(name + ".weight"), self._weights(name + ".bias")
        return self.graph.add("LayerNormalization", x, *scale_and_bias, epsilon=self.config.norm_eps)

    def _residual(self, x: str, name: str, sublayer: Callable[[str], str]) -> str:
        if self.config.norm == "pre":
            return self.graph.add("Add", x, sublayer(self._norm(x, name + ".norm")))
        return self._norm(self.graph.add("Add", x, sublayer(x)), name + ".norm")

    def _feed_forward(self, name: str, x: str) -> str:
        inner = self._linear(name + "w_1", x)
        relu = self.config.activation == "relu"
        active = (
            self.graph.add("Relu", inner) if relu else self.graph.add("Mul", inner, self.graph.add("Sigmoid", inner))
        )
        return self._linear(name + "w_2", active)

    def _heads(self, x: str, width: int, name: str = "") -> str:
        """(B,S,H*width) -> (B,H,S,width)."""
        shape = self.graph.array(f"heads of {width}", [0, 0, self.config.n_heads, width])
        return self.graph.add("Transpose", self.graph.add("Reshape", x, shape), name=name, perm=[0, 2, 1, 3])

    def _keys_values(self, name: str, x: str, prefix: str = "") -> list[str]:
        """Return the keys and values of `x`. prefix: of the names of these two; "" for any names."""
        parts = zip(("w_k", "w_v"), self.widths, ("keys", "values"), strict=True)
        return [self._heads(self._linear(name + w, x), width, prefix and prefix + n) for w, width, n in parts]

    def _attention(self, name: str, x: str, keys_values: list[str], mask: str | None = None) -> str:
        add = self.graph.add
        scale = self._number("1/sqrt(d_k)", 1 / math.sqrt(self.widths[0]))
        queries = self._heads(add("Mul", self._linear(name + "w_q", x), scale), self.widths[0])
        scores = add("MatMul", queries, add("Transpose", keys_values[0], perm=[0, 1, 3, 2]))
        attended = add("MatMul", add("Softmax", add("Add", scores, mask) if mask else scores), keys_values[1])
        joined = add("Reshape", add("Transpose", attended, perm=[0, 2, 1, 3]), self.graph.array("joined", [0, 0, -1]))
        return self._linear(name + "w_o", joined)


# ---- comparison with the original --------------------------------------------------------------------------------


def _log_probs(graphs: dict[str, bytes], src: SentenceIds, tgt: SentenceIds) -> np.ndarray:
    """Return onnxruntime's log-probability of every target token."""
    from transduce.interop.onnx_translate import OnnxModel

    batch = collate(src, tgt)
    exported = OnnxModel(graphs["encoder.onnx"], graphs["decoder.onnx"])
    state = exported.start(batch.src.numpy())
    columns = []
    for last, token in zip(batch.tgt_in.numpy().T, batch.tgt_out.numpy().T, strict=True):
        logits, state = exported.step(last, state)
        largest = logits.max(axis=1)
        total = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
        columns.append(logits[np.arange(len(token)), token] - total)
    return np.stack(columns, axis=1)[batch.tgt_mask.numpy()]


def _card(model: Path, lines: Sequence[str]) -> str:
    """Return README.md. lines: what the export found."""
    comparison = "\n".join(f"- {line}" for line in lines)
    return f"""# A translation model in ONNX

The model of {in_markdown(model.absolute())}. Both programs scored the same random sentences:

{comparison}

`pip install onnxruntime numpy`, then `python THIS_FOLDER/translate.py < in.txt > out.txt` translates in greedy search.
(There is no translate.py for other tokenizers than bpe.) It shows how to use the two graphs: the encoder once for a
batch, the decoder once for each token. Ids 0, 1 and 3 (`<pad>`, `<s>`, `<unk>`) are never output.
"""
