//! The modules of the script: norms, rotations, attention, feed-forward layers and blocks.

use std::fmt::Write;

use super::{Script, python_bool};
use crate::coverage;
use ops::{Activation, Frequencies, OpKind};
use spec::{
    Attention, BlockPart, KeywordSet, MlpActivation, Norm, NormPlacement, Positions, QkNormOver, Recompute,
    Transformer,
};

impl Script<'_> {
    pub(super) fn write_model(&mut self) {
        self.norm();
        self.rotary();
        self.attention();
        self.mlp();
        self.block();
        self.network();
    }

    fn has_rms_norm(&self) -> bool {
        self.model.norm != Norm::Layer || self.model.qk_norm
    }

    fn norm(&mut self) {
        if !self.has_rms_norm() {
            return;
        }
        let zero_centered = self.model.norm == Norm::RmsZeroCentered;
        let result = if zero_centered {
            "return (x * (1.0 + self.weight.float())).to(dtype)"
        } else {
            "return self.weight * x.to(dtype)"
        };
        let start = if zero_centered { "zeros" } else { "ones" };
        let _ = write!(
            self.text,
            "\n\nclass RMSNorm(nn.Module):\n    \
             def __init__(self, channels):\n        \
             super().__init__()\n        \
             self.weight = nn.Parameter(torch.{start}(channels))\n\n    \
             def forward(self, x):\n        \
             dtype = x.dtype\n        \
             x = x.to(torch.float32)\n        \
             x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + {:e})\n        \
             {result}\n",
            self.model.norm_epsilon
        );
    }

    pub(super) fn is_rotary(&self) -> bool {
        self.model.positions == Positions::Rotary
    }

    /// Whether queries, keys and values are computed by one matrix.
    fn is_fused(&self) -> bool {
        !self.is_rotary() && !self.model.qk_norm && self.model.heads == self.model.kv_heads
    }

    fn rotary(&mut self) {
        if !self.is_rotary() {
            return;
        }
        let rotations: Vec<_> = self.rotations().collect();
        for (index, (_, _, frequencies)) in rotations.iter().enumerate() {
            let inverse = match frequencies {
                Frequencies { base, scaling: None, divisors } if divisors.is_empty() => {
                    format!("1.0 / {base:?} ** (torch.arange(0, HEAD, 2).float() / HEAD)")
                }
                _ => format!("torch.tensor({:?})", frequencies.of_channels(self.model.head_dim)),
            };
            let other = if index == 0 { "" } else { "other_" };
            let _ = write!(
                self.text,
                "\n\ndef {other}cos_sin():\n    \
                 frequencies = {inverse}\n    \
                 angles = torch.outer(torch.arange(CONTEXT).float(), frequencies)\n    \
                 angles = torch.cat((angles, angles), -1)\n    \
                 return angles.cos(), angles.sin()\n"
            );
        }
        self.text.push_str(
            "\n\ndef rotate_half(x):\n    \
             first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]\n    \
             return torch.cat((-second, first), -1)\n\n\n\
             def rotate(x, cos, sin):\n    \
             return x * cos + rotate_half(x) * sin\n",
        );
    }

    pub(super) fn norm_module(&self) -> String {
        match self.model.norm {
            Norm::Layer => format!("nn.LayerNorm(CHANNELS, eps={:e})", self.model.norm_epsilon),
            Norm::Rms | Norm::RmsZeroCentered => "RMSNorm(CHANNELS)".to_owned(),
        }
    }

    fn norms(&mut self) {
        let norm = self.norm_module();
        match self.model.norm_placement {
            NormPlacement::Pre | NormPlacement::Sandwich => self.line(&format!("        self.norm = {norm}")),
            NormPlacement::Post | NormPlacement::Output => {}
        }
    }

    /// Norms that follow the last linear layer.
    fn norms_after(&mut self) {
        let norm = self.norm_module();
        match self.model.norm_placement {
            NormPlacement::Pre => {}
            NormPlacement::Post => self.line(&format!("        self.norm = {norm}")),
            NormPlacement::Sandwich | NormPlacement::Output => {
                self.line(&format!("        self.out_norm = {norm}"));
            }
        }
    }

    /// The input of a sub-layer.
    fn normed(&self) -> &'static str {
        match self.model.norm_placement {
            NormPlacement::Post | NormPlacement::Output => "x",
            NormPlacement::Pre | NormPlacement::Sandwich => "self.norm(x)",
        }
    }

    /// The end of a sub-layer: its last linear layer, norms, factor, dropout and the residual connection.
    fn residual(&mut self) {
        let (dropout, placement) = (self.model.dropout.residual, self.model.norm_placement);
        let ends_with_norm = matches!(placement, NormPlacement::Sandwich | NormPlacement::Output);
        let scale = self.model.residual_scale;
        // What follows the last linear layer has a statement of its own, which releases the value before.
        let y = match dropout > 0.0 || scale.is_some() || ends_with_norm {
            true => {
                self.line("        y = self.out(y)");
                self.line_if(ends_with_norm, "        y = self.out_norm(y)");
                scale.iter().for_each(|scale| self.line(&format!("        y = y * {scale:?}")));
                "y"
            }
            false => "self.out(y)",
        };
        let sum = match dropout > 0.0 {
            true => format!("x + F.dropout({y}, {dropout:?}, self.training)"),
            false => format!("x + {y}"),
        };
        match placement {
            NormPlacement::Post => {
                self.lines(&[&format!("        y = {sum}"), "        return self.norm(y)"]);
            }
            NormPlacement::Pre | NormPlacement::Sandwich | NormPlacement::Output => {
                self.line(&format!("        return {sum}"));
            }
        }
    }

    fn attention(&mut self) {
        let Transformer { bias, qkv_bias, qk_norm, causal, .. } = *self.model;
        let [bias, qkv_bias] = [bias, qkv_bias].map(python_bool);
        self.lines(&[
            "",
            "",
            "class Attention(nn.Module):",
            &format!("    def __init__(self{}):", self.differences()),
            "        super().__init__()",
        ]);
        self.line_if(self.mixes_windows(), "        self.is_windowed = is_windowed");
        self.line_if(self.mixes_rotations(), "        self.rotation = rotation");
        self.norms();
        if self.is_fused() {
            self.line(&format!("        self.qkv = nn.Linear(CHANNELS, 3 * HEADS * HEAD, bias={qkv_bias})"));
        } else {
            for (name, heads) in [("q", "HEADS"), ("k", "KV_HEADS"), ("v", "KV_HEADS")] {
                self.line(&format!(
                    "        self.{name} = nn.Linear(CHANNELS, {heads} * HEAD, bias={qkv_bias})"
                ));
            }
        }
        let is_joint = self.model.qk_norm_over == QkNormOver::AllHeads;
        for (name, heads) in [("q", "HEADS"), ("k", "KV_HEADS")] {
            let width = if is_joint { format!("{heads} * HEAD") } else { "HEAD".to_owned() };
            self.line_if(qk_norm, &format!("        self.{name}_norm = RMSNorm({width})"));
        }
        self.line(&format!("        self.out = nn.Linear(HEADS * HEAD, CHANNELS, bias={bias})"));
        self.norms_after();
        let arguments = self.block_arguments();
        let normed = self.normed();
        let input = if self.is_fused() { format!("self.qkv({normed})") } else { normed.to_owned() };
        self.lines(&[
            "",
            &format!("    def forward(self, x{arguments}):"),
            &format!("        y = self.attend({input}{arguments})"),
        ]);
        self.residual();
        self.lines(&["", &format!("    def attend(self, x{arguments}):")]);
        if self.is_fused() {
            self.line("        q, k, v = x.split(HEADS * HEAD, -1)");
            self.line(
                "        q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (q, k, v))",
            );
        } else {
            for name in ["q", "k", "v"] {
                let norm = if qk_norm && name != "v" { format!("self.{name}_norm") } else { String::new() };
                self.line(&if is_joint {
                    format!(
                        "        {name} = {norm}(self.{name}(x)).unflatten(-1, (-1, HEAD)).transpose(1, 2)"
                    )
                } else {
                    format!(
                        "        {name} = {norm}(self.{name}(x).unflatten(-1, (-1, HEAD))).transpose(1, 2)"
                    )
                });
            }
        }
        match self.mixes_rotations() {
            true => {
                let tables: Vec<String> =
                    self.rotations().map(|(cos, sin, _)| format!("({cos}, {sin})")).collect();
                self.lines(&[
                    "        if self.rotation is not None:",
                    &format!("            cos, sin = [{}][self.rotation]", tables.join(", ")),
                    "            q, k = rotate(q, cos, sin), rotate(k, cos, sin)",
                ]);
            }
            false => {
                self.line_if(self.is_rotary(), "        q, k = rotate(q, cos, sin), rotate(k, cos, sin)")
            }
        }
        let dropout = self.model.dropout.attention;
        let scale = self.attention_scale();
        if self.config.strategy.attention == Attention::Materialized {
            self.line_if(
                self.model.heads != self.model.kv_heads,
                "        k, v = (part[:, :, None].expand(-1, -1, HEADS // KV_HEADS, -1, -1).flatten(1, 2) for part in (k, v))",
            );
            let scale = scale.map_or("HEAD**-0.5".to_owned(), |scale| scale.replace("None", "HEAD**-0.5"));
            self.line(&format!("        scores = q @ k.transpose(-2, -1) * {scale}"));
            let cap = self.model.attention_softcap;
            cap.iter().for_each(|cap| {
                self.line(&format!("        scores = torch.tanh(scores / {cap:?}) * {cap:?}"))
            });
            let mask = match self.windows() {
                (Some(_), true) => "window_mask if self.is_windowed else mask",
                (Some(_), false) => "window_mask",
                (None, _) => "mask",
            };
            self.line_if(causal, &format!("        scores = scores.masked_fill({mask}, float(\"-inf\"))"));
            self.line("        scores = F.softmax(scores, -1)");
            self.line_if(
                dropout > 0.0,
                &format!("        scores = F.dropout(scores, {dropout:?}, self.training)"),
            );
            self.line("        y = scores @ v");
        } else {
            let mut options = match (causal, self.windows()) {
                _ if coverage::packs_documents(self.config) => ", mask",
                (_, (Some(_), true)) => {
                    ", window_mask if self.is_windowed else None, is_causal=not self.is_windowed"
                }
                (_, (Some(_), false)) => ", window_mask",
                (true, (None, _)) => ", is_causal=True",
                (false, (None, _)) => "",
            }
            .to_owned();
            if dropout > 0.0 {
                let _ = write!(options, ", dropout_p={dropout:?} if self.training else 0.0");
            }
            if let Some(scale) = scale {
                let _ = write!(options, ", scale={scale}");
            }
            if self.model.heads != self.model.kv_heads {
                options += ", enable_gqa=True";
            }
            self.line(&format!("        y = F.scaled_dot_product_attention(q, k, v{options})"));
        }
        self.line("        return y.transpose(1, 2).flatten(-2)");
    }

    fn mlp(&mut self) {
        let bias = python_bool(self.model.bias);
        self.lines(&[
            "",
            "",
            "class MLP(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
        ]);
        self.norms();
        let (names, activation): (&[&str], Activation) = match self.model.activation {
            MlpActivation::Plain(activation) => (&["up"], activation),
            MlpActivation::Gate(activation) => (&["gate", "up"], activation),
        };
        for name in names {
            self.line(&format!("        self.{name} = nn.Linear(CHANNELS, WIDTH, bias={bias})"));
        }
        self.line(&format!("        self.out = nn.Linear(WIDTH, CHANNELS, bias={bias})"));
        self.norms_after();
        self.lines(&["", "    def forward(self, x):"]);
        let normed = self.normed();
        match names {
            ["up"] => {
                let y = python_activation(activation, &format!("self.up({normed})"));
                self.line(&format!("        y = {y}"));
            }
            _ => {
                self.line(&format!("        y = self.gated({normed})"));
            }
        }
        self.residual();
        if names.len() > 1 {
            let gate = python_activation(activation, "self.gate(x)");
            self.lines(&["", "    def gated(self, x):", &format!("        return {gate} * self.up(x)")]);
        }
    }

    /// The window of blocks that do not attend to the full context, and whether other blocks do.
    fn windows(&self) -> (Option<usize>, bool) {
        let windows = || (0..self.model.layers).map(|block| self.model.window_of(block));
        let is_window = |window: &usize| *window < self.model.context;
        (windows().flatten().find(is_window), windows().any(|window| !window.as_ref().is_some_and(is_window)))
    }

    /// Whether blocks with and without a window alternate.
    pub(super) fn mixes_windows(&self) -> bool {
        let (window, has_full) = self.windows();
        window.is_some() && has_full
    }

    /// The factor of scores, if one is not one over the square root of a head's channels.
    fn attention_scale(&self) -> Option<String> {
        let of = |block| self.model.attention_scale_of(block);
        let word = |scale: Option<f64>| scale.map_or("None".to_owned(), |scale| format!("{scale:?}"));
        let first = of(0);
        match (0..self.model.layers).find(|&block| of(block) != first) {
            None => first.map(|scale| format!("{scale:?}")),
            Some(other) => {
                let is_windowed = |block: usize| self.model.window_of(block).is_some();
                let [windowed, full] = if is_windowed(0) { [first, of(other)] } else { [of(other), first] };
                Some(format!("({} if self.is_windowed else {})", word(windowed), word(full)))
            }
        }
    }

    /// The rotations of the blocks, in order, with the names of their cosines and sines.
    pub(super) fn rotations(&self) -> impl Iterator<Item = (&'static str, &'static str, Frequencies)> {
        let mut kinds: Vec<Frequencies> = Vec::new();
        for frequencies in (0..self.model.layers).filter_map(|block| self.model.rotation_of(block)) {
            if !kinds.contains(&frequencies) {
                kinds.push(frequencies);
            }
        }
        [("cos", "sin"), ("other_cos", "other_sin")]
            .into_iter()
            .zip(kinds)
            .map(|((cos, sin), kind)| (cos, sin, kind))
    }

    /// Whether blocks rotate differently.
    pub(super) fn mixes_rotations(&self) -> bool {
        let mut blocks = (0..self.model.layers).map(|block| self.model.rotation_of(block));
        let first = blocks.next();
        blocks.any(|other| Some(other) != first)
    }

    /// The arguments of blocks that differ.
    fn differences(&self) -> String {
        let [windows, rotations] = [self.mixes_windows(), self.mixes_rotations()];
        let names = [(windows, ", is_windowed"), (rotations, ", rotation")];
        names.into_iter().filter(|(differs, _)| *differs).map(|(_, name)| name).collect()
    }

    /// The masks that attention needs: names and definitions. Attention written out fills where they are true; the fused
    /// function attends there.
    pub(super) fn masks(&self) -> Vec<(&'static str, String)> {
        let (window, has_full) = self.windows();
        let is_written_out = self.config.strategy.attention == Attention::Materialized;
        let ones = "torch.ones(CONTEXT, CONTEXT, dtype=torch.bool)";
        let full = match (is_written_out, coverage::packs_documents(self.config)) {
            (true, _) => (self.model.causal && has_full).then(|| ("mask", format!("{ones}.triu(1)"))),
            (false, true) => Some(("mask", format!("{ones}.tril()"))),
            (false, false) => None,
        };
        let windowed = window.map(|window| {
            let attended = format!("{ones}.tril().triu({})", 1 - window as i64);
            ("window_mask", if is_written_out { format!("~{attended}") } else { attended })
        });
        full.into_iter().chain(windowed).collect()
    }

    /// Arguments of a block beside the residual stream.
    pub(super) fn block_arguments(&self) -> String {
        let masks = self.masks();
        let rotary = self.rotations().flat_map(|(cos, sin, _)| [cos, sin]);
        let names = rotary.chain(masks.iter().map(|(name, _)| *name));
        names.map(|name| format!(", {name}")).collect()
    }

    fn block(&mut self) {
        let (arguments, differences) = (self.block_arguments(), self.differences());
        self.lines(&[
            "",
            "",
            "class Block(nn.Module):",
            &format!("    def __init__(self{differences}):"),
            "        super().__init__()",
            &format!("        self.attention = Attention({})", differences.trim_start_matches(", ")),
            "        self.mlp = MLP()",
            "",
            &format!("    def forward(self, x{arguments}):"),
        ]);
        let call = |part, name: &str, arguments: &str| match self.config.strategy.recompute {
            Recompute::Parts(parts) if parts.contains(part) => {
                format!("checkpoint_in_training(self, self.{name}, x{arguments})")
            }
            _ => format!("self.{name}(x{arguments})"),
        };
        let attention = call(BlockPart::Attention, "attention", &arguments);
        let mlp = call(BlockPart::Mlp, "mlp", "");
        self.lines(&[&format!("        x = {attention}"), &format!("        return {mlp}")]);
        self.checkpoint_functions();
    }

    /// The functions that call checkpointed modules.
    pub(super) fn checkpoint_functions(&mut self) {
        let [parameters, function, arguments] = self.checkpointed();
        self.lines(&[
            "",
            "",
            &format!("def checkpoint_in_training(module, function, {parameters}):"),
            "    if module.training:",
            &format!(
                "        return checkpoint({function}, {arguments}, use_reentrant={})",
                self.reentrant()
            ),
            &format!("    return function({parameters})"),
        ]);
        if let Recompute::Save(kinds) = self.config.strategy.recompute {
            self.selective_checkpoint(kinds);
        }
    }

    /// Of functions that call a checkpointed function: the parameters to pass on, the checkpointed function, its arguments.
    fn checkpointed(&self) -> [&'static str; 3] {
        match coverage::saves_forward_on_cpu(self.config) {
            // `save_on_cpu` would offload all arguments.
            true => ["x, *arguments", "lambda x: function(x, *arguments)", "x"],
            false => ["*arguments", "function", "*arguments"],
        }
    }

    /// Checkpoints that keep the results of some operations.
    fn selective_checkpoint(&mut self, kinds: KeywordSet<OpKind>) {
        let operations = |kind| match kind {
            OpKind::Linear if self.has_images() => &["mm", "addmm", "convolution"][..],
            OpKind::Linear => &["mm", "addmm"],
            OpKind::Attention => {
                &["_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"]
            }
            OpKind::Norm => unreachable!("not covered"),
        };
        let operations = kinds.iter().flat_map(operations);
        let operations: Vec<String> =
            operations.map(|name| format!("torch.ops.aten.{name}.default")).collect();
        let [parameters, function, arguments] = self.checkpointed();
        self.lines(&[
            "",
            "",
            &format!("KEPT = [{}]", operations.join(", ")),
            "",
            "",
            &format!("def checkpoint_selectively(module, function, {parameters}):"),
            "    if module.training:",
            "        contexts = lambda: torch.utils.checkpoint.create_selective_checkpoint_contexts(KEPT)",
            &format!(
                "        return checkpoint({function}, {arguments}, use_reentrant=False, context_fn=contexts)"
            ),
            &format!("    return function({parameters})"),
        ]);
    }
}

fn python_activation(activation: Activation, x: &str) -> String {
    match activation {
        Activation::Gelu => format!("F.gelu({x})"),
        Activation::GeluTanh => format!("F.gelu({x}, approximate=\"tanh\")"),
        Activation::Relu => format!("F.relu({x})"),
        Activation::ReluSquared => format!("F.relu({x}).square()"),
        Activation::Silu => format!("F.silu({x})"),
        Activation::Tanh => format!("torch.tanh({x})"),
        Activation::Sigmoid => format!("torch.sigmoid({x})"),
        Activation::LeakyRelu => format!("F.leaky_relu({x})"),
    }
}
