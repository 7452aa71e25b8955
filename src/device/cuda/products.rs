//! Matrix products through cuBLASLt: one descriptor and one way to compute it per shape.
//!
//! The library has no algorithm for every combination: its epilogues that write or read what came before the
//! activation want rows of a multiple of 16 bytes, for example. And those it has may be slower than a product with
//! `Epilogue::None`, which every type and size has, and a kernel after it: `Launcher::fused` takes whichever was chosen.
//!
//! Until there is a choice, a shape is computed by the algorithm that the library recommends first.

mod algorithm;
mod alignment;
mod plan;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use self::algorithm::Algorithm;
use self::alignment::Alignment;
use self::plan::{Plan, check};
use super::calls::cublaslt::{self as sys, cublasLtEpilogue_t as LtEpilogue};
use super::calls::driver::CUstream;
use super::errors::Failed;
use crate::{Choice, DeviceError, Source};
use ops::DType;

pub(super) use self::plan::Way;

/// A matrix in device memory, row-major, without gaps between its rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Matrix {
    pub(super) address: u64,
    pub(super) dtype: DType,
    /// LoadParameter the other way round: a left matrix as `[inner, rows]`, a right one as `[columns, inner]`.
    pub(super) transposed: bool,
}

/// `output[rows, columns] = epilogue(scale * left[rows, inner] right[inner, columns] + added)`, all of it row-major. Sums are
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
    pub(super) scale: f32,
    pub(super) added: Option<Added>,
    pub(super) epilogue: Epilogue,
    /// For f32 operands: multiply them in the shorter format of the tensor cores.
    pub(super) tf32: bool,
    /// Address and bytes of scratch memory.
    pub(super) workspace: (u64, u64),
}

/// What is added to a product, so many times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Added {
    /// Of a matrix of the output's type, which may be the output itself.
    pub(super) address: u64,
    pub(super) scale: f32,
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

/// Everything that the choice of an algorithm depends on. Neither whether something is added, which follows the sum, nor numbers to multiply by: gradients
/// that are stored and gradients that are added to zeros are then the same to the last bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) inner: usize,
    /// Types, and whether stored transposed.
    pub(super) left: (DType, bool),
    pub(super) right: (DType, bool),
    pub(super) output: DType,
    pub(super) epilogue: LtEpilogue,
    pub(super) tf32: bool,
    /// Bytes of scratch memory.
    pub(super) workspace: u64,
    pub(super) alignment: Alignment,
}

impl Product {
    pub(super) fn shape(&self) -> Shape {
        Shape {
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

impl Shape {
    /// Whether the library does more than multiply and add.
    fn is_fused(&self) -> bool {
        self.epilogue != LtEpilogue::CUBLASLT_EPILOGUE_DEFAULT
    }

    /// Whether a choice was made for it.
    pub(super) fn is_of(&self, choice: &Choice) -> bool {
        choice.product == self.to_string() && choice.alignment == self.alignment.to_string()
    }
}

impl fmt::Display for Shape {
    /// `16384x768x3072 bf16 bf16^T to f32, gelu_aux_bias, within 33554432 bytes`: no two shapes of the same alignment
    /// alike.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { rows, columns, inner, left, right, output, .. } = self;
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

/// cuBLASLt in a context, with what was prepared for the shapes so far. Dropped before the context.
pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    /// `None` for a shape that the library has no algorithm for.
    plans: HashMap<Shape, Option<Plan>>,
    choices: HashMap<Shape, Choice>,
}

impl Products {
    /// The library is loaded and a context is current.
    pub(super) fn new() -> Result<Products, Failed> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is loaded.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut handle) })?;
        Ok(Products { handle, plans: HashMap::new(), choices: HashMap::new() })
    }

    /// How a product is computed; `None` if the library has no algorithm for it.
    pub(super) fn way(&mut self, shape: Shape) -> Result<Option<Way>, DeviceError> {
        Ok(self.plan(shape)?.map(|plan| plan.way))
    }

    /// What the library recommends for a shape, at least one algorithm, what it thinks the fastest first.
    pub(super) fn recommended(&mut self, shape: Shape) -> Result<Vec<Algorithm>, DeviceError> {
        Ok(self.some_plan(shape)?.recommended.clone())
    }

    /// Enqueues a product as it was chosen, or else as the library recommends.
    pub(super) fn enqueue(&mut self, product: &Product, stream: CUstream) -> Result<(), DeviceError> {
        match self.some_plan(product.shape())?.way {
            Way::Fused(algorithm) => self.enqueue_by(&algorithm, product, stream),
            Way::Apart => Err(plan::unsupported(&product.shape()).into()),
        }
    }

    pub(super) fn enqueue_by(
        &mut self,
        algorithm: &Algorithm,
        product: &Product,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        let handle = self.handle;
        Ok(self.some_plan(product.shape())?.enqueue(handle, product, algorithm, stream)?)
    }

    pub(super) fn choice(&self, shape: &Shape) -> Option<&Choice> {
        self.choices.get(shape)
    }

    /// From now on, a shape is computed this way.
    pub(super) fn choose(
        &mut self,
        shape: Shape,
        way: Way,
        [setting, candidates_ms]: [String; 2],
        source: Source,
    ) -> Result<(), DeviceError> {
        self.some_plan(shape)?.way = way;
        let (choice, algorithm) = match way {
            Way::Fused(algorithm) => (algorithm.numbers(), algorithm.to_hexadecimal()),
            Way::Apart => ("apart".to_owned(), String::new()),
        };
        let (product, alignment) = (shape.to_string(), shape.alignment.to_string());
        let choice = Choice { product, choice, source, candidates_ms, setting, algorithm, alignment };
        self.choices.insert(shape, choice);
        Ok(())
    }

    /// The same for a choice that was made before. `false` if the library does not take it.
    pub(super) fn adopt(
        &mut self,
        shape: Shape,
        choice: &Choice,
        source: Source,
    ) -> Result<bool, DeviceError> {
        let handle = self.handle;
        let plan = self.some_plan(shape)?;
        let way = match Algorithm::from_hexadecimal(&choice.algorithm) {
            Some(algorithm) if plan.takes(handle, &shape, &algorithm)? => Way::Fused(algorithm),
            None if choice.algorithm.is_empty() && shape.is_fused() => Way::Apart,
            _ => return Ok(false),
        };
        plan.way = way;
        self.choices.insert(shape, Choice { source, ..choice.clone() });
        Ok(true)
    }

    /// What was chosen so far, in the order of the products.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let mut choices: Vec<Choice> = self.choices.values().cloned().collect();
        choices.sort_by(|a, b| (&a.product, &a.alignment).cmp(&(&b.product, &b.alignment)));
        choices
    }

    fn plan(&mut self, shape: Shape) -> Result<Option<&mut Plan>, DeviceError> {
        let plan = match self.plans.entry(shape) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Plan::new(self.handle, &shape)?),
        };
        Ok(plan.as_mut())
    }

    fn some_plan(&mut self, shape: Shape) -> Result<&mut Plan, DeviceError> {
        self.plan(shape)?.ok_or_else(|| plan::unsupported(&shape).into())
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        self.plans.clear();
        // What a lost context no longer has cannot be destroyed, and need not be.
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}
