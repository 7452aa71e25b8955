//! Accelerate's loader (`DataLoaderShard`), and the number of labels of a step.

use crate::functions;
use crate::network::Inputs;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::{PaddedMicroBatch, TransformersVersion};

/// `input_ids`, `attention_mask` or `position_ids`, and `labels`, i64[B, T].
#[derive(Clone)]
pub(super) struct Batch {
    tokens: Tensor,
    third: Option<Tensor>,
    pub(super) labels: Tensor,
    hides_tokens: bool,
}

impl Batch {
    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            tokens: &self.tokens,
            targets: Some(&self.labels),
            third: self.third.as_ref(),
            hides_tokens: self.hides_tokens,
        }
    }
}

/// Copies batches to the device. It holds the last one until the next one is there.
pub(super) struct Loader {
    /// Of a batch, unless lengths vary.
    shape: Shape,
    /// Whether batches have an attention mask, or positions of packed documents.
    has_third: bool,
    current: Option<Batch>,
}

impl Loader {
    pub(super) fn new(shape: Shape, has_third: bool) -> Loader {
        Loader { shape, has_third, current: None }
    }

    /// `padded`: if lengths vary.
    pub(super) fn next(&mut self, torch: &Torch, padded: Option<PaddedMicroBatch>) -> Batch {
        let shape = padded.map_or(self.shape, |padded| self.shape.with_last(padded.length));
        let part = || torch.tensor(shape, DType::I64);
        let batch = Batch {
            tokens: part(),
            third: self.has_third.then(part),
            labels: part(),
            hides_tokens: padded.is_none_or(|padded| padded.has_padding),
        };
        self.current = Some(batch.clone());
        batch
    }
}

/// `sum(labels[..., 1:].ne(-100).sum() for labels in batches) / 1`, f32, in 4.x with a sum in place of the quotient, i64.
/// `shifts`: without it, all labels are counted.
pub(super) fn count_labels(torch: &Torch, batches: &[Batch], shifts: bool) -> Tensor {
    let mut sum: Option<Tensor> = None;
    for Batch { labels, .. } in batches {
        let of_batch = {
            let &[samples, tokens] = labels.shape().dims() else { unreachable!("labels are a matrix") };
            let differs = torch.empty(&[samples, tokens - usize::from(shifts)], DType::Bool);
            functions::count(torch, &differs)
        };
        // Python's `sum` begins with 0.
        sum = Some(functions::add(torch, &of_batch, sum.as_ref().unwrap_or(&of_batch)));
    }
    let sum = sum.expect("a step has batches");
    let dtype = match torch.options.transformers {
        TransformersVersion::V5_24 => DType::F32,
        TransformersVersion::V4_57 => DType::I64,
    };
    torch.tensor(sum.shape(), dtype)
}
