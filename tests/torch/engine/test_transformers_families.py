"""Families of Hugging Face's transformers, where they are installed: in step, without copies of weights, also checkpointed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dperm.torch import ModuleObjective
from dperm.torch.engine.randomness import Draws
from dperm.torch.tensors.nested import map_tensors
from helpers.architectures import SIZE, TINY, Architecture, Case, language, masked_next, tokens
from helpers.oracle import by_autograd

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

FAMILIES = (
    "GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM",
    "Gemma2ForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM", "Olmo2ForCausalLM", "StableLmForCausalLM", "CohereForCausalLM",
    "MixtralForCausalLM", "BertForSequenceClassification", "ModernBertForSequenceClassification", "T5ForConditionalGeneration",
)  # fmt: skip
ARCHITECTURES = {each.name: each for each in language() if each.name in FAMILIES}


class Repeated(Draws):
    """The same secret seeds each time."""

    def seed(self) -> int:
        return 11


@pytest.fixture(autouse=True)
def other_libraries_warn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "The model runs one record at a time")
        yield


def wide(case: Case) -> tuple[nn.Module, Any]:
    inputs = map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, case.inputs)
    return case.model.double(), inputs


def taken(objective: ModuleObjective, inputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    objective.engine.draws = Repeated(objective.flat.device)
    found = objective.evaluate(inputs, targets)
    assert objective.one_by_one is None
    return found.norms, found.weighted_sum(torch.linspace(0.1, 1.0, SIZE, dtype=found.norms.dtype))


@pytest.mark.parametrize("name", FAMILIES)
def test_families_have_neither_copies_nor_single_records(name: str) -> None:
    torch.manual_seed(0)
    architecture: Architecture = ARCHITECTURES[name]
    case = architecture.make()
    model, inputs = wide(case)
    model.eval()
    if hasattr(model, "set_experts_implementation"):  # others have no double precision
        model.set_experts_implementation("eager")
    objective = ModuleObjective(model, case.loss)
    norms, whole = taken(objective, inputs, case.targets)
    expected = by_autograd(model, case.loss, inputs, case.targets, SIZE)
    accuracy = 3e-5 if architecture.single else 1e-8  # parts of some run in single precision whatever they are cast to
    assert float((norms - expected.norm(dim=1)).abs().max() / norms.max()) < accuracy
    sums = torch.linspace(0.1, 1.0, SIZE, dtype=torch.float64) @ expected
    assert float((whole - sums).abs().max() / sums.abs().max()) < accuracy
    assert not objective.copied


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "MixtralForCausalLM"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_families_have_the_same_gradients(name: str, reentrant: bool) -> None:
    torch.manual_seed(0)
    case = ARCHITECTURES[name].make()
    model, inputs = wide(case)
    model.train()
    expected = taken(ModuleObjective(model, case.loss), inputs, case.targets)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    found = taken(ModuleObjective(model, case.loss), inputs, case.targets)
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().max() / other.abs().max()) < (1e-5 if ARCHITECTURES[name].single else 1e-10)


def llama() -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, use_cache=False, num_key_value_heads=2))


ADAPTERS: dict[str, dict[str, Any]] = {
    "layers": {"target_modules": ["q_proj", "v_proj", "gate_proj"]},
    "embeddings and head": {"target_modules": ["embed_tokens", "lm_head", "o_proj"]},
    "saved modules": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "magnitudes": {"target_modules": ["q_proj", "down_proj"], "use_dora": True},
}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_in_single_precision_of_a_frozen_model_of_any(name: str, kind: torch.dtype) -> None:
    peft = pytest.importorskip("peft")
    if name == "saved modules" and kind is torch.float16:
        pytest.skip("autocast to float16 has no gradients of attention on a CPU")
    model = llama().to(kind)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, **ADAPTERS[name]))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    batch = tokens()
    # embeddings in single precision before layers in half precision do not run without it
    narrow = kind if name == "saved modules" and kind is torch.bfloat16 else None
    objective = ModuleObjective(adapted, masked_next, autocast=narrow)
    norms, whole = taken(objective, batch, batch["input_ids"])
    with torch.autocast("cpu", narrow, enabled=narrow is not None):
        expected = by_autograd(adapted, masked_next, batch, batch["input_ids"], SIZE)
    accuracy = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}[kind]
    assert float((norms - expected.norm(dim=1)).abs().max() / norms.max()) < accuracy
    sums = torch.linspace(0.1, 1.0, SIZE) @ expected
    assert float((whole - sums).norm() / sums.norm()) < accuracy
    assert not objective.copied
