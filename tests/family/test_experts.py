"""Mixtures of experts: against loops over tokens, and against Hugging Face transformers."""

import math
from dataclasses import replace
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.config.schema import TrainConfig
from transduce.family.attention_wrappers import NO_PAST
from transduce.family.configs import DecoderConfig, LlamaConfig
from transduce.family.decoder_only import DecoderOnly
from transduce.family.experts import (
    Experts,
    NoisyTopK,
    Routing,
    Switch,
    TopK,
    balance_loss,
    experts,
    importance_loss,
    load_loss,
    router_loss,
    routings,
    squared_variation,
)
from transduce.family.feed_forward import GatedFeedForward
from transduce.family.llama import Llama
from transduce.family.positions import Rotary
from transduce.family.tasks.language_model import LanguageModelTask
from transduce.model.dropout import draw_from
from transduce.model.transformer import FeedForward

D, N, K = 12, 5, 2
KINDS: dict[str, Any] = {"noisy": NoisyTopK, "switch": Switch, "top": TopK}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def layer(kind: str, *arguments: Any) -> Any:
    return disturb(experts(KINDS[kind](D, N, *arguments), 20))


def gates_by_loop(kind: str, scores: list[float]) -> dict[int, float]:
    """Return the gate of each expert that a token goes to, from the scores x W_g."""
    order = sorted(range(N), key=lambda i: -scores[i])
    if kind == "switch":
        return {order[0]: math.exp(scores[order[0]]) / sum(map(math.exp, scores))}
    chosen = order[:K]
    total = sum(math.exp(scores[i]) for i in chosen)
    return {i: math.exp(scores[i]) / total for i in chosen}


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_gets_the_sum_of_its_experts(kind: str) -> None:
    module, x = layer(kind, *([] if kind == "switch" else [K])), torch.randn(2, 7, D)
    expected = torch.zeros(2, 7, D)
    for b in range(2):
        for t in range(7):
            gates = gates_by_loop(kind, module.router.w_g(x[b, t]).tolist())
            for i, gate in gates.items():
                expected[b, t] += gate * module.networks[i](x[b, t])
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_sum(kind: str) -> None:
    """Also of the router, and zeros of an expert without tokens."""
    module, x = layer(kind, *([] if kind == "switch" else [1])), torch.randn(3, D, requires_grad=True)
    module(x[None]).square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in module.named_parameters() if "noise" not in name}
    of_x = x.grad
    module.zero_grad()
    x.grad = None
    routing = module.router(x)
    dense = torch.stack([network(x) for network in module.networks], dim=1)  # (n,N,D)
    (routing.gates[..., None] * dense).sum(1).square().sum().backward()
    torch.testing.assert_close(x.grad, of_x)
    for name, gradient in gradients.items():
        torch.testing.assert_close(module.get_parameter(name).grad, gradient)
    unused = [i for i in range(N) if not routing.gates[:, i].any()]
    assert unused and not gradients[f"networks.{unused[0]}.w_1.weight"].any()


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_tokens_equal_the_sum(kind: str, n: int) -> None:
    """The way of a GPU, where the number of tokens of each expert stays on the GPU."""
    module, x = layer(kind).train(), torch.randn(n, D, requires_grad=True)
    gates = module.router(x).gates  # Switch leaves tokens out
    results = []
    for mix in (module._mix, module._mix_in_blocks):
        output = mix(x, gates)
        results.append([output, *torch.autograd.grad(output.square().sum(), [x, *module.parameters()], None, True)])
    torch.testing.assert_close(results[1], results[0])


def test_an_expert_alone_with_a_gate_of_1_is_the_network() -> None:
    network, x = FeedForward(D, 20), torch.randn(2, 3, D)
    for router in (TopK(D, 1, 1), NoisyTopK(D, 1, 1), Switch(D, 1)):
        torch.testing.assert_close(Experts(router, [network])(x), network(x))


def test_switch_has_a_capacity_in_training() -> None:
    """Of tokens beyond it, in their order, only the residual is left. Outside of training there is none."""
    router = disturb(Switch(D, N, capacity_factor=1.0))
    x = torch.randn(12, D)
    expected: Any = router(x)
    capacity, count = math.ceil(12 / N), [0] * N
    gates = router.train()(x).gates
    for t in range(12):
        i = int(expected.gates[t].argmax())
        count[i] += 1
        assert gates[t, i].item() == pytest.approx(expected.gates[t, i].item() if count[i] <= capacity else 0)
    assert max(count) > capacity
    assert torch.equal(router(x).choices, expected.choices)


def test_noise_is_drawn_in_training_only() -> None:
    router, x = disturb(NoisyTopK(D, N, K)), torch.randn(9, D)
    assert torch.equal(router(x).gates, router(x).gates)
    router.train()
    assert not torch.equal(router(x).gates, router(x).gates)


def test_noise_comes_from_the_generator_of_the_thread() -> None:
    """Threads that train halves of a batch would otherwise draw in turns that differ each time."""
    router, x, drawn = NoisyTopK(D, N, K), torch.randn(7, D), list[Tensor]()

    def draw() -> None:
        draw_from(torch.Generator().manual_seed(3))
        drawn.append(router(x).gates)

    for _ in range(2):
        torch.randn(5)
        thread = Thread(target=draw)
        thread.start()
        thread.join()
    assert drawn[0].equal(drawn[1]) and not drawn[0].equal(router(x).gates)


def test_noisy_gates_follow_their_equations() -> None:
    """Shazeer et al. 2017, eq. 3 to 5 and 8 to 10, with the noise that was drawn."""
    router: Any = disturb(NoisyTopK(D, N, K)).train()
    x = torch.randn(6, D)
    torch.manual_seed(4)
    routing = router(x)
    torch.manual_seed(4)
    noise = torch.randn(6, N)
    clean, size = router.w_g(x).tolist(), F.softplus(router.w_noise(x)).tolist()
    load = [0.0] * N
    for t in range(6):
        scores = [clean[t][i] + float(noise[t, i]) * size[t][i] for i in range(N)]
        gates = gates_by_loop("noisy", scores)
        assert routing.gates[t].tolist() == pytest.approx([gates.get(i, 0.0) for i in range(N)], abs=1e-6)
        for i in range(N):
            others = sorted(scores[:i] + scores[i + 1 :], reverse=True)
            away = (clean[t][i] - others[K - 1]) / size[t][i]
            load[i] += 0.5 * (1 + math.erf(away / math.sqrt(2)))
    assert routing.load is not None and routing.load.tolist() == pytest.approx(load, rel=1e-4)


def test_the_load_estimates_the_number_of_tokens() -> None:
    router, x = NoisyTopK(D, N, K), torch.randn(4_000, D)
    nn.init.normal_(router.w_g.weight, std=0.1)
    routing = router(x)
    assert routing.load is not None
    torch.testing.assert_close(routing.load / 4_000, routing.shares, atol=0.03, rtol=0)
    assert float(routing.shares.sum()) == pytest.approx(K)


def routing_of(choices: list[list[int]], probabilities: list[list[float]]) -> Routing:
    chosen, values = torch.tensor(choices).bool(), torch.tensor(probabilities)
    return Routing(chosen * values, chosen, values, chosen.sum(0).float())


def test_even_routing_has_a_balance_loss_of_k_and_collapsed_routing_of_n() -> None:
    quarter = [0.25] * 4
    one = routing_of([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], [quarter] * 4)
    two = routing_of([[1, 1, 0, 0], [0, 0, 1, 1]], [quarter] * 2)
    collapsed = routing_of([[1, 0, 0, 0]] * 3, [[1.0, 0, 0, 0]] * 3)
    assert [float(balance_loss(x)) for x in (one, two, collapsed)] == pytest.approx([1, 2, 4])
    assert [float(importance_loss(x)) for x in (one, collapsed)] == pytest.approx([0, 3])
    assert [float(load_loss(x)) for x in (one, collapsed)] == pytest.approx([0, 3])


def test_each_layer_is_balanced_by_itself() -> None:
    """Layers that send all tokens to another expert each are not even, although their sum is."""
    layers = [routing_of([one] * 3, [list(map(float, one))] * 3) for one in torch.eye(4).int().tolist()]
    assert float(router_loss(layers)) == pytest.approx(4 * 0.1 * (3 + 3))
    without = [replace(layer, load=None) for layer in layers]
    assert float(router_loss(without)) == pytest.approx(4 * 0.01 * 4)


def test_the_squared_variation_is_variance_over_squared_mean() -> None:
    assert float(squared_variation(torch.tensor([1.0, 2.0, 3.0, 6.0]))) == pytest.approx(3.5 / 9)


def test_losses_even_out_the_router() -> None:
    """A router that sends all tokens to one expert, trained by its loss for the balance alone."""
    x = torch.randn(64, D) + 1
    routers: dict[Any, Any] = {
        Switch(D, N): [balance_loss],
        TopK(D, N, 1): [balance_loss],
        NoisyTopK(D, N, 1): [importance_loss, load_loss],
    }
    for router, losses in routers.items():
        with torch.no_grad():
            router.w_g.weight[0] += 1
        adam, unevenness = torch.optim.Adam(router.parameters(), lr=0.02), list[float]()
        for _ in range(60):
            routing = router(x)
            unevenness.append(float(squared_variation(routing.choices.float().mean(dim=0))))
            adam.zero_grad()
            sum((loss(routing) for loss in losses), torch.tensor(0.0)).backward()
            adam.step()
        assert unevenness[0] > 1 and unevenness[-1] < 0.5, type(router)


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_with_experts_decodes_after_a_cache(kind: str) -> None:
    model: Any = disturb(
        DecoderOnly(
            DecoderConfig(vocab_size=30, d_model=D, n_layers=2, n_heads=2),
            positions=Rotary(6),
            feed_forward=lambda: experts(KINDS[kind](D, N), 20),
        )
    )
    ids, past, states = torch.randint(30, (3, 11)), NO_PAST, []
    for chunk in ids.split([4, 1, 6], dim=1):
        new, past = model.states(chunk, past)
        states.append(new)
    assert difference(model.output(torch.cat(states, dim=1)), model(ids)) < TOLERANCE
    assert len(routings(model)) == 2 and routings(model)[0].gates.shape == (33, N)


def test_llama_with_experts_is_mixtral() -> None:
    """Logits, the loss for the balance, and gradients of both together."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    sizes = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.MixtralConfig(
        vocab_size=50, num_key_value_heads=2, num_local_experts=N, num_experts_per_tok=K, head_dim=6, **sizes
    )
    theirs: Any = disturb(transformers.MixtralForCausalLM(config))
    ours: Any = Llama(
        LlamaConfig(vocab_size=50, d_model=24, n_layers=2, n_heads=4, d_ff=20, n_kv_heads=2, tied=False),
        norm_eps=config.rms_norm_eps,
    )
    for one in ours.layers:
        one.feed_forward = Experts(TopK(24, N, K), [GatedFeedForward(24, 20, F.silu) for _ in range(N)])
    ours.rope = type(ours.rope)(config.rope_parameters["rope_theta"])
    ours.load_state_dict(mixtral_weights(theirs.state_dict()))
    ids = torch.randint(50, (3, 13))
    of_theirs = theirs(ids, output_router_logits=True, labels=ids)
    logits = ours(ids)
    assert difference(logits, of_theirs.logits) < TOLERANCE
    balance = balance_loss(all_layers(routings(ours)))
    assert balance.item() == pytest.approx(of_theirs.aux_loss.item(), rel=1e-5)
    cross_entropy = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    (cross_entropy + config.router_aux_loss_coef * balance).backward()
    of_theirs.loss.backward()
    gradients = mixtral_weights({name: p.grad for name, p in theirs.named_parameters()})
    for name, parameter in ours.named_parameters():
        assert difference(parameter.grad, gradients[name]) < TOLERANCE, name


def all_layers(routings: list[Routing]) -> Routing:
    """Return the tokens of all layers as those of one, which are what Mixtral balances there."""
    fields = [(one.gates, one.choices, one.probabilities) for one in routings]
    return Routing(*map(torch.cat, zip(*fields, strict=True)))


def mixtral_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of Mixtral for our model. It has those of all experts in one tensor."""
    weights = {"embedding.weight": theirs["model.embed_tokens.weight"], "output.weight": theirs["lm_head.weight"]}
    weights["norm.weight"] = theirs["model.norm.weight"]
    for i in range(2):
        a, b = f"layers.{i}", f"model.layers.{i}"
        weights |= {f"{a}.self_attention.w_{x}.weight": theirs[f"{b}.self_attn.{x}_proj.weight"] for x in "qkvo"}
        for j, norm in enumerate(("input_layernorm", "post_attention_layernorm")):
            weights[f"{a}.residuals.{j}.norm.weight"] = theirs[f"{b}.{norm}.weight"]
        weights[f"{a}.feed_forward.router.w_g.weight"] = theirs[f"{b}.mlp.gate.weight"]
        for e in range(N):
            expert = f"{a}.feed_forward.networks.{e}"
            pair = theirs[f"{b}.mlp.experts.gate_up_proj"][e].chunk(2)
            weights[f"{expert}.w_1.weight"], weights[f"{expert}.w_3.weight"] = pair
            weights[f"{expert}.w_2.weight"] = theirs[f"{b}.mlp.experts.down_proj"][e]
    return weights


def test_switch_is_that_of_hugging_face() -> None:
    """It counts the capacity by sequence, so one sequence in training mode, without dropout and noise."""
    name = "transformers.models.switch_transformers.modeling_switch_transformers"
    module = pytest.importorskip(name, reason="needs transduce[export]")
    config = module.SwitchTransformersConfig(
        d_model=D, d_ff=20, num_experts=N, expert_capacity=3, dropout_rate=0.0, router_jitter_noise=0.0
    )
    theirs: Any = disturb(module.SwitchTransformersSparseMLP(config))
    ours = Experts(Switch(D, N, 1.0), [FeedForward(D, 20, bias=False) for _ in range(N)])
    weights = {"router.w_g.weight": theirs.router.classifier.weight}
    for i in range(N):
        pair = theirs.experts[f"expert_{i}"].wi.weight, theirs.experts[f"expert_{i}"].wo.weight
        weights |= {f"networks.{i}.w_{j + 1}.weight": one for j, one in enumerate(pair)}
    ours.load_state_dict(weights)
    x = torch.randn(1, 15, D)
    assert difference(ours(x), theirs(x)) < TOLERANCE
    (routing,) = routings(ours)
    expected = module.load_balancing_loss_func(routing.probabilities[None], routing.choices.float().argmax(-1)[None])
    assert balance_loss(routing).item() == pytest.approx(expected.item())
    assert int((routing.gates > 0).sum()) < 15  # the capacity was over


def test_a_loss_keeps_no_routing() -> None:
    """It would keep the values of a micro-batch that did not fit in memory, beside its halves."""
    sizes: Any = {"d_model": D, "n_layers": 2, "n_heads": 2, "n_experts": N, "router": "top_k", "n_chosen": K}
    model, task, lines = DecoderOnly(DecoderConfig(vocab_size=30, **sizes)), LanguageModelTask(), [np.arange(4, 9)] * 2
    batch = task.collate(lines, lines, np.arange(2))
    task.loss(model, batch, TrainConfig()).backward()
    assert routings(model) == []
    model.norm.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        task.loss(model, batch, TrainConfig())
    assert routings(model) == []
