//! A survey of devices and libraries, found and missing.

use serde::Serialize;

use super::host;
use device::{Card, DeviceChoice, Found, Inventory, ProbeError, ProbeReport, Unavailable};
use spec::NodeRates;

/// The output of `devices --json`. Unknown figures are `null`.
#[derive(Debug, Serialize)]
pub(super) struct Survey {
    pub(super) devices: Vec<Surveyed>,
    pub(super) libraries: Vec<Library>,
    /// A line per problem.
    pub(super) missing: Vec<String>,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Surveyed {
    /// The name that `--device` accepts.
    pub(super) device: String,
    pub(super) name: String,
    pub(super) memory_bytes: Option<u64>,
    /// Compute capability, of a card.
    pub(super) capability: Option<String>,
    /// Memory that a card's context takes.
    pub(super) context_bytes: Option<u64>,
    pub(super) product_flops_per_s: Option<f64>,
    pub(super) bf16_product_flops_per_s: Option<f64>,
    pub(super) copy_bytes_per_s: Option<f64>,
    /// Of a card: between it and its host, per direction.
    pub(super) link_bytes_per_s: Option<u64>,
    /// Of a card's host, on the threads that its operations run on.
    pub(super) host_bytes_per_s: Option<u64>,
    pub(super) host_flops_per_s: Option<u64>,
    /// Why it is unusable.
    pub(super) problem: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Library {
    pub(super) name: &'static str,
    pub(super) version: String,
    pub(super) path: Option<String>,
}

/// Probes every device and measures the usable ones, each in a process of its own.
pub(super) fn survey() -> Survey {
    let Inventory { driver, cards, nvrtc, cublaslt, nccl } = device::inventory();
    let mut survey =
        Survey { devices: vec![processor()], libraries: Vec::new(), missing: Vec::new(), notes: Vec::new() };
    for card in &cards {
        let (surveyed, notes) = survey_card(card);
        survey.devices.push(surveyed);
        for note in notes {
            if !survey.notes.contains(&note) {
                survey.notes.push(note);
            }
        }
    }
    let all = [("driver (CUDA)", driver), ("NVRTC", nvrtc), ("cuBLASLt", cublaslt)];
    for (name, found) in all {
        survey.add(name, found);
    }
    // Only several cards need it.
    if nccl.is_ok() || cards.len() > 1 {
        survey.add("NCCL", nccl);
    }
    survey
}

impl Survey {
    fn add(&mut self, name: &'static str, found: Result<Found, Unavailable>) {
        match found {
            Ok(Found { version, path }) => self.libraries.push(Library {
                name,
                version: version.to_string(),
                path: path.map(|path| path.display().to_string()),
            }),
            Err(error) => self.missing.push(error.to_string()),
        }
    }
}

impl Surveyed {
    fn probed(self, probed: Result<ProbeReport, ProbeError>) -> (Surveyed, Vec<String>) {
        match probed {
            Ok(probed) => {
                let surveyed = Surveyed {
                    // Only a card has a context.
                    context_bytes: self.capability.is_some().then_some(probed.context_bytes),
                    product_flops_per_s: probed.product_flops_per_s,
                    bf16_product_flops_per_s: probed.bf16_product_flops_per_s,
                    copy_bytes_per_s: probed.copy_bytes_per_s,
                    ..self
                };
                (surveyed, probed.notes)
            }
            Err(error) => (Surveyed { problem: Some(error.to_string()), ..self }, Vec::new()),
        }
    }
}

fn processor() -> Surveyed {
    let blank = Surveyed { device: "cpu".to_owned(), ..Surveyed::default() };
    match device::detect(DeviceChoice::Cpu, None) {
        Ok(target) => {
            let named = Surveyed { name: target.name, memory_bytes: Some(target.memory.0), ..blank };
            named.probed(device::probe_in_child(None, true)).0
        }
        Err(error) => Surveyed { problem: Some(error.to_string()), ..blank },
    }
}

fn survey_card(card: &Card) -> (Surveyed, Vec<String>) {
    let named = Surveyed {
        device: format!("cuda:{}", card.ordinal),
        name: card.name.clone(),
        memory_bytes: Some(card.memory),
        capability: Some(card.capability.to_string()),
        ..Surveyed::default()
    };
    let (mut surveyed, mut notes) = named.probed(device::probe_in_child(Some(card.ordinal), true));
    if surveyed.problem.is_none() {
        let (NodeRates { link, host_bandwidth, host_flops, .. }, problems) = host::measure(card.ordinal);
        surveyed = Surveyed {
            link_bytes_per_s: link.map(|rate| rate.0),
            host_bytes_per_s: host_bandwidth.map(|rate| rate.0),
            host_flops_per_s: host_flops.map(|rate| rate.0),
            ..surveyed
        };
        notes.extend(problems);
    }
    (surveyed, notes)
}
