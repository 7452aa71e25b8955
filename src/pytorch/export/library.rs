//! The model of the script as a class of the transformers library.

use super::Script;
use crate::coverage;
use spec::{Recompute, StorageDtype, TorchProgram};

impl Script<'_> {
    pub(super) fn is_of_library(&self) -> bool {
        self.options.program == TorchProgram::Transformers
    }

    /// The class that has the library's model, and is called as the script's own.
    pub(super) fn library_model(&mut self) {
        let configuration = self.model.hf_configuration().expect("coverage was checked");
        let dtype = match self.config.strategy.params {
            StorageDtype::Fp32 => "torch.float32",
            StorageDtype::Bf16 => "torch.bfloat16",
            StorageDtype::Fp16 => "torch.float16",
        };
        self.lines(&[
            "",
            "# The model's config.json.",
            &format!("CONFIG = json.loads('''{}''')", configuration.fields),
            "",
            "",
            "class Network(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            "        config = AutoConfig.for_model(**CONFIG)",
            "        self.model = AutoModelForCausalLM.from_config(",
            &format!("            config, attn_implementation=\"sdpa\", dtype={dtype}"),
            "        )",
            "        self.model.train()",
        ]);
        let every = match self.config.strategy.recompute {
            Recompute::Block => Some(String::new()),
            Recompute::Every(every) => Some(format!(", every_n_layers={every}")),
            _ => None,
        };
        if let Some(every) = every {
            let reentrant = self.reentrant();
            self.line(&format!(
                "        self.model.activation_checkpointing_enable({{\"use_reentrant\": {reentrant}}}{every})"
            ));
        }
        self.lines(&["", "    def forward(self, tokens, labels):"]);
        match coverage::returns_logits(self.config) {
            true => self.lines(&[
                "        outputs = self.model(input_ids=tokens, labels=labels)",
                "        return outputs.loss, outputs.logits",
            ]),
            false => self.line("        return self.model(input_ids=tokens, labels=labels).loss"),
        }
    }

    /// The library shifts labels itself, and initializes its parameters.
    pub(super) fn library_batches(&mut self) {
        self.lines(&[
            "        tokens, targets = self.batches",
            "        self.batches[1] = torch.cat((tokens[..., :1], targets[..., :-1]), -1)",
            "        self.model = Network()",
        ]);
    }

    /// The names of a layer's modules.
    pub(super) fn library_names(layer: &str) -> String {
        match layer {
            "embedding" => "\"model.model.embed_tokens\"".to_owned(),
            "head" => "\"model.lm_head\", \"model.model.norm\"".to_owned(),
            block => format!("\"model.model.{}\"", block.replace("blocks", "layers")),
        }
    }
}
