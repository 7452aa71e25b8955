//! The processor and its memory.

/// The processor as a device.
pub struct CpuDevice {}
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {}
#[derive(Clone, Copy, Debug)]
pub enum Delay {}
