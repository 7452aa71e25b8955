//! The intermediate representation: a program of instructions over values, in sections.

mod instruction;
mod program;
mod program_values;
mod value;

pub use instruction::{Action, Instruction, When};
pub use program::{
    Bucket, BucketState, HostBuffers, LossScaling, LossSlices, Offloadable, OperandTypes, Parameter, Program,
    Results, Section, SectionKind, Stage,
};
pub use value::{BatchBuffer, ShapeSource, Share, SubRange, Value, Variant, View};
