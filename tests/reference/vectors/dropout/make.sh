#!/usr/bin/env bash
# Regenerates the vectors in this folder. Needs PyTorch and safetensors.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
folder=tests/reference/vectors/dropout
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sweep() {
    cargo run --quiet --release -- sweep "$@" --quiet --out "$work/results" > "$work/log"
}

for name in $(sed -n 's/^\[strategies\.\([^]]*\)\].*/\1/p' "$folder/experiment.toml"); do
    sweep "$folder/experiment.toml" --filter "$name" --dump "$work/drawn-$name"
    # In 16 bits, sharp attention amplifies rounding differences between the two programs.
    case $name in *-bf16) factor=1 ;; *) factor=3 ;; esac
    python tests/reference/sharpen.py $factor "$work/drawn-$name"/*/initial.safetensors "$work/$name.safetensors"
    sweep "$work/drawn-$name"/*/run.toml --set "model.transformer.weights='$work/$name.safetensors'" --dump "$work/$name"
    cp "$work/$name"/*/initial.safetensors "$folder/$name-initial.safetensors"
    cp "$work/$name"/*/batches.safetensors "$folder/$name-batches.safetensors"
    python tests/reference/pytorch.py "$work/$name"/* --vectors "$folder/$name.safetensors"
done
