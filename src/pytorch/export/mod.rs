//! The predicted program as a PyTorch script that anyone can run.

mod distributed;
mod library;
mod master_weights;
mod model;
mod muon;
mod network;
mod optimizer;
mod sequential;
mod trainer;
mod training;

use std::fmt::Write;

use crate::allocator::Usage;
use crate::card::Card;
use crate::coverage::{self, NotCovered};
use crate::program::{self, STEPS};
use crate::tensor::DType;
use spec::{PaddedMicroBatch, RunConfig, TorchOptions, TorchProgram, Transformer};

/// The functions that do not depend on the run, and the main program: one for each kind of training loop.
const FUNCTIONS: &str = include_str!("functions.py");
/// The functions that differ for layers in a list: names of parameters, batches.
const MAIN: &str = include_str!("main.py");
const TRAINER_MAIN: &str = include_str!("trainer.py");

/// What a script holds of its prediction.
#[derive(Debug, Default)]
pub struct ScriptPrediction<'a> {
    pub title: &'a str,
    /// The peaks by step, which the script prints beside its own.
    pub peaks: &'a [Usage],
    /// The settings of the allocator, and the environment variable that the version reads.
    pub allocator: Option<(&'static str, String)>,
}

/// The script of a run. It reads initial parameters and batches from a dump of the run, if it gets one.
///
/// # Errors
/// The run is not covered.
pub fn script(
    config: &RunConfig,
    card: Card,
    options: TorchOptions,
    prediction: &ScriptPrediction<'_>,
) -> Result<String, NotCovered> {
    coverage::check(config, &card, options)?;
    let (batch, scales_loss) = (config.train.batch_size, coverage::scales_loss(config));
    let config = &*config.of_rank(0);
    if options.program == TorchProgram::Modules {
        program::check_graph(config)?;
    }
    let unused = Transformer::new(1, 1, 1, 1);
    let model = config.model.transformer().unwrap_or(&unused);
    let script = Script { config, batch, scales_loss, model, options, text: String::new() };
    Ok(script.write(prediction))
}

struct Script<'a> {
    /// Of the first rank.
    config: &'a RunConfig,
    /// Samples of a batch of all ranks.
    batch: usize,
    /// Whether the loss is multiplied by a number before backward.
    scales_loss: bool,
    /// Unused for layers in a list.
    model: &'a Transformer,
    options: TorchOptions,
    text: String,
}

impl Script<'_> {
    fn write(mut self, prediction: &ScriptPrediction<'_>) -> String {
        self.constants(prediction);
        if let Some(model) = self.config.model.sequential() {
            self.write_list(model);
            let main = self.write_loop();
            let functions = sequential::functions(model);
            let is_replaced = |function: &&str| {
                let (head, _) = function.split_once('(').unwrap_or((function, ""));
                functions.contains(&format!("\n{head}("))
            };
            let others: Vec<&str> =
                FUNCTIONS.split("\n\n\n").filter(|function| !is_replaced(function)).collect();
            return self.text + &others.join("\n\n\n") + &functions + &main;
        }
        let main = match self.options.program {
            TorchProgram::Modules => {
                self.write_model();
                self.write_loop()
            }
            TorchProgram::Transformers => {
                self.library_model();
                self.write_loop()
            }
            TorchProgram::Trainer => {
                self.write_trainer();
                TRAINER_MAIN.replace("EVALUATES", &self.trainer_evaluates())
            }
        };
        let functions = self.with_streams(FUNCTIONS);
        self.text + &functions + &main
    }

    /// A training loop of the script's own.
    fn write_loop(&mut self) -> String {
        self.master_weight_hooks();
        self.write_training();
        self.main_of_ranks(MAIN)
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn lines(&mut self, lines: &[&str]) {
        lines.iter().for_each(|line| self.line(line));
    }

    /// A line if a condition holds.
    fn line_if(&mut self, condition: bool, line: &str) {
        if condition {
            self.line(line);
        }
    }

    fn constants(&mut self, prediction: &ScriptPrediction<'_>) {
        let (batch, micro_batch) = (self.batch, self.config.micro_batch());
        let steps = coverage::simulated_steps(self.config).unwrap_or(STEPS);
        let sizes = match self.config.model.sequential() {
            Some(model) => sequential::sizes(model, [batch, micro_batch]),
            None => self.sizes([batch, micro_batch]),
        };
        let (null_context, fully_shard) = (self.import_null_context(), self.import_fully_shard());
        let ranks = self.ranks();
        let title = prediction.title.replace('"', "'");
        let set = |(variable, value): &(&str, String)| format!("os.environ[{variable:?}] = {value:?}\n");
        let words = match self.options.program {
            TorchProgram::Modules => "as plain PyTorch",
            TorchProgram::Transformers => "with the library's model",
            TorchProgram::Trainer => "with the library's Trainer",
        };
        let library = self.library_imports();
        let mut settings = prediction.allocator.as_ref().map(set).unwrap_or_default();
        if self.options.program == TorchProgram::Trainer {
            settings += "# Trainer would divide batches among all cards.\n\
                         os.environ.setdefault(\"CUDA_VISIBLE_DEVICES\", \"0\")\n";
        }
        let _ = write!(
            self.text,
            "\"\"\"{title}, {words}.\"\"\"\n\
             import argparse\nimport gc\nimport json\nimport os\n{null_context}\n{settings}\
             import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\
             {fully_shard}\
             from torch.utils.checkpoint import checkpoint, checkpoint_sequential\n{library}\n\
             {ranks}\
             STEPS = {steps}\n\
             {sizes}"
        );
        let peaks: Vec<(u64, u64)> =
            prediction.peaks.iter().map(|peak| (peak.allocated, peak.reserved)).collect();
        let _ = write!(
            self.text,
            "# Predicted peaks of allocated and reserved bytes by step.\n\
             PREDICTED = {peaks:?}\n"
        );
        self.lengths();
    }
}

impl Script<'_> {
    /// The constants of a transformer.
    fn sizes(&self, [batch, micro_batch]: [usize; 2]) -> String {
        let Transformer { layers, d_model, heads, kv_heads, head_dim, d_ff, vocabulary, context, .. } =
            *self.model;
        format!(
            "BATCH, MICRO_BATCH, CONTEXT, VOCABULARY = {batch}, {micro_batch}, {context}, {vocabulary}\n\
             LAYERS, CHANNELS, HEADS, KV_HEADS, HEAD, WIDTH = \
             {layers}, {d_model}, {heads}, {kv_heads}, {head_dim}, {d_ff}\n"
        )
    }

    /// The lengths that the documents of each micro-batch are padded to, if they vary.
    fn lengths(&mut self) {
        let (Some(lengths), Some(steps)) = (&self.config.lengths, self.config.steps_of_varying_lengths())
        else {
            return;
        };
        let batches = self.config.evaluation.as_ref().map_or(0, |evaluation| evaluation.batches);
        let micro_batch = |PaddedMicroBatch { length, has_padding }| match self.options.attention_mask {
            true => format!("({length}, {})", python_bool(has_padding)),
            false => length.to_string(),
        };
        let list = |elements: Vec<String>| format!("[{}]", elements.join(", "));
        let of_step = |step| {
            let micro_batches = 0..lengths.per_step();
            list(micro_batches.map(|number| micro_batch(lengths.training_batch(step, number))).collect())
        };
        let of_evaluation = |batch| {
            let micro_batches = 0..lengths.per_evaluation_batch();
            list(micro_batches.map(|number| micro_batch(lengths.evaluation_batch(batch, number))).collect())
        };
        let training = list((0..steps).map(of_step).collect());
        let evaluation = list((0..batches).map(of_evaluation).collect());
        let padding = if self.options.attention_mask { ", and whether another one is padded" } else { "" };
        let _ = write!(
            self.text,
            "# The longest document of each micro-batch{padding}, by step, and by batch of an evaluation.\n\
             LENGTHS = {training}\nEVALUATION_LENGTHS = {evaluation}\n"
        );
    }
}

/// The name of a dtype of parameters.
fn torch_dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "torch.bfloat16",
        DType::F16 => "torch.float16",
        _ => "torch.float32",
    }
}

fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
