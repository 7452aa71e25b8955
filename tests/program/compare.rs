//! Whole comparison tables.

use crate::rows::{MIB, SetFigures, any_row, repeated, row};
use compare::{CompareError, Comparison, Format, Options, Sort, WIDTH};
use device::{ByRole, Role};
use proptest::prelude::*;
use results::{Row, Status, csv};
use unicode_width::UnicodeWidthStr;

fn table_of(rows: &[Row], options: &Options) -> String {
    let table = compare::render(rows, options, Format::Table).unwrap().to_string();
    assert_narrow(&table, options.width.unwrap_or(WIDTH));
    table
}

fn rendered(rows: &[Row], format: Format) -> String {
    compare::render(rows, &Options::default(), format).unwrap().to_string()
}

fn planned(rows: &[Row]) -> String {
    let table = compare::render_planned(rows, &Options::default(), Format::Table).unwrap().to_string();
    assert_narrow(&table, WIDTH);
    table
}

fn table(rows: &[Row]) -> String {
    table_of(rows, &Options::default())
}

fn assert_narrow(table: &str, most: usize) {
    for line in table.lines() {
        assert!(line.width() <= most, "{} columns: {line}", line.width());
    }
}

/// A row of a sweep over the batch size.
fn at_batch(batch: usize, strategy: &str, mib: f64, speed: f64) -> Row {
    let mut row = row(strategy);
    row.run_id = format!("{strategy}-{batch}");
    row.batch_size = Some(batch);
    row.axes = vec![("train.batch_size".into(), batch.to_string())];
    row.set_memory(mib);
    row.set_speed(speed);
    row
}

fn out_of_memory(mut row: Row, short: u64) -> Row {
    row.status = Status::Oom;
    row.peak_bytes = None;
    row.external_peak_bytes = None;
    row.tokens_per_s = None;
    row.samples_per_s = None;
    row.step_ms_median = None;
    row.loss_eval = None;
    row.loss_last = None;
    row.oom_phase = Some("forward".into());
    row.oom_operation = Some("head linear".into());
    row.oom_value = Some("logits".into());
    row.oom_requested_bytes = Some(short * 2);
    row.oom_short_bytes = Some(short);
    row
}

fn ended(strategy: &str, status: Status, message: &str) -> Row {
    let mut row = row(strategy);
    row.status = status;
    row.message = message.into();
    row.peak_bytes = None;
    row.external_peak_bytes = None;
    row.tokens_per_s = None;
    row.samples_per_s = None;
    row.step_ms_median = None;
    row.loss_eval = None;
    row.loss_last = None;
    row
}

fn quickstart() -> Vec<Row> {
    let mut rows = Vec::new();
    for (batch, scale) in [(8, 1.0), (16, 1.9)] {
        let mut plain = at_batch(batch, "plain", 412.0 * scale, 4010.0);
        plain.effects = "1 micro-batch".into();
        let mut recompute = at_batch(batch, "recompute", 201.0 * scale, 3120.0);
        recompute.effects = "+31% FLOPs recomputed".into();
        let mut accumulate = at_batch(batch, "accumulate", 240.0 * scale, 3860.0);
        accumulate.effects = "4 micro-batches".into();
        accumulate.loss_eval = Some(3.200_64);
        let mut zero = at_batch(batch, "zero", 455.0 * scale, 3990.0);
        zero.effects = "43.2 MB kept between steps".into();
        let mut idle = at_batch(batch, "no-grad", 412.0 * scale, 4020.0);
        idle.no_effect = "evaluation_pass".into();
        rows.extend([plain, recompute, accumulate, zero, idle]);
    }
    rows
}

#[test]
fn sweep_is_grouped_by_axis() {
    insta::assert_snapshot!(table(&repeated(&quickstart(), 6)));
}

/// A narrow terminal, which drops the least important columns, and a wide one.
#[test]
fn tables_fit_terminal_width() {
    let mut rows = quickstart();
    rows.iter_mut().for_each(|row| row.micro_batch = row.batch_size.map(|batch| batch / 4));
    let rows = repeated(&rows, 6);
    let at = |width| table_of(&rows, &Options { width: Some(width), ..Options::default() });
    insta::assert_snapshot!([80, 160].map(at).join("\n"));
}

/// Speeds of one repeat are shown but not ranked, and the text gives the number of repeats that a ranking needs.
#[test]
fn single_round_is_not_ranked() {
    insta::assert_snapshot!(table(&quickstart()));
}

#[test]
fn repeats_merge_into_confidence_interval() {
    let mut rows = Vec::new();
    for (repeat, drift) in [0.99, 1.0, 1.004, 1.01, 0.985, 0.9, 0.8].into_iter().enumerate() {
        for (strategy, mib, speed) in [("fp32", 13_824.0, 52_000.0), ("bf16", 7885.0, 412_000.0)] {
            let mut row = at_batch(16, strategy, mib, speed * drift);
            row.repeat = repeat;
            row.device = "NVIDIA H200".into();
            row.limited = true;
            row.limit_bytes = Some(24 << 30);
            row.threads = Some(1);
            rows.push(row);
        }
    }
    rows[13].status = Status::Failed;
    insta::assert_snapshot!(table(&rows));
}

#[test]
fn baseline_out_of_memory_is_still_used() {
    let mut rows = vec![
        out_of_memory(at_batch(16, "fp32", 26_112.0, 1.0), 2_254_857_830),
        at_batch(16, "bf16", 7885.0, 412_000.0),
        at_batch(16, "recompute", 3600.0, 331_000.0),
    ];
    for row in &mut rows {
        row.limited = true;
        row.limit_bytes = Some(24 << 30);
    }
    insta::assert_snapshot!(table(&rows));
}

#[test]
fn keys_without_effect_and_aliases_are_marked() {
    let mut idle = row("empty-cache");
    idle.no_effect = "empty_cache".into();
    idle.effects = "0 B returned".into();
    let mut twin = row("eager");
    twin.run_id = "plain-id".into();
    let mut small = row("recompute");
    small.set_memory(120.0);
    small.set_speed(3000.0);
    insta::assert_snapshot!(table(&repeated(&[row("plain"), twin, idle, small], 6)));
}

#[test]
fn noisy_speed_is_marked_and_not_ranked() {
    let mut noisy = row("offload");
    noisy.set_memory(150.0);
    noisy.effects = "4% of copies hidden".into();
    noisy.steps = Some(5);
    let mut rows = repeated(&[row("plain"), noisy], 7);
    for (at, row) in rows.iter_mut().filter(|row| row.strategy == "offload").enumerate() {
        row.set_speed([4300.0, 3900.0, 4500.0, 4200.0, 3700.0, 4800.0, 4400.0][at]);
    }
    insta::assert_snapshot!(table(&rows));
}

/// Speeds of one row in seven rounds around its median, within +-`spread` of it.
fn spread_out(rows: &mut [Row], strategy: &str, speed: f64, spread: f64) {
    for (at, row) in rows.iter_mut().filter(|row| row.strategy == strategy).enumerate() {
        row.set_speed(speed * (1.0 + spread * [0.2, -0.7, 1.0, 0.0, -1.0, 0.5, -0.4][at]));
    }
}

/// The mark and the name of each row of a table.
fn marks(table: &str) -> Vec<(String, String)> {
    let rows = table.lines().skip_while(|line| !line.contains("strategy")).skip(1);
    let rows = rows.take_while(|line| !line.is_empty());
    rows.map(|line| {
        let (mark, rest) = line.split_at(2);
        (mark.trim().to_owned(), rest.split_whitespace().next().unwrap_or_default().to_owned())
    })
    .collect()
}

/// Three times the memory for no measurable speed is no choice, however wide the interval.
#[test]
fn more_memory_without_measurable_speed_is_not_on_the_front() {
    for (speed, spread) in [(4000.0, 0.01), (4000.0, 0.12), (4300.0, 0.12), (3800.0, 0.12)] {
        let mut large = row("large");
        large.set_memory(600.0);
        let mut small = row("small");
        small.set_memory(100.0);
        small.set_speed(2000.0);
        let mut fast = row("fast");
        fast.set_memory(400.0);
        fast.set_speed(6000.0);
        let mut rows = repeated(&[row("plain"), large, small, fast], 7);
        spread_out(&mut rows, "large", speed, spread);
        let table = table(&rows);
        let starred: Vec<String> =
            marks(&table).into_iter().filter(|(mark, _)| mark.contains('*')).map(|(_, name)| name).collect();
        assert_eq!(starred, ["plain", "small", "fast"], "{speed} +-{spread}:\n{table}");
    }
}

/// Every row is level with a noisy baseline; `small` is slower than `large` in each round.
#[test]
fn verdict_agrees_with_rows_marked_equal() {
    let mut large = row("large");
    large.set_memory(300.0);
    large.set_speed(4400.0);
    let mut small = row("small");
    small.set_memory(100.0);
    small.set_speed(3600.0);
    let mut rows = repeated(&[row("plain"), large, small], 7);
    spread_out(&mut rows, "plain", 4000.0, 0.3);
    let said = table(&rows);
    assert!(!said.contains("of that speed"), "{said}");
    assert!(said.contains("No measurable difference in speed; small needs the least memory"), "{said}");

    // A faster row: `small` is level with the baseline, and slower than `fast`.
    let mut fast = row("fast");
    fast.set_memory(300.0);
    fast.set_speed(6000.0);
    let mut small = row("small");
    small.set_memory(100.0);
    let said = table(&repeated(&[row("plain"), fast, small], 7));
    assert!(said.contains("fast is the fastest (") && !said.contains("of that speed"), "{said}");
    assert!(said.contains("0.50 of plain), as fast as plain within the noise."), "{said}");
}

/// Causes: other processes used the CPU, the clock changed, or one repeat is an outlier.
#[test]
fn disturbed_speeds_are_marked() {
    let mut rows = repeated(&[row("plain"), row("busy"), row("hot"), row("odd")], 7);
    rows[5].cpu_wait = Some(0.31);
    rows[6].clock_after_mhz = Some(2100.0);
    rows[15].set_speed(3000.0);
    insta::assert_snapshot!(table(&rows));
}

/// Runs of different sweeps may differ only because they were measured at different times.
#[test]
fn runs_not_interleaved_are_not_ranked() {
    let mut slow = row("slow");
    slow.set_speed(3000.0);
    let mut rows = repeated(&[row("plain"), slow], 8);
    for row in &mut rows {
        row.sweep = if row.strategy == "slow" { "later" } else { "first" }.into();
    }
    insta::assert_snapshot!(table(&rows));
}

/// A sweep that was interrupted within a round and continued: its last round lacks the baseline.
#[test]
fn interrupted_round_is_told_with_its_remedy() {
    let interrupted = |repeats: usize, round: usize| {
        let mut rows = repeated(&[row("plain"), row("lean"), row("bf16")], repeats);
        for row in &mut rows {
            let is_after = row.repeat > round || row.repeat == round && row.strategy != "plain";
            row.sweep = if is_after { "second" } else { "first" }.into();
        }
        table(&rows)
    };
    for round in [1, 4, 6] {
        let table = interrupted(6, round);
        let flat = table.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = "lean and bf16 share only 5 rounds with the baseline, and an interval needs 6: repeats that an \
                    interruption or another sweep separates are not paired. `--repeats 7` adds the missing rounds.";
        assert!(flat.contains(said) && !flat.contains("cannot rank speeds within"), "{table}");
    }
    assert!(!interrupted(7, 4).contains("interruption"), "six rounds suffice");
    // Too few in any case: the advice counts the unpaired round.
    let table = interrupted(3, 2);
    assert!(!table.contains("interruption") && table.contains("`--repeats 7` would"), "{table}");
}

/// Repeats with different seeds show how much of a difference is random.
#[test]
fn loss_has_interval_if_seeds_vary() {
    let of = |strategy: &str, by: f64| {
        let mut row = row(strategy);
        row.loss_eval = Some(3.2 * by);
        row
    };
    let mut rows = repeated(&[of("plain", 1.0), of("bf16", 1.001), of("worse", 1.02)], 7);
    for (at, row) in rows.iter_mut().enumerate() {
        row.seed = Some(row.repeat as u64);
        let luck = [0.0, 0.004, -0.005, 0.006, -0.003, 0.002, -0.001][at * 5 % 7];
        row.loss_eval = row.loss_eval.map(|loss| loss * (1.0 + luck));
    }
    insta::assert_snapshot!(table(&rows));
}

#[test]
fn failed_runs_show_reason() {
    let mut diverged = row("fp16");
    diverged.status = Status::Diverged;
    diverged.message = "the loss was inf at step 7".into();
    diverged.loss_eval = None;
    diverged.loss_last = None;
    insta::assert_snapshot!(table(&[
        row("plain"),
        ended("in-backward", Status::Skipped, "update = \"in_backward\" cannot clip by the global norm"),
        ended("slow", Status::Timeout, "no step finished within 60 s"),
        ended("broken", Status::Failed, "the child process was killed by signal 9"),
        ended("stopped", Status::Interrupted, ""),
        diverged,
    ]));
}

#[test]
fn long_names_are_shortened_and_keep_their_ends() {
    let mut rows = Vec::new();
    for n in [1, 2, 4] {
        let name = format!("bf16-recompute-with-host-offload-and-a-very-long-name/accumulate={n}");
        let mut row = at_batch(8, &name, 300.0 / f64::from(n), 4000.0 / f64::from(n));
        row.axes.push(("accumulate".into(), n.to_string()));
        row.effects = "a effects that is longer than there is any room for beside such a name".into();
        row.model = "a model whose description goes on and on ".repeat(4);
        rows.push(row);
    }
    rows.push(at_batch(8, "日本語の名前がとても長い戦略の名前です", 500.0, 100.0));
    insta::assert_snapshot!(table(&rows));
}

#[test]
fn axes_and_machines_form_groups() {
    let mut rows = Vec::new();
    for device in ["AMD EPYC 9V74", "NVIDIA H200"] {
        for context in ["256", "1024"] {
            for strategy in ["plain", "recompute"] {
                let mut row = at_batch(8, strategy, 300.0, 4000.0);
                if strategy == "recompute" {
                    row.set_memory(200.0);
                    row.set_speed(3000.0);
                }
                row.device = device.into();
                row.run_id = format!("{device}{context}{strategy}");
                row.axes.push(("model.transformer.context".into(), context.into()));
                rows.push(row);
            }
        }
    }
    insta::assert_snapshot!(table(&rows));
}

#[test]
fn mixed_versions_are_reported() {
    let mut newer = row("recompute");
    newer.version = "0.2.0".into();
    newer.set_memory(100.0);
    newer.set_speed(3000.0);
    insta::assert_snapshot!(table(&[row("plain"), newer]));
}

#[test]
fn abnormal_figures_get_columns() {
    let mut plain = row("plain");
    plain.data_wait_ms = plain.step_ms_median.map(|ms| ms * 0.12);
    let mut host = row("host-init");
    host.start_peak_bytes = host.peak_bytes.map(|bytes| bytes * 2);
    host.evaluation_peak_bytes = host.backward_peak_bytes.map(|bytes| bytes + (10 << 20));
    let mut leak = row("leak");
    leak.external_peak_bytes = leak.external_peak_bytes.map(|bytes| bytes + (8 << 20));
    let mut missed = row("missed");
    missed.predicted_peak_bytes = Some(180 << 20);
    missed.loss_eval = Some(3.4);
    insta::assert_snapshot!(table(&[plain, host, leak, missed]));
}

#[test]
fn trained_column_is_shown_if_layers_are_frozen() {
    let trains = |strategy, numbers| Row { trainable_parameters: Some(numbers), ..row(strategy) };
    let all = trains("plain", 10_800_000);
    assert!(!table(std::slice::from_ref(&all)).contains("trained"));
    let table = table(&[all, trains("frozen", 7_100_000), row("older")]);
    assert!(table.contains(" trained ") && table.contains(" 10.8M") && table.contains(" 7.10M"), "{table}");
}

/// Ratios, verdict and legend tell live bytes from reserved ones. Only a difference that the table can show counts.
#[test]
fn reserved_memory_is_shown_if_it_differs() {
    let reserves = |strategy: &str, live: f64, reserved: u64| {
        let mut row = row(strategy);
        row.set_memory(live);
        (row.reserved_peak_bytes, row.predicted_reserved_peak_bytes) =
            (Some(reserved * MIB), Some(reserved * MIB));
        row
    };
    let plain = table(&[row("plain"), reserves("same", 200.0, 200)]);
    assert!(!plain.contains("reserved  "), "{plain}");
    assert!(plain.contains("within the memory limit, by reserved bytes"), "{plain}");

    let rows = [reserves("cached", 200.0, 260), reserves("split", 200.0, 230), reserves("arena", 200.0, 200)];
    let measured = table(&repeated(&rows, 6));
    for part in [
        " MiB  reserved ",
        "MiB: live bytes at the peak",
        "xmem: ratio of live peaks",
        "arena needs the least memory (",
    ] {
        assert!(measured.contains(part), "{part}: {measured}");
    }
    let cells: Vec<&str> =
        measured.lines().find(|line| line.contains("cached ")).unwrap().split_whitespace().collect();
    assert!(cells.windows(2).any(|pair| pair == ["200", "260"]), "{measured}");
    let planned = planned(&rows).replace("\n  ", " ");
    for part in [
        " MiB  reserved ",
        "arena needs the least memory: 200 MiB, 0.77 of the reserved bytes of cached.",
        "By reserved bytes, the smallest sufficient limit is 200 MiB (arena)",
    ] {
        assert!(planned.contains(part), "{part}: {planned}");
    }
    for format in [Format::Markdown, Format::Csv, Format::Json] {
        let planned = compare::render_planned(&rows, &Options::default(), format).unwrap().to_string();
        assert!(planned.contains("reserved"), "{planned}");
    }
}

/// Less reserved memory is a saving, even with the same live memory and less speed.
#[test]
fn strategy_that_reserves_less_is_not_dropped() {
    let mut emptied = row("emptied");
    (emptied.reserved_peak_bytes, emptied.predicted_reserved_peak_bytes) = (Some(210 * MIB), Some(210 * MIB));
    let mut cached = row("cached");
    (cached.reserved_peak_bytes, cached.predicted_reserved_peak_bytes) = (Some(260 * MIB), Some(260 * MIB));
    emptied.set_speed(3000.0);
    let table = table(&repeated(&[cached, emptied], 6));
    assert!(!table.contains("drop it"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("* emptied")), "{table}");
}

/// The step of a failed request, and the first step's own peak if a later one fails.
#[test]
fn step_that_ran_out_of_memory_is_shown() {
    let at_step = |strategy: &str, step: u64| {
        let mut row = out_of_memory(row(strategy), 300 << 20);
        row.oom_step = Some(step);
        row.predicted_first_step_peak_bytes = Some(if step > 1 { 120 * MIB } else { 200 * MIB });
        row
    };
    let rows = [row("plain"), at_step("eager", 1), at_step("lazy", 2)];
    for (table, verb) in [(table(&rows), "ran out of memory"), (planned(&rows), "does not fit")] {
        for part in [
            " step 1 ",
            "  step 1: 300 MiB short: lo",
            "  step 2: 300 MiB short: lo",
            &format!("eager {verb}: 300 MiB short for logits in forward of step 1."),
            &format!(
                "lazy {verb}: 300 MiB short for logits in forward of step 2; step 1 needs 120 MiB live."
            ),
        ] {
            let unwrapped = table.replace("\n  ", " ");
            assert!(table.contains(part) || unwrapped.contains(part), "{part}: {table}");
        }
    }
    let json = rendered(&rows, Format::Json);
    assert!(json.contains("\"oom_step\": 2"), "{json}");
}

/// For runs that ran out of memory and for runs that would have later.
#[test]
fn leaking_runs_show_steps_until_oom() {
    let leaks = |strategy, steps| Row { steps_until_oom: Some(steps), ..row(strategy) };
    let ran_out = out_of_memory(leaks("logits", 1), 300 << 20);
    let table = table(&[row("plain"), leaks("loss", 4_000), ran_out]);
    for said in [
        "  room for 4000 steps\n",
        "  after 1 step 300 MiB short: ",
        "logits ran out of memory after 1 step: ",
    ] {
        assert!(table.contains(said), "{table}");
    }
}

#[test]
fn start_columns_are_shown_if_they_differ() {
    let starts = |strategy, first_step_ms| {
        let mut row = row(strategy);
        row.first_step_ms = row.step_ms_median.map(|ms| ms + first_step_ms);
        row
    };
    let alike = table(&[starts("plain", 1000.0), starts("other", 1400.0)]);
    assert!(!alike.contains(" start ") && !alike.contains("first ms"), "{alike}");
    let brief = table(&[starts("plain", 10.0), starts("other", 90.0)]);
    assert!(!brief.contains("first ms"), "{brief}");
    let mut lazy = starts("lazy", 200.0);
    lazy.start_peak_bytes = Some(0);
    let table = table(&[starts("plain", 1000.0), lazy]);
    assert!(table.contains("first ms") && table.contains("start: peak before the first step"), "{table}");
}

/// The reading may differ by one allocation step of the driver plus 2 %, whatever the step of the GPU is.
#[test]
fn driver_reading_tolerates_its_granularity() {
    let said_off = |step: u64, off: u64| {
        let mut row = row("plain");
        let reserved = 256 * MIB;
        row.context_bytes = Some(500 * MIB);
        row.reserved_peak_bytes = Some(reserved);
        row.external_step_bytes = Some(step);
        row.external_peak_bytes = Some(reserved + reserved / 50 + off);
        table(&[row]).contains("The external reading disagrees with the counted bytes of plain")
    };
    for step in [2 * MIB, 32 * MIB] {
        assert!(!said_off(step, step), "within a step of {step}");
        assert!(said_off(step, step + 1), "beyond a step of {step}");
    }
}

#[test]
fn by_puts_axis_side_by_side() {
    let options = Options { by: Some("batch".into()), ..Options::default() };
    insta::assert_snapshot!(table_of(&repeated(&quickstart(), 6), &options));
}

#[test]
fn baseline_and_order_can_be_chosen() {
    let rows: Vec<Row> = quickstart().into_iter().take(5).collect();
    let options = Options { baseline: Some("recompute".into()), sort: Sort::Speed, ..Options::default() };
    insta::assert_snapshot!(table_of(&repeated(&rows, 6), &options));
}

/// The fastest strategy that fits, the gain from more memory, and the smallest sufficient limit.
#[test]
fn predictions_recommend_strategies() {
    let of = |strategy: &str, mib: f64, ms: Option<f64>| {
        let mut row = row(strategy);
        row.set_memory(mib);
        row.estimated_step_ms = ms;
        row
    };
    let too_large = |strategy: &str, mib: f64, ms: Option<f64>, short: u64| {
        let mut row = out_of_memory(of(strategy, mib, ms), short << 20);
        row.limit_bytes = Some(300 << 20);
        row.oom_pool = Some("device".into());
        row
    };
    let fp32 = too_large("fp32", 412.0, Some(12.0), 112);
    let bf16 = too_large("bf16", 320.0, Some(6.0), 20);
    let [lean, leaner] = [of("lean", 240.0, Some(15.0)), of("leaner", 200.0, Some(20.0))];
    let said = |rows: &[Row]| planned(rows).replace("\n  ", " ");
    let all = said(&[fp32.clone(), bf16.clone(), lean.clone(), leaner.clone()]);
    for sentence in [
        "Leaner needs the least memory: 200 MiB, 0.49 of fp32.",
        "The fastest strategy that fits, by estimate, is lean (15.0 ms per step, 0.80 of fp32's speed, which does not fit) in 240 MiB.",
        "With 20 MiB more, bf16 would fit, 2.50 times as fast.",
        "The smallest sufficient limit is 200 MiB (leaner).",
    ] {
        assert!(all.to_lowercase().contains(&sentence.to_lowercase()), "{sentence}: {all}");
    }
    // Speed is compared per sample: a step with more samples may take longer.
    let double = |row: &Row| Row { batch_size: row.batch_size.map(|size| 2 * size), ..row.clone() };
    let doubled = said(&[fp32.clone(), bf16.clone(), lean.clone(), double(&leaner)]);
    let sentence = "by estimate, is leaner (20.0 ms per step, 1.20 times fp32's speed, which does not fit)";
    assert!(doubled.contains(sentence), "{doubled}");
    // More memory for a slower strategy is not recommended.
    let slow = Row { estimated_step_ms: Some(30.0), ..bf16.clone() };
    assert!(!said(&[slow, lean.clone(), leaner.clone()]).contains("more, bf16 would fit"));
    // Without estimated times, only memory is mentioned.
    let blind = |row: &Row| Row { estimated_step_ms: None, ..row.clone() };
    let untimed = said(&[fp32, bf16, lean, leaner].each_ref().map(blind));
    assert!(
        untimed.contains("With 20 MiB more, bf16 would fit.") && !untimed.contains("estimate"),
        "{untimed}"
    );
}

#[test]
fn predictions_use_the_same_table() {
    let mut rows = quickstart();
    rows[5] = out_of_memory(rows[5].clone(), 300 << 20);
    rows[7].status = Status::Skipped;
    rows[7].message = "accumulate = 8 is more than train.batch_size = 6".into();
    rows[7].predicted_peak_bytes = None;
    rows[7].live = ByRole::default();
    rows[7].start_peak_bytes = None;
    rows[7].fits_micro_batch = None;
    for row in &mut rows {
        row.peak_bytes = None;
        row.external_peak_bytes = None;
        row.tokens_per_s = None;
        row.samples_per_s = None;
        row.step_ms_median = None;
        row.step_ms_ci95 = None;
        row.loss_eval = None;
        row.loss_last = None;
        row.effects = String::new();
    }
    let table = planned(&rows);
    insta::assert_snapshot!(table);
}

/// A model that counts tokens, beside one that counts only samples.
#[test]
fn speed_uses_unit_of_all_rows() {
    let (tokens, mut images) = (at_batch(8, "plain", 412.0, 4010.0), at_batch(8, "images", 412.0, 4010.0));
    images.tokens_per_s = None;
    assert!(table(&[tokens.clone(), at_batch(8, "more", 412.0, 4010.0)]).contains("tok/s"));
    for rows in [vec![images.clone()], vec![tokens, images]] {
        let table = table(&rows);
        assert!(table.contains("smp/s") && !table.contains("tok/s"), "{table}");
    }
}

#[test]
fn cast_column_is_shown_if_casts_exist() {
    let [plain, mut bf16] = [row("plain"), row("bf16")];
    bf16.live[Role::Cast] = Some(20 * MIB);
    let table = planned;
    assert!(!table(std::slice::from_ref(&plain)).contains("cast"));
    let table = table(&[plain, bf16]);
    let column = |strategy| {
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = table.lines().find(|line| line.contains(strategy)).map(cells).unwrap();
        let heading = table.lines().find(|line| line.contains("strategy")).map(cells).unwrap();
        line[heading.iter().position(|title| title == "cast").unwrap()].clone()
    };
    assert_eq!((column("  plain"), column("  bf16")), ("-".to_owned(), "20".to_owned()), "{table}");
    assert!(table.contains("cast: 16-bit copies of parameters"), "{table}");
}

#[test]
fn markdown_has_everything() {
    insta::assert_snapshot!(rendered(&repeated(&quickstart(), 6), Format::Markdown));
}

#[test]
fn json_and_csv_are_exact() {
    let rows: Vec<Row> = quickstart().into_iter().take(2).collect();
    insta::assert_snapshot!("json", rendered(&rows, Format::Json));
    insta::assert_snapshot!("csv", rendered(&rows, Format::Csv));
}

#[test]
fn duplicate_rows_are_merged() {
    let once = quickstart();
    assert_eq!(table(&[once.clone(), once.clone()].concat()), table(&once));
}

#[test]
fn each_experiment_has_its_own_table() {
    let mut other = row("plain");
    other.experiment = "other".into();
    let table = table(&[row("plain"), other]);
    assert_eq!(table.matches("strategy").count(), 2, "{table}");
}

#[test]
fn unknown_baseline_or_axis_is_an_error() {
    let error = |rows: &[Row], options: Options| Comparison::new(rows, &options).unwrap_err();
    assert_eq!(error(&[], Options::default()), CompareError::NoRows);
    let unknown = error(&quickstart(), Options { baseline: Some("fp23".into()), ..Options::default() });
    assert_eq!(
        unknown.to_string(),
        "`gpt-mini` has no strategy `fp23` to compare with; its strategies are: \
         plain, recompute, accumulate, zero, no-grad"
    );
    let unknown = error(&quickstart(), Options { by: Some("sede".into()), ..Options::default() });
    assert_eq!(unknown.to_string(), "`gpt-mini` does not sweep `sede`; it sweeps: train.batch_size");
}

#[test]
fn group_without_baseline_is_reported() {
    let rows = [at_batch(8, "plain", 300.0, 4000.0), at_batch(16, "recompute", 300.0, 3000.0)];
    let table = table(&rows);
    assert!(table.contains("The baseline plain is missing at batch 16."), "{table}");
}

#[test]
fn lower_startup_peak_counts_as_saving() {
    let mut host = row("host");
    host.start_peak_bytes = host.peak_bytes.map(|bytes| bytes * 2);
    let table = table(&[host, row("lazy")]);
    assert!(!table.contains("drop"), "{table}");
}

/// Exit code, standard output and standard error of `runner compare`.
fn command(folder: &std::path::Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_runner"))
        .arg("compare")
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn command_prints_library_output() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = row("plain");
    other.experiment = "other".into();
    csv::write_file(&folder.path().join("a.csv"), &quickstart(), &[]).unwrap();
    csv::write_file(&folder.path().join("b.csv"), &[other.clone()], &[]).unwrap();
    let rows = [quickstart(), vec![other]].concat();
    for (name, format) in [("table", Format::Table), ("csv", Format::Csv), ("json", Format::Json)] {
        let (code, out, err) = command(folder.path(), &["a.csv", "b.csv", "--format", name]);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert_eq!(out, rendered(&rows, format));
    }
}

#[test]
fn bad_input_is_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    csv::write_file(&folder.path().join("good.csv"), &quickstart(), &[]).unwrap();
    csv::write_file(&folder.path().join("empty.csv"), &[], &[]).unwrap();
    std::fs::write(folder.path().join("people.csv"), "name,age\nx,1\n").unwrap();
    std::fs::write(folder.path().join("cut.csv"), "experiment,run_id\n\"half a").unwrap();
    let error = |arguments: &[&str]| {
        let (code, out, err) = command(folder.path(), arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        err
    };
    let table = "strategy,peak_bytes,tokens_per_s\na,1000,1.5\n";
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("semicolons.csv", &table.replace(',', ";").replace('.', ","));
    write("tabs.csv", &table.replace(',', "\t"));
    write("headings.csv", &table.replace("peak_bytes", "GiB").replace("tokens_per_s", "tok/s"));
    write("one-heading.csv", &table.replace("tokens_per_s", "tok/s"));
    write("capitals.csv", &table.replace("strategy", "Strategy"));
    write("comma.csv", &table.replace("1.5", "\"1,5\""));
    write("unit.csv", &table.replace("1000", "24 GiB"));
    write("nothing.csv", "");
    write("a.toml", "[strategies.plain]\n");
    write("config.json", "{\"model_type\": \"gpt2\"}");
    let errors = [
        error(&["semicolons.csv"]),
        error(&["tabs.csv"]),
        error(&["headings.csv"]),
        error(&["one-heading.csv"]),
        error(&["capitals.csv"]),
        error(&["comma.csv"]),
        error(&["unit.csv"]),
        error(&["nothing.csv"]),
        error(&["a.toml"]),
        error(&["config.json"]),
        error(&["good.csv", "--columns", "peak_bytes"]),
        error(&["good.csv", "--columns", "memory;speed"]),
        error(&["good.csv", "--columns", "strategy"]),
        error(&["none.csv"]),
        error(&["empty.csv"]),
        error(&["people.csv"]),
        error(&["cut.csv"]),
        error(&["good.csv", "people.csv"]),
        error(&["."]),
        error(&["good.csv", "--baseline", "fp23"]),
        error(&["good.csv", "--by", "seed"]),
    ];
    insta::assert_snapshot!(errors.concat());
}

proptest! {
    #[test]
    fn any_rows_make_table_within_width(
        rows in prop::collection::vec(any_row(), 1..9),
        sort in prop::sample::select(vec![Sort::File, Sort::Memory, Sort::Speed, Sort::Name]),
        by in prop::option::of(Just("precision".to_string())),
        width in prop::sample::select(vec![None, Some(80), Some(160)]),
    ) {
        let by = by.filter(|by| rows.iter().any(|row| row.axes.iter().any(|(key, _)| key == by)));
        let options = Options { by, sort, width, ..Options::default() };
        table_of(&rows, &options);
        let planned = compare::render_planned(&rows, &options, Format::Table).unwrap();
        assert_narrow(&planned.to_string(), width.unwrap_or(WIDTH));
        for format in [Format::Csv, Format::Markdown, Format::Json] {
            prop_assert!(compare::render(&rows, &options, format).is_ok());
        }
    }
}
