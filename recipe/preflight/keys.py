"""Key table: which configuration keys of verl 0.9.1 have no effect on this project's path.

    python -m recipe.preflight.keys            print the reader of every key, write keys.yaml anew

Every leaf key of verl's composed configuration has a row. Its text is the reader, ``file:line`` in
the verl package, or ``no effect``, or the row of `by_hand.yaml` that matches it. `keys.yaml` has
the rows that have to keep their defaults. A reader is an access ``config.actor.clip_ratio``,
``.get("clip_ratio")`` or ``["clip_ratio"]`` in a module that this project runs (`OFF` names the
others). Its parent is the key's own section or a variable that holds it (`SECTIONS`). The search
is by name, so it can find the reader of another section's key of the same name. `by_hand.yaml`
corrects the rows that were found wrong.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path

import yaml

from prompt_aug.base.files import write_text
from recipe.config.base import base, flat
from recipe.config.verl import KEYS

BY_HAND = KEYS.with_name("by_hand.yaml")
NONE = "no effect"
FIXED = (NONE, "unsupported")  # starts of the texts of keys that must keep their defaults
# Modules of verl that its V1 trainer does not run with FSDP and vLLM.
OTHER = re.compile(
    r"megatron|mcore|sglang|trtllm|mindspeed|veomni|torchtitan|automodel|fully_async|one_step_off|"
    r"separation/|sft_|main_ppo_v0|main_eval|main_generation|model_merger|tinker|npu|ascend|/tests/|"
    r"^tools/|diffus|hccl|hf_rollout|workers/config/(?!model|optimizer)|fsdp_turbo"
)
# And that no process of this project runs: other trainers, rewards and datasets.
OFF = re.compile(
    r"teacher_loop|distillation|reward_model/|separate_async|colocate_async|kimi|mooncake|nixl|"
    r"schemas|glm4v|workers/reward_manager/"
)
# Names of variables that hold a section, and sections whose key is another word.
SECTIONS = {
    "engine": "fsdp_config",
    "fsdp": "fsdp_config",
    "optimizer": "optim",
    "rollout_corr": "rollout_correction",
    "sandbox": "sandbox_fusion",
}
WHOLE = {"config", "cfg", "args", "conf", "kwargs"}  # variables that may hold any section
Access = tuple[tuple[str, ...], str, int]  # parents, file, line


def section(name: str) -> str:
    """Return the section that a variable's name stands for: ``rollout_config`` -> ``rollout``."""
    if name == "fsdp_config":
        return name
    short = re.sub(r"_(config|cfg)$|^_+", "", name)
    return SECTIONS.get(short, short)


def chain(node: ast.AST) -> list[str]:
    """Return the names of an access: ``self.config.get("a").b`` -> self, config, a, b."""
    match node:
        case ast.Attribute(value=inner, attr=name):
            return [*chain(inner), name]
        case ast.Subscript(value=inner, slice=ast.Constant(value=str(name))):
            return [*chain(inner), name]
        case ast.Call(
            func=ast.Attribute(value=inner, attr="get" | "pop"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [*chain(inner), name]
        case ast.Call(
            func=ast.Attribute(attr="select") | ast.Name(id="getattr"),
            args=[inner, ast.Constant(value=str(name)), *_],
        ):
            return [*chain(inner), *name.split(".")]
        case ast.Name(id=name):
            return [name]
    return []


def accesses(sources: Mapping[str, str]) -> dict[str, list[Access]]:
    """Return last name -> accesses of `sources` (file -> text); stores do not count."""
    by_name: dict[str, list[Access]] = defaultdict(list)

    def walk(node: ast.AST, file: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef) and child.name == "RayPPOTrainer":
                continue  # verl's older trainer, beside functions that the new one uses
            if not isinstance(getattr(child, "ctx", None), ast.Store):
                names = chain(child)
                if len(names) > 1 and isinstance(child, ast.Attribute | ast.Subscript | ast.Call):
                    by_name[names[-1]].append((tuple(names[:-1]), file, child.lineno))
            walk(child, file)

    for file, text in sorted(sources.items()):
        walk(ast.parse(text), file)
    return by_name


def reader(key: str, by_name: Mapping[str, list[Access]]) -> str | None:
    """Return ``file:line`` of the access that has most of the key's sections; None without any."""
    *sections, leaf = key.split(".")
    best, place = 0, None
    for parents, file, line in by_name.get(leaf, ()):
        names = [section(name) for name in parents if name != "self"]
        score = 0
        for name, key_section in zip(reversed(names), reversed(sections), strict=False):
            if name not in (key_section, section(key_section)):
                break
            score += 2
        own = not names and file.startswith("workers/config/")  # self of a section's class
        if not score and (own or (names and names[-1] in WHOLE)):
            score = 1
        if score > best:
            best, place = score, f"{file}:{line}"
    return place


def build() -> dict[str, str]:
    """Return key -> its reader, or why it has to keep its default, from the installed verl."""
    import verl

    root = Path(verl.__file__).parent
    sources = {
        name: path.read_text(encoding="utf-8")
        for path in root.rglob("*.py")
        if not OTHER.search(name := str(path.relative_to(root)))
    }
    everywhere, defaults = accesses(sources), dict(flat(base("ppo_trainer")))
    here = {
        name: [access for access in listed if not OFF.search(access[1])]
        for name, listed in everywhere.items()
    }
    corrections = yaml.safe_load(BY_HAND.read_text(encoding="utf-8"))  # the last match applies
    # An interpolation such as ${oc.select:actor_rollout_ref.actor.x,1} reads that key.
    passed = {
        named: f"default of {key}"
        for key, default in defaults.items()
        for named in re.findall(r"[\w.]+", str(default) if "${" in str(default) else "")
    }
    rows = {}
    for key in sorted(defaults):
        texts = [text for pattern, text in corrections.items() if fnmatchcase(key, pattern)]
        place = reader(key, here) or passed.get(key)
        elsewhere = (
            "unsupported: nothing reads it on this path" if reader(key, everywhere) else NONE
        )
        rows[key] = texts[-1] if texts else place or elsewhere
    return rows


def fixed(rows: Mapping[str, str]) -> dict[str, str]:
    """Return the rows of keys that have to keep their defaults.

    A section stands for its keys if all have the same text.
    """
    texts: dict[str, set[str]] = defaultdict(set)
    for key, text in rows.items():
        for name in () if key.endswith("._target_") else accumulate(key.split("."), "{}.{}".format):
            texts[name].add(text)
    alike = {n: x.pop() for n, x in texts.items() if len(x) == 1 and min(x).startswith(FIXED)}
    return {n: text for n, text in alike.items() if n.rpartition(".")[0] not in alike}


def main() -> None:
    rows = build()
    for key, text in rows.items():
        print(f"{key}: {text}")
    head = "# Written by python -m recipe.preflight.keys from verl's source and by_hand.yaml.\n"
    write_text(KEYS, head + yaml.safe_dump(fixed(rows), width=1000))
    print(f"{KEYS}: {len(fixed(rows))} of {len(rows)} keys")


if __name__ == "__main__":
    main()
