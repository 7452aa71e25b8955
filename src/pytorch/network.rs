//! A model on the device, as the training script calls it.

use std::rc::Rc;

use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::RunConfig;

/// A batch on the device, i64[B, T] each.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) tokens: &'a Tensor,
    /// The library's `labels`.
    pub(crate) targets: &'a Tensor,
    /// Where each token's document begins, if samples have several (the library: its position in it), or an attention mask.
    pub(crate) third: Option<&'a Tensor>,
    /// Whether `third` hides a token from a later one.
    pub(crate) hides_tokens: bool,
}

/// A model for batches of one size.
pub(crate) trait Network {
    /// The parameters, in the order of the modules.
    fn parameters(&self) -> Vec<Tensor>;

    /// The weights of the modules `nn.Embedding`.
    fn embeddings(&self) -> Vec<Tensor>;

    /// The weight matrices of blocks.
    fn block_matrices(&self) -> Vec<Tensor>;

    /// The types of a batch's parts: tokens, or another input, and targets.
    fn batch(&self) -> [(Shape, DType); 2];

    /// The shape of a batch's tokens.
    fn batch_shape(&self) -> Shape {
        self.batch()[0].0
    }

    /// `model(tokens, targets)`: the loss, and the logits if they are kept. Dropout has an effect in training only.
    fn loss(self: Rc<Self>, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Tensor>);

    /// The same model for batches of this number of samples, whose lengths are the configuration's.
    fn resized(&self, config: &RunConfig, samples: usize) -> Rc<dyn Network>;
}
