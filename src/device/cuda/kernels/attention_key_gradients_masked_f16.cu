// Attention backward, dk and dv, f16, with document masks or dropout of weights.
#include "attention_key_gradients.cuh"

ATTENTION_KEY_GRADIENTS_MASKED(f16, 32)
ATTENTION_KEY_GRADIENTS_MASKED(f16, 64)
ATTENTION_KEY_GRADIENTS_MASKED(f16, 96)
ATTENTION_KEY_GRADIENTS_MASKED(f16, 128)
ATTENTION_KEY_GRADIENTS_MASKED(f16, 256)
