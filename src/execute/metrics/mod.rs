//! The figures of a run and their measurement: counts, times, memory, and the conditions that they were measured under.

pub(crate) mod conditions;
mod contention;
mod counts;
mod effects;
mod external_reading;
pub(crate) mod instruction_set;
mod measured;
mod updated_by;
mod volume;

pub(crate) use contention::Contention;
pub use counts::Counts;
pub(crate) use effects::{EffectsContext, effects};
pub use effects::{
    collected_each_evaluation, exchanged_by_ranks, leaked_each_step, micro_batches_of, more_flops,
    untrained_parameters,
};
pub use external_reading::{ExternalCounter, ExternalReading, agrees, driver_agrees, high_water_mark};
pub use measured::{Ended, Measured, Outcome, in_pieces};
pub(crate) use measured::{Loading, StepTimes};
pub(crate) use volume::Volume;
