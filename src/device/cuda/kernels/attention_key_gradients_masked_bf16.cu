// Attention backward, dk and dv, bf16, with document masks or dropout of weights.
#include "attention_key_gradients.cuh"

ATTENTION_KEY_GRADIENTS_MASKED(bf16, 32)
ATTENTION_KEY_GRADIENTS_MASKED(bf16, 64)
ATTENTION_KEY_GRADIENTS_MASKED(bf16, 96)
ATTENTION_KEY_GRADIENTS_MASKED(bf16, 128)
ATTENTION_KEY_GRADIENTS_MASKED(bf16, 256)
