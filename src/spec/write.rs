//! A run as an experiment of its own.

use std::fmt::Write as _;

use super::paths::escape_variables;
use super::resolved::*;
use super::sections::{ALLOCATOR, DECAY, EVALUATION_PASS, GRADIENTS, PRECISION, RECOMPUTE, RELEASE, TOKENS};
use super::tree::{bare_or_quoted, quoted};

impl RunConfig {
    /// This run as an experiment file with one strategy: nothing is left to defaults, paths are absolute, and
    /// numbers are exact. Expanding it gives this configuration again.
    pub fn to_toml(&self, name: &str, strategy: &str) -> String {
        let mut out = format!("name = {}\n", quoted(name));
        // Writing to a string cannot fail.
        let _ = write_config(&mut out, self);
        let _ = write_strategy(&mut out, &self.strategy, strategy);
        out
    }
}

fn write_config(out: &mut String, config: &RunConfig) -> std::fmt::Result {
    let Model::Transformer(Transformer { layers, d_model, heads, context, vocabulary }) = &config.model;
    writeln!(out, "\n[model.transformer]\nlayers = {layers}\nd_model = {d_model}\nheads = {heads}")?;
    writeln!(out, "context = {context}\nvocabulary = {vocabulary}")?;

    let Data::Text(Text { paths, tokens, split }) = &config.data;
    let path = |path: &std::path::PathBuf| quoted(&escape_variables(&path.to_string_lossy()));
    let paths: Vec<String> = paths.iter().map(path).collect();
    writeln!(out, "\n[data.text]\npaths = [{}]", paths.join(", "))?;
    writeln!(out, "tokens = {}\nsplit = {split:?}", word(&TOKENS, tokens))?;

    let Train { batch_size, clip_norm, seed, optimizer } = &config.train;
    writeln!(out, "\n[train]\nbatch_size = {batch_size}")?;
    match clip_norm {
        Some(norm) => writeln!(out, "clip_norm = {norm:?}")?,
        None => writeln!(out, "clip_norm = \"off\"")?,
    }
    writeln!(out, "seed = {seed}")?;

    let Optimizer::AdamW(AdamW { lr, beta1, beta2, epsilon, weight_decay, decay }) = optimizer;
    writeln!(out, "\n[train.optimizer.adamw]\nlr = {lr:?}\nbeta1 = {beta1:?}\nbeta2 = {beta2:?}")?;
    writeln!(out, "epsilon = {epsilon:?}\nweight_decay = {weight_decay:?}\ndecay = {}", word(&DECAY, decay))?;

    if let Some(Evaluation { every, batches }) = &config.evaluation {
        writeln!(out, "\n[evaluation]\nevery = {every}\nbatches = {batches}")?;
    }
    let Measure { warmup_steps, steps } = &config.measure;
    writeln!(out, "\n[measure]\nwarmup_steps = {warmup_steps}\nsteps = {steps}")
}

fn write_strategy(out: &mut String, strategy: &Strategy, name: &str) -> std::fmt::Result {
    let Strategy {
        accumulate,
        precision,
        loss_scale,
        recompute,
        loss_chunks: _,
        release,
        gradients,
        allocator,
        evaluation_pass,
        graph,
    } = strategy;
    writeln!(out, "\n[strategies.{}]\naccumulate = {accumulate}", bare_or_quoted(name))?;
    writeln!(out, "precision = {}", word(&PRECISION, precision))?;
    writeln!(out, "loss_scale = {}", scale(loss_scale))?;
    writeln!(out, "recompute = {}", word(&RECOMPUTE, recompute))?;
    writeln!(out, "release = {}", word(&RELEASE, release))?;
    writeln!(out, "gradients = {}", word(&GRADIENTS, gradients))?;
    writeln!(out, "allocator = {}", word(&ALLOCATOR, allocator))?;
    writeln!(out, "evaluation_pass = {}", word(&EVALUATION_PASS, evaluation_pass))?;
    writeln!(out, "graph = {graph}")
}

fn scale(scale: &Option<LossScale>) -> String {
    match scale {
        None => quoted("off"),
        Some(LossScale::Static(scale)) => format!("{scale:?}"),
        Some(LossScale::Dynamic(DynamicLossScale { initial, backoff, growth, interval })) => format!(
            "{{ dynamic = {{ initial = {initial:?}, backoff = {backoff:?}, growth = {growth:?}, \
             interval = {interval} }} }}"
        ),
    }
}

/// The word for a value, in quotes. Every value has one.
pub(super) fn word<T: PartialEq>(words: &[(&str, T)], value: &T) -> String {
    words.iter().find(|(_, meaning)| meaning == value).map(|(word, _)| quoted(word)).unwrap_or_default()
}
