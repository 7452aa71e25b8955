//! Tokenized documents, from their files to the result table: the token cache, and joined, padded and packed samples.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::test_folder::TestFolder;

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

/// Cells of a row by column.
type Row = BTreeMap<String, String>;

fn test_folder() -> TestFolder {
    let dir = TestFolder::new();
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    fs::copy(reference.join("tokenizer/tokenizer.json"), dir.path("tokenizer.json")).unwrap();
    fs::copy(reference.join("vectors/documents/lines.jsonl"), dir.path("lines.jsonl")).unwrap();
    dir.write("documents.toml", EXPERIMENT);
    dir
}

fn swept(dir: &TestFolder) -> Vec<Row> {
    let mut command = dir.program(&["sweep", "--device", "cpu", "documents.toml"]);
    let output = command.env("RUNNER_CACHE_DIR", dir.path("cache")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut table = csv::Reader::from_path(dir.path("results/documents.csv")).unwrap();
    table.deserialize().collect::<Result<_, _>>().unwrap()
}

#[test]
fn documents_are_encoded_once_and_trained_on_as_predicted() {
    let dir = test_folder();
    let rows = swept(&dir);
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
    // Losses do not depend on how a step is split.
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

    // The three arrangements share one cache entry; changed text gets a new one.
    let encoded = || dir.find("cache/tokens/*").len();
    assert_eq!(encoded(), 1);
    let text = fs::read_to_string(dir.path("lines.jsonl")).unwrap();
    fs::write(dir.path("lines.jsonl"), text.replace("known", "unknown")).unwrap();
    let others = swept(&dir);
    assert_eq!(encoded(), 2);
    assert!(ids(&rows).iter().all(|id| !ids(&others).contains(id)), "other data makes other runs");

    // Without a folder for the cache, encoding is an error.
    fs::write(dir.path("no folder"), "").unwrap();
    let mut command = dir.program(&["check", "documents.toml"]);
    let output = command.env("RUNNER_CACHE_DIR", dir.path("no folder")).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).replace(dir.path("").to_str().unwrap(), "FOLDER/");
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.starts_with("error: cannot store encoded text in FOLDER/no folder/tokens: "), "{told}");
    assert!(told.contains("set RUNNER_CACHE_DIR to a writable folder"), "{told}");
}
