//! Every operation on the CUDA device against the CPU device: all types, odd and even sizes, in place and out of place.
//!
//! Needs a card or the emulated stack of `tests/emulator`; without either, these tests fail.

mod attention;
mod batch_norm;
mod cast;
mod cast_pixels;
mod conv2d;
mod cross_entropy;
mod dropout;
mod elementwise;
mod elementwise_loss;
mod embedding;
mod gather_samples;
mod group_norm;
mod harness;
mod head_norm;
mod layer_norm;
mod linear;
mod matrices;
mod modes;
mod numbers;
mod optimizer;
mod pooling;
mod positions;
mod rms_norm;
mod softmax;
mod storage;
mod stretch;
mod widen;
