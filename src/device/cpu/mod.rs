//! The processor and its memory.

mod kernels;

/// The processor as a device.
pub struct CpuDevice {}
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {}
#[derive(Clone, Copy, Debug)]
pub enum Delay {}
