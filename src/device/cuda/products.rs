//! Matrix products through cuBLASLt: one descriptor and one recorded algorithm per shape.
//!
//! The library has no algorithm for every combination: its epilogues that write or read what came before the
//! activation want rows of a multiple of 16 bytes, for example. Whoever enqueues a product with an epilogue asks
//! `Launcher::supports` first, and falls back to a product with `Epilogue::None`, which every
//! type and size has, and a kernel of its own.

mod plan;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use self::plan::{Plan, check};
use super::calls::cublaslt::{self as sys, cublasLtEpilogue_t as LtEpilogue};
use super::calls::driver::CUstream;
use super::errors::Failed;
use crate::device::DeviceError;
use crate::ops::DType;

/// A matrix in device memory, row-major, without gaps between its rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Matrix {
    pub(super) address: u64,
    pub(super) dtype: DType,
    /// Stored the other way round: a left matrix as `[inner, rows]`, a right one as `[columns, inner]`.
    pub(super) transposed: bool,
}

/// `output[rows, columns] = epilogue(left[rows, inner] right[inner, columns] + added)`, all of it row-major. Sums are
/// kept in f32 whatever the types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
    pub(super) left: Matrix,
    pub(super) right: Matrix,
    /// Never transposed.
    pub(super) output: Matrix,
    /// The address of a matrix of the output's type, which may be the output itself.
    pub(super) added: Option<u64>,
    pub(super) epilogue: Epilogue,
    /// For f32 operands: multiply them in the shorter format of the tensor cores.
    pub(super) tf32: bool,
    /// Address and bytes of scratch memory.
    pub(super) workspace: (u64, u64),
}

/// What is done with a product before it is stored, or beside it. Vectors and matrices are of the output's type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Epilogue {
    None,
    /// Adds a vector `[columns]` to each row.
    Bias(u64),
    /// Adds the bias, if there is one, stores the sum `[rows, columns]` at `before`, and applies the tanh GELU.
    GeluBias {
        bias: Option<u64>,
        before: u64,
    },
    /// Multiplies by the slope of the tanh GELU at `before` `[rows, columns]`.
    GeluSlope {
        before: u64,
    },
    /// Stores the sums of the left matrix along `inner`, a vector `[rows]`: the bias gradient where the left matrix is
    /// the transposed dy of a weight gradient. The output is what it is without.
    ///
    /// The library is given the transposed product, `output^T = right^T left^T`. Its A is our right matrix, its B our
    /// left one, and `BGRADB`, in its documentation's words, reduces B along k into a vector as long as its output has
    /// columns, which are our rows. `BGRADA` would sum x.
    BiasGradient(u64),
}

/// Everything that the choice of an algorithm depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
    /// Types, and whether stored transposed.
    pub(super) left: (DType, bool),
    pub(super) right: (DType, bool),
    pub(super) output: DType,
    pub(super) added: bool,
    pub(super) epilogue: LtEpilogue,
    pub(super) tf32: bool,
    /// Bytes of scratch memory.
    pub(super) workspace: u64,
}

impl Product {
    fn shape(&self) -> Shape {
        Shape {
            rows: self.rows,
            columns: self.columns,
            inner: self.inner,
            left: (self.left.dtype, self.left.transposed),
            right: (self.right.dtype, self.right.transposed),
            output: self.output.dtype,
            added: self.added.is_some(),
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
        }
    }
}

/// cuBLASLt in a context, with what was prepared for the shapes so far. Dropped before the context.
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    /// `None` for a shape that the library has no algorithm for.
    plans: HashMap<Shape, Option<Plan>>,
}

impl Products {
    /// The library is loaded and a context is current.
    pub(super) fn new() -> Result<Products, Failed> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is loaded.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut handle) })?;
        Ok(Products { handle, plans: HashMap::new() })
    }

    pub(super) fn supports(&mut self, product: &Product) -> Result<bool, DeviceError> {
        Ok(self.plan(product.shape())?.is_some())
    }

    pub(super) fn enqueue(&mut self, product: &Product, stream: CUstream) -> Result<(), DeviceError> {
        let (handle, shape) = (self.handle, product.shape());
        let plan = self.plan(shape)?;
        Ok(plan.ok_or_else(|| plan::unsupported(&shape))?.enqueue(handle, product, stream)?)
    }

    /// What computes each shape so far, in the order of the lines.
    pub(super) fn choices(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .plans
            .iter()
            .filter_map(|(shape, plan)| plan.as_ref().map(|plan| line(shape, plan)))
            .collect();
        lines.sort();
        lines
    }

    fn plan(&mut self, shape: Shape) -> Result<Option<&Plan>, DeviceError> {
        let plan = match self.plans.entry(shape) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Plan::new(self.handle, &shape)?),
        };
        Ok(plan.as_ref())
    }
}

/// `product 16384x768x3072 bf16 bf16t f32 added epilogue ...: algorithm 66, tile 20, ...`
fn line(shape: &Shape, plan: &Plan) -> String {
    let Shape { rows, columns, inner, left, right, output, .. } = shape;
    let operand =
        |(dtype, transposed): (DType, bool)| format!("{dtype}{}", if transposed { "^T" } else { "" });
    format!(
        "product {rows}x{columns}x{inner} {} {} to {output}{}{}, {}: {}",
        operand(*left),
        operand(*right),
        if shape.added { ", added to" } else { "" },
        if shape.tf32 { ", tf32" } else { "" },
        format!("{:?}", shape.epilogue).trim_start_matches("CUBLASLT_EPILOGUE_").to_lowercase(),
        plan.algorithm(),
    )
}

impl Drop for Products {
    fn drop(&mut self) {
        self.plans.clear();
        // What a lost context no longer has cannot be destroyed, and need not be.
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}
