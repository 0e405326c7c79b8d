"""Parsing as a task of the training loop: loss and batches of translation, and F1 of greedy search for validation."""

from collections.abc import Sequence

from transduce.config.schema import Config
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError
from transduce.evaluate import mean_loss, perplexity
from transduce.model.build import Model
from transduce.parsing.labelled_f1 import labelled_scores
from transduce.parsing.linearize import tree_of
from transduce.parsing.parse import Parser
from transduce.parsing.trees import Tree, words_of
from transduce.storage.model_folder import LoadedModel
from transduce.train import TranslationTask
from transduce.training.progress import format_scores
from transduce.translate import Translator


class ParsingTask(TranslationTask):
    """Parsing: the model predicts the symbols of a tree (`linearize`) from the words of a sentence."""

    def check(
        self, pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]
    ) -> None:
        super().check(pairs, tokenizer, longest, names)
        gold_trees(pairs, names[1])

    def evaluate(
        self, model: Model, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        translator = Translator([LoadedModel(model, config, tokenizer)])
        sentences = [sentence for sentence, _ in pairs]
        loss = mean_loss(translator, sentences, [symbols for _, symbols in pairs])
        parses = Parser(translator).parse(sentences, DecodingOptions(beam_size=1))
        scores = labelled_scores(gold_trees(pairs, "the validation text"), [parse.tree for parse in parses])
        return {
            "loss": round(loss, 5),
            "perplexity": round(perplexity(loss), 4),
            "f1": round(scores.f1, 2),
            "exact": round(scores.exact, 2),
            "tagging": round(scores.tagging, 2),
        }

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} by greedy search (EVALB, COLLINS.prm)"


def gold_trees(pairs: Sequence[tuple[str, str]], name: str) -> list[Tree]:
    """Return the trees of pairs of a sentence and symbols. name: name of the symbols' text, for messages.

    Raises UserError for symbols that are no tree of their sentence.
    """
    trees = []
    for number, (sentence, symbols) in enumerate(pairs, start=1):
        try:
            trees.append(tree_of(symbols.split(), words_of(sentence)))
        except ValueError as problem:
            expected = f"the symbols of a tree over the words of the sentence ({problem})"
            raise UserError(f"{name}:{number}: expected {expected}; use the output of transduce linearize") from None
    return trees
