// Attention forward, f32, with document masks or dropout of weights.
#include "attention_forward_f32.cuh"

ATTENTION_FORWARD_MASKED(32)
ATTENTION_FORWARD_MASKED(64)
ATTENTION_FORWARD_MASKED(96)
ATTENTION_FORWARD_MASKED(128)
ATTENTION_FORWARD_MASKED(256)
