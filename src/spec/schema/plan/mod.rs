//! `[plan]`: the figures that `plan` and `explain` show. Its keys belong to no run.

mod alloc_conf;

pub use alloc_conf::AllocConf;

use alloc_conf::AllocConfText;

use crate::reader::declare::{KeywordEnum, keywords};
use crate::reader::keys::Keys;
use crate::reader::parsers::{Boolean, keyword};
use crate::reader::reference::{Accepts, DeclaredKey};
use crate::schema::optimizer::Optimizer;
use crate::schema::resolved::RunConfig;
use crate::schema::strategy::{LoraBase, OptimizerState};

pub(crate) const PLAN_KEYS: &[&str] = &[
    "as",
    "torch_version",
    "transformers_version",
    "torch_program",
    "torch_kernels",
    "torch_optimizer",
    "torch_checkpoint",
    "torch_attention_mask",
    "alloc_conf",
];

keywords! {
    /// The program whose memory is shown.
    pub enum Framework {
        Runner = "runner",
        Pytorch = "pytorch",
    }
}

/// The version of Accelerate that the library's `Trainer` calls.
const ACCELERATE_VERSION: &str = "1.15";

/// The version of PEFT whose adapters are predicted.
const PEFT_VERSION: &str = "0.21";

/// The version of liger-kernel whose layers and loss are predicted.
const LIGER_VERSION: &str = "0.8";

/// The version of bitsandbytes whose optimizers and weights in four bits are predicted.
pub const BITSANDBYTES_VERSION: &str = "0.50";
const TORCHAO_VERSION: &str = "0.18";

keywords! {
    /// A version of PyTorch.
    #[derive(Default)]
    pub enum TorchVersion {
        #[default]
        V2_15 = "2.15",
        V2_11 = "2.11",
        V2_6 = "2.6",
    }
}

impl TorchVersion {
    /// The environment variable with the allocator's settings.
    pub fn allocator_variable(self) -> &'static str {
        match self {
            TorchVersion::V2_15 | TorchVersion::V2_11 => "PYTORCH_ALLOC_CONF",
            TorchVersion::V2_6 => "PYTORCH_CUDA_ALLOC_CONF",
        }
    }
}

keywords! {
    /// A version of the transformers library.
    #[derive(Default)]
    pub enum TransformersVersion {
        #[default]
        V5_24 = "5.24",
        /// The last of 4.x.
        V4_57 = "4.57",
    }
}

keywords! {
    /// The classes of the predicted model, and the training loop.
    #[derive(Default)]
    pub enum TorchProgram {
        /// `torch.nn` alone: the modules that `export` writes.
        #[default]
        Modules = "modules",
        /// The model's class in the transformers library, with its loss.
        Transformers = "transformers",
        /// The same class, trained by the library's `Trainer`.
        Trainer = "trainer",
    }
}

impl TorchProgram {
    /// Whether the model is a class of the transformers library.
    pub fn is_of_library(self) -> bool {
        self != TorchProgram::Modules
    }
}

keywords! {
    /// Whose kernels compute norms, rotations and gates of the library's model.
    #[derive(Default)]
    pub enum TorchKernels {
        /// PyTorch's, called by the library's own classes.
        #[default]
        Torch = "torch",
        /// liger-kernel's, which `use_liger_kernel=True` switches on.
        Liger = "liger",
    }
}

keywords! {
    /// How an optimizer of `torch.optim` runs a step.
    #[derive(Default)]
    pub enum TorchOptimizer {
        /// One kernel for many tensors (`fused=True`).
        #[default]
        Fused = "fused",
        /// One kernel for each operation over many tensors (`foreach=True`), PyTorch's default on a GPU.
        Foreach = "foreach",
        /// One tensor after the other (`foreach=False, fused=False`).
        ForLoop = "for-loop",
        /// With `offload.optimizer`, torchao's `CPUOffloadOptimizer`; else as "fused".
        Torchao = "torchao",
    }
}

keywords! {
    /// How `torch.utils.checkpoint` recomputes.
    #[derive(Default)]
    pub enum TorchCheckpoint {
        /// `use_reentrant=False`: recompute when backward first needs a saved tensor, and only up to the last one.
        #[default]
        NonReentrant = "non-reentrant",
        /// `use_reentrant=True`: run forward without a graph; recompute the whole function and run its backward at once.
        Reentrant = "reentrant",
    }
}

/// Options of the PyTorch script that are no keys of a strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TorchOptions {
    pub program: TorchProgram,
    pub transformers: TransformersVersion,
    pub kernels: TorchKernels,
    pub optimizer: TorchOptimizer,
    pub checkpoint: TorchCheckpoint,
    /// Whether batches have an attention mask that hides padding.
    pub attention_mask: bool,
}

/// The keys of `[plan]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanKeys {
    pub framework: Framework,
    pub torch_version: TorchVersion,
    pub torch_options: TorchOptions,
    pub alloc_conf: AllocConf,
}

impl RunConfig {
    /// Whether torchao has the optimizer: its states are in host memory, and the host updates.
    pub fn has_torchao_optimizer(&self, options: TorchOptions) -> bool {
        self.trains() && self.strategy.offload.optimizer && options.optimizer == TorchOptimizer::Torchao
    }

    /// Whether bitsandbytes has the optimizer that `torch.optim` lacks: Lion, 8-bit states, or paged ones.
    pub fn has_bitsandbytes_optimizer(&self, options: TorchOptions) -> bool {
        let is_lion = matches!(self.train.optimizer, Optimizer::Lion(_));
        let has_own_states = self.strategy.optimizer_state == OptimizerState::EightBit;
        let is_bitsandbytes_s = is_lion || has_own_states || self.strategy.offload.optimizer;
        self.trains() && is_bitsandbytes_s && !self.has_torchao_optimizer(options)
    }

    /// Whether the run in PyTorch needs bitsandbytes.
    pub fn uses_bitsandbytes(&self, options: TorchOptions) -> bool {
        let is_four_bit = self.strategy.lora.as_ref().is_some_and(|lora| lora.base == LoraBase::Nf4);
        is_four_bit || self.has_bitsandbytes_optimizer(options)
    }
}

impl Default for PlanKeys {
    fn default() -> PlanKeys {
        PlanKeys {
            framework: Framework::Runner,
            torch_version: TorchVersion::default(),
            torch_options: TorchOptions::default(),
            alloc_conf: AllocConf::default(),
        }
    }
}

impl PlanKeys {
    pub(crate) fn read<'a>(keys: &mut Keys<'a>) -> Option<PlanKeys> {
        let Some(mut keys) = keys.table("plan", "plan", "[plan]") else { return Some(PlanKeys::default()) };
        let framework = keys.optional("as", keyword());
        let torch_version = keys.optional("torch_version", keyword());
        let transformers = keys.optional("transformers_version", keyword());
        let program = keys.optional("torch_program", keyword());
        let kernels = keys.optional("torch_kernels", keyword());
        let optimizer = keys.optional("torch_optimizer", keyword());
        let checkpoint = keys.optional("torch_checkpoint", keyword());
        let attention_mask = keys.optional("torch_attention_mask", Boolean);
        let alloc_conf = match keys.entry("alloc_conf") {
            None => Some(AllocConf::default()),
            Some(entry) => alloc_conf::read(&keys, &entry.node),
        };
        keys.finish();
        Some(PlanKeys {
            framework: framework?.unwrap_or(Framework::Runner),
            torch_version: torch_version?.unwrap_or_default(),
            torch_options: TorchOptions {
                program: program?.unwrap_or_default(),
                transformers: transformers?.unwrap_or_default(),
                kernels: kernels?.unwrap_or_default(),
                optimizer: optimizer?.unwrap_or_default(),
                checkpoint: checkpoint?.unwrap_or_default(),
                attention_mask: attention_mask?.unwrap_or_default(),
            },
            alloc_conf: alloc_conf?,
        })
    }
}

impl PlanKeys {
    /// `[plan]` as TOML.
    pub fn to_toml(&self) -> String {
        let PlanKeys { framework, torch_version, torch_options, alloc_conf } = self;
        let TorchOptions { program, transformers, kernels, optimizer, checkpoint, attention_mask } =
            torch_options;
        let alloc_conf = match *alloc_conf == AllocConf::default() {
            true => String::new(),
            false => format!("alloc_conf = \"{alloc_conf}\"\n"),
        };
        format!(
            "\n[plan]\nas = \"{}\"\ntorch_version = \"{}\"\ntransformers_version = \"{}\"\ntorch_program = \
             \"{}\"\ntorch_kernels = \"{}\"\ntorch_optimizer = \"{}\"\ntorch_checkpoint = \"{}\"\ntorch_attention_mask = {attention_mask}\n{alloc_conf}",
            framework.keyword(),
            torch_version.keyword(),
            transformers.keyword(),
            program.keyword(),
            kernels.keyword(),
            optimizer.keyword(),
            checkpoint.keyword()
        )
    }

    /// The program that is predicted: `PyTorch 2.15 with transformers 5.24, reentrant checkpoints, expandable_segments:True`.
    /// `run`: names the libraries that the run needs beside those of all runs.
    pub fn torch_program(&self, run: Option<&RunConfig>) -> String {
        let transformers = self.torch_options.transformers.keyword();
        let library = match self.torch_options.program {
            TorchProgram::Modules => None,
            TorchProgram::Transformers => Some(format!("transformers {transformers}")),
            TorchProgram::Trainer => {
                Some(format!("Trainer of transformers {transformers} and Accelerate {ACCELERATE_VERSION}"))
            }
        };
        let uses_liger = self.torch_options.kernels == TorchKernels::Liger;
        let liger = uses_liger.then(|| format!("liger-kernel {LIGER_VERSION}"));
        let peft = run.is_some_and(|run| run.strategy.lora.is_some()).then(|| format!("PEFT {PEFT_VERSION}"));
        let bitsandbytes = run
            .is_some_and(|run| run.uses_bitsandbytes(self.torch_options))
            .then(|| format!("bitsandbytes {BITSANDBYTES_VERSION}"));
        let optimizer = match self.torch_options.optimizer {
            TorchOptimizer::Torchao
                if run.is_some_and(|run| run.has_torchao_optimizer(self.torch_options)) =>
            {
                Some(format!("torchao {TORCHAO_VERSION}"))
            }
            TorchOptimizer::Fused | TorchOptimizer::Torchao => None,
            TorchOptimizer::Foreach => Some("a foreach optimizer".to_owned()),
            TorchOptimizer::ForLoop => Some("a for-loop optimizer".to_owned()),
        };
        let reentrant = self.torch_options.checkpoint == TorchCheckpoint::Reentrant;
        let checkpoint = reentrant.then(|| "reentrant checkpoints".to_owned());
        let mask = self.torch_options.attention_mask.then(|| "attention masks".to_owned());
        let settings = (self.alloc_conf != AllocConf::default()).then(|| self.alloc_conf.to_string());
        let differences: Vec<String> =
            [library, liger, peft, bitsandbytes, optimizer, checkpoint, mask, settings]
                .into_iter()
                .flatten()
                .collect();
        let version = self.torch_version.keyword();
        match differences.is_empty() {
            true => format!("PyTorch {version}"),
            false => format!("PyTorch {version} with {}", differences.join(", ")),
        }
    }
}

/// `[plan]` is read by hand: `as` cannot name a field.
pub(super) fn reference() -> Vec<DeclaredKey> {
    let framework = "Whose memory `plan` and `explain` show: this program's, or PyTorch's for the same training on a known card. `--as` wins.";
    let conf = "Settings of PyTorch's allocator in the prediction of its memory, as in PYTORCH_ALLOC_CONF.";
    let version = "The version of PyTorch whose memory is predicted.";
    let library = "The version of the transformers library whose classes and `Trainer` are predicted.";
    let optimizer = "How `torch.optim` runs a step in the prediction of PyTorch's memory. Without `fused=True`, PyTorch takes \"foreach\", which has temporaries in the update. With \"torchao\", runs with `offload.optimizer` have torchao's `CPUOffloadOptimizer`, and others \"fused\".";
    let program = "The classes of the model in the prediction of PyTorch's memory: plain `torch.nn` modules, or the model's class in transformers, called by a plain training loop or by the library's `Trainer`.";
    let programs = keyword::<TorchProgram>();
    let kernels = "Whose kernels compute norms, rotations and gates in the prediction of PyTorch's memory with the library's model: PyTorch's, or those that `use_liger_kernel=True` switches on. `loss_chunks` adds Liger's loss.";
    let kernel_names = keyword::<TorchKernels>();
    let (frameworks, versions) = (keyword::<Framework>(), keyword::<TorchVersion>());
    let libraries = keyword::<TransformersVersion>();
    let (optimizers, checkpoints) = (keyword::<TorchOptimizer>(), keyword::<TorchCheckpoint>());
    let checkpoint = "How `torch.utils.checkpoint` recomputes in the prediction of PyTorch's memory: `use_reentrant=False` or `True`.";
    let mask = "Whether each micro-batch has an attention mask that hides padding, as collators make them, in the prediction of PyTorch's memory with the library's model. Without padding in a micro-batch, the library drops its mask.";
    vec![
        DeclaredKey::new("as", framework, Accepts::parsed(&frameworks), Some("`\"runner\"`")),
        DeclaredKey::new("torch_version", version, Accepts::parsed(&versions), Some("`\"2.15\"`")),
        DeclaredKey::new("transformers_version", library, Accepts::parsed(&libraries), Some("`\"5.24\"`")),
        DeclaredKey::new("torch_program", program, Accepts::parsed(&programs), Some("`\"modules\"`")),
        DeclaredKey::new("torch_kernels", kernels, Accepts::parsed(&kernel_names), Some("`\"torch\"`")),
        DeclaredKey::new("torch_optimizer", optimizer, Accepts::parsed(&optimizers), Some("`\"fused\"`")),
        DeclaredKey::new(
            "torch_checkpoint",
            checkpoint,
            Accepts::parsed(&checkpoints),
            Some("`\"non-reentrant\"`"),
        ),
        DeclaredKey::new("torch_attention_mask", mask, Accepts::parsed(&Boolean), Some("`false`")),
        DeclaredKey::new("alloc_conf", conf, Accepts::parsed(&AllocConfText), Some("`\"off\"`")),
    ]
}
