//! A product of one shape, prepared: its description, the algorithms that the library recommends, and the choice among
//! them.
//!
//! The library thinks in columns: a row-major matrix is its own transpose to it. So what is asked for is the transpose
//! of the product, with the two operands in the other order.

use std::ffi::c_void;

use super::algorithm::Algorithm;
use super::alignment::Alignment;
use super::{Added, Epilogue, Product, Shape};
use crate::DeviceError;
use crate::cuda::calls::Status;
use crate::cuda::calls::cublaslt::{
    self as sys, cublasComputeType_t as ComputeType, cublasLtMatmulDescAttributes_t as Attribute,
    cublasLtMatmulPreferenceAttributes_t as Preference, cudaDataType_t as DataType,
};
use crate::cuda::calls::driver::CUstream;
use crate::cuda::errors::Failed;
use ops::{DType, TypeError};

const INVALID_VALUE: Status = 7;
const ARCH_MISMATCH: Status = 8;
const NOT_SUPPORTED: Status = 15;

/// How many algorithms the library may recommend.
const CANDIDATES: usize = 8;

/// How the parts of a product that was split along its inner dimension may be summed, a mask of bits: apart from the
/// output and in f32. In the output itself takes atomics, whose order changes from run to run, and in the output's type
/// would round each part to 16 bits.
const REDUCTIONS: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;

/// What the operands of epilogues have to be aligned to. Of these the library is told nothing but their addresses, and what
/// it wants of them is not documented: its kernels load as many bytes at once.
const EPILOGUE_ALIGNMENT: u64 = 16;

/// How products of a shape are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Way {
    /// By the library, with what is fused to it.
    Fused(Algorithm),
    /// Without its epilogue, which a kernel takes on.
    Apart,
}

pub(in super::super) struct Plan {
    description: Description,
    /// Of our right matrix, the library's first.
    first: Layout,
    /// Of our left matrix.
    second: Layout,
    output: Layout,
    /// At least one.
    pub(super) recommended: Vec<Algorithm>,
    pub(super) way: Way,
}

impl Plan {
    /// With the way that the library recommends first. `None` if it has no algorithm for the shape.
    pub(super) fn new(handle: sys::cublasLtHandle_t, shape: &Shape) -> Result<Option<Plan>, DeviceError> {
        if shape.alignment.epilogue < EPILOGUE_ALIGNMENT {
            return Ok(None);
        }
        let description = Description::new(shape)?;
        let output = Layout::new(shape.output, shape.columns, shape.rows)?;
        let first = Layout::of_operand(shape.right, shape.columns, shape.inner)?;
        let second = Layout::of_operand(shape.left, shape.inner, shape.rows)?;
        let recommended = recommended(handle, shape, &description, [&first, &second, &output])?;
        let Some(way) = recommended.first().copied().map(Way::Fused) else { return Ok(None) };
        Ok(Some(Plan { description, first, second, output, recommended, way }))
    }

    /// Whether the library takes an algorithm, which may have been stored by another of its versions, for this shape.
    pub(super) fn takes(
        &self,
        handle: sys::cublasLtHandle_t,
        shape: &Shape,
        algorithm: &Algorithm,
    ) -> Result<bool, Failed> {
        let mut found = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        // SAFETY: all descriptions live; the algorithm is only looked at; there is room for the result.
        let status = check("cublasLtMatmulAlgoCheck", unsafe {
            sys::cublasLtMatmulAlgoCheck(
                handle,
                self.description.0,
                self.first.0,
                self.second.0,
                self.output.0,
                self.output.0,
                &algorithm.0,
                found.as_mut_ptr(),
            )
        });
        match status {
            // SAFETY: the library filled it in.
            Ok(()) => Ok(fits(unsafe { found.assume_init_ref() }, shape)),
            // How it refuses one, depending on what it finds.
            Err(Failed { code: INVALID_VALUE | ARCH_MISMATCH | NOT_SUPPORTED, .. }) => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    pub(super) fn enqueue(
        &self,
        handle: sys::cublasLtHandle_t,
        product: &Product,
        algorithm: &Algorithm,
        stream: CUstream,
    ) -> Result<(), Failed> {
        self.description.point(product.epilogue)?;
        let number = |number: &f32| std::ptr::from_ref(number).cast::<c_void>();
        let added = product.added.unwrap_or(Added { address: product.output.address, scale: 0.0 });
        let (workspace, bytes) = product.workspace;
        // SAFETY: the description and layouts are those that the algorithm was recommended for, the scalars are on the
        // host and read before the call returns, and the operands are as large as the layouts say: the device checked
        // the operation's types and regions.
        let status = unsafe {
            sys::cublasLtMatmul(
                handle,
                self.description.0,
                number(&product.scale),
                product.right.address as *const c_void,
                self.first.0,
                product.left.address as *const c_void,
                self.second.0,
                number(&added.scale),
                added.address as *const c_void,
                self.output.0,
                product.output.address as *mut c_void,
                self.output.0,
                &algorithm.0,
                workspace as *mut c_void,
                bytes as usize,
                stream.cast(),
            )
        };
        check("cublasLtMatmul", status)
    }
}

/// That a shape has no algorithm.
pub(super) fn unsupported(shape: &Shape) -> Failed {
    Failed {
        call: format!("cublasLtMatmul of {shape:?}"),
        name: "CUBLAS_STATUS_NOT_SUPPORTED".to_owned(),
        code: NOT_SUPPORTED,
        lost: false,
    }
}

pub(super) fn check(call: &'static str, status: Status) -> Result<(), Failed> {
    Failed::check(call, status, |code| name(code).to_owned())
}

fn name(code: Status) -> &'static str {
    match code {
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        INVALID_VALUE => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        NOT_SUPPORTED => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "an error that this program has no name for",
    }
}

/// What is computed.
struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(shape: &Shape) -> Result<Description, DeviceError> {
        let compute = if shape.tf32 {
            ComputeType::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            ComputeType::CUBLAS_COMPUTE_32F
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is loaded.
        let status = unsafe { sys::cublasLtMatmulDescCreate(&mut handle, compute, DataType::CUDA_R_32F) };
        check("cublasLtMatmulDescCreate", status)?;
        let description = Description(handle);
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, operation(shape.right.1))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, operation(shape.left.1))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, shape.epilogue)?;
        // Vectors and matrices of epilogues are of the output's type, which is what the library takes them to be
        // of if it is not told: it is, for what an f32 output of 16-bit operands means is not written down. Before a call
        // says where they are, they are somewhere as aligned, for a library that looks at that when it recommends or checks
        // an algorithm. Nothing is read or written there.
        let (ty, somewhere) = (data_type(shape.output)?, shape.alignment.epilogue);
        match shape.epilogue {
            sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT => {}
            sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS
            | sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADB => {
                description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, ty)?;
                description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere)?;
            }
            _ => {
                description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, ty)?;
                description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere)?;
                description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, ty)?;
                description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, somewhere)?;
                let row = shape.columns as i64;
                description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, row)?;
            }
        }
        Ok(description)
    }

    /// Says where this call's epilogue finds what it reads and puts what it writes.
    fn point(&self, epilogue: Epilogue) -> Result<(), Failed> {
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

    fn set<T: Copy>(&self, attribute: Attribute, value: T) -> Result<(), Failed> {
        let (pointer, size) = (std::ptr::from_ref(&value).cast(), size_of::<T>());
        // SAFETY: the description lives; the library reads as many bytes as it is told, and refuses a wrong number.
        let status = unsafe { sys::cublasLtMatmulDescSetAttribute(self.0, attribute, pointer, size) };
        check("cublasLtMatmulDescSetAttribute", status)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// The library's numbers for taking an operand as it lies and transposed, which cudarc binds with cuBLAS alone.
fn operation(transposed: bool) -> i32 {
    i32::from(transposed)
}

/// How a matrix lies in memory, in columns.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// An operand that is `rows` by `columns` to the library once it has transposed it as it is told.
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
        // SAFETY: the library is loaded. Columns follow each other without gaps.
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
            Err(TypeError { operation: "product", problem: format!("does not multiply {dtype}") }.into())
        }
    }
}

/// The algorithms that the library recommends within the workspace, what it thinks the fastest first.
fn recommended(
    handle: sys::cublasLtHandle_t,
    shape: &Shape,
    description: &Description,
    [first, second, output]: [&Layout; 3],
) -> Result<Vec<Algorithm>, Failed> {
    let limits = Limits::new(shape)?;
    let mut found =
        [const { std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed() }; CANDIDATES];
    let mut count = 0;
    // SAFETY: all descriptions live; there is room for as many results as are asked for.
    let status = unsafe {
        sys::cublasLtMatmulAlgoGetHeuristic(
            handle,
            description.0,
            first.0,
            second.0,
            output.0,
            output.0,
            limits.0,
            CANDIDATES as i32,
            found.as_mut_ptr().cast(),
            &mut count,
        )
    };
    match check("cublasLtMatmulAlgoGetHeuristic", status) {
        Ok(()) => {}
        // How the library says that it has none, depending on its version.
        Err(Failed { code: INVALID_VALUE | NOT_SUPPORTED, .. }) => return Ok(Vec::new()),
        Err(failed) => return Err(failed),
    }
    let count = usize::try_from(count).unwrap_or(0).min(CANDIDATES);
    // SAFETY: the library filled in as many as it says; the others are not looked at.
    let found = found[..count].iter().map(|result| unsafe { result.assume_init_ref() });
    Ok(found.filter(|result| fits(result, shape)).map(|result| Algorithm(result.algo)).collect())
}

/// Whether an algorithm can be used within a shape's workspace.
fn fits(result: &sys::cublasLtMatmulHeuristicResult_t, shape: &Shape) -> bool {
    result.state == 0 && result.workspaceSize as u64 <= shape.workspace
}

/// What an algorithm must keep to.
struct Limits(sys::cublasLtMatmulPreference_t);

impl Limits {
    fn new(shape: &Shape) -> Result<Limits, Failed> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is loaded.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut handle) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let limits = Limits(handle);
        limits.set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, shape.workspace)?;
        limits.set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, REDUCTIONS)?;
        let Alignment { left, right, output, epilogue: _ } = shape.alignment;
        for (attribute, bytes) in [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, right),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, left),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, output),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, output),
        ] {
            limits.set(attribute, bytes as u32)?;
        }
        Ok(limits)
    }

    fn set<T: Copy>(&self, attribute: Preference, value: T) -> Result<(), Failed> {
        let (pointer, size) = (std::ptr::from_ref(&value).cast(), size_of::<T>());
        // SAFETY: the preference lives; the library reads as many bytes as it is told, and refuses a wrong number.
        let status = unsafe { sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, pointer, size) };
        check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}
