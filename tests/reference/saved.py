#!/usr/bin/env python3
"""Checks that transformers and PEFT read what `runner sweep --save` writes, and compute the same loss from it.

    cargo build --release
    python tests/reference/saved.py

Trains each committed checkpoint of `vectors/hugging_face` for 4 steps, with all its parameters and with LoRA, and saves it.
The libraries train on from there: SGD has no state, so their losses are those of a longer run. Needs torch, transformers,
peft, accelerate.
"""

import csv
import json
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
MORE = 4
RATE = 0.1
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
optimizer.sgd = {{ lr = {rate} }}

[measure]
warmup_steps = 0
steps = {steps}

[strategies.full]

[strategies.lora]
lora = {{ rank = 2, alpha = 6, targets = ["all-linear"] }}

[strategies.stacked]
lora = {{ rank = 3, alpha = 6, targets = ["*.qkv"], rslora = true }}
"""

# With tied tables, PEFT trains a copy of the embedding that the head does not use.
UNTIED = """
[strategies.trained]
lora = { rank = 2, alpha = 6, targets = ["attention.out", "{projection}"], trained = ["embedding", "head"] }
"""


# The module of queries, keys and values, of model types that have one.
STACKED = {
    "gpt2": "c_attn",
    "phi3": "qkv_proj",
    "gpt_neox": "query_key_value",
    "falcon": "query_key_value",
}


def swept(work, name, folder, steps, option):
    """The folders that `option` writes, by strategy."""
    index = folder / "model.safetensors.index.json"
    weights = index if index.exists() else folder / "model.safetensors"
    experiment = work / f"{name}.toml"
    text = EXPERIMENT.format(folder=folder, weights=weights, text=Path(__file__).resolve(), steps=steps, rate=RATE)
    configuration = json.loads((folder / "config.json").read_text())
    # Versions of the library name the head of GPT-NeoX differently.
    if not configuration["tie_word_embeddings"] and configuration["model_type"] != "gpt_neox":
        projection = STACKED.get(configuration["model_type"], "v_proj")
        text += UNTIED.replace("{projection}", projection)
    experiment.write_text(text)
    command = [RUNNER, "sweep", experiment, "--device", "cpu", "--out", work / "results", option, work / name]
    subprocess.run(command, check=True, capture_output=True)
    runs = {}
    for run in (work / name).iterdir():
        lines = (run / "run.toml").read_text().splitlines()
        strategy = next(line for line in lines if line.startswith("[strategies."))
        runs[strategy.removeprefix("[strategies.").rstrip("]")] = run
    return runs


def losses_of(model, dumped):
    """The losses of further steps."""
    batches = load_file(dumped / "batches.safetensors")
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=RATE)
    losses = []
    for step in range(STEPS, STEPS + MORE):
        tokens, targets = (batches[name][step].long() for name in ("tokens", "targets"))
        loss = F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def main():
    wrong = 0
    for folder in sorted(path for path in MODELS.iterdir() if path.is_dir()):
        with tempfile.TemporaryDirectory() as work:
            work = Path(work)
            saved = swept(work, "saved", folder, STEPS, "--save")
            dumped = swept(work, "dumped", folder, STEPS + MORE, "--dump")
            for strategy, run in saved.items():
                if strategy == "full":
                    model, report = AutoModelForCausalLM.from_pretrained(run, output_loading_info=True, dtype=torch.float32)
                    unexpected = {key: names for key, names in report.items() if names}
                    assert not unexpected, unexpected
                else:
                    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                    model = PeftModel.from_pretrained(base, run, is_trainable=True)
                with open(dumped[strategy] / "steps.csv", newline="") as file:
                    expected = [float(row["loss"]) for row in list(csv.DictReader(file))[STEPS:]]
                found = losses_of(model.eval(), dumped[strategy])
                # Factors that share A here are separate ones in the library.
                shares = strategy == "stacked" and model.config.model_type not in STACKED
                compared = zip(found[: 1 if shares else None], expected)
                error = max(abs(a - b) / b for a, b in compared)
                wrong += error > TOLERANCE
                print(f"{folder.name} {strategy}: {found[0]:.6f} to {found[-1]:.6f}, {error:.1e} from the run's", flush=True)
    sys.exit(wrong > 0)


main()
