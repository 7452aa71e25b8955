//! Aligned columns of text.

use unicode_width::UnicodeWidthStr;

use compare::cut_middle;

/// The least width of the second column.
const LEAST: usize = 6;

/// Aligns the first two columns, names, to the left, and the others, figures, to the right, without columns of unknown
/// figures. If the lines are wider than
/// `most`, the second column is shortened.
pub(crate) fn aligned<const N: usize>(lines: &[[String; N]], most: usize) -> String {
    let mut widths: [usize; N] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].width()).max().unwrap_or(0));
    let is_known = |column: &usize| lines.iter().skip(1).any(|line| line[*column] != "-");
    let shown: Vec<usize> = (0..N).filter(is_known).collect();
    let all: usize = shown.iter().map(|column| widths[*column] + 2).sum();
    let excess = all.saturating_sub(most + 2);
    widths[1] = widths[1].min(widths[1].saturating_sub(excess).max(LEAST));
    let mut text = String::new();
    for line in lines {
        let cells = shown.iter().map(|&column| {
            let (cell, width) = (&line[column], widths[column]);
            let cell = cut_middle(cell, width);
            let gap = " ".repeat(width - cell.width());
            if column < 2 { format!("{cell}{gap}") } else { format!("{gap}{cell}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
