// Gradients of attention's queries, f32, of documents that see nothing of each other, or with weights that are dropped.
#include "attention_query_gradients_f32.cuh"

ATTENTION_QUERY_GRADIENTS_MASKED(32)
ATTENTION_QUERY_GRADIENTS_MASKED(64)
ATTENTION_QUERY_GRADIENTS_MASKED(96)
ATTENTION_QUERY_GRADIENTS_MASKED(128)
ATTENTION_QUERY_GRADIENTS_MASKED(256)
