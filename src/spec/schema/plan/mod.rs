//! `[plan]`: the figures that `plan` and `explain` show. Its keys belong to no run.

mod alloc_conf;

pub use alloc_conf::AllocConf;

use alloc_conf::AllocConfText;

use crate::reader::declare::keywords;
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::parsers::keyword;
use crate::reader::reference::{Accepts, DeclaredKey};

pub(crate) const PLAN_KEYS: &[&str] = &["as", "alloc_conf"];

keywords! {
    /// The program whose memory is shown.
    pub enum Framework {
        Runner = "runner",
        Pytorch = "pytorch",
    }
}

/// The keys of `[plan]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanKeys {
    pub framework: Framework,
    pub alloc_conf: AllocConf,
}

impl Default for PlanKeys {
    fn default() -> PlanKeys {
        PlanKeys { framework: Framework::Runner, alloc_conf: AllocConf::default() }
    }
}

impl PlanKeys {
    pub(crate) fn read<'a>(keys: &mut Keys<'a>) -> Option<PlanKeys> {
        let Some(mut keys) = keys.table("plan", "plan", "[plan]") else { return Some(PlanKeys::default()) };
        let framework = keys.optional("as", keyword());
        let alloc_conf = match keys.entry("alloc_conf") {
            None => Some(AllocConf::default()),
            Some(entry) => alloc_conf::read(&keys, &entry.node),
        };
        keys.finish();
        Some(PlanKeys { framework: framework?.unwrap_or(Framework::Runner), alloc_conf: alloc_conf? })
    }
}

/// `[plan]` is read by hand: `as` cannot name a field.
pub(super) fn reference() -> Vec<DeclaredKey> {
    let framework = "Whose memory `plan` and `explain` show: this program's, or PyTorch's for the same training on a known card. `--as` wins.";
    let conf = "Settings of PyTorch's allocator in the prediction of its memory, as in PYTORCH_ALLOC_CONF.";
    let keyword = keyword::<Framework>();
    vec![
        DeclaredKey::new("as", framework, Accepts::value(keyword.expected()), Some("`\"runner\"`")),
        DeclaredKey::new("alloc_conf", conf, Accepts::value(AllocConfText.expected()), Some("`\"off\"`")),
    ]
}
