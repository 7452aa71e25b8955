//! fp32 copies of 16-bit parameters: the script's optimizer updates the copies, and rounds the parameters from them.

use super::Script;
use crate::coverage;
use spec::{Gradients, Update};

impl Script<'_> {
    /// The function that makes the hook of a parameter, if gradients are taken by hooks.
    pub(super) fn master_weight_hooks(&mut self) {
        if !coverage::has_master_weights(self.config) {
            return;
        }
        if self.config.strategy.update == Update::InBackward {
            self.lines(&[
                "",
                "",
                "def apply_to_master(optimizer, master):",
                "    def hook(parameter):",
                "        master.grad = parameter.grad.float()",
                "        parameter.grad = None",
                "        optimizer.step()",
                "        with torch.no_grad():",
                "            parameter.copy_(master)",
                "        optimizer.zero_grad()",
                "",
                "    return hook",
            ]);
        } else if coverage::accumulates_in_fp32(self.config) {
            self.lines(&[
                "",
                "",
                "def accumulate_into(master):",
                "    def hook(parameter):",
                "        if master.grad is None:",
                "            master.grad = parameter.grad.float()",
                "        else:",
                "            master.grad += parameter.grad",
                "        parameter.grad = None",
                "",
                "    return hook",
            ]);
        }
    }

    /// Makes the copies, once the parameters are on the device.
    pub(super) fn master_weights(&mut self) {
        if !coverage::has_master_weights(self.config) {
            return;
        }
        self.lines(&[
            "        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]",
            "        self.pairs = [(parameter, nn.Parameter(parameter.detach().float())) for parameter in parameters]",
        ]);
        if coverage::accumulates_in_fp32(self.config) && self.config.strategy.update != Update::InBackward {
            self.lines(&[
                "        for parameter, master in self.pairs:",
                "            parameter.register_post_accumulate_grad_hook(accumulate_into(master))",
            ]);
        }
    }

    /// Copies the gradients before the update, unless hooks did.
    pub(super) fn copy_gradients(&mut self) {
        if !coverage::has_master_weights(self.config) || coverage::accumulates_in_fp32(self.config) {
            return;
        }
        self.lines(&[
            "        for parameter, master in self.pairs:",
            "            master.grad = parameter.grad.float()",
        ]);
        let frees = self.config.strategy.gradients == Gradients::Free;
        self.line_if(frees, "            parameter.grad = None");
    }

    /// Rounds the parameters from their copies after the update.
    pub(super) fn copy_parameters(&mut self) {
        if !coverage::has_master_weights(self.config) {
            return;
        }
        self.lines(&[
            "        with torch.no_grad():",
            "            for parameter, master in self.pairs:",
            "                parameter.copy_(master)",
        ]);
        let keeps =
            self.config.strategy.gradients != Gradients::Free && !coverage::accumulates_in_fp32(self.config);
        self.line_if(keeps, "        self.model.zero_grad(set_to_none=False)");
    }
}
