//! The survey as text.

use super::columns;
use super::survey::{Survey, Surveyed};
use base::rates::{BytesPerSecond, FlopsPerSecond};
use base::units::Bytes;
use spec::HOST_THREADS;

const HEADINGS: [&str; 8] =
    ["device", "name", "memory", "compute", "context", "fp32 matmul", "bf16 matmul", "copy"];

pub(super) fn text(survey: &Survey, width: usize) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(survey.devices.iter().map(cells));
    let mut text = columns::aligned(&lines, width);
    let mut paragraph = |lines: Vec<String>| {
        for (index, line) in lines.iter().enumerate() {
            text.push_str(if index == 0 { "\n" } else { "" });
            text.push_str(line);
            text.push('\n');
        }
    };
    paragraph(survey.devices.iter().filter_map(host_line).collect());
    let libraries = survey.libraries.iter().map(|library| {
        let path = library.path.as_deref().unwrap_or("from the loader's path");
        format!("{} {}: {path}", library.name, library.version)
    });
    paragraph(libraries.collect());
    let problems = survey.devices.iter().filter_map(|device| {
        device.problem.as_ref().map(|problem| format!("{} cannot be used: {problem}", device.device))
    });
    paragraph(problems.chain(survey.missing.iter().cloned()).chain(survey.notes.iter().cloned()).collect());
    text
}

/// `cuda:0: link to the host 25.1 GB/s per direction; host on 1 thread 11.2 GB/s, 95.0 GFLOP/s`
fn host_line(device: &Surveyed) -> Option<String> {
    let (link, bandwidth, flops) =
        (device.link_bytes_per_s, device.host_bytes_per_s, device.host_flops_per_s);
    let link = link.map(|rate| format!("link to the host {} per direction", BytesPerSecond(rate)));
    let host = bandwidth.zip(flops).map(|(bandwidth, flops)| {
        format!("host on {HOST_THREADS} thread {}, {}", BytesPerSecond(bandwidth), FlopsPerSecond(flops))
    });
    let parts: Vec<String> = [link, host].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("{}: {}", device.device, parts.join("; ")))
}

fn cells(device: &Surveyed) -> [String; HEADINGS.len()] {
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
    let rate = |rate: Option<f64>, unit| rate.map_or("-".to_owned(), |rate| scaled(rate, unit));
    [
        device.device.clone(),
        device.name.clone(),
        bytes(device.memory_bytes),
        device.capability.clone().unwrap_or_else(|| "-".to_owned()),
        bytes(device.context_bytes),
        rate(device.product_flops_per_s, "FLOP/s"),
        rate(device.bf16_product_flops_per_s, "FLOP/s"),
        rate(device.copy_bytes_per_s, "B/s"),
    ]
}

/// A rate in G or T, with two digits or more.
fn scaled(rate: f64, unit: &str) -> String {
    let (rate, prefix) = if rate >= 1e12 { (rate / 1e12, 'T') } else { (rate / 1e9, 'G') };
    let decimals = usize::from(rate < 9.95);
    format!("{rate:.decimals$} {prefix}{unit}")
}

#[cfg(test)]
mod tests {
    use super::super::survey::Library;
    use super::*;

    #[test]
    fn a_card_is_shown_beside_the_processor() {
        let processor = Surveyed {
            device: "cpu".to_owned(),
            name: "Some Processor".to_owned(),
            memory_bytes: Some(16 << 30),
            product_flops_per_s: Some(3.52e11),
            copy_bytes_per_s: Some(5.34e10),
            ..Surveyed::default()
        };
        let card = Surveyed {
            device: "cuda:0".to_owned(),
            name: "Some Card".to_owned(),
            memory_bytes: Some(80 << 30),
            capability: Some("9.0".to_owned()),
            context_bytes: Some(500 << 20),
            product_flops_per_s: Some(5e13),
            bf16_product_flops_per_s: Some(7.9e14),
            copy_bytes_per_s: Some(4.3e12),
            link_bytes_per_s: Some(25_100_000_000),
            host_bytes_per_s: Some(11_200_000_000),
            host_flops_per_s: Some(95_000_000_000),
            problem: None,
        };
        let busy = Surveyed {
            device: "cuda:1".to_owned(),
            name: "Some Card".to_owned(),
            memory_bytes: Some(80 << 30),
            capability: Some("9.0".to_owned()),
            problem: Some("another has it".to_owned()),
            ..Surveyed::default()
        };
        let library = Library {
            name: "NVRTC",
            version: "13.0".to_owned(),
            path: Some("/lib/libnvrtc.so.13".to_owned()),
        };
        let survey = Survey {
            devices: vec![processor, card, busy],
            libraries: vec![library],
            missing: vec!["cuBLASLt is missing".to_owned()],
            notes: vec!["nothing is kept".to_owned()],
        };
        assert_eq!(
            text(&survey, 100),
            "\
device  name              memory  compute  context  fp32 matmul  bf16 matmul      copy
cpu     Some Processor  16.0 GiB        -        -  352 GFLOP/s            -   53 GB/s
cuda:0  Some Card       80.0 GiB      9.0  500 MiB   50 TFLOP/s  790 TFLOP/s  4.3 TB/s
cuda:1  Some Card       80.0 GiB      9.0        -            -            -         -

cuda:0: link to the host 25.1 GB/s per direction; host on 1 thread 11.2 GB/s, 95.0 GFLOP/s

NVRTC 13.0: /lib/libnvrtc.so.13

cuda:1 cannot be used: another has it
cuBLASLt is missing
nothing is kept
"
        );
    }
}
