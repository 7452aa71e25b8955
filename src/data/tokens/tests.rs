use std::fs;

use super::*;
use crate::{Batch, ErrorKey, Order, Sample, TrainingStep};

fn set(folder: &Path, width: TokenWidth) -> TokenSet {
    TokenSet { paths: vec![folder.join("*.bin")], width, header: 0, evaluate: Vec::new(), split: 0.5 }
}

fn write(path: &Path, width: TokenWidth, header: &[u8], numbers: impl Iterator<Item = u32>) {
    let mut bytes = header.to_vec();
    numbers.for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()[..width.bytes()]));
    fs::write(path, bytes).unwrap();
}

fn sample(context: usize, vocabulary: usize) -> Sample {
    let below = Some(KeyedCount { key: "model.transformer.vocabulary", count: vocabulary });
    let length = Some(KeyedCount { key: "context", count: context });
    Sample { parts: crate::row::parts(context, below).to_vec(), length }
}

/// Tokens and targets of evaluation samples.
fn evaluated(source: &dyn Source, samples: u64, context: usize) -> Result<[Vec<i32>; 2], DataError> {
    let mut batch = Batch::new(&sample(context, 1).parts, samples as usize);
    source.fill_evaluation(samples, 0..samples, &mut batch)?;
    Ok(["tokens", "targets"].map(|name| {
        let (numbers, _) = batch.part(name).unwrap().bytes.as_chunks();
        numbers.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
    }))
}

/// Across the boundaries of files, with and without headers.
#[test]
fn files_are_one_row_of_tokens() {
    let folder = tempfile::tempdir().unwrap();
    for (width, header) in [(TokenWidth::U16, 0), (TokenWidth::U32, 0), (TokenWidth::U16, 5)] {
        // Files larger than one read, and an empty one; the evaluation split begins within the last.
        let bounds = [0, 7, 7, 3000, 9000, 20_000];
        for (number, bounds) in bounds.windows(2).enumerate() {
            let path = folder.path().join(format!("{number}.bin"));
            write(&path, width, &vec![0xFF; header], bounds[0]..bounds[1]);
        }
        let set = TokenSet { header, ..set(folder.path(), width) };
        let source = set.open(&Sample::NONE, &mut DigestCache::default()).unwrap();
        for context in [3, 9999] {
            let [tokens, targets] = evaluated(&*source, 1, context).unwrap();
            assert!(tokens.iter().copied().eq(10_000..10_000 + context as i32), "{width:?}");
            assert!(targets.iter().copied().eq(10_001..10_001 + context as i32), "{width:?}");
        }
        let whole = TokenSet { split: 0.0001, ..set };
        let source = whole.open(&Sample::NONE, &mut DigestCache::default()).unwrap();
        let [tokens, _] = evaluated(&*source, 1, 19_990).unwrap();
        assert!(tokens.iter().copied().eq(2..19_992), "{width:?}");
        let mut batch = Batch::new(&sample(1, 1).parts, 50);
        source
            .fill_training(
                &TrainingStep { seed: 1, number: 2, samples: 50, order: Order::Drawn },
                0..50,
                &mut batch,
            )
            .unwrap();
    }
}

/// Inspected and opened data have the same digest and largest token.
#[test]
fn vocabulary_must_exceed_the_largest_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    write(&path, TokenWidth::U32, &[], (0..100).map(|number| if number == 50 { 70_000 } else { number }));
    let mut cache = DigestCache::default();
    let set = set(folder.path(), TokenWidth::U32);
    for cached in [false, true] {
        let contents = set.inspect(&mut cache).unwrap();
        let check = |vocabulary| set.check(&*contents, &sample(8, vocabulary), true);
        check(70_001).unwrap();
        let error = check(70_000).unwrap_err();
        let expected = "vocabulary = 70000 is less than the 70001 tokens of data.tokens";
        assert!(error.to_string().ends_with(expected), "{error}, {cached}");
        let source = set.open(&Sample::NONE, &mut cache).unwrap();
        assert_eq!(source.contents().digest(), contents.digest());
        // Both splits are too short for this context.
        let error = set.check(&*contents, &sample(50, 70_001), true).unwrap_err();
        assert_eq!(error.to_string(), "the training split has 50 tokens; context = 50 needs at least 51");
    }
    // A token that crosses the boundary of two chunks.
    let numbers = (0..600_000).map(|number| if number == (1 << 18) - 1 { 5_000 } else { 7 });
    write(&path, TokenWidth::U32, &[0], numbers);
    let set = TokenSet { header: 1, ..set };
    let contents = set.inspect(&mut cache).unwrap();
    assert!(set.check(&*contents, &sample(8, 5_000), false).is_err());
    set.check(&*contents, &sample(8, 5_001), false).unwrap();
}

#[test]
fn invalid_token_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let said = |set: &TokenSet| {
        let error = set.inspect(&mut DigestCache::default()).unwrap_err().remove(0);
        assert_eq!(error.blame(), ErrorKey::Data("paths"));
        let opened = set.open(&Sample::NONE, &mut DigestCache::default()).unwrap_err();
        assert_eq!(opened.to_string(), error.to_string());
        error.to_string().replace(&format!("{}/", folder.path().display()), "")
    };
    let of = |width| set(folder.path(), width);
    fs::write(&path, [0; 7]).unwrap();
    assert_eq!(said(&of(TokenWidth::U16)), "a.bin has 7 bytes of tokens, not a multiple of the size of u16");
    assert_eq!(
        said(&TokenSet { header: 1, ..of(TokenWidth::U32) }),
        "a.bin has 6 bytes of tokens, not a multiple of the size of u32"
    );
    fs::write(&path, []).unwrap();
    assert_eq!(said(&of(TokenWidth::U16)), "the 1 file found is empty");
    let header: Vec<u8> =
        [20_240_520u32, 1, 4].into_iter().flat_map(u32::to_le_bytes).chain([0; 1012]).collect();
    write(&path, TokenWidth::U16, &header, 0..4);
    let expected = "a.bin begins with llm.c's header of 1,024 bytes, but header = 0";
    assert_eq!(said(&of(TokenWidth::U16)), expected);
    let set = TokenSet { header: 1024, ..of(TokenWidth::U16) };
    assert_eq!(
        evaluated(&*set.open(&Sample::NONE, &mut DigestCache::default()).unwrap(), 1, 1).unwrap(),
        [[2], [3]]
    );
}

/// The embedding table has no row for a token above the inspected largest token.
#[test]
fn changed_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    let open = || {
        write(&path, TokenWidth::U16, &[], 0..10);
        set(folder.path(), TokenWidth::U16).open(&Sample::NONE, &mut DigestCache::default()).unwrap()
    };
    let source = open();
    fs::write(&path, [0; 10]).unwrap();
    assert!(matches!(evaluated(&*source, 1, 4), Err(DataError::Changed { .. })));
    let source = open();
    write(&path, TokenWidth::U16, &[], 1..11);
    assert!(matches!(evaluated(&*source, 1, 4), Err(DataError::Changed { .. })));
}

/// Training from the whole of `paths`, evaluation from the others.
#[test]
fn evaluation_files_are_a_split_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.bin"), TokenWidth::U16, &[], 0..10);
    write(&folder.path().join("b.val"), TokenWidth::U16, &[], 100..105);
    let evaluate = vec![folder.path().join("b.val")];
    let both = TokenSet { evaluate, split: 1.0, ..set(folder.path(), TokenWidth::U16) };
    let mut cache = DigestCache::default();
    let contents = both.inspect(&mut cache).unwrap();
    assert_eq!((contents.row_len(), contents.samples(&sample(9, 200))), (Some(15), 1));
    let source = both.open(&Sample::NONE, &mut cache).unwrap();
    assert_eq!(source.contents().digest(), contents.digest());
    assert_eq!(evaluated(&*source, 2, 2).unwrap()[0], [100, 101, 102, 103]);
    let alone = TokenSet { evaluate: Vec::new(), ..set(folder.path(), TokenWidth::U16) };
    assert_ne!(alone.inspect(&mut cache).unwrap().digest(), contents.digest());
    let error = both.check(&*contents, &sample(5, 200), true).unwrap_err();
    assert_eq!(error.to_string(), "the evaluation split has 5 tokens; context = 5 needs at least 6");
    assert_eq!(error.help(), "use a shorter context or more tokens");
    let missing = TokenSet { evaluate: vec![folder.path().join("none")], ..both };
    assert_eq!(missing.inspect(&mut cache).unwrap_err()[0].blame(), ErrorKey::Data("evaluate"));
}
