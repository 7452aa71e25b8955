// Descriptors of matrices, operations and preferences; versions and the library handle.
#include <cstring>

#include "cublaslt.h"

namespace {

// Every attribute is a field; the caller's buffer must have exactly its size.
template <class T>
Status set(T& field, const void* value, size_t bytes) {
    if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&field, value, sizeof(T));
    return CUBLAS_STATUS_SUCCESS;
}

template <class T>
Status get(const T& field, void* value, size_t bytes, size_t* written) {
    if (written != nullptr) *written = sizeof(T);
    if (bytes == 0 && written != nullptr) return CUBLAS_STATUS_SUCCESS;
    if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &field, sizeof(T));
    return CUBLAS_STATUS_SUCCESS;
}

template <class Visit>
Status visit(Layout& layout, int attribute, Visit with) {
    switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: return with(layout.type);
        case CUBLASLT_MATRIX_LAYOUT_ORDER: return with(layout.order);
        case CUBLASLT_MATRIX_LAYOUT_ROWS: return with(layout.rows);
        case CUBLASLT_MATRIX_LAYOUT_COLS: return with(layout.columns);
        case CUBLASLT_MATRIX_LAYOUT_LD: return with(layout.leading_dimension);
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return with(layout.batch_count);
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return with(layout.batch_offset);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

template <class Visit>
Status visit(Description& description, int attribute, Visit with) {
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return with(description.compute_type);
        case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return with(description.scale_type);
        case CUBLASLT_MATMUL_DESC_POINTER_MODE: return with(description.pointer_mode);
        case CUBLASLT_MATMUL_DESC_TRANSA: return with(description.transpose_a);
        case CUBLASLT_MATMUL_DESC_TRANSB: return with(description.transpose_b);
        case CUBLASLT_MATMUL_DESC_TRANSC: return with(description.transpose_c);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return with(description.epilogue);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return with(description.bias);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return with(description.auxiliary);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return with(description.auxiliary_leading_dimension);
        case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return with(description.multiprocessors);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return with(description.auxiliary_type);
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return with(description.bias_type);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

template <class Visit>
Status visit(Preference& preference, int attribute, Visit with) {
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_SEARCH_MODE: return with(preference.search_mode);
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return with(preference.most_workspace_bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return with(preference.reduction_schemes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            return with(preference.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES]);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

template <class T>
Status set_attribute(T* descriptor, int attribute, const void* value, size_t bytes) {
    if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    return visit(*descriptor, attribute, [&](auto& field) { return set(field, value, bytes); });
}

template <class T>
Status get_attribute(T* descriptor, int attribute, void* value, size_t bytes, size_t* written) {
    if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    return visit(*descriptor, attribute, [&](auto& field) { return get(field, value, bytes, written); });
}

template <class T>
Status destroy(T* descriptor) {
    delete descriptor;
    return CUBLAS_STATUS_SUCCESS;
}

struct Handle {};

}  // namespace

CUBLASLT_API Status cublasLtCreate(Handle** handle) {
    if (const Status planned = emulated_failure("cublasLtCreate")) return planned;
    *handle = new Handle();
    return CUBLAS_STATUS_SUCCESS;
}

CUBLASLT_API Status cublasLtDestroy(Handle* handle) { return destroy(handle); }

CUBLASLT_API size_t cublasLtGetVersion() { return 130000; }

CUBLASLT_API size_t cublasLtGetCudartVersion() { return 13000; }

CUBLASLT_API Status cublasLtGetProperty(int property, int* value) {
    const int version[] = {13, 0, 0};
    if (property < 0 || property > 2) return CUBLAS_STATUS_INVALID_VALUE;
    *value = version[property];
    return CUBLAS_STATUS_SUCCESS;
}

CUBLASLT_API Status cublasLtMatrixLayoutCreate(Layout** layout, DataType type, uint64_t rows,
                                               uint64_t columns, int64_t leading_dimension) {
    *layout = new Layout{type, CUBLASLT_ORDER_COL, rows, columns, leading_dimension};
    return CUBLAS_STATUS_SUCCESS;
}

CUBLASLT_API Status cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }

CUBLASLT_API Status cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value,
                                                     size_t bytes) {
    return set_attribute(layout, attribute, value, bytes);
}

CUBLASLT_API Status cublasLtMatrixLayoutGetAttribute(Layout* layout, int attribute, void* value, size_t bytes,
                                                     size_t* written) {
    return get_attribute(layout, attribute, value, bytes, written);
}

CUBLASLT_API Status cublasLtMatmulDescCreate(Description** description, int compute_type,
                                             DataType scale_type) {
    *description = new Description{compute_type, scale_type};
    return CUBLAS_STATUS_SUCCESS;
}

CUBLASLT_API Status cublasLtMatmulDescDestroy(Description* description) { return destroy(description); }

CUBLASLT_API Status cublasLtMatmulDescSetAttribute(Description* description, int attribute, const void* value,
                                                   size_t bytes) {
    return set_attribute(description, attribute, value, bytes);
}

CUBLASLT_API Status cublasLtMatmulDescGetAttribute(Description* description, int attribute, void* value,
                                                   size_t bytes, size_t* written) {
    return get_attribute(description, attribute, value, bytes, written);
}

CUBLASLT_API Status cublasLtMatmulPreferenceCreate(Preference** preference) {
    *preference = new Preference();
    return CUBLAS_STATUS_SUCCESS;
}

CUBLASLT_API Status cublasLtMatmulPreferenceDestroy(Preference* preference) { return destroy(preference); }

CUBLASLT_API Status cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute,
                                                         const void* value, size_t bytes) {
    return set_attribute(preference, attribute, value, bytes);
}

CUBLASLT_API Status cublasLtMatmulPreferenceGetAttribute(Preference* preference, int attribute, void* value,
                                                         size_t bytes, size_t* written) {
    return get_attribute(preference, attribute, value, bytes, written);
}
