//! `runner report`: the page and its plots.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::test_folder::{TestFolder, Tiny, said};
use results::{Row, Status};
use serde_json::Value;
use sha2::{Digest, Sha256};

const QUICKSTART: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/results/published/xeon-2-cores/quickstart.csv");
const GPT2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/published/h100-80gb/gpt2-124m.csv");
const HOSTILE: &str = "<img src=x onerror=alert(1)></script>";

fn page(dir: &TestFolder, args: &[&str]) -> String {
    dir.runner(&[&["report", "-o", "page.html"], args].concat());
    fs::read_to_string(dir.path("page.html")).unwrap()
}

/// The text of the first element that begins with `start`.
fn inside<'a>(page: &'a str, start: &str, end: &str) -> &'a str {
    page.split_once(start).unwrap().1.split_once(end).unwrap().0
}

/// The data of a page.
fn data(page: &str) -> Value {
    serde_json::from_str(inside(page, r#"<script type="application/json" id="data">"#, "</script>")).unwrap()
}

fn array<'a>(value: &'a Value, pointer: &str) -> &'a Vec<Value> {
    value.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("{pointer}"))
}

/// A table's cells by the titles of its columns: each is a text, or a text and a number.
fn rows(table: &Value) -> Vec<Vec<(String, Value)>> {
    let titles: Vec<&str> =
        array(table, "/columns").iter().map(|column| column["title"].as_str().unwrap()).collect();
    let row = |row: &Value| {
        let cells = row.as_array().unwrap().iter().cloned();
        titles.iter().map(|title| (*title).to_owned()).zip(cells).collect()
    };
    array(table, "/rows").iter().map(row).collect()
}

fn cell<'a>(row: &'a [(String, Value)], title: &str) -> &'a Value {
    &row.iter().find(|(of, _)| of == title).unwrap_or_else(|| panic!("no column {title}")).1
}

#[test]
fn page_loads_nothing_and_runs_only_its_own_scripts() {
    let dir = TestFolder::new();
    let page = page(&dir, &[QUICKSTART, GPT2]);
    let data_start = page.find(r#"<script type="application/json""#).unwrap();
    let markup = page.find("<script>").unwrap();
    for text in
        ["<link rel=\"stylesheet", " src=", "@import", "url(", "http-equiv=\"refresh", "sourceMappingURL"]
    {
        assert!(!page[..markup].contains(text) && !page[data_start..].contains(text), "{text}");
    }
    assert!(!page.contains("sourceMappingURL"));
    for text in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch("] {
        assert!(!page[data_start..].contains(text), "{text}");
    }
    let policy = inside(&page, "Content-Security-Policy\" content=\"", "\"");
    assert!(policy.starts_with("default-src 'none'; img-src data:; script-src 'sha256-"), "{policy}");
    let hash = |text: &str| {
        let digest = Sha256::digest(text);
        let bits: Vec<u8> =
            digest.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
        let letter = |six: &[u8]| {
            let index = (0..6).fold(0, |sum, bit| 2 * sum + usize::from(six.get(bit).copied().unwrap_or(0)));
            char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[index])
        };
        format!("'sha256-{}='", bits.chunks(6).map(letter).collect::<String>())
    };
    let scripts: Vec<&str> =
        page.split("<script>").skip(1).map(|rest| rest.split("</script>").next().unwrap()).collect();
    assert_eq!(scripts.len(), 2);
    for text in scripts.into_iter().chain([inside(&page, "<style>", "</style>")]) {
        assert!(policy.contains(&hash(text)), "{policy}: {}", &text[..80]);
    }
    assert!(page.contains("The MIT License"), "the charting library's licence");
}

#[test]
fn figures_and_sentences_are_those_of_compare() {
    let dir = TestFolder::new();
    for file in [QUICKSTART, GPT2] {
        let data = data(&page(&dir, &[file]));
        let compared = dir.runner(&["compare", file, "--format", "json"]).stdout;
        let compared: Value = serde_json::from_slice(&compared).unwrap();
        let (page, compared) = (&data["experiments"][0], &compared[0]);
        assert_eq!(page["verdict"], compared["verdict"]);
        let rows = rows(&page["comparison"]);
        assert_eq!(rows.len(), array(compared, "/rows").len());
        let effects = self::rows(&page["effects"]);
        for ((row, effects), expected) in rows.iter().zip(&effects).zip(array(compared, "/rows")) {
            let label = expected["strategy"].as_str().unwrap();
            assert_eq!(cell(effects, "strategy"), label);
            assert_eq!(cell(effects, "measured")[1].as_f64(), expected["peak_bytes"].as_f64(), "{label}");
            assert_eq!(cell(effects, "predicted")[1].as_f64(), expected["predicted_peak_bytes"].as_f64());
            assert_eq!(cell(row, "xmem")[1].as_f64(), expected["memory_ratio"].as_f64(), "{label}");
            if expected["status"] == "ok" {
                assert_eq!(cell(row, "tok/s")[1].as_f64(), expected["tokens_per_s"].as_f64(), "{label}");
            }
            let is_on_front = cell(row, "mark").as_str().unwrap().contains('*');
            assert_eq!(Some(is_on_front), expected["pareto"].as_bool(), "{label}");
        }
        // Without folders the page still has its charts, and notes what is missing.
        assert!(array(page, "/timelines").is_empty() && array(page, "/loss").is_empty());
        assert!(
            page["notes"][0].as_str().unwrap().contains("`runner sweep` writes the folders"),
            "{}",
            page["notes"]
        );
        let front: usize = array(page, "/speed")
            .iter()
            .map(|chart| {
                let fronts = array(chart, "/series").iter().filter(|series| series["special"] == true);
                fronts.map(|series| array(series, "/points").len()).sum::<usize>()
            })
            .sum();
        assert_eq!(front, array(compared, "/rows").iter().filter(|row| row["pareto"] == true).count());
    }
}

#[test]
fn memory_by_role_adds_up_beside_predictions() {
    let dir = TestFolder::new();
    let data = data(&page(&dir, &[GPT2]));
    let chart = &data["experiments"][0]["memory"][0];
    let total = |stack: &str, at: usize| -> f64 {
        let series = array(chart, "/series").iter().filter(|series| series["stack"] == stack);
        let points = series.flat_map(|series| array(series, "/points"));
        points
            .filter(|point| point["y"].as_f64() == Some(at as f64))
            .map(|point| point["x"].as_f64().unwrap())
            .sum()
    };
    let names = array(chart, "/categories");
    let find = |name: &str| names.iter().position(|known| known == name).unwrap();
    let csv = dir.rows(GPT2);
    for strategy in ["fp32", "bf16", "recompute"] {
        let row = csv.iter().find(|row| row.strategy == strategy).unwrap();
        let gib = |bytes: Option<u64>| bytes.unwrap() as f64 / f64::from(1 << 30);
        let (at, close) = (find(strategy), |a: f64, b: f64| (a - b).abs() < 1e-9);
        assert!(close(total("measured", at), gib(row.peak_bytes)), "{strategy}");
        assert!(close(total("predicted", at), gib(row.predicted_peak_bytes)), "{strategy}");
        assert!(close(total("PyTorch", at), gib(row.torch_peak_bytes)), "{strategy}");
    }
    assert_eq!(total("PyTorch", find("graph")), 0.0);
}

#[test]
fn page_has_every_row_of_every_table_and_equal_bytes_each_time() {
    let dir = TestFolder::new();
    let mut csv = "strategy,peak_bytes,tokens_per_s\n".to_owned();
    (0..1500).for_each(|at| csv.push_str(&format!("s{at},{},{}\n", 1_000_000 + at, 5000 - at)));
    dir.write("other.csv", csv);
    dir.write("third.csv", "strategy,peak_bytes\na,100\n");
    let first = page(&dir, &[QUICKSTART, GPT2, "other.csv", "third.csv"]);
    assert_eq!(first, page(&dir, &[QUICKSTART, GPT2, "other.csv", "third.csv"]));
    let data = data(&first);
    let lengths: Vec<usize> =
        array(&data, "/experiments").iter().map(|one| array(one, "/comparison/rows").len()).collect();
    assert_eq!(lengths, [12, 13, 1500, 1]);
    let other = &data["experiments"][2];
    assert_eq!(array(other, "/memory/0/categories").len(), 40);
    assert!(
        other["memory"][0]["note"].as_str().unwrap().contains("The chart shows the first 40 of 1500 rows.")
    );
    // No prediction is outlined.
    assert_eq!(other["memory"][0]["x"], "KiB");
    // Rows of other programs have no command.
    assert!(array(other, "/commands/rows").iter().all(|row| row[1] == "-"));
}

#[test]
fn hostile_names_stay_text() {
    let dir = TestFolder::new();
    // Tables without an experiment have the name of the file, which is the title of the page.
    let table = "a\u{202e}.csv";
    dir.write(
        table,
        format!(
            "strategy,peak_bytes,tokens_per_s\n{HOSTILE},2000000,10\n\u{2028}b&amp;\u{202e},3000000,20\n"
        ),
    );
    let page = page(&dir, &[table]);
    assert_eq!(inside(&page, "<title>", ":"), "a\u{fffd}");
    assert!(!page.contains("<img") && !page.contains("&amp;") && !page.contains(['\u{2028}', '\u{202e}']));
    assert_eq!(page.matches("</script>").count(), 3);
    let data = data(&page);
    let names: Vec<&str> =
        array(&data, "/experiments/0/comparison/rows").iter().map(|row| row[1].as_str().unwrap()).collect();
    assert_eq!(names, [HOSTILE, "b&amp;\u{fffd}"]);
    for plot in ["speed", "memory"] {
        dir.runner(&["report", table, "--svg", plot, "-o", "a.svg"]);
        let svg = fs::read_to_string(dir.path("a.svg")).unwrap();
        assert!(
            is_well_formed(&svg) && !svg.contains("<img") && svg.contains("&lt;img src=x"),
            "{plot}: {svg}"
        );
    }
}

/// Whether tags are balanced and texts escaped, as far as plots use XML.
fn is_well_formed(xml: &str) -> bool {
    let mut open: Vec<&str> = Vec::new();
    for piece in xml.split('<').skip(1) {
        let Some((tag, text)) = piece.split_once('>') else { return false };
        let entities = text
            .split('&')
            .skip(1)
            .all(|rest| ["lt;", "gt;", "amp;", "quot;", "apos;"].iter().any(|known| rest.starts_with(known)));
        let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap_or_default();
        match () {
            () if !entities || tag.matches('"').count() % 2 == 1 => return false,
            () if tag.starts_with('/') && open.pop() != Some(name) => return false,
            () if tag.starts_with('/') || tag.ends_with('/') => {}
            () => open.push(name),
        }
    }
    open.is_empty() && xml.starts_with("<svg")
}

/// Sweeps strategies whose memory changes in different ways, and makes their report.
fn swept(dir: &TestFolder) -> Value {
    let strategies = "
[evaluation]
every = 2
batches = 1
[measure]
steps = 3
warmup_steps = 1
[strategies.plain]
[strategies.accumulate]
accumulate = 3
[strategies.lazy]
init = \"lazy\"
[strategies.caching]
allocator = \"caching\"
[strategies.in-backward]
update = \"in_backward\"
[strategies.offload]
offload = { activations = true, optimizer = true, parameters = true }
[strategies.leak]
leak = \"logits\"
[strategies.quantized]
lora = { rank = 2, alpha = 4, base = \"nf4\", targets = [\"attention.q\"] }
[strategies.\"it's\"]
release = \"scope\"
recompute = \"block\"
[sweep.grid]
\"train.seed\" = [0, 1]
";
    dir.write("a.toml", Tiny { layers: 2, ..Tiny::default() }.with(strategies));
    dir.runner(&["sweep", "a.toml", "--repeats", "1", "--memory", "1GiB", "--quiet"]);
    data(&page(dir, &["results/a.csv"]))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn folders_add_timelines_losses_and_commands_that_repeat_rows() {
    let dir = TestFolder::new();
    let data = swept(&dir);
    let page = &data["experiments"][0];
    let all = dir.rows("results/a.csv");
    assert_eq!(array(page, "/timelines").len(), all.len());
    for (timeline, row) in array(page, "/timelines").iter().zip(&all) {
        assert_values_make_up_the_roles(timeline, row);
    }
    array(page, "/memory").iter().for_each(assert_predicted_roles_are_measured);
    assert_losses(page, &dir, &all);
    // The command of a row with a folder, and of one without: both give the same run.
    fs::copy(dir.path("results/a.csv"), dir.path("alone.csv")).unwrap();
    fs::create_dir(dir.path("experiments")).unwrap();
    dir.write(
        "experiments/a.toml",
        fs::read_to_string(dir.path("a.toml")).unwrap().replace("text.txt", "../text.txt"),
    );
    let alone = self::data(&self::page(&dir, &["alone.csv"]));
    let at = all.iter().position(|row| row.strategy == "it's" && row.seed == Some(1)).unwrap();
    for (place, page) in [("folders", page), ("no folders", &alone["experiments"][0])] {
        let command =
            rows(&page["commands"])[at].iter().find(|(title, _)| title == "command").unwrap().1.clone();
        let command = command.as_str().unwrap();
        assert_eq!(command.contains("run.toml"), place == "folders", "{command}");
        let program = Path::new(env!("CARGO_BIN_EXE_runner")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        let output =
            Command::new("sh").args(["-c", command]).current_dir(dir.path("")).env("PATH", path).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{command}: {}", said(&output));
        let repeated = dir.rows("repeated/a.csv");
        assert_eq!(repeated.len(), 1, "{command}");
        assert_eq!(repeated[0].run_id, all[at].run_id, "{command}");
        assert_eq!((&repeated[0].digest, repeated[0].limit_bytes), (&all[at].digest, all[at].limit_bytes));
        fs::remove_dir_all(dir.path("repeated")).unwrap();
    }
}

/// At each operation, the live values of a role are all of its bytes; the most bytes are the measured peak.
fn assert_values_make_up_the_roles(timeline: &Value, row: &Row) {
    let title = &timeline["title"];
    let operations = array(timeline, "/operations").len();
    let mut totals = vec![0; operations];
    for (index, role) in array(timeline, "/roles").iter().enumerate() {
        for (at, bytes) in array(role, "/bytes").iter().enumerate() {
            let values =
                array(timeline, "/values").iter().filter(|value| number(&value["role"]) == index as u64);
            let live = values
                .filter(|value| (number(&value["first"])..=number(&value["last"])).contains(&(at as u64)));
            assert_eq!(
                live.map(|value| number(&value["bytes"])).sum::<u64>(),
                number(bytes),
                "{title} at {at}"
            );
            totals[at] += number(bytes);
        }
    }
    let in_step =
        [row.forward_peak_bytes, row.backward_peak_bytes, row.update_peak_bytes].into_iter().flatten().max();
    assert_eq!(totals.into_iter().max(), in_step, "{title}");
    let unnamed = array(timeline, "/values")
        .iter()
        .any(|value| value["name"].as_str().unwrap().contains(", allocated"));
    assert_eq!(unnamed, ["lazy", "leak"].contains(&row.strategy.as_str()), "{title}");
}

/// The predicted bars are those of the measured bytes, role by role.
fn assert_predicted_roles_are_measured(chart: &Value) {
    let series = |stack: &str, end: &str| {
        let of_stack = array(chart, "/series").iter().filter(|series| series["stack"] == stack);
        let name = |series: &Value| series["name"].as_str().unwrap().strip_suffix(end).unwrap().to_owned();
        of_stack.map(|series| (name(series), series["points"].clone())).collect::<Vec<_>>()
    };
    let measured = series("measured", "");
    assert!(measured.len() > 3, "{measured:?}");
    assert_eq!(measured, series("predicted", ", predicted"));
}

fn assert_losses(page: &Value, dir: &TestFolder, all: &[Row]) {
    let of_seed = |chart: &Value, name: &str| {
        let series = array(chart, "/series").iter().find(|series| {
            series["special"] == false && series["name"].as_str().unwrap().split(" = ").any(|one| one == name)
        });
        array(series.unwrap(), "/points")
            .iter()
            .map(|point| point["y"].as_f64().unwrap())
            .collect::<Vec<f64>>()
    };
    for (chart, seed) in array(page, "/loss").iter().zip([0, 1]) {
        for strategy in ["plain", "accumulate", "leak"] {
            let row = all.iter().find(|row| row.strategy == strategy && row.seed == Some(seed)).unwrap();
            let steps = fs::read_to_string(dir.path(&format!(
                "results/a/{}/{}/1/steps.csv",
                &row.run_id[..2],
                row.run_id
            )))
            .unwrap();
            let expected: Vec<f64> =
                steps.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect();
            assert_eq!(of_seed(chart, strategy), expected, "{strategy}, seed {seed}");
        }
    }
}

#[test]
fn every_plot_is_an_svg_file() {
    let dir = TestFolder::new();
    dir.write(
        "a.toml",
        Tiny::default()
            .with("[measure]\nsteps = 2\n[strategies.plain]\n[strategies.\"a & <b>\"]\naccumulate = 2\n"),
    );
    dir.runner(&["sweep", "a.toml", "--repeats", "1", "--quiet"]);
    let output = dir.program(&["report", "results/a.csv", "--svg", "lost"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = said(&output);
    assert!(text.contains("there is no plot `lost`") && text.contains("did you mean `loss`?"), "{text}");
    let plots = inside(&text, "the plots are: ", "\n").split(", ").collect::<Vec<_>>();
    assert_eq!(plots, ["speed", "memory", "loss", "timeline/plain", "timeline/a & <b>"]);
    for plot in plots {
        dir.runner(&["report", "results/a.csv", "--svg", plot]);
        let svg = fs::read_to_string(dir.path("plot.svg")).unwrap();
        assert!(is_well_formed(&svg), "{plot}: {svg}");
        let marks =
            svg.matches("<polygon").count() + svg.matches("<rect").count() + svg.matches("<polyline").count();
        assert!(marks > 3, "{plot}: {svg}");
    }
}

#[test]
fn plot_of_speed_names_few_points_and_cuts_long_names() {
    let dir = TestFolder::new();
    let names = |strategies: &[String]| {
        let lines =
            strategies.iter().enumerate().map(|(at, name)| format!("{name},{},{}\n", at + 1, 9 * at + 1));
        dir.write("a.csv", format!("strategy,peak_bytes,tokens_per_s\n{}", lines.collect::<String>()));
        dir.runner(&["report", "a.csv", "--svg", "speed"]);
        let svg = fs::read_to_string(dir.path("plot.svg")).unwrap();
        svg.split('\n').filter(|line| line.starts_with("long")).map(str::to_owned).collect::<Vec<_>>()
    };
    let long = |count: usize| (0..count).map(|at| format!("long{at}{}", "x".repeat(300))).collect::<Vec<_>>();
    let shown = names(&long(24));
    assert_eq!(shown.len(), 24);
    assert!(shown.iter().all(|name| name.contains('…') && name.chars().count() == 30), "{shown:?}");
    assert!(names(&long(25)).is_empty());
}

/// The notes of an experiment's page.
fn notes(page: &Value) -> Vec<&str> {
    array(page, "/notes").iter().map(|note| note.as_str().unwrap()).collect()
}

#[test]
fn rows_that_no_command_repeats_state_why() {
    let dir = TestFolder::new();
    let mut all = dir.rows(QUICKSTART);
    let axes: Vec<String> = all[0].axes.iter().map(|(key, _)| key.clone()).collect();
    for row in all.iter_mut().filter(|row| row.strategy == "direct") {
        row.status = Status::Skipped;
    }
    results::csv::write_file(&dir.path("a.csv"), &all, &axes).unwrap();
    // Another run of the same label in another table.
    all.retain(|row| row.strategy == "plain");
    all.iter_mut().for_each(|row| row.run_id = row.run_id.chars().rev().collect());
    results::csv::write_file(&dir.path("b.csv"), &all, &axes).unwrap();
    let data = data(&page(&dir, &["a.csv", "b.csv"]));
    let rows = rows(&data["experiments"][0]["commands"]);
    let command = |strategy: &str| {
        let row = rows.iter().find(|row| cell(row, "strategy") == strategy).unwrap();
        cell(row, "command").as_str().unwrap()
    };
    assert_eq!(command("direct"), "none: the row was skipped");
    for relabelled in ["plain (a)", "plain (b)"] {
        let command = command(relabelled);
        assert!(command.starts_with("none: the tables hold other runs of this name"), "{command}");
    }
    assert!(command("both").starts_with("runner sweep experiments/quickstart.toml --run=both "));
}

#[test]
fn limits_and_missing_folders_are_noted_and_strategies_that_share_a_run_share_its_prediction() {
    let dir = TestFolder::new();
    let seeds: Vec<String> = (0..25).map(|seed| seed.to_string()).collect();
    dir.write(
        "a.toml",
        Tiny::default().with(&format!(
            "[measure]\nsteps = 1\nwarmup_steps = 0\n[strategies.plain]\n[strategies.same]\naccumulate = 1\n\
             [sweep.grid]\n\"train.seed\" = [{}]\n",
            seeds.join(", ")
        )),
    );
    dir.runner(&["sweep", "a.toml", "--repeats", "1", "--quiet"]);
    let limit = "Only the first 24 runs with files have a timeline.";
    let all = data(&page(&dir, &["results/a.csv"]));
    let all = &all["experiments"][0];
    assert_eq!(array(all, "/timelines").len(), 24);
    assert_eq!(notes(all), [limit]);
    assert_eq!(array(all, "/memory").len(), 25);
    for chart in array(all, "/memory") {
        assert_eq!(array(chart, "/categories").len(), 2);
        assert_predicted_roles_are_measured(chart);
    }
    // Without the folder of a run, which two strategies share, exactly 24 have a timeline.
    let rows = dir.rows("results/a.csv");
    fs::remove_dir_all(results::run_folder(&dir.path("results/a"), &rows[0].run_id)).unwrap();
    let some = data(&page(&dir, &["results/a.csv"]));
    let some = &some["experiments"][0];
    assert_eq!(array(some, "/timelines").len(), 24);
    assert_eq!(notes(some).len(), 1, "{:?}", notes(some));
    assert!(
        notes(some)[0].starts_with("The folders of 2 of 50 rows are not beside the table"),
        "{:?}",
        notes(some)
    );
}

#[test]
fn misuse_is_reported() {
    let dir = TestFolder::new();
    dir.write("no-peaks.csv", "strategy,tokens_per_s\na,10\n");
    dir.write("a.csv", "strategy,peak_bytes,tokens_per_s\na,2000000,10\n");
    dir.write("b.csv", "strategy,peak_bytes\nb,many\n");
    dir.write("empty.csv", "strategy,peak_bytes\n");
    let before = fs::read_to_string(dir.path("a.csv")).unwrap();
    for (args, code, expected) in [
        (&[][..], 2, "FILE.csv"),
        (&["missing.csv"], 2, "cannot read missing.csv: there is no such file"),
        (&["b.csv"], 2, "b.csv, line 2, column `peak_bytes`"),
        (&["empty.csv"], 2, "empty.csv holds no rows"),
        // What the shell makes of `-o *.csv`.
        (
            &["-o", "a.csv", "b.csv"],
            2,
            "the name of the page must end in .html: `a.csv`\n = help: write `-o a.html`",
        ),
        (&["a.csv", "--svg", "speed", "-o", "speed.png"], 2, "must end in .svg"),
        (&["a.csv", "-o", "none/page.html"], 1, "cannot write none/page.html"),
        (&["a.csv", "--svg", "timeline"], 2, "there is no plot `timeline`; the plots are: speed, memory"),
        (&["no-peaks.csv", "--svg", "speed"], 2, "the tables have nothing to plot"),
        (&["a.csv", "--baseline", "c"], 2, "no strategy `c`"),
        (&["a.csv", "--by", "lr"], 2, "does not sweep `lr`"),
    ] {
        let output = dir.program(&[&["report"], args].concat()).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
    assert_eq!(fs::read_to_string(dir.path("a.csv")).unwrap(), before);
    assert!(!dir.path("report.html").exists() && !dir.path("page.html").exists());
}
