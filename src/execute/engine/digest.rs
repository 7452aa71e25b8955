//! The digest of a run's parameters and optimizer states.

use sha2::{Digest, Sha256};

use super::Engine;
use super::values::PIECE;
use compile::{Program, Share};
use memory::Failure;
use ops::{Member, ValueId};

impl Engine<'_> {
    /// SHA-256 of the bytes of all parameters and optimizer states. If ranks divide the parameters, of each one's digest
    /// of its shares, in the order of ranks: all of them take part.
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
        let own: [u8; 32] = digest.finalize().into();
        let are_divided = self.program.buckets.iter().any(|bucket| bucket.parameters != bucket.whole);
        let digest = match self.program.share.filter(|_| are_divided) {
            None => own,
            Some(share) => self.digest_of_ranks(own, share)?,
        };
        Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn digest_of_ranks(&mut self, own: [u8; 32], share: Share) -> Result<[u8; 32], Failure> {
        // Each rank fills its row; u32s are exact in f64.
        let mut rows = vec![[0.0; 8]; share.of];
        for (number, bytes) in rows[share.index].iter_mut().zip(own.as_chunks().0) {
            *number = f64::from(u32::from_be_bytes(*bytes));
        }
        self.manager.backing.device.sum_over_ranks(rows.as_flattened_mut())?;
        let bytes = rows.as_flattened().iter().flat_map(|number| (*number as u32).to_be_bytes());
        Ok(Sha256::digest(bytes.collect::<Vec<u8>>()).into())
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
            let own = program.own_members(bucket);
            let kept = std::iter::once((bucket.parameters, &own)).chain(scales).chain(states);
            for (kind, (value, members)) in kept.enumerate() {
                of_layer.extend(members.iter().map(|member| (kind, member.site, value, *member)));
            }
        }
        of_layer.sort_by_key(|&(kind, site, ..)| (kind, site));
        tensors.extend(of_layer.into_iter().map(|(_, _, value, member)| (value, member)));
    }
    tensors
}
