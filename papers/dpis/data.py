"""The data sets as tensors, preprocessed by public rules alone."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from dperm.data import hashed_words, load_images, load_reviews
from dperm.torch import scattering_features

__all__ = ["Split", "load_split"]

Split = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


@functools.lru_cache(maxsize=2)
def load_split(dataset: str, scattering: bool) -> Split:
    """(training, test), each (inputs, labels): pixels on [−1, 1], scattering coefficients of pixels on [0, 1], or the last 80
    words of a review as hash buckets."""
    if dataset == "imdb":
        reviews = load_reviews("imdb")
        parts = ((reviews.train_texts, reviews.train_labels), (reviews.test_texts, reviews.test_labels))
        made = [(torch.from_numpy(hashed_words(texts, 80, 20_000)), torch.from_numpy(labels).long()) for texts, labels in parts]
        return made[0], made[1]
    found = load_images(dataset)
    pairs = ((found.train_images, found.train_labels), (found.test_images, found.test_labels))
    made = []
    for images, labels in pairs:
        pixels = torch.from_numpy(images).float().reshape(len(images), -1, *images.shape[-2:]) / 255  # one channel or three
        inputs = scattering_features(pixels) if scattering else 2 * pixels - 1
        made.append((inputs, torch.from_numpy(labels).long()))
    return made[0], made[1]
