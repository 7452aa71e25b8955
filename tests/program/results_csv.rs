//! Result tables read back equal, and errors in tables name file, line and column.

use crate::rows::{any_row, row};
use device::Role;
use proptest::prelude::*;
use results::{Row, csv};

fn written(rows: &[Row], axes: &[&str]) -> String {
    let axes: Vec<String> = axes.iter().map(|axis| axis.to_string()).collect();
    let mut text = Vec::new();
    csv::write(rows, &axes, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn read(text: &str) -> Result<Vec<Row>, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.csv");
    std::fs::write(&file, text).unwrap();
    csv::read(&file).map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

#[test]
fn fixed_columns_keep_their_order() {
    let header = written(&[], &["train.batch_size"]);
    let columns: Vec<&str> = header.trim_end().split(',').collect();
    let fixed = "experiment, run_id, strategy, repeat, status, device, model, parameters, batch_size, \
                 micro_batch, precision, predicted_peak_bytes, peak_bytes, reserved_peak_bytes, \
                 external_peak_bytes, start_peak_bytes, parameter_bytes, cast_bytes, master_weight_bytes, \
                 gradient_bytes, optimizer_bytes, activation_bytes, input_bytes, workspace_bytes, \
                 communication_bytes, host_peak_bytes, step_ms_median, step_ms_p90, tokens_per_s, \
                 samples_per_s, data_wait_ms, loss_first, loss_last, loss_eval, recompute_flops, effects, \
                 no_effect, message, version, step_ms_min, step_ms_ci95, warmup_steps, steps, \
                 forward_peak_bytes, backward_peak_bytes, update_peak_bytes, evaluation_peak_bytes, \
                 predicted_reserved_peak_bytes, host_reserved_peak_bytes, limit_bytes, limited, \
                 fits_micro_batch, model_flops, hardware_flops, micro_batches, oom_phase, oom_operation, \
                 oom_value, oom_requested_bytes, oom_short_bytes, threads, load, clock_mhz, digest, \
                 configuration, startup_ms, product_flops_per_s, copy_bytes_per_s, emulated, context_bytes, \
                 skipped_steps, loss_scale, profiled_step_ms, external_step_bytes, products_timed, \
                 products_cached, products_stored, products_untimed";
    let fixed: Vec<&str> = fixed.split(", ").collect();
    assert_eq!(columns[..fixed.len()], fixed, "what is new follows");
    assert_eq!(columns.last(), Some(&"train.batch_size"));
    assert!(!columns.contains(&"axes"));
}

#[test]
fn cells_are_never_formulas_and_read_back() {
    let names =
        ["=cmd|' /C calc'!A0", "-lean", "+more", "@home", "'=quoted", "\t=x", "\n=x", "-", "it's", "'", "-1"];
    for name in names.into_iter().chain(["+1", "+1e5", "+inf", "-inf", "-infinity", "-.5"]) {
        let mut named = row(name);
        named.axes = vec![("train.clip_norm".into(), "-0.5".into()), ("note".into(), name.into())];
        let text = written(std::slice::from_ref(&named), &[]);
        for record in ::csv::Reader::from_reader(text.as_bytes()).records() {
            for cell in &record.unwrap() {
                let is_number = |cell: &str| cell.chars().all(|c| c.is_ascii_digit() || ".e-".contains(c));
                let begins = cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
                assert!(!begins || cell.starts_with('-') && is_number(cell), "{cell}");
            }
        }
        assert!(text.contains(",-0.5,"), "numbers stay numbers: {text}");
        let read = read(&text).unwrap();
        assert_eq!((read[0].strategy.as_str(), &read[0].axes), (name, &named.axes));
    }
}

#[test]
fn unknown_figures_are_empty_cells() {
    let mut unknown = row("fp32");
    unknown.peak_bytes = None;
    unknown.loss_eval = Some(f64::NAN);
    let text = written(&[unknown], &[]);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let cell = |column| lines[1][lines[0].iter().position(|name| *name == column).unwrap()];
    assert_eq!(cell("peak_bytes"), "");
    assert_eq!(cell("loss_eval"), "");
    assert_eq!(cell("master_weight_bytes"), "0");
    let rows = read(&text).unwrap();
    assert_eq!(
        (rows[0].peak_bytes, rows[0].loss_eval, rows[0].live[Role::MasterWeight]),
        (None, None, Some(0))
    );
}

#[test]
fn swept_keys_follow_fixed_columns() {
    let mut first = row("fp32");
    first.axes = vec![("train.batch_size".into(), "8".into())];
    let mut second = row("bf16/precision=bf16");
    second.axes = vec![("train.batch_size".into(), "8".into()), ("precision".into(), "\"bf16\"".into())];
    let rows = vec![first, second];
    let text = written(&rows, &["train.batch_size"]);
    // `precision` is also a fixed column, so the swept key gets a prefix.
    assert!(text.lines().next().unwrap().ends_with(",train.batch_size,sweep.precision"), "{text}");
    assert_eq!(read(&text).unwrap(), rows);
}

#[test]
fn errors_name_file_line_and_column() {
    let good = written(&[row("a"), row("b")], &[]);
    let mut errors = vec![
        read(&good.replacen("b-id,b,0,ok", "b-id,b,0,fine", 1)),
        read(&good.replacen("b-id,b,0,ok", "b-id,b,-1,ok", 1)),
        read(&good.replacen("run_id", "identity", 1)),
        read(&good.replacen("run_id", "strategy", 1)),
        read("name,age\nx,1\n"),
        read(""),
        read(&format!("{good}one,cell\n")),
    ];
    errors.push(csv::read(std::path::Path::new("no/such.csv")).map_err(|error| error.to_string()));
    let errors: Vec<String> = errors.into_iter().map(Result::unwrap_err).collect();
    // Independent of the number of columns.
    let all = format!("a header of {}", good.lines().next().unwrap().split(',').count());
    insta::assert_snapshot!(errors.join("\n").replace(&all, "a header of ALL"));
}

#[test]
fn optional_columns_may_be_missing() {
    let text = written(&[row("a")], &[]).replacen(",clock_mhz,", ",clock,", 1);
    let rows = read(&text).unwrap();
    assert_eq!(rows[0].clock_mhz, None);
    assert_eq!(rows[0].axes, [("clock".to_string(), "2400.0".to_string())]);
}

#[test]
fn file_is_replaced_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.csv");
    csv::write_file(&file, &[row("old")], &[]).unwrap();
    csv::write_file(&file, &[row("new")], &[]).unwrap();
    assert_eq!(csv::read(&file).unwrap()[0].strategy, "new");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    let nowhere = folder.path().join("none/results.csv");
    let error = csv::write_file(&nowhere, &[row("new")], &[]).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot write {}: ", nowhere.display())), "{error}");
}

#[test]
fn row_reads_back_from_json() {
    let text = serde_json::to_string(&row("fp32")).unwrap();
    assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row("fp32"));
    let error = |text: &str| serde_json::from_str::<Row>(text).unwrap_err().to_string();
    for unknown in ["surprise", "measured", "live"] {
        let text = text.replacen('{', &format!("{{\"{unknown}\":{{}},"), 1);
        assert!(error(&text).contains(&format!("unknown field `{unknown}`")), "{}", error(&text));
    }
    let wrong = text.replacen("\"parameter_bytes\":43200000", "\"parameter_bytes\":\"much\"", 1);
    assert!(error(&wrong).starts_with("`parameter_bytes`: invalid type"), "{}", error(&wrong));
}

proptest! {
    #[test]
    fn any_rows_read_back_equal(rows in prop::collection::vec(any_row(), 0..4)) {
        prop_assert_eq!(&read(&written(&rows, &[])).unwrap(), &rows);
        for row in rows {
            let text = serde_json::to_string(&row).unwrap();
            prop_assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
        }
    }
}
