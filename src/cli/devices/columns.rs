//! Aligned columns of text.

use unicode_width::UnicodeWidthStr;

/// Aligns the first two columns, names, to the left, and the others, figures, to the right.
pub(super) fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].width()).max().unwrap_or(0));
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            let gap = " ".repeat(width - cell.width());
            if column < 2 { format!("{cell}{gap}") } else { format!("{gap}{cell}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
