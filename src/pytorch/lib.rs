//! PyTorch's own memory: the allocator requests of a run as an eager PyTorch program, without PyTorch.
//!
//! A run's graph and strategies are lowered to tensors without numbers: a storage makes a request when it is created
//! and releases it when the last reference to it is dropped. Operations request what PyTorch's eager CUDA operations
//! request and save what they save; the engine runs backward in autograd's order. So the whole sequence of requests
//! can be compared with PyTorch's own.

mod allocator;
mod autograd;
mod card;
mod checkpoint;
mod coverage;
mod distributed;
mod export;
mod forecast;
mod fully_shard;
mod functions;
mod grad_scaler;
mod list;
mod module;
mod network;
mod optimizer;
mod outputs;
mod peak;
mod program;
mod replay;
mod rules;
mod sequence;
mod snapshot;
mod tensor;
mod torch;
mod trained;
mod trainer;
mod transformers;
mod workspace;

pub use allocator::{CardMemory, OutOfMemory, Usage};
pub use card::Card;
pub use coverage::NotCovered;
pub use export::{ScriptPrediction, script};
pub use forecast::{Fit, Forecast, Machine, Refusal, TorchRun};
pub use peak::{LivePeak, LogitCopies};
pub use program::sequence;
pub use replay::{Peaks, replay};
pub use sequence::{Event, LiveGroup, Phase, Purpose, Sequence, Stream};
pub use snapshot::{
    Call, Snapshot, SnapshotComparison, SnapshotDifference, SnapshotError, predicted_snapshot,
};
