"""Right answers of a fine-tuned BERT with few labels, compared with tf-idf and logistic regression.

    python benchmarks/labels.py --corpora news.txt captions.txt biology.txt --out FOLDER --write-text
    transduce train --recipe bert-small --train FOLDER/train.txt --valid FOLDER/valid.txt --out bert
    python benchmarks/labels.py --corpora news.txt captions.txt biology.txt --out FOLDER --bert bert/model

The task: which corpus is a sentence from? Each file is a corpus, and its name is the label. A line is reduced to its
letters in lower case, so that no punctuation tells; lines of fewer than 3 words, and lines that occur twice, are left
out. The test has as many sentences of each corpus as of another, and so have those with labels. The seed draws the
latter; 60 labels are the first of the 200. The first command writes the other sentences, mixed, for the pre-training.

Each method sees the same labels and no others:

    tf-idf        scikit-learn: words and pairs of words, logistic regression, C by cross-validation
    frozen        the same logistic regression on the vectors of `transduce embed`
    fine-tuned    `transduce finetune`: four fifths of the labels to train on, a fifth to choose the best step

The first two need `pip install scikit-learn`. `--methods` selects some of the three, `--seeds` repeats all of it, and a
run that exists is resumed.
"""

import argparse
import importlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transduce.data.corpora import Corpus
from transduce.data.text import read_lines
from transduce.family.inference.text_encoder import TextEncoder
from transduce.family.tasks.classes import macro_f1
from transduce.storage.run_request import TrainRequest
from transduce.train import train

Pairs = Sequence[tuple[str, str]]  # sentences and labels
METHODS = ("tf-idf", "frozen", "fine-tuned")
LEAST_WORDS, FOLDS = 3, 5


def sentences_of(corpora: Sequence[Path]) -> dict[str, list[str]]:
    """Return the different sentences of each corpus, only letters. One that occurs in two corpora is in neither."""
    texts = {path.stem: {letters(line) for line in read_lines(path)} for path in corpora}
    counts = Counter(line for lines in texts.values() for line in lines)
    return {
        name: sorted(line for line in lines if counts[line] == 1 and len(line.split()) >= LEAST_WORDS)
        for name, lines in texts.items()
    }


def letters(line: str) -> str:
    return " ".join(re.findall(r"[^\W\d_]+", line.lower()))


def drawn(texts: dict[str, list[str]], count: int, seed: int) -> Pairs:
    """Return `count` sentences and their corpora, each corpus in turn. More sentences begin with the same ones."""
    n_each = -(-count // len(texts))
    if missing := [name for name, lines in texts.items() if len(lines) < n_each]:
        raise SystemExit(f"{', '.join(missing)}: expected at least {n_each:,} more sentences; give longer texts")
    shuffled = {name: random.Random(f"{seed} {name}").sample(lines, len(lines)) for name, lines in texts.items()}
    return [(lines[i], name) for i in range(n_each) for name, lines in shuffled.items()][:count]


def without(texts: dict[str, list[str]], test: Pairs) -> dict[str, list[str]]:
    """Return the sentences of each corpus that are not in the test."""
    tested = {*test}
    return {name: [line for line in lines if (line, name) not in tested] for name, lines in texts.items()}


def write_text(texts: dict[str, list[str]], folder: Path) -> None:
    """Write all sentences in random order: 1,000 or a tenth of them as valid.txt, the others as train.txt."""
    lines = [line for lines in texts.values() for line in lines]
    random.Random(1).shuffle(lines)
    n_valid = min(1_000, len(lines) // 10)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in ("valid", lines[:n_valid]), ("train", lines[n_valid:]):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in part), encoding="utf-8")


# ---- methods -----------------------------------------------------------------------------------------------------


def answers_of(method: str, learn: Pairs, test: Pairs, bert: Path, run: Path, settings: Sequence[str]) -> list[str]:
    """Return the labels that a method gives to the test sentences. run, settings: of a fine-tuning."""
    match method:
        case "tf-idf":
            return by_words(learn, test)
        case "frozen":
            return by_vectors(learn, test, TextEncoder.load(bert))
        case _:
            return by_fine_tuning(learn, test, bert, run, settings)


def by_words(learn: Pairs, test: Pairs) -> list[str]:
    """Return the labels of tf-idf and logistic regression."""
    text = sklearn("feature_extraction.text")
    vectors = text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    return by_regression(vectors.fit_transform([line for line, _ in learn]), learn, vectors.transform(lines_of(test)))


def by_vectors(learn: Pairs, test: Pairs, encoder: TextEncoder) -> list[str]:
    """Return the labels of logistic regression on the vectors of an encoder that does not learn."""
    ours, theirs = (encoder.embed(lines_of(part)) for part in (learn, test))
    vectors = [
        np.stack([answer.value.numpy() for answer in side if answer.value is not None]) for side in (ours, theirs)
    ]
    return by_regression(vectors[0], learn, vectors[1])


def by_regression(values: Any, learn: Pairs, others: Any) -> list[str]:
    regression = sklearn("linear_model").LogisticRegression(max_iter=2_000)
    grid = {"C": np.logspace(-1, 3, 9)}
    search = sklearn("model_selection").GridSearchCV(regression, grid, cv=FOLDS, scoring="accuracy")
    return [str(label) for label in search.fit(values, [label for _, label in learn]).predict(others)]


def by_fine_tuning(learn: Pairs, test: Pairs, bert: Path, out: Path, settings: Sequence[str]) -> list[str]:
    """Return the labels of a classifier that starts from `bert`. Every fifth sentence of a corpus chooses the step."""
    places = {label: [i for i, (_, other) in enumerate(learn) if other == label] for _, label in learn}
    for_validation = {i for of_label in places.values() for i in of_label[FOLDS - 1 :: FOLDS]}
    parts = {
        "valid": [pair for i, pair in enumerate(learn) if i in for_validation],
        "train": [pair for i, pair in enumerate(learn) if i not in for_validation],
    }
    files = {name: written(out.parent, f"{out.name}-{name}", pairs) for name, pairs in parts.items()}
    request = TrainRequest(
        "bert-classifier", [Corpus(*files["train"])], files["valid"], out, settings, resume=True, start_from=bert
    )
    answers = TextEncoder.load(train(request)).classify(lines_of(test))
    return [next(iter(answer.value or {"": 0.0})) for answer in answers]


def written(folder: Path, name: str, pairs: Pairs) -> tuple[Path, Path]:
    """Write sentences and labels to two files, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{name}.txt", folder / f"{name}.labels"
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


def lines_of(pairs: Pairs) -> list[str]:
    return [line for line, _ in pairs]


def sklearn(module: str) -> Any:
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ModuleNotFoundError:
        remedy = "pip install scikit-learn, or give --methods fine-tuned"
        raise SystemExit(f"tf-idf and frozen: expected the package scikit-learn; {remedy}") from None


# ---- the table ---------------------------------------------------------------------------------------------------


def scores(answers: Sequence[str], test: Pairs) -> dict[str, float]:
    """Return accuracy and macro F1 in percent."""
    truth, ours = np.array([label for _, label in test]), np.array(answers)
    return {"accuracy": 100 * float((truth == ours).mean()), "macro_f1": 100 * macro_f1(truth, ours)}


def table(results: Sequence[dict[str, Any]], key: str) -> str:
    """Return the mean of a score over the seeds, and its range, by the number of labels and the method."""
    counts, methods = (list(dict.fromkeys(result[name] for result in results)) for name in ("labels", "method"))
    rows = [f"| labels | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    for count in counts:
        cells = []
        for method in methods:
            values = [result[key] for result in results if (result["labels"], result["method"]) == (count, method)]
            spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.1f}{spread}" if values else "")
        rows.append(f"| {count:,} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--bert", type=Path, help="folder of the encoder")
    work.add_argument("--write-text", action="store_true", help="write FOLDER/train.txt and valid.txt, and end")
    parser.add_argument("--corpora", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--labels", type=int, nargs="+", default=[60, 200, 600, 2_000])
    parser.add_argument("--test", type=int, default=520)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", dest="settings", action="append", default=[])
    options = parser.parse_args()
    texts = sentences_of(options.corpora)
    test = drawn(texts, options.test, 0)
    texts = without(texts, test)
    if options.write_text:
        write_text(texts, options.out)
        return
    if options.methods != ["fine-tuned"]:
        sklearn("linear_model")  # before hours of training
    if min(options.labels) < FOLDS * len(options.corpora):
        parser.error(f"--labels {min(options.labels)}: expected at least {FOLDS} for each of the corpora")
    results = list[dict[str, Any]]()
    for seed in options.seeds:
        learn = drawn(texts, max(options.labels), seed)
        for count in options.labels:
            part = learn[:count]
            settings = [*options.settings, f"train.seed={seed}"]
            run = options.out / f"{count}-labels-seed-{seed}"
            for method in options.methods:
                started_at = time.monotonic()
                answers = answers_of(method, part, test, options.bert, run, settings)
                figures = scores(answers, test)
                seconds = time.monotonic() - started_at
                results.append(
                    {"labels": count, "seed": seed, "method": method, **figures, "seconds": round(seconds, 1)}
                )
                print(f"{count:,} labels, seed {seed}, {method}: {figures['accuracy']:.1f} % right", flush=True)
                options.out.mkdir(parents=True, exist_ok=True)
                (options.out / "labels.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nright answers of {options.test:,}, in percent\n\n{table(results, 'accuracy')}")


if __name__ == "__main__":
    main()
