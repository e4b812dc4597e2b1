"""How the laboratory draws responses of a toy model, against transformers' generate.

    OMP_NUM_THREADS=1 python scripts/bench_sampling.py RUN [--step 120] [--questions 16]

RUN is a run folder in a toy world with exported checkpoints (`python -m recipe.export RUN`). Test
questions of its world, 8 x 32 samples at temperature 1, as the laboratory measures; both ways in
turns, with the same random numbers. Says how many responses are the same, how many distinct.
Seconds are CPU seconds of the process; the ratio is of the totals.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.nn.utils.rnn import pad_sequence

from prompt_aug.commands import make_parser
from prompt_aug.templates import load_bank, render
from recipe.run.folder import RunFolder, numbered
from recipe.toy.build import settings_of
from recipe.toy.measure import Sampler
from recipe.toy.problems import problems, to_question
from recipe.toy.sampling import draw

SAMPLES, AT_ONCE, TEMPLATE = 32, 8, "qwen-math"


def generate(sampler: Sampler, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The plain way."""
    made = sampler.model.generate(
        **inputs,
        **{"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
        num_return_sequences=SAMPLES,
        max_new_tokens=sampler.max_tokens,
        eos_token_id=sampler.tokenizer.eos_token_id,
        pad_token_id=sampler.tokenizer.pad_token_id,
    )
    return made[:, inputs["input_ids"].shape[1] :]


def once(sampler: Sampler, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The laboratory's way."""
    end, pad = sampler.tokenizer.eos_token_id, sampler.tokenizer.pad_token_id
    how = {"samples": SAMPLES, "temperature": 1.0, "max_tokens": sampler.max_tokens}
    return draw(sampler.model, **inputs, **how, end=end, pad=pad)[0]


def prompts(run: Path, questions: int) -> tuple[list[str], int]:
    """Test questions of the run's world, and the most tokens of a response."""
    config: Any = OmegaConf.load(RunFolder(run).config)
    bank = load_bank(config.recipe.augment.bank)
    made = settings_of(config, bank)
    chosen = problems(made.world, "test", questions, made.seed)
    texts = [to_question(made.world, p, "test", made.seed).text for p in chosen]
    return texts, int(config.data.max_response_length)


def compare(sampler: Sampler, texts: list[str]) -> str:
    """Both ways over all questions, in turns."""
    spent, same, distinct, rows = {generate: 0.0, once: 0.0}, 0, 0, 0
    for start in range(0, len(texts), AT_ONCE):
        asked = [
            render(load_bank()[TEMPLATE], text, sampler.tokenizer).text
            for text in texts[start : start + AT_ONCE]
        ]
        inputs = sampler.encoded(asked)
        drawn = {}
        for way in spent if start % (2 * AT_ONCE) else reversed(spent):
            torch.manual_seed(start)
            began = time.process_time()
            drawn[way] = way(sampler, inputs)
            spent[way] += time.process_time() - began
        # Rows that part ways may end later: both get the same width before they are compared.
        both = pad_sequence([ids.T for ids in drawn.values()], padding_value=-1)
        same += int((both[:, 0] == both[:, 1]).all(0).sum())
        rows += len(drawn[once])
        distinct += len(drawn[once].unique(dim=0))
    return (
        f"generate {spent[generate]:.1f} s, once per distinct prefix {spent[once]:.1f} s, ratio "
        f"{spent[once] / spent[generate]:.2f}; {same} of {rows} the same, {distinct} distinct"
    )


def main() -> int:
    parser = make_parser(
        "python scripts/bench_sampling.py",
        __doc__,
        example="python scripts/bench_sampling.py runs/laboratory/together/grpo-1000-e6a34a",
    )
    parser.add_argument("run", type=Path, help="a run folder with exported checkpoints")
    parser.add_argument("--step", type=int, nargs="+", help="default: all that are exported")
    parser.add_argument("--questions", type=int, default=16, help="of the test questions")
    given = parser.parse_args()
    # Without the start model, of which no copy is there.
    exported = {s: f for s, f in numbered(RunFolder(given.run).exports, "step_").items() if s}
    steps = given.step or list(exported)
    if not steps or set(steps) - exported.keys():
        wrong = f"--step {steps}" if steps else str(given.run)
        parser.error(f"{wrong}: exported by `recipe.export {given.run}` are {list(exported)}")
    texts, most = prompts(given.run, given.questions)
    for step in steps:
        sampler = Sampler(exported[step], max_tokens=most, seed=0)
        print(f"step {step}: {compare(sampler, texts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
