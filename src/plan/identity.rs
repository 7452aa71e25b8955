//! What makes two runs the same run.

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::device::Target;
use crate::spec::RunConfig;
use crate::units::Bytes;

/// Hexadecimal digits of an id: 64 bits, so that a million runs collide with a chance of one in 10^7.
const DIGITS: usize = 16;

/// How often a default has become another. Ids made with the old one must not name runs with the new one.
const DEFAULTS: u32 = 0;

/// The digest of what tells a configuration from others, and of its data. Labels, paths and repeats are not part of it,
/// nor are keys at their defaults: one that a later version adds leaves stored runs what they are.
pub fn configuration_id(config: &RunConfig, data_digest: &str) -> String {
    digest(&(DEFAULTS, config.identity(), data_digest))
}

/// The digest of a configuration on a target: names the run's folder.
pub fn run_id(configuration: &str, target: &Target) -> String {
    // What a card takes for itself is measured each time, and differs by what else it is doing: the run is the same.
    let target = Target { context: Bytes(0), ..target.clone() };
    digest(&(configuration, &target))
}

fn digest(content: &impl Serialize) -> String {
    let json = serde_json::to_vec(content).expect("plain data always serialises");
    let mut hex: String = Sha256::digest(&json).iter().map(|byte| format!("{byte:02x}")).collect();
    hex.truncate(DIGITS);
    hex
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::expand;
    use crate::testing::keys::{Choice, KEYS, Key};
    use crate::testing::{choice, sample, small_with, target};

    /// All that cannot be left out.
    const SHORTEST: &str = r#"
[model.transformer]
layers = 2
d_model = 64
heads = 2
context = 32
[data.text]
paths = ["/nowhere"]
[train]
batch_size = 6
optimizer.adamw.lr = 1e-3
[evaluation]
[strategies.plain]
"#;

    /// The one run of an experiment.
    fn read(experiment: &str, overrides: &[String]) -> Result<RunConfig, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.toml");
        std::fs::write(&file, experiment).unwrap();
        let mut experiment = expand(&file, overrides, &|_| None).map_err(|error| error.to_string())?;
        experiment.points.remove(0).config
    }

    fn id(config: &RunConfig) -> String {
        configuration_id(config, "data")
    }

    /// A run with all its keys.
    fn whole(config: &RunConfig) -> String {
        let toml = config.to_toml("run", "plain").replace("[strategies.plain]", "[strategy]");
        toml.lines().skip(1).map(|line| format!("{line}\n")).collect()
    }

    /// `train.seed = 0` for each key of a run written down.
    fn settings(toml: &str) -> Vec<String> {
        let mut table = String::new();
        let mut settings = Vec::new();
        for line in toml.lines().filter(|line| !line.is_empty()) {
            match line.strip_prefix('[') {
                Some(name) => table = format!("{}.", name.trim_end_matches(']')),
                None => settings.push(format!("{table}{line}")),
            }
        }
        settings
    }

    #[test]
    fn a_key_at_its_default_may_as_well_be_left_out() {
        let config = read(SHORTEST, &[]).unwrap();
        for setting in settings(&whole(&config)) {
            assert_eq!(
                id(&read(SHORTEST, std::slice::from_ref(&setting)).unwrap()),
                id(&config),
                "{setting}"
            );
        }
    }

    #[test]
    fn every_value_of_a_strategy_s_key_makes_another_run() {
        for (key, Key { name, values, .. }) in KEYS.iter().enumerate() {
            // All with what the last value needs, which those of the others are content with.
            let with = |value: usize| {
                let mut choice = choice(&[(key, values.len() - 1)]);
                choice.0[key] = value;
                id(&small_with(&choice))
            };
            let ids: BTreeSet<String> = (0..values.len()).map(with).collect();
            assert_eq!(ids.len(), values.len(), "values of `{name}` share an id");
        }
    }

    #[test]
    fn where_data_lies_makes_no_other_run_and_what_it_is_does() {
        let config = read(SHORTEST, &[]).unwrap();
        let elsewhere = read(SHORTEST, &["data.text.paths = ['/elsewhere']".to_owned()]).unwrap();
        assert_ne!(config, elsewhere);
        assert_eq!(id(&config), id(&elsewhere));
        assert_ne!(configuration_id(&config, "other data"), id(&config));
    }

    /// Whatever is hashed is needed: without any one line of it, the run would be another, or none.
    #[test]
    fn no_key_at_its_default_is_hashed() {
        let shortest = read(SHORTEST, &[]).unwrap();
        for config in sample(20).iter().map(small_with).chain([shortest, small_with(&Choice::plain())]) {
            let identity = config.identity();
            let lines: Vec<&str> = identity.lines().collect();
            assert_eq!(reread(&lines), Ok(config.clone()), "{identity}");
            let needed = |line: &&str| !line.is_empty() && !line.starts_with('[');
            for (index, line) in lines.iter().enumerate().filter(|(_, line)| needed(line)) {
                let less: Vec<&str> = [&lines[..index], &lines[index + 1..]].concat();
                assert_ne!(reread(&less), Ok(config.clone()), "`{line}` is a default");
            }
        }
    }

    /// What is hashed as an experiment, with data that lies somewhere.
    fn reread(lines: &[&str]) -> Result<RunConfig, String> {
        let text = lines.join("\n").replace("[data.text]", "[data.text]\npaths = [\"/nowhere\"]");
        let strategy = if text.contains("[strategy]") { "" } else { "\n[strategy]" };
        read(&format!("{text}{strategy}").replace("[strategy]", "[strategies.plain]"), &[])
    }

    /// Every key that has a default; one that is new joins the others.
    const KNOWN: &[&str] = &[
        "model.transformer.vocabulary = 256",
        "data.text.tokens = \"bytes\"",
        "data.text.split = 0.9",
        "train.clip_norm = \"off\"",
        "train.seed = 0",
        "train.optimizer.adamw.beta1 = 0.9",
        "train.optimizer.adamw.beta2 = 0.999",
        "train.optimizer.adamw.epsilon = 1e-8",
        "train.optimizer.adamw.weight_decay = 0.01",
        "train.optimizer.adamw.decay = \"matrices\"",
        "evaluation.every = 10",
        "evaluation.batches = 1",
        "measure.warmup_steps = 3",
        "measure.steps = 20",
        "strategy.accumulate = 1",
        "strategy.precision = \"fp32\"",
        "strategy.loss_scale = \"off\"",
        "strategy.recompute = \"none\"",
        "strategy.loss_chunks = 1",
        "strategy.release = \"eager\"",
        "strategy.gradients = \"free\"",
        "strategy.allocator = \"arena\"",
        "strategy.evaluation_pass = \"no_grad\"",
        "strategy.graph = false",
    ];

    #[test]
    fn defaults_are_those_that_stored_runs_were_named_with() {
        let shortest = read(SHORTEST, &[]).unwrap();
        let (written, hashed) = (settings(&whole(&shortest)), settings(&shortest.identity()));
        for known in KNOWN {
            assert!(
                written.iter().any(|setting| setting == known),
                "`{known}` no more: count it in DEFAULTS"
            );
        }
        for default in written.iter().filter(|setting| !hashed.contains(setting)) {
            let told = KNOWN.contains(&default.as_str()) || default.starts_with("data.text.paths");
            assert!(told, "`{default}` is a default that is not in KNOWN");
        }
    }

    #[test]
    fn a_run_is_the_same_whatever_the_context_takes() {
        let context = |bytes| Target { context: Bytes(bytes), ..target() };
        assert_eq!(run_id("a", &context(0)), run_id("a", &context(500 << 20)));
        assert_ne!(run_id("a", &target()), run_id("a", &target().with_memory(Bytes(1))));
    }
}
