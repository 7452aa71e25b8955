//! The kernels' sources, part of the program. Each is compiled into one module; a kernel's name occurs once in all of
//! them.

/// A file of CUDA C++ under `kernels/`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) file: &'static str,
    pub(super) text: &'static str,
}

/// What is compiled.
pub(super) const SOURCES: &[Source] = &[];

/// What sources include, by these names.
pub(super) const HEADERS: &[Source] = &[];
