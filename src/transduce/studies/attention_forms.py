"""The forms of attention that `transduce study attention` compares, with the sizes that they have in all of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from transduce.family.big_bird import big_bird
from transduce.family.linformer import Linformer
from transduce.family.online import online_attention
from transduce.family.patterns import fixed, strided, with_pattern
from transduce.family.performer import Performer
from transduce.family.window import with_window
from transduce.model.attention import Attention, fast_attention, reference_attention

REACH = 64  # of the windows
FEATURES = 256  # of Performer
RANK = 64  # of Linformer
BLOCK, RANDOM = 32, 3  # positions in a block of BigBird, and random blocks of each


@dataclass(frozen=True)
class Shape:
    """The sizes of an attention: positions n, heads H and their width K."""

    n: int
    n_heads: int
    d_k: int


@dataclass(frozen=True)
class Form:
    """A form of attention. make: builds the function. causal: under the causal mask, otherwise each sees both sides.

    is_square: its memory grows with n^2, so that it is not measured at the longest lengths.
    """

    name: str
    title: str
    make: Callable[[Shape], Attention]
    causal: bool = True
    is_square: bool = False


def _stride(n: int) -> int:
    return max(1, round(math.sqrt(n)))


FORMS = (
    Form("fused", "exact, torch's fused kernel", lambda _: fast_attention),
    Form("reference", "exact, all weights at once", lambda _: reference_attention, is_square=True),
    Form("online", "exact, online softmax in Python", lambda _: online_attention),
    Form("window", f"window of {REACH + 1}", lambda _: with_window(REACH)),
    Form("strided", "strided, √n", lambda shape: with_pattern(strided(_stride(shape.n))), is_square=True),
    Form(
        "fixed",
        "fixed, √n, 1 summary in 8",
        lambda shape: with_pattern(fixed(_stride(shape.n), -(-_stride(shape.n) // 8))),
        is_square=True,
    ),
    Form("performer", f"Performer, {FEATURES} features", lambda shape: Performer(shape.d_k, FEATURES)),
    Form("fused-both", "exact, torch's fused kernel", lambda _: fast_attention, causal=False),
    Form(
        "longformer",
        f"window of {2 * REACH + 1} and one global position",
        lambda _: with_window(REACH, n_first=1),
        causal=False,
    ),
    Form(
        "bigbird",
        f"BigBird, blocks of {BLOCK}",
        lambda shape: with_pattern(big_bird(BLOCK, RANDOM, shape.n_heads)),
        causal=False,
        is_square=True,
    ),
    Form("linformer", f"Linformer, rank {RANK}", lambda shape: Linformer(shape.n, RANK), causal=False),
    Form(
        "performer-both", f"Performer, {FEATURES} features", lambda shape: Performer(shape.d_k, FEATURES), causal=False
    ),
)
FORM = {form.name: form for form in FORMS}
BASE = {True: "fused", False: "fused-both"}  # what the forms under each mask are compared with
