// Attention forward, f16, with document masks or dropout of weights.
#include "attention_forward.cuh"

ATTENTION_FORWARD_MASKED(f16, 32)
ATTENTION_FORWARD_MASKED(f16, 64)
ATTENTION_FORWARD_MASKED(f16, 96)
ATTENTION_FORWARD_MASKED(f16, 128)
ATTENTION_FORWARD_MASKED(f16, 256)
