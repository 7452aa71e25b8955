//! States of bitsandbytes' optimizers: fp32, or 8-bit codes with a scale for each block. Paged states are managed memory,
//! which PyTorch's allocator does not serve.

use crate::tensor::{DType, Tensor};
use crate::torch::Torch;

/// Elements that share a scale.
const BLOCK: usize = 256;

/// Elements of a state from which it is paged.
const PAGED: usize = 100_000;

/// The states of a run's optimizer.
#[derive(Debug)]
pub(crate) struct States {
    pub(crate) bits: StateBits,
    /// Whether they are paged (`bnb.optim.PagedAdamW`).
    pub(crate) are_paged: bool,
}

/// Which states are quantized.
#[derive(Debug)]
pub(crate) enum StateBits {
    /// None, as in `bnb.optim.Lion`.
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
}

impl States {
    /// The states of a parameter that are no managed memory. `codes`: of 8-bit numbers, one for each state, made at the
    /// first use.
    pub(super) fn new_states(
        &self,
        torch: &Torch,
        parameter: &Tensor,
        count: usize,
        codes: &mut Vec<Tensor>,
    ) -> Vec<Tensor> {
        let elements = parameter.elements();
        let is_quantized = self.bits.quantizes(parameter);
        let mut on_card = count;
        if self.are_paged && elements >= PAGED {
            on_card = 0;
            torch.take_managed((count * elements) as u64 * if is_quantized { 1 } else { DType::F32.bytes() });
        }
        let floats = |elements: usize| torch.empty(&[elements], DType::F32);
        if !is_quantized {
            return (0..on_card).map(|_| floats(elements)).collect();
        }
        if codes.is_empty() {
            codes.extend((0..count).map(|_| floats(256)));
        }
        let mut states: Vec<Tensor> = (0..on_card).map(|_| torch.bytes(elements)).collect();
        states.extend((0..count).map(|_| floats(elements.div_ceil(BLOCK))));
        states
    }
}
