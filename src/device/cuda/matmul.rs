//! Matmuls with cuBLASLt: one descriptor and one method per shape.
//!
//! The library does not support every combination: for example, its epilogues that store or read the pre-activation
//! require rows of a multiple of 16 bytes. A supported epilogue may be slower than a matmul with `Epilogue::None`,
//! which is supported for all types and sizes, followed by a kernel. `Launcher::fused_matmul` uses the selected method.
//!
//! Until a method is selected, a shape uses the library's first recommendation.

mod algorithm;
mod alignment;
mod plan;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use self::algorithm::Algorithm;
use self::alignment::Alignment;
use self::plan::{MatmulPlan, check};
use super::calls::cublaslt::{self as sys, cublasLtEpilogue_t as LtEpilogue};
use super::calls::driver::{self as driver_calls, CUstream};
use super::driver;
use super::errors::CallError;
use crate::{Choice, DeviceError, Source};
use ops::DType;

pub(super) use self::plan::MatmulMethod;

/// A contiguous row-major matrix in device memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Matrix {
    pub(super) address: u64,
    pub(super) dtype: DType,
    /// Stored transposed: a left matrix as `[inner, rows]`, a right one as `[columns, inner]`.
    pub(super) transposed: bool,
}

/// `output[rows, columns] = epilogue(scale * left[rows, inner] right[inner, columns] + added)`, row-major. Accumulates
/// in f32 for all types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Matmul {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
    pub(super) left: Matrix,
    pub(super) right: Matrix,
    /// Never transposed.
    pub(super) output: Matrix,
    pub(super) scale: f32,
    pub(super) added: Option<Added>,
    pub(super) epilogue: Epilogue,
    /// For f32 operands: use the tensor cores' TF32 format.
    pub(super) tf32: bool,
    /// Address and size of the workspace.
    pub(super) workspace: (u64, u64),
}

/// A scaled matrix that is added to a matmul's result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Added {
    /// Address of a matrix of the output's type, which may be the output itself.
    pub(super) address: u64,
    pub(super) scale: f32,
}

/// The epilogue of a matmul. Vectors and matrices have the output's type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Epilogue {
    None,
    /// Adds a vector `[columns]` to each row.
    Bias(u64),
    /// Adds the bias, if any, stores the pre-activation `[rows, columns]` at `before`, and applies the tanh GELU.
    GeluBias {
        bias: Option<u64>,
        before: u64,
    },
    /// Multiplies by the derivative of the tanh GELU at the pre-activation `before` `[rows, columns]`.
    GeluSlope {
        before: u64,
    },
    /// Stores the sums of the left matrix along `inner`, a vector `[rows]`: the bias gradient if the left matrix is the
    /// transposed dy of a weight gradient. The output is unchanged.
    ///
    /// The library computes the transpose, `output^T = right^T left^T`: its A is the right matrix, its B the left one.
    /// According to its documentation, `BGRADB` reduces B along k into a vector with one element per column of its
    /// output, i.e. per row of ours. `BGRADA` would sum x.
    BiasGradient(u64),
}

/// The key of an algorithm choice. It excludes the addend, which is added after the sum, and the scales: so storing a
/// gradient and adding it to zeros give identical bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatmulShape {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
    /// Type, and whether it is stored transposed.
    pub(super) left: (DType, bool),
    pub(super) right: (DType, bool),
    pub(super) output: DType,
    pub(super) epilogue: LtEpilogue,
    pub(super) tf32: bool,
    /// Workspace size in bytes.
    pub(super) workspace: u64,
    pub(super) alignment: Alignment,
}

impl Matmul {
    /// Whether the scales, both 1, are read from card memory. With scales in host memory, cuBLASLt 13.1 on an H100 rounds
    /// the matmul and its epilogue before it adds them to an output in place, so that results differ from those out of
    /// place. Scales in card memory, unknown to the library at the call, prevent this.
    fn reads_scales_from_the_card(&self) -> bool {
        let has_two_roundings = has_two_roundings(self.output.dtype, self.epilogue != Epilogue::None);
        has_two_roundings && self.scale == 1.0 && self.added.is_some_and(|added| added.scale == 1.0)
    }

    pub(super) fn shape(&self) -> MatmulShape {
        MatmulShape {
            rows: self.rows,
            columns: self.columns,
            inner: self.inner,
            left: (self.left.dtype, self.left.transposed),
            right: (self.right.dtype, self.right.transposed),
            output: self.output.dtype,
            epilogue: match self.epilogue {
                Epilogue::None => LtEpilogue::CUBLASLT_EPILOGUE_DEFAULT,
                Epilogue::Bias(_) => LtEpilogue::CUBLASLT_EPILOGUE_BIAS,
                Epilogue::GeluBias { bias: None, .. } => LtEpilogue::CUBLASLT_EPILOGUE_GELU_AUX,
                Epilogue::GeluBias { bias: Some(_), .. } => LtEpilogue::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                Epilogue::GeluSlope { .. } => LtEpilogue::CUBLASLT_EPILOGUE_DGELU,
                Epilogue::BiasGradient(_) => LtEpilogue::CUBLASLT_EPILOGUE_BGRADB,
            },
            tf32: self.tf32,
            workspace: self.workspace.1,
            alignment: Alignment::of(self),
        }
    }
}

/// Whether an addition in memory rounds twice: without an epilogue, an f32 matmul is exact before.
fn has_two_roundings(output: DType, has_epilogue: bool) -> bool {
    output != DType::F32 || has_epilogue
}

impl MatmulShape {
    /// Whether a matmul of this shape may read its scales from the card.
    fn may_read_scales_from_the_card(&self) -> bool {
        has_two_roundings(self.output, self.is_fused())
    }

    /// Whether the library computes an epilogue.
    fn is_fused(&self) -> bool {
        self.epilogue != LtEpilogue::CUBLASLT_EPILOGUE_DEFAULT
    }

    /// Whether a choice is for this shape.
    pub(super) fn matches(&self, choice: &Choice) -> bool {
        choice.product == self.to_string() && choice.alignment == self.alignment.to_string()
    }
}

impl fmt::Display for MatmulShape {
    /// `16384x768x3072 bf16 bf16^T to f32, gelu_aux_bias, within 33554432 bytes`: unique among shapes of the same
    /// alignment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MatmulShape { rows, columns, inner, left, right, output, .. } = self;
        let operand =
            |(dtype, transposed): (DType, bool)| format!("{dtype}{}", if transposed { "^T" } else { "" });
        write!(f, "{rows}x{columns}x{inner} {} {} to {output}", operand(*left), operand(*right))?;
        if self.tf32 {
            f.write_str(", tf32")?;
        }
        let epilogue = format!("{:?}", self.epilogue);
        write!(f, ", {}", epilogue.trim_start_matches("CUBLASLT_EPILOGUE_").to_lowercase())?;
        write!(f, ", within {} bytes", self.workspace)
    }
}

/// cuBLASLt in a context, with the plans and choices of the shapes so far. Dropped before the context.
pub(super) struct MatmulPlans {
    handle: sys::cublasLtHandle_t,
    one: One,
    /// `None` for a shape without an algorithm.
    plans: HashMap<MatmulShape, Option<MatmulPlan>>,
    choices: HashMap<MatmulShape, Choice>,
}

impl MatmulPlans {
    /// The library is loaded and a context is current.
    pub(super) fn new() -> Result<MatmulPlans, CallError> {
        let one = One::new()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is loaded.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut handle) })?;
        Ok(MatmulPlans { handle, one, plans: HashMap::new(), choices: HashMap::new() })
    }

    /// The method for a shape; `None` if the library has no algorithm for it.
    pub(super) fn method(&mut self, shape: MatmulShape) -> Result<Option<MatmulMethod>, DeviceError> {
        Ok(self.plan(shape)?.map(|plan| plan.method))
    }

    /// The library's recommendations for a shape, at least one, in order of expected speed.
    pub(super) fn recommended(&mut self, shape: MatmulShape) -> Result<Vec<Algorithm>, DeviceError> {
        Ok(self.require_plan(shape)?.recommended.clone())
    }

    /// Enqueues a matmul with the selected algorithm, or else the library's first recommendation.
    pub(super) fn enqueue(&mut self, matmul: &Matmul, stream: CUstream) -> Result<(), DeviceError> {
        match self.require_plan(matmul.shape())?.method {
            MatmulMethod::Fused(algorithm) => self.enqueue_by(&algorithm, matmul, stream),
            MatmulMethod::Separate => Err(plan::unsupported(&matmul.shape()).into()),
        }
    }

    pub(super) fn enqueue_by(
        &mut self,
        algorithm: &Algorithm,
        matmul: &Matmul,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        let (handle, one) = (self.handle, self.one.address);
        Ok(self.require_plan(matmul.shape())?.enqueue(handle, matmul, algorithm, one, stream)?)
    }

    pub(super) fn choice(&self, shape: &MatmulShape) -> Option<&Choice> {
        self.choices.get(shape)
    }

    /// Selects the method for a shape.
    pub(super) fn select(
        &mut self,
        shape: MatmulShape,
        method: MatmulMethod,
        [setting, candidates_ms]: [String; 2],
        source: Source,
    ) -> Result<(), DeviceError> {
        self.require_plan(shape)?.method = method;
        let (choice, algorithm) = match method {
            MatmulMethod::Fused(algorithm) => (algorithm.numbers(), algorithm.to_hexadecimal()),
            MatmulMethod::Separate => ("apart".to_owned(), String::new()),
        };
        let (product, alignment) = (shape.to_string(), shape.alignment.to_string());
        let choice = Choice { product, choice, source, candidates_ms, setting, algorithm, alignment };
        self.choices.insert(shape, choice);
        Ok(())
    }

    /// Selects the method of an earlier choice. `false` if the library rejects it.
    pub(super) fn adopt(
        &mut self,
        shape: MatmulShape,
        choice: &Choice,
        source: Source,
    ) -> Result<bool, DeviceError> {
        let handle = self.handle;
        let plan = self.require_plan(shape)?;
        let method = match Algorithm::from_hexadecimal(&choice.algorithm) {
            Some(algorithm) if plan.accepts(handle, &shape, &algorithm)? => MatmulMethod::Fused(algorithm),
            None if choice.algorithm.is_empty() && shape.is_fused() => MatmulMethod::Separate,
            _ => return Ok(false),
        };
        plan.method = method;
        self.choices.insert(shape, Choice { source, ..choice.clone() });
        Ok(true)
    }

    /// The choices so far, sorted by shape.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let mut choices: Vec<Choice> = self.choices.values().cloned().collect();
        choices.sort_by(|a, b| (&a.product, &a.alignment).cmp(&(&b.product, &b.alignment)));
        choices
    }

    fn plan(&mut self, shape: MatmulShape) -> Result<Option<&mut MatmulPlan>, DeviceError> {
        let plan = match self.plans.entry(shape) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(MatmulPlan::new(self.handle, &shape)?),
        };
        Ok(plan.as_mut())
    }

    fn require_plan(&mut self, shape: MatmulShape) -> Result<&mut MatmulPlan, DeviceError> {
        self.plan(shape)?.ok_or_else(|| plan::unsupported(&shape).into())
    }
}

/// The number 1 in card memory, for `Matmul::reads_scales_from_the_card`. Part of the context's memory, as the library's
/// own buffers are.
struct One {
    address: u64,
}

impl One {
    /// A context is current.
    fn new() -> Result<One, CallError> {
        let mut one = One { address: 0 };
        let number = 1_f32;
        // SAFETY: a context is current.
        driver::check("cuMemAlloc", unsafe {
            driver_calls::cuMemAlloc_v2(&mut one.address, size_of::<f32>())
        })?;
        let (from, stream) = (std::ptr::from_ref(&number).cast(), std::ptr::null_mut());
        // SAFETY: both have the size of the number, which lives until the stream is synchronised.
        unsafe {
            let status = driver_calls::cuMemcpyHtoDAsync_v2(one.address, from, size_of::<f32>(), stream);
            driver::check("cuMemcpyHtoDAsync", status)?;
            driver::check("cuStreamSynchronize", driver_calls::cuStreamSynchronize(stream))?;
        }
        Ok(one)
    }
}

impl Drop for One {
    fn drop(&mut self) {
        // A lost context has already freed it; errors are ignored.
        // SAFETY: allocated at most once, freed once; the queues are idle.
        let _ = unsafe { driver_calls::cuMemFree_v2(self.address) };
    }
}

impl Drop for MatmulPlans {
    fn drop(&mut self) {
        self.plans.clear();
        // A lost context has already destroyed it; errors are ignored.
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}
