"""Findings in launch scripts: keys, values, dead keys; and scripts that are fine or skipped."""

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipe import lint
from recipe.config.compose import compose_config
from recipe.config.verl import MODEL, REF, A, R

pytestmark = pytest.mark.config
MAIN = "python3 -m verl.trainer.main_ppo"
HEAD = f"set -x\nsteps=3\nn=${{N:-8}}\n{MAIN} "
OWN_MICRO = f"{REF}.log_prob_micro_batch_size_per_gpu=2 {A}.use_kl_loss=True"
Findings = Callable[..., list[str]]


@pytest.fixture
def findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Findings:
    """The lines about a file, without its path; the exit code is 1 if there are any findings."""

    def of(text: str, name: str = "a.sh") -> list[str]:
        path = tmp_path / name
        path.write_text(text, newline="")
        code = lint.main([str(path)])
        lines = capsys.readouterr().out.replace(str(path), "").splitlines()
        said = [line for line in lines if not line.startswith((": nothing to check", ": skipped"))]
        assert code == bool(said)
        return said

    return of


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("data.train_batch_sise=8", "data.train_batch_sise=8: no key"),
        (f"{R}.n_val=2", f"set {R}.val_kwargs.n"),
        (f"{A}.policy_loss=plusplus", "policy_loss=plusplus: a section of keys"),
        (f"{A}.policy_loss=0", "policy_loss=0: a section of keys"),
        (f"{A}.policy_loss._target_=my.Loss {A}.policy_loss.alpha=2", None),  # a field of its own
        (f"{A}.policy_loss.alpha=2", f"{A}.policy_loss.alpha=2: no key"),
        (f"+{A}.policy_loss.tau_pos=2", f"did you mean {A}.tau_pos"),
        ("+trainer.clip_grad=1", "no key 'trainer.clip_grad'"),
        ("+trainer.wandb_proxy=http://x", None),  # read as config["trainer"].get
        ("+data.mm_processor_kwargs.x=1", None),
        ("+data.foo_kwargs.x=1", "no key 'data.foo_kwargs.x'"),
        ("+reward_model.reward_kwargs.max_resp_len=9", "+reward.reward_kwargs.max_resp_len"),
        ("reward_model.overlong_buffer.len=9", "+reward.reward_kwargs.overlong_buffer_cfg.len"),
        (f"{A}.checkpoint.contents=[model]", f"set {A}.checkpoint.save_contents"),
        ("+reward.reward_kwargs.x=1 +reward.custom_reward_function.reward_kwargs.x=1", None),
        (f"+{R}.limit_images=1 +trainer.remove_previous_ckpt_in_save=True", None),
        ("+ray_kwargs.ray_init.address=auto +data.apply_chat_template_kwargs.x=1", None),
        ("+distillation.teacher_models.a.key=b", None),
        ("trainer.v1={} actor_rollout_ref.rollout.engine_kwargs={}", None),
        (f"{R}.top_p=$steps", f"{R}.top_p=3: Input should be less"),
        (f"{A}.kl_loss_coef=0.1", f"no effect with {A}.use_kl_loss=false"),
        ("critic.model.path=m algorithm.adv_estimator=grpo", "no effect with critic.enable=null"),
        ("trainer.critic_warmup=5 algorithm.adv_estimator=grpo", "no effect with critic.enable"),
        (f"{A}.kl_loss_type=k1 {A}.use_kl_loss=true", f"{A}.kl_loss_type=k1: as a loss"),
        (f"{A}.kl_loss_type=kl {A}.use_kl_loss=true", f"{A}.kl_loss_type=kl: as a loss"),
        ("critic.use_dynamic_bsz=False critic.enable=true", "no effect: verl's V1"),
        (f"{R}.val_kwargs.do_sample=True", f"no effect. Set {R}.val_kwargs.temperature"),
        (f"{R}.enable_rollout_routing_replay=True", "no effect: FSDP actors ignore it"),
        ("trainer.default_hdfs_dir=hdfs://x", "no effect: verl 0.9.1 does not copy"),
        (f"{OWN_MICRO} {A}.use_dynamic_bsz=True", f"no effect with {REF}.log_prob_use_dynamic_bsz"),
        # Negative controls
        (f"{OWN_MICRO} {A}.use_dynamic_bsz=True {REF}.log_prob_use_dynamic_bsz=False", None),
        ("critic.enable=true critic.use_dynamic_bsz=True", None),
        (f"{REF}.log_prob_max_token_len_per_gpu=9 {A}.use_dynamic_bsz=False {OWN_MICRO}", None),
        (f"{MODEL}.lora_rank=0 {MODEL}.lora_alpha=0", None),
        ("data.train_batch_size=$UNSET trainer.total_training_steps=$((2 * steps))", None),
        (f"{A}.use_kl_loss=False {A}.kl_loss_coef=0.1  # trainer.typo=1", None),
        (f"{A}.use_kl_loss=True {A}.kl_loss_type=k1+", None),
        (f"{A}.use_kl_loss=False {A}.kl_loss_type=kl", None),
        ("trainer.critic_warmup=0 algorithm.adv_estimator=grpo", None),
        ("model_engine=megatron trainer.typo=1", None),
    ],
)
def test_findings(settings: str, message: str | None, findings: Findings) -> None:
    said = findings(HEAD + " \\\n    ".join(["", *settings.split(" ", 1)]) + "\n")
    assert (message is None) == (said == [])
    assert message is None or (message in said[0] and said[0].startswith(":5: "))


TYPO = "trainer.nnodez=1"
SFT = "torchrun -m verl.trainer.fsdp_sft_trainer optim.lr=1e-5 model.partial_pretrain=m\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        # quotes
        (f'{MAIN} "trainer.nnodes=1" "{TYPO}"', [1]),
        (f"{MAIN} 'trainer.nnodes=1' 'trainer.total_epochs=abc'", [1]),
        (f'{MAIN} trainer.project_name="\\"a #3\\"" {TYPO}', [1]),
        (f"{MAIN} trainer.project_name=\"'run #3'\" trainer.nnodes=1", []),
        # arrays, variables, defaults
        (f'ARGS=(\n  trainer.nnodes=1\n  \'{TYPO}\'\n)\n{MAIN} "${{ARGS[@]}}" "$@"', [3]),
        (f'ARGS=()\nARGS+=("{TYPO}")\n{MAIN} "${{ARGS[@]}}"', [2]),
        (f'ALL="trainer.nnodes=1"\nALL+=" {TYPO}"\n{MAIN} $ALL', [2]),
        (f'ALL="trainer.nnodes=1\n  {TYPO}"\n{MAIN} $ALL', [2]),
        (f"{MAIN} {R}.top_p=${{P:-3}} trainer.nnodes=${{N:=abc}}", [1, 1]),
        (f'ALL="trainer.nnodes=1 \\\n  {TYPO}"\n{MAIN} $ALL', [2]),
        (f'P="run #3"\n{MAIN} trainer.project_name=$P', [2]),
        (f'P="run 3"\n{MAIN} "trainer.project_name=$P"', []),
        (f"P=.5\nP=3\n{MAIN} {R}.top_p=$P", [3]),
        (f"P=3\n{MAIN} {R}.top_p=$(cat p) {R}.n=$P-$Q/$P", []),
        (f"if [ $1 ]; then P=3; else P=2; fi\n{MAIN} {R}.top_p=$P", []),
        (f"for p in 2 .5; do\n{MAIN} {R}.top_p=$p\ndone", []),
        (f'P=3\nrun() {{\n  local P=$1; shift\n  {MAIN} {R}.top_p=$P {TYPO} "$@"\n}}', [4]),
        (f'if [ $1 ]; then\n  M=({TYPO})\nfi\n{MAIN} "${{M[@]}}"', [2]),
        (f'CMD=({MAIN})\nCMD+=({TYPO})\n"${{CMD[@]}}"', [2]),
        (f"P=.5\nf() {{\n  local P=3\n}}\n(P=3)\nx=$(P=3; echo 1)\n{MAIN} {R}.top_p=$P", []),
        # several commands, other programs, texts that are scripts
        (f"grep -r verl.trainer.main_ppo . {TYPO}", []),
        (f"python3 -c 'import verl.trainer.main_ppo as m; m.main()' {TYPO}", []),
        (f"{MAIN} --cfg job trainer.nnodes=1", []),
        (f"{MAIN} algorithm.adv_estimator=gae critic.model.path=m\n{MAIN} trainer.nnodes=1", []),
        (f"{MAIN} {A}.use_kl_loss=True\n{MAIN} {A}.kl_loss_coef=0.1", [2]),
        (SFT + f"{MAIN} {TYPO}", [2]),
        (f"{MAIN} trainer.nnodes=1\npython -m verl.trainer.main_eval data.path=x", []),
        (f"ray job submit --working-dir . -- {MAIN} {TYPO} 2>&1 | tee log", [1]),
        (f"python3 -u /x/verl/trainer/main_ppo.py {TYPO} &", [1]),
        (f"python3 -m recipe.dapo.main_dapo {TYPO} critic.model.path=m", [1]),
        (f"python -m recipe.train ppo {TYPO} critic.optim.lr=1e-4 --dry-run", [1]),
        (f"cat > job.sh <<'JOB'\n{MAIN} \\\n    {TYPO}\nJOB\nsbatch job.sh", [3]),
        (f"P=3\nsbatch <<JOB\n{MAIN} {R}.top_p=$P\nJOB", [3]),
        (f'bash -c "cd x && {MAIN} \\\n  {TYPO}"', [2]),
        (f'echo "{MAIN} {TYPO}"', []),
        (f": <<'END'\n{MAIN} {TYPO}\nEND\n: '{MAIN} {TYPO}'", []),
        (f"C=\"{MAIN} trainer.project_name='a b' \\\n  {TYPO}\"\neval $C", [2]),
        (f'A="\n  {TYPO} `#why`\n"\n{MAIN} $A', [1]),  # the grammar cannot parse it
        (f"python - <<'PY'\ndf.columns=[1]\nPY\n{MAIN} trainer.nnodes=1", []),
        # hydra's syntax
        (f"{MAIN} ~data.train_filez ~data.train_files", [1]),
        (f"{MAIN} '{A}.optim={{lr: 1e-6, betaz: [0.9, 0.99]}}'", [1]),
        (f"{MAIN} '{A}.optim={{lr: 7}}'", [1]),
        (f"{MAIN} trainer.nnodes = 2", [1, 1, 1]),
        (f"{MAIN} trainer.logger=console,wandb", [1]),
        (f"{MAIN} critic@critic=dp_critic --config-dir /x trainer.nnodes=1", []),
        (f"{MAIN} --config-name my_trainer {TYPO}", []),
        (f"{MAIN} -cd /x {TYPO}", []),
        (f'E=()\nF=""\n{MAIN} "${{E[@]}}" "$F" {TYPO} data=legacy_data', [3]),
        (f"{MAIN} --config-name ppo_trainer.yaml {TYPO}", [1]),
        # what ends a command
        (f"{MAIN} \\\n  # {TYPO} \\\n  trainer.nnodes=1 \\\n  trainer.total_epochs=3", [3]),
        (f"{MAIN} \\\n  trainer.nnodes=1 \\ \n  trainer.total_epochs=3", [3]),
        (f"{MAIN} \\\n  trainer.nnodes=1\n  trainer.total_epochs=3 \\\n  {TYPO}", [3, 4]),
        (f"{MAIN} \\\n\n  trainer.nnodes=1", [3]),
        (f"{MAIN} \\\r\n  trainer.nnodes=1 \\\r\n  trainer.total_epochs=3\r\n", [1]),
    ],
)
def test_scripts_are_read_as_the_shell_reads_them(
    text: str, lines: list[int], findings: Findings
) -> None:
    said = findings(text)
    assert sorted(int(line.split(":")[1]) for line in said) == lines, said


def test_files_without_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = {"binary": b"\x00\xff", "bad.yaml": b"a: [1\nb: }"}
    others = {
        "latin.sh": b"# \xe9\nls\n",
        "a.md": b"It's `x`",
        "b.yaml": b"nav: [a]",
        "c.yaml": b"[1]",
    }
    for name, content in (broken | others).items():
        (tmp_path / name).write_bytes(content)
    for name in ("gone.sh", ".", *broken, *others):
        assert lint.main([str(tmp_path / name)]) == (name not in others), name
        output = capsys.readouterr().out
        assert output.count("\n") == 1 and ("nothing to check" in output) == (name in others), name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.yaml",
            "a0: &a0 [x, x]\n"
            + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)),
        ),
        ("b.yaml", "a: &a {b: *a}\n"),
        ("c.yaml", "a: " + "[" * 5000),
        ("d.sh", MAIN + "".join(f" trainer.k{i}=1" for i in range(200_000))),
        ("e.sh", MAIN + "".join(f" a.b{i}=1" for i in range(20_000))),
        ("f.sh", "A=x\n" + 'A="$A$A"\n' * 60 + f"{MAIN} trainer.k=$A trainer.nnodez=1"),
        (
            "g.sh",
            "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(40)) + f"f0\n{MAIN} a.b=1",
        ),
        ("h.sh", f'X=\'eval "$X" "$X" {MAIN} a.b=1\'\neval "$X"'),
        ("i.sh", "(" * 5000 + MAIN),
        ("j.sh", "true && " * 5000 + MAIN + " a.b=1"),
    ],
)
@pytest.mark.timeout(60)
def test_hostile_files_end(name: str, text: str, findings: Findings) -> None:
    assert len(findings(text, name)) < 10


def test_a_text_that_cannot_be_parsed_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := tmp_path / "a.sh").write_text(f"A=1\nB=${{U:-x|y}}\n{MAIN} trainer.nnodes=$A\n")
    assert lint.main([str(path)]) == 0
    assert f"{path}:2: cannot be parsed" in capsys.readouterr().out


@pytest.mark.parametrize("example", ["toy", "ppo", "prompt_aug"])
def test_the_configuration_of_a_run_has_no_finding(example: str, findings: Findings) -> None:
    config = (
        compose_config("toy", ["method=ppo"]) if example == "ppo" else compose_config(example, [])
    )
    text = OmegaConf.to_yaml(config, resolve=True)
    assert findings(text, "config.yaml") == []
    text = text.replace("ppo_mini_batch_size:", "ppo_mini_batch_sise:", 1)
    assert len(findings(text, "config.yaml")) == 1


def test_a_configuration_and_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("defaults: [recipe]\nrecipe:\n  name: x\n  sede: 3\n")
    assert lint.main([str(path), "recipe.seed=x"]) == 1
    output = capsys.readouterr().out
    assert f"{path}:4: recipe.sede=3: no key 'recipe.sede', did you mean recipe.seed?" in output
