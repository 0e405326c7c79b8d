"""The sentence splitter of a package for Argos Translate: a neural network in ONNX, for MiniSBD, with fixed weights.

Argos Translate splits a paragraph by MiniSBD, which reads characters and labels the last one of each sentence. Its own
networks are downloads. This one needs no download, and follows `transduce.data.sentences`: in doubt two sentences stay
together. A sentence ends where a mark comes before a space, with the closing quote, except

    after an abbreviation, an initial and a number of one or two digits, all with a full stop
    before a small letter, a digit and a closing bracket

and after the marks of Chinese and Japanese. Each hidden unit is 1 where its conditions all hold, else 0: the sum of
its inputs, minus the number of its conditions except one. An input has the value of a class of characters, some places
before or after.
"""

import json

import numpy as np

from transduce.data.sentences import NEVER_LAST, SELDOM_LAST
from transduce.interop.onnx_file import Graph

ABBREVIATIONS = sorted(NEVER_LAST | SELDOM_LAST)
LONGEST = max(map(len, ABBREVIATIONS)) + 1  # characters before the full stop, with a space
AFTER = 2  # characters after the mark that the network sees

# MiniSBD numbers the characters by its vocabulary: here the numbers are classes. Other characters are of class 1.
SMALL = "".join(character for character in map(chr, range(0x590)) if character.islower())
CLASSES = {
    "<PAD>": ["<PAD>"],
    "other": ["<UNK>"],
    "stop": ".",
    "mark": "!?…।؟۔",
    "wide mark": "。！？",
    "closing": ")]»」』）",
    "quote": "\"'’”“«",
    "space": " ",
    "small": SMALL,
    "digit": "0123456789",
    "opening": "([„‘¿¡",
}
FEATURES = ["capital", "begin"]  # that MiniSBD computes: a capital; the first character
CHANNELS = [*CLASSES, *FEATURES, *(f"word ahead {n}" for n in range(1, LONGEST + 1))]
CHANNELS += [f"word {n}" for n in range(1, LONGEST + 1)]  # a word of the lexicon, from n characters before to here

Inputs = dict[tuple[str, int], float]  # a channel, and the place of its character, to a weight


def conditions(*groups: Inputs) -> Inputs:
    """Return the inputs of a unit for which each of `groups` must have one."""
    return {key: weight for group in groups for key, weight in group.items()} | {("bias", 0): 1.0 - len(groups)}


def any_of(*names: str, at: int = 0) -> Inputs:
    """Return the condition that the character at a place is of one of some classes. A word begins at "begin"."""
    return {(name, at + 1 if name == "begin" else at): 1.0 for name in names}


BEFORE_A_WORD = ("space", "opening", "quote", "begin")
FOLLOWS_NOT = {(name, 2): -1.0 for name in ("small", "digit", "closing")}
ENDS = [
    conditions(any_of("stop", "mark"), any_of("space", at=1)) | FOLLOWS_NOT,
    conditions(any_of("closing", "quote"), any_of("stop", "mark", at=-1), any_of("space", at=1)) | FOLLOWS_NOT,
    conditions(any_of("wide mark")) | {(name, 1): -1.0 for name in ("wide mark", "closing", "quote")},
    conditions(any_of("closing", "quote"), any_of("wide mark", at=-1)),
]
NO_ENDS = [
    *(conditions(any_of(f"word {n}"), {("space", -n): 1.0, ("begin", -n): 1.0}) for n in range(1, LONGEST + 1)),
    conditions(any_of("stop"), any_of("small", "capital", "digit", at=-1), any_of(*BEFORE_A_WORD, "stop", at=-2)),
    conditions(
        any_of("stop"), any_of("digit", at=-1), any_of("digit", at=-2), any_of(*BEFORE_A_WORD, "closing", at=-3)
    ),
]


def splitter() -> bytes:
    """Return the ONNX model."""
    units = [*ENDS, *NO_ENDS]
    hidden = np.zeros((len(units), len(CHANNELS), LONGEST + 1 + AFTER), np.float32)
    biases = np.array([unit["bias", 0] for unit in units], np.float32)
    for i, unit in enumerate(units):
        for (name, place), weight in unit.items():
            if name != "bias":
                hidden[i, CHANNELS.index(name), LONGEST + place] = weight
    labels = np.zeros((3, len(units), 1), np.float32)  # 0: the sentence continues; 2: it ends; 1 is for words
    labels[2, :, 0] = [2.0] * len(ENDS) + [-9.0] * len(NO_ENDS)
    graph = Graph("sentences")
    units_in = graph.input("units", "int64", "texts", "characters")
    features = graph.input("features", "float32", "texts", "characters", len(CHANNELS) - len(CLASSES))
    of_class = graph.add("Gather", graph.array("classes", np.eye(len(CLASSES), dtype=np.float32)), units_in)
    channels = graph.add("Transpose", graph.add("Concat", of_class, features, axis=2), perm=[0, 2, 1])
    hidden_arrays = graph.array("hidden", hidden), graph.array("hidden_biases", biases)
    conditions_met = graph.add("Relu", graph.add("Conv", channels, *hidden_arrays, pads=[LONGEST, AFTER]))
    label_biases = graph.array("label_biases", np.array([0, -1, -1], np.float32))
    scores = graph.add("Conv", conditions_met, graph.array("labels", labels), label_biases)
    graph.output(graph.add("Transpose", scores, name="output", perm=[0, 2, 1]), "float32", "texts", "characters", 3)
    return graph.model({key: json.dumps(value) for key, value in _metadata().items()})


def _metadata() -> dict[str, object]:
    """Return what MiniSBD reads beside the network."""
    numbers = {character: i for i, characters in enumerate(CLASSES.values()) for character in characters}
    config = {
        "feat_funcs": ["capitalized", "start_of_para"],
        "use_dictionary": True,
        "num_dict_feat": LONGEST,
        "max_seqlen": 1_000_000,  # of a window, in characters
    }
    lexicon = [f"{space}{word}." for word in ABBREVIATIONS for space in ("", " ")]
    return {"config": config, "vocab": {"lang": "", "_unit2id": numbers}, "lexicon": lexicon}
