"""Recipes for descendants of the Transformer, small enough for a laptop."""

from dataclasses import replace

from transduce.config.kinds import config_class
from transduce.config.schema import Config, DataConfig, TrainConfig


def gpt2_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: a small GPT-2, which learns to continue lines.

    It has dropout of 0.2, since small texts are seen many times. The public GPT-2 of 124 M parameters has 12 layers,
    d_model 768, 1,024 positions and 50,257 pieces: set these for a text of gigabytes.
    Training stops early when the validation loss has not improved in 5 evaluations, and keeps the best weights.

    Size: 5.3 M parameters.

    Time: 60 minutes on one busy core for 29,000 captions, which stop it at step 2,750 of 10,000.

        transduce train --recipe gpt2-small --train train.txt --valid valid.txt --out run
    """
    return Config(
        model=config_class("gpt2")(d_model=256, n_layers=4, n_heads=4, max_positions=256, dropout=0.2),
        data=DataConfig(vocab_size=8_000, batch_tokens=4_000),
        train=TrainConfig(
            task="language_model",
            max_steps=10_000,
            warmup_steps=500,
            lr_factor=0.5,
            label_smoothing=0.0,
            precision="bf16",
            evaluate_every_steps=250,
            checkpoint_every_steps=250,
            use="best",
            patience=5,
        ),
    )


def llama_small() -> Config:
    """Your own text, 100,000 lines or more: gpt2-small with the layers of Llama.

    Llama has no dropout, so it is for a text that is seen only few times.

    Size: 5.2 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    model = config_class("llama")(d_model=256, n_layers=4, n_heads=4, d_ff=688, max_positions=256)
    return replace(gpt2_small(), model=model)


def mamba_small() -> Config:
    """Your own text, 100,000 lines or more: gpt2-small as a Mamba, without attention.

    A layer has one part, so there are twice as many layers. It has no dropout.
    A step takes longer than one of llama-small, because the recurrence is a loop over the tokens.

    Size: 5.6 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    return replace(gpt2_small(), model=config_class("mamba")(d_model=256, n_layers=8, max_positions=256))


def rwkv_small() -> Config:
    """Your own text, 100,000 lines or more: gpt2-small as an RWKV-4, without attention.

    It has more parameters, because the embedding is not the output matrix. It has no dropout.

    Size: 7.5 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    return replace(gpt2_small(), model=config_class("rwkv")(d_model=256, n_layers=4, max_positions=256))


def palm_small() -> Config:
    """Your own text, 100,000 lines or more: llama-small with the parallel layers of PaLM, and one head of keys.

    Size: 4.8 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    model = config_class("palm")(d_model=256, n_layers=4, n_heads=4, d_ff=688, max_positions=256)
    return replace(gpt2_small(), model=model)


def synthesizer_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: gpt2-small with Synthesizer, scores without products of two tokens.

    They are dense. model.scores has random, factorised_dense and factorised_random, too.

    Size: 5.3 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    model = config_class("synthesizer")(d_model=256, n_layers=4, n_heads=4, max_positions=256, dropout=0.2)
    return replace(gpt2_small(), model=model)


def t6_small() -> Config:
    """Your own text, 100,000 lines or more: llama-small with tensor product attention, which has a small cache.

    Queries are sums of 6 products, keys and values of 2: model.q_rank and model.kv_rank. It has no dropout.

    Size: 5.1 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    model = config_class("t6")(d_model=256, n_layers=4, n_heads=4, d_ff=688, max_positions=256)
    return replace(gpt2_small(), model=model)


def performer_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: gpt2-small with Performer, random features in place of weights.

    It has the size of gpt2-small, and 256 features, which are model.n_features. It computes in fp32: an
    exponent near 8 that is rounded to bf16 changes its feature by up to 1.6 %.

    Size: 5.3 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    start = gpt2_small()
    model = config_class("performer")(d_model=256, n_layers=4, n_heads=4, max_positions=256, dropout=0.2)
    return replace(start, model=model, train=replace(start.train, precision="fp32"))


def transformer_xl_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: gpt2-small as a Transformer-XL, with scores of distances.

    A line is one segment, so the memory serves only to continue lines; model.n_memory limits it.

    Size: 5.5 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    model = config_class("transformer_xl")(d_model=256, n_layers=4, n_heads=4, max_positions=256, dropout=0.2)
    return replace(gpt2_small(), model=model)


def hyena_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: gpt2-small as a Hyena, without attention.

    It has the dropout of gpt2-small.

    Size: 5.4 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    model = config_class("hyena")(d_model=256, n_layers=4, max_positions=256, dropout=0.2)
    return replace(gpt2_small(), model=model)


def alibi_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: gpt2-small with ALiBi, linear biases of the distance, as its positions.

    Other positions and a window are settings: model.positions, with none, sinusoids, learned, rope, t5, shaw or skewed,
    model.rope, with linear, ntk or yarn for scaled frequencies, and model.window, with the number of tokens before it
    that a token sees. With model.window_every=2 it is in every second layer, as in GPT-3.

    Size: 5.2 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    sizes = config_class("decoder")(d_model=256, n_layers=4, n_heads=4, max_positions=256, dropout=0.2)
    return replace(gpt2_small(), model=replace(sizes, positions="alibi"))


def experts_small() -> Config:
    """Your own text, 100,000 lines or more: gpt2-small with RoPE and 8 experts in each layer, of which a token has one.

    It does as much work for a token as gpt2-small. The router is the one of the Switch Transformer; model.router has
    others.

    Size: 19.9 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.
    """
    sizes = config_class("decoder")(d_model=256, n_layers=4, n_heads=4, max_positions=256, dropout=0.2)
    return replace(gpt2_small(), model=replace(sizes, n_experts=8))


def llada_small() -> Config:
    """Your own text, 100,000 lines or more: a small LLaDA, which learns to fill masks from both sides.

    It has the size and the budget of llama-small, so that diffusion can be compared with a decoder. Diffusion learns
    more slowly, and a text wears out later: with time to spare, set more steps.

    Size: 5.2 M parameters.

    Time: not measured in full: at most 10,000 steps of 4,000 tokens.

        transduce train --recipe llada-small --train train.txt --valid valid.txt --out run
    """
    start = llama_small()
    model = config_class("llada")(d_model=256, n_layers=4, n_heads=4, d_ff=688, max_positions=258)
    return replace(start, model=model, train=replace(start.train, task="diffusion"))


def bert_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: a small BERT, which learns to restore masked words.

    It has the width and the depth of gpt2-small. A step has twice as many tokens, of which the model predicts 15 %. A
    text is seen more often, since other words are masked each time.

    Size: 5.3 M parameters.

    Time: not measured in full: at most 20,000 steps of 8,000 tokens. 4,000 of them took 93 minutes of one core.

        transduce train --recipe bert-small --train train.txt --valid valid.txt --out run
    """
    start = gpt2_small()
    return replace(
        start,
        model=config_class("bert")(d_model=256, n_layers=4, n_heads=4, max_positions=258, dropout=0.1),
        data=replace(start.data, batch_tokens=8_000),
        train=replace(start.train, task="masked_words", max_steps=20_000, warmup_steps=1_000),
    )


def longformer_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: bert-small with the attention of Longformer.

    A token sees 32 tokens on either side, which is model.reach, and the beginning of the line, which sees all.

    Size: 6.1 M parameters.

    Time: not measured in full: at most 20,000 steps of 8,000 tokens.
    """
    model = config_class("longformer")(d_model=256, n_layers=4, n_heads=4, reach=32, max_positions=258, dropout=0.1)
    return replace(bert_small(), model=model)


def linformer_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: bert-small with the attention of Linformer.

    A token sees 64 mixtures of the tokens of the line, which is model.rank.

    Size: 5.4 M parameters.

    Time: not measured in full: at most 20,000 steps of 8,000 tokens.
    """
    model = config_class("linformer")(d_model=256, n_layers=4, n_heads=4, rank=64, max_positions=258, dropout=0.1)
    return replace(bert_small(), model=model)


def t5_small() -> Config:
    """Your own text, 20,000 to 1,000,000 lines: a small T5, which learns to restore spans of a line.

    It has 3 layers on each side, of the width of gpt2-small. A step has as many tokens as in bert-small, of which 15 %
    become the target. The public T5 of 60 M parameters has 6 layers on each side, d_model 512 and 8 heads.

    Size: 7.6 M parameters.

    Time: not measured in full: at most 20,000 steps of 8,000 tokens.

        transduce train --recipe t5-small --train train.txt --valid valid.txt --out run
    """
    start = bert_small()
    return replace(
        start,
        model=config_class("t5")(d_model=256, n_layers=3, n_heads=4, dropout=0.1),
        train=replace(start.train, task="spans"),
    )


def bert_classifier() -> Config:
    """Sentences and their labels, 50 or more of a label: a classifier, from a pre-trained BERT.

    The folder of the BERT sets the sizes of the model and the tokenizer: those below have no effect. A step has about
    1,000 tokens, some 40 sentences. Training stops early when the accuracy has not improved in 10 evaluations, and
    keeps the best weights. A lower train.lr_factor suits a large BERT.

    Size: 5.3 M parameters.

    Time: 2 minutes for 60 sentences and 5 for 2,000, on one core, with a BERT of bert-small.

        transduce finetune bert/model --train sentences.txt labels.txt --valid valid.txt valid-labels.txt --out run
    """
    return Config(
        model=config_class("bert_classifier")(d_model=256, n_layers=4, n_heads=4, max_positions=258, dropout=0.1),
        data=DataConfig(vocab_size=8_000, batch_tokens=1_000, target_tokens="labels"),
        train=TrainConfig(
            task="classes",
            max_steps=2_000,
            warmup_steps=50,
            lr_factor=0.015,
            label_smoothing=0.0,
            log_every_steps=25,
            evaluate_every_steps=25,
            checkpoint_every_steps=100,
            use="best",
            best_by="accuracy",
            patience=10,
        ),
    )


def gpt2_preferences() -> Config:
    """Pairs of texts, 500 or more, of which one was chosen: direct preference optimisation of a language model.

    It starts from the model of --from, which sets the sizes and the tokenizer: those below have no effect. A pair is
    two lines that begin with the same prompt, which may be empty. There is no dropout. A larger train.dpo_beta keeps
    the model nearer to its start: with the 0.1 of the paper, a small model lost its language.

    Size: 5.3 M parameters.

    Time: not measured with this size; 1 minute on one core with a model of 0.7 M parameters.

        transduce train --recipe gpt2-preferences --from run/model --train a.txt b.txt --valid c.txt d.txt --out tuned
    """
    return Config(
        model=config_class("gpt2")(d_model=256, n_layers=4, n_heads=4, max_positions=256, dropout=0.0),
        data=DataConfig(vocab_size=8_000, batch_tokens=1_000),
        train=TrainConfig(
            task="preferences",
            dpo_beta=1.0,
            max_steps=300,
            warmup_steps=50,
            lr_factor=0.01,
            label_smoothing=0.0,
            log_every_steps=25,
            evaluate_every_steps=50,
            checkpoint_every_steps=100,
            use="best",
        ),
    )


def gpt2_reward() -> Config:
    """Pairs of texts, 500 or more, of which one was chosen: a reward model, from a GPT-2.

    It starts from the model of --from, as gpt2-preferences does, with a new head. Training stops early when the
    accuracy has not improved in 5 evaluations, and keeps the best weights.

    Size: 5.3 M parameters.

    Time: not measured with this size; 35 seconds on one core with a model of 0.7 M parameters.

        transduce train --recipe gpt2-reward --from run/model --train a.txt b.txt --valid c.txt d.txt --out reward
    """
    start = gpt2_preferences()
    return replace(
        start,
        model=config_class("gpt2_reward")(d_model=256, n_layers=4, n_heads=4, max_positions=256, dropout=0.1),
        train=replace(start.train, task="rewards", lr_factor=0.015, best_by="accuracy", patience=5),
    )
