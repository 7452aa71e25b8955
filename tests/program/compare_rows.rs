//! How a comparison uses the rows it is given, and conclusions that it must not draw.

use crate::rows::{SetFigures, repeated, row};
use compare::{Format, Options};
use results::{Row, Status, csv};

fn rendered(rows: &[Row], format: Format) -> String {
    compare::render(rows, &Options::default(), format).unwrap().to_string()
}

fn skipped(strategy: &str) -> Row {
    let reason = "accumulate = 3 does not divide train.batch_size = 8";
    let (strategy, message) = (strategy.into(), reason.into());
    Row { experiment: "gpt-mini".into(), strategy, message, status: Status::Skipped, ..Row::default() }
}

/// The medians of tokens and of samples per second belong to the same repeat.
#[test]
fn speeds_come_from_one_repeat() {
    let repeat = |(repeat, speed): (usize, f64)| {
        let mut row = row("plain");
        row.repeat = repeat;
        row.set_speed(speed);
        row
    };
    let rows: Vec<Row> = [4000.0, 4400.0, 4100.0].into_iter().enumerate().map(repeat).collect();
    for counted in [3, 2] {
        let table = rendered(&rows[..counted], Format::Csv);
        let mut table = ::csv::Reader::from_reader(table.as_bytes());
        let columns = table.headers().unwrap().clone();
        let [row] = &table.records().map(Result::unwrap).collect::<Vec<_>>()[..] else { panic!("one row") };
        let figure = |column: &str| -> f64 {
            row[columns.iter().position(|other| other == column).unwrap()].parse().unwrap()
        };
        let median = if counted == 3 { 4100.0 } else { 4200.0 };
        assert_eq!((figure("tokens_per_s"), figure("samples_per_s")), (median, median / 256.0));
    }
}

/// A run that pads less is as fast with fewer tokens per second.
#[test]
fn speeds_leave_out_padding() {
    let of = |strategy: &str, speed: f64, padding: f64| {
        let mut row = row(strategy);
        row.set_speed(speed);
        row.padding = Some(padding);
        row
    };
    let table = rendered(&[of("plain", 4000.0, 0.75), of("shorter", 2000.0, 0.5)], Format::Table);
    assert_eq!(table.matches("  1.0k  ").count(), 2, "{table}");
}

/// The baseline may be any row, also after writing and reading a file; without a row of it, the first strategy is used.
#[test]
fn ratios_use_baseline_of_file() {
    let of = |strategy: &str| Row { baseline: "plain".into(), ..row(strategy) };
    let file = tempfile::NamedTempFile::new().unwrap();
    csv::write_file(file.path(), &[of("recompute"), of("plain")], &[]).unwrap();
    let read = csv::read(file.path()).unwrap();
    assert!(rendered(&read, Format::Table).contains("base plain"), "{}", rendered(&read, Format::Table));
    let swept = [of("recompute"), of("plain/accumulate=2")];
    assert!(rendered(&swept, Format::Table).contains("base plain/accumulate=2"));
    let without = [of("recompute"), of("accumulate")];
    assert!(rendered(&without, Format::Table).contains("base recompute"));
}

/// Tables from before the column `baseline` and the columns after it.
#[test]
fn table_without_baselines_is_read() {
    let mut table = Vec::new();
    csv::write(&[row("recompute")], &[], &mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    let old: Vec<&str> = table.lines().map(|line| line.rsplitn(45, ',').last().unwrap()).collect();
    let last = ",baseline,trainable_parameters,host_limit_bytes,oom_pool,oom_other_short_bytes,pinned_peak_bytes,\
                first_step_ms,all_reserved_peak_bytes,unchanged_parameters,\
                leaked_bytes,steps_until_oom,oom_in_pieces_bytes,oom_largest_piece_bytes,\
                seed,sweep,looks,cpu_wait,clock_after_mhz,estimated_step_ms,padding,batch_bytes,loading_hidden,batches_ahead,\
                settings,torch_peak_bytes,torch_reserved_peak_bytes,torch_fits_micro_batch,torch_fits,torch_limit_bytes,\
                instruction_set,oom_step,rounding_bytes,predicted_first_step_peak_bytes,estimated_fits_tokens_per_s,\
                stream_dtype,table_dtype,torch_program,buffer_bytes,accuracy,\
                ranks,rank_peak_bytes,sent_bytes,exchange_ms,exchange_hidden,process_bytes,estimated_exchange_ms";
    assert!(table.lines().next().unwrap().ends_with(last), "these are the last columns: {table}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), old.join("\n")).unwrap();
    assert!(rendered(&csv::read(file.path()).unwrap(), Format::Table).contains("base recompute"));
}

#[test]
fn skipped_point_keeps_model_in_heading() {
    let table = rendered(&[skipped("accumulate"), row("plain")], Format::Table);
    let heading = "gpt-mini  transformer 6x384 heads 6 T 256  batch 8 | ";
    assert!(table.starts_with(heading), "{table}");
}

#[test]
fn micro_batch_of_0_is_shown_if_nothing_fits() {
    let mut none = row("plain");
    (none.status, none.fits_micro_batch) = (Status::Oom, Some(0));
    let table = rendered(&[none], Format::Table);
    let line = table.lines().find(|line| line.starts_with("x plain")).unwrap();
    assert!(table.contains(" fits "), "{table}");
    assert!(line.split_whitespace().any(|cell| cell == "0"), "{line}");
}

/// A strategy without effect equals the other strategy: any difference in speed is noise.
#[test]
fn strategy_without_effect_is_never_fastest() {
    let idle = |speed: f64| {
        let mut idle = row("idle");
        idle.no_effect = "release".into();
        idle.set_speed(speed);
        idle
    };
    for speed in [3000.0, 4000.0, 5000.0] {
        let table = rendered(&repeated(&[row("plain"), idle(speed)], 6), Format::Table);
        assert!(!table.contains("idle is the fastest"), "{table}");
        let marked = table.lines().find(|line| line.contains("NO EFFECT")).unwrap();
        assert!(marked.starts_with('!'), "not on the front: {table}");
    }
    // With a different memory use, its keys have some effect, and it can be the fastest.
    let mut other = idle(5000.0);
    other.set_memory(150.0);
    let table = rendered(&repeated(&[row("plain"), other], 6), Format::Table);
    assert!(table.contains("idle is the fastest"), "{table}");
}

/// The table tells training loss from evaluation loss and never compares one with the other.
#[test]
fn training_loss_is_labelled() {
    let of = |strategy: &str, evaluation: Option<f64>, training: f64| {
        let mut row = row(strategy);
        (row.loss_eval, row.loss_last) = (evaluation, Some(training));
        row
    };
    let told = "dloss: change of the last step's training loss: there is no evaluation";
    let evaluated = [of("plain", Some(3.0), 2.0), of("lean", Some(3.3), 2.0)];
    let table = rendered(&evaluated, Format::Table);
    assert!(table.contains("+10.0%") && !table.contains(told) && !table.contains("last training"), "{table}");
    // A difference in either direction may be chance.
    let trained = [of("plain", None, 2.0), of("lean", None, 2.2), of("8bit", None, 1.9)];
    let table = rendered(&trained, Format::Table);
    let flat = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(table.contains(told) && !table.contains("Check convergence"), "{table}");
    assert!(flat.contains("The loss of lean (+10.0%) and 8bit (-5.00%) differs"), "{table}");
    assert!(flat.contains("add `[evaluation]` and several repeats with `seeds = \"vary\"`"), "{table}");
    let trained = [of("plain", None, 2.0), of("lean", None, 2.2)];
    let mixed = rendered(&[of("plain", Some(3.0), 2.0), of("lean", None, 2.2)], Format::Table);
    assert!(!mixed.contains("dloss"), "{mixed}");
    let kinds = |rows: &[Row]| rendered(rows, Format::Json).matches("\"loss_of\": \"training\"").count();
    assert_eq!((kinds(&evaluated), kinds(&trained)), (0, 2));
}

/// Losses after other numbers of steps, of other batches or of other data are not compared.
#[test]
fn losses_of_unequal_training_are_not_compared() {
    let settings = "[model.transformer]; context = 256; [data.text]; split = 0.9; [evaluation]; batches = 2";
    let of = |strategy: &str| {
        let mut row = Row { settings: settings.into(), ..row(strategy) };
        row.loss_eval = Some(3.0);
        row
    };
    let with = |change: &dyn Fn(&mut Row)| {
        let mut other = of("other");
        other.loss_eval = Some(3.3);
        change(&mut other);
        rendered(&[of("plain"), other], Format::Table).contains("+10.0%")
    };
    assert!(with(&|_| {}));
    assert!(with(&|row| row.settings.clear()), "unknown counts as equal");
    assert!(with(&|row| row.settings.push_str("; every = 5")), "when it is evaluated");
    assert!(!with(&|row| row.steps = Some(40)));
    assert!(!with(&|row| row.warmup_steps = Some(1)));
    assert!(!with(&|row| row.batch_size = Some(16)));
    for (from, to) in [("batches = 2", "batches = 4"), ("split = 0.9", "split = 0.8"), ("256", "512")] {
        assert!(!with(&|row| row.settings = row.settings.replace(from, to)), "{to}");
    }
}

/// The same training on processors with other units differs in the last digits.
#[test]
fn instruction_sets_are_not_different_training() {
    let with = |strategy: &str, set: &str| {
        let mut row = row(strategy);
        row.instruction_set = set.into();
        row.digest = format!("digest of {set}");
        row
    };
    let mut repeats = [with("plain", "amx"), with("plain", "avx512_bf16"), with("lean", "amx")];
    repeats[1].repeat = 2;
    let table = rendered(&repeats, Format::Table);
    let flat = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("several instruction sets (amx, avx512_bf16): the same training then differs"),
        "{table}"
    );
    let json = rendered(&repeats, Format::Json);
    assert_eq!(json.matches("\"strategy\": \"plain\"").count(), 1, "one run: {json}");
    assert!(!rendered(&[with("plain", "amx"), with("lean", "amx")], Format::Table).contains("instruction"));
}

/// Tables of other programs need only a few columns; lines with the same strategy are its repeats.
#[test]
fn tables_of_other_programs_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    csv::write_file(&folder.path().join("ours.csv"), &repeated(&[row("plain"), row("lean")], 6), &[])
        .unwrap();
    write(
        "torch.csv",
        "strategy,peak_bytes,tokens_per_s\nplain,314572800,3000\nplain,314572800,3100\neager,,2000\n",
    );
    let compare = |files: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_runner"));
        let output = command.arg("compare").args(files).current_dir(folder.path()).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, beside, _) = compare(&["ours.csv", "torch.csv", "--columns", "memory,speed,xspeed,repeats"]);
    assert_eq!(code, Some(0));
    insta::assert_snapshot!(beside);
    let (code, alone, _) = compare(&["torch.csv"]);
    assert_eq!(code, Some(0));
    assert!(alone.starts_with("torch | 1 to 2 repeats | base plain"), "{alone}");
    write("names.csv", "strategy,when\nplain,today\n");
    let (code, _, error) = compare(&["names.csv"]);
    assert!(code == Some(2) && error.contains("is not a table of results"), "{error}");
}
