//! `evaluation_loop`: losses are collected for every sample, and logits and labels if a metric is computed from them.

use super::coverage::{evaluated_batches, evaluated_micro_batches, evaluation_batch};
use super::loader::{Batch, Loader, count_labels};
use super::{Trainer, compute_loss};
use crate::coverage::{collects_logits, has_third};
use crate::network::Network;
use crate::outputs::Collected;
use crate::sequence::{Event, Phase};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::CollectedIn;

impl Trainer<'_> {
    /// `evaluate`
    pub(super) fn evaluate(&self) {
        let (torch, config) = (self.torch, self.config);
        if config.evaluation.is_none() {
            return;
        }
        torch.mark(Event::Phase(Phase::Evaluation));
        let (samples, length) = (evaluation_batch(config), self.model.batch_shape().last());
        let (collect, collects_logits) = (config.collect(), collects_logits(config));
        let concatenates = collect.is_none_or(|collect| collect.concatenate);
        let to_host = collect.is_some_and(|collect| collect.to == CollectedIn::Host);
        let mut loader = Loader::new(Shape::new(&[samples, length]), has_third(torch, config));
        let [mut losses, mut logits, mut labels] = [(); 3].map(|()| Collected::new(concatenates));
        let mut variables = Variables::default();
        let micro_batches = evaluated_micro_batches(config);
        for number in 0..evaluated_batches(config) {
            let padded = config.lengths.as_ref();
            let padded = padded.map(|of| of.evaluation_batch(number / micro_batches, number % micro_batches));
            let batch = loader.next(torch, padded);
            let own_labels = &batch.labels;
            let (loss, own_logits) = self.prediction_step(&batch);
            variables.losses = Some(loss);
            variables.outputs =
                own_logits.filter(|_| collects_logits).map(|logits| [logits, own_labels.clone()]);
            // losses.repeat(batch_size)
            let repeated = torch.empty(&[samples], DType::F32);
            variables.losses = Some(repeated.clone());
            losses.add(torch, repeated);
            if let Some([own_logits, own_labels]) = &variables.outputs {
                pad_across_processes(torch, own_labels);
                pad_across_processes(torch, own_logits);
                logits.add(torch, own_logits.clone());
                labels.add(torch, own_labels.clone());
            }
            if to_host {
                [&mut losses, &mut logits, &mut labels].into_iter().for_each(Collected::clear);
                variables = Variables::default();
                drop(batch);
                torch.mark(Event::EmptyCache);
            }
        }
    }

    /// `prediction_step`: the mean of the loss, and the logits.
    fn prediction_step(&self, batch: &Batch) -> (Tensor, Option<Tensor>) {
        let torch = self.torch;
        torch.with_grad(false, || {
            let count = count_labels(torch, std::slice::from_ref(batch), self.shifts_labels);
            let output = compute_loss(torch, &self.model, batch, &count, self.autocast, false);
            (torch.like(&output.loss), output.logits.clone())
        })
    }
}

/// Variables of the loop, which live until the next batch assigns them. The loader holds the batch as long as the variable
/// `inputs` does.
#[derive(Default)]
struct Variables {
    losses: Option<Tensor>,
    /// Logits and labels.
    outputs: Option<[Tensor; 2]>,
}

/// Gathers the sizes of a tensor, which are equal in one process.
fn pad_across_processes(torch: &Torch, tensor: &Tensor) {
    torch.empty(&[tensor.shape().dims().len()], DType::I64);
}
