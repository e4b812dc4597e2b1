"""The benchmarks: a yaml file each, and how a request becomes questions."""

from eval.benchmarks.loading import (
    BenchmarkRequest,
    LoadedBenchmark,
    answer_texts,
    load,
    multiple_choice,
    parse_request,
    suite_requests,
)
from eval.benchmarks.record import (
    MOST_SAMPLES,
    Benchmark,
    known_benchmark,
    known_benchmarks,
    read_benchmark,
)

__all__ = [
    "MOST_SAMPLES",
    "Benchmark",
    "BenchmarkRequest",
    "LoadedBenchmark",
    "answer_texts",
    "known_benchmark",
    "known_benchmarks",
    "load",
    "multiple_choice",
    "parse_request",
    "read_benchmark",
    "suite_requests",
]
