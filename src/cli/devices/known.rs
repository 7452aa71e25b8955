//! `devices --targets`: lists the known cards.

use super::columns;
use device::{ASSUMED_CONTEXT, KNOWN_CARDS, KnownCard};
use plan::ASSUMED_HOST;
use spec::{HOST_THREADS, NodeRates};

const HEADINGS: [&str; 9] = ["target", "name", "memory", "cc", "GB/s", "link", "fp32", "tf32", "16 bit"];

const NONE: &str = "-";

pub(super) fn text(width: usize) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(KNOWN_CARDS.iter().map(cells));
    format!(
        "{}
Nothing here was measured with this program. Memory is what drivers report; \
         GB/s of it and TFLOP/s are peaks of NVIDIA's data sheets: dense, sums in fp32, bf16 and fp16 alike. \
         cc is the compute capability, link the peak rate to the host in GB/s per direction; `devices --target NAME` has \
         that between cards. Assumed are \
         a context of {ASSUMED_CONTEXT}, {host}, and for {assumed} the memory of {source}. Cards without a tf32 rate: \
         PyTorch's memory only, since this program does not run on them, and fp16 without bf16. A part of a name suffices: `4070`.

    runner plan FILES... --target {word:<13}   without the card; several `--target` side by side
    runner devices --device cuda --target FILE    where it is: writes what is measured there
    runner plan FILES... --target FILE            and then anywhere
",
        columns::aligned(&lines, width),
        word = KNOWN_CARDS[0].word,
        assumed = KnownCard::ASSUMED_MEMORY[0],
        source = KnownCard::ASSUMED_MEMORY[1],
        host = assumed_host(),
    )
}

/// `20.0 GB/s and 80.0 GFLOP/s for operations on the host, on 1 thread`
fn assumed_host() -> String {
    let NodeRates { host_bandwidth, host_flops, .. } = ASSUMED_HOST;
    let rates = [host_bandwidth.map(|rate| rate.to_string()), host_flops.map(|rate| rate.to_string())];
    let rates: Vec<String> = rates.into_iter().flatten().collect();
    format!("{} for operations on the host, on {HOST_THREADS} thread", rates.join(" and "))
}

fn cells(card: &KnownCard) -> [String; HEADINGS.len()] {
    let KnownCard { word, name, memory, capability, bandwidth, fp32, tf32, half } = card;
    [
        (*word).to_owned(),
        (*name).to_owned(),
        memory.to_string(),
        (*capability).to_owned(),
        bandwidth.to_string(),
        card.link().to_string(),
        fp32.to_string(),
        tf32.map_or_else(|| NONE.to_owned(), |rate| rate.to_string()),
        half.map_or_else(|| NONE.to_owned(), |rate| rate.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use compare::WIDTH;

    #[test]
    fn all_of_it_fits_a_terminal() {
        for width in [80, WIDTH] {
            let table = columns::aligned(&KNOWN_CARDS.iter().map(cells).collect::<Vec<_>>(), width);
            assert!(table.lines().all(|line| line.chars().count() <= width), "{table}");
        }
        let text = text(WIDTH);
        assert_eq!(
            text.lines().filter(|line| line.contains("gb  ")).count(),
            KNOWN_CARDS.len() + 1,
            "{text}"
        );
    }
}
