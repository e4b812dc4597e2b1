"""A step: read once, sorted, without padding; written once; its signal; its records on disk."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rollout_batches import Queue, fetched, record, row
from verl.workers import engine_workers

from recipe.run.folder import RunFolder, write_arrays
from recipe.trainer import batch as batches
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.records import arrays, lines
from recipe.trainer.training_signal import signal_of

ROWS = {
    "b_2_0": row(True, 3, question="q", session=2),
    "a_0_0": row(True, 1, question="p"),
    "pad_0_0": row(True, 1, session=0),
    "b_0_0": row(False, 4, question="q"),
}


def test_padding_is_excluded_and_the_order_of_arrival_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """verl appends copies of the first row, marked by a tag, to fill the last mini-batch."""
    queue = Queue(ROWS)
    source = fetched(queue, monkeypatch)
    made = record(source, weight_logprobs=source.padded["old_log_probs"] / 2)
    assert made.keys == ["a_0_0", "b_0_0", "b_2_0"]
    assert made.questions == ["p", "q", "q"]
    assert made.group_B.tolist() == [0, 1, 1]
    assert made.rephrasing_B.tolist() == [0, 1, 2]
    assert (made.lengths, made.truncated) == ([1, 4, 3], [False, True, False])
    assert (made.accuracy, made.reward_B.tolist()) == ([1, 0, 1], [1, 0, 1])
    assert made.mask_BT.sum(1).tolist() == [1, 4, 3]
    assert made.logprobs_BT[2].tolist() == [-0.5, -1.5, -2.5, 0]
    assert made.weight_logprobs_BT.tolist() == (made.logprobs_BT / 2).tolist()
    assert made.answers == ["right", "7", "right"]
    assert len(set(made.key_B.tolist())) == 3
    again = record(fetched(queue, monkeypatch, queue.batch(list(ROWS)[::-1])))
    assert (again.keys, again.key_B.tolist()) == (made.keys, made.key_B.tolist())
    assert torch.equal(again.logprobs_BT, made.logprobs_BT)
    many = Queue({f"a_{session}_0": row(True, 1, session=session) for session in (10, 9)})
    assert record(fetched(many, monkeypatch)).rollouts == [9, 10]


def test_columns_absent_by_the_settings_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bypass = {
        key: {k: v for k, v in fields.items() if k != "entropy"} for key, fields in ROWS.items()
    }
    made = record(fetched(Queue(bypass), monkeypatch))
    assert made.entropy_BT is None and made.rollout_logprobs_BT is None
    assert made.weight_logprobs_BT is made.logprobs_BT


def write(
    monkeypatch: pytest.MonkeyPatch,
    excluded: list[bool],
    by_token: bool = True,
    returns: torch.Tensor | None = None,
    **changed: Any,
) -> Queue:
    queue = Queue(ROWS)
    source = fetched(queue, monkeypatch)
    advantages = torch.arange(12.0, dtype=torch.float64).reshape(3, 4) + 1
    columns = batches.columns_of(
        source, advantages, returns, changed=changed, excluded=excluded, by_token=by_token
    )
    batches.write(source, columns)
    return queue


def test_advantages_are_written_to_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = write(monkeypatch, [False] * 3)
    assert queue.writes == [("advantages", "returns")] and len(queue.reads) == 1
    assert queue.column("advantages") == {
        **{"b_2_0": [9, 10, 11], "a_0_0": [1], "pad_0_0": [0], "b_0_0": [5, 6, 7, 8]}
    }
    assert queue.column("returns") == queue.column("advantages")


@pytest.mark.parametrize(
    ("excluded", "by_token", "kept"),
    [
        ([False, True, False], False, [0, 0, 0, 0]),
        # Its first token stays in the masks, so that no mini-batch has zero tokens.
        ([False, True, False], True, [1, 0, 0, 0]),
        ([True] * 3, False, [1, 0, 0, 0]),
    ],
)
def test_an_excluded_response_has_no_mask(
    monkeypatch: pytest.MonkeyPatch, excluded: list[bool], by_token: bool, kept: list[int]
) -> None:
    queue = write(monkeypatch, excluded, by_token)
    for name in ("response_mask", "loss_mask"):
        masks = queue.column(name)
        assert masks["b_0_0"] == kept
        assert masks["b_2_0"] == ([1, 0, 0] if excluded[2] else [1, 1, 1])
        assert masks["pad_0_0"] == [1]  # verl's, unchanged


def test_a_mask_changed_by_verl_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected = torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    queue = write(monkeypatch, [False, True, False], by_token=False, response_mask=rejected)
    assert queue.column("response_mask")["b_2_0"] == [1, 0, 1]
    assert queue.column("response_mask")["b_0_0"] == [0, 0, 0, 0]
    assert queue.column("loss_mask")["b_2_0"] == [1, 1, 1]


# The files of verl in which its workers read a batch, and the names of that batch.
WORKERS = ("engine_workers", "utils/losses", "utils/padding", "engine/utils")
WORKERS += ("engine/base", "engine/fsdp/transformer_impl")
OUR_ENGINE = Path(batches.__file__).parents[1] / "actor" / "engine.py"
BATCHES = {"data", "micro_batch", "mini_batch_td", "batch", "tensordict"}
SETTINGS = {  # not columns: verl's trainer and workers set them beside the rows
    *("compute_loss", "dataloader_kwargs", "disable_auto_offload", "enable_routing_replay"),
    *("epochs", "global_token_num", "mini_batch_size", "num_mini_batch", "seed", "temperature"),
    *("no_lora_adapter", "update_lr_scheduler", "batch_num_tokens", "dp_size"),
    *("global_batch_size", "max_token_len_per_gpu", "micro_batch_size_per_gpu"),
    *("indices", "max_response_len", "max_seq_len", "use_dynamic_bsz"),
    *("calculate_entropy", "calculate_sum_pi_squared"),
}
NOT_OURS = {  # columns, of what this project does not train
    *("images_seqlens", "multi_modal_inputs"),  # images
    *("prompt_embeds", "prompt_embeds_mask"),  # diffusion
    *("negative_prompt_embeds", "negative_prompt_embeds_mask"),
    "attention_mask",  # of padded batches; those of TransferQueue are ragged
}


def names_read(source: str) -> set[str]:
    """Every string in a call, index or comparison with a batch: `d["x"]`, `"x" in d`, get."""
    result: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            texts = [*node.args, *(k.value for k in node.keywords if k.arg == "key")]
            around = [node.func, *node.args]
        elif isinstance(node, ast.Subscript):
            texts, around = [node.slice], [node.value]
        elif isinstance(node, ast.Compare):
            texts, around = [node.left], node.comparators
        else:
            continue
        bound = {n.id for part in around for n in ast.walk(part) if isinstance(n, ast.Name)}
        if bound & BATCHES:
            values = [t.value for t in texts if isinstance(t, ast.Constant)]
            result |= {value for value in values if isinstance(value, str)}
    return result


def test_every_column_that_an_actor_reads_is_sent() -> None:
    """A missing column that is optional in verl would be ignored silently."""
    folder = Path(engine_workers.__file__).parent
    files = [*(folder / f"{name}.py" for name in WORKERS), OUR_ENGINE]
    sources = [path.read_text(encoding="utf-8") for path in files]
    read = set().union(*map(names_read, sources))
    assert {"input_ids", "old_log_probs", "rollout_is_weights", "ref_log_prob"} <= read
    assert read - SETTINGS - NOT_OURS <= set(batches.ACTOR_FIELDS)
    assert not set(batches.ACTOR_FIELDS) & (SETTINGS | NOT_OURS)


def test_the_fields_are_reduced_only_inside_the_context() -> None:
    batch = Queue(ROWS).batch()
    batch.fields = ["all"]
    with pytest.raises(RuntimeError, match="the worker failed"), batches.for_actor(batch):
        assert batch.fields == list(batches.ACTOR_FIELDS)
        raise RuntimeError("the worker failed")
    assert batch.fields == ["all"]


def test_the_signal_of_a_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toy_config: Any
) -> None:
    """Two groups with one right response each; the first is a filler group."""
    config, seeds = toy_config.copy(), set()
    config.recipe.run_dir, config.recipe.save_tensors_every = str(tmp_path), 2
    config.recipe.history.enable = True
    rows = {
        f"{group}_{i}_0": row(i == 0, 2 + i, question=question, session=i)
        for group, question in (("a", "p"), ("b", "q"))
        for i in range(2)
    }
    for seed, step in ((1, 2), (1, 3), (2, 2)):
        config.recipe.seed = seed
        stats, queue = QuestionStats(config.recipe), Queue(rows)
        stats.load({"shortest": {"q": 1}})
        rollouts, _, columns = signal_of(
            fetched(queue, monkeypatch),
            config,
            step=step,
            stats=stats,
            filled_groups={"a"},
            kl_controller=None,
            weight_logprobs=None,
            metrics={},
        )
        seeds.add(rollouts.seed)
        assert rollouts.shortest == [None, None, 1, 1]
        trained = columns["advantages"].abs().sum(1) > 0
        assert trained.tolist() == [False, False, True, True]
    assert len(seeds) == 3
    assert [path.name for path in RunFolder(tmp_path).tensors(2).parent.iterdir()] == ["step_2.npz"]


class Words:
    def decode(self, ids: torch.Tensor) -> str:
        return " ".join(map(str, ids.tolist()))


def test_saved_tensors_read_back_without_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"g-q_0_0": row(True, 2), "g-q_1_0": row(False, 3, session=1)}
    listed["g-q_1_0"]["extra_fields"]["generated_under"] = [9]
    made = record(fetched(Queue(listed), monkeypatch))
    path = tmp_path / "tensors" / "step_1.npz"
    rewards = torch.tensor([1.0, 0.5])
    write_arrays(path, arrays(made, rewards, torch.zeros(2, 3)))
    read = np.load(path, allow_pickle=False)
    assert read["responses"].tolist() == [[0, 1, -1], [0, 1, 2]]
    assert read["generated_under"].tolist() == [[7, 8], [9, -1]]
    assert read["prompts"].tolist() == [[7, 8], [7, 8]]
    assert read["lengths"].tolist() == [2, 3]
    assert read["rewards"].tolist() == [1.0, 0.5]
    assert read["group"].tolist() == ["g-q", "g-q"]
    assert [p.name for p in path.parent.iterdir()] == ["step_1.npz"]
    first, second = lines(made, rewards, step=4, tokenizer=Words())
    assert (first["step"], first["prompt"], first["reward"], first["accuracy"]) == (4, "7 8", 1, 1)
    assert (second["prompt"], second["generated_under"]) == ("7 8", "9")
    assert (second["rollout"], second["length"], second["uid"]) == (1, 3, "q")
