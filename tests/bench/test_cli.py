from pathlib import Path

import pytest

from fastcomm.bench.cli import build_parser, main
from fastcomm.bench.records import read_records

pytest.importorskip("tabulate")
pytest.importorskip("tqdm")
pytest.importorskip("matplotlib")


def test_a_small_run_writes_records_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--backends", "gloo,gloo", "--sizes", "8,1K,128", "--budget", "1"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.jsonl")
    records = read_records(path)
    assert len(records.rows) == (4 * 2 + 1) * 2
    assert str(tmp_path) not in path.read_text()
    plot = path.with_suffix(".png")
    assert plot.stat().st_size > 20_000
    assert "gloo-2 / this" in capsys.readouterr().out

    plot.unlink()
    assert main(["--table", str(path), "--plot", str(path), "--style", "github"]) == 0
    assert plot.exists()
    assert "| all_reduce" in capsys.readouterr().out


def test_a_failing_backend_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backends", "nonesuch", "--ops", "barrier", "--budget", "1"]) == 1
    assert "rank" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--sizes 8", "--sizes 8,x,2", "--ops nonesuch"])
def test_bad_options_are_status_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err


def test_a_missing_file_is_status_1(tmp_path: Path) -> None:
    assert main(["--table", str(tmp_path / "none.jsonl")]) == 1


def test_the_default_sweep() -> None:
    options = build_parser().parse_args([])
    assert (options.sizes[0], options.sizes[-1], len(options.sizes)) == (8, 64 << 20, 9)
    assert options.backends == ("fastcomm", "gloo")
    assert options.ops == ("all_reduce", "all_reduce_shared", "broadcast", "all_gather", "barrier")
    assert options.check
