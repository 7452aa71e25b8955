use super::*;
use crate::Order;
use crate::ids::Ids;
use crate::ids::MASKED;
use ops::DType;

/// A row whose tokens are their own positions.
#[derive(Debug)]
struct Counting;

impl ReadTokens for Counting {
    fn read(&self, first: usize, mut tokens: Ids<'_>) -> Result<(), DataError> {
        tokens.put(first as u32..);
        Ok(())
    }
}

const CONTEXT: usize = 8;

fn document_set(documents: Documents, lengths: &[u64], training: usize) -> DocumentSet {
    let ends = lengths.iter().scan(0, |end, len| {
        *end += len;
        Some(*end)
    });
    let below = KeyedCount { key: "data.text.tokens", count: 1 << 20 };
    DocumentSet {
        digest: String::new(),
        below,
        documents,
        ends: ends.collect(),
        masked: Vec::new(),
        training,
        notes: Vec::new(),
    }
}

fn sample(documents: Documents) -> Sample {
    let mut parts = row::parts(CONTEXT, None).to_vec();
    parts.extend(documents.parts(CONTEXT));
    Sample { parts, length: Some(KeyedCount { key: "context", count: CONTEXT }) }
}

fn document_samples(documents: Documents, lengths: &[u64], training: usize) -> DocumentSamples<Counting> {
    DocumentSamples::new(Counting, document_set(documents, lengths, training), &sample(documents))
}

/// The elements of a part, by sample.
fn numbers(batch: &Batch, name: &str) -> Vec<Vec<i32>> {
    let filled = batch.part(name).unwrap();
    let numbers: Vec<i32> =
        filled.bytes.as_chunks().0.iter().map(|number| i32::from_ne_bytes(*number)).collect();
    numbers.chunks(filled.part.ty.elements()).map(<[i32]>::to_vec).collect()
}

fn weights(batch: &Batch) -> Vec<f32> {
    numbers(batch, "weights").concat().into_iter().map(|bits| f32::from_bits(bits as u32)).collect()
}

fn evaluated(data: &DocumentSamples<Counting>, of: u64, samples: Range<u64>) -> Batch {
    let mut batch =
        Batch::new(&sample(data.contents.documents).parts, (samples.end - samples.start) as usize);
    data.fill_evaluation(of, samples, &mut batch).unwrap();
    batch
}

fn trained(data: &DocumentSamples<Counting>, step: u64, samples: Range<u64>) -> Batch {
    let mut batch =
        Batch::new(&sample(data.contents.documents).parts, (samples.end - samples.start) as usize);
    data.fill_training(
        &TrainingStep { seed: 3, number: step, samples: 16, order: Order::Drawn },
        samples,
        &mut batch,
    )
    .unwrap();
    batch
}

/// Documents of a single token (no target), of one sample plus its last target, and of two samples and a part.
#[test]
fn padded_samples_are_documents_or_parts_of_documents() {
    let data = document_samples(Documents::Padded, &[1, 4, 9, 1, 20], 0);
    let batch = evaluated(&data, 5, 0..6);
    let expected_tokens = [
        [1, 2, 3, 0, 0, 0, 0, 0],
        [5, 6, 7, 8, 9, 10, 11, 12],
        [15, 16, 17, 18, 19, 20, 21, 22],
        [23, 24, 25, 26, 27, 28, 29, 30],
        [31, 32, 33, 0, 0, 0, 0, 0],
    ];
    let expected_targets = [
        [2, 3, 4, -1, -1, -1, -1, -1],
        [6, 7, 8, 9, 10, 11, 12, 13],
        [16, 17, 18, 19, 20, 21, 22, 23],
        [24, 25, 26, 27, 28, 29, 30, 31],
        [32, 33, 34, -1, -1, -1, -1, -1],
    ];
    assert_eq!(numbers(&batch, "tokens")[..5], expected_tokens);
    assert_eq!(numbers(&batch, "targets")[..5], expected_targets);
    assert_eq!(numbers(&batch, "tokens")[5], expected_tokens[0], "evaluation wraps around");
    let mut narrow = sample(Documents::Padded).parts;
    for part in narrow.iter_mut().filter(|part| part.ty.dtype == DType::I32) {
        part.ty.dtype = DType::U16;
    }
    let mut narrow = Batch::new(&narrow, 5);
    data.fill_evaluation(5, 0..5, &mut narrow).unwrap();
    for (name, expected) in [("tokens", expected_tokens), ("targets", expected_targets)] {
        let found = narrow.part(name).unwrap().bytes.as_chunks().0.iter().map(|id| u16::from_ne_bytes(*id));
        // All bits of -1 are ones.
        assert!(found.eq(expected.as_flattened().iter().map(|&id| id as u16)), "{name}");
    }
    // 3 + 8 + 8 + 8 + 3 of 40 tokens have a target.
    assert_eq!(weights(&batch), [40.0 / 30.0; 6]);
    assert!(batch.part("starts").is_none());
}

#[test]
fn documents_are_packed_by_best_fit() {
    // Lengths 5, 4, 3, 4, 2 and 1: the third joins the first, the fourth the second, and so on.
    let data = document_samples(Documents::Packed, &[6, 5, 4, 5, 3, 2], 0);
    let batch = evaluated(&data, 3, 0..3);
    let expected = [
        ([0, 1, 2, 3, 4, 11, 12, 13], [1, 2, 3, 4, 5, 12, 13, 14], [0, 0, 0, 0, 0, 5, 5, 5]),
        ([6, 7, 8, 9, 15, 16, 17, 18], [7, 8, 9, 10, 16, 17, 18, 19], [0, 0, 0, 0, 4, 4, 4, 4]),
        ([20, 21, 23, 0, 0, 0, 0, 0], [21, 22, 24, -1, -1, -1, -1, -1], [0, 0, 2, 3, 3, 3, 3, 3]),
    ];
    for (index, (tokens, targets, starts)) in expected.into_iter().enumerate() {
        assert_eq!(numbers(&batch, "tokens")[index], tokens);
        assert_eq!(numbers(&batch, "targets")[index], targets);
        assert_eq!(numbers(&batch, "starts")[index], starts);
    }
    assert_eq!(weights(&batch), [24.0 / 19.0; 3]);
}

/// Loss weights depend on the whole step, not on the range that is filled.
#[test]
fn sample_ranges_match_the_whole_step() {
    let lengths: Vec<u64> = (0..40).map(|document| document * 7 % 23).collect();
    for documents in [Documents::Padded, Documents::Packed] {
        let data = document_samples(documents, &lengths, 30);
        let (whole, evaluation) = (trained(&data, 5, 0..16), evaluated(&data, 16, 0..16));
        let targets = numbers(&whole, "targets").concat();
        let counted = targets.iter().filter(|target| **target >= 0).count();
        let sum: f32 = weights(&whole)[0] * counted as f32;
        assert!((sum - 128.0).abs() < 1e-3, "all targets together weigh as much as all tokens");
        // Packed samples are almost full, so their weights may be equal.
        let other = weights(&trained(&data, 6, 0..16))[0];
        assert!(documents == Documents::Packed || weights(&whole)[0] != other, "{other} of another step");
        for range in [0..1, 2..5, 7..8, 3..16] {
            let parts = [
                (&whole, trained(&data, 5, range.clone())),
                (&evaluation, evaluated(&data, 16, range.clone())),
            ];
            for (whole, part) in parts {
                for filled in part.parts() {
                    let bytes = filled.part.ty.bytes() as usize;
                    let expected = &whole.part(filled.part.name).unwrap().bytes;
                    let range = range.start as usize * bytes..range.end as usize * bytes;
                    assert_eq!(filled.bytes[..], expected[range]);
                }
            }
        }
        // The training split comes first.
        let border = lengths[..30].iter().sum::<u64>() as i32;
        assert!(targets.iter().all(|target| *target < border));
        let evaluated = numbers(&evaluation, "targets").concat();
        assert!(evaluated.iter().all(|target| *target == MASKED || *target > border));
    }
}

#[test]
fn padded_and_packed_samples_have_the_same_targets() {
    let lengths: Vec<u64> = (0..100).map(|document| document * 11 % 31).collect();
    let all = |documents| {
        let data = document_samples(documents, &lengths, 0);
        let samples = data.evaluation.count();
        let batch = evaluated(&data, samples, 0..samples);
        let pairs = numbers(&batch, "tokens").concat().into_iter().zip(numbers(&batch, "targets").concat());
        let mut pairs: Vec<(i32, i32)> = pairs.filter(|(_, target)| *target != MASKED).collect();
        pairs.sort();
        (samples, pairs)
    };
    let ((padded, pairs), (packed, same)) = (all(Documents::Padded), all(Documents::Packed));
    assert_eq!(pairs, same);
    assert_eq!(pairs.len() as u64, lengths.iter().map(|len| len.saturating_sub(1)).sum::<u64>());
    // A lower bound on the number of samples.
    let least = (pairs.len() as u64).div_ceil(CONTEXT as u64);
    assert!(
        packed <= least + 2 && packed < padded,
        "{packed} packed samples, {padded} padded, at least {least}"
    );
}

#[test]
fn documents_of_one_token_give_no_samples() {
    let check = |lengths: &[u64], training| {
        let set = document_set(Documents::Padded, lengths, training);
        set.check_size(&sample(Documents::Padded), true).map_err(|error| error.to_string())
    };
    assert!(check(&[2, 2], 1).is_ok());
    let expected = "the training split has 0 documents of two tokens or more; a sample needs at least 1";
    assert_eq!(check(&[1, 2], 1), Err(expected.to_owned()));
    let expected = "the evaluation split has 0 documents of two tokens or more; a sample needs at least 1";
    assert_eq!(check(&[2, 1], 1), Err(expected.to_owned()));
}

/// Missing samples of the last batch are padding, and the loss weights compensate for them.
#[test]
fn epoch_visits_every_document_once() {
    let data = document_samples(Documents::Padded, &[5, 9, 4, 6, 3], 5);
    let order = Order::Shuffled { keeps_last: true };
    let of_step = |number: u64| {
        let sample = sample(Documents::Padded);
        let mut batch = Batch::new(&sample.parts, 2);
        let step = TrainingStep { seed: 3, number, samples: 2, order };
        data.fill_training(&step, 0..2, &mut batch).unwrap();
        batch
    };
    let mut firsts = Vec::new();
    for number in 0..3 {
        let batch = of_step(number);
        let targets = numbers(&batch, "targets");
        for (tokens, targets) in numbers(&batch, "tokens").iter().zip(&targets) {
            if targets[0] == MASKED {
                assert!(
                    tokens.iter().all(|token| *token == 0) && targets.iter().all(|other| *other == MASKED)
                );
            } else {
                firsts.push(tokens[0]);
            }
        }
        let count = targets.concat().iter().filter(|target| **target != MASKED).count();
        let expected = (2 * CONTEXT) as f32 / count as f32;
        assert_eq!(weights(&batch), [expected; 2]);
    }
    firsts.sort_unstable();
    assert_eq!(firsts, [0, 5, 14, 18, 24]);
}
