#!/bin/bash
# Runs the tests of the CUDA device without a card: on the emulated stack, with the real NVRTC from PyPI. Once for each
# way to put a stream's work off, so that an event that is missing shows as wrong numbers.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/emulated}")
bash tests/emulator/build.sh "$out"
if [ ! -d "$out/python" ]; then
    python3 -m venv "$out/python"
    "$out/python/bin/pip" install --quiet nvidia-cuda-nvrtc
fi
export VIRTUAL_ENV=$out/python LD_LIBRARY_PATH=$out RUNNER_CACHE_DIR=$out/cache
for delay in none compute copy random:1 random:2; do
    echo "EMULATED_DELAY=$delay"
    EMULATED_DELAY=$delay cargo test --release --features cuda-tests --test cuda_device
done
cargo test --release --features cuda-tests --test cuda_states
# Kernels in three orders of their threads: a missing barrier shows as other numbers.
for order in 0 1 7; do
    echo "EMULATED_ORDER=$order"
    EMULATED_ORDER=$order cargo test --release --features cuda-tests --test cuda_kernels
done
