"""Perplexity of a small GPT-2 and an LSTM of the same size, or a Llama and a LLaDA, on the same text and budget.

    python benchmarks/language_models.py --train train.txt --valid valid.txt --test test.txt --out FOLDER [--set ...]

Both are trained by the loop of transduce, with the same tokenizer, batches, steps, precision and rule to stop early.
Only the model differs. GPT-2 has the settings of the recipe gpt2-small. The LSTM (Zaremba et al. 2014) has two layers,
dropout between them, and a projection to the width of the embedding, which is also the output matrix. Its inner width
is such that both have the same number of parameters, to 1 %. `--kinds` selects one of the two, so that each can be
tried with several learning rates: `--set train.lr_factor=0.25`. A run that exists is resumed.

`--kinds llama llada` compares text from left to right with diffusion: the recipes llama-small and llada-small. The
figures of a LLaDA are upper bounds, estimated with 32 masks of each line. `--set` applies to both, so that
`--set train.max_steps=40000 --set train.patience=null` gives both four times the budget.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from transduce.config.kinds import KINDS, Kind
from transduce.config.recipes import find_recipe
from transduce.config.schema import Config
from transduce.data.corpora import Corpus
from transduce.data.text import read_lines
from transduce.family.tasks.diffusion_bound import score_bound
from transduce.family.tasks.text_scores import score_lines
from transduce.model.dropout import Dropout
from transduce.model.transformer import parameter_count
from transduce.storage.model_folder import load_model
from transduce.storage.run_request import TrainRequest
from transduce.train import train

LAYERS = 2


@dataclass(frozen=True)
class LstmConfig:
    """The sizes of the LSTM. d_inner: width of a layer's state."""

    kind: Literal["lstm"] = "lstm"
    vocab_size: int | None = None
    d_model: int = 256
    n_layers: int = LAYERS
    max_positions: int = 256  # no limit of the model; the longest line is as for GPT-2
    d_inner: int = 465
    dropout: float = 0.2

    def problems(self) -> list[str]:
        return []


class Lstm(nn.Module):
    """The model. It has the names that the training of language models uses: `states`, `no_past` and `output`."""

    no_past = None

    def __init__(self, config: LstmConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None
        self.embedding, self.dropout = nn.Embedding(config.vocab_size, config.d_model), Dropout(config.dropout)
        widths = [config.d_model, *[config.d_inner] * LAYERS]
        self.layers = nn.ModuleList(
            nn.LSTM(n_in, n_out, batch_first=True) for n_in, n_out in zip(widths, widths[1:], strict=False)
        )
        self.projection = nn.Linear(config.d_inner, config.d_model)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.output.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)

    def states(self, ids: Tensor, past: None = None) -> tuple[Tensor, None]:
        """Return what `output` makes logits of, (B,T,D), for ids (B,T). Nothing can come before them."""
        x = self.dropout(self.embedding(ids))
        for layer in self.layers:
            x = self.dropout(layer(x)[0])
        return self.projection(x), None


KINDS["lstm"] = Kind(f"{__name__}:LstmConfig", f"{__name__}:Lstm", ("language_model",))


def configurations() -> dict[str, Config]:
    """Return the configuration of each model."""
    gpt2 = find_recipe("gpt2-small")()
    model: Any = gpt2.model
    lstm = LstmConfig(d_model=model.d_model, max_positions=model.max_positions, dropout=model.dropout)
    others = {kind: find_recipe(f"{kind}-small")() for kind in ("llama", "llada")}
    return {"gpt2": gpt2, "lstm": replace(gpt2, model=lstm), **others}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "valid", "test", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=[*configurations()], default=["gpt2", "lstm"])
    parser.add_argument("--set", dest="settings", action="append", default=[])
    options = parser.parse_args()
    test = list(read_lines(options.test))
    for kind in options.kinds:
        out = options.out / kind
        request = TrainRequest(
            configurations()[kind], [Corpus(options.train)], [options.valid], out, options.settings, resume=True
        )
        loaded = load_model(train(request))
        if kind == "llada":
            scores = score_bound(loaded.model, loaded.tokenizer, test, samples=32)
        else:
            scores = score_lines(loaded.model, loaded.tokenizer, test)
        state = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        seconds = max(line.get("seconds", 0) for line in state)
        millions = parameter_count(loaded.model) / 1e6
        print(f"{kind}: {millions:.2f} M parameters, {seconds:,.0f} s of training on {torch.get_num_threads()} threads")
        print(f"{scores}\n", flush=True)


if __name__ == "__main__":
    main()
