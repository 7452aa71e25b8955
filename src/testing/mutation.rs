//! Mutated files: text with parts broken, moved, repeated or exaggerated. The same seed always gives the same file.

/// A pseudorandom generator (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

/// Unusual values in the common and differing syntax of TOML, JSON and CSV.
const VALUES: &[&str] = &[
    "",
    "0",
    "-1",
    "1",
    "2",
    "-0.0",
    "1e308",
    "1e-400",
    "-1e999",
    "nan",
    "inf",
    "-inf",
    "NaN",
    "null",
    "true",
    "off",
    "\"off\"",
    "\"\"",
    "\"1\"",
    "'",
    "\"",
    "\"\"\"",
    "''",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "340282366920938463463374607431768211456",
    "16777216",
    "16777217",
    "0x10",
    "0b1",
    "1_000",
    "1__0",
    "[]",
    "[[]]",
    "[1]",
    "[1, 1]",
    "[nan, nan]",
    "[\"a\", \"a\"]",
    "{}",
    "{ a = 1 }",
    "{\"a\": 1}",
    "[{}]",
    "1979-05-27T07:32:00Z",
    "25:61:00",
    "\"${HOME}\"",
    "\"${NOT_SET_ANYWHERE}\"",
    "\"${\"",
    "\"$$\"",
    "\"**\"",
    "\"***\"",
    "\"[\"",
    "\"*\"",
    "\"/\"",
    "\"..\"",
    "\"/dev/zero\"",
    "\"/dev/stdin\"",
    "\"a.toml\"",
    "\"base\"",
    "\"24 GiB\"",
    "\"0 B\"",
    "\"-1 B\"",
    "\"1e99 GiB\"",
    "\"99999999 TiB\"",
    "\"\\u0000\"",
    "\"\\u001b[31m\"",
    "\"\\u202e\"",
    "\"\\u009b2J\"",
    "\"\\n\\n\"",
    "\"\\ud800\"",
    "\"a\\nerror: b\"",
    "=1+1",
    "@",
    "+1",
    "'=1",
    "1,2",
    "a b",
];

/// Bytes that are not valid text, are syntax, or are terminal control characters.
const BYTES: &[&[u8]] = &[
    b"\0",
    b"\x1b",
    b"\x1b[31m",
    b"\x1b]0;title\x07",
    b"\r",
    b"\r\n",
    b"\n",
    b"\t",
    b"\x08",
    b"\x7f",
    b"\xff",
    b"\xfe",
    b"\x80",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf",
    b"\xc2\x9b",
    b"\xc2\x85",
    b"\xe2\x80\xae",
    b"\xe2\x81\xa6",
    b"\xe2\x80\x8f",
    b"\xd8\x9c",
    b"\xe2\x80\xa8",
    b"\xf0\x9f\x98\x80",
    b"\"",
    b"'",
    b"[",
    b"]",
    b"[[",
    b"{",
    b"}",
    b"=",
    b":",
    b",",
    b".",
    b"#",
    b"\\",
    b"-",
    b"e",
    b"9",
    b"/",
    b"*",
    b"${",
];

/// Applies one to four mutations to a text; some insert lines of the other texts.
pub fn mutated(text: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..=random.below(4) {
        mutate(&mut text, others, random);
    }
    text
}

fn mutate(text: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    match random.below(16) {
        0 => flip(text, random),
        1 => cut(text, random),
        2 => repeat(text, random),
        3 => insert(text, random),
        4 => truncate(text, random),
        5..=6 => change_lines(text, random),
        7..=10 => replace_value(text, random),
        11..=13 => rename_key(text, random),
        14 => exaggerate(text, random),
        _ => insert_lines(text, others, random),
    }
}

fn flip(text: &mut [u8], random: &mut Random) {
    if !text.is_empty() {
        let at = random.below(text.len());
        text[at] ^= 1 << random.below(8);
    }
}

/// A random range, usually short.
fn random_range(text: &[u8], random: &mut Random) -> std::ops::Range<usize> {
    let longest = if random.below(4) == 0 { text.len() } else { text.len().min(16) };
    let start = random.below(text.len() + 1);
    start..(start + random.below(longest + 1)).min(text.len())
}

fn cut(text: &mut Vec<u8>, random: &mut Random) {
    text.drain(random_range(text, random));
}

fn truncate(text: &mut Vec<u8>, random: &mut Random) {
    text.truncate(random.below(text.len() + 1));
}

fn repeat(text: &mut Vec<u8>, random: &mut Random) {
    let range = random_range(text, random);
    let most = 1 << random.below(10);
    let times = 1 + random.below(most);
    let repeated = text[range.clone()].repeat(times.min(20_000 / (range.len() + 1) + 1));
    text.splice(range.end..range.end, repeated);
}

fn insert(text: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(text.len() + 1);
    text.splice(at..at, random.one_of(BYTES).iter().copied());
}

/// Swaps two lines, or duplicates, moves or removes one.
fn change_lines(text: &mut Vec<u8>, random: &mut Random) {
    let mut lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let (one, other) = (random.below(lines.len()), random.below(lines.len()));
    match random.below(4) {
        0 => lines.swap(one, other),
        1 => lines.insert(other, lines[one].clone()),
        2 => {
            let line = lines.remove(one);
            lines.insert(other.min(lines.len()), line);
        }
        _ => drop(lines.remove(one)),
    }
    *text = lines.join(&b'\n');
}

/// Replaces text from a position where a value may start to one where it may end.
fn replace_value(text: &mut Vec<u8>, random: &mut Random) {
    let starts: Vec<usize> = offsets_of(text, b"=:,[");
    let Some(start) = pick(&starts, random).map(|start| start + 1) else { return };
    let length = text[start..].iter().position(|byte| b",\n]}".contains(byte)).unwrap_or(text.len() - start);
    text.splice(start..start + length, random.one_of(VALUES).bytes());
}

/// Renames, quotes, nests or empties a name.
fn rename_key(text: &mut Vec<u8>, random: &mut Random) {
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let names: Vec<usize> = (0..text.len())
        .filter(|at| is_name_byte(text[*at]) && (*at == 0 || !is_name_byte(text[*at - 1])))
        .collect();
    let (Some(start), Some(from)) = (pick(&names, random), pick(&names, random)) else { return };
    let word = |at: usize| {
        text[at..].iter().position(|byte| !is_name_byte(*byte)).map_or(text.len(), |end| at + end)
    };
    let end = word(start);
    let name = text[start..end].to_vec();
    let other = text[from..word(from)].to_vec();
    let new: Vec<u8> = match random.below(8) {
        0 => other,
        1 => [&name[..], b".", &other[..]].concat(),
        2 => [b"\"", &name[..], b"\\u001b\""].concat(),
        3 => [&name[..], b"s"].concat(),
        4 => name[1..].to_vec(),
        5 => b"\"\"".to_vec(),
        6 => [&name[..], b".".repeat(1 + random.below(3)).as_slice(), &name[..]].concat(),
        _ => random.one_of(BYTES).to_vec(),
    };
    text.splice(start..end, new);
}

/// Inserts many repetitions of one thing: a very long line, deep nesting, or a very long list.
fn exaggerate(text: &mut Vec<u8>, random: &mut Random) {
    let many = 1 << random.below(14);
    let inserted = match random.below(8) {
        0 => b"[".repeat(many),
        1 => b"{a=".repeat(many.min(4096)),
        2 => b"x".repeat(many),
        3 => b"9".repeat(many),
        4 => b"a.".repeat(many),
        5 => b"1,".repeat(many.min(4096)),
        6 => (0..many.min(1000)).flat_map(|number| format!("k{number} = {number}\n").into_bytes()).collect(),
        _ => random.one_of(BYTES).repeat(many.min(4096)),
    };
    let at = match pick(&offsets_of(text, b"=\n\":,"), random) {
        Some(at) => at + 1,
        None => text.len(),
    };
    text.splice(at..at, inserted);
}

fn insert_lines(text: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let Some(other) = others.get(random.below(others.len().max(1))) else { return };
    let lines: Vec<&[u8]> = other.split_inclusive(|byte| *byte == b'\n').collect();
    let start = random.below(lines.len().max(1));
    let borrowed = lines.iter().skip(start).take(1 + random.below(4)).copied().collect::<Vec<_>>().concat();
    let at = pick(&offsets_of(text, b"\n"), random).map_or(text.len(), |at| at + 1);
    text.splice(at..at, borrowed);
}

fn offsets_of(text: &[u8], bytes: &[u8]) -> Vec<usize> {
    (0..text.len()).filter(|at| bytes.contains(&text[*at])).collect()
}

fn pick(offsets: &[usize], random: &mut Random) -> Option<usize> {
    offsets.get(random.below(offsets.len().max(1))).copied()
}
