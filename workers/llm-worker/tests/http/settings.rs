//! Every sampler setting of the table, in the API and in the documentation.
use llm_engine::sampling::settings::{Kind, SETTINGS, Setting};
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, worker};

/// Returns valid and invalid values of a setting.
fn values(setting: &Setting) -> (Vec<Value>, Vec<Value>) {
    match &setting.kind {
        Kind::Number { range, .. } => {
            let (least, most) = (*range.start(), *range.end());
            let beyond = [least - 0.5, most + 0.5, f32::MAX, f32::MIN];
            (vec![json!(least), json!(most)], beyond.map(|value| json!(value)).to_vec())
        }
        Kind::Count { .. } => (vec![json!(1), json!(7), json!(0), json!(-1)], vec![json!(-2), json!(1.5)]),
    }
}

#[tokio::test]
async fn the_api_accepts_the_documented_ranges() {
    let worker = worker();
    for setting in SETTINGS {
        let (good, bad) = values(setting);
        let bad = bad.into_iter().chain([json!("x"), json!([])]);
        let cases = good.into_iter().chain([json!(null)]).map(|value| (value, true));
        for (value, fits) in cases.chain(bad.map(|value| (value, false))) {
            for name in std::iter::once(setting.name).chain(setting.alias) {
                let body = json!({"model": MODEL, "prompt": "x", "max_tokens": 1, "seed": 1, (name): value});
                let answer = worker.post("/v1/completions", &body).await;
                match fits {
                    true => assert_eq!(answer.status, 200, "{name} {value}: {}", answer.text),
                    false => {
                        let (status, code, param) = answer.error();
                        assert_eq!((status, code.as_str()), (400, "invalid_value"), "{name} {value}");
                        assert!(
                            [Some(setting.name), Some(name)].contains(&param.as_deref()),
                            "{name} {value}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_documentation_contains_the_table() {
    let page = std::fs::read_to_string("../../docs/reference/http-api.md").unwrap();
    let rows: String = SETTINGS.iter().map(|setting| setting.markdown_row() + "\n").collect();
    let table = format!("| setting | must be | default | meaning |\n|---|---|---|---|\n{rows}\n");
    assert!(page.contains(&table), "docs/reference/http-api.md needs this table:\n\n{table}");
}
