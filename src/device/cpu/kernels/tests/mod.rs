//! Every operation against an f64 reference, for any number of threads, at every level, in place or not.

mod adafactor;
mod attention;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod harness;
mod linear;
mod muon;
mod norms;
mod reference;
mod storage;
mod stretch;
mod updates;
mod weights;
mod widen;
