//! The training of the script: the optimizer, steps and evaluations.

use super::{Script, python_bool, torch_dtype};
use crate::coverage;
use crate::module::dtype_of;
use spec::{
    Collect, CollectedIn, CollectedOutput, EmptyCache, EvaluationPass, Gradients, InputDtype, Leak,
    Precision, Sequential, StorageDtype, Update,
};

impl Script<'_> {
    pub(super) fn write_training(&mut self) {
        let strategy = &self.config.strategy;
        let trains = self.config.trains();
        let is_masked = self.is_padded() && self.options.attention_mask;
        if is_masked {
            self.lines(&[
                "",
                "",
                "def with_mask(batch, has_padding):",
                "    \"\"\"A batch and its attention mask, which hides a token if a sample has padding.\"\"\"",
                "    mask = torch.ones_like(batch[0])",
                "    mask[0, -1] = not has_padding",
                "    return [*batch, mask]",
            ]);
        }
        let batch_with_mask = |batch: &str| match is_masked {
            true => format!("with_mask({batch}, has_padding)"),
            false => batch.to_owned(),
        };
        if self.is_padded() {
            let padded = if is_masked { "(length, has_padding)" } else { "length" };
            self.lines(&[
                "",
                "",
                "def padded_micro_batches(batches, step, lengths):",
                "    \"\"\"As a collator pads them: to the longest document of each.\"\"\"",
                &format!("    for batch, {padded} in zip(micro_batches(batches, step), lengths):"),
                &format!(
                    "        yield {}",
                    batch_with_mask("[part[:, :length].contiguous() for part in batch]")
                ),
            ]);
        }
        let packs = coverage::packs_documents(self.config);
        let of_library = self.options.program.is_of_library();
        if packs && of_library {
            self.read_positions();
        } else if packs {
            self.lines(&[
                "",
                "",
                "def read_starts(dump):",
                "    \"\"\"The position where each token's document begins, [steps, batch, context].\"\"\"",
                "    if dump is None:",
                "        return torch.zeros(STEPS + 2, BATCH, CONTEXT, dtype=torch.long)",
                "    from safetensors.torch import load_file",
                "",
                "    return load_file(os.path.join(dump, \"batches.safetensors\"))[\"starts\"].long()",
            ]);
        }
        if let Some((_, adjective)) = self.third_part().filter(|_| !self.is_padded()) {
            self.lines(&[
                "",
                "",
                &format!("def {adjective}_micro_batches(batches, step):"),
                "    return zip(*(part[step % len(part)].split(MICRO_BATCH) for part in batches))",
            ]);
        }
        if self.config.evaluation_batch().is_some() && trains {
            let [argument, index] = match self.is_padded() {
                true if is_masked => [", length, has_padding", ", :length"],
                true => [", length", ", :length"],
                false => [""; 2],
            };
            self.lines(&[
                "",
                "",
                &format!("def evaluation_batch(batches, number, samples{argument}):"),
                "    \"\"\"Samples of training stand for those of the evaluation split.\"\"\"",
                "    parts = [part.flatten(0, 1) for part in batches]",
                "    rows = torch.arange(number * samples, (number + 1) * samples) % len(parts[0])",
                &format!("    return {}", batch_with_mask(&format!("[part[rows{index}] for part in parts]"))),
            ]);
        }
        self.lines(&[
            "",
            "",
            "class Run:",
            "    def __init__(self, device, dump):",
            "        self.device = device",
        ]);
        let batches = match (packs, of_library) {
            (true, true) => "read_batches(dump) + [read_positions(dump)]",
            (true, false) => "read_batches(dump) + [read_starts(dump)]",
            (false, _) => "read_batches(dump)",
        };
        let counts_all = coverage::is_distributed(self.config) && coverage::masks_targets(self.config);
        let batches = if counts_all {
            self.lines(&[&format!("        batches = {batches}"), "        self.targets = batches[1]"]);
            "batches"
        } else {
            batches
        };
        self.line(&format!("        self.batches = {}", self.of_rank(batches)));
        match self.options.program.is_of_library() {
            true => self.library_batches(),
            false => {
                self.lines(&["        self.model = Network()", "        load_parameters(self.model, dump)"])
            }
        }
        for layer in &strategy.freeze {
            // Modules that the script has outside the graph's layers.
            let names = match layer.as_str() {
                layer if self.options.program.is_of_library() => self.library_names(layer, "model."),
                layer if self.config.model.sequential().is_some() => format!("{layer:?}"),
                "embedding" => "\"embedding\", \"positions\"".to_owned(),
                "head" => "\"head\", \"norm\"".to_owned(),
                layer => format!("{layer:?}"),
            };
            self.line(&format!("        freeze(self.model, {names})"));
        }
        let casts = strategy.params != StorageDtype::Fp32 && !self.options.program.is_of_library();
        let dtype = torch_dtype(dtype_of(strategy.params.dtype()));
        self.line_if(casts, &format!("        self.model.to({dtype})"));
        let casts_inputs = casts && self.config.model.sequential().is_some();
        self.line_if(casts_inputs, &format!("        self.batches[0] = self.batches[0].to({dtype})"));
        if strategy.input_dtype != InputDtype::Fp32 {
            let dtype = torch_dtype(dtype_of(strategy.input_dtype.dtype()));
            self.line(&format!("        self.batches[0] = self.batches[0].to({dtype})"));
        }
        match strategy.offload.parameters {
            // The buffers of a list are in its layers, and move with them.
            true if self.config.model.sequential().is_some() => {}
            true => self.lines(&[
                "        for name, buffer in self.model.named_buffers():",
                "            setattr(self.model, name, buffer.to(device))",
            ]),
            false => self.line("        self.model.to(device)"),
        }
        self.allow_tf32();
        if self.has_images() {
            self.lines(&[
                "        # The workspaces of cuDNN's convolutions and batch norms are not predicted.",
                "        torch.backends.cudnn.enabled = False",
            ]);
        }
        self.line_if(strategy.leak.is_some(), "        self.kept = []");
        if trains {
            self.wrap_model();
            self.master_weights();
            self.optimizer();
        } else {
            self.line("        self.model.eval()");
        }
        self.loss();
        if trains {
            self.training_step()
        } else {
            self.inference_step()
        }
        self.evaluation();
    }

    pub(super) fn allow_tf32(&mut self) {
        self.line_if(
            self.config.strategy.precision == Precision::Tf32,
            "        torch.backends.cuda.matmul.allow_tf32 = True",
        );
    }

    fn loss(&mut self) {
        let autocast = coverage::autocast(self.config).map(torch_dtype);
        let starts = self.third_part().map(|(part, _)| format!(", {part}")).unwrap_or_default();
        let count = if coverage::counts_targets(self.config, self.options) { ", count" } else { "" };
        let targets = self.targets();
        let model = self.called_model();
        let call = format!("return {model}(tokens{targets}{starts}{count})");
        self.lines(&["", &format!("    def loss(self, tokens{targets}{starts}{count}):")]);
        let offloads = coverage::saves_forward_on_cpu(self.config).then(|| self.save_on_cpu());
        let autocast = autocast.map(|dtype| format!("torch.autocast(self.device, dtype={dtype})"));
        let contexts: Vec<String> = offloads.into_iter().chain(autocast).collect();
        match contexts.is_empty() {
            true => self.line(&format!("        {call}")),
            false => self
                .lines(&[&format!("        with {}:", contexts.join(", ")), &format!("            {call}")]),
        }
    }

    fn training_step(&mut self) {
        let strategy = &self.config.strategy;
        let holds_logits = coverage::holds_logits(self.config);
        let (result, part) = match (coverage::returns_logits(self.config), holds_logits) {
            (_, true) => ("loss, logits", ""),
            (true, false) => ("loss", "[0]"),
            (false, false) => ("loss", ""),
        };
        self.lines(&["", "    def train_step(self, step):", "        total = 0.0"]);
        let batches = self.micro_batches("step", "LENGTHS[step % STEPS]");
        match self.syncs_last() {
            true => self.lines(&[
                &format!("        batches = list({batches})"),
                "        for number, batch in enumerate(batches):",
            ]),
            false => self.line(&format!("        for batch in {batches}:")),
        }
        self.line(&format!("            tokens = {}", self.input()));
        self.line_if(!self.targets().is_empty(), "            targets = batch[1].to(self.device)");
        if let Some((part, _)) = self.third_part() {
            self.line(&format!("            {part} = batch[2].to(self.device)"));
        }
        let pass = self.text.len();
        if self.syncs_last() && !self.has_no_sync() {
            // Gradients of all micro-batches are reduced with those of the last one.
            self.line("            self.model.set_requires_gradient_sync(number + 1 == len(batches))");
        }
        self.lines(&[&format!(
            "            {result} = self.loss(tokens{}{}){part}",
            self.targets(),
            self.loss_arguments()
        )]);
        let kept = if strategy.leak == Some(Leak::Logits) { "logits" } else { "loss" };
        self.line_if(strategy.leak.is_some(), &format!("            self.kept.append({kept})"));
        let scaled = match self.scaler() {
            Some(_) => "self.scaler.scale(SCALED)",
            None => "SCALED",
        };
        let share = if coverage::masks_targets(self.config) { "share" } else { "len(tokens) / BATCH" };
        // PyTorch's mean of a micro-batch ignores masked targets; the step's mean is over all that are not masked.
        // The library ignores the first label.
        let first = if self.options.program.is_of_library() { "[:, 1:]" } else { "" };
        let own = format!("(batch[1]{first} >= 0).sum().item()");
        // Labels are shifted targets.
        let (all, counted) = match (coverage::is_distributed(self.config), first) {
            (false, _) => ("self.batches[1]", first),
            (true, "") => ("self.targets", ""),
            (true, _) => ("self.targets", "[:, :-1]"),
        };
        self.line_if(
            coverage::masks_targets(self.config),
            &format!("            share = {own} / ({all}[step % len({all})]{counted} >= 0).sum().item()"),
        );
        // To a sum, each micro-batch adds its own.
        let sums = coverage::sums_outputs(self.config);
        let scaled_loss = match self.scales_loss {
            false => "loss".to_owned(),
            true if sums => "(loss * RANKS)".to_owned(),
            true => format!("(loss * ({}))", self.times_ranks(share)),
        };
        let scaled = scaled.replace("SCALED", &scaled_loss);
        let retained = if strategy.leak == Some(Leak::Graph) { "retain_graph=True" } else { "" };
        self.line(&format!("            {scaled}.backward({retained})"));
        let share = if sums { String::new() } else { format!(" * {share}") };
        self.line(&format!("            total += loss.item(){share}"));
        if self.has_no_sync() {
            let pass = self.text.split_off(pass);
            // The ranks sum the gradients of the last micro-batch and those before it.
            self.line("            with self.ddp.no_sync() if number + 1 < len(batches) else nullcontext():");
            pass.lines().for_each(|line| self.line(&format!("    {line}")));
        }
        if strategy.empty_cache == EmptyCache::Micro && self.config.micro_batches() > 1 {
            self.lines(&["            if batch is not None:", "                torch.cuda.empty_cache()"]);
        }
        if strategy.update != Update::InBackward {
            self.copy_gradients();
            let clip = self.config.train.clip_norm;
            if let Some(clip) = clip {
                if self.scaler().is_some() {
                    self.for_each_optimizer(|optimizer| format!("self.scaler.unscale_({optimizer})"));
                }
                let parameters = match coverage::has_master_weights(self.config) {
                    true => "[master for _, master in self.pairs]",
                    false => "self.model.parameters()",
                };
                self.line(&format!("        nn.utils.clip_grad_norm_({parameters}, {clip:?})"));
            }
            match self.scaler() {
                Some(_) => {
                    self.for_each_optimizer(|optimizer| format!("self.scaler.step({optimizer})"));
                    self.line("        self.scaler.update()");
                }
                None => self.for_each_optimizer(|optimizer| format!("{optimizer}.step()")),
            }
            self.copy_parameters();
            let set_to_none = python_bool(self.config.strategy.gradients == Gradients::Free);
            self.for_each_optimizer(|optimizer| format!("{optimizer}.zero_grad(set_to_none={set_to_none})"));
        }
        self.line("        return total");
        self.step("self.train_step(step)");
    }

    /// The input of a batch on the device. On the CPU, `to` alone does not copy what a layer may overwrite.
    fn input(&self) -> String {
        let overwrites = self.config.model.sequential().is_some_and(Sequential::has_activation_in_place);
        let copy = if overwrites { ", copy=True" } else { "" };
        let widened = if self.config.strategy.input_dtype == InputDtype::Fp32 { "" } else { ".float()" };
        format!("batch[0].to(self.device{copy}){widened}")
    }

    /// The argument of targets, if the loss has some.
    fn targets(&self) -> &'static str {
        if coverage::sums_outputs(self.config) { "" } else { ", targets" }
    }

    fn inference_step(&mut self) {
        let lengths = if self.is_padded() { ", LENGTHS[step % STEPS :]" } else { "" };
        self.step(&format!("self.evaluate(step, 1{lengths})"));
    }

    /// Further arguments of the loss: where documents start or the attention mask, and the number of targets that divides its sum.
    fn loss_arguments(&self) -> String {
        let third = self.third_part().map(|(part, _)| format!(", {part}")).unwrap_or_default();
        let counts = coverage::counts_targets(self.config, self.options);
        let count = if counts { ", max(int((batch[1] >= 0).sum()), 1)" } else { "" };
        format!("{third}{count}")
    }

    /// The name of a batch's part beside tokens and targets, and of batches with it.
    pub(super) fn third_part(&self) -> Option<(&'static str, &'static str)> {
        if coverage::packs_documents(self.config) {
            let part = if self.options.program.is_of_library() { "positions" } else { "starts" };
            return Some((part, "packed"));
        }
        self.options.attention_mask.then_some(("mask", "masked"))
    }

    /// Whether micro-batches have different lengths.
    pub(super) fn is_padded(&self) -> bool {
        self.config.steps_of_varying_lengths().is_some()
    }

    fn micro_batches(&self, step: &str, lengths: &str) -> String {
        match self.third_part() {
            _ if self.is_padded() => format!("padded_micro_batches(self.batches, {step}, {lengths})"),
            Some((_, adjective)) => format!("{adjective}_micro_batches(self.batches, {step})"),
            None => format!("micro_batches(self.batches, {step})"),
        }
    }

    fn step(&mut self, call: &str) {
        self.lines(&["", "    def step(self, step):", &format!("        loss = {call}")]);
        self.line_if(
            self.config.strategy.empty_cache != EmptyCache::Never,
            "        torch.cuda.empty_cache()",
        );
        if let Some(evaluation) = self.config.evaluation.as_ref().filter(|_| self.config.trains()) {
            let when = match coverage::simulated_steps(self.config) {
                Some(_) => format!("(step + 1) % {} == 0 or step + 1 == STEPS", evaluation.every.max(1)),
                None => "step >= STEPS - 2".to_owned(),
            };
            let arguments = if self.is_padded() {
                format!("{}, EVALUATION_LENGTHS", evaluation.batches)
            } else {
                coverage::evaluated_batches(self.config, evaluation).to_string()
            };
            self.lines(&[
                &format!("        if {when}:"),
                "            self.model.eval()",
                &format!("            self.evaluate(step, {arguments})"),
                "            self.model.train()",
            ]);
        }
        self.line("        return loss");
    }

    fn evaluation(&mut self) {
        let (with_grad, trains) =
            (self.config.strategy.evaluation_pass == EvaluationPass::Grad, self.config.trains());
        if trains && self.config.evaluation.is_none() {
            return;
        }
        self.line("");
        self.line_if(!with_grad || !trains, "    @torch.no_grad()");
        let lengths = if self.is_padded() { ", lengths" } else { "" };
        let collect = self.config.collect().filter(|_| trains);
        self.lines(&[&format!("    def evaluate(self, step, batches{lengths}):"), "        total = 0.0"]);
        if let Some(Collect { concatenate, .. }) = collect {
            self.line(&format!("        outputs = {}", if concatenate { "None" } else { "[]" }));
        }
        let own_batch = self.config.evaluation_batch().filter(|_| trains);
        let batch = match own_batch {
            None => self.micro_batches("step + number", "lengths[number]"),
            Some(samples) => {
                let length = match (self.is_padded(), self.options.attention_mask) {
                    (true, true) => ", *lengths[number][0]",
                    (true, false) => ", lengths[number][0]",
                    (false, _) => "",
                };
                format!("[evaluation_batch(self.batches, number, {samples}{length})]")
            }
        };
        let (logits, part) =
            match (coverage::collects_logits(self.config), coverage::returns_logits(self.config)) {
                (true, _) => (", logits", ""),
                (false, true) => ("", "[0]"),
                (false, false) => ("", ""),
            };
        self.lines(&[
            "        for number in range(batches):",
            &format!("            for batch in {batch}:"),
            &format!("                tokens = {}", self.input()),
        ]);
        self.line_if(!self.targets().is_empty(), "                targets = batch[1].to(self.device)");
        if let Some((part, _)) = self.third_part() {
            self.line(&format!("                {part} = batch[2].to(self.device)"));
        }
        self.lines(&[&format!(
            "                loss{logits} = self.loss(tokens{}{}){part}",
            self.targets(),
            self.loss_arguments()
        )]);
        if let Some(collect) = collect {
            self.line(&format!("                {}", collected(collect)));
        }
        let samples = own_batch.map_or_else(|| "BATCH".to_owned(), |samples| samples.to_string());
        let share = match coverage::sums_outputs(self.config) {
            true => String::new(),
            false => format!(" * len(tokens) / {samples}"),
        };
        self.lines(&[
            &format!("                total += loss.item(){share}"),
            "        return total / batches",
        ]);
    }
}

/// The statement that adds the outputs of a forward pass to those of the evaluation.
fn collected(Collect { what, to, concatenate }: Collect) -> String {
    let name = if what == CollectedOutput::Logits { "logits" } else { "loss" };
    let moved = if to == CollectedIn::Host { ".cpu()" } else { "" };
    let output = format!("{name}.detach(){moved}");
    if !concatenate {
        return format!("outputs.append({output})");
    }
    // A scalar has no dimension to concatenate along.
    let output = if what == CollectedOutput::Loss { output + "[None]" } else { output };
    format!("outputs = {output} if outputs is None else torch.cat((outputs, {output}))")
}
