//! Training by the library's `Trainer`.

use super::Script;
use crate::coverage;
use crate::tensor::DType;
use crate::{trainer, transformers};
use spec::{
    Collect, CollectedIn, EmptyCache, Optimizer, OptimizerState, Quantize, TorchOptimizer,
    TransformersVersion,
};

impl Script<'_> {
    pub(super) fn write_trainer(&mut self) {
        let strategy = &self.config.strategy;
        self.library_configuration();
        let evaluated = trainer::evaluated_batches(self.config) * trainer::evaluation_batch(self.config);
        self.lines(&["# Samples of an evaluation.", &format!("EVALUATED = {evaluated}")]);
        self.padded_samples();
        let packs = coverage::packs_documents(self.config);
        if packs {
            self.read_positions();
        }
        self.lines(&[
            "",
            "",
            "class Run:",
            "    def __init__(self, device, dump):",
            "        tokens, targets = [part.flatten(0, 1) for part in read_batches(dump)]",
            "        # The library shifts labels itself.",
            "        labels = torch.cat((tokens[:, :1], targets[:, :-1]), -1)",
        ]);
        self.line_if(
            coverage::masks_targets(self.config),
            "        labels = labels.masked_fill(labels < 0, -100)",
        );
        match (self.is_padded(), self.options.attention_mask) {
            (true, _) => self.lines(&[
                "        # The steps, and one ahead.",
                "        samples = padded_samples(tokens, labels, [*LENGTHS, LENGTHS[-1]], MICRO_BATCH)",
                &format!(
                    "        evaluated = padded_samples(tokens, labels, EVALUATION_LENGTHS, {})",
                    trainer::evaluation_batch(self.config)
                ),
            ]),
            (false, false) if packs => self.lines(&[
                "        positions = read_positions(dump).flatten(0, 1)",
                "        samples = [",
                "            {\"input_ids\": ids, \"position_ids\": own_positions, \"labels\": own}",
                "            for ids, own_positions, own in zip(tokens, positions, labels)",
                "        ]",
            ]),
            (false, false) => self.line(
                "        samples = [{\"input_ids\": ids, \"labels\": own} for ids, own in zip(tokens, labels)]",
            ),
            (false, true) => self.lines(&[
                "        # Each sample has padding.",
                "        mask = torch.ones_like(tokens)",
                "        mask[:, -1] = 0",
                "        samples = [",
                "            {\"input_ids\": ids, \"attention_mask\": own_mask, \"labels\": own}",
                "            for ids, own_mask, own in zip(tokens, mask, labels)",
                "        ]",
            ]),
        }
        if !self.is_padded() {
            self.lines(&[
                "        # As many as the steps need, one batch ahead, and as an evaluation needs.",
                "        samples *= max((STEPS + 1) * BATCH, EVALUATED) // len(samples) + 1",
            ]);
        }
        self.library_class();
        self.adapters();
        let enables_gradients = self.options.transformers == TransformersVersion::V4_57
            && transformers::checkpointed_layers(self.config).is_some();
        self.line_if(enables_gradients, "        self.model.enable_input_require_grads()");
        for layer in &strategy.freeze {
            let names = self.library_names(layer, "");
            self.line(&format!("        freeze(self.model, {names})"));
        }
        self.allow_tf32();
        self.arguments();
        self.lines(&[
            "        self.trainer = Trainer(",
            "            self.model,",
            "            arguments,",
            "            train_dataset=samples,",
            match self.is_padded() {
                true => "            eval_dataset=evaluated,",
                false => "            eval_dataset=samples[:EVALUATED],",
            },
        ]);
        self.line_if(
            coverage::collects_logits(self.config),
            "            compute_metrics=lambda outputs: {},",
        );
        if let Some(optimizer) = self.own_optimizer() {
            self.line(&format!("            optimizer_cls_and_kwargs={optimizer},"));
        }
        self.line("        )");
        self.line_if(
            self.options.transformers == TransformersVersion::V4_57,
            "        self.trainer._get_train_sampler = torch.utils.data.SequentialSampler",
        );
        self.lines(&["        self.trainer.remove_callback(PrinterCallback)", "", ""]);
    }

    /// The function that pads samples, if lengths vary.
    fn padded_samples(&mut self) {
        if !self.is_padded() {
            return;
        }
        let is_masked = self.options.attention_mask;
        self.lines(&[
            "",
            "",
            "def padded_samples(tokens, labels, batches, count):",
            "    \"\"\"As a collator pads them: micro-batches of `count` samples to the longest document of each.\"\"\"",
            "    samples = []",
            if is_masked {
                "    for number, (length, has_padding) in enumerate(sum(batches, [])):"
            } else {
                "    for number, length in enumerate(sum(batches, [])):"
            },
            "        for sample in range(number * count, (number + 1) * count):",
            "            ids, own = (part[sample % len(part), :length] for part in (tokens, labels))",
            "            samples.append({\"input_ids\": ids, \"labels\": own})",
        ]);
        if is_masked {
            self.lines(&[
                "            mask = torch.ones_like(ids)",
                "            mask[-1] = not has_padding",
                "            samples[-1][\"attention_mask\"] = mask",
            ]);
        }
        self.line("    return samples");
    }

    /// The condition for an evaluation after a step.
    pub(super) fn trainer_evaluates(&self) -> String {
        match self.config.evaluation.as_ref().filter(|_| self.is_padded()) {
            None => "state.global_step >= STEPS - 1".to_owned(),
            Some(evaluation) => {
                let every = evaluation.every.max(1);
                format!("(state.global_step % {every} == 0 or state.global_step == STEPS)")
            }
        }
    }

    fn arguments(&mut self) {
        let config = self.config;
        let train = &config.train;
        let order = match self.options.transformers {
            TransformersVersion::V5_24 => " train_sampling_strategy=\"sequential\",",
            TransformersVersion::V4_57 => "",
        };
        self.lines(&[
            "        arguments = TrainingArguments(",
            "            output_dir=\".\", save_strategy=\"no\", report_to=\"none\", disable_tqdm=True,",
            &format!("            use_cpu=device == \"cpu\", max_steps=STEPS, logging_steps=1,{order}"),
            "            per_device_train_batch_size=MICRO_BATCH, gradient_accumulation_steps=BATCH // MICRO_BATCH,",
            &format!("            per_device_eval_batch_size={},", trainer::evaluation_batch(config)),
        ]);
        let autocast = coverage::autocast(config);
        self.line_if(autocast == Some(DType::BF16), "            bf16=True,");
        self.line_if(autocast == Some(DType::F16), "            fp16=True,");
        if let Some(every) = transformers::checkpointed_layers(config) {
            let (name, every) = match self.options.transformers {
                TransformersVersion::V5_24 => ("activation", format!(", \"every_n_layers\": {every}")),
                TransformersVersion::V4_57 => ("gradient", String::new()),
            };
            let reentrant = self.reentrant();
            self.lines(&[
                &format!("            {name}_checkpointing=True,"),
                &format!(
                    "            {name}_checkpointing_kwargs={{\"use_reentrant\": {reentrant}{every}}},"
                ),
            ]);
        }
        self.line_if(
            config.strategy.empty_cache == EmptyCache::Micro,
            "            torch_empty_cache_steps=1,",
        );
        if let Some((_, arguments)) = self.liger_function() {
            let config = match arguments.is_empty() {
                true => String::new(),
                false => format!(" liger_kernel_config=dict({arguments}),"),
            };
            self.line(&format!("            use_liger_kernel=True,{config}"));
        }
        if let Some(name) = self.optimizer_name() {
            match &train.optimizer {
                Optimizer::AdamW(own) => self.line(&format!(
                    "            optim={name:?}, learning_rate={:?}, adam_beta1={:?}, adam_beta2={:?}, adam_epsilon={:?},",
                    own.lr, own.beta1, own.beta2, own.epsilon
                )),
                Optimizer::Lion(own) => self.line(&format!(
                    "            optim={name:?}, learning_rate={:?}, adam_beta1={:?}, adam_beta2={:?},",
                    own.lr, own.beta1, own.beta2
                )),
                _ => unreachable!("it has no name"),
            }
        }
        let (_, _, decay) = self.optimizer_class();
        self.lines(&[&format!(
            "            lr_scheduler_type=\"constant\", weight_decay={decay:?}, max_grad_norm={:?},",
            train.clip_norm.unwrap_or(0.0)
        )]);
        if let Some(Collect { to, concatenate, .. }) = config.collect() {
            self.line_if(!concatenate, "            eval_do_concat_batches=False,");
            self.line_if(to == CollectedIn::Host, "            eval_accumulation_steps=1,");
        }
        self.line("        )");
    }

    /// The optimizer's name in `TrainingArguments`, if it has one.
    fn optimizer_name(&self) -> Option<&'static str> {
        let strategy = &self.config.strategy;
        let is_eight_bit = strategy.optimizer_state == OptimizerState::EightBit;
        if is_eight_bit && strategy.quantize != Quantize::default() {
            return None;
        }
        match (&self.config.train.optimizer, self.options.optimizer) {
            (Optimizer::AdamW(_), _) if strategy.offload.optimizer => {
                Some(if is_eight_bit { "paged_adamw_8bit" } else { "paged_adamw_32bit" })
            }
            (Optimizer::Lion(_), _) if strategy.offload.optimizer => {
                Some(if is_eight_bit { "paged_lion_8bit" } else { "paged_lion_32bit" })
            }
            (Optimizer::AdamW(_), _) if is_eight_bit => Some("adamw_8bit"),
            (Optimizer::Lion(_), _) => Some(if is_eight_bit { "lion_8bit" } else { "lion_32bit" }),
            (Optimizer::AdamW(_), TorchOptimizer::Fused | TorchOptimizer::Torchao) => {
                Some("adamw_torch_fused")
            }
            (Optimizer::AdamW(_), TorchOptimizer::Foreach) => Some("adamw_torch"),
            _ => None,
        }
    }

    /// An optimizer without a name: its class and arguments. With `optim_bits=8` in them, `Trainer` excludes embeddings from 8
    /// bits; it does not for the class `AdamW8bit`.
    fn own_optimizer(&self) -> Option<String> {
        if self.optimizer_name().is_some() {
            return None;
        }
        let (class, options, _) = self.optimizer_class();
        let (class, bits) = match class.strip_suffix("8bit") {
            Some(class) => (class.to_owned(), ", optim_bits=8"),
            None => (class, ""),
        };
        Some(format!("({class}, dict({options}{}{bits}))", self.implementation()))
    }
}
