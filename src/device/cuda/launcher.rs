//! What operations enqueue on the compute stream: kernels by name, and matrix products.

use super::calls::driver as sys;
use super::choosing::Mode;
use super::driver::check;
use super::modules::Modules;
use super::products::{Product, Products, Way};
use crate::DeviceError;
use ops::TensorType;

/// An operand of an operation, in device memory. Addresses are multiples of 256 bytes, but for operations that take any
/// rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Operand {
    pub(super) address: u64,
    pub(super) ty: TensorType,
}

/// What a kernel is given, in the order of its parameters. Each variant is one parameter of that very type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument {
    /// A device address; 0 for a null pointer.
    Pointer(u64),
    U32(u32),
    U64(u64),
    F32(f32),
    /// A struct passed by value, as the 8-byte words that it consists of, the first member in the low bits of the
    /// first word. At most 4096 bytes for all arguments together.
    Words(Vec<u64>),
}

/// Enqueues on the compute stream, in the order of the calls. Nothing waits for the device, but where products are timed.
pub(super) struct Launcher<'a> {
    stream: sys::CUstream,
    modules: &'a mut Modules,
    products: &'a mut Products,
    mode: Mode<'a>,
}

impl<'a> Launcher<'a> {
    pub(super) fn new(
        stream: sys::CUstream,
        modules: &'a mut Modules,
        products: &'a mut Products,
    ) -> Launcher<'a> {
        Launcher { stream, modules, products, mode: Mode::Enqueue }
    }

    /// One that does more with products than to enqueue them.
    pub(super) fn in_mode(self, mode: Mode<'a>) -> Launcher<'a> {
        Launcher { mode, ..self }
    }

    /// Enqueues a kernel on a grid of blocks of `block` threads (one dimension), with as many bytes of dynamic shared
    /// memory.
    ///
    /// # Errors
    /// No source has a kernel of that name, or the driver refuses the launch: too large a block or grid, more shared
    /// memory than the card has.
    pub(super) fn kernel(
        &mut self,
        name: &str,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        if let Mode::Note(_) = self.mode {
            return Ok(());
        }
        let function = self.modules.function(name, shared_bytes)?;
        let words: Vec<Vec<u64>> = arguments.iter().map(words).collect();
        let mut pointers: Vec<*mut std::ffi::c_void> =
            words.iter().map(|words| words.as_ptr().cast_mut().cast()).collect();
        // SAFETY: the function is of a loaded module. The driver copies each argument, as many bytes as the kernel's
        // parameter has, before it returns; that launches pass what the kernel takes is what the tests of every
        // kernel are for.
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
        Ok(check("cuLaunchKernel", status).map_err(|failed| failed.of_kernel(name))?)
    }

    /// Enqueues a product without an epilogue, which every size and type has.
    ///
    /// # Errors
    /// What the library says.
    pub(super) fn product(&mut self, product: &Product) -> Result<(), DeviceError> {
        match &mut self.mode {
            Mode::Enqueue => {}
            Mode::Note(shapes) => {
                shapes.push(product.shape());
                return Ok(());
            }
            Mode::Choose(chooser) => {
                chooser.choose(product, None, self.stream, self.modules, self.products)?
            }
        }
        self.products.enqueue(product, self.stream)
    }

    /// Enqueues a product with its epilogue by the library. Where the library has no algorithm for it, or a slower one,
    /// `apart` enqueues what comes to the same, but for its rounding.
    ///
    /// # Errors
    /// What the library or `apart` says.
    pub(super) fn fused(
        &mut self,
        product: &Product,
        apart: impl Fn(&mut Launcher) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        if self.products.way(product.shape())?.is_none() {
            return apart(self);
        }
        match &mut self.mode {
            Mode::Enqueue => {}
            Mode::Note(shapes) => {
                shapes.push(product.shape());
                return apart(self);
            }
            Mode::Choose(_) => {
                // Its own product is chosen first.
                apart(self)?;
                if let Mode::Choose(chooser) = &mut self.mode {
                    chooser.choose(product, Some(&apart), self.stream, self.modules, self.products)?;
                }
            }
        }
        match self.products.way(product.shape())? {
            Some(Way::Fused(_)) => self.products.enqueue(product, self.stream),
            _ => apart(self),
        }
    }
}

/// An argument's bytes: cards and their hosts are little-endian, so that a shorter number lies at the word's address.
fn words(argument: &Argument) -> Vec<u64> {
    vec![match argument {
        Argument::Pointer(value) | Argument::U64(value) => *value,
        Argument::U32(value) => u64::from(*value),
        Argument::F32(value) => u64::from(value.to_bits()),
        Argument::Words(words) => return words.clone(),
    }]
}
