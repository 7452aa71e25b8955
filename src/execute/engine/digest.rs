//! The digest of a run's parameters and optimizer states.

use sha2::{Digest, Sha256};

use super::Engine;
use super::values::PIECE;
use compile::Program;
use memory::Failure;
use ops::{Member, ValueId};

impl Engine<'_> {
    /// SHA-256 of the bytes of all parameters and optimizer states.
    ///
    /// # Errors
    /// A device that fails.
    pub fn digest(&mut self) -> Result<String, Failure> {
        self.run_lazy_init()?;
        let mut digest = Sha256::new();
        let mut piece = vec![0; PIECE];
        for (id, member) in tensors(self.program) {
            let region = self.elements_region(id, member.offset, member.elements());
            self.read_in_pieces::<Failure>(region, &mut piece, |piece| {
                digest.update(piece);
                Ok(())
            })?;
        }
        Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The tensors of the digest as members of their buckets: by layer the parameters, the scales of quantized ones, then
/// each optimizer state. The order is the model's and does not depend on the division into buckets.
fn tensors(program: &Program) -> Vec<(ValueId, Member)> {
    let mut tensors = Vec::new();
    for layer in program.buckets.chunk_by(|a, b| a.scope == b.scope) {
        // Sorted by kind (parameters, scales, states), then by site.
        let mut of_layer = Vec::new();
        for bucket in layer {
            // Of states that ranks divide, each has another part.
            let states = bucket.states.iter().filter(|_| program.share.is_none());
            let states = states.map(|state| (state.value, &state.members));
            let scales = bucket.scales.iter().map(|scales| (scales.value, &scales.members));
            let kept = std::iter::once((bucket.parameters, &bucket.members)).chain(scales).chain(states);
            for (kind, (value, members)) in kept.enumerate() {
                of_layer.extend(members.iter().map(|member| (kind, member.site, value, *member)));
            }
        }
        of_layer.sort_by_key(|&(kind, site, ..)| (kind, site));
        tensors.extend(of_layer.into_iter().map(|(_, _, value, member)| (value, member)));
    }
    tensors
}
