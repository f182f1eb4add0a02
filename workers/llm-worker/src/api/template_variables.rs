//! Variables of the chat template that a request sets.
use serde_json::{Map, Value};
use worker_core::ApiError;

/// Values of `reasoning_effort`. Each template supports some of them.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Variables that other fields or the model determine.
const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];

/// Returns the variables. The effort `none` also sets `enable_thinking` to false, unless `variables` sets it.
///
/// # Errors
/// Returns a 400 error for variables that a request cannot set, and for unknown efforts.
pub fn variables(
    variables: Option<Map<String, Value>>,
    effort: Option<String>,
    documents: Option<Vec<Value>>,
) -> Result<Map<String, Value>, ApiError> {
    let mut variables = variables.unwrap_or_default();
    if let Some(name) = RESERVED.iter().find(|name| variables.contains_key(**name)) {
        return Err(ApiError::field(format!("chat_template_kwargs.{name}"), "cannot be set by a request"));
    }
    if let Some(effort) = effort {
        if !EFFORTS.contains(&effort.as_str()) {
            let message = format!("is {effort:?}, but must be one of {}", EFFORTS.join(", "));
            return Err(ApiError::field("reasoning_effort", message));
        }
        if effort == "none" {
            variables.entry("enable_thinking").or_insert(false.into());
        }
        variables.entry("reasoning_effort").or_insert(effort.into());
    }
    if let Some(documents) = documents.filter(|documents| !documents.is_empty()) {
        variables.entry("documents").or_insert(documents.into());
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_become_variables() {
        let of = |own: Value, effort: Option<&str>, documents: Value| {
            let own = serde_json::from_value(own).unwrap();
            let documents = serde_json::from_value(documents).unwrap();
            variables(own, effort.map(str::to_owned), documents).map(Value::Object)
        };
        assert_eq!(of(json!(null), None, json!([])).unwrap(), json!({}));
        let all = json!({"x": [1], "reasoning_effort": "high", "documents": [{"title": "a"}]});
        assert_eq!(of(json!({"x": [1]}), Some("high"), json!([{"title": "a"}])).unwrap(), all);
        let none = json!({"reasoning_effort": "none", "enable_thinking": false});
        assert_eq!(of(json!(null), Some("none"), json!(null)).unwrap(), none);
        let kept = json!({"reasoning_effort": "none", "enable_thinking": true});
        assert_eq!(of(json!({"enable_thinking": true}), Some("none"), json!(null)).unwrap(), kept);
        let param = |error: ApiError| error.param().map(str::to_owned);
        let tools = of(json!({"tools": []}), None, json!(null)).unwrap_err();
        assert_eq!(param(tools).as_deref(), Some("chat_template_kwargs.tools"));
        let effort = of(json!(null), Some("huge"), json!(null)).unwrap_err();
        assert_eq!(param(effort).as_deref(), Some("reasoning_effort"));
    }
}
