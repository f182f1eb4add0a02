//! Requests that are rejected before anything is computed.
use llm_engine::engine::{Engine, Options};
use llm_engine::request::{Request, RequestError, Sampling};

use super::mock::{Mock, VOCABULARY, request, start, text};

#[test]
fn requests_over_the_context_length_are_rejected() {
    // (blocks, context): the limit is the smaller of the two.
    for (blocks, context, limit) in [(100, 50, 50), (2, 1000, 32)] {
        let engine = start(Mock::new(blocks, context), Options::default());
        for (prompt, max_tokens) in [(limit, 1), (limit, 0), (10, limit), (limit + 1, 1), (1, usize::MAX)] {
            let submitted = match max_tokens {
                0 => Request { max_tokens: None, ..request(vec![1; prompt], 1) },
                tokens => request(vec![1; prompt], tokens),
            };
            let refused = RequestError::ContextLength { prompt, wanted: max_tokens.max(1), limit };
            assert_eq!(engine.submit(submitted).err(), Some(refused));
        }
        let embedding = engine.embed(vec![vec![1; context + 1]]);
        assert!(matches!(embedding, Err(RequestError::EmbeddingLength { .. })));
        assert_eq!(engine.status().steps, 0);
        engine.stop();
    }
}

/// A part of a prompt is at least a layer, so prompts of more than 2048 tokens require larger steps.
#[test]
fn prompts_over_the_embedding_limit_are_rejected() {
    for (step_tokens, context, limit) in [(512, 100_000, 2048), (4096, 100_000, 4096), (4096, 3000, 3000)] {
        let engine = start(Mock::new(10_000, context), Options { step_tokens, ..Options::default() });
        assert_eq!(engine.max_embedding_tokens(), limit);
        let refused = engine.embed(vec![vec![1], vec![1; limit + 1]]).err();
        assert_eq!(refused, Some(RequestError::EmbeddingLength { prompt: limit + 1, limit }));
        let vectors = engine.embed(vec![vec![1; limit]]).unwrap().blocking_recv().unwrap().unwrap();
        assert_eq!(vectors, [[1.0, limit as f32]]);
        engine.stop();
    }
}

#[test]
fn values_out_of_range_are_rejected_by_field() {
    let engine = start(Mock::new(100, 1000), Options::default());
    let with = |change: fn(&mut Sampling)| {
        let mut request = request(vec![1], 1);
        change(&mut request.sampling);
        request
    };
    let good = request(vec![1], 1);
    let cases = [
        ("prompt", request(vec![], 1)),
        ("prompt", request(vec![1, VOCABULARY as u32], 1)),
        ("min_tokens", Request { min_tokens: 2, ..good.clone() }),
        ("stop", Request { stop: vec!["a".into(), String::new()], ..good.clone() }),
        ("prompt_logprobs", Request { prompt_logprobs: Some(VOCABULARY + 1), ..good.clone() }),
        ("logprobs", Request { logprobs: Some(VOCABULARY + 1), ..good.clone() }),
        ("temperature", with(|sampling| sampling.temperature = -0.1)),
        ("temperature", with(|sampling| sampling.temperature = f32::NAN)),
        ("top_k", with(|sampling| sampling.top_k = Some(0))),
        ("top_p", with(|sampling| sampling.top_p = 1.1)),
        ("min_p", with(|sampling| sampling.min_p = f32::NAN)),
        ("repetition_penalty", with(|sampling| sampling.repetition_penalty = 0.0)),
        ("presence_penalty", with(|sampling| sampling.presence_penalty = f32::INFINITY)),
        ("frequency_penalty", with(|sampling| sampling.frequency_penalty = f32::NAN)),
        ("logit_bias", with(|sampling| sampling.logit_bias = vec![(1, f32::NAN)])),
        ("logit_bias", with(|sampling| sampling.logit_bias = vec![(VOCABULARY as u32, 1.0)])),
    ];
    for (expected, request) in cases {
        match engine.submit(request) {
            Err(RequestError::Invalid { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {:?}", other.err()),
        }
    }
    let embedding = engine.embed(vec![vec![1], vec![]]);
    assert!(matches!(embedding, Err(RequestError::Invalid { field: "prompts", .. })));
    assert_eq!((engine.status().steps, engine.status().waiting), (0, 0));
    engine.stop();
}

#[test]
fn invalid_options_and_caches_are_rejected() {
    let start = |blocks, options| Engine::start(Box::new(Mock::new(blocks, 10)), text(), options);
    let good = Options::default();
    assert!(start(0, good.clone()).is_err());
    assert!(start(1, Options { max_running: 0, ..good.clone() }).is_err());
    assert!(start(1, Options { step_tokens: 0, ..good }).is_err());
}
