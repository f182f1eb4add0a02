//! Ids of tool calls: nine letters and digits, as Mistral's templates require.
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;
use uuid::Uuid;

const LENGTH: usize = 9;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Returns a random id.
pub fn unique() -> String {
    encode(Uuid::new_v4().as_u64_pair().1)
}

/// Replaces ids of other formats by ids of this format, consistently. Returns `None` if there are none.
pub fn with_short_ids(conversation: &Value) -> Option<Value> {
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
    // The hash keys are fixed, so that a continued conversation gets the same ids and hits the cache.
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    *id = encode(hasher.finish()).into();
    true
}

fn encode(mut number: u64) -> String {
    let mut sign = || {
        let sign = ALPHABET[(number % 62) as usize];
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
    fn other_ids_are_replaced_consistently() {
        let turns = |one: &str, other: &str| {
            json!([
                {"role": "assistant", "tool_calls": [{"id": one}, {"id": other}, {"id": null}, {}]},
                {"role": "tool", "tool_call_id": other},
                {"role": "tool", "tool_call_id": one},
                {"role": "user", "content": "x", "tool_call_id": null},
            ])
        };
        assert_eq!(with_short_ids(&turns("abcDEF123", "000000000")), None);
        assert_eq!(with_short_ids(&json!([])), None);
        let one = "call_0123456789abcdef0123456789abcdef";
        for other in ["abcDEF123", "call_1", "", "abcDEF12-", "\u{E9}\u{E9}\u{E9}\u{E9}x"] {
            let changed = with_short_ids(&turns(one, other)).unwrap();
            let id = |pointer: &str| changed.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
            let (first, second) = (id("/0/tool_calls/0/id"), id("/0/tool_calls/1/id"));
            assert_eq!(changed, turns(&first, &second));
            assert_ne!(first, second);
            assert_eq!(second == other, other == "abcDEF123");
            assert_eq!(with_short_ids(&changed), None);
            assert_eq!(with_short_ids(&turns(one, other)).unwrap(), changed);
        }
    }
}
