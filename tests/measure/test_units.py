import pytest

from fastcomm._measure.units import format_size, parse_size, parse_sizes, rounded_size, size_range


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8", 8), ("8B", 8), ("64K", 65536), ("64 KiB", 65536), ("25m", 25 << 20), ("1G", 1 << 30)],
)
def test_sizes_are_parsed(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5M", "8T"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["8 B", "1000 B", "32 KiB", "1025 KiB", "64 MiB", "2 GiB"])
def test_printed_sizes_parse_back(text: str) -> None:
    assert format_size(parse_size(text)) == text


def test_a_range_ends_at_its_largest_size() -> None:
    assert size_range(8, 100, 4) == [8, 32, 100]
    assert size_range(8, 128, 4) == [8, 32, 128]
    assert size_range(8, 8, 2) == [8]
    assert size_range(8, 20, step=5) == [8, 13, 18, 20]


def test_lists_have_sizes_and_ranges() -> None:
    assert parse_sizes("10") == [10]
    assert parse_sizes("1K,8:64:8,8") == [8, 64, 1024]
    assert parse_sizes("1M:3M:+1M") == [1 << 20, 2 << 20, 3 << 20]
    for text in ("", "8,", "8:16", "8:16:2:2", "0", "8:16:x", "8:16:+0"):
        with pytest.raises(ValueError, match=r"size|not a factor"):
            parse_sizes(text)


@pytest.mark.parametrize("arguments", [(0, 8, 2), (16, 8, 2), (8, 16, 1)])
def test_bad_ranges_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="range of sizes needs"):
        size_range(*arguments)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (11 << 20, "11.0 MiB"), (3 << 29, "1.5 GiB")],
)
def test_rounded_sizes(nbytes: int, text: str) -> None:
    assert rounded_size(nbytes) == text
