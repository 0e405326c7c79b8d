"""`transduce configure`: the settings of the search in a model folder."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.errors import UserError

SearchSettingsOption = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        help="A new value, search.KEY=VALUE. May be repeated. Without it, the command only prints the settings.",
    ),
]


def configure(model: Path, *, settings: SearchSettingsOption = None) -> None:
    """Print or change the settings of the search with which a trained model translates.

    The weights and all other settings stay as they are. Options of translate and serve still replace a setting for one
    call. A training or `transduce average` writes a new model, with the settings of its run.

    Parameters
    ----------
    model
        A model folder, such as run/model.

    Examples
    --------
    transduce configure run/model
    transduce configure run/model --set search.max_extra_tokens=100
    """
    from transduce.config.overrides import format_value, override
    from transduce.config.schema import keys, value_of
    from transduce.storage.model_folder import load_translation_model, save_search

    config = load_translation_model(model).config
    for setting in settings or ():
        if not setting.startswith("search."):
            raise UserError(f"--set {setting}: expected search.KEY=VALUE; a training fixes the other settings")
    if settings:
        config = override(config, settings)
        save_search(model, config.search)
    for key in keys(config):
        if key.startswith("search."):
            print(f"{key}={format_value(value_of(config, key))}")
