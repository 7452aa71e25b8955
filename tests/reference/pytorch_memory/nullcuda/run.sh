#!/usr/bin/env bash
# Runs Python with nullcuda: NULLCUDA_DEVICE=a100 bash run.sh PYTHON FOLDER script.py ..., with the arguments of build.sh.
set -euo pipefail
python=$1 libraries=$2
shift 2
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_PRELOAD=$libraries/libnullcuda.so
export KINETO_LOG_LEVEL=5  # The profiler's library finds no CUPTI, and need not report it.
export PYTHONHASHSEED=0  # Gemma 3 makes its rotations in the order of a set.
exec "$python" "$@"
