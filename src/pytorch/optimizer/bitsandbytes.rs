//! States of bitsandbytes' optimizers: fp32, or 8-bit codes with a scale for each block.

use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;

/// Elements that share a scale.
const BLOCK: usize = 256;

/// Which states are quantized.
#[derive(Debug)]
pub(crate) enum StateBits {
    /// None: `bnb.optim.Lion`.
    Fp32,
    /// Those of the parameters with at least `from` elements (`min_8bit_size`), except of these.
    Eight { from: usize, except: Vec<Tensor> },
}

impl StateBits {
    /// The states of a parameter. `codes`: of 8-bit numbers, one for each state, made at the first use.
    pub(super) fn new_states(
        &self,
        torch: &Torch,
        parameter: &Tensor,
        count: usize,
        codes: &mut Vec<Tensor>,
    ) -> Vec<Tensor> {
        let state =
            |dims: &[usize], dtype| torch.with_purpose(Purpose::OptimizerState, || torch.empty(dims, dtype));
        let elements = parameter.elements();
        match self {
            StateBits::Eight { from, except }
                if elements >= *from && except.iter().all(|other| other.id() != parameter.id()) =>
            {
                if codes.is_empty() {
                    codes.extend((0..count).map(|_| state(&[256], DType::F32)));
                }
                // The type of one byte stands for u8.
                let quantized = (0..count).map(|_| state(&[elements], DType::Bool)).collect::<Vec<_>>();
                let scales = (0..count).map(|_| state(&[elements.div_ceil(BLOCK)], DType::F32));
                quantized.into_iter().chain(scales).collect()
            }
            _ => (0..count).map(|_| state(&[elements], DType::F32)).collect(),
        }
    }
}
