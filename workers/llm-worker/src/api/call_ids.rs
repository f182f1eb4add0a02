//! Ids of calls: nine letters and digits, since Mistral's templates take no others.
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;
use uuid::Uuid;

const LENGTH: usize = 9;
const SIGNS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// An id that no other call has.
pub fn unique() -> String {
    written(Uuid::new_v4().as_u64_pair().1)
}

/// The conversation with ids of this kind in the place of others, the same for the same; none where there are no others.
pub fn rewritten(conversation: &Value) -> Option<Value> {
    let mut conversation = conversation.clone();
    let mut changed = false;
    for message in conversation.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten();
        for id in calls.filter_map(|call| call.get_mut("id")) {
            changed |= rewrite(id);
        }
        changed |= message.get_mut("tool_call_id").is_some_and(rewrite);
    }
    changed.then_some(conversation)
}

fn rewrite(id: &mut Value) -> bool {
    let other = |id: &&str| id.len() != LENGTH || !id.bytes().all(|sign| sign.is_ascii_alphanumeric());
    let Some(text) = id.as_str().filter(other) else { return false };
    // Its keys are fixed: a conversation that goes on is rewritten alike, and found in the cache.
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    *id = written(hasher.finish()).into();
    true
}

fn written(mut number: u64) -> String {
    let mut sign = || {
        let sign = SIGNS[(number % 62) as usize];
        number /= 62;
        char::from(sign)
    };
    (0..LENGTH).map(|_| sign()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn ids_are_nine_letters_and_digits() {
        let ids: HashSet<String> = (0..1000).map(|_| unique()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 9 && id.chars().all(|sign| sign.is_ascii_alphanumeric())));
    }

    #[test]
    fn other_ids_are_rewritten_and_still_belong_together() {
        let turns = |one: &str, other: &str| {
            json!([
                {"role": "assistant", "tool_calls": [{"id": one}, {"id": other}, {"id": null}, {}]},
                {"role": "tool", "tool_call_id": other},
                {"role": "tool", "tool_call_id": one},
                {"role": "user", "content": "x", "tool_call_id": null},
            ])
        };
        assert_eq!(rewritten(&turns("abcDEF123", "000000000")), None);
        assert_eq!(rewritten(&json!([])), None);
        let one = "call_0123456789abcdef0123456789abcdef";
        for other in ["abcDEF123", "call_1", "", "abcDEF12-", "\u{E9}\u{E9}\u{E9}\u{E9}x"] {
            let changed = rewritten(&turns(one, other)).unwrap();
            let id = |pointer: &str| changed.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
            let (first, second) = (id("/0/tool_calls/0/id"), id("/0/tool_calls/1/id"));
            assert_eq!(changed, turns(&first, &second));
            assert_ne!(first, second);
            assert_eq!(second == other, other == "abcDEF123");
            assert_eq!(rewritten(&changed), None);
            assert_eq!(rewritten(&turns(one, other)).unwrap(), changed);
        }
    }
}
