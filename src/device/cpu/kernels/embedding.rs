//! Token plus learned position embedding.

use crate::ops::EmbeddingBackward;

use super::elementwise::add_to;
use super::operands::Operands;
use super::workers::{Parts, Workers};

/// Rows that a thread takes at a time.
const ROWS: usize = 32;
/// Channels that a thread takes at a time where it takes all rows.
const CHANNELS: usize = 64;

pub(super) fn forward(operands: &mut Operands, workers: &Workers) {
    let (tokens, table, positions) = (operands.tokens(0), operands.input::<f32>(1), operands.input::<f32>(2));
    let (sequence, channels) = (operands.input_type(0).shape.last(), operands.input_type(1).shape.last());
    let x = Parts::new(operands.output::<f32>(0));
    workers.chunks(tokens.len(), ROWS, |rows| {
        for row in rows {
            // SAFETY: runs of rows do not overlap.
            #[allow(unsafe_code)]
            let x = unsafe { x.part(row * channels..(row + 1) * channels) };
            let (token, position) = (tokens[row] as usize * channels, row % sequence * channels);
            x.copy_from_slice(&table[token..token + channels]);
            add_to(workers.level(), x, &positions[position..position + channels]);
        }
    });
}

pub(super) fn backward(op: &EmbeddingBackward, operands: &mut Operands, workers: &Workers) {
    let (tokens, dx) = (operands.tokens(0), operands.input::<f32>(1));
    let (sequence, channels) = (operands.input_type(0).shape.last(), operands.input_type(1).shape.last());
    let (dtable, dpositions) = (Parts::new(operands.output(0)), Parts::new(operands.output(1)));
    // Threads divide the channels: each adds all rows in order, so no two add to the same element.
    workers.chunks(channels, CHANNELS, |part| {
        let part_of = |row: usize| row * channels + part.start..row * channels + part.end;
        if !op.accumulate_table {
            for token in 0..op.vocabulary {
                // SAFETY: parts of the channels do not overlap.
                #[allow(unsafe_code)]
                unsafe { dtable.part(part_of(token)) }.fill(0.0);
            }
        }
        for (row, &token) in tokens.iter().enumerate() {
            // SAFETY: as above.
            #[allow(unsafe_code)]
            let dtable = unsafe { dtable.part(part_of(token as usize)) };
            add_to(workers.level(), dtable, &dx[part_of(row)]);
        }
    });
    workers.chunks(sequence, ROWS, |positions| {
        for position in positions {
            // SAFETY: runs of positions do not overlap.
            #[allow(unsafe_code)]
            let sum = unsafe { dpositions.part(position * channels..(position + 1) * channels) };
            if !op.accumulate_positions {
                sum.fill(0.0);
            }
            for dx in dx.chunks_exact(channels).skip(position).step_by(sequence) {
                add_to(workers.level(), sum, dx);
            }
        }
    });
}
