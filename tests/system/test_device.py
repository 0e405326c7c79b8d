"""Where models compute, tested without a GPU: the device "meta", which has no values, stands for one; and --device."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from support.mps import missing_operations
from support.small_encoders import bert_folder
from support.small_members import gpt2_folder
from support.toy_task import CommandResult, Toy, write_lines

import transduce
import transduce.family
from transduce import ModelConfig, Sampling, SearchConfig, UserError
from transduce.cli.main import app
from transduce.cli.stream import ModelFolders, load_translator
from transduce.config.overrides import with_value
from transduce.config.recipes import configure
from transduce.decoding.backends import Backend, fastest_precision
from transduce.decoding.batched_search import sample_all, search_all
from transduce.decoding.options import DEFAULTS
from transduce.family.inference.language_model import LanguageModel
from transduce.model import devices
from transduce.model.transformer import Transformer
from transduce.storage.model_folder import load_model
from transduce.studies import results, table4
from transduce.studies.schedule import _environments
from transduce.train import TranslationTask
from transduce.training.gradients import Gradients
from transduce.training.notices import slow_precision
from transduce.training.run import Run, _has_room
from transduce.training.state import TrainingState
from transduce.training.task import task_of
from transduce.training.weights import weights


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(devices.VARIABLE)


@pytest.fixture
def other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_name", lambda: "meta")


@pytest.mark.usefixtures("other_device")
def test_a_model_is_on_the_device_except_in_int8(toy: Toy) -> None:
    assert transduce.load(toy.model).models[0].output.weight.is_meta
    assert transduce.load(toy.model, precision="int8").translate(["a b c"])[0].text == "c b a"


@pytest.mark.usefixtures("other_device")
def test_a_member_is_on_the_device_except_in_a_precision_of_the_kernels(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "gpt2")
    assert transduce.family.load(bert_folder(tmp_path / "bert", "pooler")).model.encoder.embedding.weight.is_meta
    assert transduce.family.load(folder, precision="auto").precision == "fp32"
    assert transduce.family.load(folder).prepared_model.embedding.weight.is_meta
    for precision in ("bf16", "int8"):
        assert transduce.family.load(folder, precision=precision).continue_("a dog").text


@pytest.mark.usefixtures("other_device")
def test_a_sharded_run_evaluates_on_the_cpu(toy: Toy, tmp_path: Path) -> None:
    loaded, names = load_model(toy.model), ("src", "tgt")
    batches: Any = None  # an evaluation needs none
    texts = batches, [("a b", "b a")], names
    run = Run(tmp_path, TranslationTask(), loaded.config, loaded.tokenizer, *texts, [], is_sharded=True)
    assert run.evaluate(weights(loaded.model))["bleu"] >= 0


@pytest.mark.parametrize(("free", "peak", "expected"), [(60, 40, True), (60, 90, False), (40, 10, False)])
def test_the_model_of_an_evaluation_stays_only_where_a_step_has_room(
    free: int, peak: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording gives back memory that the next training step needs, so what is free now says too little."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 100))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak)
    assert _has_room(torch.device("cuda")) == expected and not _has_room(torch.device("cpu"))


@pytest.mark.parametrize("is_supported", [True, False])
def test_bf16_is_the_fastest_only_on_a_gpu_that_has_it(is_supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU that computes is asked, and not another one of the machine."""
    capabilities = {torch.device("cuda:1"): (7, 5)} | ({torch.device("cuda:0"): (8, 0)} if is_supported else {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities.get(device, (7, 5)))
    monkeypatch.setattr(devices, "_name", lambda: "cuda:0")
    assert fastest_precision(torch.device("cuda:0"), []) == ("bf16" if is_supported else "fp32")
    assert len(slow_precision("bf16")) == (not is_supported)
    monkeypatch.setattr(devices, "device", lambda: torch.device("cuda:0"))
    assert devices.training_precision() == ("bf16" if is_supported else "fp32")
    monkeypatch.setattr(devices, "_name", lambda: "cpu")
    assert devices.training_precision() == "fp32"  # a processor with instructions for bf16 is not asked


# ---- the choice --------------------------------------------------------------------------------------------------


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu", "device=gpu: expected auto, cpu, cuda, cuda:N or mps; leave it out to take the best one"),
        ("cuda:", "device=cuda:: expected auto, cpu, cuda, cuda:N or mps; leave it out to take the best one"),
        ("cuda", "device=cuda: expected a GPU that torch can use; take cpu"),
        ("mps", "device=mps: expected macOS with an Apple processor; take cpu"),
    ],
)
def test_a_device_that_does_not_exist_is_an_error_in_one_line(
    toy: Toy, name: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for use in (transduce.load, transduce.family.load, LanguageModel.load):
        with pytest.raises(UserError) as caught:
            use(toy.model, device=name)
        assert str(caught.value) == expected
    with pytest.raises(UserError, match="device="):
        transduce.fit("a", "b", out="c", device=name)


def test_the_message_names_the_variable_that_hides_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="but CUDA_VISIBLE_DEVICES=7 is set; take cpu"), devices.on_device("cuda:0"):
        pass


@pytest.mark.usefixtures("two_gpus")
def test_the_choice_names_a_gpu_and_an_outer_one_stays() -> None:
    assert devices.device() == torch.device("cuda:1") and devices.kind() == "cuda"
    with devices.on_device("cuda:0"), devices.on_device("auto"):
        assert devices.device() == torch.device("cuda:0") and devices.kind() == "cuda"
    with devices.on_device("cpu"):
        assert devices.device() == torch.device("cpu")
    with (
        pytest.raises(UserError, match="device=cuda:2: expected cuda:0 to cuda:1; take cuda"),
        devices.on_device("cuda:2"),
    ):
        pass
    assert devices.device() == torch.device("cuda:1")


def test_auto_takes_cuda_then_mps_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.kind() == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.device() == torch.device("mps") and fastest_precision(devices.device(), []) == "fp32"


@pytest.mark.usefixtures("two_gpus")
def test_each_rank_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name, kind in (("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")):
        with devices.on_device(name):
            assert devices.kind() == kind
    with devices.on_device("cuda:0"), pytest.raises(UserError, match="device=cuda:0: expected auto, cpu or cuda with"):
        devices.kind()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.kind() == "cpu"


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_is_refused_where_the_cpu_alone_computes(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device=cuda: expected cpu with precision='int8'; leave it out"):
        transduce.load(toy.model, precision="int8", device="cuda")
    with pytest.raises(UserError, match="device=cuda:1: expected cpu with precision='bf16'; leave it out"):
        transduce.family.load(gpt2_folder(tmp_path / "gpt2"), precision="bf16", device="cuda:1")
    with devices.on_device("cuda"), pytest.raises(UserError, match="device=cuda: expected cpu with the engine ctr"):
        load_translator(ModelFolders([toy.model], engine="ctranslate2"), DEFAULTS)
    assert transduce.load(toy.model, device="cpu").translate(["a b c"])[0].text == "c b a"


def test_the_commands_that_run_a_model_have_the_option() -> None:
    commands = {name: app[name] for name in app if name[0] != "-" and name != "study"}
    commands |= {name: app["study"][name] for name in app["study"] if name[0] != "-"}
    lacking = {name for name, command in commands.items() if "device" not in get_type_hints(command.default_command)}
    without_a_model = "download check clean linearize report average configure add-tags export import shortlist"
    assert lacking == {*without_a_model.split(), *"table1 attention positions experts scaling".split()}


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("name", "visible", "expected", "jobs"),
    [
        ("auto", None, "cuda:1", ["0", "1"]),
        ("cpu", None, "cpu", [""]),
        ("cuda", "7,5", "cuda:1", ["7", "5"]),
        ("cuda:1", "7,5", "cuda:1", ["5"]),
        ("cuda:0", None, "cuda:1", ["0"]),
    ],
)
def test_the_trainings_of_a_study_have_its_device(
    name: str,
    visible: str | None,
    expected: str,
    jobs: list[str],
    cli: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each job sees one GPU, which is its current one, or none."""
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(results, "gpus", lambda: ["a GPU"] * 2)
    monkeypatch.setattr(table4, "run_table4", lambda *_, jobs, **__: environments.extend(_environments(jobs, 3)))
    if visible:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    cli("study", "table4", "--train", "a", "--valid", "b", "--out", "c", "--device", name)
    assert [environment.get("CUDA_VISIBLE_DEVICES") for environment in environments] == jobs
    os.environ.update(environments[0])
    assert str(devices.device()) == expected


def test_a_command_computes_on_the_device(toy: Toy, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    source = write_lines(tmp_path / "source", ["a b c"])
    assert cli("translate", toy.model, "--input", source, "--device", "cpu").out == b"c b a\n"
    result = cli("translate", toy.model, "--input", source, "--device", "cuda:9")
    assert (result.code, result.err.count("\n")) == (2, 1) and "--device=cuda:9: expected " in result.err


# ---- Apple's GPUs ------------------------------------------------------------------------------------------------


class OnMps:
    """Stands for a tensor on MPS, which raises TypeError for `double()`."""

    device = torch.device("mps")

    def cpu(self) -> torch.Tensor:
        return torch.tensor([0.5])


def test_float64_is_on_the_cpu_for_a_device_without_it() -> None:
    values: Any = OnMps()
    assert devices.in_float64(values).equal(torch.tensor([0.5], dtype=torch.float64))


MEMBERS = (
    "alibi bert experts gpt2 hyena linformer llada llama longformer mamba performer rwkv t5 t6 transformer-xl"
).split()


@pytest.mark.parametrize("recipe", [*(f"{member}-small" for member in MEMBERS), "multi30k-tiny", "multi30k-lstm"])
def test_a_gradient_takes_only_operations_that_mps_has(recipe: str) -> None:
    config, _, _ = configure(recipe, [])
    sizes = {"d_model": 32, "d_ff": 64, "n_layers": 2, "d_state": 4, "n_heads": 4, "vocab_size": 60}
    settings = [f"model.{name}={value}" for name, value in sizes.items() if hasattr(config.model, name)]
    config = with_value(configure(recipe, settings)[0], "train.precision", "fp32")
    task = task_of(config.train.task)
    state = TrainingState(task.build(config), config.train, {"texts": {}})
    rows = [np.arange(5, 30), np.arange(8, 20)]
    batch = task.collate(rows, rows, np.array([0, 1]), (0, 0))
    gradients = Gradients(state.model, task, config.train, torch.device("cpu"), print)
    with missing_operations() as missing:
        state.update(gradients.of([batch], seed=1))
    assert not missing


def test_a_search_takes_only_operations_that_mps_has() -> None:
    model = Transformer(ModelConfig(vocab_size=40, d_model=16, n_layers=1, n_heads=2, d_ff=32)).eval()
    backend, sources = Backend([model], "fp32"), [[5, 6, 7], [8, 9]]
    with missing_operations() as missing:
        for beam_size in (1, 4):
            search_all(backend, sources, SearchConfig(beam_size=beam_size))
        sample_all(backend, sources, SearchConfig(), sampling=Sampling(top_k=5, top_p=0.9), seeds=[[1], [2]])
    assert not missing
