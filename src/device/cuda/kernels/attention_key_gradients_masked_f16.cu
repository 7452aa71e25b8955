// Attention backward, dk and dv, f16, of documents that see nothing of each other, or with weights that are dropped.
#include "attention_key_gradients.cuh"

ATTENTION_KEY_GRADIENTS_MASKED(f16, 32)
ATTENTION_KEY_GRADIENTS_MASKED(f16, 64)
ATTENTION_KEY_GRADIENTS_MASKED(f16, 96)
ATTENTION_KEY_GRADIENTS_MASKED(f16, 128)
ATTENTION_KEY_GRADIENTS_MASKED(f16, 256)
