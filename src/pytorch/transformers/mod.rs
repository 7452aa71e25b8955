//! Models of the transformers library: its classes, called as `model(input_ids=tokens, labels=labels).loss`.
//!
//! Variables of the library's Python live until their function returns or assigns them again. Tensors that autograd also
//! saves are not held a second time here.

mod attention;
mod body;
mod class;
mod coverage;
mod decoder;
mod falcon;
mod gpt2;
mod gpt_neox;
mod layers;
mod masks;
mod mlp;
mod norm;
mod parallel;
mod phi;
mod projections;
mod rotations;

use std::rc::Rc;

use self::body::{Body, Cache};
pub(crate) use self::coverage::{check, family, liger_mlp};
use self::decoder::Decoder;
use self::falcon::FalconLayer;
use self::gpt_neox::GptNeoxLayer;
use self::gpt2::Gpt2;
pub(crate) use self::layers::peft_module;
use self::layers::{Maker, ModuleWeight};
use self::parallel::ParallelDecoder;
use self::phi::PhiLayer;
use crate::coverage::{NotCovered, returns_logits, transformer};
use crate::functions;
use crate::module::dtype_of;
use crate::network::{Inputs, Network, PartType};
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use graph::{Graph, forward_pass};
use ops::{Shape, Storage};
use spec::{LoraBase, ModelFamily, Recompute, RunConfig, TorchProgram, Transformer};

/// A class of the library with its head.
pub(crate) struct CausalLm {
    body: Rc<dyn Body>,
    /// `lm_head`; without it, the head is the embedding.
    head: Option<Head>,
    /// [B, T]
    batch: Shape,
    returns_logits: bool,
    /// Whether logits are divided by a number (Granite).
    scales_logits: bool,
    /// Whether logits are capped (Gemma 2 and 3).
    caps_logits: bool,
    /// Whether liger-kernel computes the loss without logits.
    fuses_loss: bool,
}

/// `nn.Linear`
#[derive(Clone)]
struct Head {
    weight: ModuleWeight,
    bias: Option<ModuleWeight>,
}

impl Head {
    fn new(maker: Maker<'_>, model: &Transformer) -> Head {
        let weight = [model.vocabulary, model.d_model];
        match model.head_bias {
            true => {
                let [weight, bias] = maker.modules([&weight, &[model.vocabulary]]);
                Head { weight, bias: Some(bias) }
            }
            false => Head { weight: maker.module(&weight), bias: None },
        }
    }
}

impl CausalLm {
    /// The model of a run on the device. `graph`: of a full micro-batch.
    ///
    /// # Errors
    /// The graph has no tokens.
    pub(crate) fn new(torch: &Torch, config: &RunConfig, graph: &Graph) -> Result<CausalLm, NotCovered> {
        let model = transformer(config)?;
        let family = family(model);
        let body: Rc<dyn Body> = match family {
            Some(ModelFamily::Gpt2) => Rc::new(Gpt2::new(torch, config, model)),
            Some(ModelFamily::GptNeox) => Rc::new(ParallelDecoder::<GptNeoxLayer>::new(torch, config, model)),
            Some(ModelFamily::Phi) => Rc::new(ParallelDecoder::<PhiLayer>::new(torch, config, model)),
            Some(ModelFamily::Falcon) => Rc::new(ParallelDecoder::<FalconLayer>::new(torch, config, model)),
            _ => Rc::new(Decoder::new(torch, config, model, family)),
        };
        let head = (!model.tied).then(|| Head::new(Maker::new(torch, config, "head"), model));
        let batch = batch_of(graph).ok_or_else(|| NotCovered("models without tokens".to_owned()))?;
        let returns_logits = returns_logits(config);
        let scales_logits = family == Some(ModelFamily::Granite);
        let caps_logits = model.logit_softcap.is_some();
        let fuses_loss = config.strategy.loss_chunks > 1;
        Ok(CausalLm { body, head, batch, returns_logits, scales_logits, caps_logits, fuses_loss })
    }

    /// The weight of the head, [V, C], and its bias.
    fn head(&self) -> (&Tensor, Option<&Tensor>) {
        match &self.head {
            None => (self.body.embedding(), None),
            Some(head) => (&head.weight.weight, head.bias.as_ref().map(|bias| &bias.weight)),
        }
    }

    /// `forward` of the class. `count`: the number of labels that divides the loss (`num_items_in_batch`).
    pub(crate) fn forward(
        &self,
        torch: &Torch,
        inputs: Inputs<'_>,
        count: Option<&Tensor>,
        trains: bool,
    ) -> Output {
        // The outputs of the class without its head hold the last hidden states until the function returns.
        let (hidden, cache) = self.body.forward(torch, inputs, trains);
        torch.with_purpose(Purpose::Loss, || {
            let (weight, bias) = self.head();
            // Trainer evaluates with `skip_logits=True`.
            if self.fuses_loss && (trains || torch.options.program == TorchProgram::Trainer) {
                let sliced = functions::full_slices(torch, &hidden, 3);
                let _labels = shifted_labels(torch, inputs.expect_targets());
                let loss = functions::fused_linear_cross_entropy(torch, &sliced, weight);
                return Output { loss: divided(torch, loss, count), logits: None, _cache: cache };
            }
            let mut logits = {
                // hidden_states[:, 0:, :]
                let sliced = functions::full_slices(torch, &hidden, 3);
                functions::linear(torch, &sliced, weight, bias)
            };
            if self.scales_logits {
                logits = functions::scale(torch, &logits);
            }
            if self.caps_logits {
                logits = functions::scale(torch, &logits);
                logits = functions::tanh(torch, &logits);
                logits = functions::scale(torch, &logits);
            }
            let loss = causal_loss(torch, &logits, inputs.expect_targets(), count);
            Output { loss, logits: Some(logits), _cache: cache }
        })
    }
}

/// `CausalLMOutput`
pub(crate) struct Output {
    pub(crate) loss: Tensor,
    pub(crate) logits: Option<Tensor>,
    _cache: Option<Cache>,
}

/// `every_n_layers`: n, if every n-th layer is checkpointed.
pub(crate) fn checkpointed_layers(config: &RunConfig) -> Option<usize> {
    match config.strategy.recompute {
        Recompute::Block => Some(1),
        Recompute::Every(every) => Some(every),
        _ => None,
    }
}

/// The dtype of the model: with adapters the base's, or that of its tables if the base is quantized; else that of
/// `params`.
pub(crate) fn dtype(config: &RunConfig) -> DType {
    let strategy = &config.strategy;
    let Some(lora) = &strategy.lora else { return dtype_of(strategy.params.dtype()) };
    match lora.storage(strategy.params) {
        Storage::Numbers(base) => dtype_of(base),
        Storage::Codes(_) => dtype_of(lora.tables.unwrap_or(strategy.params).dtype()),
        Storage::Plain => dtype_of(strategy.params.dtype()),
    }
}

/// Whether linear layers of blocks are quantized to nf4, and then whether their scales are quantized, too.
pub(crate) fn four_bit(config: &RunConfig) -> Option<bool> {
    let lora = config.strategy.lora.as_ref()?;
    (lora.base == LoraBase::Nf4).then_some(lora.double_quantization)
}

/// The dtype of products of quantized weights (`bnb_4bit_compute_dtype`), and of the model before it is quantized.
pub(crate) fn compute_dtype(config: &RunConfig) -> DType {
    dtype_of(config.strategy.precision.dtype())
}

/// Whether `prepare_model_for_kbit_training` casts the layers that are not quantized to fp32.
pub(crate) fn is_upcast(config: &RunConfig) -> bool {
    four_bit(config).is_some() && dtype(config) != compute_dtype(config)
}

/// The dtype that the model is made with.
pub(crate) fn initial_dtype(config: &RunConfig) -> DType {
    if four_bit(config).is_some() { compute_dtype(config) } else { dtype(config) }
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
        let head = self.head.iter().flat_map(|head| [Some(&head.weight), head.bias.as_ref()]).flatten();
        self.body.parameters().into_iter().chain(head.map(|module| module.weight.clone())).collect()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.body.buffers()
    }

    fn embeddings(&self) -> Vec<Tensor> {
        self.body.embeddings()
    }

    fn blocks(&self) -> Vec<Vec<Tensor>> {
        self.body.layers()
    }

    fn block_matrices(&self) -> Vec<Tensor> {
        let tables = self.embeddings();
        let is_matrix = |parameter: &Tensor| {
            parameter.shape().dims().len() > 1 && tables.iter().all(|table| table.id() != parameter.id())
        };
        self.body.parameters().into_iter().filter(is_matrix).collect()
    }

    fn batch(&self) -> (PartType, Option<PartType>) {
        let part = (self.batch, DType::I64);
        (part, Some(part))
    }

    fn loss(self: Rc<CausalLm>, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Tensor>) {
        let Output { loss, logits, .. } = self.forward(torch, inputs, None, trains);
        (loss, logits.filter(|_| self.returns_logits))
    }

    fn resized(&self, config: &RunConfig, samples: usize) -> Rc<dyn Network> {
        let batch = batch_of(&forward_pass(config, samples)).expect("graphs of a run have the same inputs");
        let (body, head) = (Rc::clone(&self.body), self.head.clone());
        let CausalLm { returns_logits, scales_logits, caps_logits, fuses_loss, .. } = *self;
        Rc::new(CausalLm { body, head, batch, returns_logits, scales_logits, caps_logits, fuses_loss })
    }
}

/// `ForCausalLMLoss`: the mean loss in fp32 of labels i64[B, T], which it shifts by one position; or their sum divided by
/// `count`.
fn causal_loss(torch: &Torch, logits: &Tensor, labels: &Tensor, count: Option<&Tensor>) -> Tensor {
    let logits = functions::cast(torch, logits, DType::F32);
    let [_padded, shifted] = shifted_labels(torch, labels);
    let loss = functions::cross_entropy(torch, &logits, &shifted);
    divided(torch, loss, count)
}

/// `nn.functional.pad(labels, (0, 1))`, and `padded[..., 1:].contiguous()`.
fn shifted_labels(torch: &Torch, labels: &Tensor) -> [Tensor; 2] {
    let &[samples, tokens] = labels.shape().dims() else { unreachable!("labels are a matrix") };
    let padded = torch.empty(&[samples, tokens + 1], DType::I64);
    let shifted = if samples > 1 { torch.like(labels) } else { padded.clone() };
    [padded, shifted]
}

/// `loss / num_items_in_batch`, if it is given.
fn divided(torch: &Torch, loss: Tensor, count: Option<&Tensor>) -> Tensor {
    match count {
        None => loss,
        Some(count) => functions::mul(torch, &loss, count),
    }
}
