"""Key table of verl: it is what verl's source gives, and the search for readers by hand."""

import pytest
from composed import composed
from omegaconf import OmegaConf

from recipe.preflight import keys

pytestmark = pytest.mark.config


def test_the_table_is_rebuilt_from_the_installed_verl() -> None:
    """A new verl shows up here: run python -m recipe.preflight.keys and read the difference."""
    built = keys.build()
    assert built.keys() == keys.verl_defaults().keys()
    assert {key: row for key, row in built.items() if isinstance(row, list)} == keys.table()


@pytest.mark.parametrize(
    ("key", "unused"),
    [
        # Each was looked up in verl 0.9.1 by hand: grep finds no reader, or the named one.
        ("actor_rollout_ref.actor.use_prefix_grouper", True),
        ("actor_rollout_ref.model.tiled_mlp.enabled", True),
        ("actor_rollout_ref.rollout.multi_turn.enable", True),
        ("actor_rollout_ref.rollout.nnodes", True),
        ("actor_rollout_ref.hybrid_engine", True),
        ("actor_rollout_ref.rollout.checkpoint_engine.backend", True),
        ("reward.sandbox_fusion.url", True),
        ("data.truncation", True),
        ("data.prompt_key", True),
        ("data.return_raw_chat", True),
        ("actor_rollout_ref.actor.clip_ratio_high", False),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", False),
        ("actor_rollout_ref.actor.optim.betas", False),
        ("actor_rollout_ref.rollout.enforce_eager", False),
        ("actor_rollout_ref.rollout.top_p", False),
        ("algorithm.rollout_correction.rollout_is_threshold", False),
        ("data.train_batch_size", False),
        ("trainer.total_epochs", False),
    ],
)
def test_rows_that_were_looked_up(key: str, unused: bool) -> None:
    assert (key in keys.table()) == unused


SOURCE = """
class Engine:
    def build(self, engine_config):
        a = self.config.actor.optim.lr
        b = engine_config.get("param_offload", False)
        c = other["deep"]["name"]
        self.stored = 1
        d = OmegaConf.select(config, "trainer.v1.mode")
        e = getattr(optim_config, "betas", None)
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("actor_rollout_ref.actor.optim.lr", 4),
        ("critic.lr", None),  # another section's
        ("actor.fsdp_config.param_offload", 5),
        ("deep.name", 6),
        ("wide.name", None),
        ("actor.stored", None),  # a store is no reader
        ("trainer.v1.mode", 8),
        ("actor.optim.betas", 9),
    ],
)
def test_the_search_for_a_reader(key: str, line: int | None) -> None:
    found = keys.reader(key, keys.accesses({"verl/engine.py": SOURCE}))
    assert found == (f"verl/engine.py:{line}" if line else None)


def test_a_key_without_effect_is_found_and_its_default_is_not() -> None:
    # actor.rollout_n has no effect, and follows rollout.n by default
    config = composed("grpo", "actor_rollout_ref.rollout.n=4").copy()
    assert config.actor_rollout_ref.actor.rollout_n == 4
    assert list(keys.unused(config)) == []
    OmegaConf.update(config, "actor_rollout_ref.nccl_timeout", 60)
    found = [(key, value) for key, value, _ in keys.unused(config)]
    assert found == [("actor_rollout_ref.nccl_timeout", 60)]
