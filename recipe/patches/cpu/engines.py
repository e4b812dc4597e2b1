"""Imported by verl through ``actor_rollout_ref.model.external_lib``: FSDP engines on the CPU."""

from recipe.patches.cpu import adapters as gaps

gaps.register_engines()
gaps.adapt_offload()
