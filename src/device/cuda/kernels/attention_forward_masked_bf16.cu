// Attention forward, bf16, of documents that see nothing of each other, or with weights that are dropped.
#include "attention_forward.cuh"

ATTENTION_FORWARD_MASKED(bf16, 32)
ATTENTION_FORWARD_MASKED(bf16, 64)
ATTENTION_FORWARD_MASKED(bf16, 96)
ATTENTION_FORWARD_MASKED(bf16, 128)
ATTENTION_FORWARD_MASKED(bf16, 256)
