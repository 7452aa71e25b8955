//! Muon in the script: the matrices of blocks have an optimizer of their own.

use super::{Script, python_bool};
use spec::{KeywordEnum, Optimizer, Update};

impl Script<'_> {
    /// The arguments of Muon.
    pub(super) fn muon(&self) -> Option<String> {
        let Optimizer::Muon(own) = &self.config.train.optimizer else { return None };
        Some(format!(
            "lr={:?}, weight_decay={:?}, momentum={:?}, nesterov={}, eps={:?}, ns_steps={}, adjust_lr_fn={:?}",
            own.lr,
            own.weight_decay,
            own.momentum,
            python_bool(own.nesterov),
            own.epsilon,
            own.ns_steps,
            own.adjust.keyword()
        ))
    }

    /// Selects the matrices of blocks, which Muon updates, and keeps the others as `trained`.
    pub(super) fn block_matrices(&mut self) {
        let blocks = match self.options.program.is_of_library() {
            true => "\".h.\" in name or \".layers.\" in name",
            false => "name.startswith(\"blocks.\")",
        };
        let rest = match self.config.strategy.update {
            Update::InBackward => "",
            _ => {
                "        trained = [parameter for parameter in trained if not any(parameter is other for other in matrices)]"
            }
        };
        self.lines(&[
            "        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]",
            &format!("        hidden = [{blocks} for name in names]"),
            "        matrices = [parameter for parameter, inner in zip(trained, hidden) if inner and parameter.dim() > 1]",
        ]);
        self.line_if(!rest.is_empty(), rest);
    }

    /// Statements for the optimizer, or for each of several.
    pub(super) fn for_each_optimizer(&mut self, statement: impl Fn(&str) -> String) {
        match self.config.train.optimizer {
            Optimizer::Muon(_) => {
                let statement = statement("optimizer");
                self.lines(&[
                    "        for optimizer in self.optimizers:",
                    &format!("            {statement}"),
                ]);
            }
            _ => self.line(&format!("        {}", statement("self.optimizer"))),
        }
    }
}
