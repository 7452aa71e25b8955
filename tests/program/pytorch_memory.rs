//! Predicted allocator requests against those that PyTorch made: `tests/reference/pytorch_memory`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use data::{Contents, DataError, Part, Sample, SampleLengths};
use device::KnownCard;
use plan::Point;
use pytorch::{Card, Event, NotCovered, ScriptPrediction, Sequence, Stream};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use spec::{
    AllocConf, KeywordEnum, RunConfig, TorchCheckpoint, TorchOptimizer, TorchOptions, TorchVersion,
    TransformersVersion,
};

const FOLDER: &str = "tests/reference/pytorch_memory";

/// The documents of `padded.toml`.
const DOCUMENTS: &str = "tests/reference/vectors/documents/lines.jsonl";

/// Mismatches that a failing test prints.
const PRINTED: usize = 10;

/// A line of `vectors.csv` or `versions.csv`.
#[derive(Clone, Debug, Deserialize)]
struct Vector {
    #[serde(default = "default_version")]
    version: String,
    /// The version of transformers.
    #[serde(default = "default_library")]
    library: String,
    experiment: String,
    strategy: String,
    options: String,
    card: String,
    script: String,
    requests: usize,
    sequence: String,
    allocated: String,
    reserved: String,
}

/// The version of `vectors.csv`.
fn default_version() -> String {
    TorchVersion::default().keyword().to_owned()
}

fn default_library() -> String {
    TransformersVersion::default().keyword().to_owned()
}

impl Vector {
    fn version(&self) -> TorchVersion {
        let version = TorchVersion::ALL.iter().find(|version| version.keyword() == self.version);
        *version.expect("a known version")
    }

    fn predicted(&self, run: &Run) -> Result<Sequence, NotCovered> {
        pytorch::sequence(&run.config, self.card(), self.version(), self.options(run.options))
    }

    fn library(&self) -> TransformersVersion {
        let library = TransformersVersion::ALL.iter().find(|library| library.keyword() == self.library);
        *library.expect("a known version of transformers")
    }

    /// `default`: those of `[plan]`.
    fn options(&self, default: TorchOptions) -> TorchOptions {
        let default = TorchOptions { transformers: self.library(), ..default };
        match self.options.as_str() {
            "fused" => default,
            "foreach" => TorchOptions { optimizer: TorchOptimizer::Foreach, ..default },
            "for-loop" => TorchOptions { optimizer: TorchOptimizer::ForLoop, ..default },
            "torchao" => TorchOptions { optimizer: TorchOptimizer::Torchao, ..default },
            "reentrant" => TorchOptions { checkpoint: TorchCheckpoint::Reentrant, ..default },
            "masked" => TorchOptions { attention_mask: true, ..default },
            other => panic!("unknown options {other}"),
        }
    }

    fn card(&self) -> Card {
        let target = match self.card.as_str() {
            "a100" => "a100-80gb",
            "h100" => "h100-80gb",
            "rtx4090" => "rtx-4090-24gb",
            "t4" => "t4-16gb",
            "v100" => "v100-16gb",
            "p100" => "p100-16gb",
            other => panic!("unknown card {other}"),
        };
        let known = KnownCard::find(target).expect("a known card");
        Card::named(known.name).expect("a card that is predicted")
    }

    fn title(&self) -> String {
        let Vector { experiment, strategy, options, card, version, library, .. } = self;
        format!("{experiment}/{strategy} {options} {card} {version} {library}")
    }

    /// The recorded sequence, which only a few programs have.
    fn recorded(&self) -> Option<String> {
        if self.version != default_version() || self.library != default_library() {
            return None;
        }
        let Vector { experiment, strategy, options, card, .. } = self;
        let name = format!("{experiment}.{strategy}.{options}.{card}.txt");
        fs::read_to_string(Path::new(FOLDER).join("sequences").join(name)).ok()
    }

    /// What differs between the prediction and the recorded program.
    fn mismatch(&self, predicted: &Sequence) -> Option<String> {
        let text = normalized(predicted);
        if digest(&text) != self.sequence {
            let place = match self.recorded() {
                Some(recorded) => first_difference(&text, &recorded),
                None => {
                    format!(
                        "run tests/reference/pytorch_memory/record.py --all with PyTorch {} and transformers {}",
                        self.version, self.library
                    )
                }
            };
            return Some(format!(
                "another sequence of {} requests, recorded {}: {place}",
                predicted.requests(),
                self.requests
            ));
        }
        let peaks = pytorch::replay(predicted, None, AllocConf::default()).expect("no limit");
        let steps = |bytes: fn(&pytorch::Usage) -> u64| {
            peaks.steps.iter().map(|usage| bytes(usage).to_string()).collect::<Vec<_>>().join(" ")
        };
        let figures = [
            ("allocated", steps(|usage| usage.allocated), &self.allocated),
            ("reserved", steps(|usage| usage.reserved), &self.reserved),
        ];
        let wrong = figures.into_iter().find(|(_, predicted, recorded)| predicted != *recorded);
        wrong.map(|(name, predicted, recorded)| format!("{name} {predicted}, recorded {recorded}"))
    }
}

/// Requests and releases, a line each; requests of other streams than the first have their number. Successive releases are in
/// order of their numbers, because the state of the allocator does not depend on theirs.
fn normalized(sequence: &Sequence) -> String {
    let mut text = String::new();
    let (mut releases, mut stream) = (Vec::new(), Stream::default());
    for event in &sequence.events {
        match *event {
            Event::Release(request) => releases.push(request),
            Event::Request(bytes) => {
                write_releases(&mut text, &mut releases);
                writeln!(text, "+{bytes}{stream}").unwrap();
            }
            Event::Stream(entered) => stream = entered,
            Event::Phase(_) | Event::Step | Event::EmptyCache => {}
        }
    }
    write_releases(&mut text, &mut releases);
    text
}

fn write_releases(text: &mut String, releases: &mut Vec<u32>) {
    releases.sort_unstable();
    for request in releases.drain(..) {
        writeln!(text, "-{request}").unwrap();
    }
}

/// The first 16 digits of SHA-256.
fn digest(text: &str) -> String {
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn first_difference(predicted: &str, recorded: &str) -> String {
    let [predicted, recorded] = [predicted, recorded].map(|text| text.lines().collect::<Vec<_>>());
    let at = (0..).find(|&at| predicted.get(at) != recorded.get(at)).expect("the digests differ");
    let line = |lines: &[&str]| (*lines.get(at).unwrap_or(&"the end")).to_owned();
    format!("{} at line {}, recorded {}", line(&predicted), at + 1, line(&recorded))
}

fn vectors() -> Vec<Vector> {
    let read = |file: &str| -> Vec<Vector> {
        let mut reader = csv::Reader::from_path(Path::new(FOLDER).join(file)).unwrap();
        reader.deserialize().map(Result::unwrap).collect()
    };
    ["vectors.csv", "versions.csv"].into_iter().flat_map(read).collect()
}

/// A run, and the options of its experiment's `[plan]`.
struct Run {
    config: RunConfig,
    options: TorchOptions,
}

/// The runs of the vectors' experiments, by experiment and strategy.
fn runs() -> BTreeMap<(String, String), Run> {
    let plain = ["gpt", "llama", "large", "drawn", "padded", "offload", "offload-drawn", "layers"];
    let of_ranks =
        ["ranks", "ranks-layers", "ranks-sharded", "ranks-transformers", "ranks-transformers-sharded"];
    let of_library = [
        "transformers",
        "transformers-gpt",
        "transformers-families",
        "transformers-masks",
        "transformers-parallel",
        "transformers-liger",
        "transformers-kernels",
        "transformers-padded",
        "transformers-drawn",
        "trainer",
        "trainer-kernels",
        "trainer-padded",
        "trainer-drawn",
        "bitsandbytes-drawn",
        "families-drawn",
        "kernels-drawn",
        "documents-drawn",
        "documents-trainer-drawn",
    ];
    plain.into_iter().chain(of_ranks).chain(of_library).flat_map(expanded).collect()
}

/// The runs of an experiment, by experiment and strategy.
fn expanded(name: &str) -> BTreeMap<(String, String), Run> {
    let file = Path::new(FOLDER).join(format!("{name}.toml"));
    let experiment = plan::expand(&file, &[], &|_| None).unwrap_or_else(|error| panic!("{error}"));
    let options = experiment.plan.torch_options;
    let documents = documents();
    let run = |point: Point| {
        let mut config = point.config.unwrap();
        config.set_data_properties(&documents);
        ((name.to_owned(), point.strategy), Run { config, options })
    };
    experiment.points.into_iter().map(run).collect()
}

/// Checks every vector, and panics with the first mismatches.
fn check(found: impl Fn(&Vector, &Run) -> Option<String>) {
    let (vectors, runs) = (vectors(), runs());
    let mismatches: Vec<String> = vectors
        .iter()
        .filter_map(|vector| {
            let run = &runs[&(vector.experiment.clone(), vector.strategy.clone())];
            found(vector, run).map(|mismatch| format!("{}: {mismatch}", vector.title()))
        })
        .collect();
    assert!(
        mismatches.is_empty(),
        "{} of {} programs:\n{}",
        mismatches.len(),
        vectors.len(),
        mismatches[..mismatches.len().min(PRINTED)].join("\n")
    );
}

#[test]
fn predicted_requests_and_peaks_are_pytorch_s() {
    check(|vector, run| match vector.predicted(run) {
        Ok(sequence) => vector.mismatch(&sequence),
        Err(reason) => Some(format!("not covered: {reason}")),
    });
}

/// Otherwise the vectors would be those of other programs. The first line of a script is its title, and another one has the
/// predicted peaks.
#[test]
fn recorded_scripts_are_the_exported_ones() {
    check(|vector, run| {
        let options = vector.options(run.options);
        let script = pytorch::script(&run.config, vector.card(), options, &ScriptPrediction::default())
            .expect("covered");
        let lines = script.lines().skip(1).filter(|line| !line.starts_with("PREDICTED = "));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        (digest(&text) != vector.script)
            .then(|| "the script changed: run tests/reference/pytorch_memory/record.py".to_owned())
    });
}

/// The bytes of each document, as this test counts them.
#[derive(Debug)]
struct DocumentBytes(Vec<usize>);

fn documents() -> DocumentBytes {
    let text = fs::read_to_string(DOCUMENTS).unwrap();
    let bytes = |line| serde_json::from_str::<BTreeMap<String, String>>(line).unwrap()["text"].len();
    DocumentBytes(text.lines().map(bytes).collect())
}

impl Contents for DocumentBytes {
    fn digest(&self) -> &str {
        ""
    }

    /// Samples of a document's bytes but the last, at most `context` each; 0.9 of the documents are for training.
    fn sample_lengths(&self, sample: &Sample) -> Option<SampleLengths> {
        let context = sample.positions()?;
        let samples = |documents: &[usize]| {
            let cut = |bytes: &usize| {
                let tokens = bytes - 1;
                (0..tokens).step_by(context).map(move |start| (tokens - start).min(context) as u32)
            };
            documents.iter().flat_map(cut).collect()
        };
        let (training, evaluation) = self.0.split_at(self.0.len() * 9 / 10);
        Some(SampleLengths { training: samples(training), evaluation: samples(evaluation) })
    }

    /// The samples of the recorded packed programs have several documents.
    fn first_documents(&self, _sample: &Sample) -> Option<SampleLengths> {
        Some(SampleLengths { training: vec![0; self.0.len()], evaluation: vec![0; self.0.len()] })
    }

    fn parts(&self) -> &'static [&'static str] {
        &[]
    }

    fn part(&self, _requested: &Part) -> Option<Part> {
        None
    }

    fn check_size(&self, _sample: &Sample, _evaluates: bool) -> Result<(), DataError> {
        Ok(())
    }
}

/// A line of `published.csv` or `published-lora.csv`.
#[derive(Debug, Deserialize)]
struct PublishedPeak {
    run: String,
    figure: String,
    published: u64,
    strategy: String,
    /// The peak of the exported script, and under nullcuda of the script with the published program's own layers.
    exported: u64,
    edits: String,
    edited: u64,
}

/// Peaks that others printed on a card: the prediction is that of the exported script, and what is missing to the published
/// peak is what the published program's own layers take. QLoRA with an old bitsandbytes lacks a little more; torchtune does not
/// state the length.
#[test]
fn published_peaks_are_explained() {
    check_published("published", TorchVersion::V2_6, 6, |_| 0.97);
    check_published("published-lora", TorchVersion::V2_11, 14, |strategy| match strategy {
        "torchtune" | "torchtune-all" => 0.91,
        _ => 0.965,
    });
}

/// `least`: the least share of the published peak, by strategy.
fn check_published(name: &str, version: TorchVersion, count: usize, least: impl Fn(&str) -> f64) {
    let mut reader = csv::Reader::from_path(Path::new(FOLDER).join(format!("{name}.csv"))).unwrap();
    let rows: Vec<PublishedPeak> = reader.deserialize().map(Result::unwrap).collect();
    assert_eq!(rows.len(), count);
    let runs = expanded(name);
    let card = Card::named("NVIDIA A100-SXM4-40GB").expect("a known card");
    for row in &rows {
        let run = &runs[&(name.to_owned(), row.strategy.clone())];
        let sequence = pytorch::sequence(&run.config, card, version, run.options).expect("covered");
        let peak = pytorch::replay(&sequence, None, AllocConf::default()).expect("no limit").whole;
        let predicted = match row.figure.as_str() {
            "reserved" => peak.reserved,
            _ => peak.allocated,
        };
        assert_eq!(predicted, row.exported, "{row:?}");
        assert!(!row.edits.is_empty() || row.edited == row.exported, "{row:?}");
        let share = row.edited as f64 / row.published as f64;
        let least = least(&row.strategy);
        assert!((least..=1.03).contains(&share), "{}: {share:.3} of the published peak", row.run);
    }
}

#[test]
fn recorded_programs_are_enough() {
    let vectors = vectors();
    let of = |card: &str| vectors.iter().filter(|vector| vector.card == card).count();
    assert!(vectors.len() >= 120, "{} programs", vectors.len());
    for card in ["a100", "h100", "rtx4090", "t4", "v100", "p100"] {
        assert!(of(card) >= 20, "{} programs on {card}", of(card));
    }
    for version in TorchVersion::ALL {
        let of = vectors.iter().filter(|vector| vector.version() == *version).count();
        assert!(of >= 100, "{of} programs of PyTorch {}", version.keyword());
    }
    for library in TransformersVersion::ALL {
        let of = vectors.iter().filter(|vector| vector.library() == *library).count();
        assert!(of >= 60, "{of} programs of transformers {}", library.keyword());
    }
    let is_recorded = |(experiment, strategy): &(String, String)| {
        let is_own = |vector: &Vector| vector.experiment == *experiment && vector.strategy == *strategy;
        vectors.iter().any(is_own)
    };
    let is_of_cards = |(experiment, _): &(String, String)| !experiment.ends_with("drawn");
    let missing: Vec<_> = runs().into_keys().filter(|run| is_of_cards(run) && !is_recorded(run)).collect();
    assert!(missing.is_empty(), "without a recorded program: {missing:?}");
    // A strategy without effect would be counted as another program.
    let mut titles = BTreeMap::new();
    for vector in &vectors {
        let Vector { script, card, version, library, .. } = vector;
        if let Some(other) = titles.insert((script, card, version, library), vector.title()) {
            panic!("one program twice: {other} and {}", vector.title());
        }
    }
}

/// A program with a stored sequence, and its prediction.
fn stored() -> (Vector, Sequence) {
    let vectors = vectors();
    let vector = vectors.iter().find(|vector| vector.recorded().is_some()).expect("a stored sequence");
    let run = &runs()[&(vector.experiment.clone(), vector.strategy.clone())];
    let sequence = vector.predicted(run).unwrap();
    assert_eq!(vector.mismatch(&sequence), None);
    (vector.clone(), sequence)
}

#[test]
fn stored_sequences_have_the_recorded_digests() {
    let stored: Vec<(String, String, String)> = vectors()
        .into_iter()
        .filter_map(|vector| vector.recorded().map(|text| (vector.title(), vector.sequence, digest(&text))))
        .collect();
    assert!(stored.len() >= 6, "{stored:?}");
    for (title, recorded, digest) in stored {
        assert_eq!(recorded, digest, "{title}");
    }
}

#[test]
fn changed_request_is_a_mismatch() {
    let (vector, sequence) = stored();
    let is_request = |event: &&mut Event| matches!(event, Event::Request(_));
    let mut changed = sequence.clone();
    let request = changed.events.iter_mut().filter(is_request).nth(100).unwrap();
    let Event::Request(bytes) = *request else { unreachable!("filtered") };
    *request = Event::Request(bytes + 1);
    let mismatch = vector.mismatch(&changed).expect("a mismatch");
    assert!(mismatch.contains(&format!("+{} at line ", bytes + 1)), "{mismatch}");
    assert!(mismatch.contains(&format!("recorded +{bytes}")), "{mismatch}");
}

#[test]
fn release_of_another_request_is_a_mismatch() {
    let (vector, sequence) = stored();
    let mut changed = sequence.clone();
    let mut releases = changed.events.iter_mut().filter_map(|event| match event {
        Event::Release(request) => Some(request),
        _ => None,
    });
    // The first and the last release are not successive ones.
    std::mem::swap(releases.next().unwrap(), releases.next_back().unwrap());
    assert!(vector.mismatch(&changed).is_some());
}

#[test]
fn order_of_successive_releases_is_no_mismatch() {
    let (vector, sequence) = stored();
    let mut changed = sequence.clone();
    let is_pair = |pair: &[Event]| matches!(pair, [Event::Release(_), Event::Release(_)]);
    let at = changed.events.windows(2).position(is_pair).expect("successive releases");
    changed.events.swap(at, at + 1);
    assert_eq!(vector.mismatch(&changed), None);
}

#[test]
fn wrong_peak_is_a_mismatch() {
    let (mut vector, sequence) = stored();
    vector.reserved.replace_range(..1, "9");
    let mismatch = vector.mismatch(&sequence).expect("a mismatch");
    assert!(mismatch.starts_with("reserved "), "{mismatch}");
}
