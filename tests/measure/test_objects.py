from support import bench_ranks
from support.measured import launched
from support.patience import ENDS


def test_values_of_all_ranks_without_numpy() -> None:
    wanted = [["rank 0", 0.5, ""], ["rank 1", 1.5, "ü"], ["rank 2", 2.5, "üü"]]
    assert launched(bench_ranks.gather_values, 3, timeout_s=ENDS) == [wanted] * 3
