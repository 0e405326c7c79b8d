"""Recipes for Multi30k: 29,000 image captions in several languages, the smallest real task with published scores."""

from dataclasses import replace

from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig


def tiny() -> Config:
    """Tokenised Multi30k: Transformer-Tiny, 41.02 lowercased tokenised BLEU on test_2016 in Wu et al. (2021).

    The paper fixes: 4 + 4 layers, d_model 128, d_ff 256, 4 heads, dropout 0.3, joint BPE, warm-up of 2,000 steps to a
    learning rate of 5e-3, 8,000 steps of 8,192 tokens, the mean of the last 10 checkpoints, beam 5.
    We chose, for two CPU cores: pre-norm and batches of a quarter of that size, which reach the same loss in a quarter
    of the epochs (docs/log/multi30k.md). Also a learning rate of 3.5e-3 after 1,000 steps, 6,000 pieces and bf16.
    The learning rate falls to 0 in the second half, so the model is a moving average of the last weights, and not a
    mean of checkpoints. Outputs are ranked by their mean log-probability per token, since the paper's penalty leaves
    them too short here.

    Time: 77 minutes on one core of a busy machine.

        transduce train --recipe multi30k-tiny --train TOK/train.lc.norm.tok.en TOK/train.lc.norm.tok.de
            --valid TOK/valid.lc.norm.tok.en TOK/valid.lc.norm.tok.de --out run

    Scores: docs/results.md.
    """
    start = _start()
    return replace(start, train=replace(start.train, decay_steps=7_000, ema_decay=0.998, use="ema"))


def diverse() -> Config:
    """Tokenised Multi30k, our best German on the tests: a model of multi30k-tiny continues on its translations, too.

    We chose: the text is enlarged by translations of its source side by the model itself, and of its target side by a
    backward model (data diversification, Nguyen et al., 2020). The model continues from its own weights, because a
    training of a wider model from the start took four times as long and was not better. A wider model with R-Drop in
    both trainings was level, in twice the time (docs/log/multi30k.md). Dropout is 0.2, since more text needs less.

    Time: 16 minutes on one core of a busy machine, after 77 for multi30k-tiny and 51 for the backward model.

        transduce translate forward/model --input train.en --output forward.de --lookahead 5 --precision int8
        transduce translate backward/model --input train.de --output backward.en --lookahead 5 --precision int8
        transduce diversify train.en train.de --forward forward.de --backward backward.en
            --held-out valid.en valid.de --held-out test_2016_flickr.en test_2016_flickr.de
            --held-out test_2017_flickr.en test_2017_flickr.de --output diverse.en diverse.de
        transduce train --recipe multi30k-diverse --from forward/model --train diverse.en diverse.de
            --valid valid.en valid.de --out final

    Scores: docs/results.md.
    """
    start = tiny()
    train = replace(start.train, max_steps=3_000, warmup_steps=200, lr_factor=0.28, decay_steps=2_800)
    return replace(start, model=replace(start.model, dropout=0.2), train=train)


def raw() -> Config:
    """Raw, cased Multi30k: the model of multi30k-tiny in about a third of the steps, 37.24 sacreBLEU on test_2016.

    We chose: the mean of the last 10 checkpoints, since the learning rate does not fall to 0.

    Time: 18.6 minutes on two cores.
    """
    start = _start()
    return replace(start, train=replace(start.train, max_steps=4_500, checkpoint_every_steps=250))


def joint() -> Config:
    """Tokenised Multi30k, English to German and French in one model: multi30k-tiny with tags.

    We chose: a tag names the target language, and the learning rate falls to 0 in the second half, so that the last
    checkpoint is better than a mean. It has fewer epochs of each language than multi30k-tiny, and is behind it
    (docs/log/multi30k.md). A training with R-Drop, more pieces and no fall of the learning rate was worse.

    Time: 74 minutes on one core of a busy machine.

        sed 's/^/<2de> /' TOK/train.lc.norm.tok.en > train.src
        sed 's/^/<2fr> /' TOK/train.lc.norm.tok.en >> train.src
        cat TOK/train.lc.norm.tok.de TOK/train.lc.norm.tok.fr > train.tgt
        (the same for valid)
        transduce train --recipe multi30k-joint --train train.src train.tgt --valid valid.src valid.tgt --out run
        transduce evaluate run/model --tag "<2de>" --src TOK/test_2016_flickr.lc.norm.tok.en
            --ref TOK/test_2016_flickr.lc.norm.tok.de --language de
    """
    start = _start()
    return replace(
        start,
        data=replace(start.data, tags=("<2de>", "<2fr>")),
        train=replace(start.train, max_steps=10_000, decay_steps=5_000, average_checkpoints=1),
    )


def _start() -> Config:
    """Return what all recipes of this file share: the model, the batches, the first half of a training, the search."""
    return Config(
        model=ModelConfig(vocab_size=None, d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3, norm="pre"),
        data=DataConfig(vocab_size=6_000, batch_tokens=2_048, max_tokens=128),
        train=TrainConfig(
            max_steps=14_000,
            warmup_steps=1_000,
            lr_factor=1.25,
            precision="bf16",
            evaluate_every_steps=500,
            checkpoint_every_steps=500,
            keep_checkpoints=10,
            average_checkpoints=10,
        ),
        search=SearchConfig(beam_size=5, length_penalty="power", alpha=1.0),
    )
