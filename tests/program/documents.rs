//! Tokenized documents, from their files to the result table: the token cache, and joined, padded and packed samples.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::test_folder::{TestFolder, said};

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

/// The same documents, padded to the context or to the longest of each micro-batch.
const PAD_TO: &str = r#"
[sweep.grid]
"data.text.pad_to" = ["context", "batch"]
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

/// The sum of FLOPs per step over the operations of a run.
fn listed_flops(dir: &TestFolder, run: &str) -> f64 {
    let listed = dir.find(&format!("results/documents/*/{run}/[0-9]*/memory.csv"));
    let lines = csv::Reader::from_path(&listed[0]).unwrap().into_deserialize::<Row>();
    let flops = |line: Row| ["flops", "times_per_step"].map(|column| line[column].parse::<f64>().unwrap());
    lines.map(|line| flops(line.unwrap()).iter().product::<f64>()).sum()
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

/// Answers are the only targets. The loss does not depend on how a step is split, and evaluation has files of its own.
#[test]
fn conversations_are_trained_on_as_predicted() {
    let dir = test_folder();
    let reference = fs::read_to_string(dir.path("lines.jsonl")).unwrap();
    let texts = reference.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let texts: Vec<String> = texts.map(|line| line["text"].as_str().unwrap().to_owned()).collect();
    let of = |[ask, answer]: &[String; 2]| {
        let message = |role, content| serde_json::json!({ "role": role, "content": content });
        serde_json::json!({ "messages": [message("user", ask), message("assistant", answer)] }).to_string()
            + "\n"
    };
    let lines: Vec<String> = texts.as_chunks().0.iter().map(of).collect();
    let (evaluated, trained) = lines.split_at(4);
    dir.write("train.jsonl", trained.concat());
    dir.write("val.jsonl", evaluated.concat());
    let chat = EXPERIMENT
        .replace("lines.jsonl", "train.jsonl")
        .replace("jsonl = \"text\"", "template = \"{role}: {content}\\n\"\nmask = \"prompt\"")
        .replace("split = 0.7", "evaluate = [\"val.jsonl\"]")
        .replace("context = 16", "context = 48")
        .replace("[\"joined\", \"padded\", \"packed\"]", "[\"padded\", \"packed\"]");
    dir.write("documents.toml", &chat);
    let rows = swept(&dir);
    assert_eq!(rows.len(), 4);
    for row in &rows {
        assert_eq!((row["status"].as_str(), &row["predicted_peak_bytes"]), ("ok", &row["peak_bytes"]));
    }
    let number = |row: &Row, column: &str| row[column].parse::<f64>().unwrap();
    for pair in rows.chunks(2) {
        for column in ["loss_first", "loss_last", "loss_eval"] {
            let [plain, lean] = [0, 1].map(|row| number(&pair[row], column));
            assert!((plain - lean).abs() < 1e-5 * plain, "{column} {plain} and {lean}");
        }
        assert_eq!(pair[0]["padding"], pair[1]["padding"]);
    }
    // Both files are in the digest.
    let ids = |rows: &[Row]| rows.iter().map(|row| row["run_id"].clone()).collect::<Vec<_>>();
    dir.write("val.jsonl", lines[..3].concat());
    let others = swept(&dir);
    assert!(ids(&rows).iter().all(|id| !ids(&others).contains(id)));
}

/// A tokenizer with a vocabulary of `a`, `b` and `ab`, and these parts.
fn tokenizer(parts: &[(&str, serde_json::Value)]) -> String {
    let model = serde_json::json!({
        "type": "BPE", "unk_token": "a", "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": ["a b"],
    });
    let mut tokenizer = serde_json::json!({ "version": "1.0", "added_tokens": [], "model": model });
    parts.iter().for_each(|(key, value)| tokenizer[*key] = value.clone());
    tokenizer.to_string()
}

/// Checks a text with a tokenizer. Returns the exit code, standard error and the seconds.
fn check_text(tokenizer: &str, text: &str, more: &str) -> (Option<i32>, String, f64) {
    let dir = TestFolder::new();
    dir.write("t.json", tokenizer);
    dir.write("text", text);
    let data = format!("paths = [\"text\"]\ntokens = {{ file = \"t.json\" }}\n{more}split = 1.0");
    let experiment = EXPERIMENT.split_once("paths").unwrap().0.to_owned()
        + &data
        + "\n[train]\nbatch_size = 2\noptimizer.adamw.lr = 1e-3\n[strategies.plain]\n";
    dir.write("a.toml", &experiment);
    let begun = std::time::Instant::now();
    let mut command = dir.program(&["check", "a.toml"]);
    let output = command.env("RUNNER_CACHE_DIR", dir.path("cache")).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).replace(&format!("{}/", dir.path("").display()), "");
    (output.status.code(), error, begun.elapsed().as_secs_f64())
}

/// Tokenizers on which the library panics, aborts, hangs or exhausts memory.
#[test]
fn hostile_tokenizers_are_errors() {
    use serde_json::json;
    let precompiled =
        |map: &str| ("normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": map }));
    let replace = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "a".repeat(1000) });
    let growing = ("normalizer", json!({ "type": "Sequence", "normalizers": [replace, replace, replace] }));
    let pieces =
        json!([{ "SpecialToken": { "id": "X", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }]);
    let template =
        json!({ "type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": {} });
    let load = "t.json is not a tokenizer: the `tokenizers` library fails: ";
    let encode = "t.json: ";
    for (tokenizer, text, expected) in [
        (tokenizer(&[precompiled("")]), "ab", load.to_owned()),
        (tokenizer(&[precompiled("AAAA")]), "ab", load.to_owned()),
        (tokenizer(&[precompiled("@@@@")]), "ab", load.to_owned()),
        (tokenizer(&[growing]), "aaaa", format!("{encode}it takes more than ")),
        (
            tokenizer(&[("post_processor", template)]),
            "ab",
            format!("{encode}the `tokenizers` library fails: "),
        ),
    ] {
        let (code, error, _) = check_text(&tokenizer, text, "");
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(&expected) && !error.contains("panicked"), "{error}");
    }
}

/// The other documents of its batch do not hide the one that ends the process.
#[test]
fn hostile_document_is_named_with_its_line() {
    let replace = serde_json::json!({
        "type": "Replace", "pattern": { "Regex": "^b" }, "content": "a".repeat(100_000_000),
    });
    let twice =
        serde_json::json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "a".repeat(100) });
    let normalizer = serde_json::json!({ "type": "Sequence", "normalizers": [replace, twice] });
    let lines = [
        "{\"text\": \"a\"}\n".repeat(40),
        "{\"text\": \"b\"}\n".to_owned(),
        "{\"text\": \"a\"}\n".repeat(40),
    ];
    let (code, error, _) =
        check_text(&tokenizer(&[("normalizer", normalizer)]), &lines.concat(), "jsonl = \"text\"\n");
    assert_eq!(code, Some(2), "{error}");
    assert!(error.starts_with("error: cannot encode line 41 of "), "{error}");
    assert!(error.contains("/t.json: it takes more than "), "{error}");
}

/// Shorter micro-batches take less memory and work, and train alike. The plan follows the lengths of the data: `sweep`
/// compares it with the run's ledger.
#[test]
fn micro_batches_are_padded_to_their_longest_document() {
    let dir = test_folder();
    let (head, _) = EXPERIMENT.split_once("[sweep.grid]").unwrap();
    let padded = head
        .replace("context = 16", "context = 64")
        .replace("split = 0.7", "split = 0.7\ndocuments = \"padded\"");
    let caching = "[strategies.caching]\nallocator = \"caching\"\n";
    dir.write("documents.toml", format!("{padded}{caching}{PAD_TO}"));
    let mut command = dir.program(&["check", "documents.toml"]);
    let output = command.env("RUNNER_CACHE_DIR", dir.path("cache")).output().unwrap();
    insta::assert_snapshot!(said(&output));

    let rows = swept(&dir);
    let number = |row: &Row, column: &str| row[column].parse::<f64>().unwrap();
    assert_eq!(rows.len(), 6);
    for row in &rows {
        assert_eq!((&*row["status"], &row["predicted_peak_bytes"]), ("ok", &row["peak_bytes"]));
        // Operations are listed by the mean of their FLOPs over lengths.
        let (listed, all) = (listed_flops(&dir, &row["run_id"]), number(row, "hardware_flops"));
        assert!((listed - all).abs() < 1e-3 * all, "{listed} and {all}");
    }
    for strategy in ["plain", "lean", "caching"] {
        let of = |pad_to: &str| {
            let quoted = format!("\"{pad_to}\"");
            let found = |row: &&Row| row["data.text.pad_to"] == quoted && row["strategy"] == strategy;
            rows.iter().find(found).unwrap_or_else(|| panic!("no {strategy} padded to the {pad_to}"))
        };
        let (context, batch) = (of("context"), of("batch"));
        for column in ["loss_last", "loss_eval"] {
            let [all, shorter] = [context, batch].map(|row| number(row, column));
            assert!((all - shorter).abs() < 1e-5 * all, "{strategy}: {column} {all} and {shorter}");
        }
        for column in ["padding", "hardware_flops", "batch_bytes"] {
            let [all, shorter] = [context, batch].map(|row| number(row, column));
            assert!(shorter < all, "{strategy}: {column} {all} and {shorter}");
        }
        // An arena has room for the longest document of the data.
        let ratio = number(batch, "reserved_peak_bytes") / number(context, "reserved_peak_bytes");
        assert!(ratio <= 1.0, "{strategy}: {ratio}");
    }
}
