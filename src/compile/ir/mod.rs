//! The intermediate representation: a program of instructions over values, in sections.

mod bucket;
mod instruction;
mod program;
mod program_values;
mod value;

pub use bucket::{Bucket, BucketState, Parameter};
pub use instruction::{Action, Instruction, When};
pub use program::{
    HostBuffers, LossScaling, LossSlices, Offloadable, OperandTypes, Program, Results, Section, SectionKind,
    Stage,
};
pub use value::{BatchBuffer, ShapeSource, Share, SubRange, Value, Variant, View};
