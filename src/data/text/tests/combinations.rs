//! Combinations of the keys of a text: tokens, records, templates, masks, documents, files for evaluation, compression.

use super::files::gzip;
use super::*;

/// Prompts and answers. A token alone, and a prompt without an answer, have no sample.
const TURNS: [(&str, &str); 5] = [("two", "four"), ("three", ""), ("", "a"), ("q", "an answer"), ("", "")];

/// A token, and whether it is a target.
type Token = (u8, bool);

fn tokens(text: &str, is_target: bool) -> Vec<Token> {
    text.bytes().map(|byte| (byte, is_target)).collect()
}

/// Each kind of records: its format and encoding, a record of a turn, and the tokens that it stands for.
#[expect(clippy::type_complexity)]
fn kinds()
-> Vec<(RecordFormat, Encoding, fn(&str, &str) -> serde_json::Value, Box<dyn Fn(&str, &str) -> Vec<Token>>)> {
    let pair = |prompt: &str, answer: &str| serde_json::json!({ "prompt": prompt, "completion": answer });
    let ids = |prompt: &str, answer: &str| {
        let all: Vec<u8> = [prompt, answer].concat().into_bytes();
        let label = |(at, id): (usize, &u8)| if at < prompt.len() { -100 } else { i32::from(*id) };
        serde_json::json!({ "ids": all, "labels": all.iter().enumerate().map(label).collect::<Vec<_>>() })
    };
    let chat =
        |messages: &[(Option<&'static str>, &str)], ends: [&str; 2], masks_prompt| RecordFormat::Chat {
            field: None,
            template: ChatTemplate {
                begin: ends[0].to_owned(),
                messages: messages.iter().map(|(role, text)| (*role, (*text).to_owned())).collect(),
                end: ends[1].to_owned(),
            },
            masks_prompt,
        };
    let all = [(None, "{content}")];
    let roles = [(Some("user"), "[{content}]"), (Some("assistant"), "{content}.")];
    let mut kinds: Vec<(_, _, fn(&str, &str) -> _, Box<dyn Fn(&str, &str) -> Vec<Token>>)> = vec![
        (
            RecordFormat::Text("completion".to_owned()),
            Encoding::Bytes,
            pair,
            Box::new(|_, answer| tokens(answer, true)),
        ),
        (
            RecordFormat::Ids("ids".to_owned()),
            Encoding::Ids,
            ids,
            Box::new(|prompt, answer| [tokens(prompt, false), tokens(answer, true)].concat()),
        ),
    ];
    for masks in [false, true] {
        kinds.push((
            chat(&all, ["", ""], masks),
            Encoding::Bytes,
            pair,
            Box::new(move |prompt, answer| [tokens(prompt, !masks), tokens(answer, true)].concat()),
        ));
        kinds.push((
            chat(&roles, ["<", ">"], masks),
            Encoding::Bytes,
            pair,
            Box::new(move |prompt, answer| {
                [tokens(&format!("<[{prompt}]"), !masks), tokens(&format!("{answer}.>"), true)].concat()
            }),
        ));
    }
    kinds
}

#[test]
fn keys_of_text_compose() {
    for (records, encoding, record, expected) in kinds() {
        let documents: Vec<Vec<Token>> =
            TURNS.iter().map(|(prompt, answer)| expected(prompt, answer)).collect();
        let lines = |turns: &[(&str, &str)]| {
            let lines = turns.iter().map(|(prompt, answer)| record(prompt, answer).to_string() + "\n");
            lines.collect::<String>().into_bytes()
        };
        for (arrangement, evaluates, compresses) in [Documents::Joined, Documents::Padded, Documents::Packed]
            .into_iter()
            .flat_map(|arrangement| [(arrangement, false), (arrangement, true)])
            .flat_map(|(arrangement, evaluates)| {
                [(arrangement, evaluates, false), (arrangement, evaluates, true)]
            })
        {
            let case = format!("{records:?}, {arrangement:?}, evaluate {evaluates}, gzip {compresses}");
            let stored = |lines: Vec<u8>| if compresses { gzip(&lines) } else { lines };
            let (training, evaluation) = TURNS.split_at(if evaluates { 3 } else { TURNS.len() });
            let mut folder = TestFolder::with(&[("a.jsonl", &stored(lines(training)))]);
            fs::write(folder.text("b.val"), stored(lines(evaluation))).unwrap();
            let set = TextSet {
                paths: vec![folder.text("a.jsonl")],
                encoding: encoding.clone(),
                records: Some(records.clone()),
                documents: arrangement,
                evaluate: if evaluates { vec![folder.text("b.val")] } else { Vec::new() },
                split: 1.0,
            };
            let cached = folder.encoded(&set, encoder::in_thread).unwrap();
            if arrangement == Documents::Joined {
                let is_masked = documents.iter().flatten().any(|(_, is_target)| !is_target);
                let joined = set.joined(cached);
                assert_eq!(matches!(joined, Err(DataError::MaskedRow)), is_masked, "{case}");
                continue;
            }
            let found = set.separated(&cached).unwrap();
            let mut row = vec![[0; 4]; *found.ends.last().unwrap() as usize];
            super::row(cached.encoded, cached.below).read(0, Ids::I32(&mut row)).unwrap();
            let is_target = |at: u64| !found.masked.iter().any(|range| range.contains(&at));
            let row: Vec<Token> = (0..).zip(row).map(|(at, byte)| (byte[0], is_target(at))).collect();
            assert_eq!(row, documents.concat(), "{case}");
            let has_tokens =
                |documents: &[Vec<Token>]| documents.iter().filter(|one| !one.is_empty()).count();
            assert_eq!(found.training, has_tokens(&documents[..training.len()]), "{case}");
            assert_eq!(found.ends.len(), has_tokens(&documents), "{case}");
            // The first token of a document is no target.
            let has_target = |one: &&Vec<Token>| one.iter().skip(1).any(|(_, is_target)| *is_target);
            let used = documents.iter().filter(has_target).count();
            let note = &found.notes.last().unwrap().text;
            let left_out = documents.len() - used;
            let counts = match left_out {
                0 => format!("documents: {used} used"),
                _ => format!("documents: {used} used, {left_out} left out ("),
            };
            assert!(note.starts_with(&counts), "{case}: {note}");
        }
    }
}
