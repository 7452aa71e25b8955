#!/usr/bin/env bash
# Regenerates the checkpoints and vectors in this folder. Needs PyTorch, transformers and safetensors.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
folder=tests/reference/vectors/hugging_face
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python tests/reference/checkpoints.py "$folder"
cargo run --quiet --release -- sweep "$folder/experiment.toml" --quiet --out "$work/results" --dump "$work/dumps" > "$work/log"
for dump in "$work/dumps"/*; do
    name=$(sed -n 's/^\[strategies\.\(.*\)\]$/\1/p' "$dump/run.toml")
    cmp "$dump/batches.safetensors" tests/reference/vectors/batches.safetensors
    python tests/reference/pytorch.py "$dump" --hugging-face "$folder/$name" --vectors "$folder/$name.safetensors"
done
