"""Translate lines in greedy search, with only onnxruntime and numpy: python translate.py < in.txt > out.txt"""

import functools
import json
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np
import onnxruntime

PAD, BOS, EOS, UNK = range(4)
SPACE, ESCAPE = "\u2581", "\ue000"
INVISIBLE = "[\0-\x08\x0e-\x1b\x7f\xad\u200b\u200e\u200f\u2060\ufeff]"
WHITE_SPACE = "[\\s\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
WORD = re.compile("_?L[LM]{0,63}|_?N{1,64}|_?[MO]{1,64}|_")  # kinds of characters: letters, marks, numbers, others


class JsonTokenizer:
    def __init__(self, content):
        self.ids, self.pieces = content["model"]["vocab"], [*content["model"]["vocab"]]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(content["model"]["merges"])}
        self.tags = {token["content"]: [token["id"]] for token in content["added_tokens"][4:]}
        self.normalizes = content["normalizer"]["normalizers"][0]["type"] == "NFC"

    def encode(self, line):
        tag, text = (parts := line.partition(" "))[0], parts[2] if parts[0] in self.tags else line
        if self.normalizes:
            text = re.sub(WHITE_SPACE, " ", re.sub(INVISIBLE, "", unicodedata.normalize("NFC", text))).strip()
        text = SPACE * bool(text) + text.replace(ESCAPE, ESCAPE + "0").replace(SPACE, ESCAPE + "1").replace(" ", SPACE)
        kind = "".join("_" if c == SPACE else k if (k := unicodedata.category(c)[0]) in "LMN" else "O" for c in text)
        return [*self.tags.get(tag, []), *(i for m in WORD.finditer(kind) for i in self.ids_of(text[slice(*m.span())]))]

    @functools.lru_cache(100_000)  # noqa: B019
    def ids_of(self, word):
        parts = [p for c in word for p in ([c] if c in self.ids else [f"<0x{byte:02X}>" for byte in c.encode()])]
        while found := [(self.ranks[p], i) for i, p in enumerate(zip(parts, parts[1:])) if p in self.ranks]:  # noqa: B905
            i = min(found)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [self.ids[part] for part in parts]

    def decode(self, ids):
        shown = [self.pieces[i] for i in ids if i > UNK and [i] not in self.tags.values()]
        parts = [bytes.fromhex(byte[1]) if (byte := re.fullmatch("<0x(..)>", p)) else p.encode() for p in shown]
        spaced = b"".join(parts).decode(errors="replace").replace(SPACE, " ").removeprefix(" ")
        return spaced.replace(ESCAPE + "1", SPACE).replace(ESCAPE + "0", ESCAPE)


class OnnxModel:
    def __init__(self, encoder, decoder):  # of each the file's path or content
        self.encoder, self.decoder = onnxruntime.InferenceSession(encoder), onnxruntime.InferenceSession(decoder)

    def start(self, src):  # ids (rows, source), with EOS, padded by PAD -> the inputs of the decoder at first
        names = (output.name for output in self.encoder.get_outputs())
        past = {x.name: x.shape for x in self.decoder.get_inputs() if x.name.startswith("past.")}
        empty = {name: np.zeros((len(src), heads, 0, width), np.float32) for name, (_, heads, _, width) in past.items()}
        return empty | dict(zip(names, map(np.asarray, self.encoder.run(None, {"ids": src})), strict=True))

    def step(self, last, state):  # the last tokens (rows) -> logits (rows, vocabulary), and the next inputs
        names = (output.name.replace("present", "past") for output in self.decoder.get_outputs())
        new = dict(zip(names, map(np.asarray, self.decoder.run(None, {"ids": last, **state})), strict=True))
        return new.pop("logits"), state | new

    def translate(self, sources, limits):  # ids without EOS, and the most tokens of each output -> ids
        longest = max(map(len, sources))
        src = np.array([[*ids, EOS, *[PAD] * (longest - len(ids))] for ids in sources], np.int64)
        state, outputs = self.start(src), [[] for _ in sources]
        rows, last = np.arange(len(src)), np.full(len(src), BOS, np.int64)
        while len(rows):
            logits, state = self.step(last, state)
            logits[:, [PAD, BOS, UNK]] = -np.inf
            last = logits.argmax(axis=1)
            for row, token in zip(rows, last.tolist(), strict=True):
                outputs[row].append(token)
            stay = [outputs[row][-1] != EOS and len(outputs[row]) < limits[row] for row in rows]
            if not all(stay):
                rows, last = rows[stay], last[stay]
                state = {name: values[stay] for name, values in state.items()}
        return outputs


def translate(folder, lines, batch=32):
    settings, content = (json.loads((folder / f"{name}.json").read_bytes()) for name in ("transduce", "tokenizer"))
    tokenizer, model = JsonTokenizer(content), OnnxModel(folder / "encoder.onnx", folder / "decoder.onnx")
    sources, outputs = [tokenizer.encode(line) for line in lines], dict.fromkeys(range(len(lines)), [])
    more, most = settings["search"]["max_extra_tokens"], settings["search"]["max_length"] or sys.maxsize
    longest = settings["model"]["max_positions"] or max(1024, settings["data"]["max_tokens"] + more)
    if numbers := [number for number, ids in enumerate(sources, start=1) if len(ids) >= longest]:
        sys.exit(f"lines {numbers}: expected fewer than {longest:,} tokens; split these lines")
    order = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: len(sources[i]))
    for rows in (order[begin : begin + batch] for begin in range(0, len(order), batch)):
        limits = [min(len(sources[i]) + more, most, longest) for i in rows]
        outputs.update(zip(rows, model.translate([sources[i] for i in rows], limits), strict=True))
    return [re.sub("[\r\n]", " ", tokenizer.decode(ids)) for ids in outputs.values()]


if __name__ == "__main__":
    lines = [line.rstrip("\n").removesuffix("\r") for line in open(0, encoding="utf-8-sig", newline="\n")]  # noqa: SIM115
    sys.stdout.buffer.writelines(f"{text}\n".encode() for text in translate(Path(__file__).parent, lines))
