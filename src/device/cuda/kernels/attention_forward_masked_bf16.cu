// Attention forward, bf16, with document masks or dropout of weights.
#include "attention_forward.cuh"

ATTENTION_FORWARD_MASKED(bf16, 32)
ATTENTION_FORWARD_MASKED(bf16, 64)
ATTENTION_FORWARD_MASKED(bf16, 96)
ATTENTION_FORWARD_MASKED(bf16, 128)
ATTENTION_FORWARD_MASKED(bf16, 256)
