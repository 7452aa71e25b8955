//! The model of the script as a class of the transformers library.

use super::{Script, python_bool, torch_dtype};
use crate::coverage;
use crate::tensor::DType;
use crate::transformers::{self, liger_mlp, peft_module};
use spec::{Attention, KeywordEnum, ModelFamily, TorchKernels, TorchProgram, TransformersVersion};

impl Script<'_> {
    pub(super) fn library_imports(&self) -> String {
        let bitsandbytes =
            if self.config.uses_bitsandbytes(self.options) { "import bitsandbytes as bnb\n" } else { "" };
        let torchao = match self.config.has_torchao_optimizer(self.options) {
            true => "from torchao.optim import CPUOffloadOptimizer\n",
            false => "",
        };
        let classes = match self.options.program {
            TorchProgram::Modules => return format!("{bitsandbytes}{torchao}"),
            TorchProgram::Transformers => "AutoConfig, AutoModelForCausalLM",
            TorchProgram::Trainer => {
                "AutoConfig, AutoModelForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments"
            }
        };
        let peft = match self.config.strategy.lora {
            Some(_) if transformers::is_upcast(self.config) => {
                "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training\n"
            }
            Some(_) => "from peft import LoraConfig, get_peft_model\n",
            None => "",
        };
        let conv1d = match (transformers::four_bit(self.config), transformers::family(self.model)) {
            (Some(_), Some(ModelFamily::Gpt2)) => "from transformers.pytorch_utils import Conv1D\n",
            _ => "",
        };
        let liger = match (self.options.program, self.liger_function()) {
            (TorchProgram::Transformers, Some((function, _))) => {
                format!("from liger_kernel.transformers import {function}\n")
            }
            _ => String::new(),
        };
        format!("{bitsandbytes}{liger}{peft}from transformers import {classes}\n{conv1d}")
    }

    /// The function of liger-kernel that replaces the family's classes, which `Trainer` calls itself, and its arguments.
    pub(super) fn liger_function(&self) -> Option<(String, String)> {
        let family = transformers::family(self.model)?;
        let mlp = liger_mlp(family)?;
        let arguments = match (self.options.kernels, self.config.strategy.loss_chunks > 1) {
            (TorchKernels::Torch, false) => return None,
            (TorchKernels::Torch, true) => {
                format!("rope=False, rms_norm=False, {mlp}=False, fused_linear_cross_entropy=True")
            }
            (TorchKernels::Liger, false) => "fused_linear_cross_entropy=False".to_owned(),
            (TorchKernels::Liger, true) => String::new(),
        };
        Some((format!("apply_liger_kernel_to_{}", family.keyword()), arguments))
    }

    /// The class that has the library's model, and is called as the script's own.
    pub(super) fn library_model(&mut self) {
        self.library_configuration();
        self.lines(&[
            "",
            "",
            "class Network(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
        ]);
        if let Some((function, arguments)) = self.liger_function() {
            self.line(&format!("        {function}({arguments})"));
        }
        self.library_class();
        self.line("        self.model.train()");
        if let Some(every) = transformers::checkpointed_layers(self.config) {
            let reentrant = self.reentrant();
            match self.options.transformers {
                TransformersVersion::V5_24 => self.line(&format!(
                    "        self.model.activation_checkpointing_enable({{\"use_reentrant\": {reentrant}}}, every_n_layers={every})"
                )),
                TransformersVersion::V4_57 => self.lines(&[
                    &format!("        self.model.gradient_checkpointing_enable({{\"use_reentrant\": {reentrant}}})"),
                    "        self.model.enable_input_require_grads()",
                ]),
            }
        }
        self.adapters();
        let (parameter, argument) = match self.third_part() {
            Some(("mask", _)) => (", mask", ", attention_mask=mask"),
            Some(_) => (", positions", ", position_ids=positions"),
            None => ("", ""),
        };
        self.lines(&["", &format!("    def forward(self, tokens, labels{parameter}):")]);
        let call = format!("self.model(input_ids=tokens{argument}, labels=labels)");
        match coverage::returns_logits(self.config) {
            true => self.lines(&[
                &format!("        outputs = {call}"),
                "        return outputs.loss, outputs.logits",
            ]),
            false => self.line(&format!("        return {call}.loss")),
        }
    }

    pub(super) fn library_configuration(&mut self) {
        let configuration = self.model.hf_configuration().expect("coverage was checked");
        self.lines(&[
            "",
            "# The model's config.json.",
            &format!("CONFIG = json.loads('''{}''')", configuration.fields),
        ]);
        if transformers::four_bit(self.config).is_some() {
            self.quantize();
        }
    }

    /// `self.model` becomes the model, with its own initial parameters.
    pub(super) fn library_class(&mut self) {
        let four_bit = transformers::four_bit(self.config);
        let dtype = torch_dtype(transformers::initial_dtype(self.config));
        let attention = match self.config.strategy.attention {
            Attention::Fused => "sdpa",
            Attention::Materialized => "eager",
        };
        self.lines(&[
            "        config = AutoConfig.for_model(**CONFIG)",
            "        self.model = AutoModelForCausalLM.from_config(",
            &format!("            config, attn_implementation=\"{attention}\", dtype={dtype}"),
            "        )",
        ]);
        if let Some(double) = four_bit {
            self.quantization(dtype, double);
        }
    }

    /// Quantizes the base as `from_pretrained` would.
    fn quantization(&mut self, dtype: &str, double: bool) {
        let double = python_bool(double);
        self.lines(&[
            "        # As `from_pretrained` does with `BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\",",
            &format!("        # bnb_4bit_use_double_quant={double}, bnb_4bit_compute_dtype={dtype})`."),
            &format!("        quantize(self.model, compute_dtype={dtype}, compress_statistics={double}, quant_type=\"nf4\")"),
        ]);
        self.line_if(
            transformers::is_upcast(self.config),
            "        self.model = prepare_model_for_kbit_training(self.model, use_gradient_checkpointing=False)",
        );
    }

    /// The function that quantizes.
    fn quantize(&mut self) {
        let [class, inner, outer, transposed] = match transformers::family(self.model) {
            Some(ModelFamily::Gpt2) => ["Conv1D", "nx", "nf", ".T"],
            _ => ["nn.Linear", "in_features", "out_features", ""],
        };
        self.lines(&[
            "",
            "",
            "def quantize(model, **settings):",
            "    for name, layer in list(model.named_modules()):",
            &format!("        if type(layer) is not {class} or name == \"{}\":", self.head_name()),
            "            continue",
            "        with torch.device(\"meta\"):",
            &format!("            quantized = bnb.nn.Linear4bit(layer.{inner}, layer.{outer}, layer.bias is not None, **settings)"),
            "        values = {name: settings[name] for name in (\"compress_statistics\", \"quant_type\")}",
            &format!("        quantized.weight = bnb.nn.Params4bit(layer.weight.data{transposed}, requires_grad=False, **values)"),
            "        if layer.bias is not None:",
            "            quantized.bias = nn.Parameter(layer.bias.data, requires_grad=False)",
            "        model.set_submodule(name, quantized)",
            "    model.is_loaded_in_4bit = True",
        ]);
    }

    /// The name of the head's module.
    fn head_name(&self) -> &'static str {
        match (transformers::family(self.model), self.options.transformers) {
            (Some(ModelFamily::GptNeox), TransformersVersion::V4_57) => "embed_out",
            _ => "lm_head",
        }
    }

    /// `self.model` gets PEFT's adapters, if the run has some.
    pub(super) fn adapters(&mut self) {
        let Some(lora) = &self.config.strategy.lora else { return };
        let family = transformers::family(self.model);
        let modules: Vec<_> = lora.targets.iter().filter_map(|target| peft_module(family, target)).collect();
        let own_dtype = match transformers::adapter_dtype(self.config) {
            DType::F32 => "",
            _ => ", autocast_adapter_dtype=False",
        };
        self.lines(&[
            "        adapters = LoraConfig(",
            &format!("            r={}, lora_alpha={:?},", lora.rank, lora.alpha),
            &format!("            lora_dropout={:?}, use_rslora={},", lora.dropout, python_bool(lora.rslora)),
            &format!("            target_modules={modules:?}, task_type=\"CAUSAL_LM\","),
        ]);
        let saved: Vec<&str> =
            lora.trained.iter().flat_map(|layer| saved_modules(family, layer, self.head_name())).collect();
        self.line_if(!saved.is_empty(), &format!("            modules_to_save={saved:?},"));
        // The weights of `Conv1D`, which `Linear4bit` replaces.
        let is_transposed =
            family == Some(ModelFamily::Gpt2) && transformers::four_bit(self.config).is_none();
        self.line_if(is_transposed, "            fan_in_fan_out=True,");
        self.lines(&[
            "        )",
            &format!("        self.model = get_peft_model(self.model, adapters{own_dtype})"),
        ]);
    }

    /// The library shifts labels itself. Parameters are its own initial ones: a dump has other names.
    pub(super) fn library_batches(&mut self) {
        self.lines(&[
            match self.third_part() {
                Some(("positions", _)) => "        tokens, targets = self.batches[:2]",
                _ => "        tokens, targets = self.batches",
            },
            "        labels = torch.cat((tokens[..., :1], targets[..., :-1]), -1)",
        ]);
        let masked = if coverage::masks_targets(self.config) { ".masked_fill(labels < 0, -100)" } else { "" };
        self.line(&format!("        self.batches[1] = labels{masked}"));
        if self.options.attention_mask && !self.is_padded() {
            self.lines(&[
                "        # Each sample has padding.",
                "        mask = torch.ones_like(tokens)",
                "        mask[..., -1] = 0",
                "        self.batches.append(mask)",
            ]);
        }
        self.line("        self.model = Network()");
    }

    /// The function that reads the positions of packed documents.
    pub(super) fn read_positions(&mut self) {
        self.lines(&[
            "",
            "",
            "def read_positions(dump):",
            "    \"\"\"The position of each token in its document, [steps, batch, context].\"\"\"",
            "    if dump is None:",
            "        return (torch.arange(CONTEXT) % (CONTEXT - 1)).repeat(STEPS + 2, BATCH, 1)",
            "    from safetensors.torch import load_file",
            "",
            "    starts = load_file(os.path.join(dump, \"batches.safetensors\"))[\"starts\"].long()",
            "    return torch.arange(CONTEXT) - starts",
        ]);
    }

    /// The names of a layer's modules. `model`: the path of the library's model, with a dot at its end.
    pub(super) fn library_names(&self, layer: &str, model: &str) -> String {
        let (embedding, norm, blocks): (&[&str], &str, &str) = match transformers::family(self.model) {
            Some(ModelFamily::Gpt2) => {
                (&["transformer.wte", "transformer.wpe"], "transformer.ln_f", "transformer.h")
            }
            Some(ModelFamily::GptNeox) => {
                (&["gpt_neox.embed_in"], "gpt_neox.final_layer_norm", "gpt_neox.layers")
            }
            Some(ModelFamily::Falcon) => {
                (&["transformer.word_embeddings"], "transformer.ln_f", "transformer.h")
            }
            Some(ModelFamily::Phi) => (&["model.embed_tokens"], "model.final_layernorm", "model.layers"),
            _ => (&["model.embed_tokens"], "model.norm", "model.layers"),
        };
        let block = layer.replace("blocks", blocks);
        let modules = match layer {
            "embedding" => embedding,
            "head" => &[self.head_name(), norm],
            _ => &[block.as_str()],
        };
        let quoted: Vec<String> = modules.iter().map(|module| format!("\"{model}{module}\"")).collect();
        quoted.join(", ")
    }
}

/// The modules of a layer outside blocks. `head`: the name of the head's module.
fn saved_modules(family: Option<ModelFamily>, layer: &str, head: &'static str) -> Vec<&'static str> {
    match (layer, family) {
        ("embedding", Some(ModelFamily::Gpt2)) => vec!["wte", "wpe"],
        ("embedding", Some(ModelFamily::GptNeox)) => vec!["embed_in"],
        ("embedding", Some(ModelFamily::Falcon)) => vec!["word_embeddings"],
        ("embedding", _) => vec!["embed_tokens"],
        (_, Some(ModelFamily::GptNeox)) => vec![head, "final_layer_norm"],
        (_, Some(ModelFamily::Gpt2 | ModelFamily::Falcon)) => vec![head, "ln_f"],
        (_, Some(ModelFamily::Phi)) => vec![head, "final_layernorm"],
        _ => vec![head, "model.norm"],
    }
}
