// Attention backward, dq, bf16, of documents that see nothing of each other, or with weights that are dropped.
#include "attention_query_gradients.cuh"

ATTENTION_QUERY_GRADIENTS_MASKED(bf16, 32)
ATTENTION_QUERY_GRADIENTS_MASKED(bf16, 64)
ATTENTION_QUERY_GRADIENTS_MASKED(bf16, 96)
ATTENTION_QUERY_GRADIENTS_MASKED(bf16, 128)
ATTENTION_QUERY_GRADIENTS_MASKED(bf16, 256)
