//! Models of the transformers library, 5.24: its classes, called as `model(input_ids=tokens, labels=labels).loss`.
//!
//! Variables of the library's Python live until their function returns or assigns them again. A tensor that no later
//! request can meet, such as the argument of an operation that saves it, is not held twice here.

mod coverage;
mod decoder;
mod layers;

use std::rc::Rc;

pub(crate) use self::coverage::{check, peft_module};
use self::decoder::Decoder;
use self::layers::Maker;
use crate::coverage::{NotCovered, returns_logits};
use crate::functions;
use crate::module::dtype_of;
use crate::network::Network;
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use graph::Graph;
use ops::{Shape, Storage};
use spec::{Model, RunConfig};

/// `LlamaForCausalLM` and the classes that share its code.
pub(crate) struct CausalLm {
    decoder: Rc<Decoder>,
    /// `lm_head`. A tied one is the embedding.
    head: Tensor,
    /// [B, T]
    batch: Shape,
    returns_logits: bool,
}

impl CausalLm {
    /// The model of a run on the device. `graph`: of a full micro-batch.
    ///
    /// # Errors
    /// The graph has no tokens.
    pub(crate) fn new(torch: &Torch, config: &RunConfig, graph: &Graph) -> Result<CausalLm, NotCovered> {
        let Model::Transformer(model) = &config.model;
        let decoder = Decoder::new(torch, config, model);
        let head = match model.tied {
            true => decoder.embedding.clone(),
            false => Maker::new(torch, config, "head").parameter(&[model.vocabulary, model.d_model]),
        };
        let batch = batch_of(graph).ok_or_else(|| NotCovered("models without tokens".to_owned()))?;
        let returns_logits = returns_logits(config);
        Ok(CausalLm { decoder: Rc::new(decoder), head, batch, returns_logits })
    }
}

/// The dtype of the model: that of the frozen base, if it has adapters.
pub(crate) fn dtype(config: &RunConfig) -> DType {
    let strategy = &config.strategy;
    let storage = strategy.lora.as_ref().map(|lora| lora.storage(strategy.params));
    match storage {
        Some(Storage::Numbers(base)) => dtype_of(base),
        _ => dtype_of(strategy.params.dtype()),
    }
}

/// The dtype of adapters. PEFT's are fp32, as master weights would be, unless `autocast_adapter_dtype=False`.
pub(crate) fn adapter_dtype(config: &RunConfig) -> DType {
    if config.strategy.has_master_weights() { DType::F32 } else { dtype_of(config.strategy.params.dtype()) }
}

/// The shape of a graph's tokens.
fn batch_of(graph: &Graph) -> Option<Shape> {
    let tokens = graph.inputs().find(|&index| graph.values[index].name == "tokens")?;
    Some(graph.values[tokens].ty.shape)
}

impl Network for CausalLm {
    fn parameters(&self) -> Vec<Tensor> {
        let head = (self.head.id() != self.decoder.embedding.id()).then(|| self.head.clone());
        self.decoder.parameters().into_iter().chain(head).collect()
    }

    fn batch_shape(&self) -> Shape {
        self.batch
    }

    /// `forward` of the class, and `ForCausalLMLoss`.
    fn loss(
        self: Rc<CausalLm>,
        torch: &Torch,
        tokens: &Tensor,
        labels: &Tensor,
        _starts: Option<&Tensor>,
        trains: bool,
    ) -> (Tensor, Option<Tensor>) {
        // The outputs hold the last hidden states and the cache until the function returns.
        let (hidden, _cache) = self.decoder.forward(torch, tokens, trains);
        let (loss, logits) = torch.with_purpose(Purpose::Loss, || {
            let logits = {
                // hidden_states[:, 0:, :]
                let sliced = functions::full_slices(torch, &hidden, 3);
                functions::linear(torch, &sliced, &self.head, None)
            };
            (causal_loss(torch, &logits, labels), logits)
        });
        (loss, Some(logits).filter(|_| self.returns_logits))
    }

    fn resized(&self, graph: Graph) -> Rc<dyn Network> {
        let batch = batch_of(&graph).expect("graphs of a run have the same inputs");
        let (decoder, head) = (Rc::clone(&self.decoder), self.head.clone());
        Rc::new(CausalLm { decoder, head, batch, returns_logits: self.returns_logits })
    }
}

/// `ForCausalLMLoss`: the mean loss in fp32 of labels i64[B, T], which it shifts by one position.
fn causal_loss(torch: &Torch, logits: &Tensor, labels: &Tensor) -> Tensor {
    let logits = functions::cast(torch, logits, DType::F32);
    let &[samples, tokens] = labels.shape().dims() else { unreachable!("labels are a matrix") };
    // nn.functional.pad(labels, (0, 1))[..., 1:].contiguous()
    let padded = torch.empty(&[samples, tokens + 1], DType::I64);
    let shifted = if samples > 1 { torch.tensor(labels.shape(), DType::I64) } else { padded.clone() };
    functions::cross_entropy(torch, &logits, &shifted)
}
