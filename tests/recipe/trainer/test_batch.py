"""A step: read once, sorted, without padding; written once; its signal; its records on disk."""

import ast
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from rollout_batches import Queue, fetched, record, row
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers import engine_workers

from recipe.run.folder import RunFolder, write_arrays
from recipe.trainer import batch as batches
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.records import arrays, lines
from recipe.trainer.trainer import RecipeTrainer
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
    monkeypatch: pytest.MonkeyPatch, excluded: list[bool], by_token: bool = True, **changed: Any
) -> Queue:
    queue = Queue(ROWS)
    source = fetched(queue, monkeypatch)
    advantages = torch.arange(12.0, dtype=torch.float64).reshape(3, 4) + 1
    columns = batches.columns_of(
        source, advantages, None, changed=changed, excluded=excluded, by_token=by_token
    )
    batches.write(source, columns)
    return queue


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
    "use_remove_padding",
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
    listed["g-q_1_0"]["extra_fields"]["generated_under"] = torch.tensor([9])
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


# ------------------------------------------------------------------------- verl part
# One read and one write instead of verl's two: the same columns and metrics as verl's method.


OFF = {"enable": False}
RECIPE = {
    "seed": 0,
    "advantage": {"name": "grpo"},
    "weights": {"name": "none"},
    "history": OFF,
    "curriculum": {**OFF, "target": 0.5},
    "overlong_filter": False,
    "save_tensors_every": 0,
    "save_rollouts_every": 0,
}
CORRECTION = {
    "bypass_mode": False,
    "rollout_is": "token",
    "rollout_is_threshold": 2.0,
    "rollout_rs": "token_k1",
    "rollout_rs_threshold": "0.5_1.5",
}


def rows(*, log_probs: bool, padding: bool) -> dict[str, dict]:
    """Two groups; one has three tokens whose engine log-probabilities are far off."""
    random = torch.Generator().manual_seed(3)
    made = {}
    for group, rights in (("g1", [1, 0, 1]), ("g0", [0, 0, 1])):
        for session, right in enumerate(rights):
            key = f"{group}_{session}_0"
            made[key] = row(bool(right), 2 + session, question=group, session=session, uid=group)
            old = made[key]["old_log_probs"]
            made[key]["ref_log_prob"] = old + 0.3 * torch.randn(len(old), generator=random)
            if log_probs:
                noise = torch.randn(len(old), generator=random)
                made[key]["rollout_log_probs"] = old + noise
    if padding:
        masks = dict.fromkeys(("response_mask", "loss_mask"), torch.zeros(1, dtype=torch.int64))
        numbers = ("rm_scores", *(["rollout_log_probs"] if log_probs else []))
        zeros = {**masks, **dict.fromkeys(numbers, torch.zeros(1))}
        ref = {"ref_log_prob": torch.tensor([-0.3])}
        made["pad_0_0"] = row(False, 1, session=0, uid="pad", **zeros, **ref)
    return made


def step(owner: Any, queue: Queue, monkeypatch: Any, **algorithm: Any) -> dict[str, float]:
    """`_compute_advantage` of verl's trainer or of ours; returns its metrics."""
    for module in (trainer_base, batches):
        monkeypatch.setattr(module, "tq", queue)
    trainer: Any = object.__new__(RecipeTrainer)
    trainer.global_steps, trainer.run_dir = 1, Path("unused")
    base = {"adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": True}
    base |= {"use_kl_in_reward": False, "kl_penalty": "kl", "rollout_correction": None}
    trainer.config = OmegaConf.create(
        {
            "algorithm": {**base, **algorithm},
            "recipe": RECIPE,
            "actor_rollout_ref": {
                "actor": {"loss_agg_mode": "token-mean"},
                "rollout": {"n": 3, "temperature": 1.0},
            },
        }
    )
    trainer.kl_ctrl_in_reward = core_algos.FixedKLController(0.25)
    trainer.replay_buffer = type("Buffer", (), {"filled_groups": set()})
    trainer.question_stats = QuestionStats(trainer.config.recipe)
    metrics: dict[str, float] = {}
    batch = queue.batch(list(queue.rows)[::-1])
    assert owner._compute_advantage(trainer, batch, metrics).keys == batch.keys
    return metrics


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(
    ("log_probs", "algorithm"),
    [
        (False, {}),
        (False, {"use_kl_in_reward": True}),
        (True, {"rollout_correction": CORRECTION}),
        (True, {"rollout_correction": CORRECTION, "use_kl_in_reward": True}),
        (True, {"rollout_correction": {**CORRECTION, "rollout_is": None, "rollout_rs": None}}),
        (True, {"rollout_correction": {**CORRECTION, "bypass_mode": True}}),
    ],
)
def test_the_columns_and_metrics_are_verls(
    monkeypatch: pytest.MonkeyPatch, log_probs: bool, algorithm: dict, padding: bool
) -> None:
    theirs = Queue(rows(log_probs=log_probs, padding=padding))
    ours = copy.deepcopy(theirs)
    wanted = step(PPOTrainerSync, theirs, monkeypatch, **algorithm)
    result = step(RecipeTrainer, ours, monkeypatch, **algorithm)
    assert {key: result[key] for key in wanted} == pytest.approx(wanted)
    assert len(ours.reads) == len(ours.writes) == 1
    assert set(theirs.writes[0]) - set(ours.writes[0]) <= {"response_mask"}  # where unchanged
    for name in theirs.writes[0]:
        a, b = theirs.column(name), ours.column(name)
        assert a.keys() == b.keys()
        for key in a:
            # verl's GRPO is in float32
            assert b[key] == pytest.approx(a[key], abs=1e-5), (name, key)
    assert max(max(map(abs, v)) for v in ours.column("advantages").values()) > 0.5
    if "rollout_is_weights" in ours.writes[0]:
        masks = ours.column("response_mask")
        assert any(0 in mask for key, mask in masks.items() if not key.startswith("pad"))


def test_a_rejected_token_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the mask before any statistics: negative control of the test above."""
    queue = Queue(rows(log_probs=True, padding=False))
    metrics = step(RecipeTrainer, queue, monkeypatch, rollout_correction=CORRECTION)
    kept = queue.column("response_mask")
    total = sum(len(mask) * sum(mask) for mask in kept.values())  # its entropy is its length
    assert metrics["train/entropy"] == pytest.approx(total / sum(map(sum, kept.values())))
    assert sum(map(sum, kept.values())) < sum(map(len, kept.values()))
    for key, advantages in queue.column("advantages").items():
        assert [a for a, m in zip(advantages, kept[key], strict=True) if not m and a] == []


def test_truncated_responses_are_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECIPE, "overlong_filter", True)
    queue = Queue(rows(log_probs=False, padding=False))
    step(RecipeTrainer, queue, monkeypatch)
    masks = queue.column("loss_mask")
    assert masks == {key: [1, 0, 0, 0] if len(m) == 4 else [1] * len(m) for key, m in masks.items()}


def test_a_rejected_response_still_counts_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """recipe/STACK.md says so; verl's trainer has the same advantages (first test)."""
    made = rows(log_probs=True, padding=False)
    for key, columns in made.items():
        columns["rollout_log_probs"] = columns["old_log_probs"] + (3.0 if key == "g1_0_0" else 0.0)
    rejecting = {**CORRECTION, "rollout_is": None, "rollout_rs": "seq_mean_k1"}
    plain, cut = (Queue(copy.deepcopy(made)) for _ in range(2))
    step(RecipeTrainer, plain, monkeypatch)
    step(RecipeTrainer, cut, monkeypatch, rollout_correction=rejecting)
    rejected = [key for key, mask in cut.column("response_mask").items() if not any(mask)]
    assert rejected == ["g1_0_0"]
    wanted, result = plain.column("advantages"), cut.column("advantages")
    assert all(result[key] == wanted[key] for key in result if key not in rejected)
    assert set(result["g1_0_0"]) == {0.0} and any(wanted["g1_0_0"])
