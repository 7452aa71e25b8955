#!/usr/bin/env bash
# Regenerates the vectors in this folder. Needs PyTorch and safetensors.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
folder=tests/reference/vectors/sequential
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for name in $(sed -n 's/^\[strategies\.\([^]]*\)\].*/\1/p' "$folder/experiment.toml"); do
    cargo run --quiet --release -- sweep "$folder/experiment.toml" --filter "$name" --dump "$work/$name" --quiet \
        --out "$work/results" > "$work/log"
    cp "$work/$name"/*/initial.safetensors "$folder/$name-initial.safetensors"
    cp "$work/$name"/*/batches.safetensors "$folder/$name-batches.safetensors"
    python tests/reference/pytorch.py "$work/$name"/* --vectors "$folder/$name.safetensors"
done
