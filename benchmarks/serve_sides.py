"""The other sides of benchmarks/serve.py, each a process: CTranslate2 behind our HTTP layer, LibreTranslate, a file.

python benchmarks/serve_sides.py ctranslate2 EXPORTED PORT BATCH
python benchmarks/serve_sides.py libretranslate EXPORTED PORT WORKING_FOLDER
python benchmarks/serve_sides.py file MODEL SOURCE LOOKAHEAD
"""

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

THREADS = 1


def serve_ctranslate2(folder: Path, port: int, batch: int) -> None:
    """Serve CTranslate2 by `transduce serve`, with all that waits as one call, and its batches as large as given."""
    from translate_sides import ctranslate2

    from transduce.decoding.hypothesis import Translation
    from transduce.decoding.options import DecodingOptions
    from transduce.interop import ctranslate2_engine as engine
    from transduce.serve.generation import Description, Loaded
    from transduce.serve.server import bind, run
    from transduce.serve.settings import ServerSettings

    model = engine.load(folder)
    peer = ctranslate2(f"int8,1x{THREADS},{batch}", folder, THREADS)

    def translate(lines: Sequence[str], **_: object) -> list[Translation]:
        return [Translation(text) for text in peer(lines, model.config.search.beam_size)]

    model.translate = translate
    description = Description("peer", model.precision, model.kernels, model.engine)
    loaded = Loaded({("en", "de"): model}, ServerSettings(port=port), description)
    with bind("127.0.0.1", port) as bound:
        run(lambda: loaded, loaded, DecodingOptions(), (bound, None), lambda _: None)


def serve_libretranslate(folder: Path, port: int, work: Path) -> None:
    """Serve our exported model by LibreTranslate, in place of a package of Argos.

    Its tokenizer is replaced by the model's. Its splitter of sentences, which it would download, is replaced by a
    regular expression. The rest is its own: routes, server, languages, batches, CTranslate2.
    """
    os.environ |= {
        "HOME": str(work),
        "XDG_DATA_HOME": str(work),
        "XDG_CONFIG_HOME": str(work),
        "XDG_CACHE_HOME": str(work),
        "ARGOS_PACKAGES_DIR": str(work / "packages"),
        "ARGOS_COMPUTE_TYPE": "int8",
        "ARGOS_INTRA_THREADS": str(THREADS),
    }
    for source, target in (("en", "de"), ("de", "en")):  # with fewer than two packages it looks for more
        package = work / "packages" / f"{source}_{target}"
        package.mkdir(parents=True)
        names = {"from_code": source, "from_name": source, "to_code": target, "to_name": target}
        (package / "metadata.json").write_text(json.dumps({**names, "type": "translate", "package_version": "1.0"}))
        (package / "model").symlink_to(folder.resolve())
    import argostranslate.package
    import argostranslate.translate

    class Splitter:
        def __init__(self, package: Any) -> None:
            pass

        def split_sentences(self, text: str) -> list[str]:
            return re.split(r"(?<=[.!?]) +", text)

    create = argostranslate.package.Package.__init__
    tokenizer = _pieces(folder)

    def with_our_tokenizer(self: Any, path: Path) -> None:
        create(self, path)
        self.tokenizer = tokenizer

    argostranslate.package.Package.__init__ = with_our_tokenizer
    argostranslate.translate.MiniSBDSentencizer = Splitter
    from libretranslate.main import main

    sys.argv = ["libretranslate", "--host", "127.0.0.1", "--port", str(port), "--load-only", "en,de"]
    os.chdir(work)
    main()


def _pieces(folder: Path) -> Any:
    """Return the model's tokenizer as LibreTranslate uses one: texts to pieces and back."""
    from transduce.data.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
    return SimpleNamespace(
        encode=lambda text: [tokenizer.vocabulary[i] for i in tokenizer.encode(text)],
        decode=lambda pieces: tokenizer.decode([ids[piece] for piece in pieces if piece in ids]),
    )


def translate_file(model: Path, source: Path, lookahead: str) -> None:
    """Translate the lines of a file as a whole at each line on standard input; print time, CPU time and texts."""
    import torch

    import transduce
    from transduce.model.cpu_backend import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(THREADS)
    translator = transduce.load(model, precision="int8")
    lines, n_tokens = source.read_text("utf-8").splitlines(), int(lookahead) if lookahead else None
    translator.translate(lines[:64], lookahead=n_tokens)
    print("ready", flush=True)
    for _ in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        texts = [best.text for best in translator.translate(lines, lookahead=n_tokens)]
        print(json.dumps([time.perf_counter() - start, time.process_time() - cpu, texts]), flush=True)


if __name__ == "__main__":
    kind, path, *rest = sys.argv[1:]
    if kind == "ctranslate2":
        serve_ctranslate2(Path(path), int(rest[0]), int(rest[1]))
    elif kind == "libretranslate":
        serve_libretranslate(Path(path), int(rest[0]), Path(rest[1]))
    else:
        translate_file(Path(path), Path(rest[0]), rest[1])
