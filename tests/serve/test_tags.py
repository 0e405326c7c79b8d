"""A served model of several target languages: the tag of a request belongs to its target."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.random_models import CONFIG, random_model, save_to
from support.serving import Reverser, served

import transduce
from transduce import UserError
from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DEFAULTS, DecodingOptions
from transduce.serve.models import tag_of
from transduce.translate import Translator


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    folder = save_to(random_model(CONFIG, tags=("<2de>", "<2fr>")), tmp_path_factory.mktemp("tags") / "model")
    return transduce.load(folder)


class Tagged(Reverser):
    """A model that writes the tag of a call before each translation."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer.tags = ["<2de>", "<2fr>"]

    def translate(self, lines: Sequence[str], *, options: DecodingOptions = DEFAULTS) -> list[Translation]:
        return [replace(output, text=f"{options.tag} {output.text}") for output in super().translate(lines)]


def test_a_target_selects_its_tag() -> None:
    model = Tagged()
    with served({("en", "de"): model, ("en", "fr"): model, ("de", "en"): Reverser()}) as service:
        assert service.translate(["a b"], target="de").json == {"translatedText": ["<2de> b a"]}
        assert service.translate(["a b"], target="fr").json == {"translatedText": ["<2fr> b a"]}
        assert service.translate(["a b"], source="de", target="en").json == {"translatedText": ["b a"]}


def test_the_tag_is_no_word_of_an_alignment(model: Translator) -> None:
    options = DecodingOptions(alignment=True, tag="<2de>", split="sentences")
    line, running, done = "the cat sat. The mat sat.", model.running(), {}
    running.admit("key", line, options)
    while not done:
        done |= running.step()
    assert done["key"] == model.translate([line], options=options)[0]
    assert {line[word.source_start : word.source_end] == word.source for word in done["key"].alignment} == {True}


@pytest.mark.parametrize(
    ("tags", "target", "tag"),
    [
        ((), "de", None),
        (("<2de>", "<2fr>"), "fr", "<2fr>"),
        ((">>deu<<", ">>fra<<"), "fra", ">>fra<<"),
        (("<2pt-BR>", "<2pt>"), "pt-br", "<2pt-BR>"),
    ],
)
def test_the_letters_of_a_tag_are_the_language(tags: tuple[str, ...], target: str, tag: str | None) -> None:
    assert tag_of(tags, target) == tag


@pytest.mark.parametrize("tags", [("<2de>", "<2fr>"), ("<es>", "<2es>")])
def test_a_target_of_no_tag_or_of_two_is_refused(tags: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="^es: expected the language of one tag of the model; .*" + tags[1]):
        tag_of(tags, "es")
