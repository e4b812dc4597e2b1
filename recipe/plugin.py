"""The one entry point of `verl.plugins`: loaded at the end of ``import verl``, in every process.

It must stay light (it is imported by engine processes too) and does nothing without
``VERL_PLATFORM=cpu``. verl swallows an exception of an entry point, so `recipe.train` also names
this module in ``VERL_USE_EXTERNAL_MODULES``, where an exception stops the process with its own
traceback, and `recipe.doctor` imports it by itself.
"""

from recipe import cpu

if cpu.requested():
    import recipe.cpu.platform  # noqa: F401  (registers the platform "cpu")
    from recipe.cpu import gaps

    gaps.adapt_process_group()
    gaps.adapt_vllm_version()
