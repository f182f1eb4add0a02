//! Errors for input that cannot be sampled.
use candle_core::{Device, Tensor};
use llm_engine::request::{RequestError, Sampling};
use llm_engine::sampling::settings::{Kind, SETTINGS};
use llm_engine::sampling::{self, check};

use crate::reference::Case;
use crate::rows::sample;

fn failure(cases: &[Case]) -> String {
    sample(cases).unwrap_err().to_string()
}

#[test]
fn non_finite_logits_are_rejected() {
    for broken in [f32::NAN, f32::INFINITY] {
        for temperature in [0.0, 1.0] {
            let sampling = Sampling { temperature, ..Sampling::default() };
            let good = Case { logits: vec![1.0, 2.0, 3.0], sampling: sampling.clone(), ..Case::default() };
            let bad = Case { logits: vec![1.0, broken, 3.0], sampling, ..Case::default() };
            let message = failure(&[good, bad]);
            assert!(message.contains("row 1") && message.contains("not finite"), "{message}");
        }
    }
}

#[test]
fn rows_without_a_possible_token_are_rejected() {
    let none = f32::NEG_INFINITY;
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, ..Sampling::default() };
        let masked = Case {
            logits: vec![1.0; 40],
            sampling: sampling.clone(),
            // Bits beyond the vocabulary are ignored.
            allowed: Some(vec![0, 1 << 20]),
            ..Case::default()
        };
        assert!(failure(&[masked]).contains("allows none"));
        let impossible =
            Case { logits: vec![none, 1.0], sampling, allowed: Some(vec![1]), ..Case::default() };
        assert!(failure(&[impossible]).contains("no token of row 0"));
    }
}

#[test]
fn mismatched_tokens_and_shapes_are_rejected() {
    let beyond = Case {
        logits: vec![1.0; 4],
        sampling: Sampling { repetition_penalty: 1.5, ..Sampling::default() },
        prompt: vec![4],
        ..Case::default()
    };
    assert!(failure(&[beyond]).contains("token 4 is not"));
    let logits = Tensor::zeros((2, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(sampling::sample(&logits, &[]).is_err());
    let empty = Tensor::zeros((0, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
    assert_eq!(sampling::sample(&empty, &[]).unwrap(), []);
}

#[test]
fn parameters_out_of_range_are_rejected() {
    let nan = f32::NAN;
    for setting in SETTINGS {
        let Kind::Number { range, set, .. } = &setting.kind else { continue };
        let (least, most) = (*range.start(), *range.end());
        let cases = [(least, true), ((least + most) / 2.0, true), (most, true), (least - 0.1, false)];
        let beyond = [most + 0.1, f32::INFINITY, f32::NEG_INFINITY, nan].map(|value| (value, false));
        for (value, fits) in cases.into_iter().chain(beyond) {
            let mut sampling = Sampling::default();
            set(&mut sampling, value);
            match check(&sampling, 100) {
                Ok(()) => assert!(fits, "{} {value}", setting.name),
                Err(RequestError::Invalid { field, why }) => {
                    assert!(!fits && field == setting.name, "{} {value}: {field} {why}", setting.name);
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(check(&Sampling { repetition_penalty: 0.0, ..Sampling::default() }, 100).is_err());
    let refused = |sampling: Sampling| check(&sampling, 100).unwrap_err().to_string();
    assert!(refused(Sampling { top_k: Some(0), ..Sampling::default() }).starts_with("top_k"));
    let bias = |logit_bias| Sampling { logit_bias, ..Sampling::default() };
    assert!(check(&bias(vec![(99, 100.0), (0, -100.0)]), 100).is_ok());
    assert!(refused(bias(vec![(100, 1.0)])).contains("token 100 is not"));
    assert!(refused(bias(vec![(1, 101.0)])).contains("-100 to 100"));
    assert!(refused(bias(vec![(1, nan)])).contains("-100 to 100"));
    assert!(refused(bias(vec![(1, 1.0); 301])).contains("300"));
}
