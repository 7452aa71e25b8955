//! Data sets, batches and checkpoint files: the inputs of a run.

mod batch;
mod cifar;
mod digest;
mod documents;
mod error;
mod files;
mod formats;
mod ids;
mod idx;
mod images;
mod lengths;
mod order;
mod padding;
mod pixels;
mod random;
pub mod row;
mod samples;
mod sampling;
pub mod seeds;
mod slices;
mod source;
mod synthetic;
mod tensors;
mod text;
mod token_files;
mod token_width;
mod tokens;
mod weights;

pub use batch::{Batch, FilledPart, KeyedCount, Memory, Part, PartRole, Sample};
pub use cifar::{CifarClasses, CifarSet};
pub use digest::{DigestCache, Work};
pub use documents::Documents;
pub use error::{DataError, ErrorKey, Split};
pub use formats::file_format;
pub use idx::{IdxFiles, IdxSet};
pub use images::ImageSet;
pub use lengths::{BatchSequence, Batching, PaddedLengths, PaddedMicroBatch};
pub use order::{Order, TrainingStep};
pub use pixels::Pixels;
pub use random::RandomSet;
pub use row::TokenRow;
pub use samples::{HeldPart, HeldSamples};
pub use source::{Contents, DataSet, Inspected, Note, SampleLengths, Source, check_order};
pub use synthetic::SyntheticSet;
pub use tensors::{TensorSet, TensorSource};
pub use text::{
    ChatTemplate, EncoderFailure, Encoding, RecordFormat, TextSet, TokenizerFile, encode_documents,
};
pub use token_width::TokenWidth;
pub use tokens::TokenSet;
pub use weights::{
    CheckpointTensor, Form, RequiredParameter, StoredParameters, TensorNaming, Weights, WeightsError,
    digest_of_both, weights_in,
};
