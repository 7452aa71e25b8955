//! The plan of a matmul shape: its descriptor and layouts, the library's recommended algorithms, and the selected
//! method.
//!
//! The library is column-major: it sees a row-major matrix as its transpose. So the plan requests the transposed
//! matmul, with the two operands exchanged.

use std::ffi::c_void;

use super::algorithm::Algorithm;
use super::alignment::Alignment;
use super::{Added, Epilogue, Matmul, MatmulShape};
use crate::DeviceError;
use crate::cuda::calls::Status;
use crate::cuda::calls::cublaslt::{
    self as sys, cublasComputeType_t as ComputeType, cublasLtEpilogue_t as LtEpilogue,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulPreferenceAttributes_t as Preference,
    cudaDataType_t as DataType,
};
use crate::cuda::calls::driver::CUstream;
use crate::cuda::errors::{CallError, Effect};
use ops::{DType, TypeError};

const ALLOC_FAILED: Status = 3;
const INVALID_VALUE: Status = 7;
const ARCH_MISMATCH: Status = 8;
const NOT_SUPPORTED: Status = 15;

/// Maximum number of recommended algorithms.
const CANDIDATES: usize = 8;

/// The allowed split-K reduction schemes, a bit mask: partial sums in f32 in the workspace. Reduction in place uses
/// atomics, whose order changes between runs, and reduction in the output's type would round each partial sum to 16
/// bits.
const REDUCTIONS: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;

/// Required alignment of epilogue operands in bytes. The library receives only their addresses, and its requirement is
/// undocumented: its kernels use 16-byte loads.
const EPILOGUE_ALIGNMENT: u64 = 16;

/// The method for matmuls of a shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum MatmulMethod {
    /// The library computes matmul and epilogue.
    Fused(Algorithm),
    /// The library computes the matmul, a kernel the epilogue.
    Separate,
}

pub(in super::super) struct MatmulPlan {
    descriptor: Descriptor,
    /// Of the right matrix, the library's first operand.
    first: Layout,
    /// Of the left matrix.
    second: Layout,
    output: Layout,
    /// At least one.
    pub(super) recommended: Vec<Algorithm>,
    pub(super) method: MatmulMethod,
}

impl MatmulPlan {
    /// A plan with the library's first recommendation. `None` if it has no algorithm for the shape.
    pub(super) fn new(
        handle: sys::cublasLtHandle_t,
        shape: &MatmulShape,
    ) -> Result<Option<MatmulPlan>, DeviceError> {
        if shape.alignment.epilogue < EPILOGUE_ALIGNMENT {
            return Ok(None);
        }
        let descriptor = Descriptor::new(shape)?;
        let output = Layout::new(shape.output, shape.columns, shape.rows)?;
        let first = Layout::of_operand(shape.right, shape.columns, shape.inner)?;
        let second = Layout::of_operand(shape.left, shape.inner, shape.rows)?;
        let recommended = recommended(handle, shape, &descriptor, [&first, &second, &output])?;
        let Some(method) = recommended.first().copied().map(MatmulMethod::Fused) else { return Ok(None) };
        Ok(Some(MatmulPlan { descriptor, first, second, output, recommended, method }))
    }

    /// Whether the library accepts an algorithm for this shape. It may be stored by another library version.
    pub(super) fn accepts(
        &self,
        handle: sys::cublasLtHandle_t,
        shape: &MatmulShape,
        algorithm: &Algorithm,
    ) -> Result<bool, CallError> {
        // A call may have left another mode.
        self.descriptor.set_pointer_mode(shape.may_read_scales_from_the_card())?;
        let mut found = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        // SAFETY: all descriptors are live; the algorithm is only read; the result has the library's type.
        let status = check("cublasLtMatmulAlgoCheck", unsafe {
            sys::cublasLtMatmulAlgoCheck(
                handle,
                self.descriptor.0,
                self.first.0,
                self.second.0,
                self.output.0,
                self.output.0,
                &algorithm.0,
                found.as_mut_ptr(),
            )
        });
        match status {
            // SAFETY: the library has initialised it.
            Ok(()) => Ok(fits(unsafe { found.assume_init_ref() }, shape)),
            // The library's codes for a rejected algorithm.
            Err(CallError { code: INVALID_VALUE | ARCH_MISMATCH | NOT_SUPPORTED, .. }) => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    pub(super) fn enqueue(
        &self,
        handle: sys::cublasLtHandle_t,
        matmul: &Matmul,
        algorithm: &Algorithm,
        one: u64,
        stream: CUstream,
    ) -> Result<(), CallError> {
        self.descriptor.set_pointers(matmul.epilogue)?;
        let is_on_card = matmul.reads_scales_from_the_card();
        self.descriptor.set_pointer_mode(is_on_card)?;
        let number = |number: &f32| match is_on_card {
            true => one as *const c_void,
            false => std::ptr::from_ref(number).cast(),
        };
        let added = matmul.added.unwrap_or(Added { address: matmul.output.address, scale: 0.0 });
        let (workspace, bytes) = matmul.workspace;
        // SAFETY: descriptor and layouts match the algorithm; the scalars are on the card as long as the context, or in
        // host memory and read before the call returns; the operands have the sizes of the layouts, because the device
        // has checked the operation's types and regions.
        let status = unsafe {
            sys::cublasLtMatmul(
                handle,
                self.descriptor.0,
                number(&matmul.scale),
                matmul.right.address as *const c_void,
                self.first.0,
                matmul.left.address as *const c_void,
                self.second.0,
                number(&added.scale),
                added.address as *const c_void,
                self.output.0,
                matmul.output.address as *mut c_void,
                self.output.0,
                &algorithm.0,
                workspace as *mut c_void,
                bytes as usize,
                stream.cast(),
            )
        };
        check("cublasLtMatmul", status).map_err(|failed| CallError {
            call: format!("cublasLtMatmul of {} with {}", matmul.shape(), algorithm.numbers()),
            ..failed
        })
    }
}

/// The error for a shape without an algorithm.
pub(super) fn unsupported(shape: &MatmulShape) -> CallError {
    CallError {
        call: format!("cublasLtMatmul of {shape:?}"),
        name: "CUBLAS_STATUS_NOT_SUPPORTED".to_owned(),
        code: NOT_SUPPORTED,
        effect: Effect::None,
    }
}

pub(super) fn check(call: &'static str, status: Status) -> Result<(), CallError> {
    CallError::check(call, status, |code| name(code).to_owned()).map_err(|failed| match failed.code {
        ALLOC_FAILED => CallError { effect: Effect::OutOfMemory, ..failed },
        _ => failed,
    })
}

fn name(code: Status) -> &'static str {
    match code {
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        ALLOC_FAILED => "CUBLAS_STATUS_ALLOC_FAILED",
        INVALID_VALUE => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        NOT_SUPPORTED => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "an error unknown to this program",
    }
}

/// A matmul descriptor.
struct Descriptor(sys::cublasLtMatmulDesc_t);

impl Descriptor {
    fn new(shape: &MatmulShape) -> Result<Descriptor, DeviceError> {
        let compute = if shape.tf32 {
            ComputeType::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            ComputeType::CUBLAS_COMPUTE_32F
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is loaded.
        let status = unsafe { sys::cublasLtMatmulDescCreate(&mut handle, compute, DataType::CUDA_R_32F) };
        check("cublasLtMatmulDescCreate", status)?;
        let descriptor = Descriptor(handle);
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, operation(shape.right.1))?;
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, operation(shape.left.1))?;
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, shape.epilogue)?;
        // Assumed: an algorithm that reads scales from the card also reads them from the host.
        descriptor.set_pointer_mode(shape.may_read_scales_from_the_card())?;
        // Epilogue vectors and matrices have the output's type. That is the library's default too, but the default for
        // an f32 output of 16-bit operands is undocumented, so it is set. Until a call sets the pointers, they hold a
        // placeholder address of the same alignment, because the library may read it when it recommends or checks an
        // algorithm. The placeholder is never dereferenced.
        // A vector's pointer that the epilogue does not use would make cublasLtMatmul fail.
        let (ty, placeholder) = (data_type(shape.output)?, shape.alignment.epilogue);
        if has_vector(shape.epilogue) {
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, ty)?;
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, placeholder)?;
        }
        if has_matrix(shape.epilogue) {
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, ty)?;
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, placeholder)?;
            let row = shape.columns as i64;
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, row)?;
        }
        Ok(descriptor)
    }

    /// Sets whether the scales are in card memory or in host memory.
    fn set_pointer_mode(&self, is_on_card: bool) -> Result<(), CallError> {
        // The library's `cublasLtPointerMode_t`.
        self.set(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, i32::from(is_on_card))
    }

    /// Sets the pointers of a call's epilogue operands.
    fn set_pointers(&self, epilogue: Epilogue) -> Result<(), CallError> {
        let (vector, matrix) = match epilogue {
            Epilogue::None => (None, None),
            Epilogue::Bias(vector) | Epilogue::BiasGradient(vector) => (Some(vector), None),
            Epilogue::GeluBias { bias, before } => (bias, Some(before)),
            Epilogue::GeluSlope { before } => (None, Some(before)),
        };
        if let Some(address) = vector {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, address)?;
        }
        if let Some(address) = matrix {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, address)?;
        }
        Ok(())
    }

    fn set<T: Copy>(&self, attribute: Attribute, value: T) -> Result<(), CallError> {
        let (pointer, size) = (std::ptr::from_ref(&value).cast(), size_of::<T>());
        // SAFETY: the descriptor is live; the library reads `size` bytes and rejects a wrong size.
        let status = unsafe { sys::cublasLtMatmulDescSetAttribute(self.0, attribute, pointer, size) };
        check("cublasLtMatmulDescSetAttribute", status)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// Whether an epilogue reads or stores a vector.
fn has_vector(epilogue: LtEpilogue) -> bool {
    use LtEpilogue::{CUBLASLT_EPILOGUE_BGRADB, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS};
    matches!(epilogue, CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB | CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
}

/// Whether an epilogue reads or stores a matrix.
fn has_matrix(epilogue: LtEpilogue) -> bool {
    use LtEpilogue::{CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS};
    matches!(epilogue, CUBLASLT_EPILOGUE_DGELU | CUBLASLT_EPILOGUE_GELU_AUX | CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
}

/// The library's `cublasOperation_t` values, which cudarc binds only with cuBLAS.
fn operation(transposed: bool) -> i32 {
    i32::from(transposed)
}

/// A column-major matrix layout.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// The layout of an operand that is `rows` by `columns` after the requested transposition.
    fn of_operand(
        (dtype, transposed): (DType, bool),
        rows: usize,
        columns: usize,
    ) -> Result<Layout, DeviceError> {
        if transposed { Layout::new(dtype, columns, rows) } else { Layout::new(dtype, rows, columns) }
    }

    fn new(dtype: DType, rows: usize, columns: usize) -> Result<Layout, DeviceError> {
        let mut handle = std::ptr::null_mut();
        let ty = data_type(dtype)?;
        // SAFETY: the library is loaded. Columns are contiguous.
        let status = unsafe {
            sys::cublasLtMatrixLayoutCreate(&mut handle, ty, rows as u64, columns as u64, rows as i64)
        };
        check("cublasLtMatrixLayoutCreate", status)?;
        Ok(Layout(handle))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

fn data_type(dtype: DType) -> Result<DataType, DeviceError> {
    match dtype {
        DType::F32 => Ok(DataType::CUDA_R_32F),
        DType::BF16 => Ok(DataType::CUDA_R_16BF),
        DType::F16 => Ok(DataType::CUDA_R_16F),
        DType::I32 | DType::U16 | DType::U8 | DType::U4 => {
            Err(TypeError { operation: "matmul", problem: format!("does not support {dtype}") }.into())
        }
    }
}

/// The library's recommended algorithms within the workspace, in order of expected speed.
fn recommended(
    handle: sys::cublasLtHandle_t,
    shape: &MatmulShape,
    descriptor: &Descriptor,
    [first, second, output]: [&Layout; 3],
) -> Result<Vec<Algorithm>, CallError> {
    let preferences = Preferences::new(shape)?;
    let mut found =
        [const { std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed() }; CANDIDATES];
    let mut count = 0;
    // SAFETY: all descriptors are live; `found` has room for `CANDIDATES` results.
    let status = unsafe {
        sys::cublasLtMatmulAlgoGetHeuristic(
            handle,
            descriptor.0,
            first.0,
            second.0,
            output.0,
            output.0,
            preferences.0,
            CANDIDATES as i32,
            found.as_mut_ptr().cast(),
            &mut count,
        )
    };
    match check("cublasLtMatmulAlgoGetHeuristic", status) {
        Ok(()) => {}
        // The codes for no algorithm, depending on the library version.
        Err(CallError { code: INVALID_VALUE | NOT_SUPPORTED, .. }) => return Ok(Vec::new()),
        Err(failed) => return Err(failed),
    }
    let count = usize::try_from(count).unwrap_or(0).min(CANDIDATES);
    // SAFETY: the library has initialised `count` results; the others are not read.
    let found = found[..count].iter().map(|result| unsafe { result.assume_init_ref() });
    Ok(found.filter(|result| fits(result, shape)).map(|result| Algorithm(result.algo)).collect())
}

/// Whether an algorithm is valid and fits in the shape's workspace.
fn fits(result: &sys::cublasLtMatmulHeuristicResult_t, shape: &MatmulShape) -> bool {
    result.state == 0 && result.workspaceSize as u64 <= shape.workspace
}

/// Constraints on recommended algorithms.
struct Preferences(sys::cublasLtMatmulPreference_t);

impl Preferences {
    fn new(shape: &MatmulShape) -> Result<Preferences, CallError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is loaded.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut handle) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let preferences = Preferences(handle);
        preferences.set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, shape.workspace)?;
        preferences.set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, REDUCTIONS)?;
        let Alignment { left, right, output, epilogue: _ } = shape.alignment;
        for (attribute, bytes) in [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, right),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, left),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, output),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, output),
        ] {
            preferences.set(attribute, bytes as u32)?;
        }
        Ok(preferences)
    }

    fn set<T: Copy>(&self, attribute: Preference, value: T) -> Result<(), CallError> {
        let (pointer, size) = (std::ptr::from_ref(&value).cast(), size_of::<T>());
        // SAFETY: the preference is live; the library reads `size` bytes and rejects a wrong size.
        let status = unsafe { sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, pointer, size) };
        check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Preferences {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}
