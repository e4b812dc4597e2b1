"""Real questions and golds beside the checkout."""

from pathlib import Path

import pytest
from pyarrow import ipc, parquet


@pytest.fixture(scope="session")
def train_pairs(shared_data: Path) -> list[tuple[str, str]]:
    """(question, gold) of MATH level 3-5, without the two empty golds."""
    file = next((shared_data / "math_level3to5").glob("*train.parquet"))
    rows = parquet.read_table(file, columns=["question", "reward_model"]).to_pylist()
    pairs = [(row["question"], row["reward_model"]["ground_truth"]) for row in rows]
    pairs = [(question, gold) for question, gold in pairs if gold.strip()]
    assert len(pairs) == 8521
    return pairs


@pytest.fixture(scope="session")
def benchmark_rows(shared_data: Path) -> dict[str, list[dict]]:
    """The rows of the five benchmarks by name."""
    rows = {}
    for arrow in sorted((shared_data / "evaluation_suite").glob("*/*.arrow")):
        with ipc.open_stream(arrow) as stream:
            rows[arrow.parent.name] = stream.read_all().to_pylist()
    assert sum(map(len, rows.values())) == 1560
    return rows
