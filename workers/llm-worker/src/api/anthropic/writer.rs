//! Content blocks and events of a message.
use serde_json::{Value, json};
use uuid::Uuid;
use worker_core::ApiError;

use crate::api::answer::Usage;
use crate::api::generation::FinishReason;
use crate::api::output::{AnswerWriter, Output, TypedEvent};

/// Builds a message block by block.
pub struct Writer {
    /// The message so far; its content consists of the finished blocks.
    message: Value,
    content: Vec<Value>,
    open: Option<Block>,
    events: Vec<TypedEvent>,
}

/// The block that is being written.
struct Block {
    kind: BlockKind,
    /// Its text, or the arguments of its call, so far.
    text: String,
}

#[derive(PartialEq)]
enum BlockKind {
    Thinking,
    Text,
    ToolUse { id: String, name: String },
}

impl Writer {
    /// Creates a writer of an answer of `model` to a prompt of this length.
    pub fn new(model: &str, prompt_tokens: usize) -> Self {
        let usage = Usage { prompt_tokens, ..Usage::default() };
        let message = json!({
            "id": format!("msg_{}", Uuid::new_v4().simple()),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage_of(&usage),
        });
        Self { message, content: Vec::new(), open: None, events: Vec::new() }
    }

    /// Emits an event of the open block.
    fn block_event(&mut self, kind: &'static str, mut body: Value) {
        body["index"] = json!(self.content.len());
        self.events.push(TypedEvent::new(kind, body));
    }

    fn begin(&mut self, kind: BlockKind) {
        self.close();
        let block = Block { kind, text: String::new() };
        self.block_event("content_block_start", json!({ "content_block": block.value() }));
        self.open = Some(block);
    }

    fn close(&mut self) {
        let Some(block) = self.open.take() else { return };
        if block.kind == BlockKind::Thinking {
            // Clients send the signature back; this server does not check it.
            self.block_event(
                "content_block_delta",
                json!({ "delta": { "type": "signature_delta", "signature": "" } }),
            );
        }
        self.block_event("content_block_stop", json!({}));
        self.content.push(block.value());
    }

    /// Appends to the open block if it is of this kind, otherwise to a new one.
    fn append(&mut self, kind: BlockKind, text: &str) {
        if !self.open.as_ref().is_some_and(|block| block.kind == kind) {
            self.begin(kind);
        }
        self.extend(text);
    }

    fn extend(&mut self, text: &str) {
        let Some(block) = &mut self.open else { return };
        block.text.push_str(text);
        let delta = match block.kind {
            BlockKind::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
            BlockKind::Text => json!({ "type": "text_delta", "text": text }),
            BlockKind::ToolUse { .. } => json!({ "type": "input_json_delta", "partial_json": text }),
        };
        self.block_event("content_block_delta", json!({ "delta": delta }));
    }

    fn end(&mut self, finish: FinishReason, stop: Option<String>, usage: &Usage) {
        self.close();
        let reason = match finish {
            FinishReason::ToolCalls => "tool_use",
            FinishReason::Length => "max_tokens",
            FinishReason::Stop if stop.is_some() => "stop_sequence",
            FinishReason::Stop => "end_turn",
        };
        let stop = stop.filter(|_| reason == "stop_sequence");
        let usage = usage_of(usage);
        self.message["content"] = Value::Array(std::mem::take(&mut self.content));
        self.message["stop_reason"] = json!(reason);
        self.message["stop_sequence"] = json!(stop);
        self.message["usage"] = usage.clone();
        let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
        self.events.push(TypedEvent::new("message_delta", json!({ "delta": delta, "usage": usage })));
        self.events.push(TypedEvent::new("message_stop", json!({})));
    }
}

/// Returns the token counts. Anthropic counts tokens found in the cache separately.
fn usage_of(usage: &Usage) -> Value {
    let cached = usage.prompt_tokens_details.map_or(0, |details| details.cached_tokens);
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    })
}

impl AnswerWriter for Writer {
    fn start(&mut self) -> Vec<TypedEvent> {
        vec![
            TypedEvent::new("message_start", json!({ "message": self.message })),
            TypedEvent::new("ping", json!({})),
        ]
    }

    fn push(&mut self, output: Output) -> Vec<TypedEvent> {
        match output {
            Output::Reasoning(text) => self.append(BlockKind::Thinking, &text),
            Output::Text(text, _) => self.append(BlockKind::Text, &text),
            Output::Call { id, name } => self.begin(BlockKind::ToolUse { id, name }),
            Output::Arguments(text) => self.extend(&text),
            Output::End { finish, stop, usage } => self.end(finish, stop, &usage),
        }
        std::mem::take(&mut self.events)
    }

    fn fail(&mut self, _: &ApiError) -> Vec<TypedEvent> {
        Vec::new()
    }

    fn response(self) -> Value {
        self.message
    }
}

impl Block {
    fn value(&self) -> Value {
        let text = &self.text;
        match &self.kind {
            BlockKind::Thinking => json!({ "type": "thinking", "thinking": text, "signature": "" }),
            BlockKind::Text => json!({ "type": "text", "text": text }),
            BlockKind::ToolUse { id, name } => {
                let input = serde_json::from_str(text).unwrap_or_else(|_| json!({}));
                json!({ "type": "tool_use", "id": id, "name": name, "input": input })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_blocks_in_order() {
        let mut writer = Writer::new("m", 5);
        let usage = Usage { prompt_tokens: 5, completion_tokens: 7, ..Usage::default() };
        let mut events = writer.start();
        for output in [
            Output::Reasoning("a".into()),
            Output::Text("b".into(), Vec::new()),
            Output::Text("c".into(), Vec::new()),
            Output::Call { id: "1".into(), name: "f".into() },
            Output::Arguments("{\"x\":".into()),
            Output::Arguments("1}".into()),
            Output::Call { id: "2".into(), name: "g".into() },
            Output::End { finish: FinishReason::ToolCalls, stop: None, usage },
        ] {
            events.extend(writer.push(output));
        }
        let events: Vec<Value> = events.iter().map(|event| json!(event)).collect();
        let index = |event: &Value| event["index"].as_u64();
        let starts = events.iter().filter(|event| event["type"] == "content_block_start");
        assert_eq!(starts.map(index).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), Some(3)]);
        let deltas: Vec<&str> = events.iter().filter_map(|event| event["delta"]["type"].as_str()).collect();
        let (text, arguments) = ("text_delta", "input_json_delta");
        assert_eq!(deltas, ["thinking_delta", "signature_delta", text, text, arguments, arguments]);
        assert_eq!(events.last().unwrap()["type"], "message_stop");
        let message = writer.response();
        assert_eq!(
            message["content"],
            json!([
                { "type": "thinking", "thinking": "a", "signature": "" },
                { "type": "text", "text": "bc" },
                { "type": "tool_use", "id": "1", "name": "f", "input": { "x": 1 } },
                { "type": "tool_use", "id": "2", "name": "g", "input": {} },
            ])
        );
        assert_eq!(
            (&message["stop_reason"], &message["usage"]["output_tokens"]),
            (&json!("tool_use"), &json!(7))
        );
    }
}
