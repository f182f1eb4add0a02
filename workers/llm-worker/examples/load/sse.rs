//! Requests that are answered with server-sent events.
use std::io::{self, BufRead, BufReader};
use std::time::Duration;

use serde_json::Value;

/// One event of a stream.
#[derive(Debug, Default, PartialEq)]
pub struct Event {
    /// The field `event`; empty if the stream does not name its events.
    pub name: String,
    pub data: String,
}

/// Events of a response. Dropping it before its end closes the connection.
pub struct Events<R>(R);

impl<R: BufRead> Events<R> {
    pub fn new(reader: R) -> Self {
        Self(reader)
    }
}

impl<R: BufRead> Iterator for Events<R> {
    type Item = io::Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut event, mut line) = (Event::default(), String::new());
        loop {
            line.clear();
            match self.0.read_line(&mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
            let text = line.trim_end_matches(['\r', '\n']);
            if text.is_empty() {
                match event.data.is_empty() {
                    true => event.name.clear(),
                    false => return Some(Ok(event)),
                }
            }
            let (field, value) = text.split_once(':').unwrap_or((text, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut event.name),
                "data" if event.data.is_empty() => value.clone_into(&mut event.data),
                "data" => event.data.extend(["\n", value]),
                _ => {}
            }
        }
    }
}

/// Response whose events arrive over a connection of its own.
pub type Stream = Events<Box<dyn BufRead + Send>>;

/// Sends a request and returns the events of its response. The whole exchange may take `timeout`.
///
/// # Errors
/// If there is no connection, or the status is 400 or above.
pub fn post(
    url: &str,
    key: Option<&str>,
    body: &Value,
    timeout: Duration,
) -> Result<Stream, Box<ureq::Error>> {
    let mut request = ureq::post(url).timeout(timeout);
    if let Some(key) = key {
        request = request.set("Authorization", &format!("Bearer {key}"));
    }
    Ok(events(request.send_json(body)?))
}

pub fn events(response: ureq::Response) -> Stream {
    Events::new(Box::new(BufReader::new(response.into_reader())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_end_at_empty_lines() {
        let text =
            ": a comment\n\nevent: ping\ndata: {}\r\n\r\ndata:one\ndata: two\n\n\ndata: [DONE]\n\ndata: cut";
        let events: Vec<Event> = Events::new(text.as_bytes()).map(Result::unwrap).collect();
        let event = |name: &str, data: &str| Event { name: name.into(), data: data.into() };
        assert_eq!(events, [event("ping", "{}"), event("", "one\ntwo"), event("", "[DONE]")]);
    }
}
