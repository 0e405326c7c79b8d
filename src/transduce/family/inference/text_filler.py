"""LLaDA as a user has it: lines with masks in, whole lines out."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from transduce.data.text import is_blank
from transduce.decoding.options import sentence_seed
from transduce.decoding.segmentation import MAX_LINE_CHARACTERS, check_lines, excess
from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.application import Application
from transduce.family.inference.diffusion import Filling, fill_ids
from transduce.family.inference.text_encoder import Answer
from transduce.family.inference.text_generator import ids_of
from transduce.family.llada import Llada

FILLING = Filling()


class TextFiller(Application):
    """A LLaDA with the tokenizer of its folder. Raises UserError for another member, or one without a mask."""

    def __init__(self, member: Member, folder: Path | str = "the folder") -> None:
        super().__init__(member, folder)
        self.model = self.model_of(Llada, "a diffusion model of text, LLaDA")
        masks = ids_of(member, "mask_token_id")
        if not masks:
            raise UserError(f"{folder}/config.json: expected mask_token_id, an id; use a whole folder")
        self.mask = masks[0]

    @cached_property
    def barred(self) -> list[int]:
        """The ids that no mask becomes: special ones, such as the end, and ids without a token."""
        special = {number for number, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        usable = {*self.tokenizer.get_vocab().values()} - special
        return [number for number in range(self.model.output.out_features) if number not in usable]

    def fill(self, lines: Sequence[str], settings: Filling = FILLING, first_number: int = 1) -> list[Answer[str]]:
        """Return each line with a token in place of each mask, which is [MASK] in a model that was trained here.

        A line without a mask stays as it is. On a CPU, a line does not depend on the others. The draws for it depend
        on the seed and its number. first_number: number of the first line.
        """
        check_lines(lines=lines)
        answers, rows = [Answer[str]() for _ in lines], dict[int, list[int]]()
        for i, line in enumerate(lines):
            if is_blank(line):
                continue
            ids = self._encode_texts([line])[0].ids if len(line) <= MAX_LINE_CHARACTERS else None
            if problem := excess(line, ids, self.model.llama.n_positions):
                answers[i] = Answer(None, problem)
            elif ids and self.mask in ids:
                rows[i] = ids
            else:
                answers[i] = Answer(line)
        seeds = [sentence_seed(settings.seed, first_number + i) for i in rows]
        filled = fill_ids(self.model, [*rows.values()], self.mask, self.barred, settings, seeds)
        for i, ids in zip(rows, filled, strict=True):
            answers[i] = Answer(self._decode(ids))
        return answers
