"""The command line: arguments -> verbs. Results go to stdout, everything else to stderr.

Exit codes: 0 done, 1 our fault, 2 the user's mistake, 3 the machine (disk, memory, I/O). Each command imports what it
needs when it runs, so that help and completion never wait for torch.
"""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from cyclopts import App, CycloptsError, Parameter, Token
from rich.console import Console

from transduce.cli.study import app as study
from transduce.data.corpora import Corpus, parse
from transduce.errors import UserError, is_out_of_memory
from transduce.version import __version__

app = App(
    name="transduce",
    version=__version__,
    help="The Transformer of 'Attention Is All You Need': train, judge and use your own translation model.",
    help_epilogue="First of all, try: transduce demo",
    help_format="plaintext",
    error_console=Console(stderr=True),
    default_parameter=Parameter(negative=()),
    result_action="return_none",
)


def main() -> None:
    """Run the command of sys.argv and exit."""
    try:
        app(sys.argv[1:], exit_on_error=False)
        sys.stdout.flush()
    except CycloptsError:
        sys.exit(2)
    except UserError as mistake:
        _stop(f"{mistake}", 2)
    except BrokenPipeError:  # the reader of our output has left; nothing is wrong
        _drop_output()
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
    except ConnectionError as problem:
        print(f"transduce: {_in_words(problem)}", file=sys.stderr, flush=True)
        os._exit(3)  # at once: threads that wait for lost ranks hold up an orderly end, or abort it
    except OSError as problem:
        _drop_output()
        _stop(_in_words(problem), 3)
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        said = str(problem) if isinstance(problem, MemoryError) else ""
        _stop(f"out of memory: {said or 'use a smaller model, or a machine with more memory'}", 3)


def _stop(message: str, code: int) -> NoReturn:
    print(f"transduce: {message}", file=sys.stderr)
    sys.exit(code)


REMEDIES = {
    errno.ENOSPC: "make room there, or give another place",
    errno.EDQUOT: "make room there, or give another place",
    errno.EACCES: "change its permissions, or give another place",
    errno.EPERM: "change its permissions, or give another place",
    errno.EROFS: "give a place that can be written to",
}


def _in_words(problem: OSError) -> str:
    """Where, what and, if we know one, the remedy."""
    where = f"{os.fsdecode(problem.filename)}: " if problem.filename is not None else ""
    remedy = f"; {REMEDIES[problem.errno]}" if problem.errno in REMEDIES else ""
    return f"{where}{problem.strerror or problem}{remedy}"


def _drop_output() -> None:
    """Let what could not be written go, or Python would try again at exit, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_json(value: Any) -> None:
    """One line, in UTF-8 whatever the locale."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


# ---- demo --------------------------------------------------------------------------------------------------------


@app.command(
    help_epilogue="""Examples:
  transduce demo
  transduce demo --out /tmp/demo""",
)
def demo(*, out: Path = Path("transduce-demo")) -> None:
    """Train and try a model on an embedded English-German grammar; a few minutes on two cores.

    Parameters
    ----------
    out
        A folder that does not exist yet: corpus, run, report.json and a picture of attention go there.
    """
    from transduce.demo.tour import run_demo

    run_demo(out)


# ---- check -------------------------------------------------------------------------------------------------------


@app.command(
    help_epilogue="""Examples:
  transduce check train.en train.de
  transduce check train.en train.de --valid valid.en valid.de
  transduce check web.tsv.gz --tokenizer run/model --json""",
)
def check(
    *corpus: Path,
    valid: tuple[Path, Path] | None = None,
    tokenizer: Path | None = None,
    first: int = 5,
    json: bool = False,
) -> None:
    """Look through a corpus before training on it: what it holds, and which lines look wrong. It changes nothing.

    The exit code is 2 if the text cannot be trained on, and 0 whatever else is found.

    Parameters
    ----------
    corpus
        SRC TGT, or FILE, as for train.
    valid
        Source and target text to judge by: are any of its lines in the corpus?
    tokenizer
        A model folder or a tokenizer.json: which characters does it split into bytes?
    first
        How many lines of each finding to name.
    json
        Print one JSON object.
    """
    from transduce.check import check as look
    from transduce.check import show, verdict
    from transduce.data.tokenizer import Tokenizer

    if not 1 <= len(corpus) <= 2:
        raise UserError(f"{len(corpus)} files given; expected SRC TGT, or one FILE that holds both sides")
    if first < 0:
        raise UserError(f"--first {first}: expected 0 or more")
    rules = None
    if tokenizer is not None:
        rules = Tokenizer.load(tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer)
    both = Corpus(corpus[0], corpus[1] if len(corpus) > 1 else None)
    checked = look(both, valid, tokenizer=rules, first=first)
    if json:
        _print_json(checked)
    else:
        print(show(checked))
    if not checked.trainable:
        raise UserError(verdict(checked))
    if not json:
        print(verdict(checked))


# ---- train -------------------------------------------------------------------------------------------------------


def _corpora(kind: Any, tokens: Sequence[Token]) -> list[Corpus]:
    """What each --train is followed by: SRC TGT [WEIGHT], or FILE [WEIGHT]."""
    given: list[list[str]] = []
    for token in tokens:
        if token.index == 0:  # the first one after another --train
            given.append([])
        given[-1].append(token.value)
    return [parse(words) for words in given]


@app.command(
    help_epilogue="""Examples:
  transduce train --recipe small --train train.en train.de \\
      --valid valid.en valid.de --out run
  transduce train --recipe small --train train.en train.de \\
      --valid valid.en valid.de --out run --resume
  transduce train --recipe small --train train.en train.de \\
      --valid valid.en valid.de --out run --resume \\
      --set train.max_steps=20000 --allow-change train.max_steps
  transduce train --recipe small --train clean.en clean.de 2 \\
      --train web.tsv.gz 0.5 --valid valid.en valid.de --out run
  transduce train --recipe vaswani2017-base --set train.accumulate=8 \\
      --train train.en train.de --valid valid.en valid.de --out run""",
)
def train(
    *,
    recipe: str,
    train: Annotated[list[Corpus], Parameter(converter=_corpora, consume_multiple=True, accepts_keys=False)],
    valid: tuple[Path, Path],
    out: Path,
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    start_from: Annotated[Path | None, Parameter(name="--from")] = None,
    resume: bool = False,
    allow_change: list[str] | None = None,
    tensorboard: bool = False,
    shard: bool = False,
    rank_timeout: float | None = None,
) -> None:
    """Train a model on two line-aligned text files. The model to use is then in OUT/model.

    Parameters
    ----------
    recipe
        A name, such as small or vaswani2017-base (a wrong one lists them all), or FILE.py:FUNCTION.
    train
        SRC TGT [WEIGHT]: source and target text to learn from, UTF-8, one sentence per line, line by line translations
        of each other. Or FILE [WEIGHT], with both sides in tab-separated columns or parquet. May be repeated; a weight
        of 2 takes each pair twice an epoch, 0.5 each in every other. gz, xz and zst files are read as they are.
    valid
        Source and target text to judge by while training.
    out
        Folder of the run: configuration, tokenizer, checkpoints, log.jsonl, model.
    settings
        Overrides a setting: section.key=value. May be repeated.
    start_from
        A model folder to go on from, on other data: its weights, tokenizer and architecture are kept.
    resume
        Go on with the run in OUT from its newest checkpoint.
    allow_change
        With --resume, a setting in which the run may differ from what it was begun with: train.max_steps,
        train.accumulate, train.log_every_steps, train.keep_checkpoints or train.patience. May be repeated.
    tensorboard
        Write TensorBoard events to OUT/tensorboard as well.
    shard
        With torchrun: let each process keep only a part of the model and its optimizer, for what does not fit on one.
    rank_timeout
        Under torchrun, the seconds for which a rank waits for the others before it takes them for lost. Default: 120.
    """
    from transduce.train import train as run
    from transduce.training.distributed import joined

    with joined(rank_timeout):
        run(
            recipe,
            settings=settings or [],
            train=train,
            valid=valid,
            out=out,
            resume=resume,
            allow_change=allow_change or [],
            start_from=start_from,
            tensorboard=tensorboard,
            shard=shard,
        )


# ---- translate ---------------------------------------------------------------------------------------------------


@app.command(
    help_epilogue="""Examples:
  transduce translate run/model < input.en > output.de
  echo "A dog runs." | transduce translate run/model --json --n-best 3
  transduce translate run/model --split sentences < pages.en > pages.de
  transduce translate run1/model run2/model --input in.en --output out.de""",
)
def translate(
    *models: Path,
    input: Path | None = None,
    output: Path | None = None,
    beam_size: int | None = None,
    alpha: float | None = None,
    lookahead: int | None = None,
    n_best: int = 1,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    split: Literal["long", "sentences"] = "long",
    precision: str | None = None,
    engine: Literal["torch", "ctranslate2"] | None = None,
    json: bool = False,
) -> None:
    """Translate lines: one line in, one line out, in the same order, answered as they come. Blank lines stay blank.

    Parameters
    ----------
    models
        Model folders, such as run/model. Several are an ensemble.
    input
        File to read; default: standard input.
    output
        File to write; default: standard output.
    beam_size
        Hypotheses kept by the search; default: the model's own setting. 1 is greedy search.
    alpha
        Exponent of the length penalty; default: the model's own setting.
    lookahead
        The beam search ends when no output could be better that is at most so many tokens longer than those at hand.
        Default: the model's own setting, usually no limit, which is exact and slower, as is 10000. Not for CTranslate2.
    n_best
        Outputs for each line; more than one needs --json.
    temperature
        Sample instead of searching, at this temperature.
    top_k
        Sample from the K likeliest tokens.
    top_p
        Sample from the fewest tokens that have this probability together.
    seed
        Of sampling; the same seed draws the same. Default: 1.
    split
        Which lines are translated sentence by sentence: long, those of data.max_tokens tokens or more; or sentences,
        all, for a model of single sentences and lines that hold several. Default: long.
    precision
        fp32; bf16; int8, on CPUs; or auto, what this machine does fastest, which is then told. Default: fp32, or that
        of an exported model's weights.
    engine
        torch, or ctranslate2 for a model exported to it. Default: what the folder is for.
    json
        One JSON object per line, with scores, tokens and alternatives.
    """
    if n_best > 1 and not json:
        raise UserError(f"--n-best {n_best} gives several outputs for a line; add --json")
    samples = not (temperature is None and top_k is None and top_p is None)
    if seed is not None and not samples:
        raise UserError(f"--seed {seed} has no effect without --temperature, --top-k or --top-p")
    if samples and (beam_size is not None or lookahead is not None or n_best > 1):
        searched = "--beam-size, --lookahead and --n-best"
        raise UserError(f"{searched} have no effect with --temperature, --top-k or --top-p; drop them")

    from transduce.cli.stream import Ask, run_filter
    from transduce.decoding.hypothesis import Sampling

    sampling = Sampling(1.0 if temperature is None else temperature, top_k, top_p) if samples else None
    seed = 1 if seed is None else seed
    ask = Ask(beam_size, alpha, lookahead, n_best, sampling, seed, split, precision, engine, json)
    run_filter(models, input, output, ask)


# ---- score -------------------------------------------------------------------------------------------------------


@app.command(
    help_epilogue="""Examples:
  transduce score run/model --src input.en --tgt candidates.de
  transduce score run/model --src input.en --tgt candidates.de --json""",
)
def score(*models: Path, src: Path, tgt: Path, precision: str = "fp32", json: bool = False) -> None:
    """Print the log-probability of given translations, one number a line (natural logarithm, end of sentence included).

    Parameters
    ----------
    models
        Model folders. Several are an ensemble.
    src
        Source text.
    tgt
        Translations to score, line by line.
    precision
        fp32, or bf16.
    json
        One JSON object per line, with the tokens and the log-probability of each.
    """
    from itertools import islice

    from transduce.data.text import read_pairs
    from transduce.translate import load

    model, pairs, done = load(*models, precision=precision), read_pairs(src, tgt), 0
    while chunk := list(islice(pairs, 1_000)):
        for scored in model.score([s for s, _ in chunk], [t for _, t in chunk], first_number=done):
            if json:
                _print_json(scored)
            else:
                print(f"{scored.log_prob:.6f}")
        done += len(chunk)


# ---- evaluate ----------------------------------------------------------------------------------------------------


@app.command(
    help_epilogue="""Examples:
  transduce evaluate run/model --src test.en --ref test.de --language de
  transduce evaluate --hyp output.de --ref test.de --language de
  transduce evaluate --hyp old.de --hyp new.de --ref test.de --language de""",
)
def evaluate(
    *models: Path,
    ref: Path,
    src: Path | None = None,
    hyp: list[Path] | None = None,
    language: str = "en",
    tokenize: str = "13a",
    beam_size: int | None = None,
    alpha: float | None = None,
    lookahead: int | None = None,
    precision: str = "fp32",
    json: bool = False,
) -> None:
    """Judge a model on a test set, or given translations without a model. Two --hyp: is the difference significant?

    Parameters
    ----------
    models
        Model folders; needs --src. Several are an ensemble.
    ref
        Reference translations.
    src
        Source text, for a model.
    hyp
        Translations to judge instead of a model's; given twice, the second is compared with the first.
    language
        Language of the references, such as de: the rules of the Moses tokenizer.
    tokenize
        sacreBLEU's tokenizer for the first figure: 13a, intl, char, zh, ja-mecab, ko-mecab or none.
    beam_size
        Default: the model's own setting.
    alpha
        Exponent of the length penalty; default: the model's own setting.
    lookahead
        Default: the model's own setting; see `transduce translate --help`.
    precision
        fp32, or bf16.
    json
        Print one JSON object.
    """
    from transduce.evaluate import judge_hypotheses, judge_model, show

    if bool(models) == bool(hyp):
        raise UserError("give either a model and --src, or one or two --hyp files")
    if hyp:
        if any(given is not None for given in (src, beam_size, alpha, lookahead)) or precision != "fp32":
            of_a_model = "--src, --beam-size, --alpha, --lookahead and --precision"
            raise UserError(f"{of_a_model} have no effect with --hyp; leave them out")
        judged = judge_hypotheses(hyp, ref, language=language, tokenize=tokenize)
    elif src is None:
        raise UserError("a model needs --src, the text to translate")
    else:
        from transduce.translate import load

        translator = load(*models, precision=precision)
        ask = translator.settings(beam_size, alpha, lookahead=lookahead)
        judged = judge_model(translator, src, ref, language=language, tokenize=tokenize, ask=ask)
    if json:
        _print_json(judged)
    else:
        print(show(judged))


# ---- average -----------------------------------------------------------------------------------------------------


@app.command(
    help_epilogue="""Examples:
  transduce average run --last 5 --out averaged""",
)
def average(run: Path, *, last: int, out: Path, until: int | None = None) -> None:
    """Make a model of the mean of a run's newest checkpoints.

    Parameters
    ----------
    run
        Folder of a training run.
    last
        How many of its newest checkpoints.
    out
        The new model folder.
    until
        A step, after which checkpoints are left out.
    """
    from transduce.storage.run_folder import average_run

    average_run(run, last=last, out=out, until=until)


# ---- export ------------------------------------------------------------------------------------------------------


@app.command(
    help_epilogue="""Examples:
  transduce export run/model --to ctranslate2 --out exported
  transduce export run/model --to ctranslate2 --out small --precision int8""",
)
def export(model: Path, out: Path, *, to: Literal["ctranslate2", "marian"], precision: str = "fp32") -> None:
    """Write a model for another program, and try there whether it computes the same.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    out
        The new folder.
    to
        ctranslate2: translate then uses it without PyTorch. marian: MarianMTModel of Hugging Face's transformers.
    precision
        Of the weights on disk, for CTranslate2: fp32, or int8, which is a quarter of the size and rounds.
    """
    if to == "marian":
        if precision != "fp32":
            raise UserError(f"--precision {precision} has no effect with --to marian; leave it out")
        from transduce.interop.marian import export_marian

        found = export_marian(model, out)
    else:
        from transduce.interop.ctranslate2_export import export_ctranslate2

        found = export_ctranslate2(model, out, precision)
    print(found, file=sys.stderr)


# ---- import ------------------------------------------------------------------------------------------------------


@app.command(
    name="import",
    help_epilogue="""Examples:
  transduce import marian opus-mt-en-de --out imported""",
)
def import_(form: Literal["marian"], folder: Path, out: Path) -> None:
    """Make a model folder of another program's model.

    Parameters
    ----------
    form
        marian: a Marian model in Hugging Face's form, as the public OPUS-MT models are.
    folder
        The other program's folder, with config.json, model.safetensors, vocab.json, source.spm and target.spm.
    out
        The new model folder.
    """
    from transduce.interop.marian import import_marian

    import_marian(folder, out)


# ---- report ------------------------------------------------------------------------------------------------------


@app.command(
    help_epilogue="""Examples:
  transduce report run""",
)
def report(run: Path) -> None:
    """Show how a training goes: write RUN/report.html, one page with curves and figures, and print its path.

    A training writes it too, at each evaluation; this does so at any time, also while it runs.

    Parameters
    ----------
    run
        Folder of a training run.
    """
    from transduce.evaluation.run_report import write_report

    sys.stdout.buffer.write(os.fsencode(write_report(run)) + b"\n")


# ---- study -------------------------------------------------------------------------------------------------------

app.command(study)
