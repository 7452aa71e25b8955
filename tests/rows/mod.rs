//! Rows made by hand, and at random.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

use proptest::prelude::*;
use runner::results::{Row, Status};

pub const MIB: u64 = 1 << 20;

/// A finished run of the experiment `gpt-mini` on two threads that used 200 MiB at 4,000 tokens a second.
pub fn row(strategy: &str) -> Row {
    let empty = || String::new();
    let mut row = Row {
        experiment: "gpt-mini".into(),
        run_id: format!("{strategy}-id"),
        strategy: strategy.into(),
        repeat: 0,
        status: Status::Ok,
        device: "AMD EPYC 9V74".into(),
        model: "transformer 6x384 heads 6 T 256".into(),
        parameters: Some(10_800_000),
        batch_size: Some(8),
        micro_batch: Some(8),
        precision: "fp32".into(),
        predicted_peak_bytes: None,
        peak_bytes: None,
        reserved_peak_bytes: None,
        witness_peak_bytes: None,
        start_peak_bytes: None,
        parameter_bytes: Some(43_200_000),
        master_weight_bytes: Some(0),
        gradient_bytes: Some(43_200_000),
        optimizer_bytes: Some(86_400_000),
        activation_bytes: None,
        input_bytes: Some(16_384),
        workspace_bytes: Some(MIB),
        communication_bytes: Some(0),
        host_peak_bytes: Some(MIB),
        step_ms_median: None,
        step_ms_p90: None,
        tokens_per_s: None,
        samples_per_s: None,
        data_wait_ms: Some(0.05),
        loss_first: Some(5.6),
        loss_last: Some(3.1),
        loss_eval: Some(3.2),
        recompute_flops: Some(0),
        receipt: empty(),
        no_effect: empty(),
        message: empty(),
        version: "0.1.0".into(),
        step_ms_min: None,
        step_ms_ci95: None,
        warmup_steps: Some(3),
        steps: Some(20),
        forward_peak_bytes: None,
        backward_peak_bytes: None,
        update_peak_bytes: None,
        evaluation_peak_bytes: None,
        predicted_reserved_peak_bytes: None,
        host_reserved_peak_bytes: Some(MIB),
        limit_bytes: Some(8 << 30),
        limited: false,
        fits_micro_batch: Some(37),
        model_flops: Some(1_000_000_000),
        hardware_flops: Some(1_000_000_000),
        micro_batches: Some(1),
        oom_phase: None,
        oom_operation: None,
        oom_value: None,
        oom_requested_bytes: None,
        oom_short_bytes: None,
        threads: Some(2),
        load: Some(0.1),
        clock_mhz: Some(2400.0),
        digest: empty(),
        configuration: String::new(),
        startup_ms: Some(20.0),
        product_flops_per_s: Some(3e11),
        copy_bytes_per_s: Some(6e10),
        emulated: false,
        context_bytes: None,
        skipped_steps: None,
        loss_scale: None,
        profiled_step_ms: None,
        witness_step_bytes: None,
        products_timed: None,
        products_cached: None,
        products_stored: None,
        products_untimed: None,
        axes: Vec::new(),
    };
    row.uses(200.0);
    row.runs_at(4000.0);
    row
}

/// What tests change about a row.
pub trait Change {
    fn uses(&mut self, mib: f64);
    fn runs_at(&mut self, tokens_per_s: f64);
}

impl Change for Row {
    fn uses(&mut self, mib: f64) {
        let bytes = Some((mib * MIB as f64) as u64);
        self.predicted_peak_bytes = bytes;
        self.peak_bytes = bytes;
        self.reserved_peak_bytes = bytes;
        self.predicted_reserved_peak_bytes = bytes;
        self.witness_peak_bytes = bytes.map(|bytes| bytes + MIB + 100_000);
        self.start_peak_bytes = bytes.map(|bytes| bytes / 2);
        self.evaluation_peak_bytes = bytes.map(|bytes| bytes / 3);
        self.forward_peak_bytes = bytes.map(|bytes| bytes / 2);
        self.backward_peak_bytes = bytes;
        self.update_peak_bytes = bytes.map(|bytes| bytes / 2);
        self.activation_bytes = bytes.map(|bytes| bytes.saturating_sub(173_865_984 + MIB));
    }

    fn runs_at(&mut self, tokens_per_s: f64) {
        let ms = 8.0 * 256.0 / tokens_per_s * 1e3;
        self.tokens_per_s = Some(tokens_per_s);
        self.samples_per_s = Some(tokens_per_s / 256.0);
        self.step_ms_median = Some(ms);
        self.step_ms_p90 = Some(ms * 1.02);
        self.step_ms_min = Some(ms * 0.98);
        self.step_ms_ci95 = Some(ms * 0.008);
    }
}

pub fn status() -> impl Strategy<Value = Status> {
    prop::sample::select(vec![
        Status::Ok,
        Status::Ok,
        Status::Ok,
        Status::Oom,
        Status::Diverged,
        Status::Skipped,
        Status::Timeout,
        Status::Failed,
        Status::Interrupted,
    ])
}

prop_compose! {
    /// Any row that a file could hold, sensible or not.
    pub fn any_row()(
        texts in prop::collection::vec(text(), 8),
        sizes in prop::collection::vec(prop::option::of(any_size()), 32),
        counts in prop::collection::vec(prop::option::of(0usize..100_000), 6),
        numbers in prop::collection::vec(prop::option::of(any_number()), 18),
        oom in prop::collection::vec(prop::option::of("[a-z .0-9]{1,30}"), 3),
        status in status(),
        repeat in 0usize..3,
        limited in any::<bool>(),
        emulated in any::<bool>(),
        strategy in "[ab]{1,2}|[a-zé界/=0-9-]{1,60}",
        axes in prop::option::of((prop::sample::select(vec!["train.batch_size", "precision"]), "[1-3]")),
    ) -> Row {
        let mut size = sizes.into_iter();
        let mut size = move || size.next().flatten();
        let mut count = counts.into_iter();
        let mut count = move || count.next().flatten();
        let mut number = numbers.into_iter();
        let mut number = move || number.next().flatten();
        let [oom_phase, oom_operation, oom_value] = <[_; 3]>::try_from(oom).expect("three texts");
        let [run_id, device, model, receipt, no_effect, message, version, digest] =
            <[_; 8]>::try_from(texts).expect("eight texts");
        Row {
            experiment: "random".into(), run_id, strategy, repeat, status, device, model,
            parameters: size(), batch_size: count(), micro_batch: count(), precision: "fp32".into(),
            predicted_peak_bytes: size(), peak_bytes: size(), reserved_peak_bytes: size(),
            witness_peak_bytes: size(), start_peak_bytes: size(), parameter_bytes: size(),
            master_weight_bytes: size(), gradient_bytes: size(), optimizer_bytes: size(),
            activation_bytes: size(), input_bytes: size(), workspace_bytes: size(),
            communication_bytes: size(), host_peak_bytes: size(), step_ms_median: number(),
            step_ms_p90: number(), tokens_per_s: number(), samples_per_s: number(), data_wait_ms: number(),
            loss_first: number(), loss_last: number(), loss_eval: number(), recompute_flops: size(),
            receipt, no_effect, message, version, step_ms_min: number(), step_ms_ci95: number(),
            warmup_steps: count(), steps: count(), forward_peak_bytes: size(), backward_peak_bytes: size(),
            update_peak_bytes: size(), evaluation_peak_bytes: size(), predicted_reserved_peak_bytes: size(),
            host_reserved_peak_bytes: size(), limit_bytes: size(), limited, fits_micro_batch: count(),
            model_flops: size(), hardware_flops: size(), micro_batches: size(), oom_phase, oom_operation,
            oom_value, oom_requested_bytes: size(), oom_short_bytes: size(), threads: count(), load: number(),
            clock_mhz: number(), digest, configuration: String::new(),
            startup_ms: number(), product_flops_per_s: number(), copy_bytes_per_s: number(),
            emulated, context_bytes: size(), skipped_steps: size(), loss_scale: number(), profiled_step_ms: number(),
            witness_step_bytes: size(),
            products_timed: size(), products_cached: size(), products_stored: size(), products_untimed: size(),
            axes: axes.into_iter().map(|(key, value)| (key.to_string(), value)).collect(),
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("one".to_string()), "[a-zA-Z0-9 ,;\"'|é界\n%+-]{0,60}"]
}

fn any_size() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..4096, 0u64..(64 << 30), any::<u64>()]
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![0.0f64..10.0, 0.0f64..1e6, prop::num::f64::NORMAL | prop::num::f64::ZERO]
}
