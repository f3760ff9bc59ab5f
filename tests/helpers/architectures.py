"""Architectures of the libraries that people take models from, small and with random weights, and what becomes of each."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, library, nn

SIZE = 4


def _operators() -> None:
    """torchvision's compiled operators, and its import, fail beside a torch of another build; no model here needs them."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        global _LIBRARY
        _LIBRARY = library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


BATCH_NORM = "batch normalisation mixes"


@dataclass(frozen=True)
class Case:
    model: nn.Module
    inputs: Any
    targets: Tensor
    loss: Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Architecture:
    """`refused`: a part of the message where it is refused; empty where its gradients are right."""

    package: str
    name: str
    make: Callable[[], Case]
    refused: str = ""
    single: bool = False  # computes a part in single precision, whatever it is cast to
    rescales: bool = False  # writes into its parameters in evaluation mode


LIBRARIES = ("torchvision", "timm", "transformers", "peft")


def versions() -> list[str]:
    """Empty where one of the libraries is absent."""
    if any(importlib.util.find_spec(name) is None for name in LIBRARIES):
        return []
    return [f"{name} {importlib.metadata.version(name)}" for name in ("torch", *LIBRARIES)]


def every() -> Iterator[Architecture]:
    if not versions():
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    _operators()
    yield from vision()
    yield from timm_models()
    yield from language()
    yield from adapters()


def first(outputs: Any) -> Tensor:
    """The tensor that a loss reads, of whatever a library's models return."""
    if hasattr(outputs, "logits"):
        return outputs.logits
    if isinstance(outputs, dict):
        return next(iter(outputs.values()))
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def classes(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(first(outputs), targets, reduction="none")


def next_token(outputs: Any, targets: Tensor) -> Tensor:
    logits = first(outputs)[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), targets[:, 1:], reduction="none").mean(1)


def regression(outputs: Any, targets: Tensor) -> Tensor:
    return (first(outputs).flatten(1) - targets[:, None]).square().mean(1)


def pixels(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(first(outputs), targets[:, None, None].expand(-1, *first(outputs).shape[2:]), reduction="none").mean(
        (1, 2)
    )


LABELS = torch.tensor([0, 1, 1, 0])


def images(model: nn.Module, side: int = 32, *, channels: int = 3, loss: Any = classes) -> Case:
    return Case(model, torch.randn(SIZE, channels, side, side), LABELS, loss)


def groups(channels: int) -> nn.Module:
    """GroupNorm where a library expects the class of a normalisation."""
    return nn.GroupNorm(next(count for count in (8, 6, 5, 4, 3, 2, 1) if channels % count == 0), channels)


# torchvision


def vision() -> Iterator[Architecture]:
    from torchvision import models

    def zoo(name: str, side: int = 32, refused: str = "", loss: Any = classes, **settings: Any) -> Architecture:
        def make() -> Case:
            return images(getattr(models, name.split(" ")[0])(weights=None, num_classes=10, **settings), side, loss=loss)

        return Architecture("torchvision", name, make, refused)

    yield zoo("alexnet", 64)
    yield zoo("squeezenet1_1")
    for name in (
        "resnet18",
        "densenet121",
        "mnasnet0_5",
        "mobilenet_v2",
        "shufflenet_v2_x0_5",
        "efficientnet_b0",
        "regnet_y_400mf",
    ):
        yield zoo(name, refused=BATCH_NORM)
    yield zoo("googlenet", refused=BATCH_NORM, aux_logits=False, init_weights=False)
    for name in ("resnet18", "resnext50_32x4d", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "regnet_y_400mf"):
        yield zoo(f"{name} (GroupNorm)", norm_layer=groups)
    yield zoo("convnext_tiny")

    def made(name: str, make: Callable[[], Case], refused: str = "") -> Architecture:
        return Architecture("torchvision", name, make, refused)

    yield made("VisionTransformer", lambda: images(models.VisionTransformer(32, 8, 2, 3, 48, 96, dropout=0.1, num_classes=10)))
    swin = {
        "patch_size": [2, 2],
        "embed_dim": 24,
        "depths": [2, 2],
        "num_heads": [3, 6],
        "window_size": [4, 4],
        "num_classes": 10,
    }
    yield made("SwinTransformer", lambda: images(models.SwinTransformer(**swin)))
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    yield made(
        "SwinTransformer V2",
        lambda: images(models.SwinTransformer(**swin, block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2)),
    )
    yield made(
        "MaxVit",
        lambda: images(models.MaxVit((32, 32), 16, 4, [16, 32], [1, 1], 8, 0.1, num_classes=10)),
        BATCH_NORM,
    )

    def clips(model: nn.Module) -> Case:
        return Case(model, torch.randn(SIZE, 3, 4, 16, 16), LABELS, classes)

    yield made("video.r3d_18", lambda: clips(models.video.r3d_18(num_classes=10)), BATCH_NORM)
    block = models.video.mvit.MSBlockConfig(1, 12, 12, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2])
    patches = {"patch_embed_kernel": (3, 3, 3), "patch_embed_stride": (2, 4, 4), "patch_embed_padding": (1, 1, 1)}
    video = functools.partial(models.video.MViT, (16, 16), 4, [block] * 2, False, False, False, False)
    yield made("video.MViT", lambda: clips(video(num_classes=10, **patches)))
    yield made(
        "segmentation.fcn_resnet50",
        lambda: images(models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=2), loss=pixels),
        BATCH_NORM,
    )


# timm


def timm_models() -> Iterator[Architecture]:
    import timm

    def zoo(name: str, side: int = 32, refused: str = "", shown: str = "", **settings: Any) -> Architecture:
        def make() -> Case:
            return images(timm.create_model(name, pretrained=False, num_classes=10, **settings), side)

        return Architecture("timm", shown or name, make, refused)

    def made(name: str, make: Callable[[], Case], refused: str = "") -> Architecture:
        return Architecture("timm", name, make, refused)

    vit = {"img_size": 32, "patch_size": 8, "depth": 2}
    yield zoo("vit_tiny_patch16_224", **vit, drop_path_rate=0.1)
    yield zoo("deit_tiny_distilled_patch16_224", **vit)
    yield zoo("deit3_small_patch16_224", **vit)
    yield zoo("beit_base_patch16_224", **vit, embed_dim=48, num_heads=3)
    yield zoo("beitv2_base_patch16_224", **vit, embed_dim=48, num_heads=3)
    yield zoo("eva02_tiny_patch14_224", **(vit | {"patch_size": 8}))
    yield zoo("cait_xxs24_224", **vit)
    yield zoo("xcit_nano_12_p8_224", refused=BATCH_NORM, img_size=32, depth=2)
    mlp, blocks = {"num_classes": 10, "img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 48}, timm.models.mlp_mixer
    yield made("MlpMixer", lambda: images(blocks.MlpMixer(**mlp)))
    yield made(
        "gMLP",
        lambda: images(
            blocks.MlpMixer(**mlp, mlp_ratio=4, block_layer=blocks.SpatialGatingBlock, mlp_layer=timm.layers.GatedMlp)
        ),
    )
    yield made(
        "ResMLP",
        lambda: images(blocks.MlpMixer(**mlp, mlp_ratio=4, block_layer=blocks.ResBlock, norm_layer=blocks.Affine)),
    )
    yield zoo("convnext_atto")
    yield zoo("convnextv2_atto")
    yield made("ConvMixer", lambda: images(timm.models.convmixer.ConvMixer(32, 2, num_classes=10)), BATCH_NORM)
    yield zoo(
        "swin_tiny_patch4_window7_224", img_size=32, patch_size=2, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(3, 6)
    )
    yield zoo("swinv2_tiny_window8_256", img_size=32, patch_size=2, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(3, 6))
    yield zoo("poolformer_s12")
    yield zoo("poolformerv2_s12")
    yield zoo("davit_tiny", depths=(1, 1), embed_dims=(24, 48), num_heads=(3, 6))
    focal = {"embed_dim": 24, "depths": (1, 1), "focal_levels": (2, 2), "focal_windows": (3, 3), "num_classes": 10}
    yield made("FocalNet", lambda: images(timm.models.focalnet.FocalNet(**focal)))
    yield zoo("inception_next_atto", refused=BATCH_NORM)
    yield zoo("mvitv2_tiny", img_size=32)
    nest = {"img_size": 32, "patch_size": 4, "num_levels": 2, "embed_dims": (24, 48), "num_heads": (2, 2), "depths": (1, 1)}
    yield made("Nest", lambda: images(timm.models.nest.Nest(**nest, num_classes=10)))
    yield zoo("pit_ti_224", img_size=32, patch_size=4, stride=4, base_dims=(16, 16), depth=(1, 1), heads=(2, 2))
    yield zoo("pvt_v2_b0", depths=(1, 1, 1, 1))
    yield zoo("sequencer2d_s", layers=(1, 1, 1, 1), embed_dims=(24, 24, 24, 24), hidden_sizes=(8, 8, 8, 8))
    yield zoo("tnt_s_patch16_224", img_size=32, depth=2)
    yield zoo("twins_svt_small", img_size=64, side=64, depths=(1, 1, 1, 1))
    yield zoo("twins_pcpvt_small", img_size=64, side=64, depths=(1, 1, 1, 1))
    yield zoo("coat_tiny", img_size=32)
    yield zoo("visformer_tiny", refused=BATCH_NORM, img_size=32)
    yield zoo("volo_d1_224", refused=BATCH_NORM, img_size=32)
    yield zoo("hiera_tiny_224", img_size=(64, 64), side=64)
    yield zoo("levit_128s", refused=BATCH_NORM, img_size=64, side=64)
    yield zoo("efficientformer_l1", refused=BATCH_NORM)
    yield zoo("ghostnet_050", refused=BATCH_NORM)
    bit = {"layers": (1, 1, 1, 1), "channels": (128, 128, 128, 128), "stem_chs": 32, "stem_type": "fixed", "num_classes": 10}
    own = {"norm_layer": timm.layers.GroupNormAct, "conv_layer": timm.layers.StdConv2d}
    yield made("ResNetV2 (GroupNorm, StdConv2d)", lambda: images(timm.models.resnetv2.ResNetV2(**bit, **own), 64))
    yield zoo("nf_resnet26")
    yield zoo("edgenext_xx_small", depths=(1, 1, 1, 1))
    yield zoo("gcvit_xxtiny", img_size=64, side=64)
    yield zoo("resnet26", shown="resnet26 (GroupNorm)", norm_layer=timm.layers.GroupNorm)
    yield zoo("fastvit_t8", refused=BATCH_NORM)
    yield zoo("mambaout_femto", depths=(1, 1, 1, 1))


# transformers


TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 99,
    "pad_token_id": 0,
}


def tokens(length: int = 10) -> dict[str, Tensor]:
    """Of four lengths: what is padded is masked."""
    found = torch.randint(1, 99, (SIZE, length))
    mask = torch.ones_like(found)
    for record, left in enumerate((length, length - 3, length - 5, length - 1)):
        found[record, left:], mask[record, left:] = 0, 0
    return {"input_ids": found, "attention_mask": mask}


def masked_next(outputs: Any, targets: Tensor) -> Tensor:
    """The mean over a record's tokens; 0 is padding."""
    losses = F.cross_entropy(first(outputs)[:, :-1].transpose(1, 2), targets[:, 1:], reduction="none", ignore_index=0)
    return losses.sum(1) / (targets[:, 1:] != 0).sum(1)


SINGLE = (
    "Cohere", "Deberta", "Gemma", "Gemma2", "Llama", "MT5", "Mamba", "Mistral", "Mixtral", "Olmo2", "Phi3", "Qwen2", "Qwen3",
    "Rwkv", "SmolLM3", "T5",
)  # fmt: skip


def language() -> Iterator[Architecture]:
    import transformers as hf

    def classifier(name: str, **settings: Any) -> Architecture:
        def make() -> Case:
            given = {key: value for key, value in (TINY | settings).items() if value is not None}
            config = getattr(hf, f"{name}Config")(**given, num_labels=2)
            return Case(getattr(hf, f"{name}ForSequenceClassification")(config), tokens(), LABELS, classes)

        return Architecture("transformers", f"{name}ForSequenceClassification", make, single=name in SINGLE)

    def generator(name: str, suffix: str = "ForCausalLM", refused: str = "", mask: bool = True, **settings: Any) -> Architecture:
        def make() -> Case:
            config = getattr(hf, f"{name}Config")(**(TINY | {"use_cache": False} | settings))
            batch = tokens()
            targets = batch["input_ids"]
            if not mask:
                batch = {"input_ids": batch["input_ids"]}
            return Case(getattr(hf, f"{name}{suffix}")(config), batch, targets, masked_next)

        return Architecture("transformers", f"{name}{suffix}", make, refused, name in SINGLE)

    for name in ("Bert", "Roberta", "Electra", "RoFormer", "MPNet", "ModernBert", "Ernie", "Camembert"):
        yield classifier(name, **({"max_position_embeddings": 64} if name in ("Roberta", "Camembert", "MPNet") else {}))
    yield classifier("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=48)
    yield classifier("Albert", embedding_size=16)
    yield classifier("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"])
    yield classifier("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"])
    yield classifier("XLNet", d_model=32, n_layer=2, n_head=4, d_inner=48)
    yield classifier("Funnel", num_hidden_layers=None, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48)
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2}
    yield generator("GPT2", "LMHeadModel", **gpt2)
    yield generator(
        "GPTNeo", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], bos_token_id=1, eos_token_id=2
    )
    yield generator("GPTNeoX")
    yield generator("GPTJ", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, bos_token_id=1, eos_token_id=2)
    yield generator("OPT", ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=64)
    yield generator("Bloom", n_layer=2, n_head=4)
    yield generator("CodeGen", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, bos_token_id=1, eos_token_id=2)
    for name in (
        "Llama",
        "Mistral",
        "Qwen2",
        "Qwen3",
        "Gemma",
        "Gemma2",
        "Phi",
        "Phi3",
        "StableLm",
        "Cohere",
        "Olmo2",
        "SmolLM3",
    ):
        extra = {"head_dim": 8} if name in ("Gemma", "Gemma2", "Qwen3") else {}
        yield generator(name, num_key_value_heads=2, **extra)
    yield generator("Falcon")
    yield generator("Mamba", state_size=4, expand=2)
    yield generator("Mixtral", num_local_experts=2, num_key_value_heads=2)
    yield replace(generator("Rwkv", mask=False, attention_hidden_size=32), rescales=True)

    def seq2seq(name: str, **settings: Any) -> Architecture:
        def make() -> Case:
            config = getattr(hf, f"{name}Config")(
                **({"vocab_size": 99, "pad_token_id": 0, "decoder_start_token_id": 0} | settings)
            )
            batch = tokens()
            decoder = tokens()["input_ids"]
            inputs = {**batch, "decoder_input_ids": decoder, "use_cache": False}
            return Case(getattr(hf, f"{name}ForConditionalGeneration")(config), inputs, decoder, masked_next)

        return Architecture("transformers", f"{name}ForConditionalGeneration", make, single=name in SINGLE)

    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    yield seq2seq("T5", **t5)
    yield seq2seq("MT5", **t5)
    bart = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in {"layers": 2, "attention_heads": 4, "ffn_dim": 48}.items()
    }
    yield seq2seq("Bart", d_model=32, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, **bart)
    yield seq2seq("Pegasus", d_model=32, max_position_embeddings=64, **bart)

    def image(name: str, **settings: Any) -> Architecture:
        def make() -> Case:
            shape = {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 48,
                "image_size": 32,
                "patch_size": 8,
            }
            config = getattr(hf, f"{name}Config")(
                **(shape | settings if name != "Swin" else settings | {"image_size": 32}), num_labels=2
            )
            return Case(
                getattr(hf, f"{name}ForImageClassification")(config),
                {"pixel_values": torch.randn(SIZE, 3, 32, 32)},
                LABELS,
                classes,
            )

        return Architecture("transformers", f"{name}ForImageClassification", make)

    yield image("ViT")
    yield image("DeiT")
    yield image("Beit", use_relative_position_bias=True)
    yield image("Swin", patch_size=2, embed_dim=24, depths=[1, 1], num_heads=[3, 6], window_size=4)
    yield image("ConvNext", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1])
    yield image("Dinov2")
    yield image("PoolFormer", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1])

    def speech() -> Case:
        config = hf.Wav2Vec2Config(
            **(TINY | {"vocab_size": 32}), conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2, classifier_proj_size=16, num_labels=2, apply_spec_augment=False, layerdrop=0.0,
            feat_extract_norm="layer", do_stable_layer_norm=True,
        )  # fmt: skip
        return Case(hf.Wav2Vec2ForSequenceClassification(config), {"input_values": torch.randn(SIZE, 400)}, LABELS, classes)

    yield Architecture("transformers", "Wav2Vec2ForSequenceClassification", speech)

    def masked_images() -> Case:
        decoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
        config = hf.ViTMAEConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8,
            **{f"decoder_{name}": value for name, value in decoder.items()},
        )  # fmt: skip
        model, pictures = hf.ViTMAEForPreTraining(config), torch.rand(SIZE, 3, 32, 32)

        def unseen(outputs: Any, targets: Tensor) -> Tensor:
            patches = targets.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
            errors = (outputs.logits - patches).square()
            return (errors.mean(2) * outputs.mask).sum(1) / outputs.mask.sum(1)

        return Case(model, {"pixel_values": pictures, "noise": torch.rand(SIZE, 16)}, pictures, unseen)

    yield Architecture("transformers", "ViTMAEForPreTraining", masked_images)

    def pixels() -> Case:
        config = hf.ImageGPTConfig(vocab_size=33, n_positions=64, n_embd=32, n_layer=2, n_head=4, use_cache=False)
        words = torch.randint(1, 32, (SIZE, 12))
        return Case(hf.ImageGPTForCausalImageModeling(config), {"input_ids": words}, words, masked_next)

    yield Architecture("transformers", "ImageGPTForCausalImageModeling", pixels)


# peft


def adapters() -> Iterator[Architecture]:
    import peft
    import transformers as hf

    def bert() -> nn.Module:
        return hf.BertForSequenceClassification(hf.BertConfig(**TINY, num_labels=2))

    def gpt2() -> nn.Module:
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(
                n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=99, use_cache=False, bos_token_id=1, eos_token_id=2
            )
        )

    def adapter(name: str, config: Callable[[], Any]) -> Architecture:
        return Architecture("peft", name, lambda: Case(peft.get_peft_model(bert(), config()), tokens(), LABELS, classes))

    query = ["query", "value"]
    yield adapter("LoRA", lambda: peft.LoraConfig("SEQ_CLS", r=4, target_modules=query, lora_dropout=0.1))
    yield adapter("LoRA (rsLoRA)", lambda: peft.LoraConfig("SEQ_CLS", r=4, target_modules=query, use_rslora=True))
    yield adapter("LoRA on embeddings", lambda: peft.LoraConfig("SEQ_CLS", r=4, target_modules=["word_embeddings", "query"]))
    yield adapter("DoRA", lambda: peft.LoraConfig("SEQ_CLS", r=4, target_modules=query, use_dora=True))
    yield adapter(
        "IA3",
        lambda: peft.IA3Config(
            task_type="SEQ_CLS", target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"]
        ),
    )
    yield adapter(
        "AdaLoRA", lambda: peft.AdaLoraConfig(task_type="SEQ_CLS", target_modules=query, init_r=4, target_r=2, total_step=10)
    )
    yield adapter("LoHa", lambda: peft.LoHaConfig(task_type="SEQ_CLS", r=4, target_modules=query))
    yield adapter("LoKr", lambda: peft.LoKrConfig(task_type="SEQ_CLS", r=4, target_modules=query))
    yield adapter("VeRA", lambda: peft.VeraConfig(task_type="SEQ_CLS", r=4, target_modules=query))
    yield adapter("OFT", lambda: peft.OFTConfig(task_type="SEQ_CLS", oft_block_size=8, target_modules=query))
    yield adapter("BOFT", lambda: peft.BOFTConfig(task_type="SEQ_CLS", boft_block_size=4, target_modules=query))
    yield adapter("LN tuning", lambda: peft.LNTuningConfig(task_type="SEQ_CLS", target_modules=["LayerNorm"]))
    yield adapter("Prompt tuning", lambda: peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3))
    yield adapter("P-tuning", lambda: peft.PromptEncoderConfig(task_type="SEQ_CLS", num_virtual_tokens=3, encoder_hidden_size=16))
    yield adapter("Prefix tuning", lambda: peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3))

    def causal(name: str, config: Callable[[], Any]) -> Architecture:
        def make() -> Case:
            batch = tokens()
            return Case(peft.get_peft_model(gpt2(), config()), batch, batch["input_ids"], next_token_with_prompt)

        return Architecture("peft", name, make)

    yield causal(
        "LoRA on GPT-2 (Conv1D)",
        lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn"], fan_in_fan_out=True),
    )
    yield causal("Prompt tuning of GPT-2", lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))


def next_token_with_prompt(outputs: Any, targets: Tensor) -> Tensor:
    """Virtual tokens come first, and have no goal."""
    logits = first(outputs)[:, -targets.shape[1] :]
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), targets[:, 1:], reduction="none", ignore_index=0)
    return losses.sum(1) / (targets[:, 1:] != 0).sum(1)
