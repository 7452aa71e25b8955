//! How parameters come into being that are read of a file, or are not made at the start.

use super::{Engine, PIECE};
use data::StoredParameters;
use device::{Region, from_f32, to_f32};
use memory::Failure;
use ops::{DType, ValueId};

impl<'a> Engine<'a> {
    /// What has the parameters that the program says are stored.
    pub(crate) fn start_from(&mut self, weights: Option<&'a StoredParameters>) {
        self.weights = weights;
    }

    /// Makes now what the first step would, if there has been none: whoever asks for it before gets it.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub(crate) fn make_all(&mut self) -> Result<(), Failure> {
        let program = self.program;
        for section in self.first_iterations.pending(program) {
            let code = program.sections[section].code.iter().enumerate();
            for (index, _) in code.filter(|(_, instruction)| instruction.first_iteration) {
                self.instruction(section, index, 0, true)?;
            }
            self.open(section);
        }
        Ok(())
    }

    /// A section has made what it makes once.
    pub(super) fn open(&mut self, section: usize) {
        if self.first_iterations.complete(section) {
            self.counts.made_late += self.program.sections[section].lazily_initialised.len() as u64;
        }
    }

    /// Puts what is stored of the parameter of this site into a value, a piece at a time.
    pub(super) fn read_stored(&mut self, site: u32, to: ValueId) -> Result<(), Failure> {
        let parameter = self.program.parameters.iter().find(|parameter| parameter.site == site);
        let parameter = parameter.expect("each site is a parameter's");
        let name = self.program.full_name(parameter.value);
        let weights = self.weights.expect("what a program says is stored is given with it");
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
