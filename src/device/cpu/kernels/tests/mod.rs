//! Every operation against an f64 reference, for any number of threads, at every level, in place or not.

mod attention;
mod dropout;
mod harness;
mod linear;
mod others;
mod reference;
mod storage;
mod weights;
