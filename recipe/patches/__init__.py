"""All changes to foreign code at run time; the docstring of each adapter gives the reason.

Each patch closes a gap of verl 0.9.1, vLLM or torch. Its test runs the foreign code without the
patch and fails when the gap is closed upstream; delete the patch then. `recipe.plugin` loads them
in every process; a module of verl is patched at its first import.
Subclasses through verl's interfaces
(trainer, replay buffer, task runner, rollout workers and server, reward and agent loop, model
merger) are not patches: each lists its overrides in its docstring.

Five other files change foreign code:

prompt_aug/grading/worker.py, the grader's sandbox, which imports nothing of recipe. It replaces the
two functions with which latex2sympy reads a number, because they call exec and eval and turn
0.333333 into 1/3, and the one with which sympy compiles a polynomial from its text.

prompt_aug/prepare/sources.py sets HF_HUB_OFFLINE in huggingface_hub and datasets if the hub does
not answer: both read the variable only at import and would retry for a minute.

recipe/actor/engine.py replaces verl's division into micro-batches for the actor on a CPU, which
scatters the rows of a question; the function is called by its name in verl's module.

recipe/actor/prefix_tree.py replaces transformers' attention "sdpa" for the actor on a CPU: it also
takes a mask for each block of a row, and without blocks it calls the original.

recipe/config/base.py sets yaml's parser in C for hydra and OmegaConf while they compose.
"""
