"""Rotary positions in Hugging Face's config.json.

transformers 5 has their values in an object, `rope_parameters`; older versions have `rope_theta` next to an object
`rope_scaling`, whose kind may be called `type`.
"""

from dataclasses import asdict
from typing import Any

from transduce.family.hugging_face.settings import Settings
from transduce.family.rope import DynamicRope, LinearRope, Llama3Rope, Rope, YarnRope

KINDS = {"default": Rope, "linear": LinearRope, "dynamic": DynamicRope, "yarn": YarnRope, "llama3": Llama3Rope}
ORIGINAL = "original_max_position_embeddings"
MOST = 1e12  # of a base or a factor


def rope_of(settings: Settings) -> Rope:
    """Return the rotary positions of a config.json. Raises UserError for a kind or a value that is not supported."""
    key, values = _object(settings)
    kind = values.get("rope_type", values.get("type", "default"))
    if not isinstance(kind, str) or kind not in KINDS:
        raise settings.refusal(key, f"rope_type {', '.join(map(repr, KINDS))}")
    # A value that the object does not have may be next to it.
    outer = {name: settings.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    rope = Settings({**outer, **{name: x for name, x in values.items() if x is not None}}, settings.where)
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise rope.refusal("partial_rotary_factor", "1, all values of a head are rotated")
    theta = _above(rope, "rope_theta", 0, 10_000.0)
    if kind == "default":
        return Rope(theta)
    longest = settings.size("max_position_embeddings", 2_048)
    original = (settings if settings.get(ORIGINAL) is not None else rope).size(ORIGINAL, longest)
    if kind == "yarn":
        return _yarn(rope, theta, original, _above(rope, "factor", 0, longest / original))
    factor = _above(rope, "factor", 0)
    if kind == "linear":
        return LinearRope(theta, factor)
    if kind == "dynamic":
        if factor < 1:
            raise rope.refusal("factor", "a number of at least 1")
        return DynamicRope(theta, factor, longest)
    low = _above(rope, "low_freq_factor", 0)
    return Llama3Rope(theta, factor, low, _above(rope, "high_freq_factor", low), original)


def _object(settings: Settings) -> tuple[str, dict[str, Any]]:
    """Return the object of RoPE's values, with its key; transformers takes rope_scaling where there are two."""
    for key in ("rope_scaling", "rope_parameters"):
        values = settings.get(key)
        if values is not None and not isinstance(values, dict):
            raise settings.refusal(key, "an object")
        if values:
            return key, values
    return "rope_parameters", {}


def _above(settings: Settings, key: str, least: float, default: float | None = None) -> float:
    """Return a number above `least`. default: its value where it is absent; None: it must be there."""
    if default is None and settings.get(key) is None:
        raise settings.refusal(key, f"a number above {least:g}")
    value = settings.number(key, default or 0.0, below=MOST)
    if value <= least:
        raise settings.refusal(key, f"a number above {least:g}")
    return value


def _yarn(rope: Settings, theta: float, original: int, factor: float) -> YarnRope:
    if theta <= 1:
        raise rope.refusal("rope_theta", "a number above 1")
    slow = _above(rope, "beta_slow", 0, 1.0) if rope.get("beta_slow") else 1.0
    fast = _above(rope, "beta_fast", 0, 32.0) if rope.get("beta_fast") else 32.0
    if fast < slow:
        raise rope.refusal("beta_fast", f"at least beta_slow={slow:g}")
    has_factor = rope.get("attention_factor") is not None
    attention_factor = (
        rope.number("attention_factor", 1.0, below=MOST) if has_factor else _attention_factor(rope, factor)
    )
    truncate = rope.one_of("truncate", True, False)
    return YarnRope(theta, factor, original, fast, slow, attention_factor, truncate)


def _attention_factor(rope: Settings, factor: float) -> float | None:
    """Return the amplitude of two factors of the logarithm of s, as DeepSeek has it; None where they are absent."""
    numbers = [rope.number(key, 0.0, below=MOST) for key in ("mscale", "mscale_all_dim")]
    if not all(numbers):
        return None
    above, below = (number * (YarnRope(factor=factor).amplitude - 1) + 1 for number in numbers)
    return above / below


def rope_settings(rope: Rope) -> dict[str, object]:
    """Return the rope_parameters of a model."""
    (kind,) = (name for name, one in KINDS.items() if type(rope) is one)
    values = asdict(rope)
    settings = {"rope_type": kind, "rope_theta": values.pop("theta"), **values}
    n_positions = settings.pop("n_positions", None)
    if kind in ("yarn", "llama3"):
        settings[ORIGINAL] = n_positions
    return {key: value for key, value in settings.items() if value is not None}
