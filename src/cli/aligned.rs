//! Lines of aligned cells.

/// Aligned columns, without those that are empty below the first `headings` lines.
pub(super) fn columns<const N: usize>(lines: &[[String; N]], headings: usize) -> Vec<String> {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let empty: [bool; N] =
        std::array::from_fn(|column| lines.iter().skip(headings).all(|line| line[column].is_empty()));
    let write = |line: &[String; N]| {
        let mut text = String::new();
        for column in (0..N).filter(|column| !empty[*column]) {
            text.push_str(&format!("  {:<1$}", line[column], widths[column]));
        }
        text.trim_end().to_string()
    };
    lines.iter().map(write).collect()
}
