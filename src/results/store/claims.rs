//! Claims of running processes on repeats, shown by `status`.
//!
//! A claim is a hint: no process relies on another's. It is a file in the private folder, which disappears when the repeat
//! is committed.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{StoreError, private};
use base::regular;
use base::temporary::{self, Owner};
use execute::LOG_FILE;

/// The file in a private folder.
pub(super) const CLAIM_FILE: &str = "claim.json";

/// The process that measures a repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimant {
    pub host: String,
    /// In the process namespace of its container.
    pub process: u32,
    /// The job of the scheduler.
    pub job: Option<String>,
    /// Seconds since 1970.
    since: u64,
}

/// A repeat in a private folder.
#[derive(Debug)]
pub struct Claim {
    pub run_id: String,
    pub repeat: usize,
    /// Unknown for a moment after the folder was made.
    pub claimant: Option<Claimant>,
    pub owner: Owner,
    /// The time since the claim.
    pub age: Duration,
}

impl Claimant {
    /// This process, now.
    pub(super) fn this() -> Claimant {
        Claimant {
            host: host(),
            process: std::process::id(),
            job: std::env::var("SLURM_JOB_ID").ok(),
            since: seconds_now(),
        }
    }
}

/// Seconds since 1970.
pub(super) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The name of this host.
fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The claims in the folder of a run.
///
/// # Errors
///
/// The folder is unreadable.
pub(super) fn in_run(run_id: &str, folder: &Path) -> Result<Vec<Claim>, StoreError> {
    let claim = |name: String| {
        let path = folder.join(&name);
        let (of, mut owner) = temporary::owner(&path, LOG_FILE)?;
        let claimant: Option<Claimant> = regular::read_to_string(&path.join(CLAIM_FILE))
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok());
        // Without locks, as far as this host's processes tell. The number may be another's by now.
        if let (Owner::Unknown, Some(claimant)) = (owner, &claimant)
            && claimant.host == host()
        {
            let is_there = Path::new("/proc").join(claimant.process.to_string()).exists();
            owner = if is_there { Owner::Alive } else { Owner::Gone };
        }
        // A folder without a claim may be gone by now.
        let made = fs::symlink_metadata(&path).and_then(|folder| folder.modified()).ok()?;
        // Of a damaged claim, the time may be out of range.
        let claimed = claimant.as_ref().map(|claimant| Duration::from_secs(claimant.since));
        let since = claimed.and_then(|since| UNIX_EPOCH.checked_add(since)).unwrap_or(made);
        let age = SystemTime::now().duration_since(since).unwrap_or_default();
        Some(Claim { run_id: run_id.to_owned(), repeat: of.parse().ok()?, claimant, owner, age })
    };
    Ok(private::names(folder)?.into_iter().filter_map(claim).collect())
}
