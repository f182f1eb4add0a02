//! Answers, put together from the events of their streams.
use serde_json::Value;

use crate::sse::Event;

/// Format of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    /// Chats and completions of OpenAI.
    OpenAi,
    /// OpenAI's Responses API.
    Responses,
    /// Anthropic's Messages API.
    Messages,
    /// The worker's job API.
    Job,
}

/// Reason why a stream is not a correct answer.
#[derive(Debug, PartialEq)]
pub enum Fault {
    /// The server reported an error.
    Failed(String),
    /// The events violate the format.
    Malformed(String),
}

type Outcome = Result<(), Fault>;

/// The part of an answer that has arrived.
#[derive(Debug, Default)]
pub struct Answer {
    pub text: String,
    /// Name of the function that the answer calls.
    pub name: String,
    /// Arguments of the call.
    pub arguments: String,
    /// Number of events with text or arguments.
    pub pieces: usize,
    /// True after the event that ends the stream.
    pub is_done: bool,
    /// Number of events.
    events: u64,
    /// Id of the answer, which all its events have.
    id: Option<String>,
    is_block_open: bool,
    has_reason: bool,
}

/// Joins the strings among the values.
fn joined<'a>(values: impl Iterator<Item = &'a Value>) -> String {
    values.filter_map(Value::as_str).collect()
}

impl Answer {
    #[cfg(test)]
    pub fn of(text: &str, name: &str, arguments: &str) -> Self {
        let [text, name, arguments] = [text, name, arguments].map(str::to_owned);
        Self { text, name, arguments, ..Self::default() }
    }

    /// Adds the next event.
    ///
    /// # Errors
    /// If the event reports an error, or is not one that the format allows at this place.
    pub fn add(&mut self, format: Format, event: &Event) -> Outcome {
        let malformed = |what: &str| Fault::Malformed(format!("{what}: {:.500}", event.data));
        if self.is_done {
            return Err(malformed("an event after the end"));
        }
        if event.data == "[DONE]" {
            self.is_done = true;
            let may_end = matches!(format, Format::OpenAi | Format::Job) && self.has_reason;
            return may_end.then_some(()).ok_or_else(|| malformed("an end without a reason"));
        }
        let body: Value = serde_json::from_str(&event.data).map_err(|_| malformed("not JSON"))?;
        let kind = body["type"].as_str().unwrap_or_default();
        let has_error = body.get("error").is_some_and(|error| !error.is_null());
        if has_error || ["error", "response.failed"].contains(&kind) {
            return Err(Fault::Failed(event.data.clone()));
        }
        if matches!(format, Format::Responses | Format::Messages) && event.name != kind {
            return Err(malformed("an event whose name is not its type"));
        }
        let fits = match format {
            Format::OpenAi => self.add_chunk(&body),
            Format::Responses => self.add_response_event(kind, &body),
            Format::Messages => self.add_message_event(kind, &body),
            Format::Job => self.add_job_event(kind, &body),
        };
        self.events += 1;
        fits.ok_or_else(|| malformed("an unexpected event"))
    }

    fn push_text(&mut self, text: &str) {
        self.text.push_str(text);
        self.pieces += usize::from(!text.is_empty());
    }

    fn push_arguments(&mut self, arguments: &str) {
        self.arguments.push_str(arguments);
        self.pieces += 1;
    }

    /// Remembers the first id; returns `None` if a later one differs.
    fn check_id(&mut self, id: &Value) -> Option<()> {
        let id = id.as_str()?;
        (*self.id.get_or_insert_with(|| id.to_owned()) == *id).then_some(())
    }

    fn add_chunk(&mut self, chunk: &Value) -> Option<()> {
        self.check_id(&chunk["id"])?;
        let Some(choice) = chunk["choices"].as_array()?.first() else { return Some(()) };
        let (delta, text) = (&choice["delta"], choice["text"].as_str());
        self.push_text(text.or(delta["content"].as_str()).unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            self.name.push_str(function["name"].as_str().unwrap_or_default());
            self.push_arguments(function["arguments"].as_str().unwrap_or_default());
        }
        self.has_reason |= choice["finish_reason"].is_string();
        Some(())
    }

    fn add_response_event(&mut self, kind: &str, event: &Value) -> Option<()> {
        let number = event["sequence_number"].as_u64()?;
        let first = ["response.created", "response.in_progress"].get(self.events as usize);
        (number == self.events && first.is_none_or(|first| *first == kind)).then_some(())?;
        match kind {
            "response.output_text.delta" => self.push_text(event["delta"].as_str()?),
            "response.function_call_arguments.delta" => self.push_arguments(event["delta"].as_str()?),
            "response.output_item.added" => {
                self.name.push_str(event["item"]["name"].as_str().unwrap_or_default());
            }
            "response.completed" | "response.incomplete" => {
                self.is_done = true;
                let items = event["response"]["output"].as_array()?;
                let parts = items.iter().flat_map(|item| item["content"].as_array()).flatten();
                let text = joined(parts.map(|part| &part["text"]));
                let arguments = joined(items.iter().map(|item| &item["arguments"]));
                (text == self.text && arguments == self.arguments).then_some(())?;
            }
            _ => {}
        }
        match event.get("response") {
            Some(response) => self.check_id(&response["id"]),
            None => Some(()),
        }
    }

    fn add_message_event(&mut self, kind: &str, event: &Value) -> Option<()> {
        let is_start = kind == "message_start";
        ((self.events == 0) == is_start).then_some(())?;
        let (block, delta) = (&event["content_block"], &event["delta"]);
        let is_open = std::mem::replace(&mut self.is_block_open, false);
        match kind {
            "message_start" => self.check_id(&event["message"]["id"]),
            "ping" => {
                self.is_block_open = is_open;
                Some(())
            }
            "content_block_start" => {
                self.name.push_str(block["name"].as_str().unwrap_or_default());
                self.is_block_open = true;
                (!is_open && !self.has_reason).then_some(())
            }
            "content_block_delta" => {
                self.is_block_open = is_open;
                match (delta["text"].as_str(), delta["partial_json"].as_str()) {
                    (Some(text), None) => self.push_text(text),
                    (None, Some(json)) => self.push_arguments(json),
                    _ => return None,
                }
                is_open.then_some(())
            }
            "content_block_stop" => is_open.then_some(()),
            "message_delta" => {
                self.has_reason = delta["stop_reason"].is_string();
                (!is_open && self.has_reason).then_some(())
            }
            "message_stop" => {
                self.is_done = true;
                (!is_open && self.has_reason).then_some(())
            }
            _ => None,
        }
    }

    fn add_job_event(&mut self, kind: &str, event: &Value) -> Option<()> {
        match kind {
            "started" => self.check_id(&event["job_id"])?,
            "token" => self.push_text(event["t"].as_str()?),
            "end" => self.has_reason = true,
            "metrics" => {}
            _ => return None,
        }
        ((self.events == 0) == (kind == "started")).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Adds events, with their types as names, and `[DONE]` for null.
    fn read(format: Format, events: &[Value]) -> Result<Answer, Fault> {
        let mut answer = Answer::default();
        for event in events {
            let name = event["type"].as_str().unwrap_or_default().to_owned();
            let data = if event.is_null() { "[DONE]".to_owned() } else { event.to_string() };
            answer.add(format, &Event { name, data })?;
        }
        Ok(answer)
    }

    fn is_malformed(format: Format, events: &[Value]) -> bool {
        matches!(read(format, events), Err(Fault::Malformed(_)))
    }

    #[test]
    fn chunks_are_joined() {
        let chunk = |delta: Value, reason: Value| json!({"id": "a", "choices": [{"delta": delta, "finish_reason": reason}]});
        let call = |name: Value, arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]});
        let events = [
            chunk(json!({"role": "assistant", "content": ""}), Value::Null),
            chunk(json!({"content": "Hi"}), Value::Null),
            chunk(call(json!("f"), ""), Value::Null),
            chunk(call(Value::Null, "{}"), json!("tool_calls")),
            json!({"id": "a", "choices": [], "usage": {}}),
            Value::Null,
        ];
        let answer = read(Format::OpenAi, &events).unwrap();
        assert_eq!((&*answer.text, &*answer.name, &*answer.arguments), ("Hi", "f", "{}"));
        assert_eq!((answer.pieces, answer.is_done), (3, true));
        assert!(is_malformed(Format::OpenAi, &[events[1].clone(), Value::Null]), "no finish reason");
        let other = json!({"id": "b", "choices": []});
        assert!(is_malformed(Format::OpenAi, &[events[1].clone(), other]), "an id of another answer");
        let failed = read(Format::OpenAi, &[json!({"error": {"message": "no"}})]);
        assert!(matches!(failed, Err(Fault::Failed(_))));
    }

    #[test]
    fn responses_are_numbered_and_repeat_their_text() {
        let event = |kind: &str, number: usize, more: Value| {
            let mut event = json!({"type": format!("response.{kind}"), "sequence_number": number});
            event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            event
        };
        let response =
            |text: &str| json!({"response": {"id": "r", "output": [{"content": [{"text": text}]}]}});
        let mut events = vec![
            event("created", 0, response("")),
            event("in_progress", 1, response("")),
            event("output_text.delta", 2, json!({"delta": "Hi"})),
            event("completed", 3, response("Hi")),
        ];
        let answer = read(Format::Responses, &events).unwrap();
        assert!(answer.is_done && answer.text == "Hi");
        events[3] = event("completed", 3, response("Ho"));
        assert!(is_malformed(Format::Responses, &events), "another text");
        events[3] = event("completed", 4, response("Hi"));
        assert!(is_malformed(Format::Responses, &events), "a gap in the numbers");
        assert!(is_malformed(Format::Responses, &events[2..]), "no beginning");
    }

    #[test]
    fn blocks_of_messages_open_and_close() {
        let start = json!({"type": "message_start", "message": {"id": "m"}});
        let open = json!({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}});
        let delta = json!({"type": "content_block_delta", "delta": {"partial_json": "{}"}});
        let close = json!({"type": "content_block_stop"});
        let reason = json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}});
        let stop = json!({"type": "message_stop"});
        let ping = json!({"type": "ping"});
        let events = [&start, &ping, &open, &delta, &close, &reason, &stop].map(Clone::clone);
        let answer = read(Format::Messages, &events).unwrap();
        assert_eq!((answer.is_done, &*answer.name, &*answer.arguments), (true, "f", "{}"));
        for wrong in [
            vec![&open],
            vec![&start, &start],
            vec![&start, &delta],
            vec![&start, &open, &open],
            vec![&start, &open, &reason],
            vec![&start, &open, &close, &stop],
        ] {
            let wrong: Vec<Value> = wrong.into_iter().cloned().collect();
            assert!(is_malformed(Format::Messages, &wrong), "{wrong:?}");
        }
    }
}
