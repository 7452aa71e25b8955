// Attention backward, dk and dv, bf16, of documents that see nothing of each other, or with weights that are dropped.
#include "attention_key_gradients.cuh"

ATTENTION_KEY_GRADIENTS_MASKED(bf16, 32)
ATTENTION_KEY_GRADIENTS_MASKED(bf16, 64)
ATTENTION_KEY_GRADIENTS_MASKED(bf16, 96)
ATTENTION_KEY_GRADIENTS_MASKED(bf16, 128)
ATTENTION_KEY_GRADIENTS_MASKED(bf16, 256)
