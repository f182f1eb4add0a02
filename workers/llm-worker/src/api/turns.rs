//! Turns of a conversation in the form that chat templates expect.
use serde_json::{Value, json};

/// A conversation that is built turn by turn.
#[derive(Debug, Default)]
pub struct Turns {
    turns: Vec<Value>,
    /// Reasoning of the assistant's next turn.
    reasoning: String,
}

impl Turns {
    /// Adds text of `system`, `user` or `assistant`. System texts at the start become one turn, since many templates accept
    /// only one.
    pub fn text(&mut self, role: &str, text: String) {
        if role == "system"
            && let [Value::Object(turn)] = self.turns.as_mut_slice()
            && turn["role"] == role
            && let Some(Value::String(before)) = turn.get_mut("content")
        {
            before.push_str("\n\n");
            before.push_str(&text);
            return;
        }
        let turn = json!({ "role": role, "content": text });
        self.push(turn);
    }

    /// Adds content of `user` or `assistant`: a text, or a list of parts with pictures.
    pub fn content(&mut self, role: &str, content: Value) {
        match content {
            Value::String(text) => self.text(role, text),
            content => self.push(json!({ "role": role, "content": content })),
        }
    }

    /// Adds reasoning that precedes the assistant's next text or call.
    pub fn reasoning(&mut self, text: &str) {
        self.reasoning.push_str(text);
    }

    /// Adds a call of a tool. Calls that follow each other, or the assistant's text, belong to one turn.
    pub fn call(&mut self, id: &str, name: &str, arguments: Value) {
        let call = json!({
            "id": id,
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        });
        if !matches!(self.turns.last(), Some(turn) if turn["role"] == "assistant" && self.reasoning.is_empty())
        {
            self.push(json!({ "role": "assistant", "content": "" }));
        }
        if let Some(turn) = self.turns.last_mut() {
            match turn.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => turn["tool_calls"] = json!([call]),
            }
        }
    }

    /// Adds the result of the call `id`.
    pub fn result(&mut self, id: &str, text: String) {
        self.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
    }

    /// Returns true if the assistant's text is at the end, so that the model can continue it. Removes a turn without text.
    pub fn has_beginning(&mut self) -> bool {
        let is_beginning = |turn: &&Value| turn["role"] == "assistant" && turn.get("tool_calls").is_none();
        let Some(last) = self.turns.last().filter(is_beginning) else { return false };
        let has_text = last["content"].as_str().is_some_and(|text| !text.trim().is_empty());
        if !has_text {
            self.turns.pop();
        }
        has_text
    }

    /// Returns the list of turns.
    pub fn into_value(self) -> Value {
        Value::Array(self.turns)
    }

    fn push(&mut self, mut turn: Value) {
        let reasoning = std::mem::take(&mut self.reasoning);
        if turn["role"] == "assistant" && !reasoning.is_empty() {
            turn["reasoning_content"] = reasoning.into();
        }
        self.turns.push(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_calls_and_reasoning_become_turns() {
        let mut turns = Turns::default();
        for text in ["a", "b"] {
            turns.text("system", text.into());
        }
        turns.text("user", "c".into());
        turns.reasoning("why");
        turns.text("assistant", "d".into());
        turns.call("1", "f", json!({}));
        turns.call("2", "g", json!({}));
        turns.result("1", "e".into());
        turns.text("system", "x".into());
        turns.reasoning("more");
        turns.call("3", "f", json!({}));
        assert!(!turns.has_beginning());
        turns.text("assistant", " ".into());
        assert!(!turns.has_beginning());
        turns.text("assistant", "the end".into());
        assert!(turns.has_beginning());
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": {}}});
        assert_eq!(
            turns.into_value(),
            json!([
                {"role": "system", "content": "a\n\nb"},
                {"role": "user", "content": "c"},
                {"role": "assistant", "content": "d", "reasoning_content": "why", "tool_calls": [call("1", "f"), call("2", "g")]},
                {"role": "tool", "tool_call_id": "1", "content": "e"},
                {"role": "system", "content": "x"},
                {"role": "assistant", "content": "", "reasoning_content": "more", "tool_calls": [call("3", "f")]},
                {"role": "assistant", "content": "the end"},
            ])
        );
    }
}
