"""Key table of verl: it is what verl's source gives, and the search for readers by hand."""

import pytest
from composed import composed
from omegaconf import OmegaConf

from recipe.config import verl
from recipe.preflight import keys

pytestmark = pytest.mark.config


def test_the_table_is_rebuilt_from_the_installed_verl() -> None:
    """A new verl shows up here: run python -m recipe.preflight.keys and read the difference."""
    assert keys.fixed(keys.build()) == verl.fixed_keys()


@pytest.mark.parametrize(
    ("key", "unused"),
    [
        # Each was looked up in verl 0.9.1 by hand: grep finds no reader, or the named one.
        ("actor_rollout_ref.actor.use_prefix_grouper", True),
        ("actor_rollout_ref.rollout.multi_turn.enable", True),
        ("actor_rollout_ref.hybrid_engine", True),
        ("actor_rollout_ref.rollout.checkpoint_engine.backend", True),
        ("data.truncation", True),
        ("actor_rollout_ref.actor.fsdp_config.dtype", True),
        ("actor_rollout_ref.ref.entropy_from_logits_with_chunking", True),
        ("actor_rollout_ref.rollout.agent.custom_async_server.name", True),
        ("critic.model.lora.rank", True),
        ("global_profiler.global_tool_config.torch_memory.stacks", True),
        ("trainer.v1.sampler.max_off_policy_threshold", True),
        ("actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params", False),  # of FSDP 1
        ("critic.model.use_remove_padding", False),
        ("skip.rollout_tq.dump_dir", False),
        ("global_profiler.global_tool_config.torch_memory.stack_depth", False),
        ("actor_rollout_ref.actor.clip_ratio_high", False),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", False),
        ("actor_rollout_ref.rollout.top_p", False),
        ("algorithm.rollout_correction.rollout_is_threshold", False),
    ],
)
def test_rows_that_were_looked_up(key: str, unused: bool) -> None:
    assert bool(verl.why_fixed(key)) == unused


def test_a_store_is_no_reader_nor_is_a_read_of_another_section() -> None:
    """All other forms of a read are in verl's source, from which the table is rebuilt above."""
    source = "self.config.actor.optim.lr\nself.actor.stored = 1\n"
    result = keys.accesses({"verl/engine.py": source})
    assert keys.reader("actor_rollout_ref.actor.optim.lr", result) == "verl/engine.py:1"
    assert keys.reader("critic.lr", result) is keys.reader("actor.stored", result) is None


def test_a_key_without_effect_is_found_and_its_default_is_not() -> None:
    # actor.rollout_n has no effect, and follows rollout.n by default
    config = composed("grpo", "actor_rollout_ref.rollout.n=4").copy()
    assert config.actor_rollout_ref.actor.rollout_n == 4
    assert list(verl.changed_keys(config)) == []
    OmegaConf.update(config, "actor_rollout_ref.nccl_timeout", 60)
    result = [(key, value) for key, value, _ in verl.changed_keys(config)]
    assert result == [("actor_rollout_ref.nccl_timeout", 60)]
