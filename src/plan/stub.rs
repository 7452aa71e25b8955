//! (stands in for the expansion of experiments and for the planner)

use std::path::Path;

use sha2::{Digest, Sha256};
use toml::Table;

use super::{Experiment, Plan, PlannedRun, Point};
use crate::device::Target;
use crate::spec::*;

pub fn expand(file: &Path, _overrides: &[String]) -> Result<Experiment, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let table: Table = text.parse().map_err(|error| format!("{}: {error}", file.display()))?;
    let of = |path: &str| -> Option<toml::Value> {
        let mut value = toml::Value::Table(table.clone());
        for key in path.split('.') {
            value = value.get(key)?.clone();
        }
        Some(value)
    };
    let number = |path: &str| of(path).and_then(|value| value.as_integer()).unwrap_or(1) as usize;
    let folder = std::path::absolute(file).map_err(|error| error.to_string())?;
    let paths = of("data.text.paths").and_then(|value| value.as_array().cloned()).unwrap_or_default();
    let paths = paths.iter().filter_map(|path| Some(folder.parent()?.join(path.as_str()?))).collect();
    let config = RunConfig {
        model: Model::Transformer(Transformer {
            layers: 1,
            d_model: 8,
            heads: 1,
            context: number("model.transformer.context"),
            vocabulary: 256,
        }),
        data: Data::Text(Text { paths, tokens: Tokens::Bytes, split: 0.9 }),
        train: Train {
            batch_size: 4,
            clip_norm: None,
            seed: 0,
            optimizer: Optimizer::AdamW(AdamW {
                lr: 1e-3,
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-8,
                weight_decay: 0.0,
                decay: Decay::All,
            }),
        },
        evaluation: None,
        measure: Measure { warmup_steps: 1, steps: number("measure.steps") },
        strategy: Strategy {
            accumulate: 1,
            recompute: Recompute::None,
            release: Release::Eager,
            gradients: Gradients::Free,
            allocator: Allocator::Arena,
            evaluation_pass: EvaluationPass::NoGrad,
        },
    };
    let strategies = of("strategies").and_then(|value| value.as_table().cloned()).unwrap_or_default();
    let points = strategies.iter().map(|(name, keys)| {
        let mut config = config.clone();
        if keys.get("recompute").is_some() {
            config.strategy.recompute = Recompute::Block;
        }
        let accumulate = keys.get("accumulate").and_then(|value| value.as_integer()).unwrap_or(1) as usize;
        config.strategy.accumulate = accumulate;
        let makes_sense = 4 % accumulate == 0;
        Point {
            strategy: name.clone(),
            axes: Vec::new(),
            config: if makes_sense { Ok(config) } else { Err("does not divide".into()) },
            without: Vec::new(),
        }
    });
    Ok(Experiment {
        name: of("name").and_then(|name| Some(name.as_str()?.to_string())).unwrap_or_default(),
        file: file.to_path_buf(),
        baseline: "plain".into(),
        requires: None,
        memory: None,
        repeats: number("measure.repeats"),
        axes: Vec::new(),
        points: points.collect(),
    })
}

pub fn plan(experiment: Experiment, target: &Target, data_digest: impl Fn(&RunConfig) -> String) -> Plan {
    let mut runs: Vec<PlannedRun> = Vec::new();
    for point in experiment.points {
        let configuration = match &point.config {
            Ok(config) => hash(&(config, data_digest(config))),
            Err(_) => String::new(),
        };
        let same = runs.iter().find(|run| run.configuration == configuration && run.config.is_ok());
        runs.push(PlannedRun {
            id: hash(&(&configuration, target))[..12].to_string(),
            same_as: same.map(|run| run.strategy.clone()),
            configuration,
            strategy: point.strategy,
            axes: point.axes,
            config: point.config,
            prediction: None,
            no_effect: Vec::new(),
        });
    }
    Plan {
        experiment: experiment.name,
        file: experiment.file,
        baseline: experiment.baseline,
        target: target.clone(),
        repeats: experiment.repeats,
        axes: experiment.axes,
        runs,
    }
}

fn hash(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_vec(value).unwrap_or_default();
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
