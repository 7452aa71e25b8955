//! The CUDA device, on a card or on the emulated stack: `tests/cuda.sh` runs these tests.

mod choices;
mod device;
mod kernels;
#[path = "../program/place/mod.rs"]
mod place;
mod states;
mod sweep;
