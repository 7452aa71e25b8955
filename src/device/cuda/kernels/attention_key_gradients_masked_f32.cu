// Gradients of attention's keys and values, f32, of documents that see nothing of each other, or with weights that are dropped.
#include "attention_key_gradients_f32.cuh"

ATTENTION_KEY_GRADIENTS_MASKED(32)
ATTENTION_KEY_GRADIENTS_MASKED(64)
ATTENTION_KEY_GRADIENTS_MASKED(96)
ATTENTION_KEY_GRADIENTS_MASKED(128)
ATTENTION_KEY_GRADIENTS_MASKED(256)
