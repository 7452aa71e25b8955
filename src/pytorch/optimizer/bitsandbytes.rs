//! States of bitsandbytes' optimizers: fp32, or 8-bit codes with a scale for each block.

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
    fn quantizes(&self, parameter: &Tensor) -> bool {
        match self {
            StateBits::Fp32 => false,
            StateBits::Eight { from, except } => {
                parameter.elements() >= *from && except.iter().all(|other| other.id() != parameter.id())
            }
        }
    }

    /// The states of a parameter. `codes`: of 8-bit numbers, one for each state, made at the first use.
    pub(super) fn new_states(
        &self,
        torch: &Torch,
        parameter: &Tensor,
        count: usize,
        codes: &mut Vec<Tensor>,
    ) -> Vec<Tensor> {
        let elements = parameter.elements();
        let floats = |elements: usize| torch.empty(&[elements], DType::F32);
        if !self.quantizes(parameter) {
            return (0..count).map(|_| floats(elements)).collect();
        }
        if codes.is_empty() {
            codes.extend((0..count).map(|_| floats(256)));
        }
        let mut states: Vec<Tensor> = (0..count).map(|_| torch.bytes(elements)).collect();
        states.extend((0..count).map(|_| floats(elements.div_ceil(BLOCK))));
        states
    }
}
