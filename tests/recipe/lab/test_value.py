"""The value model of a checkpoint, and how it is compared with pass rates."""

from pathlib import Path

import pytest
import torch
from composed import composed
from omegaconf import OmegaConf
from transformers import Qwen2Config, Qwen2ForTokenClassification

from recipe.errors import ConfigError
from recipe.lab.value import compared, spearman, value_model
from recipe.run.checkpoints import shard_name
from recipe.run.folder import RunFolder


def test_rank_correlation_by_hand() -> None:
    # Ranks 1, 2, 3.5, 3.5 and 2, 1, 4, 3: covariance 0.875 x 4, variances 4.5 and 5 over 4.
    found = spearman(torch.tensor([0.1, 0.2, 0.9, 0.9]), torch.tensor([2.0, 1.0, 4.0, 3.0]))
    assert found == pytest.approx(3.5 / (4.5 * 5.0) ** 0.5)
    assert spearman(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([9.0, 5.0, 1.0])) == -1.0


def test_the_critic_of_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = Qwen2Config(
        vocab_size=16, num_attention_heads=2, num_key_value_heads=1, num_labels=1, **sizes
    )
    config.save_pretrained(tmp_path / "hf")
    critic = Qwen2ForTokenClassification(config).eval()
    (tmp_path / "critic").mkdir()
    torch.save(critic.state_dict(), tmp_path / "critic" / shard_name("model", 1, 0))
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        found = value_model(tmp_path / "critic", tmp_path / "hf")(input_ids=ids).logits
        assert torch.equal(found, critic(input_ids=ids).logits) and found.shape == (1, 3, 1)


@pytest.mark.config
def test_null_templates_are_all_of_the_bank(tmp_path: Path) -> None:
    config = composed("toy", "recipe.augment.templates=null")
    OmegaConf.save(config, RunFolder(tmp_path).config)
    with pytest.raises(ConfigError, match="no exported step has a critic"):  # it gets that far
        compared(RunFolder(tmp_path), "train", samples=2)
