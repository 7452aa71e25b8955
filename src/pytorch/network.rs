//! A model on the device, as the training script calls it.

use std::rc::Rc;

use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::RunConfig;

/// The type of a part of a batch.
pub(crate) type PartType = (Shape, DType);

/// A batch on the device: of tokens, i64[B, T] each.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) tokens: &'a Tensor,
    /// The library's `labels`. A sum of outputs has none.
    pub(crate) targets: Option<&'a Tensor>,
    /// Where each token's document begins, if samples have several (the library: its position in it), or an attention mask.
    pub(crate) third: Option<&'a Tensor>,
    /// Whether `third` hides a token from a later one.
    pub(crate) hides_tokens: bool,
}

impl<'a> Inputs<'a> {
    /// The targets of a loss that has some.
    pub(crate) fn expect_targets(&self) -> &'a Tensor {
        self.targets.expect("the loss has targets")
    }
}

/// A model for batches of one size.
pub(crate) trait Network {
    /// The parameters, in the order of the modules.
    fn parameters(&self) -> Vec<Tensor>;

    /// The buffers, in the order of the modules (`named_buffers`).
    fn buffers(&self) -> Vec<Tensor>;

    /// The weights of the modules `nn.Embedding`.
    fn embeddings(&self) -> Vec<Tensor>;

    /// The parameters of each block, in the order of the modules.
    fn blocks(&self) -> Vec<Vec<Tensor>>;

    /// The weight matrices of blocks.
    fn block_matrices(&self) -> Vec<Tensor>;

    /// The types of a batch's parts: tokens, or another input; and targets, if there are some.
    fn batch(&self) -> (PartType, Option<PartType>);

    /// The shape of a batch's tokens.
    fn batch_shape(&self) -> Shape {
        self.batch().0.0
    }

    /// `model(tokens, targets)`: the loss, and the logits if they are kept. Dropout has an effect in training only.
    fn loss(self: Rc<Self>, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Tensor>);

    /// The same model for batches of this number of samples, whose lengths are the configuration's.
    fn resized(&self, config: &RunConfig, samples: usize) -> Rc<dyn Network>;
}
