//! Output items and events of a response.
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;
use worker_core::{ApiError, unix_seconds};

use super::tools::{FREE_TEXT, ToolName};
use crate::api::answer::{ChatLogProb, TokenLogProb, Usage};
use crate::api::generation::FinishReason;
use crate::api::output::{AnswerWriter, Output, TypedEvent};
use crate::served::ServedModel;

/// Builds a response item by item.
pub struct Writer {
    /// The response so far; its output consists of the finished items.
    response: Value,
    output: Vec<Value>,
    open: Option<Item>,
    /// Names of the tools, by those that the model sees.
    tool_names: HashMap<String, ToolName>,
    /// Model whose tokens are reported with log probabilities, if they are requested.
    logprobs: Option<Arc<ServedModel>>,
    events: Vec<TypedEvent>,
    /// Sequence number of the next event.
    sequence: u64,
}

/// The item that is being written.
struct Item {
    kind: Kind,
    id: String,
    /// Its text or arguments so far.
    text: String,
    logprobs: Vec<Value>,
}

enum Kind {
    Reasoning,
    Message,
    Function { call_id: String, tool: ToolName },
    Custom { call_id: String, tool: ToolName },
}

impl Writer {
    /// Creates a writer of `response`, which has no output yet. `tool_names` are the names of the tools, by those that the
    /// model sees.
    pub fn new(
        response: Value,
        tool_names: HashMap<String, ToolName>,
        logprobs: Option<Arc<ServedModel>>,
    ) -> Self {
        let (output, events) = (Vec::new(), Vec::new());
        Self { response, output, open: None, tool_names, logprobs, events, sequence: 0 }
    }

    fn event(&mut self, kind: &'static str, mut body: Value) {
        body["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        self.events.push(TypedEvent::new(kind, body));
    }

    /// Emits an event of the open item, whose fields are added to `body`.
    fn item_event(&mut self, kind: &'static str, mut body: Value) {
        let Some(item) = &self.open else { return };
        body["item_id"] = json!(item.id);
        body["output_index"] = json!(self.output.len());
        if matches!(item.kind, Kind::Reasoning | Kind::Message) {
            body["content_index"] = json!(0);
        }
        self.event(kind, body);
    }

    /// Closes the open item and opens another.
    fn begin(&mut self, kind: Kind) {
        self.close("completed");
        let id = format!("{}_{}", kind.prefix(), Uuid::new_v4().simple());
        let item = Item { kind, id, text: String::new(), logprobs: Vec::new() };
        let (shape, part) = (item.value("in_progress"), item.part());
        let index = self.output.len();
        self.open = Some(item);
        self.event("response.output_item.added", json!({ "output_index": index, "item": shape }));
        if let Some(part) = part {
            self.item_event("response.content_part.added", json!({ "part": part }));
        }
    }

    /// Closes the open item with this status.
    fn close(&mut self, status: &str) {
        let Some(item) = &self.open else { return };
        let (value, part, text) = (item.value(status), item.part(), item.text.clone());
        match &item.kind {
            Kind::Reasoning => self.item_event("response.reasoning_text.done", json!({ "text": text })),
            Kind::Message => {
                let body = json!({ "text": text, "logprobs": item.logprobs });
                self.item_event("response.output_text.done", body);
            }
            Kind::Function { tool, .. } => {
                let body = json!({ "name": tool.name, "arguments": text });
                self.item_event("response.function_call_arguments.done", body);
            }
            Kind::Custom { .. } => {
                let input = value["input"].clone();
                self.item_event("response.custom_tool_call_input.delta", json!({ "delta": input }));
                self.item_event("response.custom_tool_call_input.done", json!({ "input": input }));
            }
        }
        if let Some(part) = part {
            self.item_event("response.content_part.done", json!({ "part": part }));
        }
        let index = self.output.len();
        self.event("response.output_item.done", json!({ "output_index": index, "item": value }));
        self.output.push(value);
        self.open = None;
    }

    /// Appends text to an open item of the kind for which `is_kind` is true, or to a new one.
    fn append(&mut self, is_kind: fn(&Kind) -> bool, new: Option<Kind>, text: &str, tokens: &[TokenLogProb]) {
        if !self.open.as_ref().is_some_and(|item| is_kind(&item.kind)) {
            match new {
                Some(kind) => self.begin(kind),
                None => return,
            }
        }
        let logprobs = self.logprobs.as_ref().map(|served| {
            let logprob = |token| json!(ChatLogProb::new(served.engine.text(), token));
            tokens.iter().map(logprob).collect::<Vec<Value>>()
        });
        let logprobs = logprobs.unwrap_or_default();
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        item.logprobs.extend_from_slice(&logprobs);
        match &item.kind {
            Kind::Reasoning => self.item_event("response.reasoning_text.delta", json!({ "delta": text })),
            Kind::Message => {
                self.item_event("response.output_text.delta", json!({ "delta": text, "logprobs": logprobs }));
            }
            Kind::Function { .. } => {
                self.item_event("response.function_call_arguments.delta", json!({ "delta": text }));
            }
            // The input is read from the complete arguments when the call ends.
            Kind::Custom { .. } => {}
        }
    }

    fn end(&mut self, finish: FinishReason, usage: Usage) {
        let is_complete = finish != FinishReason::Length;
        let status = if is_complete { "completed" } else { "incomplete" };
        if self.open.is_none() && self.output.is_empty() {
            self.begin(Kind::Message);
        }
        self.close(status);
        self.response["completed_at"] = json!(unix_seconds());
        if !is_complete {
            self.response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        self.response["usage"] = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.prompt_tokens_details.map_or(0, |details| details.cached_tokens),
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": usage.total_tokens,
        });
        let kind = if is_complete { "response.completed" } else { "response.incomplete" };
        self.finish(status, kind);
    }

    /// Completes the response and emits its last event.
    fn finish(&mut self, status: &str, kind: &'static str) {
        self.response["status"] = json!(status);
        self.response["output"] = Value::Array(std::mem::take(&mut self.output));
        self.event(kind, json!({ "response": self.response }));
    }
}

impl AnswerWriter for Writer {
    fn start(&mut self) -> Vec<TypedEvent> {
        for kind in ["response.created", "response.in_progress"] {
            self.event(kind, json!({ "response": self.response }));
        }
        std::mem::take(&mut self.events)
    }

    fn push(&mut self, output: Output) -> Vec<TypedEvent> {
        match output {
            Output::Reasoning(text) => {
                self.append(|kind| matches!(kind, Kind::Reasoning), Some(Kind::Reasoning), &text, &[]);
            }
            Output::Text(text, tokens) => {
                self.append(|kind| matches!(kind, Kind::Message), Some(Kind::Message), &text, &tokens);
            }
            Output::Call { id: call_id, name } => {
                let unknown = || ToolName { name: name.clone(), namespace: None, is_custom: false };
                let tool = self.tool_names.get(&name).cloned().unwrap_or_else(unknown);
                self.begin(match tool.is_custom {
                    true => Kind::Custom { call_id, tool },
                    false => Kind::Function { call_id, tool },
                });
            }
            Output::Arguments(text) => {
                self.append(|kind| !matches!(kind, Kind::Reasoning | Kind::Message), None, &text, &[]);
            }
            Output::End { finish, usage, .. } => self.end(finish, usage),
        }
        std::mem::take(&mut self.events)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<TypedEvent> {
        self.close("incomplete");
        self.response["error"] = json!({ "code": error.code(), "message": error.message() });
        self.finish("failed", "response.failed");
        std::mem::take(&mut self.events)
    }

    fn response(self) -> Value {
        self.response
    }
}

impl Kind {
    /// Returns the beginning of the item's id.
    fn prefix(&self) -> &'static str {
        match self {
            Kind::Reasoning => "rs",
            Kind::Message => "msg",
            Kind::Function { .. } => "fc",
            Kind::Custom { .. } => "ctc",
        }
    }
}

impl Item {
    /// Returns the only part of the item's content, if it has content.
    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": self.text })),
            Kind::Message => Some(json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs,
            })),
            Kind::Function { .. } | Kind::Custom { .. } => None,
        }
    }

    /// Returns the item. It has no content while it is in progress.
    fn value(&self, status: &str) -> Value {
        let content: Vec<Value> = self.part().filter(|_| status != "in_progress").into_iter().collect();
        let (id, text) = (&self.id, &self.text);
        match &self.kind {
            Kind::Reasoning => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [], "content": content,
                "encrypted_content": null,
            }),
            Kind::Message => json!({
                "id": id, "type": "message", "status": status, "role": "assistant", "content": content,
            }),
            Kind::Function { call_id, tool } => {
                let mut call = json!({
                    "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": tool.name,
                    "arguments": text,
                });
                if let Some(namespace) = &tool.namespace {
                    call["namespace"] = json!(namespace);
                }
                call
            }
            Kind::Custom { call_id, tool } => {
                let input = serde_json::from_str::<Value>(text).ok();
                let input = input.and_then(|arguments| arguments[FREE_TEXT].as_str().map(str::to_owned));
                json!({
                    "id": id, "type": "custom_tool_call", "status": status, "call_id": call_id, "name": tool.name,
                    "input": input.unwrap_or_else(|| text.clone()),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_items_in_order() {
        let mut writer = {
            let tool = ToolName { name: "f".into(), namespace: Some("n".into()), is_custom: false };
            Writer::new(json!({ "output": [] }), [("n__f".to_owned(), tool)].into(), None)
        };
        let mut events = writer.start();
        let usage = Usage::default();
        for output in [
            Output::Reasoning("a".into()),
            Output::Reasoning("b".into()),
            Output::Text("c".into(), Vec::new()),
            Output::Call { id: "1".into(), name: "n__f".into() },
            Output::Arguments("{\"x\":".into()),
            Output::Arguments("1}".into()),
            Output::Call { id: "2".into(), name: "g".into() },
            Output::End { finish: FinishReason::ToolCalls, stop: None, usage },
        ] {
            events.extend(writer.push(output));
        }
        let kinds: Vec<Value> = events.iter().map(|event| json!(event)["type"].clone()).collect();
        let kinds: Vec<&str> =
            kinds.iter().filter_map(|kind| kind.as_str()?.strip_prefix("response.")).collect();
        let (added, done) = ("output_item.added", "output_item.done");
        let (part, part_done) = ("content_part.added", "content_part.done");
        let (arguments, arguments_done) = ("function_call_arguments.delta", "function_call_arguments.done");
        assert_eq!(
            kinds,
            [
                &["created", "in_progress"][..],
                &[
                    added,
                    part,
                    "reasoning_text.delta",
                    "reasoning_text.delta",
                    "reasoning_text.done",
                    part_done,
                    done
                ],
                &[added, part, "output_text.delta", "output_text.done", part_done, done],
                &[added, arguments, arguments, arguments_done, done],
                &[added, arguments_done, done],
                &["completed"],
            ]
            .concat()
        );
        let response = writer.response();
        let output = response["output"].as_array().unwrap();
        assert_eq!(output[0]["content"], json!([{ "type": "reasoning_text", "text": "ab" }]));
        assert_eq!(output[1]["content"][0]["text"], "c");
        assert_eq!((&output[2]["arguments"], &output[2]["call_id"]), (&json!("{\"x\":1}"), &json!("1")));
        assert_eq!((&output[2]["name"], &output[2]["namespace"]), (&json!("f"), &json!("n")));
        assert_eq!((&output[3]["arguments"], &output[3]["name"]), (&json!(""), &json!("g")));
        let items: Vec<Value> = events.iter().map(|event| json!(event)).collect();
        let items = items.iter().filter(|event| event["type"] == "response.output_item.done");
        assert_eq!(items.map(|event| event["item"].clone()).collect::<Vec<_>>(), *output);
    }
}
