"""The recipe of a parser for CRAFT: 18,951 gold trees of biomedical articles, under a free licence."""

from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig


def parse() -> Config:
    """Constituency parsing of CRAFT's treebank, as in section 6.3, on two CPU cores.

    We chose everything: a treebank of half of the size of the Wall Street Journal needs a smaller model than the
    paper's. Each word is a token, as in the by-word form of the trees, so that symbols 2 i and 2 i + 1 belong to token
    i (docs/log/parsing.md). In each epoch 15 % of the words get the token of the rare words with their spelling.
    Symbols have their own vocabulary, as in the 2017 code. R-Drop, and a learning rate that falls to 0, suit a
    small treebank (docs/log/parsing.md).

    Time: about 75 minutes on two cores (28 epochs of 290 steps, 160 s each), from the speed of the first 100 steps;
    while other programs ran, it took 135 minutes. F1 81.8 on the test set with beam 4.

        transduce linearize craft_const/train.clean.trees --out train
        transduce linearize dev300.trees --out dev
        transduce train --recipe craft-parse --train train.words train.symbols --valid dev.words dev.symbols --out run

    dev300.trees: 300 trees of the development set. All 2,780 make each of the 8 evaluations nine times as long.
    """
    return Config(
        model=ModelConfig(
            vocab_size=None,
            d_model=192,
            n_layers=4,
            n_heads=4,
            d_ff=384,
            dropout=0.25,
            norm="pre",
            tie_src_tgt=False,
        ),
        data=DataConfig(
            vocab_size=16_000,
            batch_tokens=3_500,
            max_tokens=512,
            bpe_dropout=0.15,
            source_tokens="words",
            target_tokens="symbols",
        ),
        train=TrainConfig(
            task="parsing",
            max_steps=8_000,
            warmup_steps=1_000,
            lr_factor=1.0,
            decay_steps=4_000,
            label_smoothing=0.1,
            rdrop=2.0,
            precision="bf16",
            evaluate_every_steps=1_000,
            checkpoint_every_steps=200,
            keep_checkpoints=10,
            average_checkpoints=10,
        ),
        search=SearchConfig(beam_size=4, alpha=0.3, max_extra_tokens=1_000),
    )
