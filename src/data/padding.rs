//! The share of padding in a batch.

use super::Batch;
use super::PartRole;
use super::row::is_missing;

impl Batch {
    /// Number of padding tokens and of all tokens, with `context` tokens per sample; of samples, if it is 0. `None` if the
    /// batch has no padding.
    pub fn padding(&self, context: usize) -> Option<[u64; 2]> {
        let weights = self.of_role(PartRole::Weight)?;
        if context == 0 {
            let (weights, _) = weights.bytes.as_chunks();
            let missing = weights.iter().filter(|weight| f32::from_ne_bytes(**weight) == 0.0).count();
            return Some([missing, weights.len()].map(|count| count as u64));
        }
        if let Some(offsets) = self.of_role(PartRole::Place) {
            let offsets = offsets.bytes.chunks_exact(offsets.part.ty.bytes() as usize);
            let all = offsets.len();
            return Some(
                [offsets.filter(|offset| is_missing(offset)).count(), all].map(|n| (n * context) as u64),
            );
        }
        let targets = self.of_role(PartRole::Target)?;
        let targets = targets.bytes.chunks_exact(targets.part.ty.dtype.bytes() as usize);
        let all = targets.len() as u64;
        if let Some(padding) = self.counted_padding() {
            return Some([padding, all]);
        }
        // All bits of -1 are ones, as are those of the largest unsigned number that represents it.
        let masked = targets.filter(|target| target.iter().all(|byte| *byte == u8::MAX)).count();
        Some([masked as u64, all])
    }
}
