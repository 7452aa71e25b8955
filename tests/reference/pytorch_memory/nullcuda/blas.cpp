// cuBLAS and cuBLASLt: every matmul succeeds, and the heuristic finds one algorithm without a workspace of its own. PyTorch
// allocates the same workspace for every algorithm, so memory does not depend on the choice.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdlib>

template <class Handle> static cublasStatus_t create(Handle *handle) {
    *handle = (Handle)malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy(void *handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) { return create(handle); }

cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t *mode) {
    *mode = CUBLAS_DEFAULT_MATH;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t, cublasPointerMode_t *mode) {
    *mode = CUBLAS_POINTER_MODE_HOST;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t, cudaDataType_t) {
    return create(description);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) { return destroy(description); }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType, uint64_t, uint64_t, int64_t) {
    return create(layout);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) { return create(preference); }

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *results, int *found) {
    results[0] = {};
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
