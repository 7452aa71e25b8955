//! The CUDA device, on a card or on the emulated stack: `tests/cuda.sh` runs these tests.

mod choices;
mod device;
mod kernels;
mod ranks;
mod states;
mod sweep;
#[path = "../program/test_folder/mod.rs"]
mod test_folder;
