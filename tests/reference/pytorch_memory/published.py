"""Compares predicted peaks with peaks that others published for a real card: writes published.csv or published-lora.csv.

    cargo build --release
    python3 tests/reference/pytorch_memory/published.py PYTHON

Where a published program spells a layer by itself, the exported script is edited to do so and runs under nullcuda: the
difference is what the layer costs. PYTHON is a Python with PyTorch 2.6.0, the version of most peaks of full training, or with
2.11.0 and the libraries, for those of LoRA.
"""

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from published_edits import EDITS, LIBRARY_EDITS

HERE = Path(__file__).parent
RASBT = "github.com/rasbt/LLMs-from-scratch, ch05/10_llm-training-speed (PyTorch 2.6.0, A100)"
LITGPT = "github.com/Lightning-AI/litgpt, config_hub/finetune/README.md (A100)"
HUB = "github.com/Lightning-AI/litgpt, config_hub/finetune/README.md"
TABLES = "github.com/Lightning-AI/litgpt, tutorials/resource-tables.md (PyTorch 2.1.0, A100)"
TUNE = "github.com/pytorch/torchtune, docs/source/tutorials/lora_finetune.rst"

# Source, published run, published figure and bytes, strategy of published.toml, edits.
ROWS = [
    (RASBT, "GPT-2 124M, fp32", "reserved", 28198285659, "fp32", "norm gelu"),
    (RASBT, "GPT-2 124M, fp32, mask on the fly", "reserved", 28177347694, "fp32", "norm gelu"),
    (RASBT, "GPT-2 124M, bf16", "reserved", 14803785902, "bf16", "norm gelu"),
    (RASBT, "GPT-2 124M, bf16, nn.LayerNorm and nn.GELU", "reserved", 12417287324, "bf16", ""),
    (RASBT, "GPT-2 124M, bf16, SDPA", "reserved", 6335506258, "bf16-flash", ""),
    (LITGPT, "TinyLlama 1.1B, T 512, 4 of 32 samples", "allocated", 14100000000, "tiny-llama", "rms-norm chunks heads"),
]  # fmt: skip
# The same of published-lora.toml.
LORA, QLORA = "on-card qkv chunks", "on-card qkv chunks products"
LORA_ROWS = [
    (HUB, "TinyLlama 1.1B, LoRA of all layers and the head, rank 32, T 512, 8 samples", "allocated", 13500000000, "tiny-llama", LORA + " heads"),
    (HUB, "Llama 2 7B, LoRA of q and v, rank 32, T 512, 2 of 8 samples", "allocated", 19770000000, "llama-2-7b", LORA),
    (HUB, "the same, QLoRA (nf4)", "allocated", 13680000000, "llama-2-7b-nf4", QLORA),
    (HUB, "Llama 3 8B, LoRA of q and v, rank 32, T 512, 1 of 8 samples", "allocated", 19730000000, "llama-3-8b", LORA + " heads"),
    (HUB, "Mistral 7B, LoRA of q and v, rank 32, T 512, 2 of 8 samples", "allocated", 20660000000, "mistral-7b", LORA + " heads"),
    (TABLES, "Llama 2 7B, LoRA of q and v, rank 8, T 1304, 1 of 128 samples", "allocated", 21300000000, "llama-2-7b-1304", LORA + " first"),
    (TABLES, "the same, 2 of 128 samples", "allocated", 29070000000, "llama-2-7b-1304-two", LORA + " first"),
    (TABLES, "the same, QLoRA (nf4), 1 of 128 samples", "allocated", 14140000000, "llama-2-7b-1304-nf4", QLORA + " first"),
    (TABLES, "the same, double quantization", "allocated", 13840000000, "llama-2-7b-1304-nf4-dq", QLORA + " first"),
    (TABLES, "Llama 2 13B, LoRA, 1 of 128 samples", "allocated", 38120000000, "llama-2-13b-1304", LORA + " first"),
    (TABLES, "the same, QLoRA (nf4)", "allocated", 23140000000, "llama-2-13b-1304-nf4", QLORA + " first"),
    (TABLES, "the same, double quantization", "allocated", 22550000000, "llama-2-13b-1304-nf4-dq", QLORA + " first"),
    (TUNE, "Llama 2 7B, LoRA of q and v, rank 8, 2 samples, checkpoints", "reserved", 15570000000, "torchtune", "on-card classes"),
    (TUNE, "the same, all layers, rank 64", "reserved", 17040000000, "torchtune-all", "on-card classes"),
]  # fmt: skip
# By version of PyTorch: the experiment, its rows and its edits.
EXPERIMENTS = {"2.6": ("published", ROWS, EDITS), "2.11": ("published-lora", LORA_ROWS, LIBRARY_EDITS)}

FIRST = re.compile(r"\n\nclass (Attention|Network)\(")


def edited(text, edits):
    for old, new, definition in edits:
        assert old in text, f"the exported script has no {old}"
        text = text.replace(old, new) if old else text
        first = FIRST.search(text).start()
        text = text[:first] + definition + text[first:]
    return text


def measured(python, nullcuda, script, figure):
    """The largest peak of the script's steps, as `max_memory_allocated` or `max_memory_reserved` gave it."""
    environment = os.environ | {"NULLCUDA_DEVICE": "a100"}
    command = ["bash", HERE / "nullcuda/run.sh", python, nullcuda, script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return max(json.loads(line)[f"{figure}_bytes"] for line in done.stdout.splitlines())


def predicted(text, figure):
    """The largest predicted peak in an exported script."""
    peaks = json.loads(re.search(r"^PREDICTED = (.*)$", text, re.M)[1].replace("(", "[").replace(")", "]"))
    return max(peak[figure == "reserved"] for peak in peaks)


def main():
    python, runner = sys.argv[1], "target/release/runner"
    code = "from importlib import metadata; print(metadata.version('torch'))"
    version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    experiment, of_version, edits_by_name = EXPERIMENTS[".".join(version.split(".")[:2])]
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        nullcuda, script = work / "nullcuda", work / "train.py"
        subprocess.run(["bash", HERE / "nullcuda/build.sh", python, nullcuda], check=True)
        rows = []
        for source, run, figure, published, strategy, edits in of_version:
            command = [runner, "export", HERE / f"{experiment}.toml", "--run", strategy]
            subprocess.run([*command, "--target", "a100-40gb", "--out", script], check=True, capture_output=True)
            text = script.read_text()
            plain = predicted(text, figure)
            script.write_text(edited(text, [edits_by_name[edit] for edit in edits.split()]))
            own = measured(python, nullcuda, script, figure)
            rows.append((source, run, figure, published, strategy, plain, edits, own))
            print(f"{run}: {plain / published:.3f}, with its own {edits or 'layers'}: {own / published:.3f}", flush=True)
    with open(HERE / f"{experiment}.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "run", "figure", "published", "strategy", "exported", "edits", "edited"))
        writer.writerows(rows)


main()
