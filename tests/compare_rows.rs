//! What a comparison takes of the rows it is given, and what it must not conclude from them.

mod rows;

use rows::{Change, row};
use runner::compare::{self, Format, Options};
use runner::results::Row;

fn rendered(rows: &[Row], format: Format) -> String {
    compare::render(rows, &Options::default(), format).unwrap()
}

/// The median of tokens and of samples per second, of whichever repeat it is.
#[test]
fn speeds_are_those_of_the_same_repeat() {
    let repeat = |(repeat, speed): (usize, f64)| {
        let mut row = row("plain");
        row.repeat = repeat;
        row.runs_at(speed);
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
