//! Enqueues kernels and matmuls on the compute stream.

use super::autotune::Mode;
use super::calls::driver as sys;
use super::driver::check;
use super::matmul::{Matmul, MatmulMethod, MatmulPlans};
use super::modules::Modules;
use crate::DeviceError;
use ops::TensorType;

/// An operand in device memory. Addresses are multiples of 256 bytes, except for operations that accept any rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Operand {
    pub(super) address: u64,
    pub(super) ty: TensorType,
}

/// A kernel argument. Each variant is one parameter of exactly that type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument {
    /// A device address; 0 for a null pointer.
    Pointer(u64),
    U32(u32),
    U64(u64),
    F32(f32),
    /// A struct passed by value, as 8-byte words; the first member is in the low bits of the first word. All arguments
    /// together take at most 4096 bytes.
    Words(Vec<u64>),
}

/// Enqueues work on the compute stream, in call order. Only autotuning waits for the device.
pub(super) struct Launcher<'a> {
    stream: sys::CUstream,
    modules: &'a mut Modules,
    matmuls: &'a mut MatmulPlans,
    mode: Mode<'a>,
}

impl<'a> Launcher<'a> {
    pub(super) fn new(
        stream: sys::CUstream,
        modules: &'a mut Modules,
        matmuls: &'a mut MatmulPlans,
    ) -> Launcher<'a> {
        Launcher { stream, modules, matmuls, mode: Mode::Enqueue }
    }

    /// The launcher in another mode.
    pub(super) fn in_mode(self, mode: Mode<'a>) -> Launcher<'a> {
        Launcher { mode, ..self }
    }

    /// Enqueues a kernel on a grid of blocks of `block` threads (one dimension), with `shared_bytes` of dynamic shared
    /// memory.
    ///
    /// # Errors
    /// There is no kernel of that name, or the driver rejects the launch: the block or grid is too large, or the card
    /// has too little shared memory.
    pub(super) fn kernel(
        &mut self,
        name: &str,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        // An empty grid has nothing to do, but the driver rejects it: a rank's share may be empty.
        if matches!(self.mode, Mode::Collect(_)) || grid.contains(&0) {
            return Ok(());
        }
        let function = self.modules.function(name, shared_bytes)?;
        let words: Vec<Vec<u64>> = arguments.iter().map(words).collect();
        let mut pointers: Vec<*mut std::ffi::c_void> =
            words.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
        // SAFETY: the function belongs to a loaded module. The driver copies each argument, with the size of the
        // kernel's parameter, before it returns; the tests of every kernel check that the arguments match the
        // parameters.
        let status = unsafe {
            sys::cuLaunchKernel(
                function,
                grid[0],
                grid[1],
                grid[2],
                block,
                1,
                1,
                shared_bytes,
                self.stream,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        Ok(check("cuLaunchKernel", status).map_err(|failed| failed.with_kernel(name))?)
    }

    /// Enqueues a matmul without an epilogue, which is supported for all sizes and types.
    ///
    /// # Errors
    /// The library fails.
    pub(super) fn matmul(&mut self, matmul: &Matmul) -> Result<(), DeviceError> {
        match &mut self.mode {
            Mode::Enqueue => {}
            Mode::Collect(shapes) => {
                shapes.push(matmul.shape());
                return Ok(());
            }
            Mode::Tune(tuner) => tuner.tune(matmul, None, self.stream, self.modules, self.matmuls)?,
        }
        self.matmuls.enqueue(matmul, self.stream)
    }

    /// Enqueues a matmul with a fused epilogue. If the library has no algorithm for it, or only a slower one,
    /// `separate` enqueues an equivalent matmul and kernel, which may round differently.
    ///
    /// # Errors
    /// The library or `separate` fails.
    pub(super) fn fused_matmul(
        &mut self,
        matmul: &Matmul,
        separate: impl Fn(&mut Launcher) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        if self.matmuls.method(matmul.shape())?.is_none() {
            return separate(self);
        }
        match &mut self.mode {
            Mode::Enqueue => {}
            Mode::Collect(shapes) => {
                shapes.push(matmul.shape());
                return separate(self);
            }
            Mode::Tune(_) => {
                // The matmul without epilogue is tuned first.
                separate(self)?;
                if let Mode::Tune(tuner) = &mut self.mode {
                    tuner.tune(matmul, Some(&separate), self.stream, self.modules, self.matmuls)?;
                }
            }
        }
        match self.matmuls.method(matmul.shape())? {
            Some(MatmulMethod::Fused(_)) => self.matmuls.enqueue(matmul, self.stream),
            _ => separate(self),
        }
    }
}

/// An argument as words. Cards and their hosts are little-endian, so a shorter number begins at the word's address.
fn words(argument: &Argument) -> Vec<u64> {
    vec![match argument {
        Argument::Pointer(value) | Argument::U64(value) => *value,
        Argument::U32(value) => u64::from(*value),
        Argument::F32(value) => u64::from(value.to_bits()),
        Argument::Words(words) => return words.clone(),
    }]
}
