//! The rates of a card's host and of the link to it, measured where the card is.

use std::process::Stdio;

use super::super::probe_device::LinkReport;
use base::rates::{BytesPerSecond, FlopsPerSecond};
use device::{DeviceChoice, Factors, Target};
use spec::{HOST_THREADS, NodeRates};

/// Measures the rates of this machine as the host of the card with this ordinal, and what could not be measured, a line
/// each.
pub(super) fn measure(ordinal: usize) -> (NodeRates, Vec<String>) {
    let mut problems = Vec::new();
    let mut known = |what: &str, measured: Result<NodeRates, String>| {
        measured.unwrap_or_else(|error| {
            problems.push(format!("{what} of cuda:{ordinal} was not measured: {error}"));
            NodeRates::default()
        })
    };
    let rates = known("the link", link(ordinal)).or(known("the host", host()));
    (rates, problems)
}

/// In a child process: this one creates no context.
fn link(ordinal: usize) -> Result<NodeRates, String> {
    let mut command = device::this_program().map_err(|error| error.to_string())?;
    command.args(["probe-device", "--link", "--ordinal", &ordinal.to_string()]);
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let report: LinkReport = serde_json::from_slice(&output.stdout).map_err(|_| {
        String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("error: ").to_owned()
    })?;
    Ok(NodeRates { link: Some(BytesPerSecond(report.link_bytes_per_s as u64)), ..NodeRates::default() })
}

fn host() -> Result<NodeRates, String> {
    let target = device::detect(DeviceChoice::Cpu, None).map_err(|error| error.to_string())?;
    let target = Target { threads: HOST_THREADS, ..target };
    let mut processor = device::open(&target).map_err(|error| error.to_string())?;
    let rates = device::measure_rates(processor.as_mut(), Factors::F32).map_err(|error| error.to_string())?;
    Ok(NodeRates {
        host_bandwidth: rates.copy_bytes_per_s.map(|rate| BytesPerSecond(rate as u64)),
        host_flops: rates.product_flops_per_s.map(|rate| FlopsPerSecond(rate as u64)),
        ..NodeRates::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_one_thread_are_measured_and_read_back() {
        let rates = host().unwrap();
        assert!(rates.host_bandwidth.is_some() && rates.host_flops.is_some(), "{rates:?}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("card.toml");
        let card = "name = \"mine\"\nkind = \"cuda\"\nmemory = \"24 GiB\"\n";
        std::fs::write(&file, card.to_owned() + &rates.to_toml()).unwrap();
        let read = spec::read_target(&file).unwrap().node;
        assert_eq!(read.to_toml(), rates.to_toml());
    }
}
