//! `plan.alloc_conf`: the words of `PYTORCH_ALLOC_CONF` whose effect on memory is predicted.
//!
//! Source: `c10/core/AllocatorConfig.h` and `c10/cuda/CUDAAllocatorConfig.h` of PyTorch 2.15.

use std::fmt;

use crate::reader::error::Problem;
use crate::reader::forms::Form;
use crate::reader::hints::{list, nearest};
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::tree::{Node, Value};

const MIB: u64 = 1 << 20;

/// The smallest `max_split_size_mb` that PyTorch accepts: its segments of shared requests.
const LEAST_SPLIT: u64 = 20;
/// More than any card has.
const MOST_SPLIT: u64 = 1 << 24;

/// Keeps the products of divisions and bytes in range.
const MOST_DIVISIONS: u64 = 1 << 32;

/// Intervals of `roundup_power2_divisions`: from each power of two to the next, of 1 MiB to 32 GiB and more.
const INTERVALS: usize = 16;

const WORDS: [&str; 3] = ["expandable_segments", "max_split_size_mb", "roundup_power2_divisions"];

/// Words that are refused, with the reason.
const REFUSED: [(&str, &str); 15] = [
    (
        "garbage_collection_threshold",
        "it has no effect unless a program limits its memory by torch.cuda.set_per_process_memory_fraction",
    ),
    ("max_non_split_rounding_mb", "its effect is not predicted"),
    ("large_segment_size_mb", "its effect is not predicted"),
    ("per_process_memory_fraction", "limit the memory by `--memory` or `memory` in [target]"),
    ("backend", "cudaMallocAsync is an allocator of the driver, and `native` is the default"),
    ("expandable_segments_reserve", "it changes addresses, not memory"),
    ("expandable_segments_reserve_by_class", "it changes addresses, not memory"),
    ("pinned_use_cuda_host_register", PINNED),
    ("pinned_num_register_threads", PINNED),
    ("pinned_reserve_segment_size_mb", PINNED),
    ("pinned_use_background_threads", PINNED),
    ("pinned_free_catch_all", PINNED),
    ("release_lock_on_cudamalloc", "it has no effect on memory"),
    ("graph_capture_record_stream_reuse", "CUDA graphs are not predicted"),
    ("throw_on_cudamalloc_oom", "it changes an error's text"),
];

const PINNED: &str = "it concerns pinned host memory, which is not predicted";

/// Settings of PyTorch's caching allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocConf {
    /// Whether segments grow page by page.
    pub expandable_segments: bool,
    /// Blocks of at least this many bytes are never divided.
    pub max_split_size: Option<u64>,
    /// By interval: the number of equal parts to which requests between two powers of two are rounded; 0 for no
    /// rounding.
    divisions: [u64; INTERVALS],
}

impl AllocConf {
    /// The value of `roundup_power2_divisions` for a request of this many bytes.
    pub fn divisions(&self, bytes: u64) -> u64 {
        let interval = (bytes.max(1) / MIB).max(1).ilog2() as usize;
        self.divisions[interval.min(INTERVALS - 1)]
    }

    /// Reads a value of `PYTORCH_ALLOC_CONF`.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub fn parse(text: &str) -> Result<AllocConf, (String, String)> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut conf = AllocConf::default();
        let mut known: Vec<&str> = Vec::new();
        for setting in split(&text).filter(|_| !text.is_empty()) {
            let (word, value) = setting.split_once(':').unwrap_or((setting, ""));
            if known.contains(&word) {
                return Err((format!("`{word}` is set twice"), "remove one of them".to_owned()));
            }
            known.push(word);
            match word {
                "expandable_segments" => conf.expandable_segments = truth(value)?,
                "max_split_size_mb" => conf.max_split_size = Some(split_size(value)?),
                "roundup_power2_divisions" => conf.divisions = divisions(value)?,
                _ => return Err(unknown(word)),
            }
        }
        if conf.expandable_segments && conf.max_split_size.is_some() {
            let what = "`expandable_segments` and `max_split_size_mb` are not predicted together";
            return Err((what.to_owned(), "remove one of them".to_owned()));
        }
        Ok(conf)
    }
}

/// The settings between commas outside brackets.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    })
}

fn unknown(word: &str) -> (String, String) {
    let words = format!("use {}", list(&WORDS));
    if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| *refused == word) {
        return (format!("`{word}` cannot be set here: {reason}"), words);
    }
    let help = match nearest(word, &WORDS) {
        Some(near) => format!("did you mean `{near}`?"),
        None => words,
    };
    (format!("`{word}` is no word of PYTORCH_ALLOC_CONF that is known"), help)
}

fn truth(value: &str) -> Result<bool, (String, String)> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err((
            format!("`expandable_segments` must be True or False, not `{value}`"),
            "write expandable_segments:True".to_owned(),
        )),
    }
}

fn split_size(value: &str) -> Result<u64, (String, String)> {
    let size = value.parse().ok().filter(|size| (LEAST_SPLIT..=MOST_SPLIT).contains(size));
    size.map(|size: u64| size * MIB).ok_or_else(|| {
        (
            format!(
                "`max_split_size_mb` must be a whole number from {LEAST_SPLIT} to {MOST_SPLIT}, not `{value}`"
            ),
            "write max_split_size_mb:128".to_owned(),
        )
    })
}

/// One number for all intervals, or a list such as `[256:1,512:2,>:8]`: sizes in MiB with their numbers. The first number
/// also counts for all smaller sizes, the number of `>` for all sizes after the one before it.
fn divisions(value: &str) -> Result<[u64; INTERVALS], (String, String)> {
    let wrong = |what: String| (what, "write roundup_power2_divisions:[256:1,512:2,1024:4,>:8]".to_owned());
    let number = |text: &str, least: u64| -> Result<u64, (String, String)> {
        let is_valid = |number: &u64| {
            (least..=MOST_DIVISIONS).contains(number) && (*number == 0 || number.is_power_of_two())
        };
        text.parse().ok().filter(is_valid).ok_or_else(|| {
            wrong(format!(
                "numbers of `roundup_power2_divisions` must be powers of two up to {MOST_DIVISIONS}, not `{text}`"
            ))
        })
    };
    let Some(pairs) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return Ok([number(value, 1)?; INTERVALS]);
    };
    let mut divisions = [0; INTERVALS];
    let mut last = None;
    for pair in pairs.split(',') {
        let (size, count) = pair.split_once(':').unwrap_or((pair, ""));
        let count = number(count, 0)?;
        if size == ">" {
            divisions[last.unwrap_or(0) + 1..].fill(count);
            continue;
        }
        let interval = (number(size, 1)?.ilog2() as usize).min(INTERVALS - 1);
        if last.is_none() {
            divisions[..interval].fill(count);
        }
        divisions[interval] = count;
        last = Some(interval);
    }
    Ok(divisions)
}

/// As in `PYTORCH_ALLOC_CONF`; nothing for the defaults.
impl fmt::Display for AllocConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.expandable_segments.then(|| "expandable_segments:True".to_owned()));
        words.extend(self.max_split_size.map(|size| format!("max_split_size_mb:{}", size / MIB)));
        if self.divisions.iter().any(|count| *count != self.divisions[0]) {
            let last = self.divisions[INTERVALS - 1];
            let equal = self.divisions.iter().rev().take_while(|count| **count == last).count();
            // One interval more: the number of `>` counts for those after the one before it.
            let own = (INTERVALS - equal).max(1);
            let pairs =
                self.divisions[..own].iter().enumerate().map(|(at, count)| format!("{}:{count}", 1u64 << at));
            let pairs = pairs.chain([format!(">:{last}")]);
            words.push(format!("roundup_power2_divisions:[{}]", pairs.collect::<Vec<_>>().join(",")));
        } else if self.divisions[0] > 0 {
            words.push(format!("roundup_power2_divisions:{}", self.divisions[0]));
        }
        f.write_str(&words.join(","))
    }
}

/// The value in an experiment file.
pub(super) struct AllocConfText;

impl ValueParser for AllocConfText {
    type Output = String;

    fn parse(&self, value: &Value) -> Option<String> {
        match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        "words of PYTORCH_ALLOC_CONF, such as \"expandable_segments:True\"".to_owned()
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::matching(String::new())]
    }
}

pub(super) fn read(keys: &Keys<'_>, node: &Node) -> Option<AllocConf> {
    let text = keys.parse("alloc_conf", node, &AllocConfText)?;
    let conf = AllocConf::parse(&text);
    conf.map_err(|(what, help)| {
        keys.reader().problem(Problem::new(format!("`plan.alloc_conf`: {what}")).at(node.span).help(help));
    })
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_pytorch_reads_them() {
        let conf = |text: &str| AllocConf::parse(text).unwrap();
        assert_eq!(
            conf(" expandable_segments : True "),
            AllocConf { expandable_segments: true, ..AllocConf::default() }
        );
        assert_eq!(conf("expandable_segments:False"), AllocConf::default());
        let split = conf("max_split_size_mb:20,roundup_power2_divisions:4");
        assert_eq!((split.max_split_size, split.divisions), (Some(20 << 20), [4; INTERVALS]));
        // Checked with PyTorch 2.15: the first number counts for smaller sizes, sizes between are not rounded, `>` begins
        // after the last size, and without one after the first interval.
        let divisions =
            |list: &str| conf(&format!("roundup_power2_divisions:[{list}]")).divisions[..5].to_vec();
        assert_eq!(divisions("2:2,8:4,>:8"), [2, 2, 0, 4, 8]);
        assert_eq!(divisions("4:2,2:4,>:8"), [2, 4, 8, 8, 8]);
        assert_eq!(divisions(">:8"), [0, 8, 8, 8, 8]);
        assert_eq!(conf("roundup_power2_divisions:[131072:2]").divisions, [2; INTERVALS]);
        let conf = conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
        let of = [0, 1, MIB, 256 * MIB, 512 * MIB - 1, 512 * MIB, 1 << 30, 1 << 31, 1 << 40];
        assert_eq!(of.map(|bytes| conf.divisions(bytes)), [1, 1, 1, 1, 1, 2, 4, 8, 8]);
    }

    #[test]
    fn displayed_words_are_read_again() {
        let texts = [
            "expandable_segments:True",
            "max_split_size_mb:128,roundup_power2_divisions:4",
            "roundup_power2_divisions:[256:1,512:2,>:8]",
            "expandable_segments:True,roundup_power2_divisions:[1:2]",
        ];
        for text in texts {
            let conf = AllocConf::parse(text).unwrap();
            assert_eq!(AllocConf::parse(&conf.to_string()), Ok(conf), "{text}");
        }
        // Equal intervals at the end are not listed.
        let short = "roundup_power2_divisions:[1:2,2:4,>:8]";
        assert_eq!(AllocConf::parse(short).unwrap().to_string(), short);
    }

    #[test]
    fn words_without_a_prediction_are_refused_by_name() {
        for (word, reason) in REFUSED {
            let (what, help) = AllocConf::parse(&format!("{word}:1")).unwrap_err();
            assert_eq!(what, format!("`{word}` cannot be set here: {reason}"));
            assert_eq!(help, "use `expandable_segments`, `max_split_size_mb` or `roundup_power2_divisions`");
        }
    }
}
