//! JSON files: nested fields, arrays, conversations, token ids, and the targets that they mask.

use super::*;
use crate::{Batch, Order, TrainingStep};

const CHATML: &str = "<|{role}|>{content}<e>\n";

fn chat(field: Option<&str>, masks_prompt: bool) -> RecordFormat {
    RecordFormat::Chat { field: field.map(str::to_owned), template: for_all(CHATML), masks_prompt }
}

/// The same text for messages of all roles.
fn for_all(text: &str) -> ChatTemplate {
    ChatTemplate { messages: vec![(None, text.to_owned())], ..ChatTemplate::default() }
}

/// A set of documents in a JSON file.
fn set(folder: &TestFolder, encoding: Encoding, records: RecordFormat) -> TextSet {
    let set = folder.set(encoding, None);
    TextSet { records: Some(records), documents: Documents::Padded, ..set }
}

/// The documents of a file as bytes, with `_` for bytes that are no targets.
fn documents(file: &str, records: RecordFormat) -> Result<Vec<String>, String> {
    let mut folder = TestFolder::with(&[("a.json", file.as_bytes())]);
    let set = set(&folder, Encoding::Bytes, records);
    let path = folder.text("a.json").display().to_string();
    let cached = folder.encoded(&set, encoder::in_thread);
    let cached =
        cached.map_err(|error| format!("{}; {}", error.to_string().replace(&path, "FILE"), error.help()))?;
    let documents = set.separated(&cached).unwrap();
    let mut text = vec![[0; 4]; *documents.ends.last().unwrap() as usize];
    row(cached.encoded, cached.below).read(0, Ids::I32(&mut text)).unwrap();
    let mut text: Vec<u8> = text.into_iter().map(|byte| byte[0]).collect();
    for range in &documents.masked {
        text[range.start as usize..range.end as usize].fill(b'_');
    }
    let begins = std::iter::once(&0).chain(&documents.ends);
    let of = |(begin, end): (&u64, &u64)| {
        String::from_utf8(text[*begin as usize..*end as usize].to_vec()).unwrap()
    };
    Ok(begins.zip(&documents.ends).map(of).collect())
}

fn texts(file: &str, field: &str) -> Result<Vec<String>, String> {
    documents(file, RecordFormat::Text(field.to_owned()))
}

#[test]
fn fields_may_be_nested_and_files_arrays() {
    let ab = Ok(vec!["a".to_owned(), "b".to_owned()]);
    let lines = "{\"data\": {\"text\": \"a\"}}\r\n\r\n{\"data\": {\"text\": \"b\"}}";
    assert_eq!(texts(lines, "data.text"), ab);
    assert_eq!(texts("{\"c\": [{\"t\": \"a\"}]}\n{\"c\": [{\"t\": \"b\"}, 1]}", "c.0.t"), ab);
    // A name with a dot.
    assert_eq!(
        texts("{\"data.text\": \"a\", \"data\": {\"text\": \"-\"}}\n{\"data.text\": \"b\"}", "data.text"),
        ab
    );
    let array = " [\n {\"t\": \"a\", \"x\": [1, {\"y\": \"]},\\\"\"}]},\n\n {\"t\":\n \"b\"}\n]\n";
    assert_eq!(texts(array, "t"), ab);
    for (file, problem) in [
        ("[{\"t\": \"a\"},\n{\"t\": 1}]", "line 2 of FILE: its `t` is a number, not text; "),
        (
            "[{\"t\": \"a\"},\n{\"u\": {\"v\": \"b\"}}]",
            "line 2 of FILE: it has no field `t`; its fields with text are `u.v`",
        ),
        ("{\"u\": 1, \"v\": [2]}", "line 1 of FILE: it has no field `t`; its fields are `u`, `v`"),
        ("[{\"t\": \"a\"},\n{\"t\": \"b\"}", "line 2 of FILE: the array is not closed; "),
        ("[{\"t\": \"a\"}] x", "line 1 of FILE: text follows the array; "),
        ("[\"a\", \"b\"]", "line 1 of FILE: it is not a JSON object: it is text; "),
    ] {
        let error = texts(file, "t").unwrap_err();
        assert!(error.starts_with(problem), "{error} should begin with {problem}");
    }
}

#[test]
fn conversations_are_joined_and_prompts_masked() {
    let messages = r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "ask"}, {"role": "assistant", "content": "yes"}]}"#;
    let sharegpt = r#"{"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "ask"}, {"from": "gpt", "value": "yes"}]}"#;
    let text = "<|system|>s<e>\n<|user|>ask<e>\n<|assistant|>yes<e>\n";
    // White space behind an answer is not learnt.
    let masked = text
        .replace("<|system|>s<e>\n<|user|>ask<e>\n<|assistant|>", &"_".repeat(43))
        .replace("yes<e>\n", "yes<e>_");
    let parts = messages.replace(
        r#""content": "ask""#,
        r#""content": [{"type": "text", "text": "a"}, {"type": "text", "text": "sk"}]"#,
    );
    for (file, field) in [
        (messages.to_owned(), None),
        (parts, None),
        (sharegpt.to_owned(), None),
        (messages.replace("messages", "dialog"), Some("dialog")),
        (format!("[{sharegpt}]"), Some("conversations")),
    ] {
        assert_eq!(documents(&file, chat(field, false)), Ok(vec![text.to_owned()]));
        assert_eq!(documents(&file, chat(field, true)), Ok(vec![masked.clone()]));
    }
    let plain =
        |masks_prompt| RecordFormat::Chat { field: None, template: for_all("{content}"), masks_prompt };
    let pair = r#"{"prompt": "2+2=", "completion": " 4"}"#;
    assert_eq!(documents(pair, plain(false)), Ok(vec!["2+2= 4".to_owned()]));
    assert_eq!(documents(pair, plain(true)), Ok(vec!["____ 4".to_owned()]));
    let task = r#"{"instruction": "Add", "input": "2+2", "output": "4"}"#;
    assert_eq!(documents(task, plain(true)), Ok(vec!["________4".to_owned()]));
    for (file, problem) in [
        (r#"{"text": "a"}"#, "line 1 of FILE: it has no `messages`, no `conversations`, no `prompt` with"),
        (r#"{"messages": "a"}"#, "line 1 of FILE: its `messages` is not a list of messages; "),
        (r#"{"messages": [{"content": "a"}]}"#, "line 1 of FILE: its `messages.0` has no `role`; "),
        (
            r#"{"messages": [{"role": "user", "content": null}]}"#,
            "line 1 of FILE: its `messages.0.content` is null, not text; ",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "a"}]}]}"#,
            "line 1 of FILE: its `messages.0.content.0` has no `text`: it is image_url; ",
        ),
        (r#"{"prompt": ["a"], "completion": "b"}"#, "line 1 of FILE: its `prompt` is a list, not text; "),
    ] {
        let error = documents(file, chat(None, true)).unwrap_err();
        assert!(error.starts_with(problem), "{error} should begin with {problem}");
    }
}

/// The ids and masks of a file with token ids.
fn ids(file: &str) -> Result<(Vec<i32>, Vec<std::ops::Range<u64>>), String> {
    let mut folder = TestFolder::with(&[("a.jsonl", file.as_bytes())]);
    let set = set(&folder, Encoding::Ids, RecordFormat::Ids("x.input_ids".to_owned()));
    let cached = folder.encoded(&set, encoder::in_thread).map_err(|error| error.to_string())?;
    let documents = set.separated(&cached).unwrap();
    let mut ids = vec![[0; 4]; *documents.ends.last().unwrap() as usize];
    row(cached.encoded, cached.below).read(0, Ids::I32(&mut ids)).unwrap();
    Ok((ids.into_iter().map(i32::from_ne_bytes).collect(), documents.masked))
}

#[test]
fn token_ids_and_labels_are_read_as_they_are() {
    let line = |ids: &str, more: &str| format!("{{\"x\": {{\"input_ids\": {ids}{more}}}}}\n");
    let first = line("[5, 70000, 7]", "");
    let second = line("[1, 2, 3, 4]", ", \"labels\": [-100, -100, 3, 4]");
    let third = line("[8, 9, 0, 0]", ", \"attention_mask\": [1, 1, 0, 0], \"labels\": [8, 9, -100, -100]");
    let found = ids(&[first, second, third].concat()).unwrap();
    assert_eq!(found, (vec![5, 70000, 7, 1, 2, 3, 4, 8, 9], Vec::from_iter(Some(3..5))));
    for (line, problem) in [
        (line("[1, 2]", ", \"labels\": [1]"), "its `x.labels` has 1 elements, but `x.input_ids` has 2"),
        (line("[1, 2]", ", \"labels\": [-100, 1]"), "its label 1 is 1, but the id is 2"),
        (line("[1, -2]", ""), "its `x.input_ids.1` is the number -2, not a token id"),
        (line("\"1 2\"", ""), "its `x.input_ids` is text, not a list"),
    ] {
        let error = ids(&line).unwrap_err();
        assert!(error.ends_with(problem), "{error} should end with {problem}");
    }
    // Slices of all documents have no mask.
    let file = line("[1, 2, 3]", ", \"labels\": [-100, 2, 3]");
    let mut folder = TestFolder::with(&[("a.jsonl", file.as_bytes())]);
    let set = set(&folder, Encoding::Ids, RecordFormat::Ids("x.input_ids".to_owned()));
    let set = TextSet { documents: Documents::Joined, ..set };
    let error = folder.row(&set).unwrap_err();
    assert_eq!(
        error.to_string(),
        "some tokens are no targets, which documents = \"joined\" cannot leave out"
    );
}

/// Counted by hand: of six documents, the targets, their weight, and the padding.
#[test]
fn masked_targets_are_neither_weighed_nor_padding() {
    let lines = [
        r#"{"input_ids": [1, 2, 3, 4, 5], "labels": [-100, -100, 3, 4, -100]}"#,
        r#"{"input_ids": [6, 7, 8], "labels": [6, 7, 8]}"#,
        // No target: the first token has none.
        r#"{"input_ids": [9, 10, 11], "labels": [9, -100, -100]}"#,
    ];
    let mut folder = TestFolder::with(&[("a.jsonl", lines.join("\n").as_bytes())]);
    let tokens = crate::row::parts(6, None);
    let length = Some(KeyedCount { key: "context", count: 6 });
    for (documents, targets, padding) in [
        (Documents::Padded, vec![[-1, 3, 4, -1, -1, -1], [7, 8, -1, -1, -1, -1]], 2 + 4),
        (Documents::Packed, vec![[-1, 3, 4, -1, 7, 8]], 0),
    ] {
        let set =
            TextSet { documents, ..set(&folder, Encoding::Ids, RecordFormat::Ids("input_ids".to_owned())) };
        let cached = folder.encoded(&set, encoder::in_thread).unwrap();
        let contents = set.separated(&cached).unwrap();
        let mut parts = tokens.to_vec();
        parts.extend(documents.parts(6));
        let sample = Sample { parts, length };
        contents.check_size(&sample, false).unwrap();
        assert_eq!(contents.samples(&sample), targets.len() as u64);
        let data = DocumentSamples::new(row(cached.encoded, cached.below), contents, &sample);
        let samples = targets.len() as u64;
        let mut batch = Batch::new(&sample.parts, targets.len());
        let step = TrainingStep { seed: 1, number: 0, samples, order: Order::Shuffled { keeps_last: true } };
        data.fill_training(&step, 0..samples, &mut batch).unwrap();
        let read = |name: &str| -> Vec<[u8; 4]> { batch.part(name).unwrap().bytes.as_chunks().0.to_vec() };
        let mut found: Vec<i32> = read("targets").into_iter().map(i32::from_ne_bytes).collect();
        let mut expected = targets.concat();
        // In the order of the epoch.
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        // Four targets in all: the mean over all positions is the mean over them.
        let weight = 6.0 * targets.len() as f32 / 4.0;
        assert!(read("weights").into_iter().all(|bytes| f32::from_ne_bytes(bytes) == weight));
        assert_eq!(batch.padding(6), Some([padding, 6 * samples]));
    }
    let none = r#"{"input_ids": [1, 2], "labels": [-100, -100]}"#;
    let mut folder = TestFolder::with(&[("a.jsonl", none.as_bytes())]);
    let set = set(&folder, Encoding::Ids, RecordFormat::Ids("input_ids".to_owned()));
    let cached = folder.encoded(&set, encoder::in_thread).unwrap();
    let sample = Sample { parts: tokens.to_vec(), length };
    let error = set.separated(&cached).unwrap().check_size(&sample, false).unwrap_err().to_string();
    let expected =
        "the training split has 0 documents with a target that is not masked; a sample needs at least 1";
    assert_eq!(error, expected);
}

/// The forms of Llama 2, of Mistral, whose documents end with a text, and of Gemma, without system messages.
#[test]
fn templates_by_role_give_the_forms_of_models() {
    let template = |begin: &str, messages: &[(&'static str, &str)], end: &str| ChatTemplate {
        begin: begin.to_owned(),
        messages: messages.iter().map(|(role, text)| (Some(*role), (*text).to_owned())).collect(),
        end: end.to_owned(),
    };
    let llama2 = template(
        "",
        &[
            ("system", "<<SYS>>\n{content}\n<</SYS>>\n\n"),
            ("user", "<s>[INST] {system}{content} [/INST]"),
            ("assistant", " {content} </s>"),
        ],
        "",
    );
    let mistral =
        template("<s>", &[("user", "[INST] {content} [/INST]"), ("assistant", "{content}")], "</s>\n");
    let turn = "<start_of_turn>model\n{content}<end_of_turn>\n";
    let user = turn.replace("model", "user");
    let gemma = template("<bos>", &[("user", &user), ("assistant", turn)], "");
    let talk = |roles: &[(&str, &str)]| {
        let message =
            |(role, content): &(&str, &str)| serde_json::json!({ "role": role, "content": content });
        serde_json::json!({ "messages": roles.iter().map(message).collect::<Vec<_>>() }).to_string()
    };
    let turns = [("user", "a {system}"), ("assistant", "b"), ("user", "c"), ("model", "d")];
    let with_system = [&[("system", "s {content}")], &turns[..]].concat();
    let found = |file: &str, template: &ChatTemplate, masks_prompt| {
        documents(file, RecordFormat::Chat { field: None, template: template.clone(), masks_prompt })
    };
    for (template, talk, text) in [
        (
            &llama2,
            talk(&with_system),
            "<s>[INST] <<SYS>>\ns {content}\n<</SYS>>\n\na {system} [/INST] b </s><s>[INST] c [/INST] d </s>",
        ),
        (&llama2, talk(&turns[2..]), "<s>[INST] c [/INST] d </s>"),
        (&mistral, talk(&turns), "<s>[INST] a {system} [/INST]b[INST] c [/INST]d</s>\n"),
        (
            &gemma,
            talk(&turns[2..]),
            "<bos><start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\nd<end_of_turn>\n",
        ),
        (&mistral, talk(&turns[..1]), "<s>[INST] a {system} [/INST]</s>\n"),
    ] {
        assert_eq!(found(&talk, template, false), Ok(vec![text.to_owned()]));
    }
    let masked = |prompt: usize, answer: &str| Ok(vec!["_".repeat(prompt) + answer]);
    assert_eq!(found(&talk(&turns[2..]), &llama2, true), masked(20, "d </s>"));
    // The text behind the last answer belongs to it, without white space at its end.
    assert_eq!(found(&talk(&turns[2..]), &mistral, true), masked(19, "d</s>_"));
    for (template, talk, problem) in [
        (
            &mistral,
            talk(&with_system),
            "line 1 of FILE: it has a message with the role `system`, for which template has no text; template has \
             texts for `user`, `assistant`: add one for `system`, rename the role",
        ),
        (
            &llama2,
            talk(&with_system[..1]),
            "line 1 of FILE: it has a system message without a message of the",
        ),
    ] {
        let error = found(&talk, template, true).unwrap_err();
        assert!(error.starts_with(problem), "{error} should begin with {problem}");
    }
}

#[test]
fn documents_without_targets_are_counted_by_reason() {
    let answers = ["yes", "", "no", ""].map(|answer| {
        format!(r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": "{answer}"}}]}}"#)
    });
    let question = r#"{"messages": [{"role": "user", "content": "ask"}]}"#;
    let silent = r#"{"messages": []}"#;
    let one = r#"{"messages": [{"role": "assistant", "content": "a"}]}"#;
    let file = [&answers.join("\n"), question, silent, one].join("\n");
    let mut folder = TestFolder::with(&[("a.jsonl", file.as_bytes())]);
    let mut noted = |masks_prompt| {
        let records = RecordFormat::Chat { field: None, template: for_all("{content}"), masks_prompt };
        let set = set(&folder, Encoding::Bytes, records);
        let cached = folder.encoded(&set, encoder::in_thread).unwrap();
        set.separated(&cached).unwrap().notes.pop().unwrap()
    };
    // Counted by hand. Of the two documents with an empty answer, the question is one token.
    let masked = "documents: 2 used, 5 left out (1 without tokens, 3 of one token, 1 without an answer)";
    assert_eq!(noted(true), Note::warning(masked.to_owned()));
    let unmasked = "documents: 3 used, 4 left out (1 without tokens, 3 of one token)";
    assert_eq!(noted(false), Note::warning(unmasked.to_owned()));
}

/// With a tokenizer, tokens that stand for a part of an answer are targets, and the end token behind one is.
#[test]
fn tokens_of_answers_are_targets() {
    let lines = r#"{"prompt": "one sheep", "completion": " two sheep"}"#;
    let mut folder = TestFolder::with(&[("a.jsonl", lines.as_bytes())]);
    let records = RecordFormat::Chat { field: None, template: for_all("{content}"), masks_prompt: true };
    let learnt = |folder: &mut TestFolder, end: Option<&str>| {
        let set = set(folder, Reference::tokenizer(false, end), records.clone());
        let cached = folder.encoded(&set, encoder::in_thread).unwrap();
        let documents = set.separated(&cached).unwrap();
        (documents.ends[0], documents.masked)
    };
    let whole = TestFolder::with(&[("a.txt", b"one sheep two sheep")]);
    let prompt = TestFolder::with(&[("a.txt", b"one sheep")]);
    let count = |mut folder: TestFolder| {
        folder.row(&folder.set(Reference::tokenizer(false, None), None)).unwrap().len() as u64
    };
    let (whole, prompt) = (count(whole), count(prompt));
    assert_eq!(learnt(&mut folder, None), (whole, Vec::from_iter(Some(0..prompt))));
    assert_eq!(learnt(&mut folder, Some("<end>")), (whole + 1, Vec::from_iter(Some(0..prompt))));
}
