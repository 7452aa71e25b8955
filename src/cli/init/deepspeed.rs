//! A DeepSpeed configuration as keys of an experiment: what has a key is translated, the rest is listed with the reason.

mod keys;

use std::path::Path;

use serde_json::{Map, Value};

use self::keys::{KNOWN, NO_KEY, REASONS, REPORTS, SEVERAL_DEVICES};
use super::document::{Line, Table};
use crate::failure::Failure;
use base::regular;
use base::units::Bytes;

/// The keys of an experiment that a configuration corresponds to.
#[derive(Debug, Default)]
pub(super) struct Translation {
    /// Samples of an optimizer step on one device.
    pub(super) batch: Option<(usize, String)>,
    /// Keys of `[train]`, but `batch_size`.
    pub(super) train: Vec<Line>,
    /// The tables of the optimizer and the schedule.
    pub(super) tables: Vec<Table>,
    /// Keys of a strategy.
    pub(super) strategy: Vec<Line>,
    /// Keys without an equivalent, and values that are decided elsewhere: each with the reason.
    pub(super) notes: Vec<String>,
}

/// The learning rate where the configuration has none.
const LEARNING_RATE: f64 = 1e-4;

/// More than any configuration has.
const LARGEST_FILE: Bytes = Bytes(1 << 20);

/// Reads a configuration.
///
/// # Errors
/// The file cannot be read, is not a JSON object, or a value has a type that DeepSpeed refuses.
pub(super) fn read(path: &Path) -> Result<Translation, Failure> {
    let shown = path.display();
    let text = regular::open_up_to(path, LARGEST_FILE)
        .and_then(std::io::read_to_string)
        .map_err(|error| Failure::input(format!("cannot read {shown}: {}", regular::reason(&error))))?;
    let json: Value = serde_json::from_str(&text).map_err(|error| {
        Failure::input(format!(
            "{shown} is not JSON: {error}\n = help: --deepspeed takes the configuration that `deepspeed.initialize` reads"
        ))
    })?;
    let Value::Object(json) = json else {
        return Err(Failure::input(format!(
            "{shown} is not a DeepSpeed configuration: it must be a JSON object"
        )));
    };
    let mut reader = Reader { file: shown.to_string(), ..Reader::default() };
    reader.read(&json);
    match reader.problems.is_empty() {
        true => Ok(reader.translation),
        false => Err(Failure::input(reader.problems.join("\n\nerror: "))),
    }
}

#[derive(Default)]
struct Reader {
    file: String,
    translation: Translation,
    problems: Vec<String>,
}

impl Reader {
    fn read(&mut self, json: &Map<String, Value>) {
        self.batch(json);
        if let Some(norm) = self.number(json, "", "gradient_clipping").filter(|norm| *norm > 0.0) {
            self.translation.train.push(Line::number("clip_norm", norm).from("gradient_clipping"));
        }
        self.optimizer(json);
        self.precision(json);
        self.zero(json);
        self.checkpointing(json);
        for (key, value) in json {
            if !KNOWN.contains(&key.as_str()) {
                let reason = REASONS.iter().find(|(_, keys)| keys.contains(&key.as_str()));
                self.untranslated(key, value, reason.map_or(NO_KEY, |(reason, _)| reason));
            }
        }
    }

    /// `train_batch_size` = micro-batch x accumulation x devices. The share of one device remains.
    fn batch(&mut self, json: &Map<String, Value>) {
        const KEYS: [&str; 3] =
            ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"];
        let [total, micro, number] = KEYS.map(|key| self.count(json, "", key));
        let (batch, number) = match (total, micro, number) {
            (None, None, number) => (None, number),
            (Some(total), None, number) => (Some(total), number),
            (None, Some(micro), number) => (Some(micro.saturating_mul(number.unwrap_or(1))), number),
            (Some(total), Some(micro), None) => (Some(total), Some(total.div_ceil(micro))),
            (Some(total), Some(micro), Some(number)) => {
                let share = micro.saturating_mul(number);
                if share != total {
                    self.note(format!(
                        "train_batch_size = {total}: {micro} x {number} = {share} samples are the share of one device"
                    ));
                }
                (Some(share), Some(number))
            }
        };
        let used: Vec<&str> =
            KEYS.into_iter().filter(|key| json.get(*key).is_some_and(Value::is_number)).collect();
        self.translation.batch = batch.map(|batch| (batch, used.join(", ")));
        if let Some(number) = number.filter(|number| *number > 1) {
            let line =
                Line::new("accumulate", number.to_string()).from(&used[used.len().min(1)..].join(", "));
            self.translation.strategy.push(line);
        }
    }

    fn optimizer(&mut self, json: &Map<String, Value>) {
        let Some(optimizer) = self.table(json, "", "optimizer") else {
            if let Some(scheduler) = json.get("scheduler") {
                self.untranslated("scheduler", scheduler, "it needs an optimizer in the same file");
            }
            return;
        };
        let (kind, path) =
            (optimizer.get("type").and_then(Value::as_str).unwrap_or_default(), "optimizer.params");
        let empty = Map::new();
        let params = self.table(optimizer, "optimizer", "params").unwrap_or(&empty);
        let is_decoupled = params.get("adam_w_mode").and_then(Value::as_bool).unwrap_or(true);
        let key = match kind.to_lowercase().as_str() {
            "adamw" | "fusedadam" | "deepspeedcpuadam" => "adamw",
            // DeepSpeed's Adam decouples weight decay unless it is told otherwise.
            "adam" if is_decoupled => "adamw",
            "adam" => "adam",
            "lion" => "lion",
            "sgd" => "sgd",
            _ => {
                self.note(format!(
                    "optimizer.type = \"{kind}\": use one of adamw, adam, lion, sgd, adafactor and muon; AdamW is written"
                ));
                return;
            }
        };
        let schedule = self.schedule(json);
        let lr = self.number(params, path, "lr");
        let (lr, origin) = match (lr, schedule.lr) {
            (_, Some(lr)) => (lr, "scheduler.params.warmup_max_lr"),
            (Some(lr), None) => (lr, "optimizer.params.lr"),
            (None, None) => (LEARNING_RATE, ""),
        };
        let mut lines = vec![Line::number("lr", lr).from(origin)];
        if let Some(Value::Array(betas)) = params.get("betas") {
            let betas: Vec<f64> = betas.iter().filter_map(Value::as_f64).collect();
            let keys = ["beta1", "beta2"].into_iter().zip(betas);
            lines.extend(keys.map(|(key, beta)| Line::number(key, beta).from("optimizer.params.betas")));
        }
        let pairs = [("eps", "epsilon"), ("momentum", "momentum")];
        let has = |name: &str| match name {
            "eps" => key.starts_with("adam"),
            _ => key == "sgd",
        };
        for (name, key) in pairs.into_iter().filter(|(name, _)| has(name)) {
            if let Some(number) = self.number(params, path, name) {
                lines.push(Line::number(key, number).from(&format!("{path}.{name}")));
            }
        }
        if key == "sgd" && params.get("nesterov") == Some(&Value::Bool(true)) {
            lines.push(Line::new("nesterov", "true".to_owned()).from("optimizer.params.nesterov"));
        }
        let decay = self.number(params, path, "weight_decay");
        let origin = if decay.is_some() { "optimizer.params.weight_decay" } else { "DeepSpeed's default" };
        // That of torch.optim.AdamW.
        let is_torch = key == "adamw" && params.get("torch_adam") == Some(&Value::Bool(true));
        let default = if is_torch { 0.01 } else { 0.0 };
        lines.push(Line::number("weight_decay", decay.unwrap_or(default)).from(origin));
        // Without parameter groups, every parameter decays.
        lines.push(Line::new("decay", "\"all\"".to_owned()).from("DeepSpeed's default"));
        const TRANSLATED: [&str; 9] = [
            "lr",
            "betas",
            "eps",
            "momentum",
            "nesterov",
            "weight_decay",
            "adam_w_mode",
            "torch_adam",
            "bias_correction",
        ];
        for (name, value) in params.iter().filter(|(name, _)| !TRANSLATED.contains(&name.as_str())) {
            self.untranslated(&format!("{path}.{name}"), value, NO_KEY);
        }
        self.translation.tables.push(Table::new(&format!("train.optimizer.{key}"), lines));
        self.translation.tables.extend(schedule.table);
    }

    fn schedule(&mut self, json: &Map<String, Value>) -> Schedule {
        let Some(scheduler) = self.table(json, "", "scheduler") else { return Schedule::default() };
        let (kind, path) =
            (scheduler.get("type").and_then(Value::as_str).unwrap_or_default(), "scheduler.params");
        let empty = Map::new();
        let params = self.table(scheduler, "scheduler", "params").unwrap_or(&empty);
        let (key, total) = match kind {
            "WarmupLR" => ("constant", None),
            "WarmupDecayLR" => ("linear", self.count(params, path, "total_num_steps")),
            "WarmupCosineLR" => ("cosine", self.count(params, path, "total_num_steps")),
            _ => {
                self.note(format!("scheduler.type = \"{kind}\": use schedule.constant, linear or cosine"));
                return Schedule::default();
            }
        };
        let missing = |name: &str| !params.contains_key(name);
        let lr = match kind {
            "WarmupCosineLR" => None,
            _ if missing("warmup_max_lr") => Some(1e-3),
            _ => self.number(params, path, "warmup_max_lr"),
        };
        let warmup = match missing("warmup_num_steps") {
            true => Some(1000),
            false => self.count(params, path, "warmup_num_steps"),
        };
        let mut lines = Vec::new();
        let steps = [("warmup", warmup, "warmup_num_steps"), ("total", total, "total_num_steps")];
        for (key, steps, name) in steps {
            let line = |steps: usize| Line::new(key, steps.to_string()).from(&format!("{path}.{name}"));
            lines.extend(steps.map(line));
        }
        if key == "cosine" {
            let floor = self.number(params, path, "cos_min_ratio").unwrap_or(1e-4);
            lines.push(Line::number("floor", floor).from(&format!("{path}.cos_min_ratio")));
        }
        if params.get("warmup_type").and_then(Value::as_str) != Some("linear") {
            self.note(
                "scheduler: the warm-up is linear here, where DeepSpeed's default is logarithmic".to_owned(),
            );
        }
        if let Some(least) = self.number(params, path, "warmup_min_lr").filter(|least| *least > 0.0) {
            self.note(format!(
                "scheduler.params.warmup_min_lr = {least:?}: the warm-up begins at a share of lr"
            ));
        }
        Schedule { lr, table: Some(Table::new(&format!("train.schedule.{key}"), lines)) }
    }

    fn precision(&mut self, json: &Map<String, Value>) {
        let [half, brain, older] = ["fp16", "bf16", "bfloat16"].map(|key| {
            let table = self.table(json, "", key)?;
            if let Some(enabled) = table.get("enabled") {
                self.is_auto(key, "enabled", enabled);
            }
            Some(table).filter(|table| is_on(table))
        });
        if brain.or(older).is_some() {
            // DeepSpeed's optimizer keeps fp32 master weights, which is the default here, too.
            self.translation.strategy.push(Line::new("params", "\"bf16\"".to_owned()).from("bf16.enabled"));
        }
        if let Some(half) = half {
            self.translation.strategy.push(Line::new("params", "\"fp16\"".to_owned()).from("fp16.enabled"));
            let scale = self.number(half, "fp16", "loss_scale").filter(|scale| *scale > 0.0);
            let line = match scale {
                Some(scale) => Line::number("loss_scale", scale).from("fp16.loss_scale"),
                None => {
                    let power = self.number(half, "fp16", "initial_scale_power").unwrap_or(16.0);
                    let window = self.count(half, "fp16", "loss_scale_window").unwrap_or(1000);
                    let initial = power.clamp(0.0, 127.0).exp2();
                    let value = format!("{{ dynamic = {{ initial = {initial:?}, interval = {window} }} }}");
                    Line::new("loss_scale", value).from("fp16")
                }
            };
            self.translation.strategy.push(line);
            for name in ["hysteresis", "min_loss_scale", "auto_cast", "consecutive_hysteresis"] {
                if let Some(value) = half.get(name) {
                    self.untranslated(&format!("fp16.{name}"), value, NO_KEY);
                }
            }
        }
        if let Some(cast) = self.table(json, "", "torch_autocast").filter(|table| is_on(table)) {
            let is_half = cast.get("dtype").and_then(Value::as_str) == Some("float16");
            let dtype = if is_half { "\"fp16\"" } else { "\"bf16\"" };
            self.translation.strategy.push(Line::new("precision", dtype.to_owned()).from("torch_autocast"));
        }
        if let Some(amp) = self.table(json, "", "amp").filter(|table| is_on(table)) {
            let amp = Value::Object(amp.clone());
            self.untranslated("amp", &amp, "Apex is not predicted; use precision = \"fp16\"");
        }
        if let Some(types) = self.table(json, "", "data_types")
            && types.get("grad_accum_dtype").and_then(Value::as_str) == Some("fp32")
        {
            let line = Line::new("gradient_dtype", "\"fp32\"".to_owned()).from("data_types.grad_accum_dtype");
            self.translation.strategy.push(line);
        }
    }

    fn zero(&mut self, json: &Map<String, Value>) {
        let Some(zero) = self.table(json, "", "zero_optimization") else { return };
        let path = "zero_optimization";
        for (name, key) in
            [("offload_optimizer", "offload.optimizer"), ("offload_param", "offload.parameters")]
        {
            let Some(offload) = self.table(zero, path, name) else { continue };
            match offload.get("device").and_then(Value::as_str).unwrap_or("none") {
                "cpu" => {
                    let line = Line::new(key, "true".to_owned()).from(&format!("{path}.{name}.device"));
                    self.translation.strategy.push(line);
                }
                "none" => continue,
                device => self.note(format!(
                    "{path}.{name}.device = \"{device}\": values are offloaded to host memory only; `{key} = true` does that"
                )),
            }
            for (option, value) in offload.iter().filter(|(option, _)| *option != "device") {
                let reason = match option.as_str() {
                    "pin_memory" => "host memory is pinned unless `offload.pinned = false`",
                    _ => NO_KEY,
                };
                self.untranslated(&format!("{path}.{name}.{option}"), value, reason);
            }
        }
        for (name, value) in zero {
            let full = format!("{path}.{name}");
            match name.as_str() {
                "offload_optimizer" | "offload_param" => {}
                "stage" if value.as_u64() == Some(0) => {}
                "stage" => self.untranslated(
                    &full,
                    value,
                    "this experiment uses one device; for ZeRO on several, add parallel = { data = n, shard = \"optimizer\", \"gradients\" or \"parameters\" }",
                ),
                _ => self.untranslated(&full, value, SEVERAL_DEVICES),
            }
        }
    }

    fn checkpointing(&mut self, json: &Map<String, Value>) {
        let path = "activation_checkpointing";
        let Some(section) = self.table(json, "", path) else { return };
        let number = self.count(section, path, "number_checkpoints");
        let (value, origin) = match number {
            Some(number) => (format!("{{ segments = {number} }}"), format!("{path}.number_checkpoints")),
            None => ("\"block\"".to_owned(), path.to_owned()),
        };
        self.translation.strategy.push(Line::new("recompute", value).from(&origin));
        for (name, value) in section.iter().filter(|(name, _)| *name != "number_checkpoints") {
            let full = format!("{path}.{name}");
            match (name.as_str(), value.as_bool()) {
                ("cpu_checkpointing", Some(true)) => {
                    self.translation
                        .strategy
                        .push(Line::new("offload.activations", "true".to_owned()).from(&full));
                }
                ("partition_activations", Some(true)) => self.untranslated(&full, value, SEVERAL_DEVICES),
                (_, Some(false)) => {}
                ("profile", _) => self.untranslated(&full, value, REPORTS),
                _ => self.untranslated(&full, value, NO_KEY),
            }
        }
    }

    /// The number of a key; "auto" is listed.
    fn number(&mut self, table: &Map<String, Value>, path: &str, key: &str) -> Option<f64> {
        let value = table.get(key)?;
        if value.is_null() || self.is_auto(path, key, value) {
            return None;
        }
        let number = value.as_f64().filter(|number| *number >= 0.0 && number.is_finite());
        if number.is_none() {
            self.problem(path, key, value, "a number of at least 0");
        }
        number
    }

    fn count(&mut self, table: &Map<String, Value>, path: &str, key: &str) -> Option<usize> {
        let value = table.get(key)?;
        if value.is_null() || self.is_auto(path, key, value) {
            return None;
        }
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
        if count.is_none() && value.as_u64() != Some(0) {
            self.problem(path, key, value, "a whole number");
        }
        count
    }

    fn table<'j>(
        &mut self,
        table: &'j Map<String, Value>,
        path: &str,
        key: &str,
    ) -> Option<&'j Map<String, Value>> {
        let value = table.get(key)?;
        if value.is_null() || self.is_auto(path, key, value) {
            return None;
        }
        let object = value.as_object();
        if object.is_none() {
            self.problem(path, key, value, "an object");
        }
        object
    }

    fn is_auto(&mut self, path: &str, key: &str, value: &Value) -> bool {
        let is_auto = value.as_str() == Some("auto");
        if is_auto {
            self.note(format!(
                "{} = \"auto\": the Trainer decides it; the default is written",
                full(path, key)
            ));
        }
        is_auto
    }

    fn problem(&mut self, path: &str, key: &str, value: &Value, expected: &str) {
        let key = full(path, key);
        self.problems.push(format!("{}: `{key}` must be {expected}, not {value}", self.file));
    }

    fn untranslated(&mut self, key: &str, value: &Value, reason: &str) {
        if value.is_null()
            || value == &Value::Bool(false)
            || value.get("enabled") == Some(&Value::Bool(false))
        {
            return;
        }
        let value = if value.is_object() || value.is_array() { String::new() } else { format!(" = {value}") };
        self.note(format!("{key}{value}: {reason}"));
    }

    fn note(&mut self, note: String) {
        self.translation.notes.push(note);
    }
}

/// The learning rate and the table that a scheduler stands for.
#[derive(Default)]
struct Schedule {
    lr: Option<f64>,
    table: Option<Table>,
}

fn full(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// DeepSpeed's sections are off unless `enabled`; "auto" follows the Trainer's arguments.
fn is_on(table: &Map<String, Value>) -> bool {
    table.get("enabled") == Some(&Value::Bool(true))
}
