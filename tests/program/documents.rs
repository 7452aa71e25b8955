//! Documents that a tokenizer encodes, from their files to the table: in this process's cache, apart in samples or not.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::place::Place;

const EXPERIMENT: &str = r#"
[model.transformer]
layers = 1
d_model = 16
heads = 2
context = 16
vocabulary = 300

[data.text]
paths = ["lines.jsonl"]
jsonl = "text"
tokens = { file = "tokenizer.json", end = "<end>" }
split = 0.7

[train]
batch_size = 6
optimizer.adamw.lr = 1e-3

[evaluation]
every = 2
batches = 2

[measure]
warmup_steps = 0
steps = 4

[strategies.plain]
[strategies.lean]
recompute = "block"
accumulate = 4
loss_chunks = 3

[sweep.grid]
"data.text.documents" = ["joined", "padded", "packed"]
"#;

/// A row of the table by its columns.
type Row = BTreeMap<String, String>;

fn place() -> Place {
    let place = Place::new();
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    fs::copy(reference.join("tokenizer/tokenizer.json"), place.path("tokenizer.json")).unwrap();
    fs::copy(reference.join("vectors/documents/lines.jsonl"), place.path("lines.jsonl")).unwrap();
    place.write("documents.toml", EXPERIMENT);
    place
}

fn swept(place: &Place) -> Vec<Row> {
    let mut command = place.program(&["sweep", "--device", "cpu", "documents.toml"]);
    let output = command.env("RUNNER_CACHE_DIR", place.path("cache")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut table = csv::Reader::from_path(place.path("results/documents.csv")).unwrap();
    table.deserialize().collect::<Result<_, _>>().unwrap()
}

#[test]
fn documents_are_encoded_once_and_trained_on_as_predicted() {
    let place = place();
    let rows = swept(&place);
    assert_eq!(rows.len(), 6);
    for row in &rows {
        assert_eq!(row["status"], "ok");
        assert_eq!(row["predicted_peak_bytes"], row["peak_bytes"]);
    }
    let of = |documents: &str, strategy: &str| {
        let found = |row: &&Row| {
            row["data.text.documents"] == format!("\"{documents}\"") && row["strategy"] == strategy
        };
        rows.iter().find(found).unwrap_or_else(|| panic!("no {strategy} of {documents}"))
    };
    let number = |row: &Row, column: &str| row[column].parse::<f64>().unwrap();
    // What is learnt does not depend on how a step is split.
    for documents in ["joined", "padded", "packed"] {
        for column in ["loss_first", "loss_last", "loss_eval"] {
            let [plain, lean] = ["plain", "lean"].map(|strategy| number(of(documents, strategy), column));
            assert!((plain - lean).abs() < 1e-5 * plain, "{documents}: {column} {plain} and {lean}");
        }
    }
    assert_eq!(of("joined", "plain")["padding"], "");
    let [padded, packed] = ["padded", "packed"].map(|documents| number(of(documents, "plain"), "padding"));
    assert!(packed < 0.2 && 0.3 < padded && padded < 1.0, "{padded} and {packed}");
    let ids = |rows: &[Row]| rows.iter().map(|row| row["run_id"].clone()).collect::<Vec<_>>();

    // Three arrangements of one text, and a text that has changed.
    let encoded = || place.find("cache/tokens/*").len();
    assert_eq!(encoded(), 1);
    let text = fs::read_to_string(place.path("lines.jsonl")).unwrap();
    fs::write(place.path("lines.jsonl"), text.replace("known", "unknown")).unwrap();
    let others = swept(&place);
    assert_eq!(encoded(), 2);
    assert!(ids(&rows).iter().all(|id| !ids(&others).contains(id)), "other data makes other runs");

    // Without a place to keep it, nothing is encoded, and that is an error.
    fs::write(place.path("no folder"), "").unwrap();
    let mut command = place.program(&["check", "documents.toml"]);
    let output = command.env("RUNNER_CACHE_DIR", place.path("no folder")).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).replace(place.path("").to_str().unwrap(), "PLACE/");
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.starts_with("error: cannot store encoded text in PLACE/no folder/tokens: "), "{told}");
    assert!(told.contains("set RUNNER_CACHE_DIR to a writable folder"), "{told}");
}
