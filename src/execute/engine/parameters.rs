//! Parameters that are loaded from checkpoint tensors or initialised lazily.

use super::Engine;
use super::values::PIECE;
use data::StoredParameters;
use device::{Region, from_f32, to_f32};
use memory::Failure;
use ops::{DType, ValueId};

impl<'a> Engine<'a> {
    /// Sets the checkpoint tensors that the program's stored parameters are loaded from.
    pub(crate) fn set_weights(&mut self, weights: Option<&'a StoredParameters>) {
        self.weights = weights;
    }

    /// Performs the lazy initialisation of the first step now, if there has been no step, so that all values can be
    /// read.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub(crate) fn run_lazy_init(&mut self) -> Result<(), Failure> {
        let program = self.program;
        for section in self.first_iterations.pending(program) {
            let code = program.sections[section].code.iter().enumerate();
            for (index, _) in code.filter(|(_, instruction)| instruction.is_once()) {
                self.run_instruction(section, index, 0, true)?;
            }
            self.finish_first_iteration(section);
        }
        Ok(())
    }

    /// Marks the first iteration of a section as done.
    pub(super) fn finish_first_iteration(&mut self, section: usize) {
        if self.first_iterations.complete(section) {
            self.counts.lazily_initialised += self.program.sections[section].lazily_initialised.len() as u64;
        }
    }

    /// Loads the checkpoint tensor of the parameter with this site into a value, in pieces.
    pub(super) fn load_parameter(&mut self, site: u32, to: ValueId) -> Result<(), Failure> {
        let parameter = self.program.parameters.iter().find(|parameter| parameter.site == site);
        let parameter = parameter.expect("every site belongs to a parameter");
        let name = self.program.full_name(parameter.value);
        let weights = self.weights.expect("a program with stored parameters has checkpoint tensors");
        let (region, dtype) = (self.manager.tensor(to).region(), self.program.ty(to).dtype);
        let elements = region.bytes / dtype.bytes();
        let mut piece = vec![[0; 4]; PIECE / 4];
        for start in (0..elements).step_by(PIECE / 4) {
            let numbers = &mut piece[..(elements - start).min(PIECE as u64 / 4) as usize];
            weights.read(&name, start, numbers)?;
            let rounded = from_f32(dtype, &to_f32(DType::F32, numbers.as_flattened()));
            let (offset, bytes) = (region.offset + start * dtype.bytes(), rounded.len() as u64);
            self.manager.backing.device.write(Region { offset, bytes, ..region }, &rounded)?;
        }
        Ok(())
    }
}
