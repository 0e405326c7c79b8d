"""The programs that translate.py compares. Each is a process that has loaded its model and warmed up.

python benchmarks/translate_sides.py SIDE FOLDER THREADS SRC OUT CLOCK
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# The finder of an editable installation would come before the checkout on PYTHONPATH.
sys.meta_path = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]

# (lines, beam size) -> their translations
Translate = Callable[[Sequence[str], int], list[str]]


def transduce(kind: str, folder: Path, threads: int) -> Translate:
    """Return our translation. kind: the precision, or precision and lookahead, such as "int8,5"."""
    import torch

    from transduce import load
    from transduce.model.cpu_backend import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)
    precision, _, tokens = kind.partition(",")
    model, lookahead = load(folder, precision=precision), int(tokens) if tokens else None
    return lambda lines, beam: [best.text for best in model.translate(lines, beam_size=beam, lookahead=lookahead)]


def ctranslate2(kind: str, folder: Path, threads: int) -> Translate:
    """Return the translation of CTranslate2.

    kind: compute type, workers x threads of each, sentences in a batch, optional patience: "int8,2x1,32,0.5".
    """
    import ctranslate2 as peer

    from transduce.data.tokenizer import Tokenizer
    from transduce.data.vocabulary import CONTROLS, EOS

    compute, workers, batch, *patience = kind.split(",")
    inter, intra = (int(part) for part in workers.split("x"))
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    vocabulary, ids = tokenizer.vocabulary, {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
    model = peer.Translator(str(folder), compute_type=compute, inter_threads=inter, intra_threads=intra)

    def translate(lines: Sequence[str], beam: int) -> list[str]:
        sources = [[vocabulary[token] for token in source] for source in tokenizer.encode_batch(lines)]
        outputs = model.translate_batch(
            sources,
            beam_size=beam,
            patience=float(patience[0]) if patience else 1.0,
            max_batch_size=int(batch),
            length_penalty=0.6,
            max_decoding_length=128,
        )
        return [
            tokenizer.decode([ids[piece] for piece in output.hypotheses[0] if piece != CONTROLS[EOS]])
            for output in outputs
        ]

    return translate


def huggingface(precision: str, folder: Path, threads: int) -> Translate:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    from transduce.data.tokenizer import Tokenizer
    from transduce.data.vocabulary import BOS, EOS, PAD, UNK

    torch.set_num_threads(threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype)
    settings = {
        "bad_words_ids": [[PAD], [BOS], [UNK]],
        "do_sample": False,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }

    @torch.inference_mode()
    def translate(lines: Sequence[str], beam: int) -> list[str]:
        sources = [[*source, EOS] for source in tokenizer.encode_batch(lines)]
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        outputs = [""] * len(lines)
        for begin in range(0, len(order), 64):
            members = order[begin : begin + 64]
            width = len(sources[members[0]])
            src = torch.tensor([sources[i] + [PAD] * (width - len(sources[i])) for i in members])
            mask = (src != PAD).long()
            output = model.generate(
                input_ids=src,
                attention_mask=mask,
                num_beams=beam,
                max_new_tokens=width + 50,
                **settings,
                **({"early_stopping": True, "length_penalty": 0.6} if beam > 1 else {}),
            )
            for i, row in zip(members, output[:, 1:].tolist(), strict=True):
                outputs[i] = tokenizer.decode(row[: row.index(EOS)] if EOS in row else row)
        return outputs

    return translate


MAKERS = {"transduce": transduce, "ctranslate2": ctranslate2, "huggingface": huggingface}


def work(side: str, folder: Path, threads: int, src: Path, out: Path, clock: str) -> None:
    """Answer each command on standard input with the seconds that it took, one number or a list."""
    now = time.process_time if clock == "processor" else time.perf_counter
    program, kind = side.split(" ")
    translate = MAKERS[program](kind, folder, threads)
    lines = src.read_text(encoding="utf-8").splitlines()
    for beam in (4, 1):
        translate(lines[:8], beam)
    print("ready", flush=True)
    for command in sys.stdin:
        what, beam, count = command.split()
        if what == "file":
            began = now()
            lines = src.read_text(encoding="utf-8").splitlines()[: int(count)]
            out.write_text("\n".join(translate(lines, int(beam))) + "\n", encoding="utf-8")
            print(now() - began, flush=True)
        else:
            times = []
            for line in lines[: int(count)]:
                began = now()
                translate([line], int(beam))
                times.append(now() - began)
            print(json.dumps(times), flush=True)


if __name__ == "__main__":
    side, folder, threads, src, out, clock = sys.argv[1:]
    work(side, Path(folder), int(threads), Path(src), Path(out), clock)
