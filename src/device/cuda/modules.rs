//! Compiled kernels, loaded into a context as modules.

use std::collections::HashMap;
use std::ffi::CString;

use super::calls::driver::{self as sys, CUfunction_attribute_enum as Attribute};
use super::driver::check;
use super::errors::{CallError, Effect};
use crate::DeviceError;

/// The driver's status for a kernel name that a module does not contain.
const NOT_FOUND: u32 = 500;

/// The modules of a context. Dropped before it.
pub(super) struct Modules {
    modules: Vec<sys::CUmodule>,
    functions: HashMap<String, Function>,
}

#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    /// The requested limit on dynamic shared memory in bytes. Without a request, static and dynamic shared memory
    /// together are limited to 48 KiB.
    shared: u32,
}

impl Modules {
    /// Loads compiled code into the current context.
    pub(super) fn load(cubins: &[Vec<u8>]) -> Result<Modules, CallError> {
        let mut loaded = Modules { modules: Vec::with_capacity(cubins.len()), functions: HashMap::new() };
        for cubin in cubins {
            let mut module = std::ptr::null_mut();
            // SAFETY: a context is current; the image is complete: it comes from the compiler, or its digest was
            // checked.
            check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) })?;
            loaded.modules.push(module);
        }
        Ok(loaded)
    }

    /// The kernel of this name, with a limit of at least `shared` bytes of dynamic shared memory.
    pub(super) fn function(&mut self, name: &str, shared: u32) -> Result<sys::CUfunction, DeviceError> {
        let known = self.functions.get(name).copied();
        let mut function = match known {
            Some(function) => function,
            None => Function { handle: self.find(name)?, shared: 0 },
        };
        if shared > function.shared {
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a loaded module.
            let status = unsafe { sys::cuFuncSetAttribute(function.handle, attribute, shared as i32) };
            check("cuFuncSetAttribute", status).map_err(|failed| failed.with_kernel(name))?;
            function.shared = shared;
        }
        if known.is_none_or(|known| known.shared < function.shared) {
            self.functions.insert(name.to_owned(), function);
        }
        Ok(function.handle)
    }

    fn find(&self, name: &str) -> Result<sys::CUfunction, CallError> {
        let c_name = CString::new(name).expect("kernel names contain no zero bytes");
        let mut missing = CallError {
            call: "cuModuleGetFunction".to_owned(),
            name: "CUDA_ERROR_NOT_FOUND".to_owned(),
            code: NOT_FOUND,
            effect: Effect::None,
        };
        for module in &self.modules {
            let mut function = std::ptr::null_mut();
            // SAFETY: the module is loaded.
            let status = unsafe { sys::cuModuleGetFunction(&mut function, *module, c_name.as_ptr()) };
            match check("cuModuleGetFunction", status) {
                Ok(()) => return Ok(function),
                Err(failed) if failed.code == NOT_FOUND => missing = failed,
                Err(failed) => return Err(failed.with_kernel(name)),
            }
        }
        Err(missing.with_kernel(name))
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        for module in self.modules.drain(..) {
            // A lost context has already unloaded it; errors are ignored.
            // SAFETY: loaded once, unloaded once.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
    }
}
