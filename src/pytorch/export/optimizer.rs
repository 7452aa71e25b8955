//! The optimizer of the script and its gradient scaler.

use super::{Script, python_bool};
use crate::coverage;
use spec::{LossScale, Muon, Optimizer, OptimizerState, Precision, TorchOptimizer, Update};

impl Script<'_> {
    /// The arguments that choose the optimizer's implementation.
    pub(super) fn implementation(&self) -> String {
        if self.config.has_bitsandbytes_optimizer(self.options) {
            return match self.config.strategy.optimizer_state {
                OptimizerState::EightBit => {
                    format!(", min_8bit_size={}", self.config.strategy.quantize.from)
                }
                OptimizerState::Fp32 | OptimizerState::Bf16 => String::new(),
            };
        }
        match self.options.optimizer {
            TorchOptimizer::Fused | TorchOptimizer::Torchao
                if matches!(self.config.train.optimizer, Optimizer::Adafactor(_)) =>
            {
                ""
            }
            TorchOptimizer::ForLoop if matches!(self.config.train.optimizer, Optimizer::Adafactor(_)) => {
                ", foreach=False"
            }
            TorchOptimizer::Fused | TorchOptimizer::Torchao => ", fused=True",
            TorchOptimizer::Foreach => ", foreach=True",
            TorchOptimizer::ForLoop => ", foreach=False, fused=False",
        }
        .to_owned()
    }

    /// The class of the optimizer, its other arguments, and the weight decay; with Muon, of the optimizer of the rest.
    pub(super) fn optimizer_class(&self) -> (String, String, f64) {
        let adam =
            |lr: f64, betas: (f64, f64), epsilon: f64| format!("lr={lr:?}, betas={betas:?}, eps={epsilon:?}");
        let (name, options, decay) = match &self.config.train.optimizer {
            Optimizer::AdamW(own) | Optimizer::Muon(Muon { adamw: own, .. }) => {
                ("AdamW", adam(own.lr, (own.beta1, own.beta2), own.epsilon), own.weight_decay)
            }
            Optimizer::Adam(own) => {
                ("Adam", adam(own.lr, (own.beta1, own.beta2), own.epsilon), own.weight_decay)
            }
            Optimizer::Sgd(sgd) => (
                "SGD",
                format!(
                    "lr={:?}, momentum={:?}, nesterov={}",
                    sgd.lr,
                    sgd.momentum,
                    python_bool(sgd.nesterov)
                ),
                sgd.weight_decay,
            ),
            Optimizer::Lion(own) => {
                ("Lion", format!("lr={:?}, betas={:?}", own.lr, (own.beta1, own.beta2)), own.weight_decay)
            }
            Optimizer::Adafactor(own) => (
                "Adafactor",
                format!(
                    "lr={:?}, beta2_decay={:?}, eps={:?}, d={:?}",
                    own.lr,
                    own.beta2_decay,
                    (own.epsilon, own.scale_epsilon),
                    own.clip_threshold
                ),
                own.weight_decay,
            ),
        };
        let paged = if self.config.strategy.offload.optimizer { "Paged" } else { "" };
        let is_bitsandbytes_s = self.config.has_bitsandbytes_optimizer(self.options);
        let class = match (is_bitsandbytes_s, self.config.strategy.optimizer_state) {
            (false, _) => format!("torch.optim.{name}"),
            (true, OptimizerState::EightBit) => format!("bnb.optim.{paged}{name}8bit"),
            (true, OptimizerState::Fp32 | OptimizerState::Bf16) => format!("bnb.optim.{paged}{name}"),
        };
        (class, options, decay)
    }

    /// Has bitsandbytes keep fp32 states of embeddings.
    fn fp32_states_of_embeddings(&mut self) {
        let strategy = &self.config.strategy;
        if strategy.optimizer_state != OptimizerState::EightBit || strategy.quantize.embeddings {
            return;
        }
        self.line("        tables = [module.weight for module in self.model.modules() if isinstance(module, nn.Embedding)]");
        self.line_if(
            coverage::has_master_weights(self.config),
            "        tables = [master for parameter, master in self.pairs if any(parameter is table for table in tables)]",
        );
        self.lines(&[
            "        for table in tables:",
            "            bnb.optim.GlobalOptimManager.get_instance().override_config(table, \"optim_bits\", 32)",
        ]);
    }

    pub(super) fn optimizer(&mut self) {
        self.fp32_states_of_embeddings();
        let (class, options, decay) = self.optimizer_class();
        let implementation = self.implementation();
        let groups = self.config.train.optimizer.groups();
        let rest = groups.last().expect("the remaining parameters are a group");
        let decayed = if rest.decays(1) { "True" } else { "parameter.dim() > 1" };
        let trained = match coverage::has_master_weights(self.config) {
            true => "[master for _, master in self.pairs]",
            false => "[parameter for parameter in self.model.parameters() if parameter.requires_grad]",
        };
        self.line(&format!("        trained = {trained}"));
        let muon = self.muon();
        if muon.is_some() {
            self.block_matrices();
        }
        self.lines(&[
            &format!("        decayed = [parameter for parameter in trained if {decayed}]"),
            "        others = [parameter for parameter in trained if not any(parameter is other for other in decayed)]",
        ]);
        let groups = format!(
            "[{{\"params\": decayed, \"weight_decay\": {decay:?}}}, {{\"params\": others, \"weight_decay\": 0.0}}]"
        );
        if self.config.strategy.update == Update::InBackward {
            let (all, updated, hook) = match coverage::has_master_weights(self.config) {
                true => ("parameter, master in self.pairs", "master", "apply_to_master(optimizer, master)"),
                false => ("parameter in trained", "parameter", "apply(optimizer)"),
            };
            self.lines(&[
                &format!("        for {all}:"),
                &format!(
                    "            decay = {decay:?} if any({updated} is other for other in decayed) else 0.0"
                ),
            ]);
            let optimizer =
                format!("optimizer = {class}([{updated}], {options}, weight_decay=decay{implementation})");
            match muon {
                None => self.line(&format!("            {optimizer}")),
                Some(arguments) => self.lines(&[
                    &format!("            if any({updated} is matrix for matrix in matrices):"),
                    &format!("                optimizer = torch.optim.Muon([{updated}], {arguments})"),
                    "            else:",
                    &format!("                {optimizer}"),
                ]),
            }
            self.lines(&[&format!("            parameter.register_post_accumulate_grad_hook({hook})")]);
        } else {
            self.lines(&[&format!("        groups = [group for group in {groups} if group[\"params\"]]")]);
            match muon {
                None => {
                    let constructor = match self.config.has_torchao_optimizer(self.options) {
                        true => format!("CPUOffloadOptimizer(groups, {class}, "),
                        false => format!("{class}(groups, "),
                    };
                    self.line(&format!("        self.optimizer = {constructor}{options}{implementation})"))
                }
                Some(arguments) => self.lines(&[
                    "        self.optimizers = []",
                    "        if matrices:",
                    &format!("            self.optimizers.append(torch.optim.Muon(matrices, {arguments}))"),
                    "        if groups:",
                    &format!(
                        "            self.optimizers.append({class}(groups, {options}{implementation}))"
                    ),
                ]),
            }
        }
        if let Some(scaler) = self.scaler() {
            self.line(&format!("        self.scaler = {scaler}"));
        }
    }

    pub(super) fn scaler(&self) -> Option<String> {
        let strategy = &self.config.strategy;
        match strategy.loss_scale.filter(|_| strategy.precision == Precision::Fp16)? {
            LossScale::Static(scale) => {
                Some(format!("torch.amp.GradScaler(init_scale={scale:?}, growth_interval=2**31 - 1)"))
            }
            LossScale::Dynamic(_) => Some("torch.amp.GradScaler()".to_owned()),
        }
    }
}
