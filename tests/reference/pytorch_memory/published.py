"""Compares predicted peaks with peaks that others published for a real A100: writes published.csv.

    cargo build --release
    python3 tests/reference/pytorch_memory/published.py PYTHON

Where a published program spells a layer by itself, the exported script is edited to do so and runs under nullcuda: the
difference is what the layer costs. PYTHON is a Python with PyTorch 2.6.0, the version of most of these peaks.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
RASBT = "github.com/rasbt/LLMs-from-scratch, ch05/10_llm-training-speed (PyTorch 2.6.0, A100)"
LITGPT = "github.com/Lightning-AI/litgpt, config_hub/finetune/README.md (A100)"

# Source, published run, published figure and bytes, strategy of published.toml, edits.
ROWS = [
    (RASBT, "GPT-2 124M, fp32", "reserved", 28198285659, "fp32", "norm gelu"),
    (RASBT, "GPT-2 124M, fp32, mask on the fly", "reserved", 28177347694, "fp32", "norm gelu"),
    (RASBT, "GPT-2 124M, bf16", "reserved", 14803785902, "bf16", "norm gelu"),
    (RASBT, "GPT-2 124M, bf16, nn.LayerNorm and nn.GELU", "reserved", 12417287324, "bf16", ""),
    (RASBT, "GPT-2 124M, bf16, SDPA", "reserved", 6335506258, "bf16-flash", ""),
    (LITGPT, "TinyLlama 1.1B, T 512, 4 of 32 samples", "allocated", 14100000000, "tiny-llama", "rms-norm chunks heads"),
]  # fmt: skip

NORM = '''

class OwnNorm(nn.Module):
    def __init__(self, channels, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        normal = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight * normal + self.bias
'''
GELU = '''

def own_gelu(x):
    inner = torch.sqrt(torch.tensor(0.6366197723675814)) * (x + 0.044715 * torch.pow(x, 3))
    return 0.5 * x * (1 + torch.tanh(inner))
'''
# litgpt: the weight multiplies in fp32.
RMS_NORM = (
    "return self.weight * x.to(dtype)",
    "return (x * self.weight.float()).to(dtype)",
    "",
)
# litgpt: the loss of 128 tokens at a time, of logits without each sample's last token.
CHUNKS = (
    "return F.cross_entropy(logits.flatten(0, 1), targets.flatten())",
    """logits, targets = logits[:, :-1].reshape(-1, VOCABULARY), targets[:, 1:].reshape(-1)
        chunks = zip(logits.split(128), targets.split(128))
        losses = [F.cross_entropy(chunk, of_chunk, reduction="none") for chunk, of_chunk in chunks]
        return torch.cat(losses).sum() / max(1, targets.numel())""",
    "",
)
# litgpt: keys and values are repeated for each query head.
HEADS = (
    "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
    """        k, v = (part[:, :, None].expand(-1, -1, HEADS // KV_HEADS, -1, -1).flatten(1, 2) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)""",
    "",
)
# What is replaced, by what, and a definition before the first module.
EDITS = {
    "heads": HEADS,
    "rms-norm": RMS_NORM,
    "chunks": CHUNKS,
    "norm": ("nn.LayerNorm(", "OwnNorm(", NORM),
    "gelu": ('F.gelu(self.up(self.norm(x)), approximate="tanh")', "own_gelu(self.up(self.norm(x)))", GELU),
}
FIRST = "\n\nclass Attention("


def edited(text, edits):
    for edit in edits:
        old, new, definition = EDITS[edit]
        assert old in text and FIRST in text, f"the exported script has no {old}"
        text = text.replace(old, new).replace(FIRST, definition + FIRST)
    return text


def measured(python, nullcuda, script, figure):
    """The largest peak of the script's steps, as `max_memory_allocated` or `max_memory_reserved` gave it."""
    environment = os.environ | {"NULLCUDA_DEVICE": "a100"}
    command = ["bash", HERE / "nullcuda/run.sh", python, nullcuda, script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return max(json.loads(line)[f"{figure}_bytes"] for line in done.stdout.splitlines())


def main():
    python, runner = sys.argv[1], "target/release/runner"
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        nullcuda, script = work / "nullcuda", work / "train.py"
        subprocess.run(["bash", HERE / "nullcuda/build.sh", python, nullcuda], check=True)
        rows = []
        for source, run, figure, published, strategy, edits in ROWS:
            command = [runner, "export", HERE / "published.toml", "--run", strategy]
            subprocess.run([*command, "--target", "a100-40gb", "--out", script], check=True, capture_output=True)
            text = script.read_text()
            plain = measured(python, nullcuda, script, figure)
            script.write_text(edited(text, edits.split()))
            own = measured(python, nullcuda, script, figure)
            rows.append((source, run, figure, published, strategy, plain, edits, own))
            print(f"{run}: {plain / published:.3f}, with its own {edits or 'layers'}: {own / published:.3f}", flush=True)
    with open(HERE / "published.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "run", "figure", "published", "strategy", "exported", "edits", "edited"))
        writer.writerows(rows)


main()
