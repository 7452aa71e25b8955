//! Output and figures in the documentation. A comment before a block of text or a table contains its source: a command of
//! this program, such as `<!-- runner compare FILE.csv -->`, or a file below `results/published`. Text consists of lines
//! of the source, in their order. Tables have the source's rows and columns by name, beside columns of their own.

use std::fs;
use std::process::Command;

use crate::test_folder::TestFolder;

/// Blocks of text that no command of this machine prints again, by their first line.
const UNCHECKED: [&str; 5] = [
    // A test of its own: `documentation::first_experiment_of_the_readme_is_valid`.
    "$ runner check experiments/mine.toml",
    // Output of a Python script.
    "accumulate: 4 layers, d_model 128, 4 heads, context 128, vocabulary 256",
    // Times of a run whose folder is not published.
    "where time goes: the mean of 10 timed steps of repeat 2, the median of 3",
    // Hosts and processes of a cluster.
    "tiny (results): 3 of 6 repeats done, 1 running, 1 failed, 1 missing; about 4 min of training left",
    // A diagram.
    "experiments/*.toml",
];

/// Tables without a source are refused on this page only.
const RESULTS: &str = "docs/results.md";

#[derive(Debug)]
struct Block<'a> {
    source: Option<String>,
    lines: Vec<&'a str>,
}

/// All blocks of text and all tables of a page. A source stands right before its block.
fn blocks(page: &str) -> Vec<Block<'_>> {
    let (mut blocks, mut source) = (Vec::new(), None);
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("<!-- runner ") || line.starts_with("<!-- results/") {
            let mut comment = line.to_owned();
            while !comment.ends_with("-->") {
                comment = format!("{comment} {}", lines.next().unwrap().trim());
            }
            source = Some(comment["<!--".len()..comment.len() - "-->".len()].trim().to_owned());
        } else if line.starts_with("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if line == "```text" {
                blocks.push(Block { source: source.take(), lines: body });
            }
        } else if line.starts_with('|') {
            let rest = std::iter::from_fn(|| lines.next_if(|line| line.starts_with('|')));
            blocks.push(Block { source: source.take(), lines: [line].into_iter().chain(rest).collect() });
        } else {
            assert!(source.is_none() || line.is_empty(), "no block follows {source:?}");
        }
    }
    blocks
}

/// The text of a source. Commands run in the repository; `results` of this checkout do not affect them.
fn text_of(source: &str) -> String {
    let Some(arguments) = source.strip_prefix("runner ") else {
        return fs::read_to_string(source).unwrap_or_else(|error| panic!("{source}: {error}"));
    };
    let empty = TestFolder::new();
    let is_predicted = ["plan ", "explain "].iter().any(|command| arguments.starts_with(command));
    let out = if is_predicted { "--out \"$1\"" } else { "" };
    let script = format!("\"$0\" {arguments} {out}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_runner")]).arg(empty.path("results"));
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Problems of a block, compared with the text of its source.
fn differences(lines: &[&str], text: &str) -> Vec<String> {
    if lines[0].starts_with('|') {
        wrong_cells(lines, text)
    } else {
        missing_line(lines, text).into_iter().collect()
    }
}

/// The first line that the text does not contain after the line before it. Commands and `...` are no output.
fn missing_line(lines: &[&str], text: &str) -> Option<String> {
    let mut rest = text.lines();
    let is_output = |line: &&&str| !(line.is_empty() || line.starts_with("$ ") || line.trim() == "...");
    let missing =
        lines.iter().filter(is_output).find(|line| !rest.any(|other| other.trim_end() == line.trim_end()));
    missing.map(|line| format!("not in the output, or not there: {line}"))
}

/// The cells of a table's lines, its header first, without marks of code.
fn cells<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Vec<String>> {
    let cell = |cell: &str| cell.trim().replace('`', "");
    let row = |line: &str| line.trim_matches('|').split('|').map(cell).collect();
    lines.filter(|line| !line.starts_with("|-")).map(row).collect()
}

/// The cells of a table that differ from those in the first table of the text, found by the names of columns and rows.
/// Rows of one bold cell are headings.
fn wrong_cells(lines: &[&str], text: &str) -> Vec<String> {
    let (table, output) =
        (cells(lines.iter().copied()), cells(text.lines().filter(|line| line.starts_with('|'))));
    let [names, rows @ ..] = table.as_slice() else { unreachable!("a table has a header") };
    let Some([output_names, output_rows @ ..]) = output.get(..) else {
        return vec!["it has no table".to_owned()];
    };
    let column_of = |name: &String| output_names.iter().position(|other| other == name && !name.is_empty());
    let Some(key) = column_of(&names[0]) else { return vec![format!("it has no column {}", names[0])] };
    let checked: Vec<(usize, usize)> =
        names.iter().enumerate().filter_map(|(column, name)| Some((column, column_of(name)?))).collect();
    let mut problems = Vec::new();
    if checked.len() < 2 {
        problems.push("the table has none of its columns".to_owned());
    }
    for row in rows.iter().filter(|row| !row[0].starts_with("**")) {
        match output_rows.iter().find(|other| other[key] == row[0]) {
            None => problems.push(format!("it has no row {}", row[0])),
            Some(other) => problems.extend(
                checked
                    .iter()
                    .filter(|&&(own, its)| row[own] != other[its])
                    .map(|&(own, its)| format!("{}, {}: {} is {}", row[0], names[own], row[own], other[its])),
            ),
        }
    }
    problems
}

fn pages() -> Vec<String> {
    let patterns = ["README.md", "docs/*.md", "results/published/*/README.md"];
    let found = patterns.iter().flat_map(|pattern| glob::glob(pattern).unwrap());
    found.map(|page| page.unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn documented_output_is_what_the_program_prints() {
    let mut problems = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for Block { source, lines } in blocks(&text) {
            let Some(source) = source else { continue };
            let different = differences(&lines, &text_of(&source));
            problems.extend(different.iter().map(|what| format!("{page}: {source}\n    {what}\n")));
        }
    }
    assert!(problems.is_empty(), "documentation is out of date:\n{}", problems.concat());
}

#[test]
fn documented_output_has_a_source() {
    let mut unchecked: Vec<&str> = UNCHECKED.to_vec();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for Block { lines, .. } in blocks(&text).iter().filter(|block| block.source.is_none()) {
            let is_known =
                unchecked.iter().position(|first| *first == lines[0]).map(|at| unchecked.remove(at));
            let may_be_prose = lines[0].starts_with('|') && page != RESULTS;
            assert!(
                is_known.is_some() || may_be_prose,
                "{page}: a comment must name the source of: {}",
                lines[0]
            );
        }
    }
    assert!(unchecked.is_empty(), "no page has these blocks: {unchecked:?}");
}

#[test]
fn changed_figures_are_found() {
    let output = "a table\n  plain   28.9\n  recompute   19.1\n";
    assert_eq!(missing_line(&["$ runner plan", "  plain   28.9", "...", "  recompute   19.1"], output), None);
    assert!(missing_line(&["  plain   28.8"], output).is_some());
    assert!(missing_line(&["  recompute   19.1", "  plain   28.9"], output).is_some());

    let output = "title\n\n|  | strategy | MiB | dloss |\n|---|---|---:|---:|\n| * | plain | 28.9 | - |\n|  | bf16 | 19.1 | 0% |\n";
    let documented =
        ["| strategy | use | MiB |", "|---|---|---|", "| **group** |  |  |", "| `bf16` | first | 19.1 |"];
    assert_eq!(wrong_cells(&documented, output), [""; 0]);
    for (before, after) in [("19.1", "19.2"), ("bf16", "fp16"), ("MiB", "GiB"), ("strategy", "run")] {
        let changed = documented.map(|line| line.replace(before, after));
        let changed: Vec<&str> = changed.iter().map(String::as_str).collect();
        assert_eq!(differences(&changed, output).len(), 1, "{after}");
    }
}
