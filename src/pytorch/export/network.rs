//! The network of the script: embeddings, blocks, head and loss.

use super::{Script, python_bool};
use crate::coverage;
use spec::{ActivationOffload, Attention, NormPlacement, Positions, Recompute, TorchCheckpoint};

impl Script<'_> {
    pub(super) fn network(&mut self) {
        let learned = self.model.positions == Positions::Learned;
        let ends_with_norm = self.model.norm_placement != NormPlacement::Post;
        let norm = self.norm_module();
        self.on_device();
        self.lines(&[
            "",
            "",
            "class Network(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            "        self.embedding = nn.Embedding(VOCABULARY, CHANNELS)",
        ]);
        self.line_if(learned, "        self.positions = nn.Embedding(CONTEXT, CHANNELS)");
        let mut differences = Vec::new();
        if let Some(every) = self.model.global_every.filter(|_| self.mixes_windows()) {
            let first = self.model.global_first.unwrap_or(every);
            differences.push(format!("(index + 1) % {every} != {}", first % every));
        }
        if self.mixes_rotations() {
            differences.push(format!("{}[index]", self.rotations_by_block()));
        }
        let index = if differences.is_empty() { "_" } else { "index" };
        let blocks = format!("Block({}) for {index} in range(LAYERS)", differences.join(", "));
        self.line(&format!("        self.blocks = nn.ModuleList({blocks})"));
        self.line_if(ends_with_norm, &format!("        self.norm = {norm}"));
        self.line("        self.head = nn.Linear(CHANNELS, VOCABULARY, bias=False)");
        self.line_if(self.model.tied, "        self.head.weight = self.embedding.weight");
        let rotations: Vec<_> = self.rotations().collect();
        for (cos, sin, _) in rotations {
            self.lines(&[
                &format!("        {cos}, {sin} = {cos}_sin()"),
                &format!("        self.register_buffer(\"{cos}\", {cos}, persistent=False)"),
                &format!("        self.register_buffer(\"{sin}\", {sin}, persistent=False)"),
            ]);
        }
        for (name, mask) in self.masks() {
            self.lines(&[
                &format!("        {name} = {mask}"),
                &format!("        self.register_buffer(\"{name}\", {name}, persistent=False)"),
            ]);
        }
        let (count, ignored) = match coverage::counts_targets(self.config, self.options) {
            true => (", count", ", ignore_index=-1"),
            false => ("", ""),
        };
        let packs = coverage::packs_documents(self.config);
        let starts = if packs { ", starts" } else { "" };
        self.lines(&["", &format!("    def forward(self, tokens, targets{starts}{count}):")]);
        if packs {
            // Attention written out fills where the mask is true.
            let (other, and) = match self.config.strategy.attention {
                Attention::Materialized => ("!=", "|"),
                Attention::Fused => ("==", "&"),
            };
            self.line(&format!(
                "        mask = (starts[:, None, :, None] {other} starts[:, None, None, :]) {and} self.mask"
            ));
        }
        let scale = match self.model.embedding_scale {
            Some(scale) if scale != 1.0 => format!(" * {scale:?}"),
            _ => String::new(),
        };
        let positions = match learned {
            true if self.config.lengths.is_some() => "torch.arange(tokens.shape[1], device=tokens.device)",
            true if packs => "torch.arange(CONTEXT, device=tokens.device) - starts",
            true => "torch.arange(CONTEXT, device=tokens.device)",
            false => "",
        };
        let positions = match learned {
            true => format!(" + {}", self.applied("self.positions", positions)),
            false => String::new(),
        };
        self.line(&format!("        x = {}{scale}{positions}", self.applied("self.embedding", "tokens")));
        let dropout = self.model.dropout.embedding;
        self.line_if(dropout > 0.0, &format!("        x = F.dropout(x, {dropout:?}, self.training)"));
        let part = if self.config.lengths.is_some() { "[: tokens.shape[1]]" } else { "" };
        let argument = |name: &str| match name {
            "mask" if packs => ", mask".to_owned(),
            name => format!(", self.{name}{part}"),
        };
        let buffers: String = self.block_arguments().split(", ").skip(1).map(argument).collect();
        self.blocks(&buffers);
        let x = if ends_with_norm { self.applied("self.norm", "x") } else { "x".to_owned() };
        let x = self.model.logit_scale.map_or(x.clone(), |scale| format!("{x} * {scale:?}"));
        let cap = self.model.logit_softcap;
        let capped = cap.map(|cap| format!("        logits = torch.tanh(logits / {cap:?}) * {cap:?}"));
        let chunks = self.config.strategy.loss_chunks;
        if chunks == 1 {
            self.line(&format!("        logits = {}", self.applied("self.head", &x)));
            capped.iter().for_each(|line| self.line(line));
            let ignored = if coverage::masks_targets(self.config) { ", ignore_index=-1" } else { "" };
            let loss = format!("F.cross_entropy(logits.flatten(0, 1), targets.flatten(){ignored})");
            if coverage::returns_logits(self.config) {
                self.lines(&[&format!("        loss = {loss}"), "        return loss, logits"]);
            } else {
                self.line(&format!("        return {loss}"));
            }
            return;
        }
        self.lines(&[
            &format!("        hidden = {x}"),
            "        loss = 0.0",
            &format!(
                "        chunks = hidden.flatten(0, 1).chunk({chunks}), targets.flatten().chunk({chunks})"
            ),
            "        for chunk, chunk_targets in zip(*chunks):",
            "            loss = loss + checkpoint_in_training(self, self.chunk_loss, chunk, chunk_targets)",
            &format!("        return loss / {}", if count.is_empty() { "targets.numel()" } else { "count" }),
            "",
            "    def chunk_loss(self, x, targets):",
            &format!("        logits = {}", self.applied("self.head", "x")),
        ]);
        capped.iter().for_each(|line| self.line(line));
        self.line(&format!("        return F.cross_entropy(logits, targets, reduction=\"sum\"{ignored})"));
    }

    /// The function that calls a module whose parameters are in host memory.
    pub(super) fn on_device(&mut self) {
        if self.config.strategy.offload.parameters {
            self.lines(&[
                "",
                "",
                "def on_device(module, x, *arguments):",
                "    \"\"\"Calls a module whose parameters are in host memory otherwise.\"\"\"",
                "    module.to(x.device)",
                "    y = module(x, *arguments)",
                "    module.to(\"cpu\")",
                "    return y",
            ]);
        }
    }

    /// The call of a module that is no part of another one.
    fn applied(&self, module: &str, arguments: &str) -> String {
        match self.config.strategy.offload.parameters {
            true => format!("on_device({module}, {arguments})"),
            false => format!("{module}({arguments})"),
        }
    }

    /// The index of each block's rotation, or None.
    fn rotations_by_block(&self) -> String {
        let kinds: Vec<_> = self.rotations().map(|(_, _, kind)| kind).collect();
        let index = |block| match self.model.rotation_of(block) {
            Some(own) => kinds.iter().position(|kind| *kind == own).unwrap_or(0).to_string(),
            None => "None".to_owned(),
        };
        format!("[{}]", (0..self.model.layers).map(index).collect::<Vec<_>>().join(", "))
    }

    pub(super) fn reentrant(&self) -> &'static str {
        python_bool(self.options.checkpoint == TorchCheckpoint::Reentrant)
    }

    pub(super) fn save_on_cpu(&self) -> String {
        let pinned = python_bool(self.config.strategy.offload.pinned);
        format!("torch.autograd.graph.save_on_cpu(pin_memory={pinned})")
    }

    fn blocks(&mut self, buffers: &str) {
        let strategy = &self.config.strategy;
        if strategy.offload.parameters {
            return self.lines(&[
                "        for block in self.blocks:",
                &format!("            x = {}", self.applied("block", &format!("x{buffers}"))),
            ]);
        }
        match strategy.recompute {
            // Arguments would be offloaded, too.
            Recompute::Block if strategy.offload.activations != ActivationOffload::Nothing => {
                self.lines(&[
                    &format!("        with {}:", self.save_on_cpu()),
                    "            for block in self.blocks:",
                    &format!(
                        "                x = checkpoint_in_training(self, lambda x, block=block: block(x{buffers}), x)"
                    ),
                ]);
            }
            Recompute::Block => self.lines(&[
                "        for block in self.blocks:",
                &format!("            x = checkpoint_in_training(self, block, x{buffers})"),
            ]),
            Recompute::Save(_) => self.lines(&[
                "        for block in self.blocks:",
                &format!("            x = checkpoint_selectively(self, block, x{buffers})"),
            ]),
            Recompute::Every(every) => self.lines(&[
                "        for index, block in enumerate(self.blocks):",
                &format!("            if index % {every} == 0:"),
                &format!("                x = checkpoint_in_training(self, block, x{buffers})"),
                "            else:",
                &format!("                x = block(x{buffers})"),
            ]),
            Recompute::Segments(segments) => self.lines(&[
                "        if self.training:",
                &format!(
                    "            run = [lambda x, block=block: block(x{buffers}) for block in self.blocks]"
                ),
                &format!(
                    "            x = checkpoint_sequential(run, {segments}, x, use_reentrant={})",
                    self.reentrant()
                ),
                "        else:",
                "            for block in self.blocks:",
                &format!("                x = block(x{buffers})"),
            ]),
            _ => self
                .lines(&["        for block in self.blocks:", &format!("            x = block(x{buffers})")]),
        }
    }
}
