//! NCCL's functions.

use std::ffi::{c_char, c_int, c_void};

use super::super::libraries::nccl;
use super::driver::CUstream;
use super::{Status, functions};

/// Names the ranks of one communicator. The first rank creates it, the others get its bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct ncclUniqueId {
    pub(in crate::cuda) bytes: [u8; 128],
}

pub(in crate::cuda) type ncclComm_t = *mut c_void;

/// `ncclDataType_t`, of which only these are exchanged.
pub(in crate::cuda) const NCCL_UINT8: c_int = 1;
pub(in crate::cuda) const NCCL_FLOAT16: c_int = 6;
pub(in crate::cuda) const NCCL_FLOAT32: c_int = 7;
pub(in crate::cuda) const NCCL_BFLOAT16: c_int = 9;

/// `ncclRedOp_t`.
pub(in crate::cuda) const NCCL_SUM: c_int = 0;

functions! {
    of nccl();
    fn ncclAllGather(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        data_type: c_int,
        communicator: ncclComm_t,
        stream: CUstream
    );
    fn ncclAllReduce(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        data_type: c_int,
        operation: c_int,
        communicator: ncclComm_t,
        stream: CUstream
    );
    fn ncclCommAbort(communicator: ncclComm_t);
    fn ncclCommDestroy(communicator: ncclComm_t);
    fn ncclCommGetAsyncError(communicator: ncclComm_t, state: *mut Status);
    fn ncclCommInitRank(communicator: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int);
    fn ncclGetErrorString(error: Status) -> *const c_char;
    fn ncclGetLastError(communicator: ncclComm_t) -> *const c_char;
    fn ncclGetUniqueId(id: *mut ncclUniqueId);
    fn ncclGetVersion(version: *mut c_int);
    fn ncclReduceScatter(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        data_type: c_int,
        operation: c_int,
        communicator: ncclComm_t,
        stream: CUstream
    );
}
