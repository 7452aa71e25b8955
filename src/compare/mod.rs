//! (stands in for the comparison of rows)

use crate::results::Row;

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub baseline: Option<String>,
    pub by: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub enum Format {
    Table,
}

pub fn render(rows: &[Row], _: &Options, _: Format) -> Result<String, String> {
    Ok(rows.iter().map(|row| format!("  {} {} {:?}\n", row.strategy, row.repeat, row.status)).collect())
}
