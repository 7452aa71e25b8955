//! Outputs that an evaluation collects: a list of tensors, or one tensor per output to which each forward pass is
//! concatenated.

use super::allocator::{Concatenation, Location, unit};
use super::manager::MemoryManager;
use super::out_of_memory::Failure;
use super::system::Backing;
use compile::Program;
use device::{DeviceError, Pool, Position, Region, Role};
use ops::ValueId;

/// The collected tensors.
#[derive(Default)]
pub(super) struct Collected(Vec<CollectedTensor>);

#[derive(Clone, Copy)]
struct CollectedTensor {
    /// The output that was added last.
    value: ValueId,
    /// Bytes of its elements.
    bytes: u64,
    location: Location,
    /// Offset of its elements at the location.
    offset: u64,
    /// Whether it has the elements of several forward passes, and so memory that is no storage of the program.
    is_concatenated: bool,
}

impl CollectedTensor {
    fn pool(&self, program: &Program) -> Pool {
        program.value(self.value).pool
    }

    fn concatenation(&self, program: &Program) -> Concatenation {
        Concatenation { value: self.value, pool: self.pool(program), bytes: self.bytes }
    }

    fn region(&self) -> Region {
        let (buffer, offset) = self.location;
        Region { buffer, offset: offset + self.offset, bytes: self.bytes }
    }
}

/// Whether two values belong to one output: slices of rows and smaller micro-batches do.
fn of_one_output(program: &Program, a: ValueId, b: ValueId) -> bool {
    let [a, b] = [a, b].map(|id| program.value(id));
    (a.scope, a.name) == (b.scope, b.name)
}

impl Collected {
    /// Bytes of the collected elements in a pool, without rounding.
    pub(super) fn bytes(&self, program: &Program, pool: Pool) -> u64 {
        let of_pool = self.0.iter().filter(|tensor| tensor.pool(program) == pool);
        of_pool.map(|tensor| tensor.bytes).sum()
    }

    /// Bytes of all collected elements, without rounding.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|tensor| tensor.bytes).sum()
    }
}

impl<B: Backing> MemoryManager<'_, B> {
    /// Adds a value to the collected outputs, which own its storage from now on.
    pub(super) fn collect(
        &mut self,
        value: ValueId,
        concatenate: bool,
        position: Position,
    ) -> Result<(), Failure> {
        let program = self.program;
        let storage = program.storage(value);
        let location = self.locations[storage.index()].expect("verified: live while used");
        let (bytes, offset) = (program.ty(value).bytes(), program.value(value).offset);
        let new = CollectedTensor { value, bytes, location, offset, is_concatenated: false };
        let is_same = |tensor: &CollectedTensor| of_one_output(program, tensor.value, value);
        let before = if concatenate { self.collected.0.iter().position(is_same) } else { None };
        match before {
            None => self.collected.0.push(new),
            Some(before) => {
                let old = self.collected.0[before];
                let joined = self.concatenate(&old, &new, position)?;
                self.release(&old)?;
                self.release(&new)?;
                self.collected.0[before] = joined;
            }
        }
        self.locations[storage.index()] = None;
        self.collected_bytes[new.pool(program).home() as usize] += bytes;
        Ok(())
    }

    /// A tensor with the elements of two.
    fn concatenate(
        &mut self,
        old: &CollectedTensor,
        new: &CollectedTensor,
        position: Position,
    ) -> Result<CollectedTensor, Failure> {
        let bytes = old.bytes + new.bytes;
        let mut joined = CollectedTensor { bytes, offset: 0, is_concatenated: true, ..*new };
        let tensor = joined.concatenation(self.program);
        let rounded = bytes.next_multiple_of(unit(self.program, tensor.pool, &self.target));
        let (allocator, mut system) = self.split();
        joined.location = match allocator.allocate_concatenation(&tensor, &mut system) {
            Ok(location) => location,
            Err(error) => {
                let storage = self.program.storage(new.value);
                return Err(self.attribute(error, storage, rounded, position));
            }
        };
        let remainder = self.allocator.concatenation_remainder(&tensor, joined.location, &self.target);
        self.ledger.allocated(tensor.pool, self.program.value(new.value).role, rounded);
        self.ledger.allocated(tensor.pool, Role::Rounding, remainder);
        let Region { buffer, offset, .. } = joined.region();
        self.backing.copy(old.region(), Region { buffer, offset, bytes: old.bytes })?;
        self.backing.copy(new.region(), Region { buffer, offset: offset + old.bytes, bytes: new.bytes })?;
        Ok(joined)
    }

    fn release(&mut self, tensor: &CollectedTensor) -> Result<(), DeviceError> {
        if !tensor.is_concatenated {
            return self.free_at(self.program.storage(tensor.value), tensor.location);
        }
        let (role, tensor, location) =
            (self.program.value(tensor.value).role, tensor.concatenation(self.program), tensor.location);
        let rounded = tensor.bytes.next_multiple_of(unit(self.program, tensor.pool, &self.target));
        let remainder = self.allocator.concatenation_remainder(&tensor, location, &self.target);
        self.ledger.freed(tensor.pool, role, rounded);
        self.ledger.freed(tensor.pool, Role::Rounding, remainder);
        let (allocator, mut system) = self.split();
        allocator.free_concatenation(&tensor, location, &mut system)
    }

    /// Frees the collected outputs, at the end of an evaluation.
    ///
    /// # Errors
    /// A device that fails.
    pub fn release_collected(&mut self) -> Result<(), DeviceError> {
        let collected = std::mem::take(&mut self.collected.0);
        collected.iter().try_for_each(|tensor| self.release(tensor))
    }
}
