"""Attention of one sentence pair as a file: the page (.html), a picture (.svg) or the arrays (.npz)."""

import io
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from transduce.config.validation import as_path
from transduce.console import printable
from transduce.decoding.hypothesis import Attended
from transduce.errors import UserError
from transduce.evaluation.attention_page import attention_page, n_tokens
from transduce.evaluation.attention_svg import attention_svg
from transduce.evaluation.attention_view import PARTS, AttentionPart, find_view, head_name
from transduce.evaluation.lens import Inside
from transduce.storage.atomic_folder import replacement

MOST_TOKENS = 1_000  # of a side, for a picture or a page; arrays have no other limit
SUFFIXES = (".html", ".svg", ".npz")


def write_attention(
    attended: Attended,
    path: str | PathLike[str],
    *,
    head: str | None = None,
    model: str = "",
    worth: Mapping[str, float] | None = None,
    inside: Inside | None = None,
) -> None:
    """Write attention to `path`, whole or not at all, in the form that its ending says: .html, .svg or .npz.

    head: name of the view that the picture shows and the page shows first, such as "encoder 3.5", "cross 6.mean" or
    "decoder 2.rollout"; None: the last cross-attention, the mean of its heads.
    model: name of the model, for the page. worth: worth of each head by its name, for the page (`heads.read_worth`).
    inside: what layers would answer and heads change (`lens.look_in`), for the page and the arrays.
    Missing folders above `path` are made.
    The arrays are encoder (L,H,S,S), decoder (L,H,T,T), cross (L,H,T,S), the pieces src and tgt, log_probs (T,), and
    the names of the heads: encoder_heads, decoder_heads, cross_heads (L,H). With `inside`, also lens_pieces and
    lens_log_probs (L+1,T,K), lens_target (L+1,T), and encoder_effects, decoder_effects, cross_effects (L,H,T).
    Raises UserError for another ending, an unknown head, a head with arrays, or a sentence of more than MOST_TOKENS
    tokens in a picture.
    """
    place = as_path("path", path)
    suffix = check_suffix(place)
    is_text = suffix != ".npz"
    if head is not None and not is_text:
        problem = f"must not be set with {place.name}, because arrays have all heads"
        raise UserError(f"head={head!r}: {problem}; leave it out")
    content = _text(attended, place, head, model, worth, inside).encode() if is_text else _arrays(attended, inside)
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacement(place) as building:
        building.write_bytes(content)


def check_suffix(path: Path) -> str:
    """Return the ending of `path` in small letters. Raises UserError if it is not one of SUFFIXES."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"out={path}: expected a name that ends in {', '.join(SUFFIXES)}; add one of these endings")
    return suffix


def check_length(path: Path, length: int) -> None:
    """Raise UserError if `path` is a page or a picture, and a side of `length` tokens, EOS included, is too long."""
    if path.suffix.lower() != ".npz" and length > MOST_TOKENS:
        remedy = "write an .npz, or split the sentence"
        raise UserError(f"{printable(path)}: expected at most {MOST_TOKENS:,} tokens a side, not {length:,}; {remedy}")


def _text(
    attended: Attended,
    path: Path,
    head: str | None,
    model: str,
    worth: Mapping[str, float] | None,
    inside: Inside | None,
) -> str:
    """Return the content of a page or a picture."""
    view = find_view(attended, head)
    check_length(path, n_tokens(attended))
    if worth is not None:
        names = {name for part in PARTS for name in _names(attended, part).flat}
        if other := names ^ {*worth}:
            problem = f"{min(other)} is in only one of the two; measure this model"
            raise UserError(f"heads: expected the heads of this model, but {problem}")
    is_page = check_suffix(path) == ".html"
    return attention_page(attended, view, model, worth, inside) if is_page else attention_svg(attended, view)


def _arrays(attended: Attended, inside: Inside | None) -> bytes:
    """Return the content of the .npz."""
    arrays: dict[str, Any] = {part: getattr(attended, part).astype(np.float32, copy=False) for part in PARTS}
    arrays |= {"src": np.array(attended.src_pieces), "tgt": np.array(attended.tgt_pieces)}
    arrays |= {"log_probs": attended.log_probs} | {f"{part}_heads": _names(attended, part) for part in PARTS}
    if inside is not None:
        arrays |= {"lens_pieces": inside.answers, "lens_log_probs": inside.log_probs}
        arrays |= {"lens_target": inside.target_log_probs}
        arrays |= {f"{part}_effects": effects for part, effects in inside.effects.items()}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _names(attended: Attended, part: AttentionPart) -> np.ndarray:
    """Return the names of the heads (L,H)."""
    n_layers, n_heads = getattr(attended, part).shape[:2]
    names = [head_name(part, layer, head) for layer in range(n_layers) for head in range(n_heads)]
    return np.array(names, dtype=str).reshape(n_layers, n_heads)
