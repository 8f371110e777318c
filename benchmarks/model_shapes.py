"""Shapes of the parameters of well-known models, for benchmarks."""

from __future__ import annotations


def resnet50() -> list[list[int]]:
    """The shapes of ResNet-50's parameters (He et al. 2015), batch normalisation included."""
    shapes = [[64, 3, 7, 7], [64], [64]]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for into, out, kernel in ((inputs, width, 1), (width, width, 3), (width, 4 * width, 1)):
                shapes += [[out, into, kernel, kernel], [out], [out]]
            if block == 0:
                shapes += [[4 * width, inputs, 1, 1], [4 * width], [4 * width]]
            inputs = 4 * width
    return [*shapes, [1000, 2048], [1000]]


def transformer() -> list[list[int]]:
    """The shapes of 12 transformer layers of width 768, with inner layers of width 3,072."""
    d = 768
    layer = [[3 * d, d], [3 * d], [d, d], [d], [4 * d, d], [4 * d], [d, 4 * d], [d]] + [[d]] * 4
    return layer * 12
