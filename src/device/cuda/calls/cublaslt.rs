//! cuBLASLt's functions.

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::sys::culib;
pub(in crate::cuda) use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulAlgoConfigAttributes_t, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t,
    cublasLtReductionScheme_t, cudaDataType_t, cudaStream_t,
};

use super::{Status, functions};

/// An algorithm recommended by the library, which writes this struct.
#[repr(C)]
pub(in crate::cuda) struct cublasLtMatmulHeuristicResult_t {
    pub(in crate::cuda) algo: cublasLtMatmulAlgo_t,
    pub(in crate::cuda) workspaceSize: usize,
    pub(in crate::cuda) state: Status,
    wavesCount: f32,
    reserved: [c_int; 4],
}

functions! {
    of culib();
    fn cublasLtCreate(handle: *mut cublasLtHandle_t);
    fn cublasLtDestroy(handle: cublasLtHandle_t);
    fn cublasLtGetVersion() -> usize;
    fn cublasLtMatmul(
        handle: cublasLtHandle_t,
        description: cublasLtMatmulDesc_t,
        alpha: *const c_void,
        a: *const c_void,
        a_layout: cublasLtMatrixLayout_t,
        b: *const c_void,
        b_layout: cublasLtMatrixLayout_t,
        beta: *const c_void,
        c: *const c_void,
        c_layout: cublasLtMatrixLayout_t,
        d: *mut c_void,
        d_layout: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: cudaStream_t
    );
    fn cublasLtMatmulAlgoCheck(
        handle: cublasLtHandle_t,
        description: cublasLtMatmulDesc_t,
        a_layout: cublasLtMatrixLayout_t,
        b_layout: cublasLtMatrixLayout_t,
        c_layout: cublasLtMatrixLayout_t,
        d_layout: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t,
        result: *mut cublasLtMatmulHeuristicResult_t
    );
    fn cublasLtMatmulAlgoConfigGetAttribute(
        algorithm: *const cublasLtMatmulAlgo_t,
        attribute: cublasLtMatmulAlgoConfigAttributes_t,
        value: *mut c_void,
        bytes: usize,
        written: *mut usize
    );
    fn cublasLtMatmulAlgoGetHeuristic(
        handle: cublasLtHandle_t,
        description: cublasLtMatmulDesc_t,
        a_layout: cublasLtMatrixLayout_t,
        b_layout: cublasLtMatrixLayout_t,
        c_layout: cublasLtMatrixLayout_t,
        d_layout: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t,
        requested: c_int,
        results: *mut cublasLtMatmulHeuristicResult_t,
        count: *mut c_int
    );
    fn cublasLtMatmulDescCreate(
        description: *mut cublasLtMatmulDesc_t,
        compute_type: cublasComputeType_t,
        scale_type: cudaDataType_t
    );
    fn cublasLtMatmulDescDestroy(description: cublasLtMatmulDesc_t);
    fn cublasLtMatmulDescSetAttribute(
        description: cublasLtMatmulDesc_t,
        attribute: cublasLtMatmulDescAttributes_t,
        value: *const c_void,
        bytes: usize
    );
    fn cublasLtMatmulPreferenceCreate(preference: *mut cublasLtMatmulPreference_t);
    fn cublasLtMatmulPreferenceDestroy(preference: cublasLtMatmulPreference_t);
    fn cublasLtMatmulPreferenceSetAttribute(
        preference: cublasLtMatmulPreference_t,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        value: *const c_void,
        bytes: usize
    );
    fn cublasLtMatrixLayoutCreate(
        layout: *mut cublasLtMatrixLayout_t,
        data_type: cudaDataType_t,
        rows: u64,
        columns: u64,
        leading_dimension: i64
    );
    fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t);
}
