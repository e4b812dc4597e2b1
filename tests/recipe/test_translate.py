"""Launch scripts as examples: how the shell's values are read, what becomes of each setting."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prompt_aug.questions import make_question, write_parquet
from recipe.config.compose import compose_config
from recipe.config.verl import A, R
from recipe.errors import ConfigError
from recipe.script import commands, unknown
from recipe.start.rules import Setup
from recipe.translate import Translation, translate

MAIN = "python3 -m verl.trainer.main_ppo"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=$((2 * (3 + 4)))\nB=$((A / 5 - $A))\nx $A $B $((A+U))", ["14", "-12", unknown("U")]),
        ("A=$((9999999999 * 9999999999))\nx $A $((1/0))", [unknown("A"), unknown()]),
        ('A=${B:-"${C:-3}/y"}\nx $A "$HOME/z" $(pwd)', ["3/y", "/home/z", "/here"]),
        ("A=~/a\nB='~/b'\nx $A $B a.c=~/c", ["/home/a", "~/b", "a.c=~/c"]),
        ('x "$@" $* "${@:2}" a="$@"', ["a="]),
        ('f() {\n  x "$@" "a=$1"\n}', [unknown(), f"a={unknown('1')}"]),
        ("N=$(nproc)\nx $N ${SET}", [unknown("N"), "given"]),
        ("SET=own\nHOME=own\nx $SET $HOME", ["given", "own"]),
        ('if [ "$SET" = given ]; then A=1; else A=2; fi\nx $A', ["1"]),
        ("if [ -n $U ]; then A=1; elif [[ $SET != 1 ]]; then A=2; fi\nx $A", ["2"]),
        ("if [[ $SET == g* ]]; then A=1; else A=2; fi\nx a=$A", [f"a={unknown('A')}"]),
        *(
            (f"A=1\nif {test}; then A=2; fi\nx a=$A", [f"a={unknown('A')}"])
            for test in (
                *("[[ $SET =~ g ]]", "[[ $SET < h ]]", "[[ h > $SET ]]", "[[ $SET == give? ]]"),
                *("[[ $SET == [g]iven ]]", "[[ $SET == @(given|b) ]]"),
            )
        ),
        ("A=1\nshopt -s nocasematch\nif [[ a = A ]]; then A=2; fi\nx a=$A", [f"a={unknown('A')}"]),
        ("cd /d\nx $PWD $(pwd)", ["/d", "/d"]),
        ("cd /d\ncd e\nx a=$PWD $(pwd)", [f"a={unknown('PWD')}", unknown()]),
        ("if [ $1 ]; then cd /d; fi\nx a=$PWD $(pwd)", [f"a={unknown('PWD')}", unknown()]),
        ("f() { A=2; L+=(b); }\nA=1\nL=(a)\nf\nx a=$A ${L[@]}", [f"a={unknown('A')}", "a", "b"]),
        ("f() { local A=2; }\nA=1\nf\nx a=$A", ["a=1"]),
        ("if [ -f y ]; then A=1; fi\nx a=$A", [f"a={unknown('A')}"]),
        ("for s in 1 2; do x $s; done", [unknown("s")]),
        ("A=1\nunset A\nx ${A:-2}", ["2"]),
        (
            "A=1 B=1 C=1 D=1\nread -r A < f\nlet B+=1\nprintf -v C 2\n((D++))\nx =$A =$B =$C =$D",
            [f"={unknown(name)}" for name in "ABCD"],
        ),
        ("A=1\nmapfile -t A < f\nx $A", [unknown("A")]),
        ("A=(1 2)\nA[0]=3\nx ${A[@]}", [unknown("A")]),
        ("A=1\nif ((A == 1)); then B=$((A <= 2)); fi\nx $A", ["1"]),
        ("for ((i = 0; i < 2; i++)); do x a=$i; done", [f"a={unknown('i')}"]),
        ('set -- a "b c"\nx "$@"', ["a", "b c"]),
        # Blanks that the grammar gives to the node behind them
        (
            'A=1\nx "$A $A" "$A $((A+1))" " $A" "é $A \\\n  $A\n$A"',
            ["1 1", "1 2", " 1", "é 1   1\n1"],
        ),
        ('A="a $U"\nB="$A $(pwd) ${SET}"\nx $B', ["a", unknown("U"), "/here", "given"]),
        ("A=(1 2)\nx ${#A[@]} a=$# ${#U[@]} ${#A}", ["2", "a=0", unknown("U"), unknown()]),
        ("A=1\nwhile [[ $# -gt 0 ]]; do A=$2; done\nx a=$A", ["a=1"]),
        ("A=1\nwhile [ 1 -gt 2 ]; true; do A=2; done\nx a=$A", [f"a={unknown('A')}"]),
        ("f() {\n  A=1\n  while [ $# -gt 0 ]; do A=$2; done\n  x a=$A\n}", [f"a={unknown('A')}"]),
        # An integer that a loop or a later line changes, lengths that a pattern or a branch decides
        ("N=0\nfor s in 1 2; do if [ $N -gt 0 ]; then A=1; else A=2; fi; N=1; done\nx $A", None),
        ("N=8\nf() { if [ $N -eq 4 ]; then A=1; else A=2; fi; }\nN=4\nf\nx $A", None),
        ("A=(d/*.parquet)\nx ${#A[@]}", [unknown("A")]),
        ("A=(1 2)\nunset 'A[0]'\nx ${#A[@]}", [unknown("A")]),
        ("A=(1)\nfor i in 1 2; do A+=(1); done\nx ${#A[@]}", [unknown("A")]),
        ('A="${U}${V}"\nif [ -z "$A" ]; then B=1; else B=2; fi\nx $B', ["1"]),
        ("while [ $# -gt 0 ]; do x a; done", ["a"]),
        ("if [ $# -gt 0 ]; then x a; fi", ["a"]),
        ('K=9\nif [ "$K" -gt 10 ]; then A=1; else A=2; fi\nx $A', ["2"]),
        ("A=$2\nB=${A}_b\nx $A $B", [unknown("A"), f"{unknown('A')}_b"]),
        ('A=${U:-["/b"]}\nx $A', ["[/b]"]),
        ('A=()\nB=\nx "${A[@]}" $B "$B" "${A[@]:-2}"', ["", "2"]),
    ],
)
def test_values_of_a_script(text: str, words: list[str] | None) -> None:
    """None: no word is sure."""
    environment = {"HOME": "/home", "PWD": "/here"}
    found = commands(text, re.compile("x"), environment, {"SET": "given"})
    (command,) = (x for x in found if x.words[0].text == "x")
    if words is None:
        assert not any(word.sure for word in command.words[1:])
    else:
        assert [word.text for word in command.words[1:]] == words


SETTINGS = f"""\
algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False data.truncation=left \\
data.train_files=[{{here}}/t.parquet] data.val_files={{here}}/v.parquet data.train_batch_size=4 \\
data.max_prompt_length=64 data.max_response_length=32 data.filter_overlong_prompts=True \\
data.seed=7 actor_rollout_ref.model.path=m {A}.ppo_mini_batch_size=4 {A}.grad_clip=0.5 \\
{A}.ppo_micro_batch_size=32 {A}.use_kl_loss=False {A}.kl_loss_coef=0.01 {A}.clip_ratio_high=0.3 \\
{R}.n=5 {R}.n_val=2 {R}.name=sglang custom_reward_function.path={{here}}/r.py \\
actor_rollout_ref.ref.megatron.seed=1 reward_model.reward_manager=dapo reward_model.enable=False \\
+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True \\
+reward_model.reward_kwargs.overlong_buffer_cfg.len=8 \\
+reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \\
+reward_model.reward_kwargs.max_resp_len=32 critic.optim.lr=1e-5 \\
+custom_reward_function.reward_kwargs.right=2.0 trainer.n_gpus_per_node=2 trainer.total_epochs=3 \\
trainer.default_local_dir=$OUT
"""
TAKEN: dict[str, Any] = {  # of the script; all others are verl's or this project's defaults
    "recipe.advantage.name": "verl:grpo",
    "recipe.advantage.arguments": {"norm_adv_by_std_in_grpo": False},
    "recipe.seed": 7,
    "recipe.model_path": "m",
    "recipe.augment.style": "row",
    "recipe.augment.templates": ["qwen-math"],
    "recipe.reward.format_weight": 0.0,
    "recipe.reward.overlong": {"enable": True, "buffer": 8, "factor": 1.0},
    f"{A}.ppo_micro_batch_size_per_gpu": 16,
    f"{A}.optim.clip_grad": 0.5,
    f"{A}.clip_ratio_high": 0.3,
    f"{A}.loss_agg_mode": "token-mean",
    f"{R}.n": 5,
    f"{R}.val_kwargs.n": 2,
    f"{R}.max_model_len": 96,
    "algorithm.filter_groups.metric": "reward",
    "trainer.n_gpus_per_node": 2,
    "trainer.val_before_train": True,
    "trainer.total_epochs": 3,
    "trainer.total_training_steps": 1_000_000,  # the epochs end the run
    "trainer.v1.trainer_mode": "recipe_sync",
}
GROUPS = {
    "kept": f"{A}.clip_ratio_high {R}.n actor_rollout_ref.model.path trainer.n_gpus_per_node",
    "moved": f"{A}.ppo_micro_batch_size {A}.grad_clip {R}.n_val data.seed",
    "replaced": f"algorithm.adv_estimator {R}.name custom_reward_function.path "
    "reward_model.reward_manager trainer.default_local_dir data.filter_overlong_prompts",
    "dropped": f"data.truncation {A}.kl_loss_coef critic.optim.lr reward_model.enable "
    "actor_rollout_ref.ref.megatron.seed reward_model.reward_kwargs.max_resp_len",
    "default changed": f"{A}.entropy_coeff",
}
Translate = Callable[..., Translation]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Translate:
    """Return a function that translates `MAIN` with SETTINGS and more words."""
    monkeypatch.setenv("RECIPE_MACHINE", "gpu")
    (tmp_path / "r.py").write_text("def compute_score(): ...\n")
    for name, count in (("t", 10), ("v", 2)):
        rows = [
            make_question(text=f"{i}?", answers=["1"], source=f"own/{name}") for i in range(count)
        ]
        write_parquet(rows, tmp_path / f"{name}.parquet")

    def call(more: str = "", *overrides: str, script: str = "", **options: Any) -> Translation:
        path = tmp_path / "my run.sh"
        text = f"{MAIN} {SETTINGS.format(here=tmp_path).rstrip()} {more}\n"
        path.write_text(script or text)
        return translate(path, tmp_path / "example", list(overrides), **options)

    return call


def groups_of(made: Translation, config: Any) -> dict[str, list[str]]:
    """Group -> keys of a report."""
    groups: dict[str, list[str]] = {}
    for line in made.report(config).splitlines():
        if match := re.fullmatch(r"([\w ]+): \d+", line):
            rows = groups.setdefault(match[1], [])
        elif line.startswith("  "):
            rows.append(re.split("[=:]", line.strip())[0])
    return groups


def composed(made: Translation) -> Any:
    return compose_config(str(made.folder), made.overrides)


@pytest.mark.config
def test_every_setting_is_in_one_group_and_has_its_value(made: Translate, tmp_path: Path) -> None:
    script = made()
    config = composed(script)
    setup = Setup(config)
    assert {key: setup.get(key) for key in TAKEN} == TAKEN
    score = f"{tmp_path}/r.py:compute_score(right=2.0)"
    assert config.recipe.reward.verifiers == {"own/t": score, "own/v": score}
    assert config.recipe.name == "my_run"
    groups = groups_of(script, config)
    for name, keys in GROUPS.items():
        assert {*keys.split()} <= {*groups[name]}, (name, groups)
    written = re.findall(r"[+]?([\w.]+)=", SETTINGS)
    listed = [key for name, keys in groups.items() if name != "default changed" for key in keys]
    assert sorted(listed) == sorted(written)


@pytest.mark.config
def test_a_method_replaces_the_scripts_and_the_command_line_both(made: Translate) -> None:
    script = made("", "method=prompt_aug", f"{R}.n=6", f"{A}.clip_ratio_low=0.1")
    config = composed(script)
    augment, actor = config.recipe.augment, config.actor_rollout_ref.actor
    assert (augment.style, augment.system, augment.mode) == ("auto", "template", "per_question")
    assert augment.templates is None and config.recipe.reward.format_weight == 1.0
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.28)
    assert (config.recipe.advantage.name, config.critic.enable) == ("grpo", None)
    assert config.actor_rollout_ref.rollout.n == 6 and config.recipe.name == "my_run_prompt_aug"
    replaced = groups_of(script, config)["replaced"]
    assert {"algorithm.adv_estimator", f"{A}.clip_ratio_high", f"{R}.n"} <= {*replaced}


@pytest.mark.config
def test_single_keys_of_the_command_line(made: Translate) -> None:
    keys = ["recipe.advantage.name=maxrl", "recipe.augment.validation_template=qwen-math"]
    script = made("", *keys)
    config = composed(script)
    assert config.recipe.augment.style == "row"
    assert not config.recipe.advantage.arguments and config.critic.enable is None
    assert "algorithm.norm_adv_by_std_in_grpo" in groups_of(script, config)["replaced"]
    assert "critic.enable" not in made("", *keys, script=f"{MAIN} trainer.nnodes=1\n").content
    assert "recipe.augment.style" not in made("", "recipe.augment.mode=fixed").content


@pytest.mark.config
def test_what_follows_from_other_settings(made: Translate, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "algorithm.adv_estimator=gae algorithm.lam=0.9 custom_reward_function.path=null"
    config = composed(made(f"{words} trainer.total_training_steps=5"))
    assert (config.recipe.advantage.name, config.critic.enable) == ("verl:gae", True)
    assert config.recipe.advantage.arguments.lam == 0.9
    assert {*config.recipe.reward.verifiers.values()} == {
        "verl.utils.reward_score.default_compute_score"
    }
    assert (config.trainer.total_training_steps, config.trainer.total_epochs) == (5, 3)
    monkeypatch.setenv("RECIPE_MACHINE", "cpu")
    config = composed(made(f"{A}.strategy=fsdp {R}.enforce_eager=False"))
    assert config.trainer.n_gpus_per_node == 1 and config.actor_rollout_ref.rollout.enforce_eager
    assert config.actor_rollout_ref.actor.strategy == "fsdp2"


@pytest.mark.config
def test_the_model_of_the_command_line_and_values_in_other_units(made: Translate) -> None:
    script = made(f"{A}.loss_mode=kl_cov {A}.k_percent=0.2", "recipe.model_path=other")
    config = composed(script)
    assert config.actor_rollout_ref.model.path == config.recipe.model_path == "other"
    loss = config.actor_rollout_ref.actor.policy_loss
    assert (loss.loss_mode, loss.kl_cov_ratio) == ("kl_cov", 0.002)
    groups = groups_of(script, config)
    assert "actor_rollout_ref.model.path" in groups["replaced"]
    assert f"{A}.k_percent" in groups["moved"]


NO_LIMIT = "data.max_response_length=null"
OVERLONG = "reward_model.reward_kwargs.max_resp_len"
CHOICE = "actor@actor_rollout_ref.actor"
FORK = "algorithm.advantage=positive"


@pytest.mark.config
@pytest.mark.parametrize(
    ("more", "options", "named"),
    [
        (FORK, {}, ["algorithm.advantage=positive", "--drop algorithm.advantage"]),
        (FORK, {"drop": ["algorithm.advantage"]}, None),
        (f"{R}.multi_turn.enable=True", {}, ["makes one turn"]),
        ("reward_model.reward_manager=prime", {}, ["=prime: only null, register, naive"]),
        (f"{A}.policy_loss=plusplus", {}, ["policy_loss=plusplus: a section of keys"]),
        ("trainer.experiment_name=$(date) trainer.project_name=$P", {}, None),
        ("reward_model.enable=True", {}, ["no reward model"]),
        ("+reward_model.reward_kwargs.max_resp_len=64", {}, ["max_resp_len=64"]),
        ("custom_reward_function.path=gone.py", {}, ["gone.py: no such file"]),
        # All that is unknown and used, at once
        ("trainer.nnodes=$N data.seed=$S/$N", {}, ["--set N=VALUE", "--set S=VALUE"]),
        ("trainer.nnodes=$N", {"pairs": ["N=2"]}, None),
        ("trainer.nnodes=$N", {"pairs": ["N"]}, ["Write --set N=VALUE"]),
        ("", {"pairs": ["NODE=2"]}, ["--set NODE=2"]),
        ("", {"drop": ["data.sed"]}, ["--drop data.sed"]),
        ("", {"number": 2}, ["--command 2"]),
        ("data=foo", {}, ["data=foo: chooses another file"]),
        (f"{CHOICE}=megatron_actor", {}, ["my run.sh:1", f"--drop {CHOICE}"]),
        (f"{CHOICE}=megatron_actor", {"drop": [CHOICE]}, None),
        ("model_engine=dp", {}, None),
        ("--config-dir=/x", {}, ["--config-dir"]),
        ("--config-path /x", {}, ["--config-path"]),
        ('""', {}, None),
        ("", {"script": f'f() {{\n  {MAIN} "$@"\n}}\n'}, ["my run.sh:2: unknown arguments of a"]),
        # Later checks report these
        (f"data.max_prompt_length=1k {NO_LIMIT} trainer.nnodes=0", {"drop": [OVERLONG]}, None),
        ("trainer.nnodes=$(nproc)", {}, ["trainer.nnodes: the script computes it"]),
        ('"${MORE[@]}"', {}, ["--set MORE=VALUE"]),
        ("--config-name=ppo_megatron_trainer", {}, ["--config-name=ppo_megatron_trainer"]),
        (f"{A}.strategy=megatron", {}, ["strategy=megatron"]),
        ("data.seed=[1}", {}, ["not an override"]),
        (f"\n{MAIN}", {}, ["2 commands, lines 1, ", "--command N"]),
    ],
)
def test_what_stops_a_script(
    made: Translate, more: str, options: dict[str, Any], named: list[str] | None
) -> None:
    if named is None:
        made(more, **options)
        return
    with pytest.raises(ConfigError) as error:
        made(more, **options)
    assert [text for text in named if text not in str(error.value)] == []
    assert "OUT" not in str(error.value)  # feeds a key that is replaced


@pytest.mark.config
def test_the_command_of_several_and_of_another_trainer(made: Translate) -> None:
    two = f"{MAIN} trainer.nnodes=2\nray job submit -- {MAIN} trainer.nnodes=3\n"
    assert made(script=two, number=2).content["trainer.nnodes"] == 3
    with pytest.raises(ConfigError, match=r"It starts recipe\.spin\.main_spin"):
        made(script="python -m recipe.spin.main_spin a.b=1\n")
