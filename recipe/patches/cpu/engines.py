"""Imported by verl through ``actor_rollout_ref.model.external_lib``: FSDP engines on the CPU."""

from recipe.patches.cpu import adapters

adapters.register_engines()
adapters.adapt_offload()
