//! (stands in for looking at the machine)

use super::{DeviceKind, Target};
use crate::units::Bytes;

/// Which device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceChoice {
    Auto,
    Cpu,
    Cuda,
}

pub fn detect(choice: DeviceChoice, memory: Option<Bytes>) -> Result<Target, String> {
    if choice == DeviceChoice::Cuda {
        return Err("there is no CUDA device".into());
    }
    let target = Target {
        name: "a processor".into(),
        kind: DeviceKind::Cpu,
        threads: 2,
        alignment: Bytes(64),
        page: Bytes(4096),
        product_workspace: Bytes(0),
        context: Bytes(0),
        memory: Bytes(1 << 30),
        limited: false,
    };
    Ok(match memory {
        Some(memory) => target.with_memory(memory),
        None => target,
    })
}
