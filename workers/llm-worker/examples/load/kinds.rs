//! Kinds of requests whose answers can be checked.
use serde_json::{Value, json};

use crate::answer::{Answer, Format};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Completion,
    Job,
    Chat,
    ChatSchema,
    ChatTool,
    Response,
    ResponseTool,
    Message,
    MessageTool,
}

pub const KINDS: [Kind; 9] = [
    Kind::Completion,
    Kind::Job,
    Kind::Chat,
    Kind::ChatSchema,
    Kind::ChatTool,
    Kind::Response,
    Kind::ResponseTool,
    Kind::Message,
    Kind::MessageTool,
];

/// Sufficient number of tokens for a JSON object of this load.
const OBJECT_TOKENS: usize = 160;

/// Request whose answer is known: a prefix of a text, or an object that contains the request's label.
pub struct Request<'a> {
    pub kind: Kind,
    pub model: &'a str,
    pub prompt: &'a str,
    /// PNG file in base64 that precedes the prompt of a chat.
    pub picture: Option<&'a str>,
    pub tokens: usize,
    /// Name that no other request has.
    pub label: String,
    /// Value of `logit_bias` that prevents white space, which the tiny model would repeat in JSON.
    pub bias: &'a Value,
}

/// Reason why an answer is not that of its request.
#[derive(Debug, PartialEq)]
pub enum Difference {
    /// It is the answer to another request.
    Mixed,
    /// It does not have the requested form.
    Invalid,
}

impl Kind {
    pub fn path(self) -> &'static str {
        match self {
            Self::Completion => "/v1/completions",
            Self::Job => "/v1/jobs",
            Self::Chat | Self::ChatSchema | Self::ChatTool => "/v1/chat/completions",
            Self::Response | Self::ResponseTool => "/v1/responses",
            Self::Message | Self::MessageTool => "/v1/messages",
        }
    }

    pub fn format(self) -> Format {
        match self {
            Self::Response | Self::ResponseTool => Format::Responses,
            Self::Message | Self::MessageTool => Format::Messages,
            Self::Job => Format::Job,
            _ => Format::OpenAi,
        }
    }

    /// Returns true if the chat template renders the prompt.
    pub fn is_chat(self) -> bool {
        !matches!(self, Self::Completion | Self::Job)
    }

    fn has_object(self) -> bool {
        self == Self::ChatSchema || self.has_call()
    }

    fn has_call(self) -> bool {
        matches!(self, Self::ChatTool | Self::ResponseTool | Self::MessageTool)
    }
}

impl Request<'_> {
    pub fn body(&self) -> Value {
        let mut body = json!({"model": self.model, "temperature": 0, "stream": true});
        let tokens = if self.kind.has_object() { OBJECT_TOKENS } else { self.tokens };
        let limit = if self.kind.format() == Format::Responses { "max_output_tokens" } else { "max_tokens" };
        body[limit] = tokens.into();
        if self.kind.has_object() {
            body["logit_bias"] = self.bias.clone();
        }
        let messages = json!([{"role": "user", "content": self.content()}]);
        match self.kind.format() {
            Format::Responses => body["input"] = messages,
            _ if self.kind.is_chat() => body["messages"] = messages,
            _ => body["prompt"] = self.prompt.into(),
        }
        let (name, schema) = (&self.label, self.schema());
        match self.kind {
            Kind::Job => body["hive_id"] = "load".into(),
            Kind::ChatSchema => {
                let schema = json!({"name": name, "schema": schema});
                body["response_format"] = json!({"type": "json_schema", "json_schema": schema});
            }
            Kind::ChatTool => {
                let function = json!({"name": name, "parameters": schema});
                body["tools"] = json!([{"type": "function", "function": function}]);
                body["tool_choice"] = "required".into();
            }
            Kind::ResponseTool => {
                body["tools"] = json!([{"type": "function", "name": name, "parameters": schema}]);
                body["tool_choice"] = "required".into();
            }
            Kind::MessageTool => {
                body["tools"] = json!([{"name": name, "input_schema": schema}]);
                body["tool_choice"] = json!({"type": "any"});
            }
            _ => {}
        }
        body
    }

    /// Returns the content of the message of a chat.
    fn content(&self) -> Value {
        let Some(picture) = self.picture else { return self.prompt.into() };
        let url = format!("data:image/png;base64,{picture}");
        match self.kind.format() {
            Format::Responses => {
                json!([{"type": "input_image", "image_url": url}, {"type": "input_text", "text": self.prompt}])
            }
            Format::Messages => {
                let source = json!({"type": "base64", "media_type": "image/png", "data": picture});
                json!([{"type": "image", "source": source}, {"type": "text", "text": self.prompt}])
            }
            Format::OpenAi | Format::Job => {
                json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": self.prompt}])
            }
        }
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {"label": {"enum": [self.label]}, "glad": {"type": "boolean"}},
            "required": ["label", "glad"],
            "additionalProperties": false,
        })
    }

    /// Compares an answer with the request, whose text begins `expected` if it is not an object.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self, answer: &Answer, expected: &str) -> Result<(), Difference> {
        let ensure = |holds: bool, otherwise| if holds { Ok(()) } else { Err(otherwise) };
        if !self.kind.has_object() {
            ensure(answer.name.is_empty() && answer.arguments.is_empty(), Difference::Invalid)?;
            return ensure(expected.starts_with(&answer.text), Difference::Mixed);
        }
        let object = match self.kind.has_call() {
            true => {
                ensure(answer.name == self.label, Difference::Mixed)?;
                ensure(answer.text.is_empty(), Difference::Invalid)?;
                &answer.arguments
            }
            false => &answer.text,
        };
        let value: Value = serde_json::from_str(object).map_err(|_| Difference::Invalid)?;
        let has_members = value.as_object().is_some_and(|members| members.len() == 2);
        ensure(has_members && value["label"].is_string() && value["glad"].is_boolean(), Difference::Invalid)?;
        ensure(value["label"] == *self.label, Difference::Mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: Kind) -> Request<'static> {
        let (model, prompt, label) = ("m", "Hi", "c1n2".into());
        Request { kind, model, prompt, picture: Some("AA"), tokens: 3, label, bias: &Value::Null }
    }

    #[test]
    fn texts_are_prefixes_of_the_expected_one() {
        let request = request(Kind::Chat);
        let check = |text: &str, name: &str| request.check(&Answer::of(text, name, ""), "a b c");
        assert_eq!(check("a b", ""), Ok(()));
        assert_eq!(check("a c", ""), Err(Difference::Mixed));
        assert_eq!(check("a", "f"), Err(Difference::Invalid));
    }

    #[test]
    fn objects_contain_the_label_of_their_request() {
        let check = |kind: Kind, name: &str, object: &str| {
            let (text, arguments) = if kind == Kind::ChatSchema { (object, "") } else { ("", object) };
            request(kind).check(&Answer::of(text, name, arguments), "")
        };
        let right = r#"{"label": "c1n2", "glad": true}"#;
        let other = r#"{"label": "c1n3", "glad": true}"#;
        for kind in [Kind::ChatSchema, Kind::ChatTool, Kind::ResponseTool, Kind::MessageTool] {
            let name = if kind == Kind::ChatSchema { "" } else { "c1n2" };
            assert_eq!(check(kind, name, right), Ok(()), "{kind:?}");
            assert_eq!(check(kind, name, other), Err(Difference::Mixed), "{kind:?}");
            for invalid in
                [r#"{"label": "c1n2"}"#, r#"{"label": "c1n2", "glad": 1}"#, r#"{"label": "c1n2", "gl"#]
            {
                assert_eq!(check(kind, name, invalid), Err(Difference::Invalid), "{kind:?}");
            }
        }
        assert_eq!(check(Kind::ChatTool, "c1n3", right), Err(Difference::Mixed));
    }

    #[test]
    fn bodies_have_the_fields_of_their_api() {
        for kind in KINDS {
            let body = request(kind).body();
            let has = |field: &str| body.get(field).is_some();
            assert_eq!(has("tools"), kind.has_call(), "{kind:?}");
            assert_eq!(has("max_output_tokens"), kind.path() == "/v1/responses", "{kind:?}");
            assert_eq!(has("messages") || has("input"), kind.is_chat(), "{kind:?}");
            assert_eq!(body.to_string().contains("AA"), kind.is_chat(), "{kind:?}");
        }
    }
}
