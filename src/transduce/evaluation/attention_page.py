"""The page of `transduce attend`: every attention weight of one sentence pair, in one file that loads nothing.

    weights -> bytes, from 0 to 255 -> deflate -> base64 -> the page; its script turns them back

The template is attention_page.html, its script attention_page.js. Pieces are data: they are in a block of JSON in ASCII
without `<`, and the script writes them as text only.
"""

import base64
import html
import json
import math
import zlib
from collections.abc import Mapping

import numpy as np

from transduce.console import printable
from transduce.decoding.hypothesis import Attended
from transduce.evaluation.attention_svg import DARK, LIGHT
from transduce.evaluation.attention_view import PARTS, AttentionPart, View, head_name, number_from_1
from transduce.evaluation.lens import Inside
from transduce.evaluation.page import fill_page
from transduce.evaluation.pieces import labels, words

FILES = {
    "own_style": ["attention_page.css"],
    "script": ["attention_weights.js", "attention_drawing.js", "attention_inside.js", "attention_page.js"],
}
POLICY = "script-src $script_hash; style-src $own_style_hash $style_hash; base-uri 'none'; form-action 'none'"
MANY_TOKENS = 400  # of the longer side; the page then has one layer. 250 tokens of 6 x 8 x 3 heads are 7.5 MB


def attention_page(
    attended: Attended,
    view: View,
    model: str = "",
    worth: Mapping[str, float] | None = None,
    inside: Inside | None = None,
) -> str:
    """Return the page as HTML. It shows `view` first.

    model: name for the heading. worth: loss of a token without each head, by head; None: the page does not show it.
    inside: what layers would answer and heads change; None: the page does not show it.
    A page of more than MANY_TOKENS tokens has only the layer of `view`, and says so.
    """
    layers = _layers(attended, view)
    source = _sentence(attended.src_pieces)
    shown = (f"{part} {n + 1} of {len(getattr(attended, part))}" for part in PARTS for n in layers[part])
    note = (
        f"One layer of each part: {', '.join(shown)}. A side has more than {MANY_TOKENS} tokens. --head shows others."
    )
    fields = {
        "title": html.escape(f"Attention: {source}"),
        "model": html.escape(printable(model)),
        "note": f'<p class="limit">{note}</p>' if n_tokens(attended) > MANY_TOKENS else "",
        "data": _json({**_description(attended, view, layers), "worth": worth, "inside": inside and _inside(inside)}),
        "weights": pack([getattr(attended, part)[layers[part]] for part in PARTS]),
    }
    return fill_page("attention_page.html", fields, POLICY, FILES)


def n_tokens(attended: Attended) -> int:
    """Return the number of tokens of the longer side."""
    return max(len(attended.src_pieces), len(attended.tgt_pieces))


def pack(arrays: list[np.ndarray]) -> str:
    """Return weights from 0 to 1 as text: one byte each, off by at most 0.0031, and least near 0 and 1.

    Byte b is the weight sin^2(pi / 2 * b / 255).
    """
    angles = [np.arcsin(np.sqrt(array.clip(0, 1))) for array in arrays]
    codes = [np.rint(255 * 2 / np.pi * angle).astype(np.uint8).tobytes() for angle in angles]
    return base64.b64encode(zlib.compress(b"".join(codes), 9)).decode()


def _layers(attended: Attended, view: View) -> dict[str, list[int]]:
    """Return the layers of each part that the page holds, counted from 0."""
    layers = {part: [*range(len(getattr(attended, part)))] for part in PARTS}
    if n_tokens(attended) <= MANY_TOKENS:
        return layers
    return {part: numbers[view.layer : view.layer + 1] or numbers[-1:] for part, numbers in layers.items()}


def _description(attended: Attended, view: View, layers: dict[str, list[int]]) -> dict[str, object]:
    """Return what the script needs except the weights. Layers and heads count from 1, pieces from 0."""
    whole = all(len(layers[part]) == len(getattr(attended, part)) for part in PARTS)
    return {
        "kinds": [
            {"name": part, "layers": [n + 1 for n in layers[part]], "heads": _n_heads(attended, part)} for part in PARTS
        ],
        "source": {"labels": labels(attended.src_pieces), "words": words(attended.src_pieces)},
        "target": {"labels": labels(attended.tgt_pieces), "words": words(attended.tgt_pieces)},
        "probabilities": [round(math.exp(min(0.0, p)), 4) for p in attended.log_probs.tolist()],
        "rollout": whole and len(attended.encoder) > 0,
        "first": [view.part, view.layer + 1, number_from_1(view.head)],
        "ramps": [LIGHT, DARK],
    }


def _inside(inside: Inside) -> dict[str, object]:
    """Return what the script needs of a look inside: labels, probabilities, and changes in nats."""
    by = "zero" if inside.other is None else f"its output on “{printable(inside.other)}”"
    note = f"Change of the log-probability, in nats, when the output of a head is replaced by {by}."
    if not len(inside.effects["encoder"]):
        note += " That sentence has another number of tokens, so the heads of the encoder are left out."
    return {
        "answers": [[_labels(token) for token in layer] for layer in inside.answers.tolist()],
        "probabilities": np.exp(inside.log_probs).round(4).tolist(),
        "target": np.exp(inside.target_log_probs).round(4).tolist(),
        "effects": [
            {"head": head_name(part, layer, head), "changes": effects[layer, head].round(4).tolist()}
            for part, effects in inside.effects.items()
            for layer, head in np.ndindex(effects.shape[:2])
        ],
        "note": note,
    }


def _labels(pieces: list[str]) -> list[str]:
    """Return the labels of pieces that are no sentence."""
    return [labels([piece])[0] for piece in pieces]


def _n_heads(attended: Attended, part: AttentionPart) -> int:
    return getattr(attended, part).shape[1]


def _sentence(pieces: tuple[str, ...]) -> str:
    return "".join(text for _, _, text in words(pieces[:-1])).strip()


def _json(value: object) -> str:
    """Return JSON in ASCII that no HTML parser takes for a tag or a comment."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
