//! The memory remedies that people know, and their combinations.

use std::fmt::Write as _;

use super::remedies::{ADAPTERS, BITWISE, PRECISION, ROUNDING, STORAGE, lora};
use spec::TorchProgram;

/// What a remedy decides. A combination has at most one remedy of each subject, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The trained parameters and the dtypes.
    Training,
    /// What ranks divide beside the samples.
    Sharding,
    Recompute,
    Loss,
    OptimizerStates,
    OptimizerOffload,
    ActivationOffload,
    ParameterOffload,
}

impl Subject {
    /// Whether it moves values to the host.
    pub fn is_offload(self) -> bool {
        matches!(self, Subject::OptimizerOffload | Subject::ActivationOffload | Subject::ParameterOffload)
    }
}

/// A memory remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub name: &'static str,
    pub subject: Subject,
    /// Keys of a strategy, and their values in TOML.
    keys: Vec<(&'static str, String)>,
    /// Its effect on the training result; empty if it is the plain training.
    pub result: &'static str,
    /// The words of a script of PyTorch's modules, of one with the model of transformers, and of one with its Trainer.
    words: [String; 3],
}

/// Choices that are used together, one of each subject, `Training` always among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combination {
    pub choices: Vec<Choice>,
}

/// Of the names of offloads.
const OFFLOAD: &str = "offload-";

/// The remedies of a number of cards that train together, those of `Training` first. Cards before compute capability 8.0 have
/// fp16 units only.
pub fn catalogue(has_bf16: bool, cards: usize) -> Vec<Choice> {
    let (half, torch_half) = if has_bf16 { ("bf16", "bfloat16") } else { ("fp16", "float16") };
    let text = |value: &str| format!("\"{value}\"");
    let ranks = (cards > 1).then(|| ("parallel.data", cards.to_string()));
    let training = |name, keys: Vec<(&'static str, String)>, result, words: [String; 3]| {
        let scale = (!has_bf16).then(|| ("loss_scale", text("dynamic")));
        let precision = [("precision", text(half))].into_iter().chain(scale);
        let keys = ranks.clone().into_iter().chain(precision).chain(keys).collect();
        Choice { name, subject: Subject::Training, keys, result, words }
    };
    let other = |name, subject, key, value: &str, result, words: [&str; 3]| Choice {
        name,
        subject,
        keys: vec![(key, value.to_owned())],
        result,
        words: words.map(str::to_owned),
    };
    let scaler = if has_bf16 { "" } else { ", GradScaler" };
    let autocast = format!("torch.autocast(\"cuda\", torch.{torch_half}){scaler}");
    let loaded = format!("from_pretrained(.., dtype=torch.{torch_half})");
    let lora_config = "LoraConfig(r=16, lora_alpha=32, target_modules=\"all-linear\")";
    let four_bits = "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", \
                     bnb_4bit_use_double_quant=True)";
    let kbit = format!(
        "{four_bits}, prepare_model_for_kbit_training(.., use_gradient_checkpointing=False), {lora_config}"
    );
    let fp32 = Choice {
        name: "fp32",
        subject: Subject::Training,
        keys: ranks.iter().cloned().collect(),
        result: "",
        words: [const { String::new() }; 3],
    };
    let mut choices = vec![
        fp32,
        training(
            "autocast",
            vec![],
            PRECISION,
            [autocast.clone(), autocast.clone(), format!("TrainingArguments({half}=True)")],
        ),
    ];
    if has_bf16 {
        let keys = vec![
            ("params", text(half)),
            ("residual", text(half)),
            ("master_weights", "false".to_owned()),
            ("optimizer_state", text(half)),
        ];
        let words = [format!("model.to(torch.{torch_half})"), loaded.clone(), loaded.clone()];
        choices.push(training("bf16", keys, STORAGE, words));
    }
    let adapters = |base: &str| vec![("lora", lora(base))];
    choices.extend([
        training(
            "lora",
            adapters(&format!("base = \"{half}\", tables = \"{half}\"")),
            ADAPTERS,
            [
                String::new(),
                format!("{loaded}, {autocast}, {lora_config}"),
                format!("{loaded}, {half}=True, {lora_config}"),
            ],
        ),
        training(
            "qlora",
            adapters("base = \"nf4\", double_quantization = true"),
            ADAPTERS,
            [String::new(), format!("{kbit}, {autocast}"), format!("{kbit}, {half}=True")],
        ),
    ]);
    if cards > 1 {
        let divided =
            |name, what, words| other(name, Subject::Sharding, "parallel.shard", what, ROUNDING, words);
        choices.extend([
            divided("zero-1", "\"optimizer\"", [""; 3]),
            divided("zero-2", "\"gradients\"", [""; 3]),
            divided(
                "zero-3",
                "\"parameters\"",
                ["fully_shard of each block and of the model, MixedPrecisionPolicy in place of autocast"; 3],
            ),
        ]);
    }
    choices.extend([
        other(
            "checkpoint",
            Subject::Recompute,
            "recompute",
            "\"block\"",
            BITWISE,
            [
                "torch.utils.checkpoint for each block",
                "model.activation_checkpointing_enable()",
                "TrainingArguments(activation_checkpointing=True)",
            ],
        ),
        other(
            "chunks",
            Subject::Loss,
            "loss_chunks",
            "8",
            ROUNDING,
            [
                "the loss of slices of rows, each under torch.utils.checkpoint",
                "apply_liger_kernel_to_llama(fused_linear_cross_entropy=True, ..), or of the model's family",
                "use_liger_kernel=True, liger_kernel_config={\"fused_linear_cross_entropy\": True, ..}",
            ],
        ),
        other(
            "8bit",
            Subject::OptimizerStates,
            "optimizer_state",
            "\"8bit\"",
            STORAGE,
            ["bitsandbytes.optim.AdamW8bit", "bitsandbytes.optim.AdamW8bit", "optim=\"adamw_8bit\""],
        ),
        other(
            "offload-opt",
            Subject::OptimizerOffload,
            "offload.optimizer",
            "true",
            ROUNDING,
            [
                "bitsandbytes.optim.PagedAdamW; with 8bit PagedAdamW8bit",
                "bitsandbytes.optim.PagedAdamW; with 8bit PagedAdamW8bit",
                "optim=\"paged_adamw_32bit\"; with 8bit \"paged_adamw_8bit\"",
            ],
        ),
        other("offload-act", Subject::ActivationOffload, "offload.activations", "true", BITWISE, [""; 3]),
        other("offload-param", Subject::ParameterOffload, "offload.parameters", "true", BITWISE, [""; 3]),
    ]);
    choices
}

impl Choice {
    /// How a script for PyTorch has it; empty if it has not.
    pub fn words(&self, program: TorchProgram) -> &str {
        &self.words[match program {
            TorchProgram::Modules => 0,
            TorchProgram::Transformers => 1,
            TorchProgram::Trainer => 2,
        }]
    }
}

impl Combination {
    /// Every choice by itself: the trainings, and each other choice with the plain training.
    pub fn alone(catalogue: &[Choice]) -> Vec<Combination> {
        let alone = |choice: &Choice| match (choice.subject, catalogue.first()) {
            (Subject::Training, _) | (_, None) => Combination { choices: vec![choice.clone()] },
            (_, Some(plain)) => Combination { choices: vec![plain.clone(), choice.clone()] },
        };
        catalogue.iter().map(alone).collect()
    }

    /// All combinations of a catalogue. The optimizer states of adapters are small: those have no remedy.
    pub fn all(catalogue: &[Choice]) -> Vec<Combination> {
        let (trainings, others): (Vec<_>, Vec<_>) =
            catalogue.iter().cloned().partition(|choice| choice.subject == Subject::Training);
        let mut all: Vec<Combination> =
            trainings.into_iter().map(|training| Combination { choices: vec![training] }).collect();
        for choice in others {
            let of_states = matches!(choice.subject, Subject::OptimizerStates | Subject::OptimizerOffload);
            let suits = |combination: &&Combination| !(of_states && combination.trains_adapters());
            let with: Vec<_> =
                all.iter().filter(suits).map(|combination| combination.with(&choice)).collect();
            all.extend(with);
        }
        all
    }

    fn with(&self, choice: &Choice) -> Combination {
        Combination { choices: [self.choices.as_slice(), std::slice::from_ref(choice)].concat() }
    }

    /// Whether it is one remedy by itself.
    pub fn is_alone(&self) -> bool {
        match self.choices.as_slice() {
            [_] => true,
            [training, _] => training.result.is_empty(),
            _ => false,
        }
    }

    /// Whether the model's parameters are frozen.
    pub fn trains_adapters(&self) -> bool {
        self.choices.iter().any(|choice| choice.result == ADAPTERS)
    }

    /// The name of the training.
    pub fn training(&self) -> &str {
        self.choices.first().map_or("", |choice| choice.name)
    }

    /// `bf16 + checkpoint`; several offloads are `offload-opt/act`.
    pub fn name(&self) -> String {
        let mut name = String::new();
        for choice in &self.choices {
            match choice.name.strip_prefix(OFFLOAD) {
                Some(what) if name.contains(OFFLOAD) => name.extend(["/", what]),
                _ if name.is_empty() => name.push_str(choice.name),
                _ => name.extend([" + ", choice.name]),
            }
        }
        name
    }

    /// The strategy's table in an experiment file. A later choice replaces a key of an earlier one.
    pub fn table(&self) -> String {
        let mut keys: Vec<(&str, &str)> = Vec::new();
        for (key, value) in self.choices.iter().flat_map(|choice| &choice.keys) {
            match keys.iter_mut().find(|(known, _)| known == key) {
                Some((_, old)) => *old = value,
                None => keys.push((key, value)),
            }
        }
        let mut out = format!("[strategies.\"{}\"]\n", self.name());
        for (key, value) in keys {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{key} = {value}");
        }
        out
    }
}
