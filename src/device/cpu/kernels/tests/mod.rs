//! Tests of every operation against an f64 reference, for several numbers of threads, at every instruction set level,
//! with and without optional aliases.

mod adafactor;
mod attention;
mod cast_ids;
mod cast_pixels;
mod conv2d;
mod cross_entropy;
mod dropout;
mod elementwise;
mod elementwise_loss;
mod embedding;
mod experts;
mod gather_samples;
mod harness;
mod image_norms;
mod linear;
mod muon;
mod norms;
mod pooling;
mod positions;
mod reference;
mod softmax;
mod storage;
mod stretch;
mod updates;
mod weights;
