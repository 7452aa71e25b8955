#!/usr/bin/env python3
"""Checks that transformers and PEFT read what `runner sweep --save` writes, and compute the same loss from it.

    cargo build --release
    python tests/reference/saved.py

Trains each committed checkpoint of `vectors/hugging_face` for 4 steps, with all its parameters and with LoRA, and saves it.
The loss of step 5 of a longer run is that of the saved parameters. Needs torch, transformers, peft, accelerate.
"""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

RUNNER = "target/release/runner"
MODELS = Path(__file__).parent.resolve() / "vectors/hugging_face"
STEPS = 4
TOLERANCE = 1e-5

EXPERIMENT = """
[model.hf]
config = "{folder}/config.json"
weights = "{weights}"
context = 16
dropout = false

[data.text]
paths = ["{text}"]

[train]
batch_size = 4
optimizer.adamw = {{ lr = 1e-2 }}

[measure]
warmup_steps = 0
steps = {steps}

[strategies.full]

[strategies.lora]
lora = {{ rank = 2, alpha = 6, targets = ["*"] }}
"""


def swept(work, name, folder, steps, option):
    """The folders that `option` writes, by strategy."""
    index = folder / "model.safetensors.index.json"
    weights = index if index.exists() else folder / "model.safetensors"
    experiment = work / f"{name}.toml"
    text = EXPERIMENT.format(folder=folder, weights=weights, text=Path(__file__).resolve(), steps=steps)
    experiment.write_text(text)
    command = [RUNNER, "sweep", experiment, "--device", "cpu", "--out", work / "results", option, work / name]
    subprocess.run(command, check=True, capture_output=True)
    runs = {}
    for run in (work / name).iterdir():
        lines = (run / "run.toml").read_text().splitlines()
        strategy = next(line for line in lines if line.startswith("[strategies."))
        runs[strategy.removeprefix("[strategies.").rstrip("]")] = run
    return runs


def loss_of(model, dumped):
    """The loss of the model on the batch of the last step."""
    batches = load_file(dumped / "batches.safetensors")
    tokens, targets = (batches[name][STEPS].long() for name in ("tokens", "targets"))
    with torch.no_grad():
        logits = model(tokens).logits
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


def main():
    wrong = 0
    for folder in sorted(path for path in MODELS.iterdir() if path.is_dir()):
        with tempfile.TemporaryDirectory() as work:
            work = Path(work)
            saved = swept(work, "saved", folder, STEPS, "--save")
            dumped = swept(work, "dumped", folder, STEPS + 1, "--dump")
            for strategy, run in saved.items():
                if strategy == "full":
                    model, report = AutoModelForCausalLM.from_pretrained(run, output_loading_info=True, dtype=torch.float32)
                    unexpected = {key: names for key, names in report.items() if names}
                    assert not unexpected, unexpected
                else:
                    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                    model = PeftModel.from_pretrained(base, run)
                with open(dumped[strategy] / "steps.csv", newline="") as file:
                    expected = float(list(csv.DictReader(file))[STEPS]["loss"])
                found = loss_of(model.eval(), dumped[strategy])
                error = abs(found - expected) / expected
                wrong += error > TOLERANCE
                print(f"{folder.name} {strategy}: {found:.6f}, {error:.1e} from the run's", flush=True)
    sys.exit(wrong > 0)


main()
